"""What templates say of how far timings of the same GEMMs are from one another."""

from __future__ import annotations

import pandas as pd

from tools.figures.documents import ROOT

_H200 = ROOT / "arch" / "measured" / "h200-sxm"
_LAYOUT = ["model", "gemm", "num_tokens", "num_experts", "topk", "tp", "ep", "distribution", "seed"]


def both_timed() -> dict[str, float]:
    """GEMMs of fp16 that AIConfigurator 0.4 and we timed: how many, and how far theirs are from ours.

    Returns:
        num: of GEMMs.
        few, many: median ratio less 1, up to 64 rows and above.
        median, p90: of its size, of all.
    """
    ours = pd.read_parquet(_H200 / "cublas" / "fp16.parquet").query("G == 1")
    theirs = pd.read_csv(_H200 / "aiconfigurator" / "float16.csv")
    both = ours.merge(theirs, on=["M", "K", "N"], suffixes=("", "_theirs"))
    off = both["latency_us_theirs"] / both["latency_us"] - 1.0
    is_few = both["M"] <= 64
    return {
        "num": len(both), "few": off[is_few].median(), "many": off[~is_few].median(),
        "median": float(off.abs().median()), "p90": float(off.abs().quantile(0.9)),
    }  # fmt: skip


def repeated_layouts() -> dict[str, float]:
    """Grouped GEMMs of an H200 that were timed twice within minutes: how many, and how far apart they are."""
    rows = pd.read_parquet(_H200 / "grouped" / "bf16-repeat.parquet")
    first, second = (rows[rows["take"] == take].set_index(_LAYOUT)["latency_us"] for take in (1, 2))
    apart = (second / first - 1.0).abs()
    return {"num": len(apart), "median": apart.median(), "p90": apart.quantile(0.9), "most": apart.max()}
