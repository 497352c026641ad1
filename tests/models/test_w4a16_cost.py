"""The cost of our W4A16 kernels by hand: bytes, terms, cuts of K, and what each coefficient moves."""

from functools import cache
from typing import Any

import numpy as np
import pytest

from gemm_eval import DType, GemmProblem, InvalidMappingError, load_arch
from gemm_eval.arch import GpuSpec
from gemm_eval.jit import read_only
from gemm_eval.kernels import pack_w4
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder, Schedule
from gemm_eval.models.gpu import GpuCost, pack_gpu, unpack_gpu_cost
from gemm_eval.models.gpu.calibration import coefficients_for
from gemm_eval.models.gpu.coefficients import COEFFICIENTS
from gemm_eval.models.gpu.cost_kernels import BEST_RASTER, KERNEL_COST_DTYPE
from gemm_eval.models.gpu.cost_kernels import STREAM_K as STREAM
from gemm_eval.models.gpu.families import FAMILIES, default_coefficients
from gemm_eval.models.gpu.packed import pack_w4a16_coefficients
from gemm_eval.models.gpu.terms import Times
from gemm_eval.models.gpu.w4a16.coefficients import PACKED_SETS, W4A16_COEFFICIENTS, W4A16_FAMILIES, W4A16_SETS
from gemm_eval.models.gpu.w4a16.shared_kernels import MAX_SPLITS
from gemm_eval.search.gpu import evaluate_config, find_best_config, find_top_configs
from gemm_eval.search.gpu_kernels import OF_OURS
from gemm_eval.workload import NO_LAYOUTS, Layouts, RunOptions, pack_layouts
from tools.laws.kernel_space import enumerate_configs

H200, A100, L40S = (load_arch(name, GpuSpec) for name in ("h200-sxm", "a100-sxm-80gb", "l40s"))
GEMV, GEMV_MMA, SM80, SM90, SM90_CLUSTER = W4A16_FAMILIES
ALL = 1 << 20
DATA_PARALLEL, SPLIT_K, STREAM_K = Decomposition
# few tokens and many, tiles that fill the GPU and that do not, rows that start off lines of 128 bytes
SHAPES = ((1, 4096, 4096), (7, 1000, 520), (64, 4096, 12288), (300, 4136, 1024), (4096, 4096, 4096))
ARCHS = pytest.mark.parametrize("arch", [H200, A100, L40S], ids=lambda arch: arch.name)


def typed(M: int, K: int, N: int, **types: Any) -> GemmProblem:
    return GemmProblem(
        1, M, K, N, **({"input_dtype": DType.FP16, "weight_dtype": DType.INT4, "group_size": 128} | types)
    )


def cost(problem: GemmProblem, config: KernelConfig, arch: GpuSpec = H200, **options: str) -> GpuCost:
    packed = pack_gpu(arch, problem.types, RunOptions(**{"library": "gemm-eval"} | options))
    return unpack_gpu_cost(evaluate_config(arch, problem, packed, config)[0])


def costs(problem: GemmProblem, arch: GpuSpec = H200, **options: str) -> dict[KernelConfig, GpuCost]:
    """Of all configs, in the order of the registry."""
    packed = pack_gpu(arch, problem.types, RunOptions(**{"library": "gemm-eval"} | options))
    found = {c.config: c for c in map(unpack_gpu_cost, find_top_configs(arch, problem, packed, ALL))}
    return {config: found[config] for config in enumerate_configs(arch, problem, "gemm-eval")}


def a_config(problem: GemmProblem, arch: GpuSpec = H200, **fields: Any) -> KernelConfig:
    return next(c for c in enumerate_configs(arch, problem, "gemm-eval") if fields.items() <= c._asdict().items())


def coefficients(family: str, arch: GpuSpec = H200) -> dict[str, float]:
    return coefficients_for(arch, "gemm-eval", family)[0]


# bytes


MODES = [
    ("column", None), ("group", 32), ("group", 128),
    ("group_zero", 32), ("group_zero", 128),
]  # fmt: skip


@pytest.mark.parametrize("activation", ["fp16", "bf16"])
@pytest.mark.parametrize(("mode", "group"), MODES)
def test_a_gemm_moves_its_packed_weights_and_its_tokens_once(activation: str, mode: str, group: int | None) -> None:
    M, K, N = 5, 200, 328  # padded to 256 x 384
    packed = pack_w4(np.random.default_rng(0).normal(size=(K, N)), group, mode, activation=activation)
    zero = DType.INT4 if mode == "group_zero" else None
    problem = typed(M, K, N, input_dtype=DType(activation), group_size=group, zero_dtype=zero)
    for config, found in costs(problem).items():
        if config.decomposition == STREAM_K:  # scattered over K, so L2 may lose some
            assert found.dram_bytes >= packed.nbytes + M * (K + N) * 2
            continue
        assert found.traffic["a_bytes"] == M * K * 2
        assert found.traffic["c_bytes"] == M * N * 2
        assert found.traffic["b_bytes"] + found.traffic["scale_bytes"] == packed.nbytes
        assert found.traffic["scale_bytes"] == pytest.approx(packed.scales.nbytes, abs=1)
        assert found.dram_bytes == packed.nbytes + M * (K + N) * 2


@ARCHS
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_no_config_moves_less_than_everything_once(arch: GpuSpec, shape: tuple[int, int, int]) -> None:
    M, K, N = shape
    padded_k, padded_n = -(-K // 128) * 128, -(-N // 64) * 64
    once = M * K * 2 + M * N * 2 + padded_k * padded_n // 2 + padded_k // 128 * padded_n * 2
    for config, found in costs(typed(*shape), arch).items():
        assert found.dram_bytes >= once - 1
        if config.cta_m >= M and config.decomposition != STREAM_K:
            assert found.dram_bytes == pytest.approx(once, abs=1)
    for config, found in costs(typed(*shape), arch.with_(l2_bytes=1 << 40)).items():  # it keeps what is read twice
        assert config.decomposition == STREAM_K or found.dram_bytes == pytest.approx(once, abs=1)


# terms


def test_a_hopper_kernel_by_hand() -> None:
    """2048 x 4096: 16 x 16 tiles of 128 x 256 are one round of 132 CTAs and 124 tiles; 32 units of 128 k each."""
    problem = typed(2048, 4096, 4096)
    config = a_config(
        problem, family=SM90, cta_m=128, cta_n=256, cluster_m=1, cluster_n=1, schedule=Schedule.COOPERATIVE
    )
    found, c = cost(problem, config), coefficients(SM90)
    cycles_per_us = H200.max_clock_ghz * 1e3
    matrix = 2 * 128 * 256 * 64 / 4096  # cycles of 64 k
    bandwidth = H200.dram_achievable_gb_per_s * 1e3

    assert (found.num_ctas, found.num_waves, found.active_sms) == (132, 2, 132)
    assert found.breakdown["prologue_us"] == pytest.approx(c["kernel_us"])
    assert found.breakdown["matrix_us"] == pytest.approx(2 * 64 * matrix / cycles_per_us)
    epilogue = 128 * 256 * 2 / c["epilogue_bytes_per_cycle"]
    assert found.breakdown["tile_overhead_us"] == pytest.approx(2 * epilogue / cycles_per_us)
    assert found.breakdown["dram_us"] == pytest.approx(found.dram_bytes / bandwidth, rel=1e-6)
    assert found.breakdown["store_us"] == pytest.approx(c["store_exposed_frac"] * 2048 * 4096 * 2 / bandwidth)
    assert found.breakdown["outside_us"] == 0
    assert found.bound == "compute"


def test_an_ampere_kernel_by_hand() -> None:
    problem = typed(1024, 4096, 4096)
    config = a_config(problem, A100, family=SM80, cta_m=128, cta_n=128, decomposition=DATA_PARALLEL)
    found, c = cost(problem, config, A100), coefficients(SM80, A100)
    slots = 108 * found.ctas_per_sm
    cycles_per_us = A100.max_clock_ghz * 1e3
    matrix = 2 * 128 * 128 * 64 / 2048
    rounds, rest = divmod(8 * 32, slots)
    done = rounds * found.ctas_per_sm + -(-rest // 108)

    assert (found.num_ctas, found.num_waves) == (256, rounds + (rest > 0))
    assert found.breakdown["matrix_us"] == pytest.approx(done * 64 * matrix / cycles_per_us)
    waits = found.num_waves * c["cta_cycles"]
    assert found.breakdown["tile_overhead_us"] == pytest.approx(waits / cycles_per_us)
    assert found.breakdown["prologue_us"] == 0


# cuts of K


@ARCHS
@pytest.mark.parametrize("shape", [(1, 8192, 1024), (32, 8192, 1024), (200, 8192, 1024)], ids=str)
def test_only_parts_of_k_are_added_up(arch: GpuSpec, shape: tuple[int, int, int]) -> None:
    found = costs(typed(*shape), arch)
    whole = [c.breakdown["reduction_us"] for config, c in found.items() if config.decomposition == DATA_PARALLEL]
    parts = [c.breakdown["reduction_us"] for config, c in found.items() if config.decomposition == SPLIT_K]

    assert len(parts) > 10
    assert not any(whole)
    assert min(parts) > 0.1  # fences alone take as long
    for config, c in found.items():
        if config.decomposition == SPLIT_K and config.family != SM90_CLUSTER:
            alone = found[config._replace(decomposition=DATA_PARALLEL, split_k=1)]
            assert c.num_ctas >= alone.num_ctas
            assert c.active_sms >= alone.active_sms


@pytest.mark.parametrize(("arch", "family"), [(H200, SM80), (A100, SM80), (L40S, SM80), (H200, SM90)])
def test_stream_k_cuts_no_tile_where_each_cta_has_whole_ones(arch: GpuSpec, family: str) -> None:
    """The registry has no stream-K there on Hopper, so the kernels are asked themselves."""
    packed = pack_gpu(arch, typed(1, 64, 64).types, RunOptions("gemm-eval"))
    menu = packed.candidates
    of_all = packed.params, menu, packed.coefficients
    out = np.zeros(2, KERNEL_COST_DTYPE)
    reduction, matrix = (Times._fields.index(name) for name in ("reduction_us", "matrix_us"))
    for index in np.flatnonzero(menu["coefficient_set"] == W4A16_FAMILIES.index(family)):
        row = menu[index]
        slots = int(row["grid_cap"]) // int(row["cluster_m"] * row["cluster_n"])
        M, N = int(row["cta_m"] * row["cluster_m"]), int(row["cta_n"] * row["cluster_n"]) * slots
        for place, (rows, columns) in enumerate(((M, N), (M, N + int(row["cta_n"] * row["cluster_n"])))):
            OF_OURS.evaluate_configs(
                *of_all, np.array([[index, STREAM]]), BEST_RASTER, 1, rows, 4096, columns, NO_LAYOUTS,
                out[place : place + 1],
            )  # fmt: skip
        assert out["decomposition"].tolist() == [STREAM_K] * 2
        assert out["times_us"][0, reduction] == 0 < out["times_us"][1, reduction]
        alone = np.zeros(1, KERNEL_COST_DTYPE)
        OF_OURS.evaluate_configs(*of_all, np.array([[index, 1]]), BEST_RASTER, 1, M, 4096, N, NO_LAYOUTS, alone)
        assert alone["times_us"][0, matrix] == pytest.approx(out["times_us"][0, matrix])  # the same work for each CTA


def latencies(
    params: Any, menu: Any, packed: Any, M: int, K: int, N: int, layouts: Layouts = NO_LAYOUTS
) -> tuple[Any, Any]:
    tables, which = (params, read_only(menu), read_only(packed)), np.empty((len(menu) * MAX_SPLITS, 2), np.int64)
    which = which[: OF_OURS.list_configs(*tables, 1, M, K, N, layouts, which)]
    records = np.zeros(len(which), KERNEL_COST_DTYPE)
    OF_OURS.evaluate_configs(*tables, which, BEST_RASTER, 1, M, K, N, layouts, records)
    return records["latency_us"], which


# coefficients


PROBE = (*SHAPES, (33, 8192, 256), (40, 4096, 4096), (520, 4104, 4096), (16384, 8192, 8192))


@cache
def probed() -> tuple[Any, Any]:
    packed = pack_gpu(H200, typed(1, 64, 64).types, RunOptions())
    return packed.params, packed.candidates


def times_of(family: str, values: dict[str, dict[str, float]]) -> Any:
    """Of all configs of a family on all probes; of groups with as many rows, half and a few of them."""
    params, menu = probed()
    rows = menu[menu["coefficient_set"] == W4A16_SETS.index(family)]
    packed, is_grouped = pack_w4a16_coefficients(values)[None], family.endswith("_grouped")
    return np.concatenate(
        [
            latencies(
                params, rows, packed, *shape,
                pack_layouts([(shape[0], (shape[0] + 1) // 2, 3)]) if is_grouped else NO_LAYOUTS,
            )[0]
            for shape in PROBE
        ]
    )  # fmt: skip


DEFAULTS = {family: default_coefficients(family) for family in PACKED_SETS}


def with_value(family: str, name: str, value: float) -> dict[str, dict[str, float]]:
    return DEFAULTS | {family: DEFAULTS[family] | {name: value}}


@pytest.mark.parametrize("family", W4A16_SETS)
def test_what_a_family_does_not_have_moves_none(family: str) -> None:
    base = times_of(family, DEFAULTS)
    for item in (entry.coefficient for entry in W4A16_COEFFICIENTS):
        if item.name not in DEFAULTS[family]:
            assert (times_of(family, with_value(family, item.name, item.high)) == base).all(), item.name
    others = {name: {key: 1.5 * value for key, value in values.items()} for name, values in DEFAULTS.items()}
    assert (times_of(family, others | {family: DEFAULTS[family]}) == base).all()


SLOWER = {  # with more of it
    "kernel_us", "ramp_us", "cta_cycles", "cta_launch_cycles", "issue", "pingpong_issue", "shared_issue",
    "three_issue", "stage_cycles", "offset_frac", "producer_cycles", "serial_cycles", "step_cycles",
    "line_waste", "store_exposed_frac", "team_sum_cycles", "cut_us", "part_cycles", "moving_power",
    "groups_us", "group_tile_cycles", "group_load_cycles",
}  # fmt: skip
FASTER = {
    "sm_l2_frac", "dram_frac", "l2_frac", "l2_hold_frac", "epilogue_bytes_per_cycle", "sums_bytes_per_cycle",
    "part_write_bytes_per_cycle", "part_read_bytes_per_cycle", "outside_rows_per_cycle", "wgmma_frac",
}  # fmt: skip


def test_every_coefficient_has_a_direction() -> None:
    assert {item.coefficient.name for item in W4A16_COEFFICIENTS} == SLOWER | FASTER
    assert not SLOWER & FASTER


@pytest.mark.parametrize("family", W4A16_SETS)
def test_each_coefficient_of_a_family_moves_some_times_in_its_direction(family: str) -> None:
    base = times_of(family, DEFAULTS)
    for item in FAMILIES[family].coefficients:
        low, high = (times_of(family, with_value(family, item.name, value)) for value in (item.low, item.high))
        assert np.isfinite(low).all(), item.name
        assert (low != base).any() or (high != base).any(), item.name
        slowest, fastest = (low, high) if item.name in FASTER else (high, low)
        assert (fastest > 0).all(), item.name
        assert (fastest <= base * (1 + 1e-9)).all(), item.name
        assert (base <= slowest * (1 + 1e-9)).all(), item.name


def test_coefficients_are_those_of_their_families() -> None:
    generic = {item.name: item for item in COEFFICIENTS}
    for item, defaults in W4A16_COEFFICIENTS:
        assert set(defaults) <= set(PACKED_SETS), item.name
        assert item.name not in generic or item.unit == generic[item.name].unit
    packed = pack_w4a16_coefficients(DEFAULTS)
    for family, record in zip(PACKED_SETS, packed, strict=True):
        of_family = {item.name: defaults[family] for item, defaults in W4A16_COEFFICIENTS if family in defaults}
        assert list(DEFAULTS[family].items()) == list(of_family.items())
        assert {name for name in packed.dtype.names if record[name] != 0} == set(of_family)


# what is refused


def test_a_config_of_another_family_is_refused_with_those_that_there_are() -> None:
    problem = typed(64, 4096, 4096)
    generic = KernelConfig(
        "sm90_wgmma", 64, 64, 64, 1, 1, 8, 4, Schedule.COOPERATIVE, DATA_PARALLEL, 1, RasterOrder.ALONG_M, 1
    )
    with pytest.raises(InvalidMappingError, match=f"with {', '.join(W4A16_FAMILIES)}, .*got 'sm90_wgmma'") as caught:
        cost(problem, generic)
    assert caught.value.rule == "family"
    assert cost(problem, generic, library="trtllm").config == generic
    ours = best_config(problem)
    for other, library in ((typed(64, 4100, 4096), "auto"), (problem, "trtllm")):
        with pytest.raises(InvalidMappingError, match=f"family must be one of sm90_wgmma, .*got '{ours.family}'"):
            cost(other, ours, library=library)


def best_config(problem: GemmProblem, arch: GpuSpec = H200) -> KernelConfig:
    return unpack_gpu_cost(
        find_best_config(arch, problem, pack_gpu(arch, problem.types, RunOptions("gemm-eval")))[0]
    ).config


@pytest.mark.parametrize(
    "change", [{"cta_m": 50}, {"num_stages": 17}, {"raster_swizzle": 16}, {"cluster_n": 8}], ids=str
)
def test_a_kernel_that_is_none_is_refused(change: dict[str, int]) -> None:
    problem = typed(64, 4096, 4096)
    config = a_config(problem, family=SM90)._replace(**change)
    with pytest.raises(
        InvalidMappingError, match=r"there is no such kernel on this GPU .*`gemm-eval kernels`"
    ) as caught:
        cost(problem, config)
    assert caught.value.rule == "config"
    with pytest.raises(InvalidMappingError, match="w4a16_sm90 needs sm_90, a100-sxm-80gb is sm_80") as caught:
        cost(problem, a_config(problem, family=SM90), A100)
    assert caught.value.rule == "family"


@pytest.mark.parametrize("family", [GEMV_MMA, SM80, SM90])
def test_a_cut_that_is_not_offered_is_refused_with_those_that_are(family: str) -> None:
    problem = typed(32, 4096, 1024)
    config = a_config(problem, family=family, decomposition=DATA_PARALLEL)
    kernel = [
        c for c in enumerate_configs(H200, problem) if c._replace(decomposition=DATA_PARALLEL, split_k=1) == config
    ]
    known = ", ".join("stream-K" if c.decomposition == STREAM_K else str(c.split_k) for c in kernel)
    wrong = [
        config._replace(decomposition=SPLIT_K, split_k=5000),
        config._replace(decomposition=SPLIT_K, split_k=1),
        config._replace(decomposition=DATA_PARALLEL, split_k=kernel[1].split_k),
        config._replace(decomposition=STREAM_K, split_k=kernel[1].split_k),
    ]
    for mapping in wrong:
        with pytest.raises(InvalidMappingError, match=f"for M=32, K=4096, N=1024 by .*: {known}$") as caught:
            cost(problem, mapping)
        assert caught.value.rule == "split"
    assert [cost(problem, mapping).config for mapping in kernel] == kernel
