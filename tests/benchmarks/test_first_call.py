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

_COMMANDS = """
arch list
evaluate --arch sg2260 1 2048 4096 14336
evaluate --arch sg2260 --arch tpu-v5e 1 16 4096 12288
evaluate --arch demo-8core --arch h200-sxm 1 2048 4096 4096
evaluate --arch h200-sxm -m 1..256 -k 4096 -n 12288 --dtype w4a16
evaluate --arch mi355x 1 256 7168 4096 --dtype mxfp4
top --arch demo-8core 1 2048 4096 4096
top --arch h200-sxm 1 256 4096 12288
crossover 4096 12288 --arch h200-sxm --measured
kernels --arch h200-sxm 64 4096 4096
grouped --arch h200-sxm --rows 64,0,3,130 -k 4096 -n 1536 --dtype bf16
moe --arch b200 --tokens 64,512,4096 --model deepseek-v3 --ep 8 --dtype fp8_block --distribution uniform
attention --arch h200-sxm --batch 16 --kv 8192 --heads 32 --kv-heads 8 --dtype bf16 --kv-dtype fp8
attention --arch ascend-910 --q 8192 --kv 8192 --heads 32 --kv-heads 8
collective --arch h200-sxm all_reduce 1MiB --ranks 8
gemms gpt-oss-20b --arch h100-sxm --batch 64 --seq-len 8192 --phase decode --memory
model llama-3-8b --arch h200-sxm --batch 16 --prompt 4096 --operations
model llama-3-70b --arch h200-sxm --arch b200 --tp 4 --batch 1,16,256 --dtype fp8
serve llama-3-8b --arch h200-sxm --gpus 4 --isl 4096 --osl 512 --ttft-ms 500 --tpot-ms 20
train llama-3-70b --arch h100-sxm --gpus 64 --batch 256 --seq-len 8192 --dtype fp8 --micro-batch 1
"""


def _run_commands(cache_dir: Path) -> str:
    # Python's own cache, too, begins empty and is then written, as in any environment that does not forbid it
    environment = os.environ | {"GEMM_EVAL_CACHE_DIR": str(cache_dir), "PYTHONPYCACHEPREFIX": str(cache_dir / "python")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    commands = [[sys.executable, "-m", "gemm_eval", *line.split()] for line in _COMMANDS.strip().splitlines()]
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
