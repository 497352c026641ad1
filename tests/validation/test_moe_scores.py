"""Scores of layers of experts: which tables are scored."""

from __future__ import annotations

from typing import Any

import pytest

from gemm_eval.errors import InvalidOptionError, UnsupportedError
from gemm_eval.validation.moe import find_layer_timings, score_layers, scores

MXFP4 = "triton-w4a16_mxfp4"


def test_tables_that_no_family_takes_are_scored_only_where_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = {timings.name for timings in find_layer_timings("h200-sxm")}
    with pytest.raises(UnsupportedError, match="fp4 weights"):
        next(score_layers(["h200-sxm"], [MXFP4]))

    monkeypatch.setattr(scores, "_lines", lambda arch, timings, seed: iter([timings.name]))
    scored: list[Any] = list(score_layers(["h200-sxm"]))
    assert len(scored) == len(set(scored))
    assert listed - set(scored) == {f"moe-aiconfigurator-0.12/{MXFP4}"}
    assert "grouped/bf16" in scored


def test_other_names_are_refused() -> None:
    with pytest.raises(InvalidOptionError, match="gpu must be one of"):
        next(score_layers(["l40s"]))
    with pytest.raises(InvalidOptionError, match=r"data must be one of .* did you mean triton-bf16"):
        next(score_layers(["h200-sxm"], ["triton-bf61"]))
