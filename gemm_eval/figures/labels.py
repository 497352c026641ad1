"""Labels of axes from the names of columns, and of values."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["axis_label", "label_of"]

_UNITS = {
    "us": "us", "ms": "ms", "s": "s", "cycles": "cycles", "bytes": "bytes", "kib": "KiB", "mib": "MiB", "bits": "bits",
    "elems": "elements", "flop": "FLOP", "tflop": "TFLOP", "gb": "GB", "hz": "Hz", "ghz": "GHz", "pj": "pJ",
    "mj": "mJ", "j": "J", "w": "W", "mm2": "mm$^2$", "frac": "fraction", "percent": "%", "usd": "USD",
    "tokens": "tokens", "token": "token", "mac": "MAC", "byte": "byte", "cycle": "cycle",
}  # fmt: skip
_SPELLED = {
    "dram": "DRAM", "sram": "SRAM", "noc": "NoC", "l2": "L2", "sm": "SM", "sms": "SMs", "cta": "CTA", "ctas": "CTAs",
    "smem": "shared memory", "tdp": "TDP", "mac": "MAC", "ttft": "TTFT", "tpot": "TPOT", "num": "number of",
}  # fmt: skip
_SHOWN_WHOLE, _SHOWN_WITH_EXPONENT = 1e3, 1e9


def axis_label(name: str) -> str:
    """Return the axis label that a column's name says: ``"latency_us"`` becomes ``"latency (us)"``.

    The unit is the name's end, with ``per`` as a fraction: ``"dram_gb_per_s"`` is ``"DRAM (GB/s)"``. A rate that names
    no quantity is a throughput: ``"tokens_per_s"`` is ``"throughput (tokens/s)"``. Names without a unit stay as they
    are, but for underscores.
    """
    words = name.split("_")
    unit = ""
    if "per" in words[1:-1]:
        place = words.index("per", 1)
        unit = "/".join(
            [_UNITS.get(words[place - 1], words[place - 1]), " ".join(_UNITS.get(w, w) for w in words[place + 1 :])]
        )
        words = words[: place - 1] or ["throughput" if words[-1] == "s" else "ratio"]
    elif len(words) > 1 and words[-1] in _UNITS:
        unit = _UNITS[words.pop()]
    quantity = " ".join(_SPELLED.get(word, word) for word in words)
    return f"{quantity} ({unit})" if unit else quantity


def label_of(value: Any) -> str:
    """Return a value as a label: integers with separators from 10,000 on, other numbers in four digits."""
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return f"{value:,}" if abs(int(value)) >= 10_000 else str(value)
    if isinstance(value, float | np.floating):
        return f"{value:,.0f}" if _SHOWN_WHOLE <= abs(float(value)) < _SHOWN_WITH_EXPONENT else f"{value:.4g}"
    return str(value)
