"""Mappings of fused attention onto a multi-core chip: partition, tile, loop order, and how rows are dealt out."""

from __future__ import annotations

import enum
from typing import NamedTuple

__all__ = ["AttentionMapping", "AttentionOrder", "AttentionPartition", "AttentionTile"]


class AttentionOrder(enum.IntEnum):
    """What stays in SRAM while the other streams past it: the outer of the two tile loops of a core."""

    QK = 0
    KQ = 1


class AttentionPartition(NamedTuple):
    """Split over cores: P_U by units (KV heads of sequences), P_Q by their rows, P_KV by their keys."""

    P_U: int
    P_Q: int
    P_KV: int


class AttentionTile(NamedTuple):
    """Rows of queries, and keys with their values, that a core works on at a time."""

    tile_q: int
    tile_kv: int


class AttentionMapping(NamedTuple):
    """All choices together; `is_folded`: a core has a strip of early rows and one of late rows."""

    partition: AttentionPartition
    tile: AttentionTile
    loop_order: AttentionOrder
    is_folded: bool = False

    def to_dict(self) -> dict[str, int | str | bool]:
        """Return plain values, ready for JSON."""
        parts = self.partition._asdict() | self.tile._asdict()
        return {**parts, "loop_order": self.loop_order.name.lower(), "is_folded": self.is_folded}

    def __str__(self) -> str:
        p, t = self.partition, self.tile
        folded = " folded" if self.is_folded else ""
        parts = f"U{p.P_U} Q{p.P_Q}{folded} KV{p.P_KV}"
        return f"{parts}, {t.tile_q}x{t.tile_kv} rows x keys, {self.loop_order.name.lower()}"
