"""Measured layers of mixtures of experts and their grouped GEMMs: tables, and the loads of experts that they ran."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from gemm_eval import moe
from gemm_eval.validation.exam import MeasuredTable
from gemm_eval.validation.tables import Ints
from gemm_eval.workload import GemmTypes, RowGroups

_SIZES = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
_MODEL = ["hidden_size", "inter_size", "topk", "num_experts", "gated"]


@dataclass(frozen=True, eq=False)
class ExpertTable(MeasuredTable, ABC):
    """Base of the tables of layers of experts, with the shorthand of their types and who measured."""

    dtype: str
    source: str

    @property
    def types(self) -> GemmTypes:
        return GemmTypes.parse(self.dtype)

    @property
    def num_tokens(self) -> Ints:
        """Tokens of the layer, [rows]."""
        return self.column("num_tokens")

    @property
    @abstractmethod
    def mean_rows(self) -> Ints:
        """Rows of an expert in the mean, at least 1, [rows]."""

    @property
    @abstractmethod
    def models(self) -> list[str]:
        """The model of each row."""


@dataclass(frozen=True, eq=False)
class LayerTable(ExpertTable):
    """Measured layers on one rank, one a row.

    `inter_size` is of the whole model, `gated` 1 where gate and up are one GEMM of twice the columns.

    Attributes:
        framework: that ran them, and its release: ``sglang 0.5.14``.
        router_groups: of a router that chooses groups of experts first (`gemm_eval.moe.group_limited_counts`): experts
            of the layers that it ran, groups, and how many it kept; None: no router cut the loads that were drawn.
        has_lone_token_on_rank: all experts of a lone token are of the timed rank, as many as it has.
        l2: state of L2: ``warm`` or ``cold``.
        outside: terms of a layer (`LAYER_TERMS`) that its times leave out.
    """

    COLUMNS: ClassVar[tuple[str, ...]] = (*_SIZES, "distribution", "gated", "latency_us")
    KEYS: ClassVar[tuple[str, ...]] = ("gpu", "library", "dtype", "framework")

    framework: str
    router_groups: tuple[int, int, int] | None = None
    has_lone_token_on_rank: bool = False
    l2: str = "warm"
    outside: tuple[str, ...] = ()

    @classmethod
    def read_meta(cls, path: Path, meta: Mapping[str, Any]) -> dict[str, Any]:
        cut = meta.get("router_groups")
        groups = None if cut is None else (int(cut[0]), int(cut[1]), int(cut[2]))
        more: dict[str, Any] = {"l2": str(meta.get("l2", "warm")), "outside": tuple(map(str, meta.get("outside", ())))}
        more["has_lone_token_on_rank"] = bool(meta.get("has_lone_token_on_rank"))
        return {**super().read_meta(path, meta), "source": str(meta.get("source", "")), "router_groups": groups, **more}

    @property
    def mean_rows(self) -> Ints:
        return np.maximum(1, self.num_tokens * self.column("topk") // self.column("num_experts"))

    @cached_property
    def models(self) -> list[str]:
        """The model of each row: as the table has it, else by its sizes: ``hidden 2048, inter 768, 8 of 128``."""
        if "model" in self.frame:
            return self.words("model")
        return [
            f"hidden {hidden}, inter {inter}, {topk} of {experts}{'' if gated else ', not gated'}"
            for hidden, inter, topk, experts, gated in self.frame[_MODEL].itertuples(index=False, name=None)
        ]

    def layers(self, seed: int) -> tuple[list[moe.MoeLayer], Ints]:
        """Return the layers as a user asks for them, and the row of the table that each is of; a row is their mean.

        Loads that a router cut are given as counts of each expert, a layer for each draw. Of power laws draws of our
        own are made, as the measured ones were not kept: each load has a seed of its own, as otherwise all rows
        would share the luck of a few draws.
        """
        layers: list[moe.MoeLayer] = []
        row_of: list[int] = []
        columns = ["hidden_size", "inter_size", "moe_tp_size", "gated", *_LOAD]
        seed_of: dict[tuple[Any, ...], int] = {}
        counts_of: dict[tuple[Any, ...], list[moe.ExpertCounts]] = {}
        for row, (hidden, inter, tp, gated, *load) in enumerate(self.frame[columns].itertuples(index=False, name=None)):
            key = tuple(load)
            num_tokens, num_experts, topk, ep, distribution = load
            layer = moe.MoeLayer(
                num_tokens, hidden, inter, num_experts, topk, tp, ep, distribution, gated=bool(gated), dtype=self.dtype,
                seed=seed_of.setdefault(key, seed * _MOST_LOADS + len(seed_of)),
                num_expert_groups=_EXPERT_GROUPS.get((hidden, num_experts), 1),
            )  # fmt: skip
            of_row = [layer]
            if self.has_lone_token_on_rank and num_tokens == 1:
                counts = moe.ExpertCounts((1,) * topk + (0,) * (num_experts - topk))
                of_row = [layer.with_(distribution=counts, rank=0)]
            elif self.router_groups is not None and self.router_groups[0] == num_experts:
                if key not in counts_of:
                    counts_of[key] = _routed_counts(layer, self.router_groups)
                of_row = [layer.with_(distribution=counts, rank=0) for counts in counts_of[key]]
            layers += of_row
            row_of += [row] * len(of_row)
        return layers, np.array(row_of, np.int64)


_MOST_LOADS = 100_000  # of a table, so that no two of its seeds are the same
_LOAD = ("num_tokens", "num_experts", "topk", "moe_ep_size", "distribution")
_EXPERT_GROUPS = {(7168, 256): 8}  # of DeepSeek-V3, the one model of the tables whose router chooses groups first


def _routed_counts(layer: moe.MoeLayer, router_groups: tuple[int, int, int]) -> list[moe.ExpertCounts]:
    """Return the tokens of each expert that a router of groups makes of each draw, those of rank 0 first."""
    if str(layer.distribution) == "balanced":
        draws: list[Ints | None] = [None]
    else:
        sizes = moe.Routed(layer.num_tokens, layer.num_experts, layer.topk, layer.ep, layer.num_draws)
        drawn = moe.parse_distribution(layer.distribution).draw(sizes, np.random.default_rng(layer.seed))
        draws = list(moe.most_loaded_rank_first(drawn, layer.ep))
    routed = (moe.group_limited_counts(counts, layer.num_tokens, layer.topk, router_groups) for counts in draws)
    return [moe.ExpertCounts(tuple(counts.tolist())) for counts in routed]


@dataclass(frozen=True, eq=False)
class GroupedTable(ExpertTable):
    """Measured grouped GEMMs of layers' experts, one a row, with the rows of every group."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("K", "N", "row_groups", "model", "num_tokens", "latency_us")
    KEYS: ClassVar[tuple[str, ...]] = ("what", "dtypes")

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a table without the small layouts that show fixed costs; see `MeasuredTable.read`."""
        table = super().read(path)
        return table.select((table.frame["model"] != _NO_MODEL).to_numpy(bool))

    @classmethod
    def read_meta(cls, path: Path, meta: Mapping[str, Any]) -> dict[str, Any]:
        gpu, dtype, source = path.parent.parent.name, str(meta["dtypes"][0]), str(meta["what"])
        return {"gpu": gpu, "library": _RUNNER, "dtype": dtype, "source": source}

    @property
    def mean_rows(self) -> Ints:
        return np.array([max(1, sum(groups) // len(groups)) for groups in self.row_groups], np.int64)

    @property
    def models(self) -> list[str]:
        return self.words("model")

    @cached_property
    def row_groups(self) -> list[RowGroups]:
        """Rows of each group, of each row of the table."""
        return [tuple(map(int, text.split())) for text in self.words("row_groups")]


_RUNNER = "torch"  # whose grouped GEMM `gemm-eval measure --kernel grouped` times
_NO_MODEL = "none"
