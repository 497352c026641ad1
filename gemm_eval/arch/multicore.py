"""`MulticoreSpec`: a chip of identical cores, each with a matrix unit ("cube"), explicit SRAM and a share of DRAM.

`LibraryRules` say what the library of a chip does with a GEMM, where the chip could do better. A calibration has
numbers that were fitted on timings: `gemm-eval calibrate multicore` writes ``arch/calibration/<chip>/multicore.yaml``,
and `load_arch` lays it over the YAML.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, ValidationError, model_validator

from gemm_eval.arch.common import (
    BaseSpec,
    Dim,
    DTypeKey,
    Fields,
    Frac,
    Frozen,
    NonNegative,
    Positive,
    Table,
    Text,
    check_rules,
    frozen,
    read_yaml,
)
from gemm_eval.arch.paths import data_root
from gemm_eval.dtypes import DType
from gemm_eval.errors import ArchValidationError
from gemm_eval.units import FLOP_PER_MAC, cycles_per_us, tflop_per_s
from gemm_eval.words import did_you_mean

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


ALL_TYPES = "*"
"""In the path of a coefficient: of every type that the matrix unit takes."""


class MulticoreErrors(Frozen):
    """Errors on a set of timings, each row by a fit on the other (N, K) pairs."""

    set: str = Field(description="which rows")
    num_rows: int = Field(description="timings of the set")
    mape_percent: float = Field(description="mean of the errors without their signs")
    median_percent: float = Field(description="median of the same")
    p90_percent: float = Field(description="nine in ten of them are below")
    bias_percent: float = Field(description="mean of the errors with their signs; above 0: predicted too slow")
    kendall_tau: float | None = Field(description="how alike the orders are; null where it is undefined")
    naive_mape_percent: float = Field(description="of the roofline of the data sheet")
    roofline_mape_percent: float = Field(description="of a roofline with three fitted constants, held out likewise")


class MulticoreCalibration(Frozen):
    """Calibration of a chip, as `gemm-eval calibrate multicore` writes it."""

    chip: str = Field(description="the preset that it is of")
    model_version: str = Field(description="version of the cost model")
    code_version: str = Field(description="version of the package")
    date: str = Field(description="when it was fitted, YYYY-MM-DD")
    data: Text = Field(description="whose timings, and where they are")
    sha256: str = Field(description="of the timings")
    folds: str = Field(description="how rows were held out for the errors")
    coefficients: Mapping[str, float] = Field(description="path in the spec -> value, in the unit of the field")
    errors: Annotated[
        tuple[MulticoreErrors, ...], Field(min_length=1, strict=False, description="held out, one for each set of rows")
    ]

    @property
    def words(self) -> str:
        """Sentence about it for a spec."""
        return f"{self.data} ({self.date})"


def calibration_file(chip: str) -> Path:
    """Return the path of a chip's calibration, if there is one."""
    return data_root() / "calibration" / chip / "multicore.yaml"


@cache
def held_out_p90_frac(chip: str) -> float | None:
    """Return the 90th percentile of a chip's held-out errors, over all rows; None: it is not calibrated."""
    path = calibration_file(chip)
    if not path.is_file():
        return None
    errors = MulticoreCalibration.model_validate(read_yaml(path)).errors
    return max(item.p90_percent for item in errors) / 100.0


def with_calibration(data: dict[str, Any], chip: str) -> dict[str, Any]:
    """Return the content of a chip's YAML with its calibration laid over it, if there is one.

    Raises:
        ArchValidationError: the calibration is malformed, or of another chip.
    """
    path = calibration_file(chip)
    if not path.is_file():
        return data
    try:
        calibration = MulticoreCalibration.model_validate(read_yaml(path))
    except ValidationError as error:
        raise ArchValidationError(f"{path}: {error}") from None
    if calibration.chip != chip:
        raise ArchValidationError(f"{path}: this is a calibration of {calibration.chip}")
    entry = {"kind": "fitted", "source": f"calibrate multicore: {calibration.words}"}
    fitted = dict.fromkeys(calibration.coefficients, entry)
    data = place_values(data, calibration.coefficients)
    data["provenance"] = data.get("provenance", {}) | fitted
    return data | {"calibration": calibration.words}


def place_values(data: Mapping[str, Any], coefficients: Mapping[str, float]) -> dict[str, Any]:
    """Return data of a spec with other values at these paths, such as ``launch_us`` or ``rules.changes.launch_us``."""
    placed: dict[str, Any] = copy.deepcopy(_plain(data))
    for path, value in coefficients.items():
        *tables, name = path.split(".")
        table = placed
        for key in tables:
            table = table.setdefault(key, {})
        names = list(placed["cube_steps_per_cycle"]) if name == ALL_TYPES else [name]
        table.update(dict.fromkeys(names, value))
    return placed


def _plain(value: Any) -> Any:
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, Mapping) else value


MAX_CORES = 1 << 20
"""Most cores of a chip."""


class ChipLink(Frozen):
    """The link of a multi-core chip to the others beside it: rates of its spec, as no such link was timed."""

    topology: Literal["switch", "ring"] = Field(
        description="switch: any two chips at full rate, at once; ring: each with two neighbours, half the rate to each"
    )
    gb_per_s: Positive = Field(description="out of a chip, one direction, all its links together")
    latency_us: Positive = Field(description="from a chip to the next, of a few bytes, with the software on the way")
    num_chips: Annotated[int, Field(ge=2, le=1024)] = Field(description="chips that it joins, at most")


_Buffers = Annotated[int, Field(ge=1, le=2)]  # not Literal[1, 2], which takes True


class MulticoreSpec(BaseSpec):
    """A multi-core accelerator with explicitly managed SRAM; the terms are defined in models/multicore/MODEL.md.

    Load one with `load_arch`, or build it in memory: ``MulticoreSpec(name="mine", num_cores=8, ...)``.
    `with_` gives a changed copy for sweeps. Every field's unit is its suffix.

    Raises:
        pydantic.ValidationError: on direct construction; `load_arch` and `with_` raise `ArchValidationError`.
    """

    _shown: ClassVar = ("num_cores", "frequency_ghz", "cube_m", "cube_k", "cube_n", "sram_bytes", "dram_gb_per_s")

    type: Literal["multicore"] = Field(default="multicore", description="the kind of chip")
    calibration: Text = Field(default="", description="timings that its fitted numbers come from; empty: none")
    setting: Text = Field(
        default="", description="how answers take the chip to be used, where others use it otherwise; `explain` says it"
    )
    is_coarse: bool = Field(default=False, description="the chip is not really of this kind; expect coarse answers")

    # cores and matrix unit
    num_cores: int = Field(ge=1, le=MAX_CORES, description="cores, all alike")
    frequency_ghz: Positive = Field(description="clock of matrix and vector units")
    cube_m: Dim = Field(description="rows of C that one matrix-unit step computes")
    cube_k: Dim = Field(description="reduction length of one step, for types without an entry in cube_k_by_dtype")
    cube_n: Dim = Field(description="columns of C that one step computes")
    cube_k_by_dtype: Table[DTypeKey, Dim] = Field(default={}, description="cube_k of types that pack denser")
    cube_steps_per_cycle: Table[DTypeKey, Positive] = Field(
        min_length=1, description="steps a cycle and core, by input type; a type that is missing cannot run"
    )
    fill_drain_cycles: Annotated[int, Field(ge=0, le=1 << 30)] = Field(
        default=0, description="matrix-unit cycles lost at every tile visit to fill and drain its pipeline"
    )
    weight_load_cycles: NonNegative = Field(
        default=0.0,
        description="matrix-unit cycles to load a block of cube_k x cube_n of B, which then stays while rows of A pass",
    )
    feed_bytes_per_cycle: Positive | None = Field(
        default=None, description="bytes of A and B a cycle and core that get from SRAM into the matrix unit, beside it"
    )
    load_clock_frac: Table[DTypeKey, Frac] = Field(
        default={}, description="the clock while the matrix units multiply this type, as a share of frequency_ghz"
    )
    partial_dtype: Table[DTypeKey, DTypeKey] = Field(
        default={},
        description="type in which partial sums leave a core, spilled or to be added up, by input type; default: the "
        "accumulator's",
    )
    default_dtype: DTypeKey = Field(default=DType.FP16, description="input type when a call names none")

    # SRAM
    sram_bytes: Annotated[int, Field(ge=1, le=1 << 50)] = Field(description="SRAM of one core")
    sram_usable_frac: Frac = Field(default=1.0, description="share of it that tiles may take")
    input_buffers: _Buffers = Field(default=2, description="copies of the A and B tiles; 2: double buffering")
    output_buffers: _Buffers = Field(default=1, description="copies of the C tile")
    tile_buffers: Table[OperandName, Annotated[int, Field(ge=0, le=2)]] = Field(
        default={},
        description="copies of an operand's tile in SRAM, where not input_buffers (A, B) or output_buffers (C); "
        "0: the tile has memory of its own, as accumulators may have; timing follows the other two",
    )
    lane_num: Dim = Field(default=1, description="tile rows are padded to a multiple of this")
    align_bytes: Dim = Field(default=1, description="the bytes of a tile row are padded to a multiple of this")

    resident: Annotated[tuple[OperandName, ...], Field(strict=False)] = Field(
        default=(),
        description="operands that lie in the SRAM of all cores before and after: they take their room there, and none "
        "of DRAM's bandwidth; A and B come to a core through its port, C stays where it was computed",
    )

    resident_max_frac: Frac = Field(
        default=1.0, description="most of the usable SRAM that they take: where they need more, they lie in DRAM"
    )

    # memory between SRAM and DRAM
    shared_bytes: Annotated[int, Field(ge=1, le=1 << 50)] | None = Field(
        default=None, description="on-chip memory that all cores share (L2, L3, CMEM): it keeps what is loaded again"
    )
    shared_gb_per_s: Positive | None = Field(default=None, description="its bandwidth, of the whole chip")

    # DRAM
    dram_bytes: Annotated[int, Field(ge=1, le=1 << 50)] | None = Field(
        default=None, description="DRAM of the chip; absent: whether a model fits is not checked"
    )
    dram_gb_per_s: Positive = Field(description="DRAM bandwidth of the whole chip")
    dram_write_gb_per_s: Positive | None = Field(
        default=None, description="DRAM bandwidth of the whole chip where it writes; default: dram_gb_per_s"
    )
    dram_efficiency_frac: Frac = Field(default=1.0, description="share of both that large transfers reach")
    dram_sharing: Literal["static", "fair"] = Field(
        default="static", description="static: every core owns 1/num_cores; fair: active cores share equally"
    )
    dram_core_limit_gb_per_s: Positive | None = Field(default=None, description="most that one core can draw")
    multicast_readers: Dim | None = Field(
        default=None,
        description="cores that read from DRAM for all others under multicast, each at most dram_core_limit_gb_per_s: "
        "a row or column of the grid; default: each core reads a part of what it shares",
    )

    # what a library does before the main loop
    packs: Table[OperandName, Literal["private", "shared"]] = Field(
        default={},
        description="operands that are copied before the main loop, into the order in which it reads them; private: "
        "each core copies its whole block; shared: cores that need the same block copy a part each",
    )
    pack_gb_per_s: Positive | None = Field(default=None, description="bytes of operands that one core packs, 1e9/s")
    pack_near_bytes: Annotated[int, Field(ge=1, le=1 << 50)] | None = Field(
        default=None, description="what a core packs of one operand beyond these bytes counts twice; default: nothing"
    )
    sync_us: NonNegative = Field(
        default=0.0, description="to wake the other cores and to wait for them, where more than one works"
    )

    # on-chip network
    load_sharing: Literal["private", "multicast"] = Field(
        default="private", description="multicast: cores that need the same slice of A or B read it from DRAM once"
    )
    noc_gb_per_s: Positive | None = Field(
        default=None, description="port of one core: all that it loads, stores, exchanges"
    )
    reduction: Literal["none", "dram", "noc"] = Field(
        default="dram", description="where partial C of a split K is exchanged; none: K cannot be split over cores"
    )

    # vector unit
    vector_ops_per_cycle: Positive | None = Field(default=None, description="fp32 operations a cycle and core")
    vector_is_concurrent: bool = Field(default=True, description="vector and matrix unit work at the same time")
    dequant: Literal["none", "vector", "inline"] = Field(
        default="none",
        description="how narrow weights become the input type: by the vector unit into an SRAM copy, "
        "inline on the way into the matrix unit at no cost, or not at all",
    )
    dequant_ops_per_elem: Positive | None = Field(default=None, description="vector operations for one weight")
    exp_ops_per_elem: Positive = Field(
        default=8.0,
        description="vector operations for an exponential, of fused attention's softmax; default: round to a power of "
        "two, subtract it, a polynomial of degree 5, scale by the power, on a unit without exponentials of its own",
    )

    # timing
    timing: Literal["overlap", "pipeline"] = Field(
        default="overlap",
        description="overlap: bytes and steps as a whole; pipeline: a double-buffered loop, visit by visit",
    )
    overlap_frac: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] = Field(
        default=1.0, description="overlap timing: how much of what buffers and tile visits let overlap does overlap"
    )
    launch_us: NonNegative = Field(default=0.0, description="fixed cost of a GEMM, before anything else begins")
    task_us: NonNegative = Field(
        default=0.0,
        description="to start each task of a core after its first; tiles of the same rows of a batch element are one",
    )
    launch_floor_us: NonNegative = Field(
        default=0.0, description="least time from a GEMM to the next: a queue, or a host that dispatches meanwhile"
    )

    # whole models, on one chip or several
    host_us: NonNegative = Field(
        default=0.0, description="time of the host before each step of inference, in which the chip waits"
    )
    interconnect: ChipLink | None = Field(
        default=None, description="what joins it to other chips; absent: collectives between chips are refused"
    )

    by_dtype: Table[DTypeKey, Fields] = Field(
        default={}, description="fields that are otherwise for an input type: {int4: {launch_us: 58}}"
    )
    coefficients: Annotated[tuple[str, ...], Field(strict=False)] = Field(
        default=(), description="paths of numbers that a calibration fits on timings, such as launch_us"
    )
    rules: LibraryRules | None = Field(
        default=None, description="what its library does, where that is not the best that the chip could"
    )

    # energy and area
    mac_pj: Table[DTypeKey, NonNegative] = Field(default={}, description="energy of one MAC by input type")
    sram_pj_per_byte: NonNegative | None = Field(default=None, description="energy of a byte read or written in SRAM")
    dram_pj_per_byte: NonNegative | None = Field(default=None, description="energy of a byte to or from DRAM")
    noc_pj_per_byte: NonNegative | None = Field(default=None, description="energy of a byte through a core's port")
    static_w: NonNegative = Field(default=0.0, description="power that flows whatever the chip does")
    area_mm2: Positive | None = Field(
        default=None, description="area of the chip; sweeps give FLOP/s for each mm2 of it"
    )
    tdp_w: Positive | None = Field(default=None, description="thermal design power, as published; no formula has it")

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        changes = {f"by_dtype.{dtype}": fields for dtype, fields in self.by_dtype.items()}
        if self.rules is not None:
            changes |= {"rules.changes": self.rules.changes, "rules.believes": self.rules.believes}
            changes |= {f"rules.paths.{name}.changes": path.changes for name, path in self.rules.paths.items()}
        for path, names in changes.items():
            for name in names:
                if name not in type(self).model_fields:
                    raise ValueError(f"{path}: {name} is not a field{did_you_mean(name, type(self).model_fields)}")
                if name in UNCHANGEABLE:
                    raise ValueError(f"{path}: {name} cannot be otherwise")
        self._check_types("cube_steps_per_cycle", "cube_k_by_dtype", "load_clock_frac", "partial_dtype")
        has_noc, has_vector = self.noc_gb_per_s is not None, self.vector_ops_per_cycle is not None
        is_pipeline, is_multicast = self.timing == "pipeline", self.load_sharing == "multicast"
        no_pipeline = [
            name for name in ("shared_bytes", "dram_write_gb_per_s", "resident", "feed_bytes_per_cycle")
            if is_pipeline and getattr(self, name)
        ]  # fmt: skip
        check_rules(
            ((self.shared_bytes is None) != (self.shared_gb_per_s is None),
             "shared_bytes and shared_gb_per_s go together"),
            (len(set(self.resident)) < len(self.resident),
             f"resident names an operand twice: {', '.join(self.resident)}"),
            ({"A", "B"} & set(self.resident) and not has_noc,
             "resident A or B needs noc_gb_per_s: what other cores hold of them comes through the port"),
            (bool(self.packs) != (self.pack_gb_per_s is not None), "packs and pack_gb_per_s go together"),
            ("C" in self.packs, "packs: A and B can be packed, C cannot"),
            (no_pipeline, f"timing pipeline does not know {(no_pipeline or [''])[0]}: use timing overlap"),
            (0 in (self.tile_buffers.get("A"), self.tile_buffers.get("B")),
             "tile_buffers: A and B lie in SRAM, C alone may have memory of its own"),
            (is_pipeline and self.input_buffers != 2,
             "timing pipeline needs input_buffers 2: it is a double-buffered loop"),
            (is_multicast and not has_noc, "load_sharing multicast needs noc_gb_per_s"),
            (self.multicast_readers is not None and not (is_multicast and self.dram_core_limit_gb_per_s),
             "multicast_readers needs load_sharing multicast and dram_core_limit_gb_per_s"),
            (self.reduction == "noc" and not has_noc, "reduction noc needs noc_gb_per_s"),
            (self.reduction != "none" and not has_vector,
             f"reduction {self.reduction} needs vector_ops_per_cycle for its adds (or reduction none)"),
            (self.dequant == "vector" and not (has_vector and self.dequant_ops_per_elem),
             "dequant vector needs vector_ops_per_cycle and dequant_ops_per_elem"),
        )  # fmt: skip
        return self

    def for_dtype(self, dtype: DType) -> MulticoreSpec:
        """Return the chip as it is for inputs of `dtype`."""
        return _for_dtype(self, dtype) if dtype in self.by_dtype else self

    def under_library(self) -> MulticoreSpec:
        """Return the chip as its library uses it; the chip itself where it has no rules."""
        if self.rules is None:
            return self
        return self.with_(rules=None, **self.rules.changes)

    @property
    def sram_usable_bytes(self) -> int:
        """SRAM bytes of one core that tiles may occupy."""
        return int(self.sram_bytes * self.sram_usable_frac)

    def cube_k_of(self, dtype: DType) -> int:
        """Reduction length of one matrix-unit step for inputs of `dtype`, in elements."""
        return self.cube_k_by_dtype.get(dtype, self.cube_k)

    def peak_tflop_per_s(self, dtype: DType | str | None = None) -> float:
        """Peak of the whole chip for inputs of `dtype` (default: the arch's), in 1e12 FLOP/s, a MAC being two.

        Raises:
            KeyError: the matrix unit does not take that type.
        """
        dtype = self.default_dtype if dtype is None else DType(dtype)
        macs_per_cycle = self.cube_m * self.cube_k_of(dtype) * self.cube_n * self.cube_steps_per_cycle[dtype]
        return tflop_per_s(FLOP_PER_MAC * macs_per_cycle * self.num_cores * cycles_per_us(self.frequency_ghz), 1.0)

    highest_tflop_per_s = peak_tflop_per_s


@lru_cache(maxsize=256)
def _for_dtype(arch: MulticoreSpec, dtype: DType) -> MulticoreSpec:
    return arch.with_(by_dtype={}, **arch.by_dtype[dtype])
