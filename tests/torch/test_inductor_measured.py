"""Ranking against timings: kernels like Inductor's on an H200, those of `examples/triton_gemm.py` without a split K."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from gemm_eval import GpuSpec, load_arch
from gemm_eval.arch import data_root
from gemm_eval.models.gpu.triton import TritonConfig
from gemm_eval.torch.inductor_ranking import KernelTraits, Library, graph_times_us, rank_times
from gemm_eval.workload import GemmProblem

CONFIG = ["block_m", "block_n", "block_k", "num_warps", "num_stages", "group_m"]
LEAST_CONFIGS = 8
SHARES = (1, 2, 3, 5)


def timed_gemms(max_m: int, min_m: int = 1) -> Iterator[tuple[GpuSpec, GemmProblem, list[TritonConfig], np.ndarray]]:
    """Yield GEMMs with their configs and times in us."""
    pd = pytest.importorskip("pandas", reason="measured data need pip install 'gemm_eval[calibrate]'")
    pytest.importorskip("pyarrow", reason="measured data need pip install 'gemm_eval[calibrate]'")
    arch = load_arch("h200-sxm")
    assert isinstance(arch, GpuSpec)
    rows = pd.read_parquet(data_root() / "measured" / "h200-sxm" / "triton" / "timings.parquet")
    rows = rows[rows.input_dtype.isin(["fp16", "bf16"]) & (rows.weight_dtype == rows.input_dtype)]
    # of 128 x 256, ptxas serializes wgmma in these kernels, but not in Inductor's
    rows = rows[~((rows.block_m == 128) & (rows.block_n == 256) & (rows.num_warps == 8))]
    rows = rows[(rows.split_k == 1) & (rows.group_m == 8) & (rows.block_k <= 128) & rows.M.between(min_m, max_m)]
    for (dtype, M, K, N), group in rows.groupby(["input_dtype", "M", "K", "N"]):
        if len(group) < LEAST_CONFIGS:
            continue
        configs = [TritonConfig(*map(int, row)) for row in group[CONFIG].to_numpy()]
        yield arch, GemmProblem(1, int(M), int(K), int(N), dtype, dtype, dtype), configs, group.latency_us.to_numpy()


def speeds(max_m: int, min_m: int = 1) -> np.ndarray:
    """Best time over the best of the first 1, 2, 3 and 5, of each GEMM: [num_gemms, 4]."""
    found = []
    for arch, problem, configs, times in timed_gemms(max_m, min_m):
        order = np.argsort(rank_times(arch, problem, configs, KernelTraits()).times_us, kind="stable")
        found.append([times.min() / times[order[:first]].min() for first in SHARES])
    return np.array(found)


def geometric_mean(values: np.ndarray) -> list[float]:
    return [float(value) for value in np.exp(np.log(values).mean(axis=0))]


def test_up_to_64_rows_the_best_is_among_the_first_three() -> None:
    found = speeds(64)
    first, two, three, _ = geometric_mean(found)

    assert len(found) > 90
    assert first > 0.98
    assert two > 0.995
    assert three > 0.999
    assert found[:, 2].min() > 0.98


def test_with_more_rows_the_first_three_are_nearly_as_fast() -> None:
    """Libraries' kernels, which are benchmarked beside these, are at their best here."""
    found = speeds(1 << 40, 65)
    first, two, three, five = geometric_mean(found)

    assert len(found) > 150
    assert first > 0.965
    assert two > 0.985
    assert three > 0.995
    assert five > 0.999
    assert np.percentile(found[:, 2], 5) > 0.96
    assert found[:, 2].min() > 0.91


def test_what_goes_for_the_librarys_sake_is_not_missed() -> None:
    """Times of tuners, less what the model says that events and dirty lines take, beside cuBLAS's predicted ones."""
    num_gemms = num_untimed = 0
    for arch, problem, configs, times in timed_gemms(1 << 40):
        library = Library(arch).time(problem, has_epilogue=False)
        assert library is not None
        in_graph = graph_times_us(arch, problem, configs, KernelTraits())
        assert in_graph is not None
        as_tuned = rank_times(arch, problem, configs, KernelTraits()).times_us
        measured = times * in_graph / as_tuned
        stays = np.array([not library.beats(time) for time in in_graph])
        num_gemms += 1
        num_untimed += not stays.any()
        best_left = min(library.latency_us, measured[stays].min(initial=np.inf))
        assert min(library.latency_us, measured.min()) / best_left > 0.95

    assert num_gemms > 250
    assert num_untimed > 0.3 * num_gemms
