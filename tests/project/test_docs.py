"""The site of docs/: every page is in its navigation, what is generated is complete, symbols name code that exists."""

import ast
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.project.site_pages import pages, reference

ROOT = Path(__file__).resolve().parents[2]
MKDOCS = ROOT / "mkdocs.yml"
MODEL_PAGES = sorted(path for path in (ROOT / "gemm_eval").rglob("*.md") if "\n## Symbols\n" in path.read_text())
_SPAN = re.compile(r"`([^`]+)`")
_COEFFICIENT = re.compile(r"`?\bc\.([a-z][a-z0-9_]+)")
_SPEC_FIELD = re.compile(r"\bspec `?([a-z][a-z0-9]*(?:_[a-z0-9]+)+)`?")


def navigation(entries: list[Any]) -> list[str]:
    found = []
    for entry in entries:
        page = next(iter(entry.values())) if isinstance(entry, dict) else entry
        found += navigation(page) if isinstance(page, list) else [page]
    return found


def own_pages() -> list[str]:
    """Pages that are files of docs/, in the order of paths."""
    found = [path.relative_to(ROOT / "docs").as_posix() for path in sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if not page.startswith(("generate/", "checks/", "figures/"))]


def test_every_page_is_in_the_navigation_once() -> None:
    listed = navigation(yaml.safe_load(MKDOCS.read_text(encoding="utf-8"))["nav"])
    assert sorted(listed) == sorted([*own_pages(), *pages.BESIDE_CODE, *pages.API, *pages.GENERATED])


def test_every_page_of_the_package_is_a_page_of_the_site() -> None:
    beside = {path.relative_to(ROOT).as_posix() for path in (ROOT / "gemm_eval").rglob("*.md")}
    assert beside <= set(pages.BESIDE_CODE.values())


def test_nothing_is_asked_of_the_network() -> None:
    config = yaml.safe_load(MKDOCS.read_text(encoding="utf-8"))
    assert config["theme"]["font"] is False
    assert not re.search(r"https?://", MKDOCS.read_text(encoding="utf-8"))


@pytest.mark.parametrize("model", [model for models in reference.MODELS.values() for model in models])
def test_the_reference_has_every_field(model: Any) -> None:
    section = (
        reference.PAGES["reference/architecture-files.md"]().split(f"### {model.__name__}\n")[1].split("\n### ")[0]
    )
    assert re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE) == list(model.model_fields)
    for field in reference.spec_fields(model):
        assert field.description
        assert field.kind not in ("", "value")


def test_a_field_says_what_it_takes_in_which_unit_and_what_not() -> None:
    of_gpu = {field.name: field for field in reference.spec_fields(reference.GpuSpec)}
    assert of_gpu["dram_gb_per_s"][1:5] == ("number", "1e9 bytes/s", "required", "1e-12 to 1e+15")
    assert of_gpu["interconnect"].kind == "[Interconnect](#interconnect)"
    assert of_gpu["tensor_clock_burst_ghz"][1:3] == ("table: data type to number", "GHz")
    assert of_gpu["tensor_clock_burst_ghz"].limits.startswith("not empty")
    of_chip = {field.name: field for field in reference.spec_fields(reference.MulticoreSpec)}
    assert of_chip["overlap_frac"][2:5] == ("share", "`1`", "0 to 1")
    assert of_chip["timing"].kind == r"`overlap` \| `pipeline`"


def test_the_reference_has_every_coefficient_that_model_pages_name() -> None:
    known = {item.name for items in reference.COEFFICIENT_TABLES.values() for item in items}
    for path in (ROOT / "gemm_eval" / "models").rglob("*.md"):
        named = set(_COEFFICIENT.findall(path.read_text(encoding="utf-8")))
        assert named <= known, (path, named - known)
    assert "wgmma_frac" in known


def test_spec_fields_that_the_gpu_model_names_exist() -> None:
    named = set(_SPEC_FIELD.findall((ROOT / "gemm_eval" / "models" / "gpu" / "MODEL.md").read_text(encoding="utf-8")))
    assert len(named) >= 5
    assert named <= set(reference.GpuSpec.model_fields)


@cache
def identifiers(path: Path) -> dict[str, set[str]]:
    """Names of a file: of all of it under "", and of each class under its own."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    classes = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    return {"": _names(tree)} | {name: _names(node) for name, node in classes.items()}


def _names(tree: ast.AST) -> set[str]:
    """What is defined, set, taken as an argument, or a name in a record (a string)."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
            found.add(node.value)
    return found


def symbol_rows(path: Path) -> list[tuple[str, Path, list[str]]]:
    """(symbol, file, names in it) of the table of symbols of a page."""
    section = path.read_text(encoding="utf-8").split("\n## Symbols\n")[1].split("\n## ")[0]
    found = []
    for line in section.splitlines():
        if line.startswith("| ") and not line.startswith("| symbol"):
            symbol, _, code = (cell.strip() for cell in line.strip("|").split("|"))
            file, *names = _SPAN.findall(code)
            found.append((symbol, path.parent / file, names))
    return found


@pytest.mark.parametrize("path", MODEL_PAGES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_symbols_name_code_that_exists(path: Path) -> None:
    rows = symbol_rows(path)
    assert len(rows) >= 8
    for symbol, file, names in rows:
        assert file.is_file(), (symbol, file)
        assert names, symbol
        for name in names:
            of, _, field = name.rpartition(".")
            assert field in identifiers(file).get(of, set()), f"{symbol}: {file.name} has no {name}"


def test_public_names_are_documented_each_on_a_page() -> None:
    for page, module in pages.API.items():
        text = pages.api_page(page)
        for name in pages.public_names(module):
            listed = f"::: {module}.{name}\n" in text + "\n" or f"[`{name}`](" in text
            assert listed or name == "__version__", (page, name)


def test_links_lead_from_page_to_page() -> None:
    text = "[a](../../gemm_eval/models/gpu/MODEL.md#time) `[b](c)` [d](https://e.f) [g](#h) [i](../../examples)\n"
    found = pages.with_site_links(text, "guides/chip-architects.md")
    assert "](../models/gpu.md#time)" in found
    assert "`[b](c)` [d](https://e.f) [g](#h)" in found
    assert "](../source/examples.md)" in found
    with pytest.raises(FileNotFoundError, match="no-such-page"):
        pages.with_site_links("[a](no-such-page.md)", "limits.md")
    assert pages.with_site_links("```\n[a](no-such-page.md)\n```\n", "limits.md").count("no-such-page") == 1


@pytest.mark.parametrize("page", [*pages.BESIDE_CODE, *own_pages()])
def test_a_page_and_its_text_find_each_other(page: str) -> None:
    path = pages.repository_path(page)
    assert (ROOT / path).is_file()
    assert pages.page_of(path) == page


def test_markdown_is_as_the_site_reads_it() -> None:
    assert pages.prepared("words\n- a\n- b\n") == "words\n\n- a\n- b\n"
    assert pages.prepared("words\n| a |\n|---|\n") == "words\n\n| a |\n|---|\n"
    assert pages.prepared("E_G*E_M and `a*b`, *so*\n") == "E_G\\*E_M and `a*b`, *so*\n"
    assert pages.prepared("x\n\n    a*(b + c)\n") == "x\n\n    a*(b + c)\n"
    assert pages.prepared("```diff a/b.py\n- a*b\n```\n") == '```diff title="a/b.py"\n- a*b\n```\n'


def test_equations_in_pictures_name_code_that_exists() -> None:
    text = (ROOT / "docs" / "models" / "index.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|]+ \| `(gemm_eval/[\w/]+\.py)`: `(\w+)` \|$", text, flags=re.MULTILINE)
    assert len(rows) >= 12
    for file, name in rows:
        assert name in identifiers(ROOT / file)[""], (file, name)


def test_drawings_name_fields_and_terms_that_exist() -> None:
    """A word with underscores is a field of a spec, a term or part of a mapping; it may go on in the next line."""
    known = {*reference.GpuSpec.model_fields, *reference.MulticoreSpec.model_fields}
    known |= {item.name for items in reference.COEFFICIENT_TABLES.values() for item in items}
    for path in (ROOT / "gemm_eval" / "models").rglob("*.py"):
        known |= identifiers(path)[""]
    for path in sorted((ROOT / "docs" / "assets").glob("*.svg")):
        text = " ".join(re.findall(r">([^<>\n]+)</text>", path.read_text(encoding="utf-8"))).replace("_ ", "_")
        named = re.findall(r"[A-Za-z]\w*_\w+", text)
        assert named, path.name
        assert set(named) <= known, (path.name, set(named) - known)
