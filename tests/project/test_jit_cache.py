"""Compiled kernels: their cache folder, and types for which nothing more is compiled."""

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numba
import pytest
from numba.core.caching import NullCache

from gemm_eval.jit import entry_point, kernel

# ---- jit cache -------------------------------------------------------------------------------------------------------


pytestmark = pytest.mark.slow  # a process, and a compile, for every run

NOTICE = "gemm_eval: compiling its kernels"
CODE = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from gemm_eval.jit import entry_point, kernel

    @kernel
    def square(i):
        return i * i

    @entry_point
    def sum_of_squares(num):
        total = 0.0
        for i in range(num):
            total += square(i)
        return total

    total = sum_of_squares(5)
print(repr(total))
for warning in caught:
    print("WARNED", warning.category.__name__, warning.message)
"""


class Run(NamedTuple):
    answer: str
    warned: list[str]
    stderr: str

    @property
    def num_notices(self) -> int:
        return self.stderr.count(NOTICE)


def run(cache: Path | str, folder: Path) -> Run:
    env = os.environ | {"GEMM_EVAL_CACHE_DIR": str(cache), "HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    env.pop("NUMBA_DISABLE_JIT", None)
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answer, *warned = done.stdout.splitlines()
    return Run(answer, warned, done.stderr)


def files_under(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Run]:
    """Cache folder and outcome of a first run on a new machine."""
    folder = tmp_path_factory.mktemp("machine")
    return folder / "cache", run(folder / "cache", folder)


def test_life_of_a_cache(first: tuple[Path, Run], tmp_path: Path) -> None:
    cache, cold = first
    assert (cold.num_notices, cold.warned) == (1, [])
    assert cold.stderr.count("\n") == 1
    assert [path for path in files_under(cache.parent) if not path.is_relative_to(cache)] == []
    assert any(path.suffix == ".nbc" for path in files_under(cache))

    warm = run(cache, tmp_path)
    assert warm == Run(cold.answer, [], "")

    rng = random.Random(7)
    for i, path in enumerate(files_under(cache)):
        size = path.stat().st_size
        path.write_bytes([path.read_bytes()[: size // 2], rng.randbytes(size), b""][i % 3])
    damaged = run(cache, tmp_path)
    assert damaged.answer == cold.answer
    assert damaged.num_notices == 1
    assert damaged.warned
    assert all(line.startswith("WARNED RuntimeWarning set aside a damaged kernel cache") for line in damaged.warned)
    assert any(path.suffix == ".damaged" for path in files_under(cache))

    assert run(cache, tmp_path) == Run(cold.answer, [], "")


def test_a_folder_that_cannot_be_made_means_no_cache(first: tuple[Path, Run], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    blocked = run(tmp_path / "file" / "cache", tmp_path)

    assert (blocked.answer, blocked.warned, blocked.num_notices) == (first[1].answer, [], 1)
    assert [path.name for path in files_under(tmp_path)] == ["file"]


def test_off_writes_nothing(first: tuple[Path, Run], tmp_path: Path) -> None:
    off = run("off", tmp_path)

    assert (off.answer, off.warned, off.num_notices) == (first[1].answer, [], 1)
    assert files_under(tmp_path) == []


# ---- jit types -------------------------------------------------------------------------------------------------------


@kernel
def _add(a: int, b: float) -> float:
    return a + b


def _sum(n: int) -> float:
    return _add(n, 1) + _add(2, n) + _add(3, 4.0) + _add(n, 0.5)


@pytest.mark.skipif(numba.config.DISABLE_JIT, reason="nothing is compiled without the JIT")
def test_constants_and_integers_compile_nothing_more() -> None:
    from_disk = entry_point(_sum)
    from_disk._cache = NullCache()  # type: ignore[attr-defined]  # else nothing would be compiled at a second run
    assert from_disk(10) == 10 + 1 + 2 + 10 + 3 + 4 + 10 + 0.5
    assert _add.signatures == [(numba.int64, numba.float64)]  # type: ignore[attr-defined]
