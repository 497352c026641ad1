"""Configs that nobody named, on a real GPU: the model's choice, and what is found by timing its first ones."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemm_eval.device import runtime
from gemm_eval.errors import InvalidOptionError
from gemm_eval.kernels import PackedW4, Sizes, dequantize, pack_w4, w4a16_gemm
from gemm_eval.kernels.config_cache import ConfigCache
from gemm_eval.kernels.families.base import Operands
from gemm_eval.kernels.plan import rank, spec_of_device
from gemm_eval.kernels.tune import PROFILED_CONFIGS, _known, forget_profiled, tune

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]  # the vendor's packages warn as they like

K, N = 3072, 2048
MAX_ERROR = 1e-3


@pytest.fixture(scope="module")
def packed(cupy: Any) -> PackedW4:
    weights = np.random.default_rng(0).standard_normal((K, N)).astype(np.float32)
    return pack_w4(weights * 0.02).to_gpu()


@pytest.fixture
def folder(cupy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", str(tmp_path))
    forget_profiled()
    yield tmp_path
    forget_profiled()


def activations(cupy: Any, M: int) -> Any:
    return cupy.asarray(np.random.default_rng(M).standard_normal((M, K)).astype(np.float16))


def check(cupy: Any, A: Any, packed: PackedW4, config: str) -> None:
    out = cupy.full((A.shape[0], N), np.nan, cupy.float16)
    found = w4a16_gemm(A, packed, out=out, config=config).astype(cupy.float64)
    expected = A.astype(cupy.float64) @ dequantize(packed).astype(cupy.float64)
    assert float(cupy.linalg.norm(found - expected) / cupy.linalg.norm(expected)) < MAX_ERROR


@pytest.mark.parametrize("M", [1, 5, 33, 130, 1000])
def test_the_models_choice_computes_right(cupy: Any, packed: PackedW4, M: int) -> None:
    check(cupy, activations(cupy, M), packed, "auto")


@pytest.mark.parametrize("M", [2, 300])
def test_what_was_profiled_is_remembered(cupy: Any, packed: PackedW4, folder: Path, M: int) -> None:
    A = activations(cupy, M)
    check(cupy, A, packed, "profile")
    (record,) = ConfigCache.load(folder / "w4a16-configs.json").records

    assert (record.key.M, record.key.K, record.key.N) == (M, K, N)
    assert (record.found_by, record.num_timed) == ("top_k", PROFILED_CONFIGS)
    (known,) = _known.values()
    assert known == record.config
    before = (folder / "w4a16-configs.json").read_bytes()
    forget_profiled()
    check(cupy, A, packed, "profile")
    assert (folder / "w4a16-configs.json").read_bytes() == before


def test_what_was_profiled_is_no_slower_than_the_models_choice(cupy: Any, packed: PackedW4, folder: Path) -> None:
    A = activations(cupy, 64)
    check(cupy, A, packed, "profile")
    (config,) = _known.values()
    device = runtime.current_device()
    sizes = Sizes(64, K, N)
    (first,) = rank(sizes, packed.activation, packed.mode, packed.group_size, spec_of_device(device), 1)
    operands = Operands(
        A.data.ptr, K, packed.qweight.data.ptr, packed.scales.data.ptr, 0, 0, 0, 0, 1.0, packed.num_column_blocks,
        packed.num_k_blocks, packed.num_groups,
    )  # fmt: skip
    times = dict(tune([config, first], sizes, packed, operands, device, 0).timed)

    assert times[config] <= 1.05 * times[first]


def test_profiling_is_refused_while_a_graph_is_captured(cupy: Any, packed: PackedW4, folder: Path) -> None:
    A, stream = activations(cupy, 7), cupy.cuda.Stream(non_blocking=True)
    out = cupy.empty((7, N), cupy.float16)
    with stream:
        stream.begin_capture()
        try:
            with pytest.raises(InvalidOptionError):
                w4a16_gemm(A, packed, out=out, config="profile", stream=stream)
        finally:
            stream.end_capture()
