"""Numbers as a spec's YAML has them: with their kind and where they come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemm_eval.arch import ProvenanceKind

__all__ = ["Entry", "place_fitted", "value"]

Entry = dict[str, Any]


def value(number: float, kind: str, source: str) -> Entry:
    """Return a number with its kind, of `ProvenanceKind`, and its source."""
    return {"value": number, "kind": str(ProvenanceKind(kind)), "source": source}


def place_fitted(body: dict[str, Any], fitted: Mapping[str, float], source: str) -> None:
    """Put fitted numbers in their places, such as ``rules.changes.pack_gb_per_s``; all places are there."""
    for path, number in fitted.items():
        *tables, name = path.split(".")
        table = body
        for key in tables:
            table = table[key]
        table[name] = value(number, ProvenanceKind.FITTED, source)
