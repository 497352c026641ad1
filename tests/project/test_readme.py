"""What README and docs show, runs; README is short, and its figures are those of the tables."""

import re
import shlex
from pathlib import Path

import pytest

from gemm_eval import load_arch
from tests.cli.commands import Ran
from tests.project.site_pages import pages, reference

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [
    ROOT / "README.md",
    *(path for folder in ("", "guides", "models") for path in sorted((ROOT / "docs" / folder).glob("*.md"))),
]
"""Pages whose code runs: Python of a page from top to bottom, and its commands."""
MAX_LINES = 130
_LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def commands() -> list[str]:
    found = [block for page in PAGES for block in blocks("sh", page.read_text(encoding="utf-8"))]
    lines = [line.split("  #")[0].strip() for block in found for line in block.splitlines()]
    return list(dict.fromkeys(line for line in lines if line.startswith("gemm-eval ")))


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_python_runs(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(blocks("python", page.read_text(encoding="utf-8"))), page.name, "exec"), {})


def test_the_first_answer_is_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(blocks("python")[0], "README.md", "exec"), {})
    assert capsys.readouterr().out == blocks("text")[0]


def test_a_quick_start_prints_what_it_shows(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = (ROOT / "docs" / "quick-start.md").read_text(encoding="utf-8")
    shown = blocks("text", page)
    monkeypatch.chdir(tmp_path)
    for code, printed in zip(blocks("python", page), shown, strict=True):
        exec(compile(code, "quick-start.md", "exec"), {})
        assert capsys.readouterr().out == printed
    assert len(shown) == 2


def test_code_of_the_generated_reference_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = reference.PAGES["reference/architecture-files.md"]()
    (tmp_path / "my-chip.yaml").write_text(blocks("yaml", page)[0], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    exec(compile(blocks("python", page)[0], "architecture-files.md", "exec"), {})
    assert load_arch("my-chip.yaml").num_cores == 16


def test_a_page_to_begin_with() -> None:
    assert len(README.splitlines()) <= MAX_LINES
    assert len(blocks("python")) >= 2


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for link in _LINK.findall(page.read_text(encoding="utf-8")):
        path = (page.parent / link).resolve().relative_to(ROOT).as_posix()
        assert pages.exists(path), link


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("command", commands())
def test_commands_run(command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for folder in ("arch", "examples"):  # which they read from
        (tmp_path / folder).symlink_to(ROOT / folder)
    monkeypatch.chdir(tmp_path)
    ran = Ran(*shlex.split(command)[1:])
    assert ran.code == 0, ran.err
    assert ran.out + ran.err
