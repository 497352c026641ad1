"""Timing of candidate configs on a real GPU: times that agree, and nothing of the caller's touched."""

from typing import Any

import numpy as np
import pytest

from gemm_eval.device import runtime
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidOptionError
from gemm_eval.kernels import PackedW4, Sizes, WeightMode, legal_configs, pack_w4, w4a16_gemm
from gemm_eval.kernels.families.base import Operands
from gemm_eval.kernels.plan import rank, spec_of_device
from gemm_eval.kernels.tune import Tuning, tune

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]  # the vendor's packages warn as they like

POISON = 0x7E01
SIZES = Sizes(16, 4096, 4096)


@pytest.fixture(scope="module")
def packed(cupy: Any) -> PackedW4:
    weights = np.random.default_rng(0).standard_normal((SIZES.K, SIZES.N)).astype(np.float32)
    return pack_w4(weights * 0.02).to_gpu()


@pytest.fixture(name="A")
def activations(cupy: Any) -> Any:
    return cupy.asarray(np.random.default_rng(1).standard_normal((SIZES.M, SIZES.K)).astype(np.float16))


def operands_of(A: Any, packed: PackedW4, out: Any) -> Operands:
    return Operands(
        a=A.data.ptr, lda=SIZES.K, qweight=packed.qweight.data.ptr, scales=packed.scales.data.ptr, bias=0,
        c=out.data.ptr, workspace=0, counters=0, alpha=1.0, num_column_blocks=packed.num_column_blocks,
        num_k_blocks=packed.num_k_blocks, num_groups=packed.num_groups,
    )  # fmt: skip


def candidates(limits: Any) -> list[Any]:
    """The model's, one of each family, and one of each way to cut K."""
    configs = list(rank(SIZES, DType.FP16, WeightMode.GROUP, 128, spec_of_device(runtime.current_device()), 1))
    seen = set()
    for config in legal_configs(SIZES, limits):
        if (kind := (config.family, config.decomposition)) not in seen:
            seen.add(kind)
            configs.append(config)
    return configs


def run_tune(cupy: Any, A: Any, packed: PackedW4, out: Any, stream: Any = None, **more: Any) -> Tuning:
    device = runtime.current_device()
    configs = candidates(runtime.limits_of_device(device))
    handle = runtime.stream_handle(stream)
    return tune(configs, SIZES, packed, operands_of(A, packed, out), device, handle, **more)


@pytest.mark.parametrize("l2", ["cold", "warm"])
def test_times_are_those_of_kernels_and_operands_stay_as_they_are(cupy: Any, A: Any, packed: PackedW4, l2: str) -> None:
    out = cupy.full((SIZES.M, SIZES.N), POISON, cupy.uint16)
    before = [array.copy() for array in (A, packed.qweight, packed.scales)]
    pool = cupy.get_default_memory_pool()  # what of the GPU is free is for other processes of a run to say too
    kept_before = pool.total_bytes()
    tuning = run_tune(cupy, A, packed, out, l2=l2)

    assert tuning.skipped == ()
    times = [one.latency_us for one in tuning.timed]
    assert times == sorted(times)
    assert 1.5 < times[0] < 200  # 8.7 MB of weights; a launch alone takes a microsecond
    assert bool((out == POISON).all()), "written to the caller's output"
    for old, new in zip(before, (A, packed.qweight, packed.scales), strict=True):
        assert bool((old == new).all())
    assert pool.total_bytes() < kept_before + (256 << 20), "memory was kept"


def test_the_best_stays_good_when_timed_again(cupy: Any, A: Any, packed: PackedW4) -> None:
    out = cupy.empty((SIZES.M, SIZES.N), cupy.float16)
    first, second = (run_tune(cupy, A, packed, out) for _ in range(2))
    again = {one.config: one.latency_us for one in second.timed}

    assert again[first.timed[0].config] <= 1.15 * second.timed[0].latency_us


def test_cold_weights_take_longer_than_warm_ones(cupy: Any, A: Any, packed: PackedW4) -> None:
    out = cupy.empty((SIZES.M, SIZES.N), cupy.float16)
    cold, warm = (run_tune(cupy, A, packed, out, l2=l2).timed[0].latency_us for l2 in ("cold", "warm"))

    assert cold > 0.98 * warm


def test_what_is_timed_computes_right_afterwards(cupy: Any, A: Any, packed: PackedW4) -> None:
    expected = w4a16_gemm(A, packed)
    best = run_tune(cupy, A, packed, cupy.empty_like(expected)).timed[0].config
    found = w4a16_gemm(A, packed, config=best)

    assert float(abs(found - expected).max()) <= 4e-3 * float(abs(expected).max())


def test_work_of_the_callers_stream_is_waited_for(cupy: Any, A: Any, packed: PackedW4) -> None:
    stream = cupy.cuda.Stream(non_blocking=True)
    out = cupy.empty((SIZES.M, SIZES.N), cupy.float16)
    with stream:
        w4a16_gemm(A, packed, out=out, stream=stream)
        assert run_tune(cupy, A, packed, out, stream).timed
        assert cupy.cuda.get_current_stream().ptr == stream.ptr
    stream.synchronize()


def test_a_capture_is_refused_and_goes_on(cupy: Any, A: Any, packed: PackedW4) -> None:
    stream = cupy.cuda.Stream(non_blocking=True)
    out = cupy.empty((SIZES.M, SIZES.N), cupy.float16)
    w4a16_gemm(A, packed, out=out, stream=stream)
    with stream:
        stream.begin_capture()
        try:
            with pytest.raises(InvalidOptionError, match="profile this GEMM once before"):
                run_tune(cupy, A, packed, out, stream)
            w4a16_gemm(A, packed, out=out, stream=stream)
        finally:
            graph = stream.end_capture()
        graph.launch(stream)
    stream.synchronize()
