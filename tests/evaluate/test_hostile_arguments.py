"""Arguments that nobody should give: a project's error before any work, never one of comparing or converting."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from gemm_eval import (
    GEMMEvaluator,
    GemmProblem,
    InvalidInputError,
    InvalidMappingError,
    InvalidOptionError,
    InvalidProblemError,
    PlanOptions,
    load_arch,
    load_model,
    select_config,
    transformer_gemms,
)

CHIP = GEMMEvaluator("demo-8core", disk_cache=False)
GPU = GEMMEvaluator("h100-sxm", disk_cache=False)
PROBLEM = GemmProblem(1, 64, 64, 64)
TWO = np.array(["cold", "warm"])
WORDS = (TWO, pd.NA, [], 5, "x" * 10**5)


def refused(kind: type[Exception], call: Any, *arguments: Any, **named: Any) -> str:
    with pytest.raises(kind) as caught:
        call(*arguments, **named)
    text = str(caught.value)
    assert len(text) < 600, text
    return text


def test_sizes() -> None:
    for size in (np.ma.masked, np.ma.array(64, mask=True), pd.NA, np.timedelta64(5, "s")):
        refused(InvalidProblemError, CHIP.evaluate, 1, size, 64, 64)
        refused(InvalidProblemError, CHIP.evaluate_many, [(1, 64, 64, 64), (1, size, 64, 64)])
    masked = np.ma.array([[1, 8, 8, 8], [1, 8, 8, 8]], mask=[[0] * 4, [0, 0, 1, 0]])
    assert "problem 1: G, M, K and N" in refused(InvalidProblemError, CHIP.evaluate_many, masked)
    assert len(CHIP.evaluate_many(masked[:1])) == 1  # nothing in it is masked
    assert "got 0" in refused(InvalidProblemError, CHIP.evaluate_many, range(10**12))


def test_types() -> None:
    frame = {"G": [1], "M": [8], "K": [8], "N": [8]}
    for dtype in (np.array(["fp16", "fp16"]), pd.NA, np.dtype("float64"), np.longdouble, 16, "x" * 10**5):
        for name in ("dtype", "input_dtype", "weight_dtype", "output_dtype", "zero_dtype"):
            refused(InvalidProblemError, CHIP.evaluate, 1, 64, 64, 64, **{name: dtype})
        if dtype is not pd.NA:  # a gap
            column = pd.Series([dtype], dtype=object)
            refused(InvalidProblemError, CHIP.evaluate_many, pd.DataFrame({**frame, "dtype": column}))
    refused(InvalidProblemError, GPU.evaluate, 1, 64, 64, 64, "w4a16", group_size=np.array([32, 64]))
    refused(InvalidProblemError, CHIP.evaluate_many, pd.DataFrame({pd.NA: [1]}))


def test_words() -> None:
    for word in WORDS:
        for name in ("library", "l2", "clock"):
            refused(InvalidOptionError, GPU.evaluate, 1, 64, 64, 64, **{name: word})
            refused(InvalidOptionError, select_config, PROBLEM, "h100-sxm", **{name: word})
            refused(InvalidOptionError, GEMMEvaluator, "h100-sxm", **{name: word})
        refused(InvalidOptionError, PlanOptions, word)
        refused(InvalidOptionError, CHIP.evaluate_many, [(1, 8, 8, 8)], errors=word)
        refused(InvalidOptionError, CHIP.top, PROBLEM, distinct=word)
        refused(InvalidOptionError, transformer_gemms, load_model("llama-3-8b"), phase=word, batch_size=1, seq_len=1)


def test_other_objects() -> None:
    for evaluator in (CHIP, GPU):
        refused(InvalidMappingError, evaluator.evaluate_mapping, PROBLEM, ((10**5000,) * 4, (1, 1, 1), "mnk"))
        refused(InvalidProblemError, evaluator.evaluate_problem, pd.NA)
        refused(InvalidInputError, evaluator.save_to_disk, None)
    refused(InvalidInputError, GEMMEvaluator, np.zeros((500, 500)))
    refused(InvalidOptionError, select_config, PROBLEM, None)
    refused(InvalidProblemError, select_config, None, "h100-sxm")
    endless: dict[str, Any] = {}
    endless["fp16"] = endless
    refused(ValueError, load_arch("demo-8core").with_, mac_pj=endless)
