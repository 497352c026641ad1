"""The cost of Triton kernels: as a slow oracle says, and laws that hold whatever a kernel issues.

What is no law: that fewer registers or less shared memory are faster. More CTAs on an SM also make a last wave of other
size, and share the SM. What is one: registers and shared memory move a time by the CTAs of an SM alone.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_eval import DType, GemmProblem, load_arch
from gemm_eval.arch import GpuSpec
from gemm_eval.models.gpu import triton as triton_model
from tests.oracle import naive_triton as naive

ARCHS = tuple(load_arch(name, GpuSpec) for name in ("h200-sxm", "h100-sxm", "a100-sxm-80gb", "l40s"))
DEFAULTS = {item.name: item.default for item in triton_model.TRITON_COEFFICIENTS}
TYPES: tuple[dict[str, Any], ...] = (
    {"input_dtype": DType.FP16},
    {"input_dtype": DType.BF16, "output_dtype": DType.FP32},
    {"input_dtype": DType.FP8, "output_dtype": DType.FP16},
    {"input_dtype": DType.FP16, "weight_dtype": DType.INT4, "group_size": 128},
    {"input_dtype": DType.FP16, "weight_dtype": DType.INT4, "group_size": 32, "zero_dtype": DType.INT4},
    {"input_dtype": DType.BF16, "weight_dtype": DType.INT4},
    {"input_dtype": DType.FP16, "weight_dtype": DType.INT8, "group_size": 64},
)
ROUNDING = 1e-9


class Case(NamedTuple):
    """One launch, and coefficients."""

    arch: GpuSpec
    problem: GemmProblem
    config: triton_model.TritonConfig
    code: triton_model.KernelCode
    coefficients: dict[str, float]


def powers(low: int, high: int) -> st.SearchStrategy[int]:
    return st.integers(low, high).map(lambda power: 1 << power)


@st.composite
def problems(draw: st.DrawFn) -> GemmProblem:
    size = st.sampled_from((1, 64, 128, 4096, 14336)) | st.floats(0, 14).map(lambda power: int(2**power))
    return GemmProblem(
        draw(st.sampled_from((1, 1, 3, 40))), draw(size), draw(size), draw(size), **draw(st.sampled_from(TYPES))
    )


@st.composite
def configs(draw: st.DrawFn) -> triton_model.TritonConfig:
    return triton_model.TritonConfig(
        draw(powers(4, 8)), draw(powers(3, 8)), draw(powers(4, 8)), draw(powers(0, 4)), draw(st.integers(1, 8)),
        draw(st.sampled_from((1, 1, 2, 8, 100))), draw(st.sampled_from((1, 1, 2, 3, 8, 64))),
    )  # fmt: skip


@st.composite
def mma_counts(draw: st.DrawFn) -> triton_model.MmaCount:
    bits = draw(st.sampled_from((8, 16, 32)))
    if draw(st.booleans()):
        return triton_model.MmaCount(
            64, draw(powers(3, 8)), 256 // bits, bits, draw(st.booleans()), draw(st.integers(1, 32))
        )
    return triton_model.MmaCount(16, 8, 256 // bits, bits, True, draw(st.integers(1, 256)))


@st.composite
def codes(draw: st.DrawFn, config: triton_model.TritonConfig) -> triton_model.KernelCode:
    count = st.just(0) | st.integers(0, 300)
    few = st.sampled_from((0, 1, 2, 3, 8))
    loop = triton_model.MainLoop(
        k=config.block_k * draw(st.sampled_from((1, 1, 2, 4))), mma=tuple(draw(st.lists(mma_counts(), max_size=3))),
        issue=draw(st.integers(1, 4000)), alu=0, fma=0, convert=0, shared=0, copy=0, store=0, barrier=draw(few), wait=0,
        branch=1, spill=draw(count), shared_wavefronts=draw(count), mma_wait=draw(few),
    )  # fmt: skip
    smem_bytes = draw(st.sampled_from((0, 1, 49152, 101376, 166912, 232448)) | st.integers(0, 240_000))
    return triton_model.KernelCode(config.num_warps, draw(st.integers(16, 256)), smem_bytes, 0, 0, loop, True)


@st.composite
def coefficients(draw: st.DrawFn) -> dict[str, float]:
    if draw(st.booleans()):
        return dict(DEFAULTS)
    return {item.name: draw(st.floats(item.low, item.high)) for item in triton_model.TRITON_COEFFICIENTS}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    config = draw(configs())
    return Case(draw(st.sampled_from(ARCHS)), draw(problems()), config, draw(codes(config)), draw(coefficients()))


def times(case: Case) -> triton_model.LaunchTimes:
    return triton_model.launch_times(
        case.arch, triton_model.pack_launches(case.arch, case.problem, [case.config], [case.code]), case.coefficients
    )


def time_us(case: Case) -> float:
    return float(times(case).latency_us[0])


def packed(case: Case) -> triton_model.Launches:
    return triton_model.pack_launches(case.arch, case.problem, [case.config], [case.code])


@given(cases())
def test_the_oracle_says_the_same(case: Case) -> None:
    expected = naive.launch_us(case.arch, case.problem, case.config, case.code, case.coefficients)
    assert time_us(case) == pytest.approx(expected, rel=ROUNDING)


@given(cases())
def test_a_kernel_that_cannot_be_launched_takes_forever(case: Case) -> None:
    ctas = naive.ctas_per_sm(case.arch, case.code)
    assert packed(case).ctas_per_sm[0] == ctas
    assert (time_us(case) == math.inf) == (ctas == 0)
    too_many, too_much = case.code._replace(registers=256), case.code._replace(smem_bytes=233_473)
    assert time_us(case._replace(code=too_many)) == time_us(case._replace(code=too_much)) == math.inf


@given(cases())
def test_no_part_of_a_time_is_longer_than_the_whole(case: Case) -> None:
    found = triton_model.LaunchTimes(*(float(value[0]) for value in times(case)))  # type: ignore[arg-type]
    assert min(found) >= 0
    outside = found.kernel_us + found.reduction_us
    assert found.latency_us >= (outside + max(found.sm_us, found.l2_us, found.dram_us)) * (1 - ROUNDING)
    if found.latency_us < math.inf:
        limit = outside + found.sm_us + found.l2_us + found.dram_us
        assert found.latency_us <= limit * (1 + ROUNDING)
    units = (found.tensor_cycles, found.issue_cycles, found.shared_cycles)
    assert found.step_cycles >= max(*units, found.chain_cycles, found.round_trip_cycles) * (1 - ROUNDING)


@given(cases())
def test_no_launch_beats_dram_or_the_tensor_cores(case: Case) -> None:
    arch = case.arch
    row = packed(case)
    once = case.problem.G * case.problem.K * (
        case.problem.M * row.a_elem_bytes[0] + case.problem.N * row.b_elem_bytes[0]
    )  # fmt: skip
    latency_us = time_us(case)
    assert latency_us >= once / (arch.dram_achievable_gb_per_s * 1e3) * (1 - ROUNDING)
    steps = case.problem.G * math.prod(
        math.ceil(size / block)
        for size, block in zip((case.problem.M, case.problem.N, case.problem.K), case.config[:3], strict=True)
    )
    cycles = steps * float(row.wgmma_cycles[0] + row.mma_sync_cycles[0]) / arch.num_sms
    assert latency_us >= cycles / (arch.max_clock_ghz * 1e3) * (1 - ROUNDING)


MORE = ("issue", "shared_wavefronts", "spill", "barrier", "mma_wait")


@given(cases(), st.sampled_from(MORE), st.integers(1, 500))
def test_more_of_what_a_loop_issues_is_never_faster(case: Case, field: str, more: int) -> None:
    loop = case.code.loop
    slower = case.code._replace(loop=loop._replace(**{field: getattr(loop, field) + more}))
    assert time_us(case._replace(code=slower)) >= time_us(case) * (1 - ROUNDING)


@given(cases(), mma_counts())
def test_more_tensor_work_is_never_faster(case: Case, more: triton_model.MmaCount) -> None:
    loop = case.code.loop
    slower = case.code._replace(loop=loop._replace(mma=(*loop.mma, more)))
    assert time_us(case._replace(code=slower)) >= time_us(case) * (1 - ROUNDING)


@given(cases(), st.integers(16, 300), st.integers(0, 240_000))
def test_registers_and_shared_memory_count_by_the_ctas_of_an_sm(case: Case, registers: int, smem_bytes: int) -> None:
    other = case._replace(code=case.code._replace(registers=registers, smem_bytes=smem_bytes))
    fewest, most = sorted((packed(case).ctas_per_sm[0], packed(other).ctas_per_sm[0]))
    if registers >= case.code.registers and smem_bytes >= case.code.smem_bytes:
        assert packed(other).ctas_per_sm[0] == fewest
    if fewest == most:
        assert time_us(other) == time_us(case)


@given(cases())
def test_more_stages_of_the_same_memory_are_never_slower(case: Case) -> None:
    deeper = case._replace(config=case.config._replace(num_stages=case.config.num_stages + 1))
    assert time_us(deeper) <= time_us(case) * (1 + ROUNDING)


FASTER_CHIP: dict[str, Callable[[GpuSpec], dict[str, Any]]] = {
    "DRAM bandwidth": lambda arch: {"dram_gb_per_s": 1.7 * arch.dram_gb_per_s},
    "L2 bandwidth": lambda arch: {"l2_bytes_per_cycle": 1.7 * arch.l2_bytes_per_cycle},
    "DRAM latency": lambda arch: {"dram_latency_ns": 0.6 * arch.dram_latency_ns},
    "tensor cores": lambda arch: {
        "tensor_flop_per_cycle": {dtype: 2 * rate for dtype, rate in arch.tensor_flop_per_cycle.items()}
    },
    "issue slots": lambda arch: {"issue_slots_per_cycle": 2 * arch.issue_slots_per_cycle},
}


@given(cases(), st.sampled_from(sorted(FASTER_CHIP)))
def test_a_faster_chip_is_never_slower(case: Case, what: str) -> None:
    faster = case._replace(arch=case.arch.with_(**FASTER_CHIP[what](case.arch)))
    assert time_us(faster) <= time_us(case) * (1 + ROUNDING)


FASTER = {
    "wgmma_frac", "issue_frac", "part_bytes_per_cycle", "add_bytes_per_cycle",
}  # fmt: skip


@given(cases(), st.sampled_from(triton_model.TRITON_COEFFICIENTS), st.floats(0, 1))
def test_each_coefficient_has_a_direction(case: Case, item: Any, share: float) -> None:
    value = case.coefficients[item.name]
    larger = min(item.high, value + share * (item.high - value))
    before, after = time_us(case), time_us(case._replace(coefficients=case.coefficients | {item.name: larger}))
    if item.name in FASTER:
        before, after = after, before
    assert after >= before * (1 - ROUNDING)


@st.composite
def many(
    draw: st.DrawFn,
) -> tuple[GpuSpec, list[tuple[GemmProblem, list[triton_model.TritonConfig], list[triton_model.KernelCode]]]]:
    groups = []
    for problem in draw(st.lists(problems(), min_size=1, max_size=3)):
        chosen = draw(st.lists(configs(), min_size=0, max_size=4))
        groups.append((problem, chosen, [draw(codes(config)) for config in chosen]))
    return draw(st.sampled_from(ARCHS)), groups


@given(many(), st.randoms(use_true_random=False))
def test_launches_do_not_know_of_each_other(drawn: Any, random: Any) -> None:
    arch, groups = drawn
    c = DEFAULTS
    rows = [triton_model.pack_launches(arch, *group) for group in groups]
    together = triton_model.launch_times(arch, triton_model.stack_launches(rows), c)
    apart = [triton_model.launch_times(arch, one, c) for one in rows]
    for field, whole in together._asdict().items():
        np.testing.assert_allclose(whole, np.concatenate([getattr(one, field) for one in apart]), rtol=ROUNDING)

    problem, chosen, found = groups[0]
    order = list(range(len(chosen)))
    random.shuffle(order)
    shuffled = triton_model.pack_launches(arch, problem, [chosen[i] for i in order], [found[i] for i in order])
    np.testing.assert_allclose(
        triton_model.launch_times(arch, shuffled, c).latency_us, apart[0].latency_us[order], rtol=ROUNDING
    )  # fmt: skip
