"""What ranking Triton configs costs without a GPU, compiling included: never seen, and out of the caches."""

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from gemm_eval import load_arch
from gemm_eval.arch import GpuSpec
from gemm_eval.autotune.triton import TensorArgument, TritonPruner
from gemm_eval.device.sass import nvdisasm_version
from gemm_eval.errors import GemmEvalError

pytest.importorskip("triton", reason="Triton has packages for Linux only")
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import triton_w4a16_gemm

CONFIGS = triton_w4a16_gemm.CONFIGS[::8]
M, N, K = 64, 4096, 4096
CALL = {
    **{name: TensorArgument("fp16") for name in ("a_ptr", "scale_ptr", "c_ptr")},
    **{"w_ptr": TensorArgument("uint8"), "part_ptr": TensorArgument("fp32"), "count_ptr": TensorArgument("int32")},
    **{"M": M, "N": N, "K": K, "stride_am": K, "stride_wn": K // 2, "stride_cm": N, "GROUP_SIZE": 128},
}
RANK = f"rank {len(CONFIGS)} Triton configs of a W4A16 GEMM by their machine code"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", str(tmp_path / "ours"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    try:
        nvdisasm_version()
    except GemmEvalError as error:
        pytest.skip(str(error))
    return tmp_path


def rank() -> Any:
    arch = load_arch("h200-sxm", GpuSpec)
    pruner = TritonPruner(arch, triton_w4a16_gemm.ARGUMENTS, kernel=triton_w4a16_gemm.w4a16_kernel, compile_k=1.0)
    ranking = pruner.rank(CONFIGS, CALL)
    assert ranking.num_compiled == sum(verdict.time_us is not None for verdict in ranking.verdicts)
    return ranking


@pytest.mark.benchmark(group=RANK)
def test_never_seen(benchmark: Any, folder: Path) -> None:
    def forget() -> None:
        shutil.rmtree(folder / "ours", ignore_errors=True)
        shutil.rmtree(folder / "triton", ignore_errors=True)

    ranking = benchmark.pedantic(rank, setup=forget, rounds=3)
    assert ranking.num_compiled > len(CONFIGS) // 2


@pytest.mark.benchmark(group=RANK)
def test_from_the_caches(benchmark: Any, folder: Path) -> None:
    first = rank()
    assert benchmark(rank).kept == first.kept
