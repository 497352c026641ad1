"""Words of error messages, and checks of arguments: bounded, on one line, with what was meant."""

from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest

from gemm_eval import (
    ArchNotFoundError,
    ArchValidationError,
    InvalidOptionError,
    InvalidProblemError,
    ModelConfigError,
    load_arch,
    load_model,
)
from gemm_eval.dtypes import parse_dtype, parse_scheme
from gemm_eval.sweep import Space
from gemm_eval.words import (
    as_integer,
    check_flag,
    check_word,
    did_you_mean,
    one_line,
    plain_integer,
    plain_number,
    shown,
)


class _Torch:
    def __repr__(self) -> str:
        return "torch.bfloat16"


def test_whatever_is_shown_is_short_and_on_one_line() -> None:
    loop: list[Any] = []
    loop.append(loop)
    for value in (
        10**5000, loop,
        [10**5000], {"a": -(10**5000)}, "x" * 10**6, b"x" * 10**6, "\x1b[2J\r\n\u202e\ud800", [[[[[]]]]],
        np.zeros((1000, 1000)), np.ma.masked, pd.DataFrame({"a": range(1000)}), pd.NA, list(range(10**5)), object,
    ):  # fmt: skip
        text = shown(value)
        assert len(text) <= 80
        assert text.isprintable()
    assert shown("fp16") == "'fp16'"
    assert shown(10**5000) == "<int of 16,610 bits>"
    assert one_line("a\n b\t\x07", 10) == "a b \\x07"


def test_what_was_meant() -> None:
    names = ("a100-sxm-40gb", "a100-sxm-80gb", "h100-sxm", "l4", "l40s", "t4")
    for word, near in (
        ("a100", ", did you mean a100-sxm-40gb or a100-sxm-80gb?"), ("H100_SXM", ", did you mean h100-sxm?"),
        ("l40", ", did you mean l40s?"), ("tesla t4", ", did you mean t4?"), ("l40s-pcie", ", did you mean l40s?"),
        ("a100 80gb", ", did you mean a100-sxm-80gb?"), ("l4x", ", did you mean l4?"),
        ("nvidia-h100-sxm", ", did you mean h100-sxm?"), ("80gb", ", did you mean a100-sxm-80gb?"),
        ("h100-smx", ", did you mean h100-sxm?"), ("tpu", ""), ("", ""), ("---", ""), ("a" * 10**6, ""), (None, ""),
        (np.array(["h100-sxm"]), ""),
    ):  # fmt: skip
        assert did_you_mean(word, names) == near, word


def test_every_name_error_says_what_was_meant() -> None:
    chip = load_arch("demo-8core")
    for call, kind, words in (
        (lambda: load_arch("a100"), ArchNotFoundError, "did you mean a100-pcie-40gb or a100-pcie-80gb or a100-sxm-"),
        (lambda: load_model("llama3-8B"), ModelConfigError, "did you mean llama-3-8b?"),
        (lambda: parse_dtype("float"), InvalidProblemError, "got 'float', did you mean fp32?"),
        (lambda: parse_dtype(_Torch()), InvalidProblemError, "got torch.bfloat16, did you mean bf16?"),
        (lambda: parse_scheme("W4 A16"), InvalidProblemError, "did you mean w4a16?"),
        (lambda: chip.with_(num_coress=3), ArchValidationError, "num_coress is not a field, did you mean num_cores?"),
        (lambda: Space("demo-8core", {"sram": [1]}), InvalidOptionError, "did you mean sram_bytes"),
    ):
        with pytest.raises(kind) as caught:
            call()
        assert words in str(caught.value)


def test_integers_are_integers() -> None:
    for value in (64, np.int64(64), np.uint8(64), np.array(64)):
        assert plain_integer(value) == 64
    for value in (True, np.True_, 64.0, "64", None, pd.NA, np.ma.masked, np.ma.array(64, mask=True), np.array([64]),
                  np.array([1, 2]), np.float32(64), np.timedelta64(64, "s"), [64]):  # fmt: skip
        assert plain_integer(value) is None, value
    assert as_integer("k", np.int32(3), 1, 10) == 3
    for value in (0, 11, 10**5000, None, np.array([1, 2])):
        with pytest.raises(InvalidOptionError, match=r"^k must be an integer in 1\.\.10, got "):
            as_integer("k", value, 1, 10)
    with pytest.raises(InvalidOptionError, match=r"in 1\.\.2\*\*40, got 0"):
        as_integer("k", 0, 1, 1 << 40)


def test_numbers_are_finite_numbers() -> None:
    for value in (2, 2.0, np.int8(2), np.float32(2), np.float64(2), Fraction(2)):
        assert plain_number(value) == 2.0
    for value in (True, np.True_, "2", None, pd.NA, np.ma.masked, np.timedelta64(2, "s"), 2j, 10**400, float("nan"),
                  -np.inf):  # fmt: skip
        assert plain_number(value) is None, value


def test_words_and_flags_are_compared_with_nothing_else() -> None:
    check_word("phase", "decode", ("prefill", "decode"))
    check_flag("is_gated", True)
    for value in (np.array(["decode", "decode"]), pd.NA, None, [], "decod"):
        with pytest.raises(InvalidOptionError, match="phase must be one of prefill, decode, got"):
            check_word("phase", value, ("prefill", "decode"))
        with pytest.raises(InvalidOptionError, match="is_gated must be True or False, got"):
            check_flag("is_gated", value)
