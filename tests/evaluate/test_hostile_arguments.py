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
    kernels,
    load_arch,
    load_model,
    prewarm_for_transformer,
    select_config,
    transformer_gemms,
)
from gemm_eval.arch import GpuSpec
from gemm_eval.dtypes import DtypeScheme
from gemm_eval.mapping import KernelConfig

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
        for evaluator in ("demo-8core", "h100-sxm"):
            refused(InvalidOptionError, GEMMEvaluator, evaluator, plan=word)
        refused(InvalidOptionError, CHIP.evaluate_many, [(1, 8, 8, 8)], errors=word)
        refused(InvalidOptionError, CHIP.top, PROBLEM, distinct=word)
        refused(InvalidOptionError, transformer_gemms, load_model("llama-3-8b"), phase=word, batch_size=1, seq_len=1)


def test_models() -> None:
    given = {"phase": "decode", "batch_size": 1, "seq_len": 8}
    model = load_model("mixtral-8x7b")
    for name in ("quantize_lm_head", "quantize_router", "absorb_mla"):
        refused(InvalidOptionError, transformer_gemms, model, **{**given, name: TWO})
    for imbalance in (10**400, "1.5", np.ma.masked, pd.NA, float("nan")):
        refused(InvalidOptionError, transformer_gemms, model, **given, expert_imbalance=imbalance)
    refused(InvalidOptionError, transformer_gemms, "llama-3-8b", **given)
    refused(InvalidProblemError, transformer_gemms, model, **given, dtype=DtypeScheme("fp", "int4", "fp16", 128))  # type: ignore[arg-type]
    text = refused(InvalidOptionError, prewarm_for_transformer, CHIP, 4096, pd.NA, 1, 8)
    assert text == "intermediate_size must be an integer in 1..2**40, got <NA>"
    text = refused(InvalidOptionError, prewarm_for_transformer, CHIP, 4096, 1 << 30, 1, 8)
    assert "\n" not in text


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


def test_kernels_on_the_host() -> None:
    weights = np.ones((64, 64), np.float32)
    packed = kernels.pack_w4(weights)
    words, zeros, scales = np.zeros((64, 8), np.int32), np.zeros((1, 8), np.int32), np.ones((1, 64))
    refused(InvalidProblemError, kernels.pack_w4, np.ma.array(weights, mask=weights > 0))
    for group_size in (np.array([32, 64]), 64.0, pd.NA):
        refused(InvalidOptionError, kernels.pack_w4, weights, group_size)
        refused(InvalidOptionError, kernels.from_awq, words, zeros, scales, group_size)
    refused(InvalidProblemError, kernels.from_awq, words[:0], zeros[:0], scales[:0], None)
    refused(InvalidProblemError, kernels.from_awq, words, zeros, np.float32(1), None)
    refused(InvalidOptionError, kernels.from_gptq, words, zeros, scales, version=TWO)
    refused(InvalidProblemError, kernels.dequantize, None)
    refused(InvalidProblemError, kernels.dequantize, packed, {"a": 1})
    refused(InvalidProblemError, kernels.workspace_bytes, 1, None)
    refused(InvalidOptionError, kernels.workspace_bytes, 1, packed, TWO)
    refused(InvalidMappingError, kernels.workspace_bytes, 1, packed, KernelConfig(*([[]] * 13)), "h100-sxm")  # type: ignore[arg-type]
    limits = kernels.limits_of_spec(load_arch("h100-sxm", GpuSpec))
    for sizes in ((1, 64, 64), kernels.Sizes(1, 10**400, 64), kernels.Sizes(1, pd.NA, 64)):
        refused(InvalidProblemError, lambda sizes=sizes: next(kernels.legal_configs(sizes, limits)))
    refused(InvalidOptionError, kernels.limits_of_spec, None)
