"""`LibraryRules`: what the library of a multi-core chip does with a GEMM, where the chip could do better."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from gemm_eval.arch.common import Dim, Fields, Frozen, Table, Text, frozen

OperandName = Literal["A", "B", "C"]
_Loop = Literal["M", "N", "K"]
_Order = Literal["mnk", "mkn", "nmk", "nkm", "kmn", "knm"]
_Parts = Annotated[tuple[Dim, Dim, Dim, Dim], Field(strict=False)]
UNCHANGEABLE = {
    *("name", "type", "title", "notes", "sources", "provenance", "published", "calibration"),
    *("num_cores", "timing", "rules", "by_dtype"),
}
"""Fields of a spec that are the same for every type, and under its library."""

_Splits = Annotated[tuple[Literal["G", "M", "N", "K"], ...], Field(strict=False)]
_Tiles = Annotated[tuple[Dim, ...], Field(strict=False)]


class LibraryPath(Frozen):
    """Code of a library for GEMMs of some sizes: all limits hold. Sizes are those of one batch element."""

    max_rows: Dim | None = Field(default=None, description="most rows M, of a grouped GEMM of its largest group")
    max_columns: Dim | None = Field(default=None, description="most columns N")
    max_reduction: Dim | None = Field(default=None, description="longest reduction K")
    max_macs: Annotated[int, Field(ge=1, le=1 << 60)] | None = Field(default=None, description="most M*K*N")
    max_bytes: Annotated[int, Field(ge=1, le=1 << 60)] | None = Field(
        default=None, description="most bytes of A, B and C together, without scales"
    )
    changes: Fields = Field(default={}, description="fields of the spec that are otherwise on this path")
    splits: _Splits | None = Field(
        default=None, description="dimensions that it cuts over cores, none: one core; default: as the rules say"
    )
    tile_m: _Tiles | None = Field(
        default=None, description="tile sizes along M that it has, none: any; default: as the rules say"
    )
    tile_n: _Tiles | None = Field(default=None, description="the same along N")
    tile_k: _Tiles | None = Field(default=None, description="the same along K")


class LibraryRules(Frozen):
    """Rules of a chip's library: a restricted search on its own numbers; MODEL.md, "Rules of a library".

    Everything is optional; absent, the library does what the whole search would.
    """

    title: Text = Field(default="", description="which library, of when")
    is_default: bool = Field(
        default=True, description="whether answers are the library's unless policy='best' is asked"
    )
    changes: Fields = Field(
        default={},
        description="fields of the spec that are otherwise under this library: what it adds, or does not use",
    )
    believes: Fields = Field(
        default={}, description="fields of the spec that it reckons with when it chooses, though they are otherwise"
    )
    paths: Table[str, LibraryPath] = Field(
        default={}, description="by name: code for some sizes; of a GEMM the first one counts whose limits hold"
    )
    splits: _Splits = Field(default=("G", "M", "N", "K"), description="dimensions that it cuts over cores")
    partitions: Annotated[tuple[_Parts, ...], Field(strict=False)] = Field(
        default=(), description="(P_G, P_M, P_N, P_K) that it has; default: any"
    )
    loop_orders: Annotated[tuple[_Order, ...], Field(strict=False)] = Field(
        default=(), description="loop orders that it has; default: any"
    )
    tile_m: _Tiles = Field(default=(), description="tile sizes along M that it has, cut to the block; default: any")
    tile_n: _Tiles = Field(default=(), description="the same along N")
    tile_k: _Tiles = Field(default=(), description="the same along K")
    whole: Annotated[tuple[_Loop, ...], Field(strict=False)] = Field(
        default=(), description="dimensions that a core does not cut into tiles"
    )
    loads_once: Annotated[tuple[OperandName, ...], Field(strict=False)] = Field(
        default=(), description="operands that a core never loads again (C: never spills)"
    )
    max_tile_bytes: Table[OperandName, Annotated[int, Field(ge=1, le=1 << 50)]] = Field(
        default={}, description="largest tile of an operand as stored, without padding: a buffer of its own"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if "C" in self.max_tile_bytes:
            raise ValueError("rules.max_tile_bytes: A and B have buffers of their own, C has none")
        return self

    def on_path(self, name: str) -> LibraryRules:
        """Return the rules as they are on one of the paths."""
        path = self.paths[name]
        own = {field: getattr(path, field) for field in ("splits", "tile_m", "tile_n", "tile_k")}
        fields = {field: getattr(self, field) for field in self.model_fields_set}
        fields |= {field: value for field, value in own.items() if value is not None}
        return LibraryRules(**fields | {"paths": {}, "changes": {**self.changes, **path.changes}})

    def map_changes(self, change: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> LibraryRules:
        """Return the rules with other `changes`: what `change` makes of their own, and of those of each path."""
        paths = {
            name: path.model_copy(update={"changes": frozen(change(path.changes))}) for name, path in self.paths.items()
        }
        return self.model_copy(update={"changes": frozen(change(self.changes)), "paths": frozen(paths)})

    @property
    def changes_chip(self) -> bool:
        """True if the library, on any path, uses the chip otherwise than its spec says."""
        return bool(self.changes) or any(path.changes for path in self.paths.values())

    @property
    def restricts_partitions(self) -> bool:
        """True if some partitions are excluded."""
        return bool(self.partitions) or set(self.splits) != set("GMNK")

    @property
    def restricts_tiles(self) -> bool:
        """True if some tiles or loop orders are excluded."""
        return bool(
            self.loop_orders or self.tile_m or self.tile_n or self.tile_k or self.whole or self.loads_once
            or self.max_tile_bytes
        )  # fmt: skip
