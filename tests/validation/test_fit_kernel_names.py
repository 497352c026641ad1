"""Configs that are read from the names of cuBLAS kernels, on committed timings."""

import numpy as np
import pandas as pd
import pytest

from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.dtypes import DType
from gemm_eval.mapping import Decomposition, Schedule
from gemm_eval.models.gpu.libraries import cluster_grid_sms
from gemm_eval.validation.subjects.dense_rows import config_of_kernel, tiles_of_grid
from gemm_eval.validation.tables import find_timings, measured_root
from gemm_eval.workload import GemmProblem

H200 = load_arch("h200-sxm", GpuSpec)


@pytest.mark.parametrize(("name", "least"), [("cublas/fp16", 0.85), ("cublas/bf16", 0.85), ("cublaslt/fp8", 0.85)])
def test_real_names_tell_the_grid(name: str, least: float) -> None:
    (timings,) = find_timings("h200-sxm", [name])
    columns = timings.frame[["kernel", "block_x", "grid_x", "grid_y", "grid_z"]].itertuples(index=False)
    known = 0
    for problem, (kernel, num_threads, *grid) in zip(timings.problems(), columns, strict=True):
        num_ctas = int(np.prod(grid))
        config = config_of_kernel(problem, kernel, num_ctas, int(num_threads))
        if config is None or config.family != "sm90_wgmma":
            continue
        known += 1
        clusters = config.cluster_m, config.cluster_n
        work = tiles_of_grid(problem, config.cta_m, config.cta_n, *clusters) * config.split_k
        assert num_ctas == min(work, max(num_ctas, cluster_grid_sms(H200, clusters[0] * clusters[1])))
    assert known >= least * len(timings)


def test_number_of_parts_is_the_one_that_cublaslt_reports() -> None:
    table = pd.read_parquet(measured_root("h200-sxm") / "cublaslt" / "fp16-candidates.parquet")
    right = 0
    for row in table[table["kernel"].str.contains("splitK")].itertuples():
        problem = GemmProblem(row.G, row.M, row.K, row.N)
        config = config_of_kernel(problem, row.kernel, row.grid_x * row.grid_y * row.grid_z, row.block_x)
        assert config is None or config.split_k == row.split_k
        right += config is not None
    assert right > 1700


def test_a_kernel_of_cutlass() -> None:
    problem = GemmProblem(1, 128, 8192, 1024, "int8", "int8", "int32")  # type: ignore[arg-type]
    name = "void cutlass::Kernel2<cutlass_80_tensorop_i16832gemm_s8_128x64_128x3_tn_align16>(Params)"
    config = config_of_kernel(problem, name, 2 * 8, 128)
    assert config is not None
    assert (config.family, config.schedule, config.num_warps) == ("sm80_mma", Schedule.MULTISTAGE, 4)
    assert (config.cta_m, config.cta_n, config.cta_k, config.num_stages) == (64, 128, 128, 3)
    assert config.decomposition is Decomposition.DATA_PARALLEL


def test_a_kernel_of_tf32_with_a_grid_of_whole_rasters() -> None:
    problem = GemmProblem(1, 64, 4352, 3520, DType.TF32, DType.TF32, DType.FP32)
    name = "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_256x64_32x3_nn_align4>(Params)"
    config = config_of_kernel(problem, name, 8 * 2 * 9, 128)  # 14 tiles in two columns of 8
    assert config is not None
    assert (config.family, config.cta_m, config.cta_n, config.cta_k) == ("sm90_tf32", 64, 256, 32)
    assert (config.num_stages, config.split_k) == (3, 9)


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4", 3),
        ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nt_align1>(Params)", 5),
    ],
)
def test_kernels_on_cuda_cores(name: str, stages: int) -> None:
    problem = GemmProblem(1, 128, 8192, 1024, DType.FP32, DType.FP32, DType.FP32)
    config = config_of_kernel(problem, name, 2 * 8 * 5, 128)
    assert config is not None
    assert (config.family, config.cta_m, config.cta_n, config.cta_k) == ("simt", 64, 128, 8)
    assert (config.num_stages, config.split_k, config.num_warps) == (stages, 5, 4)


@pytest.mark.parametrize(
    ("name", "num_ctas"),
    [
        ("void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_f16_128x256_64x3_tn_align8>", 7),  # 8 tiles
        ("void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_f16_128x256_32x3_tn_align8>", 8),  # half a k-step
        ("nvjet_sm100_hsh_128x64_64x8_2x1_v_bz_TNT", 16),
        ("nvjet_sm90_hsh_128x64_64x8_2x1_v", 16),
        ("nvjet_sm90_qqtst_128x64_128x8_2x1_v_bz_TNT", 16),  # 128 elements a k-step are none of fp16
        ("nvjet_sm90_hsh_256x64_64x5_2x1_v_bz_splitK_TNT", 8 * 5 + 1),  # no number of parts
        ("nvjet_sm90_hsh_256x64_64x5_2x1_v_bz_splitK_TNT", 8),  # one part is no split
        ("nvjet_sm90_hsh_256x64_64x5_2x1_v_bz_splitK_TNT", 8 * 129),  # more parts than k-steps
        ("", 1),
    ],
)
def test_other_names_tell_nothing(name: str, num_ctas: int) -> None:
    assert config_of_kernel(GemmProblem(1, 128, 8192, 1024), name, num_ctas, 384) is None
