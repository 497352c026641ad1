"""What a user waits for: the import, the first call of a process, the first call ever on a machine."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_FIRST_CALL = """
from gemm_eval import GEMMEvaluator, load_arch
GEMMEvaluator(load_arch("demo-8core")).evaluate(1, 4096, 4096, 4096)
"""

_COMMANDS = Path(__file__).with_name("twenty_commands.txt").read_text(encoding="utf-8").splitlines()


def _run_commands(cache_dir: Path) -> str:
    # Python's own cache, too, begins empty and is then written, as in any environment that does not forbid it
    environment = os.environ | {"GEMM_EVAL_CACHE_DIR": str(cache_dir), "PYTHONPYCACHEPREFIX": str(cache_dir / "python")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    commands = [[sys.executable, "-m", "gemm_eval", *line.split()] for line in _COMMANDS]
    runs = [subprocess.run(words, env=environment, capture_output=True, text=True, check=True) for words in commands]
    return "".join(run.stderr for run in runs)


def _run(code: str, cache_dir: Path) -> str:
    environment = os.environ | {"GEMM_EVAL_CACHE_DIR": str(cache_dir)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return done.stderr


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder that begins empty."""
    return tmp_path_factory.mktemp("machine")


@pytest.mark.benchmark(group="a fresh process, whole")
class TestFreshProcess:
    def test_python_alone(self, benchmark: Any, tmp_path: Path) -> None:
        benchmark.pedantic(_run, ("pass", tmp_path), rounds=5, warmup_rounds=1)

    def test_import_gemm_eval(self, benchmark: Any, tmp_path: Path) -> None:
        benchmark.pedantic(_run, ("import gemm_eval", tmp_path), rounds=5, warmup_rounds=1)

    @pytest.mark.slow
    def test_first_call_ever(self, benchmark: Any, machine: Path) -> None:
        said = benchmark.pedantic(_run, (_FIRST_CALL, machine), rounds=1)
        assert "compiling" in said

    @pytest.mark.slow
    def test_first_call_with_kernels_on_disk(self, benchmark: Any, machine: Path) -> None:
        _run(_FIRST_CALL, machine)  # which compiles only if the test above runs elsewhere
        said = benchmark.pedantic(_run, (_FIRST_CALL, machine), rounds=5, warmup_rounds=1)
        assert said == ""

    @pytest.mark.slow
    def test_twenty_commands_from_an_empty_cache(self, benchmark: Any, tmp_path: Path) -> None:
        printed = benchmark.pedantic(_run_commands, (tmp_path / "cache",), rounds=1)
        assert printed.count("once per machine and version ...") == 1
