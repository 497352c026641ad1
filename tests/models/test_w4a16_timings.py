"""Our W4A16 kernels against timings: modes that no coefficient was fitted on, and groups of one row to thousands."""

import numpy as np
import pandas as pd
import pytest

from gemm_eval import GEMMEvaluator
from gemm_eval.arch import data_root
from gemm_eval.dtypes import DType
from gemm_eval.kernels import Sizes, WeightMode, problem_of


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


def test_groups_that_were_timed() -> None:
    """The figures of models/gpu/EVIDENCE.md, "Our W4A16 kernels"."""
    timed = pd.read_csv(data_root() / "compared" / "h200-sxm-w4a16-grouped-rows.csv")
    evaluator = GEMMEvaluator("h200-sxm")
    predicted = [
        evaluator.evaluate_grouped(
            map(int, row.row_groups.split()), row.K, row.N, input_dtype=row.activation, weight_dtype="int4",
            output_dtype=row.activation, group_size=128, library="gemm-eval",
        ).latency_us
        for row in timed.itertuples()
    ]  # fmt: skip
    errors = np.array(predicted) / timed["latency_us"].to_numpy() - 1
    assert len(errors) == 286
    assert np.abs(errors).mean() < 0.07
    assert -0.06 < errors.mean() < 0.0
    assert np.quantile(np.abs(errors), 0.9) < 0.16
