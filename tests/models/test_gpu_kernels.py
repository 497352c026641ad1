"""The arithmetic of the GPU model by hand: cycles, alignment, waves and bytes; shortages, and DRAM traffic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gemm_eval import GEMMEvaluator, GemmProblem, InfeasibleError, load_arch
from gemm_eval.arch import GpuSpec
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder, Schedule
from gemm_eval.models.gpu import GPU_COST_DTYPE, GpuCost, pack_gpu, unpack_gpu_cost
from gemm_eval.models.gpu.candidates import dequant_cycles, matrix_cycles
from gemm_eval.models.gpu.generic_kernels import problem_terms, row_alignment
from gemm_eval.search.gpu import evaluate_config
from gemm_eval.workload import RunOptions, make_problem

# ---- by hand ---------------------------------------------------------------------------------------------------------


H100, A100, L40S = (load_arch(name, GpuSpec) for name in ("h100-sxm", "a100-sxm-80gb", "l40s"))
DENSE = GemmProblem(1, 4096, 4096, 4096)
WGMMA = KernelConfig(
    "sm90_wgmma", 64, 64, 64, 1, 1, 8, 4, Schedule.COOPERATIVE, Decomposition.DATA_PARALLEL, 1, RasterOrder.ALONG_M, 1
)
MMA = WGMMA._replace(family="sm80_mma", num_warps=4, schedule=Schedule.MULTISTAGE)


def terms_of(params: Any, coefficients: Any, G: int, M: int, K: int, N: int) -> Any:
    """`problem_terms` of G groups of M rows."""
    return problem_terms(params, coefficients, K, N, np.array([M]), np.array([G]), False)


def typed(dtype: str, *sizes: int) -> GemmProblem:
    return make_problem(*(sizes or (1, 4096, 4096, 4096)), default_dtype=H100.default_dtype, dtype=dtype)


# tensor cores

# cycles of m64nNk16 for each of two warpgroups on an SM, measured on an H200; an SM's cycles are half of that
MEASURED = {
    8: (26.4, 36.1), 16: (26.4, 40.1), 32: (32.4, 48.2), 64: (64.6, 64.2), 128: (128.5, 128.3), 256: (256.4, 256.3),
}  # fmt: skip


@pytest.mark.parametrize(("n", "from_registers", "from_smem"), [(n, *pair) for n, pair in MEASURED.items()])
def test_wgmma_takes_the_cycles_that_were_measured(n: int, from_registers: float, from_smem: float) -> None:
    # a step of 64 elements is four instructions of k = 16; tokens lie on N of the instruction, weights on its 64 rows
    config = WGMMA._replace(cta_m=n)
    assert matrix_cycles(H100, DENSE.types, config) == pytest.approx(4 * from_smem / 2, rel=0.005)
    # weights that were turned into fp16 in registers need no shared memory
    assert matrix_cycles(H100, typed("w4a16").types, config) == pytest.approx(4 * from_registers / 2, rel=0.015)


def test_wide_and_many_instructions() -> None:
    # 128 x 256 x 64: 2 x 4 instructions of 128 cycles; 384 columns are two of 192
    assert matrix_cycles(H100, DENSE.types, WGMMA._replace(cta_m=128, cta_n=256)) == 2 * 4 * 128
    assert matrix_cycles(H100, DENSE.types, WGMMA._replace(cta_m=64, cta_n=384)) == pytest.approx(4 * 2 * 96)
    # 136 columns of tokens: no multiple of 64, so weights lie on the rows
    assert matrix_cycles(H100, DENSE.types, WGMMA._replace(cta_m=136, cta_n=128)) == pytest.approx(4 * 2 * 68)
    fp8 = typed("fp8")
    assert (
        matrix_cycles(H100, fp8.types, WGMMA._replace(cta_m=128, cta_n=256, cta_k=128)) == 2 * 4 * 128
    )  # twice the work


@pytest.mark.parametrize(
    ("arch", "dtype", "cycles"),
    # 2 x 128 x 128 x 64 FLOP at 2,048 and 1,024 a cycle; on Hopper mma.sync reaches 0.62 of 4,096
    [(A100, "fp16", 1024), (L40S, "fp16", 2048), (H100, "fp16", 512 / 0.62), (A100, "int8", 1024), (L40S, "fp8", 2048)],
)
def test_mma_takes_its_share_of_the_peak(arch: GpuSpec, dtype: str, cycles: float) -> None:
    k = 64 if dtype == "fp16" else 128
    config = MMA._replace(cta_m=128, cta_n=128, cta_k=k)
    assert matrix_cycles(arch, typed(dtype).types, config) == pytest.approx(cycles)


def test_small_mma_tiles_are_bound_by_shared_memory() -> None:
    # 16 x 64: 4 warps along N each read 16 rows of A and a quarter of B: (16 x 4 + 64) x 128 bytes at 128 a cycle
    assert matrix_cycles(A100, DENSE.types, MMA._replace(cta_m=16)) == 128 > 2 * 16 * 64 * 64 / 2048


def test_dequantization_takes_alu_cycles_for_each_weight() -> None:
    config = WGMMA._replace(cta_n=128)
    cycles = dequant_cycles(H100, typed("w4a16").types, config)
    assert dequant_cycles(H100, DENSE.types, config) == 0
    assert cycles > 0
    assert dequant_cycles(H100, typed("w4a16").types, config._replace(cta_n=256, cta_m=256)) == 2 * cycles
    assert dequant_cycles(H100.with_(issue_slots_per_cycle=8.0), typed("w4a16").types, config) == cycles / 2
    with_zeros = GemmProblem(1, 1, 64, 64, "fp16", "int4", group_size=64, zero_dtype="int4")  # type: ignore[arg-type]
    assert dequant_cycles(H100, with_zeros.types, config) > cycles


# bytes


@pytest.mark.parametrize(
    ("dtype", "K", "N", "aligned"),
    [("fp16", 4096, 4096, 16), ("fp16", 4100, 4096, 8), ("fp16", 4098, 4096, 4), ("fp16", 4097, 4096, 2),
     ("fp16", 4096, 4097, 2), ("fp8", 4097, 4096, 1), ("w4a16", 4112, 4096, 8), ("w4a16", 4097, 4096, 1),
     ("w8a16", 4104, 4096, 8)],
)  # fmt: skip
def test_alignment_is_that_of_the_worst_row(dtype: str, K: int, N: int, aligned: int) -> None:
    params = pack_gpu(H100, typed(dtype).types, RunOptions()).params
    assert row_alignment(params[0], 64, K, N) == aligned


def test_bytes_of_a_problem() -> None:
    packed = pack_gpu(H100, typed("w4a16").types, RunOptions()).fallback
    terms = terms_of(packed.params[0], packed.coefficients[0, 0], 2, 3, 992, 16)
    assert terms.a_bytes == 2 * 3 * 992 * 2
    assert terms.b_bytes == 2 * 16 * 496
    assert terms.scale_bytes == 2 * 16 * 8 * 2  # eight groups of at most 128
    assert terms.c_bytes == 2 * 3 * 16 * 2
    assert terms.b_read_bytes == terms.b_bytes + terms.scale_bytes  # cold
    packed = pack_gpu(H100, typed("w4a16").types, RunOptions(l2="warm")).fallback
    warm = terms_of(packed.params[0], packed.coefficients[0, 0], 2, 3, 992, 16)
    assert warm.b_read_bytes < 1e-3 * terms.b_read_bytes


@pytest.mark.parametrize(("share", "stays"), [(0.5, True), (1.0, True), (1.1, False), (3.0, False)])
def test_an_l2_of_one_partition_keeps_what_is_read_in_turn_while_it_fits(share: float, stays: bool) -> None:
    columns = int(share * L40S.l2_bytes / (4096 * 2))
    packed = pack_gpu(L40S, DENSE.types, RunOptions(l2="warm"))
    terms = terms_of(packed.params[0], packed.coefficients[0, 0], 1, 1, 4096, columns)
    read = terms.b_read_bytes / terms.b_bytes
    assert read < 0.1 if stays else read > 0.9
    cold = terms_of(pack_gpu(L40S, DENSE.types, RunOptions()).params[0], packed.coefficients[0, 0], 1, 1, 4096, columns)
    assert cold.b_read_bytes == cold.b_bytes


def test_in_an_l2_of_two_partitions_it_goes_little_by_little() -> None:
    packed = pack_gpu(H100, DENSE.types, RunOptions(l2="warm"))
    hold_bytes = float(packed.coefficients[0, 0]["l2_hold_bytes"])
    assert H100.num_l2_partitions == 2
    terms = terms_of(packed.params[0], packed.coefficients[0, 0], 1, 1, 4096, int(hold_bytes / (4096 * 2)))
    assert terms.stay_frac == pytest.approx(0.5, abs=0.01)


def test_the_first_read_of_a_byte_takes_more_of_l2() -> None:
    """64 CTAs of 64 columns: A is read 64 times, the first time for 1 + l2_first, and B once for as much."""
    problem, config = GemmProblem(1, 16, 4096, 4096), MMA._replace(cta_m=32)
    packed = pack_gpu(L40S, problem.types, RunOptions(l2="warm"))
    first, rate = (float(packed.coefficients[0, 0][name]) for name in ("l2_first", "l2_bytes_per_us"))
    a_bytes, b_bytes = 16 * 4096 * 2, 4096 * 4096 * 2
    l2_us = cost(L40S, problem, config, l2="warm").breakdown["l2_us"]
    assert first > 0
    assert l2_us == pytest.approx((64 * a_bytes + b_bytes + first * (a_bytes + b_bytes)) / rate)


def cost(arch: GpuSpec, problem: GemmProblem, config: KernelConfig, **changes: Any) -> GpuCost:
    packed = pack_gpu(arch, problem.types, RunOptions(**changes))
    return unpack_gpu_cost(evaluate_config(arch, problem, packed, config)[0])


# waves


@pytest.mark.parametrize(
    ("config", "G", "num_ctas", "num_waves"),
    [
        # 4096 x 4096 in 128 x 256: 512 tiles on 132 SMs
        (WGMMA._replace(cta_m=128, cta_n=256), 1, 132, 4),
        # in clusters of 4 on 120 SMs
        (WGMMA._replace(cta_m=128, cta_n=256, cluster_m=4), 1, 120, 5),
        (WGMMA._replace(cta_m=128, cta_n=256), 3, 132, 12),
        (WGMMA._replace(cta_m=128, cta_n=256, decomposition=Decomposition.SPLIT_K, split_k=2), 1, 132, 8),
        (WGMMA._replace(cta_m=128, cta_n=256, decomposition=Decomposition.STREAM_K), 1, 132, 1),
    ],
)
def test_waves_by_hand(config: KernelConfig, G: int, num_ctas: int, num_waves: int) -> None:
    found = cost(H100, GemmProblem(G, 4096, 4096, 4096), config)
    assert (found.num_ctas, found.num_waves, found.active_sms) == (num_ctas, num_waves, num_ctas)


def test_a_wave_that_is_full_is_followed_by_none() -> None:
    """132 tiles of 128 x 256 on 132 SMs, then twice and three times as many: each wave stores its tiles once."""
    config = WGMMA._replace(cta_m=128, cta_n=256, schedule=Schedule.COOPERATIVE)
    one, two, three = (cost(H100, GemmProblem(1, 1536 * waves, 4096, 2816), config) for waves in (1, 2, 3))
    assert (one.num_waves, two.num_waves, three.num_waves) == (1, 2, 3)
    stored_us = [found.breakdown["tile_overhead_us"] for found in (one, two, three)]
    assert stored_us == pytest.approx([stored_us[0], 2 * stored_us[0], 3 * stored_us[0]])


def test_clusters_are_filled_up() -> None:
    # three tiles along M in clusters of two are four, on four SMs
    found = cost(H100, GemmProblem(1, 190, 4096, 64), WGMMA._replace(cluster_m=2))
    assert (found.num_ctas, found.active_sms, found.num_waves) == (4, 4, 1)


def test_two_ctas_of_an_sm() -> None:
    # 16 x 8 tiles of 128 x 128, two an SM: 128 CTAs lie on all 108 SMs at once
    config = MMA._replace(cta_m=128, cta_n=128, num_stages=2)
    found = cost(A100, GemmProblem(1, 2048, 4096, 1024), config)
    assert (found.ctas_per_sm, found.num_ctas, found.active_sms, found.num_waves) == (2, 128, 108, 1)
    assert found.smem_bytes == 2 * (2 * 32768 + 2048)


def test_a_small_problem_reads_its_weights_once() -> None:
    found = cost(H100, GemmProblem(1, 16, 4096, 16384), WGMMA._replace(cta_m=16))
    assert found.traffic["b_bytes"] == 4096 * 16384 * 2
    assert found.traffic["scale_bytes"] == 0
    assert found.bound == "dram"
    warm = cost(H100, GemmProblem(1, 16, 1024, 4096), WGMMA._replace(cta_m=16), l2="warm")
    assert warm.traffic["b_bytes"] < 0.1 * 1024 * 4096 * 2  # 8 MiB fit


def test_rasters_matter_where_panels_do_not_stay_in_l2() -> None:
    large, small = GemmProblem(1, 32768, 16384, 32768), GemmProblem(1, 1024, 1024, 1024)
    config = WGMMA._replace(cta_m=128, cta_n=256)
    rasters = [config._replace(raster_swizzle=swizzle) for swizzle in (1, 2, 4, 8, 16)]
    assert len({cost(H100, small, raster).latency_us for raster in rasters}) == 1
    moved = {raster.raster_swizzle: cost(H100, large, raster).dram_bytes for raster in rasters}
    assert moved[1] > moved[4]


def test_a_record_of_an_unknown_family_is_refused() -> None:
    record = np.zeros(1, GPU_COST_DTYPE)[0]
    record["family"] = 99
    with pytest.raises(KeyError):
        unpack_gpu_cost(record)


# ---- shortages -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["fp16", "w4a16", "w8a16"])
@pytest.mark.parametrize(
    ("arch", "changes", "resource"),
    [
        (H100, {"smem_per_cta_bytes": 2000}, "smem"), (A100, {"smem_per_cta_bytes": 600}, "smem"),
        (H100, {"registers_per_sm": 2048}, "registers"), (A100, {"max_threads_per_sm": 64}, "threads"),
    ],
    ids=lambda value: value.name if isinstance(value, GpuSpec) else str(value),
)  # fmt: skip
def test_its_levers_lead_to_a_chip_that_runs_it(arch: GpuSpec, dtype: str, changes: Any, resource: str) -> None:
    arch, seen = arch.with_(**changes), []
    while (error := what_it_lacks(arch, dtype)) is not None:
        assert error.gap > 0
        seen.append(error.resource)
        assert len(seen) < 5
        name, _, value = error.levers[0].partition(" >= ")
        arch = arch.with_(**{name: int(value.replace(",", ""))})
    assert resource in seen


def what_it_lacks(arch: GpuSpec, dtype: str) -> InfeasibleError | None:
    try:
        GEMMEvaluator(arch, disk_cache=False).evaluate(1, 64, 4096, 4096, dtype=dtype)
    except InfeasibleError as error:
        return error
    return None


def test_clusters_need_sms_that_lie_together() -> None:
    with pytest.raises(
        InfeasibleError, match=r"no kernel of library cublas for .* lacks SMs that lie together"
    ) as caught:
        GEMMEvaluator(H100.with_(num_sms=1), disk_cache=False).evaluate(1, 64, 4096, 4096)
    assert (caught.value.resource, caught.value.demand, caught.value.limit) == ("sms", 2, 1)
    assert caught.value.levers == ("num_sms >= 2",)


# ---- traffic ---------------------------------------------------------------------------------------------------------


SEED, NUM = 7, 150
CASES = (
    ("h200-sxm", "bf16", None), ("h200-sxm", "w4a16", "gemm-eval"), ("h200-sxm", "w4a16", "hypothetical"),
    ("b200", "nvfp4", None), ("b200", "fp8_block", None), ("l40s", "fp8", None), ("rtx-pro-6000-server", "fp8", None),
    ("a100-sxm-80gb", "int8", None), ("a100-sxm-80gb", "w4a16", "trtllm"),
)  # fmt: skip


def problems(arch: GpuSpec, dtype: str) -> list[GemmProblem]:
    rng = np.random.default_rng(SEED)
    sizes = np.exp2(rng.uniform(0.0, 14.0, (NUM, 3))).astype(int)
    sizes[:, 1:] = np.maximum(sizes[:, 1:] // 128, 1) * 128
    return [make_problem(1, *size, default_dtype=arch.default_dtype, dtype=dtype) for size in sizes.tolist()]


@pytest.mark.parametrize(("gpu", "dtype", "library"), CASES)
def test_no_traffic_is_below_what_l2_leaves_to_be_read(gpu: str, dtype: str, library: str | None) -> None:
    arch = load_arch(gpu, GpuSpec)
    asked, evaluator = problems(arch, dtype), GEMMEvaluator(arch, disk_cache=False)
    weights = np.array([-(-problem.types.b.total_bits(problem.N, problem.K) // 8) for problem in asked])
    everything = np.array([problem.compulsory_bytes for problem in asked])
    for l2 in ("cold", "cold-all"):
        records = evaluator.evaluate_many(asked, library=library, l2=l2, progress=False).records
        of_weights = records["dram_b_bytes"] + records["dram_scale_bytes"]
        assert (of_weights >= weights).all()
        if l2 == "cold-all":
            assert (records["dram_bytes"] >= everything).all()
        least_us = records["dram_bytes"] / (arch.dram_gb_per_s * 1e3)
        assert (records["physics_us"] >= least_us).all()
        assert (records["latency_us"] >= of_weights / (arch.dram_gb_per_s * 1e3)).all()


def test_what_l2_has_is_no_traffic_that_was_saved() -> None:
    evaluator = GEMMEvaluator("h200-sxm", disk_cache=False)
    kept, read = (evaluator.evaluate(1, 64, 4100, 4096, dtype="w4a16", l2=l2) for l2 in ("cold", "cold-all"))

    assert kept.dram_bytes < kept.problem.compulsory_bytes <= read.dram_bytes
    assert "% of A, B and C: L2 has the rest" in kept.explain()
    assert "x what must move at least once" in read.explain()
