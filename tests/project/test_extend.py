"""Every recipe of docs/extend is carried out with its toy, on a copy of the package, and what it promises is tried."""

import builtins
import os
import re
import subprocess
import symtable
import sys
from pathlib import Path

import pytest

from tests.recipes import DOCS, ROOT, answers_before, answers_of, apply, copy_package, read_recipe

# Python files that each may touch at most: the design's promise. More means that a concept has got a second home.
MOST_FILES = {
    "other-vendor": 4,
    "gpu": 0, "sm-generation": 3, "dense-type": 1, "weight-type": 1, "block-scaled-type": 2, "vendor-family": 2,
    "our-family": 3, "gpu-term": 3, "multicore-term": 4, "cli-command": 2, "chip": 0,
    "subject": 3,
}  # fmt: skip
_ROW = re.compile(r"^\| \[.*?\]\(([\w-]+)\.md\) \| (\d+) \| (\d+) \|", re.MULTILINE)


@pytest.mark.parametrize("name", MOST_FILES)
def test_recipe(name: str, tmp_path: Path) -> None:
    recipe = read_recipe(DOCS / f"{name}.md")
    folder = copy_package(tmp_path)
    apply(recipe, folder)

    answers = answers_of(folder, recipe.check)

    assert answers == answers_before()  # what the toy is not about stays as it was
    assert len(recipe.files((".py",))) <= MOST_FILES[name]


@pytest.mark.parametrize("name", MOST_FILES)
def test_a_check_imports_what_it_uses(name: str) -> None:
    """It is run as it stands, by whoever follows the recipe."""
    check = symtable.symtable(read_recipe(DOCS / f"{name}.md").check, name, "exec")
    unknown = {
        symbol.get_name() for symbol in check.get_symbols() if not (symbol.is_assigned() or symbol.is_imported())
    }
    assert unknown <= set(dir(builtins))


def test_a_gpu_more_breaks_no_test_of_presets(tmp_path: Path) -> None:
    """The recipe is one file; lists of presets in tests would be more of them."""
    folder = copy_package(tmp_path)
    apply(read_recipe(DOCS / "gpu.md"), folder)
    files = [str(ROOT / "tests" / "arch" / name) for name in ("test_presets.py", "test_gpu_spec.py")]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--import-mode=importlib", *files],
        cwd=folder, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join((str(folder), str(ROOT)))},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout[-3000:]


@pytest.mark.slow
def test_kernels_of_recipes_compile_and_recipes_go_together(tmp_path: Path) -> None:
    folder = copy_package(tmp_path)
    for name in ("block-scaled-type", "our-family", "gpu-term", "multicore-term"):
        apply(read_recipe(DOCS / f"{name}.md"), folder)

    found, before = answers_of(folder, jit=True), answers_before()

    assert list(found) == list(before)
    for asked, answer in found.items():
        assert answer[0] == pytest.approx(before[asked][0], rel=1e-12), asked
        assert answer[-1] == before[asked][-1], asked


def test_readme_lists_all_recipes_with_the_files_that_they_touch() -> None:
    listed = {name: (int(python), int(yaml)) for name, python, yaml in _ROW.findall((DOCS / "README.md").read_text())}
    recipes = [read_recipe(path) for path in DOCS.glob("*.md") if path.name != "README.md"]

    assert listed == {recipe.name: (len(recipe.files((".py",))), len(recipe.files((".yaml",)))) for recipe in recipes}
    assert set(listed) == set(MOST_FILES)


def test_a_recipe_touches_the_package_and_its_data_only() -> None:
    for path in DOCS.glob("*.md"):
        if path.name != "README.md":
            recipe = read_recipe(path)
            both = recipe.files((".py",), "gemm_eval/") + recipe.files((".yaml",), "arch/")
            assert sorted(both) == recipe.files(("",)), path.name


def test_a_check_that_fails_is_seen() -> None:
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        answers_of(DOCS.parents[1], "1 / 0")
