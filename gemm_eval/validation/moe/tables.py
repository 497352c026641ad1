"""Measured layers of mixtures of experts: reading their tables, and the loads of experts that they ran.

Committed tables lie in ``arch/measured/<gpu>/moe-<source>/<library>-<dtype>``. A table has the columns `COLUMNS`; one
row is one layer on one rank, and what its time covers stands in the meta file beside it: gpu, library (whose kernels
run), dtype, framework (name and release), and, for the reader, source, license and protocol.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from gemm_eval.arch import data_root
from gemm_eval.errors import InvalidInputError
from gemm_eval.moe import ExpertCounts, MoeLayer, group_limited_counts, most_loaded_rank_first, parse_distribution
from gemm_eval.validation.tables import meta_of
from gemm_eval.validation.timings import Floats, Ints, Mask
from gemm_eval.workload import GemmTypes, RowGroups

__all__ = [
    "COLUMNS",
    "GroupedTimings",
    "LayerTimings",
    "list_grouped_timings",
    "list_layer_timings",
    "read_grouped_timings",
    "read_layer_timings",
]

_SIZES = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
COLUMNS = (*_SIZES, "distribution", "gated", "latency_us")
"""Of a table; `inter_size` is of the whole model, `gated` 1 where gate and up are one GEMM of twice the columns."""

_MODEL = ["hidden_size", "inter_size", "topk", "num_experts", "gated"]


@dataclass(frozen=True, eq=False)
class LayerTimings:
    """Measured layers, one a row.

    Attributes:
        frame: columns `COLUMNS`, index 0, 1, ...
        name: ``moe-aiconfigurator-0.12/triton-bf16``.
        gpu: arch name.
        library: whose kernels ran.
        dtype: shorthand of the types.
        framework: that ran them, and its release: ``sglang 0.5.14``.
        source: who measured.
        router_groups: of a router that chooses groups of experts first (`gemm_eval.moe.group_limited_counts`): experts
            of the layers that it ran, groups, and how many it kept; None: no router cut the loads that were drawn.
    """

    frame: pd.DataFrame
    name: str
    gpu: str
    library: str
    dtype: str
    framework: str
    source: str
    router_groups: tuple[int, int, int] | None = None

    def __len__(self) -> int:
        return len(self.frame)

    def column(self, name: str) -> Ints:
        """Return a column of integers."""
        return self.frame[name].to_numpy(np.int64)

    @property
    def types(self) -> GemmTypes:
        """The types of both GEMMs."""
        return GemmTypes.parse(self.dtype)

    @property
    def num_tokens(self) -> Ints:
        """Tokens of the layer, [rows]."""
        return self.column("num_tokens")

    @property
    def inter(self) -> Ints:
        """Columns of gate or up on the rank, [rows]."""
        return self.column("inter_size") // self.column("moe_tp_size")

    @property
    def num_local_experts(self) -> Ints:
        """Experts of the rank, [rows]."""
        return self.column("num_experts") // self.column("moe_ep_size")

    @property
    def mean_rows(self) -> Ints:
        """Rows of an expert in the mean, at least 1, [rows]."""
        rows: Ints = np.maximum(1, self.num_tokens * self.column("topk") // self.column("num_experts"))
        return rows

    @property
    def measured_us(self) -> Floats:
        """Time of the layer, [rows], in microseconds."""
        return cast("Floats", self.frame["latency_us"].to_numpy(np.float64))

    @cached_property
    def models(self) -> list[str]:
        """The model of each row, by its sizes: ``hidden 2048, inter 768, 8 of 128``."""
        names = {
            sizes: f"hidden {sizes[0]}, inter {sizes[1]}, {sizes[2]} of {sizes[3]}"
            + ("" if sizes[4] else ", not gated")
            for sizes in set(self.frame[_MODEL].itertuples(index=False, name=None))
        }
        return [names[sizes] for sizes in self.frame[_MODEL].itertuples(index=False, name=None)]

    def select(self, mask: Mask) -> LayerTimings:
        """Return the rows where `mask` is true."""
        return replace(self, frame=self.frame.loc[mask].reset_index(drop=True))

    def layers(self, seed: int) -> tuple[list[MoeLayer], Ints]:
        """Return the layers as a user asks for them, and the row of the table that each is of; a row is their mean.

        Loads that a router cut are given as counts of each expert, a layer for each draw. Of power laws draws of our
        own are made, as those that were measured nobody kept: each load has a seed of its own, as otherwise all rows
        would share the luck of a few draws.
        """
        layers: list[MoeLayer] = []
        row_of: list[int] = []
        columns = ["hidden_size", "inter_size", "moe_tp_size", "gated", *_LOAD]
        seed_of: dict[tuple[Any, ...], int] = {}
        counts_of: dict[tuple[Any, ...], list[ExpertCounts]] = {}
        for row, (hidden, inter, tp, gated, *load) in enumerate(self.frame[columns].itertuples(index=False, name=None)):
            key = tuple(load)
            num_tokens, num_experts, topk, ep, distribution = load
            layer = MoeLayer(
                num_tokens, hidden, inter, num_experts, topk, tp, ep, distribution, gated=bool(gated), dtype=self.dtype,
                seed=seed_of.setdefault(key, seed * _MOST_LOADS + len(seed_of)),
                num_expert_groups=_EXPERT_GROUPS.get((hidden, num_experts), 1),
            )  # fmt: skip
            if self.router_groups is None or self.router_groups[0] != num_experts:
                layers.append(layer)
                row_of.append(row)
                continue
            if key not in counts_of:
                counts_of[key] = _routed_counts(layer, self.router_groups)
            layers += [layer.with_(distribution=counts, rank=0) for counts in counts_of[key]]
            row_of += [row] * len(counts_of[key])
        return layers, np.array(row_of, np.int64)


_MOST_LOADS = 100_000  # of a table, so that no two of its seeds are the same
_LOAD = ("num_tokens", "num_experts", "topk", "moe_ep_size", "distribution")
_EXPERT_GROUPS = {(7168, 256): 8}  # of DeepSeek-V3, the one model of the tables whose router chooses groups first


def _routed_counts(layer: MoeLayer, router_groups: tuple[int, int, int]) -> list[ExpertCounts]:
    """Return the tokens of each expert that a router of groups makes of each draw, those of rank 0 first."""
    if str(layer.distribution) == "balanced":
        draws: list[Ints | None] = [None]
    else:
        drawn = parse_distribution(layer.distribution).draw(
            layer.num_tokens, layer.num_experts, layer.topk, num_ranks=layer.ep, num_draws=layer.num_draws,
            rng=np.random.default_rng(layer.seed),
        )  # fmt: skip
        draws = list(most_loaded_rank_first(drawn, layer.ep))
    routed = (group_limited_counts(counts, layer.num_tokens, layer.topk, router_groups) for counts in draws)
    return [ExpertCounts(tuple(counts.tolist())) for counts in routed]


@dataclass(frozen=True, eq=False)
class GroupedTimings:
    """Measured grouped GEMMs of layers' experts, one a row, with the rows of every group.

    Attributes:
        frame: columns K, N, row_groups (rows of each group, with spaces between), model, num_tokens and latency_us.
        name, gpu, library, dtype, source: as of `LayerTimings`.
    """

    frame: pd.DataFrame
    name: str
    gpu: str
    library: str
    dtype: str
    source: str

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def types(self) -> GemmTypes:
        """The types of the GEMMs."""
        return GemmTypes.parse(self.dtype)

    @property
    def num_tokens(self) -> Ints:
        """Tokens of the layer, [rows]."""
        return self.frame["num_tokens"].to_numpy(np.int64)

    @property
    def mean_rows(self) -> Ints:
        """Rows of a group in the mean, at least 1, [rows]."""
        return np.array([max(1, sum(groups) // len(groups)) for groups in self.row_groups], np.int64)

    @property
    def measured_us(self) -> Floats:
        """Time of the GEMM, [rows], in microseconds."""
        return cast("Floats", self.frame["latency_us"].to_numpy(np.float64))

    @property
    def models(self) -> list[str]:
        """The model of each row."""
        return [str(name) for name in self.frame["model"]]

    @cached_property
    def row_groups(self) -> list[RowGroups]:
        """Rows of each group, of each row of the table."""
        return [tuple(map(int, str(text).split())) for text in self.frame["row_groups"]]


def read_grouped_timings(path: Path) -> GroupedTimings:
    """Read a table of grouped GEMMs of models and the meta file beside it.

    Raises:
        InvalidInputError: a column is missing.
    """
    frame, meta = pd.read_parquet(path), meta_of(path)
    missing = [name for name in ("K", "N", "row_groups", "model", "num_tokens", "latency_us") if name not in frame]
    if missing:
        raise InvalidInputError(f"{path}: columns are missing: {', '.join(missing)}")
    of_models = frame[frame["model"] != _NO_MODEL].reset_index(drop=True)
    gpu, dtype = path.parent.parent.name, str(meta["dtypes"][0])
    return GroupedTimings(of_models, f"{path.parent.name}/{path.stem}", gpu, _RUNNER, dtype, str(meta["what"]))


_RUNNER = "torch"  # whose grouped GEMM `gemm-eval measure --kernel grouped` times
_NO_MODEL = "none"  # of small layouts that show fixed costs


def list_grouped_timings(gpu: str) -> list[GroupedTimings]:
    """Read all measured grouped GEMMs of a GPU but for repeats, by name."""
    folder = data_root() / "measured" / gpu / "grouped"
    return [read_grouped_timings(path) for path in sorted(folder.glob("*.parquet")) if "repeat" not in path.stem]


def read_layer_timings(path: Path) -> LayerTimings:
    """Read a table and the meta file beside it.

    Raises:
        InvalidInputError: a column or a key is missing.
    """
    frame, meta = pd.read_parquet(path), meta_of(path)
    missing = [name for name in COLUMNS if name not in frame.columns]
    missing += [key for key in ("gpu", "library", "dtype", "framework") if key not in meta]
    if missing:
        raise InvalidInputError(f"{path}: columns or keys of the meta file are missing: {', '.join(missing)}")
    keys = ("gpu", "library", "dtype", "framework", "source")
    words = {key: str(meta.get(key, "")) for key in keys}
    cut = meta.get("router_groups")
    groups = None if cut is None else (int(cut[0]), int(cut[1]), int(cut[2]))
    return LayerTimings(frame, f"{path.parent.name}/{path.stem}", **words, router_groups=groups)


def list_layer_timings(gpu: str) -> list[LayerTimings]:
    """Read all measured layers that come with the library for a GPU, by name."""
    folder = data_root() / "measured" / gpu
    return [read_layer_timings(path) for path in sorted(folder.glob("moe-*/*.parquet"))]
