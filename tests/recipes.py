"""The recipes of docs/extend: how one is read, carried out on a copy of the package, and tried there.

A recipe is Markdown. A block ```` ```diff FILE ```` changes a file: hunks are parted by lines ``@@``, and what a hunk
keeps and takes out has to stand in the file exactly once. A block ```` ```LANGUAGE FILE ```` is a new file. The block
```` ```python check ```` shows that it worked; it runs in the copy. Other blocks are for readers alone.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs" / "extend"

_FENCE = re.compile(r"^```(\w+) (\S+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_HUNKS = re.compile(r"^@@.*\n", re.MULTILINE)
_CHECK = "check"
_DATA = ("gpu", "multicore", "calibration", "kernels")  # of arch/, what an evaluation reads
_TIMEOUT_S = 120

# Problems that no toy is about, small ones, as kernels run as plain Python.
_ANSWERS = """
import json
from pathlib import Path
import gemm_eval
from gemm_eval import GEMMEvaluator, UnsupportedError
assert Path(gemm_eval.__file__).parents[1] == Path.cwd(), gemm_eval.__file__
answers = {}
for arch in ("demo-8core", "h200-sxm", "b200"):
    # what was learned beyond the terms holds for the coefficients that it was learned with
    evaluator = GEMMEvaluator(arch, **({} if arch == "demo-8core" else {"correction": False}))
    for dtype in ("fp16", "int8", "w4a16"):
        try:
            r = evaluator.evaluate(1, 4, 64, 64, dtype=dtype)
        except UnsupportedError as error:
            answers[f"{arch} {dtype}"] = str(error)
            continue
        times = {name: us for name, us in r.breakdown.items() if us}
        answers[f"{arch} {dtype}"] = [r.latency_us, r.bound, times, dict(r.traffic), str(r.mapping)]
print(json.dumps(answers))
"""


Answer = str | list[object]
"""Latency in us, bound, terms, traffic and mapping; or why there is none."""


class RecipeError(Exception):
    """A recipe does not apply any more; the message says which of its blocks, and to which file."""


class Recipe(NamedTuple):
    """A recipe as its file says it.

    Attributes:
        name: of the file.
        changed: (file, hunks) of files that are there; a file may come several times.
        added: (file, text) of new ones.
        check: Python that fails where the recipe did not work.
    """

    name: str
    changed: tuple[tuple[str, str], ...]
    added: tuple[tuple[str, str], ...]
    check: str

    def files(self, suffixes: tuple[str, ...], under: str = "") -> list[str]:
        """The files that it touches, once each."""
        touched = {path for path, _ in (*self.changed, *self.added)}
        return sorted(path for path in touched if path.endswith(suffixes) and path.startswith(under))


def read_recipe(path: Path) -> Recipe:
    """Read a recipe.

    Raises:
        RecipeError: it has not one check.
    """
    blocks = _FENCE.findall(path.read_text(encoding="utf-8"))
    checks = [text for _, file, text in blocks if file == _CHECK]
    if len(checks) != 1:
        raise RecipeError(f"{path.name}: {len(checks)} blocks are its check, there must be one")
    edits = [(language, file, text) for language, file, text in blocks if file != _CHECK]
    return Recipe(
        path.stem,
        tuple((file, text) for language, file, text in edits if language == "diff"),
        tuple((file, text) for language, file, text in edits if language != "diff"),
        checks[0],
    )


def copy_package(folder: Path) -> Path:
    """Copy the package, and of its data what an evaluation reads; return the folder, which is to be on sys.path."""
    shutil.copytree(ROOT / "gemm_eval", folder / "gemm_eval")  # with its bytecode, which stays valid
    for name in _DATA:
        shutil.copytree(ROOT / "arch" / name, folder / "arch" / name)
    return folder


def apply(recipe: Recipe, folder: Path) -> None:
    """Carry out a recipe on a copy of the package.

    Raises:
        RecipeError: a file is not as the recipe expects it.
    """
    for name, text in recipe.added:
        path = folder / name
        if path.exists():
            raise RecipeError(f"{recipe.name}: {name} is there already")
        path.write_text(text, encoding="utf-8")
    for name, hunks in recipe.changed:
        path = folder / name
        if not path.is_file():
            raise RecipeError(f"{recipe.name}: there is no {name}")
        content = path.read_text(encoding="utf-8")
        for hunk in filter(None, _HUNKS.split(hunks)):
            old, new = _sides(recipe, name, hunk)
            places = [found.start() for found in re.finditer(f"^{re.escape(old)}", content, re.MULTILINE)]
            if len(places) != 1:
                raise RecipeError(f"{recipe.name}: {name} has this {len(places)} times, not once:\n{old}")
            content = content[: places[0]] + new + content[places[0] + len(old) :]
        path.write_text(content, encoding="utf-8")


def _sides(recipe: Recipe, name: str, hunk: str) -> tuple[str, str]:
    """What a hunk finds, and what it puts there."""
    lines = [line or " " for line in hunk.splitlines()]
    if wrong := [line for line in lines if line[0] not in " +-"]:
        raise RecipeError(f"{recipe.name}: {name}: a line of a diff starts with ' ', '+' or '-': {wrong[0]!r}")
    old, new = (
        "".join(f"{line[1:]}\n" for line in lines if line[0] in signs) for signs in (" -", " +")
    )  # fmt: skip
    if not old or old == new:
        raise RecipeError(f"{recipe.name}: {name}: a hunk needs lines to find it by, and a change:\n{hunk}")
    return old, new


def answers_of(folder: Path, check: str = "", *, jit: bool = False) -> dict[str, Answer]:
    """Run the package in a folder: return its answers to some problems, after which `check` ran.

    Kernels are plain Python, which takes a second, or with `jit` compiled, which takes half a minute.

    Raises:
        AssertionError: it failed; the message is its traceback.
    """
    own = {"PYTHONPATH": str(folder), "NUMBA_DISABLE_JIT": str(int(not jit)), "GEMM_EVAL_CACHE_DIR": "off"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"{_ANSWERS}\n{check}"],
        cwd=folder, env=os.environ | own, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answers: dict[str, Answer] = json.loads(done.stdout.splitlines()[0])
    return answers


@cache
def answers_before() -> dict[str, Answer]:
    """The answers of the package as it is."""
    return answers_of(ROOT)
