"""Cycles of the GPU model as they were measured, alignment, bytes and waves by hand, shortages, and DRAM traffic."""

from typing import Any

import numpy as np
import pytest

from gemm_eval import GEMMEvaluator, GemmProblem, InfeasibleError, load_arch
from gemm_eval.arch import GpuSpec
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder, Schedule
from gemm_eval.models.gpu import GPU_COST_DTYPE, pack_gpu, unpack_gpu_cost
from gemm_eval.models.gpu.candidates import matrix_cycles
from gemm_eval.models.gpu.generic_kernels import problem_terms, row_alignment
from gemm_eval.workload import RunOptions, make_problem

# ---- by hand ---------------------------------------------------------------------------------------------------------


H100, A100, L40S = (load_arch(name, GpuSpec) for name in ("h100-sxm", "a100-sxm-80gb", "l40s"))
DENSE = GemmProblem(1, 4096, 4096, 4096)
WGMMA = KernelConfig(
    "sm90_wgmma", 64, 64, 64, 1, 1, 8, 4, Schedule.COOPERATIVE, Decomposition.DATA_PARALLEL, 1, RasterOrder.ALONG_M, 1
)


def terms_of(params: Any, coefficients: Any, G: int, M: int, K: int, N: int) -> Any:
    """`problem_terms` of G groups of M rows."""
    return problem_terms(params, coefficients, K, N, np.array([M]), np.array([G]), False)


def typed(dtype: str, *sizes: int) -> GemmProblem:
    return make_problem(*(sizes or (1, 4096, 4096, 4096)), default_dtype=H100.default_dtype, dtype=dtype)


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


# waves


def test_a_record_of_an_unknown_family_is_refused() -> None:
    record = np.zeros(1, GPU_COST_DTYPE)[0]
    record["family"] = np.iinfo(record.dtype["family"]).max
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
    lone_sm = GEMMEvaluator(H100.with_(num_sms=1), disk_cache=False)
    with pytest.raises(
        InfeasibleError, match=r"no kernel of library cublas for .* lacks SMs that lie together"
    ) as caught:
        lone_sm.evaluate(1, 64, 4096, 4096, dtype="fp8", accumulate="full")
    assert (caught.value.resource, caught.value.demand, caught.value.limit) == ("sms", 2, 1)
    assert caught.value.levers == ("num_sms >= 2",)
    assert isinstance(best := lone_sm.evaluate(1, 64, 4096, 4096).mapping, KernelConfig)
    assert (best.cluster_m, best.cluster_n) == (1, 1)


# ---- traffic ---------------------------------------------------------------------------------------------------------


def test_what_l2_has_is_no_traffic_that_was_saved() -> None:
    evaluator = GEMMEvaluator("h200-sxm", disk_cache=False)
    kept, read = (evaluator.evaluate(1, 64, 4100, 4096, dtype="w4a16", l2=l2) for l2 in ("cold", "cold-all"))

    assert kept.dram_bytes < kept.problem.compulsory_bytes <= read.dram_bytes
    assert "% of A, B and C: L2 has the rest" in kept.explain()
    assert "x the compulsory traffic" in read.explain()
