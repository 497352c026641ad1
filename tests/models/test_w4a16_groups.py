"""Our grouped W4A16 kernels against what was timed of them, from one row a group to thousands."""

from __future__ import annotations

import numpy as np
import pandas as pd

from gemm_eval import GEMMEvaluator
from gemm_eval.arch import data_root


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
