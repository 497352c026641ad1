"""Options that commands share, and how the words of a command line become the library's values."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemm_eval.cli.completion import complete_archs, complete_gpus, complete_multicore, complete_schemes, complete_types
from gemm_eval.errors import InvalidMappingError, InvalidOptionError
from gemm_eval.words import shown

if TYPE_CHECKING:
    from gemm_eval.mapping import KernelConfig, MulticoreMapping

__all__ = [
    "EXIT_CODES",
    "GPU_MAPPING_FORM",
    "MAPPING_FORM",
    "ArchOption",
    "ArchesOption",
    "ChipDataOption",
    "ClockOption",
    "Distinct",
    "DtypeOption",
    "ExplainOption",
    "FileDtypeOption",
    "GpuOption",
    "GroupSizeOption",
    "IdleCoresOption",
    "InputDtypeOption",
    "InterconnectOption",
    "JsonOption",
    "L2Option",
    "LibraryOption",
    "MappingOption",
    "ModelLibraryOption",
    "MulticoreArchOption",
    "OutputDtypeOption",
    "PolicyOption",
    "SeedOption",
    "TritonDataOption",
    "WeightDtypeOption",
    "ZeroDtypeOption",
    "dense_data",
    "format_mapping",
    "parse_mapping",
    "parse_rows",
    "w4a16_data",
]

EXIT_CODES = (
    "Exit codes: 0 ok; 1 a check failed, or a folder could not be written; 2 wrong usage or bad input; 3 a valid GEMM "
    "that does not fit the arch or that the arch cannot run. Errors are one line on stderr, or with --json one JSON "
    "object on stderr."
)
"""What every --help ends with."""

_TYPES_PANEL = "Data types"
_GPU_PANEL = "GPUs only"
MAPPING_FORM = "P_G,P_M,P_N,P_K / tile_m,tile_n,tile_k / order, such as 1,4,2,1/256,512,144/mnk"
"""How `--mapping` is written for a multi-core chip, for help and errors."""
GPU_MAPPING_FORM = (
    "FAMILY / cta_m,cta_n,cta_k / cluster_m,cluster_n / warps,stages,schedule / decomposition,split_k / "
    "raster_order,raster_swizzle, such as sm90_wgmma / 128,256,64 / 2,1 / 8,4,cooperative / split_k,2 / along_m,8"
)
"""How `--mapping` is written for a GPU."""


class Distinct(enum.StrEnum):
    """What makes two entries of a ranking different."""

    MAPPING = "mapping"
    PARTITION = "partition"


def integer(text: str) -> int:
    """Return the integer that `text` spells, or `text` itself: what is wrong with it is for the library to say."""
    try:
        return int(text)
    except ValueError:
        return text  # type: ignore[return-value]


ArchOption = Annotated[
    str,
    typer.Option(help="Preset name or YAML file of an architecture.", metavar="NAME", autocompletion=complete_archs),
]
ArchesOption = Annotated[
    list[str],
    typer.Option(
        help="Preset name or YAML file of an architecture; repeat it to compare several.",
        metavar="NAME",
        autocompletion=complete_archs,
    ),
]
GpuOption = Annotated[
    str,
    typer.Option("--arch", metavar="NAME|FILE", help="GPU preset or YAML file.", autocompletion=complete_gpus),
]
MulticoreArchOption = Annotated[
    str,
    typer.Option(
        "--arch",
        metavar="NAME|FILE",
        help="Multi-core preset or YAML file.",
        show_default=False,
        autocompletion=complete_multicore,
    ),
]
ChipDataOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="CSV of timings: chip, dtype, M, K, N, latency_us. Default: those that come with the library.",
        show_default=False,
    ),
]
DtypeOption = Annotated[
    str | None,
    typer.Option(
        help="Shorthand for all types: fp32, tf32, fp16, bf16, fp8, fp4, int8 or int4 for both operands; w8a8; "
        "quantized weights: w4a16, w8a16, w4a8, w4a8_fp8, w4a16_mxfp4, w4a16_nvfp4; block-scaled: fp8_block, mxfp8, "
        "mxfp4, nvfp4. Default: the default type of the arch.",
        autocompletion=complete_schemes,
        rich_help_panel=_TYPES_PANEL,
    ),
]
InputDtypeOption = Annotated[
    str | None,
    typer.Option(help="Type of A; wins over --dtype.", rich_help_panel=_TYPES_PANEL, autocompletion=complete_types),
]
WeightDtypeOption = Annotated[
    str | None,
    typer.Option(
        help="Type of B as stored; narrower than A: quantized weights.",
        rich_help_panel=_TYPES_PANEL,
        autocompletion=complete_types,
    ),
]
OutputDtypeOption = Annotated[
    str | None,
    typer.Option(help="Type of C as stored.", rich_help_panel=_TYPES_PANEL, autocompletion=complete_types),
]
GroupSizeOption = Annotated[
    int | None,
    typer.Option(
        help="Quantized weights, and fp8 or fp4 in A and B: elements along K that share a scale; -1: one scale per "
        "column (A and B: none).",
        rich_help_panel=_TYPES_PANEL,
    ),
]
ScaleDtypeOption = Annotated[
    str | None,
    typer.Option(
        help="Type of the scales: fp32, fp16, bf16, fp8 (e4m3) or e8m0. Default: that of the usual formats.",
        rich_help_panel=_TYPES_PANEL,
    ),
]
GroupNOption = Annotated[
    int | None,
    typer.Option("--group-n", help="Columns of B that share a scale. Default: 1.", rich_help_panel=_TYPES_PANEL),
]
ZeroDtypeOption = Annotated[
    str | None,
    typer.Option(
        help="Quantized weights: type of the zero points. Default: none, symmetric.", rich_help_panel=_TYPES_PANEL
    ),
]
_LIBRARY_HELP = (
    "Whose kernels run: cublas, gemm-eval (our W4A16 kernels), trtllm (TensorRT-LLM: block-scaled types, "
    "narrow weights, int8 on Ampere and Ada, fp8 on Ada and RTX Blackwell) or hypothetical (weight-only kernels that "
    "nobody has written). Default (auto): cublas for dense types, trtllm for block-scaled ones and where it "
    "runs fp8; 4-bit weights: gemm-eval on Hopper, where it was timed, trtllm elsewhere; else hypothetical. The output "
    "names it."
)
LibraryOption = Annotated[str | None, typer.Option(help=_LIBRARY_HELP, rich_help_panel=_GPU_PANEL)]
InterconnectOption = Annotated[
    str | None,
    typer.Option(
        help="How a server joins GPUs over PCIe: pcie-one-socket or pcie-two-sockets (traffic crosses to another CPU). "
        "Default: as the arch says.",
        metavar="NAME",
        show_default=False,
    ),
]
ModelLibraryOption = Annotated[
    str | None,
    typer.Option(
        help=f"{_LIBRARY_HELP} GEMMs that the library has no kernels for take their default.",
        rich_help_panel=_GPU_PANEL,
    ),
]
L2Option = Annotated[
    str | None,
    typer.Option(
        "--l2",
        help="cold: weights come from DRAM, activations as far as L2 has not kept them; cold-all: nothing is in L2; "
        "warm: what fits is. Default: cold.",
        rich_help_panel=_GPU_PANEL,
    ),
]
ClockOption = Annotated[
    str | None,
    typer.Option(
        help="burst: the GPU was idle and cool; sustained: as under minutes of load. Default: burst.",
        rich_help_panel=_GPU_PANEL,
    ),
]
QuantizeFromOption = Annotated[
    str | None,
    typer.Option(
        help="Type of A before it is quantized to that of the GEMM, in time that counts: bf16, fp16 or fp32. Default: "
        "it is there already.",
        rich_help_panel=_GPU_PANEL,
    ),
]
CorrectionOption = Annotated[
    bool | None,
    typer.Option(
        "--correction/--no-correction",
        help="Add what timings showed beyond the terms of the model, where that was learned. Default: yes.",
        show_default=False,
        rich_help_panel=_GPU_PANEL,
    ),
]
PolicyOption = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Of multi-core chips with rules: library, what it does with a GEMM, or best, what the chip could do. "
        "Default: as the YAML of the chip says.",
        show_default=False,
    ),
]
IdleCoresOption = Annotated[
    bool,
    typer.Option(
        "--idle-cores/--no-idle-cores",
        help="Whether a mapping may leave some cores of a multi-core chip without work.",
    ),
]
MappingOption = Annotated[
    str | None,
    typer.Option(
        help="Cost this mapping instead of searching. Tiles are in elements, order is the tile loops from the "
        f"outermost: {MAPPING_FORM}. On a GPU: {GPU_MAPPING_FORM}."
    ),
]
ExplainOption = Annotated[
    bool | None,
    typer.Option(
        "--explain/--no-explain",
        help="Say in words what limits the GEMM and what would help. Default: yes in text, no with --json.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout instead of tables.")]


def dense_data(default: str) -> Any:
    """Return the option `--data` of commands that read timings of vendors' kernels; `default`: what they read else."""
    return typer.Option(
        metavar="FILE|NAME",
        help=f"Timings: a .csv or .parquet file, or the name of a committed set or folder, such as "
        f"aiconfigurator/float16. Repeatable. Default: {default}.",
        show_default=False,
    )


def w4a16_data(default: str) -> Any:
    """Return the option `--data` of commands that read timings of our kernels; `default`: what they read else."""
    return typer.Option(
        metavar="FILE",
        help=f"Tables of gemm-eval measure --kernel w4a16. Repeatable. Default: {default}.",
        show_default=False,
    )


TritonDataOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="A table that measure_triton.py of examples/ wrote. Default: the one that comes with the library.",
        show_default=False,
    ),
]
FileDtypeOption = Annotated[str | None, typer.Option(help="Types of a file that does not say them: fp16, w4a16, ...")]
SeedOption = Annotated[int, typer.Option(min=0, help="What deals the (N, K) pairs to folds.")]


def parse_rows(text: str) -> tuple[int, ...]:
    """Read the rows of each group: ``"120,3,0,17"``, or shorter ``"120x64,0x8"`` for 64 groups of 120 and 8 of none.

    Raises:
        InvalidOptionError: `text` has another form, or there are more groups than there may be.
    """
    from gemm_eval.workload import MAX_GROUPS

    groups: list[int] = []
    for part in text.split(","):
        rows, times, count = part.strip().partition("x")
        try:
            num_rows, num = int(rows), int(count) if times else 1
        except ValueError:
            num_rows = num = -1
        if num_rows < 0 or num < 1:
            raise InvalidOptionError(
                f"--rows must be the rows of each group, such as 120,3,0,17, or 120x64,0x8 for 64 groups of 120 and 8 "
                f"without a row, got {shown(part)} in {shown(text)}"
            )
        if len(groups) + num > MAX_GROUPS:
            raise InvalidOptionError(f"--rows must be at most {MAX_GROUPS:,} groups, got more in {shown(text)}")
        groups += [num_rows] * num
    return tuple(groups)


def parse_mapping(text: str, *, is_gpu: bool = False) -> MulticoreMapping | KernelConfig:
    """Read a mapping as `format_mapping` writes it. Whether it is legal is for the library to say.

    Raises:
        InvalidMappingError: `text` has another form.
    """
    try:
        return _parse_config(text) if is_gpu else _parse_multicore(text)
    except (ValueError, TypeError, KeyError):
        from gemm_eval.mapping import LoopOrder

        orders = ", ".join(LoopOrder.__members__).lower()
        form = GPU_MAPPING_FORM if is_gpu else f"{MAPPING_FORM}; order is one of {orders}"
        raise InvalidMappingError(f"--mapping must be {form}, got {shown(text)}", rule="form") from None


def _parse_multicore(text: str) -> MulticoreMapping:
    from gemm_eval.mapping import LoopOrder, MulticoreMapping, Partition, Tile

    partition, tile, order = text.split("/")
    return MulticoreMapping(
        Partition(*map(int, partition.split(","))),
        Tile(*map(int, tile.split(","))),
        LoopOrder[order.strip().upper()],
    )


def _parse_config(text: str) -> KernelConfig:
    from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder, Schedule

    family, cta, cluster, pipe, work, raster = (part.strip() for part in text.split("/"))
    cta_m, cta_n, cta_k = map(int, cta.split(","))
    cluster_m, cluster_n = map(int, cluster.split(","))
    num_warps, num_stages, schedule = pipe.split(",")
    decomposition, split_k = work.split(",")
    raster_order, raster_swizzle = raster.split(",")
    return KernelConfig(
        family, cta_m, cta_n, cta_k, cluster_m, cluster_n, int(num_warps), int(num_stages),
        Schedule[schedule.strip().upper()], Decomposition[decomposition.strip().upper()], int(split_k),
        RasterOrder[raster_order.strip().upper()], int(raster_swizzle),
    )  # fmt: skip


def format_mapping(mapping: MulticoreMapping | KernelConfig) -> str:
    """Write a mapping in the form that `--mapping` takes."""
    from gemm_eval.mapping import KernelConfig

    if isinstance(mapping, KernelConfig):
        c = mapping
        return (
            f"{c.family}/{c.cta_m},{c.cta_n},{c.cta_k}/{c.cluster_m},{c.cluster_n}/"
            f"{c.num_warps},{c.num_stages},{c.schedule.name.lower()}/"
            f"{c.decomposition.name.lower()},{c.split_k}/{c.raster_order.name.lower()},{c.raster_swizzle}"
        )
    partition = ",".join(map(str, mapping.partition))
    tile = ",".join(map(str, mapping.tile))
    return f"{partition}/{tile}/{mapping.loop_order.name.lower()}"
