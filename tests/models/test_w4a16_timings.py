"""Our W4A16 kernels against timings: modes that no coefficient was fitted on, and the choice for groups of rows."""

import numpy as np
import pandas as pd
import pytest

from gemm_eval import GEMMEvaluator
from gemm_eval.arch import GpuSpec, data_root, load_arch
from gemm_eval.dtypes import DType
from gemm_eval.kernels import Sizes, WeightMode, problem_of
from gemm_eval.kernels.plan import rank_grouped


@pytest.fixture(scope="module")
def errors() -> pd.Series:
    """Errors of the kernels that were timed on an H100, on which no kernel of ours had been timed."""
    timed = pd.read_csv(data_root() / "compared" / "h100-sxm-w4a16-modes.csv")
    timed = timed[timed["engine"] == "ours"].set_index("mode")
    evaluator = GEMMEvaluator("h100-sxm", disk_cache=False)
    problems = [
        problem_of(Sizes(row.M, row.K, row.N), DType(row.dtype), WeightMode[row.Index.upper()], row.group_size)
        for row in timed.itertuples()
    ]
    predicted = [evaluator.evaluate_problem(problem, library="gemm-eval").latency_us for problem in problems]
    return predicted / timed["latency_us"] - 1


@pytest.mark.parametrize(("mode", "mape"), [("column", 0.055), ("group_zero", 0.04), ("mxfp4", 0.06), ("nvfp4", 0.055)])
def test_a_mode_needs_no_calibration_of_its_own(errors: pd.Series, mode: str, mape: float) -> None:
    """The figures of models/gpu/EVIDENCE.md, "Our W4A16 kernels": within 3% of the main mode, in the mean."""
    of_mode = errors[mode]
    assert len(of_mode) == 168
    assert of_mode.abs().mean() < mape
    assert abs(of_mode.mean() - errors["group"].mean()) < 0.03


def test_of_groups_whose_rows_are_known_the_choice_is_near_the_best_config() -> None:
    timed = pd.read_parquet(data_root() / "measured" / "h200-sxm" / "w4a16-grouped" / "fp16.parquet")
    spec, shape = load_arch("h200-sxm", GpuSpec), ["family", "cta_m", "cta_n", "cta_k", "num_warps", "num_stages"]
    lost = []
    for (row_groups, K, N), of_gemm in timed.groupby(["row_groups", "K", "N"]):
        groups = tuple(sorted(map(int, row_groups.split()), reverse=True))
        latency_us = of_gemm.set_index(shape)["latency_us"].to_dict()
        ranked = rank_grouped(groups, K, N, DType.FP16, WeightMode.GROUP, 128, spec, 80)
        keys = (tuple(getattr(config, name) for name in shape) for config in ranked)
        chosen_us = next(latency_us[key] for key in keys if key in latency_us)
        lost.append(chosen_us / min(latency_us.values()) - 1)
    assert len(lost) > 120
    assert np.mean(lost) < 0.015
    assert np.max(lost) < 0.12
