"""Our W4A16 kernels in the GPU model are those of the registry: the same configs, what they take, and their bytes."""

import itertools
from typing import Any

import numpy as np
import pytest

from gemm_eval import DType, GEMMEvaluator, GemmProblem, InfeasibleError, load_arch
from gemm_eval.arch import GpuSpec, list_archs
from gemm_eval.kernels import Sizes, legal_configs, limits_of_spec, pack_w4
from gemm_eval.kernels.families import TARGETS_THAT_RAN, families
from gemm_eval.kernels.registry import target_of
from gemm_eval.mapping import Decomposition, KernelConfig
from gemm_eval.models.gpu import coefficients_for, has_sms_of, pack_gpu
from gemm_eval.models.gpu.families import FAMILIES
from gemm_eval.models.gpu.w4a16.candidates import (
    build_w4a16_candidates,
    config_of_row,
    find_row,
    has_our_kernels,
    kernel_target,
)
from gemm_eval.models.gpu.w4a16.coefficients import W4A16_FAMILIES, W4A16_SETS
from gemm_eval.search.gpu import evaluate_config, find_best_config, find_top_configs
from gemm_eval.workload import RunOptions
from tests.cases import case
from tools.laws.kernel_space import enumerate_configs

NAMES = ("h200-sxm", "h100-pcie", "a100-sxm-80gb", "l40s", "rtx-4090", "b200", "b300", "rtx-5090", "rtx-5070")
GPUS = {name: load_arch(name, GpuSpec) for name in NAMES}
H200 = GPUS["h200-sxm"]
MODES = (
    ("column", None), ("group", 32), ("group", 64), ("group", 128), ("group_zero", 64), ("group_zero", 128),
    ("mxfp4", 32), ("nvfp4", 16),
)  # fmt: skip


def typed(M: int, K: int, N: int, mode: str = "group", group: int | None = 128, act: str = "fp16", G: int = 1) -> Any:
    if mode in ("mxfp4", "nvfp4"):  # the type of scales follows from the group
        return GemmProblem(G, M, K, N, DType(act), DType.FP4, DType(act), group_size=group)
    zero = DType.INT4 if mode == "group_zero" else None
    return GemmProblem(
        G, M, K, N, DType(act), DType.INT4, group_size=None if mode == "column" else group, zero_dtype=zero
    )


def best_of(arch: GpuSpec, problem: GemmProblem, options: RunOptions | None = None) -> Any:
    return find_best_config(arch, problem, pack_gpu(arch, problem.types, options or RunOptions()))[0]


# configs


CHANGED = [
    H200.with_(num_sms=num_sms, smem_per_cta_bytes=int(H200.smem_per_cta_bytes * frac))
    for num_sms, frac in itertools.product((1, 7, 11, 200), (1.0, 0.5))
]


@pytest.mark.parametrize("arch", [*GPUS.values(), *CHANGED], ids=lambda arch: f"{arch.name} {arch.num_sms}")
def test_configs_are_those_of_the_registry(arch: GpuSpec) -> None:
    """Equal in order too: of configs with the same time the model finds the one that the registry lists first."""
    rng, limits = np.random.default_rng(7), limits_of_spec(arch)
    kinds = itertools.cycle(itertools.product(("fp16", "bf16"), MODES))
    for log2 in rng.uniform(0.0, 1.0, (32, 3)) * (13, 12, 12):
        M, K, N = (int(x) for x in 2.0**log2)
        sizes, (activation, (mode, group)) = Sizes(M, 8 * K, 8 * N), next(kinds)
        with case(sizes, activation, mode, group):
            problem = typed(*sizes, mode, group, activation)
            expected = list(legal_configs(sizes, limits, activation, mode, group))
            assert list(enumerate_configs(arch, problem, "gemm-eval")) == expected


def test_a_row_stands_for_one_kernel() -> None:
    for arch in GPUS.values():
        menu = build_w4a16_candidates(arch, typed(64, 64, 64).types)
        configs = [config_of_row(row, 1) for row in menu]
        assert len(set(configs)) == len(configs) > 50
        assert [find_row(menu, config) for config in configs] == list(range(len(menu)))
        assert config_of_row(menu[0], 0) == configs[0]._replace(decomposition=Decomposition.STREAM_K)
        assert config_of_row(menu[0], 5) == configs[0]._replace(decomposition=Decomposition.SPLIT_K, split_k=5)


# what a kernel takes


def test_persistent_kernels_fill_the_sms_by_hand() -> None:
    menu = build_w4a16_candidates(H200, typed(64, 64, 64).types)
    rows = menu[menu["coefficient_set"] == 3]
    clusters = rows["cluster_m"] * rows["cluster_n"]

    assert set(rows["grid_cap"][clusters <= 2] // rows["expected_ctas"][clusters <= 2]) == {132}
    # 10 of 11 SMs lie in groups of four: 120 of 132
    assert set(rows["grid_cap"][clusters == 4] // rows["expected_ctas"][clusters == 4]) <= {120}
    others = menu[menu["coefficient_set"] < 3]
    assert (others["grid_cap"] == 132 * others["ctas_per_sm"]).all()


def test_tensor_cycles_by_hand() -> None:
    """64 columns x 64 k times the tokens, at 4,096 FLOP a cycle for wgmma and 0.62 of it for mma.sync.

    A wgmma is 64 columns x 16 k, and takes 13.2 cycles at least.
    """
    menu = build_w4a16_candidates(H200, typed(64, 64, 64).types)
    wgmma = [index for index, name in enumerate(W4A16_SETS) if "sm90" in name]
    for row in menu[np.isin(menu["coefficient_set"], wgmma)]:
        least = row["cta_n"] / 64 * 4 * 13.2
        assert row["matrix_cycles"] == pytest.approx(max(2 * row["cta_m"] * row["cta_n"] * 64 / 4096, least))
    for row in menu[menu["coefficient_set"] == 2]:
        assert row["matrix_cycles"] == pytest.approx(2 * row["cta_m"] * row["cta_n"] * 64 / (4096 * 0.62))
    assert not menu["matrix_cycles"][menu["coefficient_set"] == 0].any()
    a100 = build_w4a16_candidates(GPUS["a100-sxm-80gb"], typed(64, 64, 64).types)
    for row in a100[a100["coefficient_set"] == 2]:
        assert row["matrix_cycles"] == pytest.approx(2 * row["cta_m"] * row["cta_n"] * 64 / 2048)


@pytest.mark.parametrize("activation", ["fp16", "bf16"])
@pytest.mark.parametrize(("mode", "group"), MODES)
def test_weight_bytes_are_those_of_packed_weights(activation: str, mode: str, group: int | None) -> None:
    """Scales of groups come with the weights; those of columns are read once, by the epilogue."""
    K, N = 256, 192
    packed = packed_weights(K, N, activation, mode, group)
    nbytes = packed.qweight.nbytes + (packed.scales.nbytes if mode != "column" else 0)
    menu = build_w4a16_candidates(H200, typed(64, K, N, mode, group, activation).types)

    assert menu["weight_bytes"] == pytest.approx(menu["cta_n"] / N * nbytes * 64 / K, rel=1e-12)


def packed_weights(K: int, N: int, activation: str, mode: str, group: int | None) -> Any:
    weights = np.random.default_rng(0).normal(size=(K, N))
    return pack_w4(weights, group, mode, activation=activation)


# where our kernels do not run


@pytest.mark.parametrize(
    "problem",
    [
        typed(64, 4100, 4096), typed(64, 4096, 4100), typed(64, 4096, 1), typed(16, 4, 8),
        GemmProblem(1, 64, 4096, 4096, DType.FP16, DType.INT8, group_size=128),
        GemmProblem(1, 64, 4096, 4096, DType.FP16, DType.FP8, group_size=128),
        typed(64, 4096, 4096, group=256), typed(64, 4096, 4096, group=16), typed(64, 4096, 4096, group=100),
        GemmProblem(1, 64, 4096, 4096, DType.FP16, DType.INT4, group_size=128, scale_dtype=DType.FP32),
        GemmProblem(1, 64, 4096, 4096, DType.FP16, DType.INT4, group_size=128, scale_dtype=DType.BF16),
        GemmProblem(1, 64, 4096, 4096, DType.FP16, DType.INT4, group_size=128, zero_dtype=DType.FP16),
        GemmProblem(1, 64, 4096, 4096, DType.FP16, DType.INT4, group_size=None, zero_dtype=DType.INT4),
        GemmProblem(1, 64, 4096, 4096, DType.FP16, DType.INT4, DType.FP32, group_size=128),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("name", ["h200-sxm", "l40s"])
def test_other_types_and_sizes_fall_back_to_the_generic_families(name: str, problem: GemmProblem) -> None:
    arch = GPUS[name]
    config = best_of(arch, problem)["family"]
    families_found = {config.family for config in itertools.islice(enumerate_configs(arch, problem), 0, None, 97)}

    assert not FAMILIES[next(f.name for f in FAMILIES.values() if f.number == config)].is_ours
    assert families_found
    assert not any(FAMILIES[family].is_ours for family in families_found)
    assert has_our_kernels(arch, problem.types) == (problem.K % 8 + problem.N % 8 > 0)  # sizes do not matter to it


def test_all_gpus_that_have_run_none_take_the_coefficients_of_the_one_that_did() -> None:
    for arch in (arch for arch in map(load_arch, list_archs()) if isinstance(arch, GpuSpec)):
        if arch.sm_arch not in FAMILIES["w4a16_sm80"].sm_archs:
            continue
        target = kernel_target(arch)
        assert target == target_of(families()["w4a16_sm80"], limits_of_spec(arch).compute_capability)
        for family in W4A16_FAMILIES:
            _, origin = coefficients_for(arch, "gemm-eval", family)
            assert origin.gpu == "h200-sxm"
            assert origin.is_calibrated == (arch.name == "h200-sxm")
            # what is timed has run, and only that
            assert has_sms_of(arch, origin.gpu) == (target in TARGETS_THAT_RAN)


@pytest.mark.parametrize("name", ["b200", "b300", "rtx-5090", "rtx-pro-6000-server", "a100-sxm-80gb"])
def test_answers_say_that_kernels_never_ran(name: str) -> None:
    arch = load_arch(name, GpuSpec)
    evaluator = GEMMEvaluator(arch, disk_cache=False)
    result = evaluator.evaluate(1, 16, 8192, 8192, weight_dtype="int4", library="gemm-eval")
    text = result.explain()

    assert result.source == "analytic"
    assert f"compiled for {kernel_target(arch)}, and none has ever run on a GPU of this generation" in text
    assert "carried over from gemm-eval kernels on h200-sxm, not fitted on this GPU" in text
    assert result.low_us < result.latency_us < result.high_us


def test_a_chip_without_room_for_any_kernel_says_so() -> None:
    arch, problem = H200.with_(smem_per_cta_bytes=1024), typed(64, 4096, 4096)
    assert len(build_w4a16_candidates(arch, problem.types)) == 0
    assert list(enumerate_configs(arch, problem)) == []
    packed = pack_gpu(arch, problem.types, RunOptions())
    for find in (find_best_config, lambda *given: find_top_configs(*given, 3)):
        with pytest.raises(InfeasibleError, match="no kernel of library gemm-eval for"):
            find(arch, problem, packed)


# batches


@pytest.mark.parametrize("sizes", [(1, 4096, 4096), (48, 4096, 12288), (2048, 4096, 4096)], ids=str)
@pytest.mark.parametrize("G", [2, 7])
def test_a_batch_is_one_launch_of_a_grouped_kernel_or_as_many_launches(sizes: tuple[int, int, int], G: int) -> None:
    new = {"w4a16_gemv_mma_grouped", "w4a16_sm90_grouped"}
    one, many = typed(*sizes), typed(*sizes, G=G)
    packed = pack_gpu(H200, many.types, RunOptions())
    single, best = best_of(H200, one), best_of(H200, many)
    for name in ("dram_b_bytes", "dram_scale_bytes", "dram_c_bytes"):
        assert best[name] == pytest.approx(G * single[name], abs=G)
    top = find_top_configs(H200, many, packed, 5)
    assert top[0]["latency_us"] == best["latency_us"] <= G * single["latency_us"]
    repeated = [
        record for record in find_top_configs(H200, many, packed, 10_000) if record["family"] == single["family"]
    ]
    assert repeated[0]["latency_us"] == pytest.approx(G * single["latency_us"])
    assert repeated[0]["num_waves"] == G * single["num_waves"]
    result = GEMMEvaluator(H200, disk_cache=False).evaluate_problem(many)
    assert isinstance(result.mapping, KernelConfig)
    if sizes[0] == 48:
        assert result.mapping.family in new
    assert evaluate_config(H200, many, packed, result.mapping)[0]["latency_us"] == result.latency_us
    assert sum(result.breakdown.values()) == pytest.approx(result.latency_us, rel=1e-12)
    grouped = {config.family for config in enumerate_configs(H200, many)}
    plain = {config.family for config in enumerate_configs(H200, one)}
    assert grouped == plain | (new if sizes[0] <= 64 else {"w4a16_sm90_grouped"})


def test_a_grouped_answer_says_whose_coefficients_it_has() -> None:
    kinds = {"dtype": "fp16", "weight_dtype": "int4", "group_size": 128, "library": "gemm-eval"}
    h100, own = (GEMMEvaluator(arch, disk_cache=False) for arch in ("h100-sxm", H200))
    found, measured = (of.evaluate_grouped((120, 3, 0, 17), 4096, 14336, **kinds) for of in (h100, own))

    assert (
        "coefficients of gemm-eval's w4a16_sm90_grouped kernels: carried over from gemm-eval kernels on h200-sxm"
        in found.explain()
    )
    assert found.source == "analytic"
    assert "none has ever run" not in found.explain()
    assert found.low_us / found.latency_us < measured.low_us / measured.latency_us  # of another GPU: wider
