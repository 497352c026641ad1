"""The cost of a config of the generic GPU kernels, term by term, against the slow truth of `tests.oracle.naive_dense`.

GPUs are presets and such with other numbers, coefficients are those of the GPU or anything in their ranges, and configs
are all that the GPU can run, whether or not a library has them.
"""

from typing import Any, NamedTuple
from unittest import mock

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from gemm_eval import GemmProblem, load_arch
from gemm_eval.arch import SM_ARCHS, GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidMappingError
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder, Schedule
from gemm_eval.models.gpu import GpuCost, check_options, model, pack_gpu, unpack_gpu_cost
from gemm_eval.models.gpu.calibration import coefficients_for
from gemm_eval.models.gpu.candidates import check_config
from gemm_eval.models.gpu.coefficients import COEFFICIENTS, QUANTIZATION
from gemm_eval.search.gpu import evaluate_config
from gemm_eval.workload import RunOptions
from tests import strategies
from tests.oracle import naive_dense

ROUNDING = 1e-9
OWN_FAMILY = {
    "sm_70": "sm70_mma", "sm_75": "sm70_mma", "sm_90": "sm90_wgmma", "sm_100": "sm100_tcgen05",
    "sm_103": "sm100_tcgen05",
}  # fmt: skip
OF_64_ROWS = ("sm90_wgmma", "sm90_wgmma_full", "sm90_block_fp8")
OF_128_ROWS = ("sm100_tcgen05", "sm100_block_fp8", "sm100_block_fp4")


class Case(NamedTuple):
    """A config on a GPU; `coefficients` None: those that the library has there."""

    arch: GpuSpec
    problem: GemmProblem
    options: RunOptions
    config: KernelConfig
    coefficients: dict[str, float] | None


@st.composite
def changed_archs(draw: st.DrawFn) -> GpuSpec:
    """Presets, and presets of which some numbers are others."""
    sm_arch = draw(st.sampled_from((*SM_ARCHS, "sm_90", "sm_100")))
    arch = draw(st.sampled_from([arch for arch in strategies.GPUS if arch.sm_arch == sm_arch]))
    factor = st.sampled_from((0.25, 0.5, 0.9, 1.1, 2.0, 4.0))
    names = (
        "l2_bytes", "dram_gb_per_s", "dram_latency_ns", "graph_node_us", "smem_bytes_per_cycle", "mma_floor_cycles",
        "l2_bytes_per_cycle", "half2_ops_per_cycle", "issue_slots_per_cycle", "registers_per_sm",
    )  # fmt: skip
    changes: dict[str, Any] = {}
    for name in draw(st.lists(st.sampled_from(names), max_size=3, unique=True)):
        value = getattr(arch, name)
        changes[name] = type(value)(value * draw(factor))
    if draw(st.booleans()):
        changes["num_sms"] = draw(st.sampled_from((16, 23, 66, 144, 200)))
        changes["mma_n_max"] = draw(st.sampled_from((64, 128, 256)))
        changes["max_clock_ghz"] = arch.max_clock_ghz * draw(st.sampled_from((1.0, 1.3)))
        changes["dram_efficiency_frac"] = draw(st.sampled_from((0.6, 0.93, 1.0)))
    return arch.with_(**changes) if changes else arch


@st.composite
def configs(draw: st.DrawFn, arch: GpuSpec, problem: GemmProblem) -> KernelConfig:
    """Mostly what the GPU can run."""
    mma_sync = "sm80_mma" if arch.has_cp_async else "sm70_mma"
    own = OWN_FAMILY.get(arch.sm_arch, "sm80_mma")
    if problem.input_dtype in (DType.FP32, DType.TF32) or problem.accumulate:
        own = naive_dense.family_of(arch, problem, "cublas")
    if naive_dense.is_block_scaled(problem):
        own = naive_dense.OF_BLOCK_SCALED.get((problem.input_dtype, arch.sm_arch), own)
    family = draw(st.sampled_from((own,) * 4 + (mma_sync, "mma_unaligned", "mma_elementwise", "gemv")))
    cluster, schedule, warps = (1, 1), Schedule.MULTISTAGE, draw(st.sampled_from((4, 8)))
    if family in (*OF_64_ROWS, *OF_128_ROWS):
        rows = 64 if family in OF_64_ROWS else 128
        side = draw(st.sampled_from((1, 1, 2, 2, 3, 4))) * rows
        m, n = draw(st.permutations((side, draw(st.integers(1, 32)) * 8)))
        cluster = draw(st.sampled_from(((1, 1), (1, 1), (1, 2), (2, 1), (1, 4), (2, 4), (4, 1))))
        schedule, warps = draw(st.sampled_from((Schedule.PINGPONG, Schedule.COOPERATIVE))), 8
    elif family == "gemv":
        m, n = draw(st.sampled_from((1, 2, 4, 8))), draw(st.sampled_from((8, 16, 32)))
        schedule, warps = Schedule.VECTOR, 4
    else:
        m, n = (16 * draw(st.sampled_from((1, 2, 4, 6, 8, 10, 16))) for _ in "MN")
        if family == "sm120_block_fp4":
            schedule, warps = Schedule.COOPERATIVE, 8
    decomposition = draw(st.sampled_from(Decomposition))
    cta_k = naive_dense.step_bytes(family) * 8 // problem.input_dtype.bits
    steps = -(-problem.K // cta_k)
    split_k = 1
    if decomposition == Decomposition.SPLIT_K:
        assume(steps > 1)
        split_k = draw(st.integers(2, min(steps, 40)))
    num_stages = draw(st.sampled_from((2, 2, 3, 3, 4, 5, 8))) if arch.has_cp_async else 2
    return KernelConfig(
        family, m, n, cta_k, *cluster, warps, num_stages, schedule, decomposition, split_k,
        draw(st.sampled_from(RasterOrder)), draw(st.sampled_from((1, 2, 4, 8, 16))),
    )  # fmt: skip


@st.composite
def cases(draw: st.DrawFn) -> Case:
    arch = draw(changed_archs())
    problem = draw(strategies.gpu_problems(arch))
    options = draw(strategies.gpu_options(problem))
    if problem.is_weight_quantized and options.library != "trtllm":
        options = options._replace(library="hypothetical")
    config = draw(configs(arch, problem))
    coefficients = None
    if draw(st.booleans()):
        coefficients = {item.name: draw(st.floats(item.low, item.high)) for item in (*COEFFICIENTS, *QUANTIZATION)}
    return Case(arch, problem, options, config, coefficients)


def evaluated(case: Case) -> GpuCost:
    """What the model says; configs that the GPU cannot run are passed over."""
    arch, problem, options, config, coefficients = case
    try:
        check_config(arch, problem, config)
    except InvalidMappingError:
        assume(False)
    with mock.patch.object(model, "coefficients_for", wraps=coefficients_for) as asked:
        if coefficients is not None:
            asked.side_effect = lambda *args: (coefficients, coefficients_for(*args)[1])
        record = evaluate_config(arch, problem, pack_gpu(arch, problem.types, options), config)[0]
    return unpack_gpu_cost(record)


def truth_of(case: Case) -> naive_dense.Cost:
    arch, problem, options, config, coefficients = case
    library = options.library or ("trtllm" if naive_dense.is_block_scaled(problem) else "cublas")
    if coefficients is None:
        coefficients = naive_dense.coefficients_of_library(arch, problem, library)
    chosen = naive_dense.as_chosen(coefficients, library)
    asked = check_options(options)
    return naive_dense.cost_of(
        arch, problem, config, l2=asked.l2, clock=asked.clock, quantize_from=asked.quantize_from, coefficients=chosen
    )


H200 = load_arch("h200-sxm", GpuSpec)
LONG = Case(
    H200, GemmProblem(1, 16384, 16384, 16384), RunOptions("cublas", correction=False),
    KernelConfig("sm90_wgmma", 128, 256, 64, 2, 1, 8, 4, Schedule.COOPERATIVE, Decomposition.DATA_PARALLEL, 1,
                 RasterOrder.ALONG_N, 4), None,
)  # fmt: skip
"""Several ms, in which the clock falls, and panels that L2 cannot hold."""

FILL = LONG._replace(problem=GemmProblem(256, 1, 4096, 1))
"""Hardly a row of a tile is within the matrix."""


@given(cases())
@example(LONG)
@example(FILL)
@example(LONG._replace(config=LONG.config._replace(raster_swizzle=1, raster_order=RasterOrder.ALONG_M)))
def test_the_cost_of_a_config_is_what_the_definition_says(case: Case) -> None:
    found, truth = evaluated(case), truth_of(case)

    assert found.latency_us == pytest.approx(truth.latency_us, rel=ROUNDING)
    assert found.breakdown.keys() == {*truth.breakdown, "correction_us"}
    assert found.breakdown["correction_us"] == 0.0
    rounding_us = ROUNDING * sum(abs(time_us) for time_us in truth.breakdown.values())
    for name, time_us in truth.breakdown.items():
        assert found.breakdown[name] == pytest.approx(time_us, rel=ROUNDING, abs=rounding_us), name
    for name, num_bytes in truth.dram_bytes.items():
        assert found.traffic[name] == pytest.approx(num_bytes, rel=ROUNDING, abs=1.0 + ROUNDING), name
    counts = (found.ctas_per_sm, found.num_ctas, found.num_waves, found.active_sms)
    assert counts == (truth.ctas_per_sm, truth.num_ctas, truth.num_waves, truth.active_sms)
    assert found.bound == truth.bound
