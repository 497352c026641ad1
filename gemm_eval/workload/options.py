"""`RunOptions`: how a GPU is asked to run a GEMM."""

from __future__ import annotations

from typing import Any, NamedTuple

from gemm_eval.checks import check_flag
from gemm_eval.dtypes import parse_dtype
from gemm_eval.errors import InvalidOptionError, InvalidProblemError
from gemm_eval.words import shown

__all__ = ["NOTHING_SAID", "RunOptions", "run_options"]

_MAX_WORD_CHARS = 64


class RunOptions(NamedTuple):
    """How a GPU runs a GEMM. None: nothing said, which is all that a multi-core chip takes.

    Attributes:
        library: whose kernels: ``cublas``; ``gemm-eval`` (our W4A16 kernels); ``trtllm``; ``hypothetical`` (weight-only
            kernels that nobody has written); ``auto``, as None: cublas for dense types, trtllm for block-scaled ones;
            for 4-bit weights gemm-eval where it was timed, else trtllm; for other narrow weights hypothetical.
        l2: ``cold``, as None: weights come from DRAM, A and C stay in L2 from the call before as far as they fit, as in
            a model whose layers follow each other; ``cold-all``: nothing is in L2; ``warm``: everything that fits.
        clock: ``burst``, as None: at most about 10 ms busy; ``sustained``: as long as the power limit takes to set the
            clock.
        quantize_from: type that A has before it is quantized to that of the problem, by kernels of their own before the
            GEMM: ``bf16``, ``fp16`` or ``fp32``. None: A is there already.
        correction: whether what timings showed beyond the terms of the model is added, where it was learned; None: yes.
    """

    library: str | None = None
    l2: str | None = None
    clock: str | None = None
    quantize_from: str | None = None
    correction: bool | None = None

    def over(self, others: RunOptions) -> RunOptions:
        """Return these options, and those of `others` where nothing is said."""
        if self == NOTHING_SAID:  # nearly always
            return others
        return RunOptions._make(b if a is None else a for a, b in zip(self, others, strict=True))


NOTHING_SAID = RunOptions()
"""The options of a call that names none."""


def run_options(library: Any, l2: Any, clock: Any, quantize_from: Any = None, correction: Any = None) -> RunOptions:
    """Return what a caller asks for; which words there are is known to the model (`check_options`).

    Raises:
        InvalidOptionError: something that is neither a word nor None, or no data type; a `correction` that is no bool.
    """
    if quantize_from is not None:
        try:
            quantize_from = str(parse_dtype(quantize_from, what="quantize_from"))
        except InvalidProblemError as error:
            raise InvalidOptionError(str(error)) from None
    if correction is not None:
        check_flag("correction", correction)
    asked = RunOptions(library, l2, clock, quantize_from, correction)
    for name, value in asked._asdict().items():
        if name == "correction":
            continue
        if value is not None and not (isinstance(value, str) and len(value) <= _MAX_WORD_CHARS):
            raise InvalidOptionError(f"{name} must be a word or None, got {shown(value)}")
    return asked
