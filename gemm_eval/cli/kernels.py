"""The command `kernels`: our own W4A16 kernels, what they take of a GPU, and which of them it can run."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemm_eval.cli.completion import complete_gpus
from gemm_eval.cli.options import JsonOption, integer
from gemm_eval.cli.sizes import ColumnsOption, ReductionOption, RowsOption, read_sizes, sizes_argument
from gemm_eval.cli.words import refuse_others
from gemm_eval.errors import InvalidOptionError
from gemm_eval.words import shown

if TYPE_CHECKING:
    from rich.table import Table

    from gemm_eval.kernels import DeviceLimits, KernelEntry, Occupancy, Sizes

__all__ = ["kernels"]

_KIB = 1 << 10
_ORDER = "M K N"
_NEVER_RUN = (
    "They are compiled for this GPU and their machine code is counted, but none has ever run on a GPU of this "
    "generation: neither results nor times were checked there."
)


def kernels(
    ctx: typer.Context,
    in_a_row: Annotated[
        list[str] | None, sizes_argument(_ORDER, "Lists what can run these sizes; K and N are multiples of 8.")
    ] = None,
    m: RowsOption = None,
    k: ReductionOption = None,
    n: ColumnsOption = None,
    arch: Annotated[
        str | None,
        typer.Option(
            help="Preset name or YAML file of a GPU.",
            metavar="NAME",
            autocompletion=complete_gpus,
            show_default=False,
        ),
    ] = None,
    activation: Annotated[str, typer.Option(help="Type of A and C: fp16 or bf16.")] = "fp16",
    mode: Annotated[
        str,
        typer.Option(
            help="What the 4 bits of a weight are, and their scales: column, group, group_zero, mxfp4, nvfp4."
        ),
    ] = "group",
    group_size: Annotated[
        int | None,
        typer.Option(
            help="Weights along K that share a scale, 32, 64 or 128. Default: 128; all in mode column; 32 or 16 of fp4."
        ),
    ] = None,
    family: Annotated[str | None, typer.Option(help="Only the kernels of this family.")] = None,
    compile_: Annotated[
        bool, typer.Option("--compile", help="Compile each kernel: registers, spills, CTAs of an SM. Needs no GPU.")
    ] = False,
    measured: Annotated[
        bool,
        typer.Option(
            "--measured",
            help="Print instead how fast they are on this GPU, beside cuBLAS, by timings that come with the library.",
        ),
    ] = False,
    json: JsonOption = False,
) -> None:
    """List the W4A16 kernels: tile, cluster, schedule, stages, what they take, and whether a GPU can run them.

    Tile: tokens x columns x K of a stage, in elements. KiB: shared memory of a CTA (JSON: bytes). With --compile:
    registers of a thread, bytes that were spilled, and CTAs that an SM holds at once.

    Examples:

    gemm-eval kernels --arch h200-sxm 64 4096 4096

    gemm-eval kernels --arch h200-sxm --measured
    """
    from gemm_eval.kernels import limits_of, list_kernels

    if arch is None:
        raise InvalidOptionError("--arch NAME is missing, such as --arch h200-sxm")
    if measured:
        refuse_others(ctx, "--measured", {"measured", "arch", "activation", "json"})  # it prints all timings
        _print_measured(arch, activation, as_json=json)
        return
    limits, sizes = limits_of(arch), _sizes(read_sizes(_ORDER, in_a_row, {"M": m, "K": k, "N": n}))
    entries = [
        entry
        for entry in list_kernels(limits, activation, mode, group_size, sizes)
        if family in {None, entry.variant.config.family}
    ]
    if not entries:
        _refuse_family(family)
    described = list(_described(entries, limits, sizes, compile_))
    if json:
        from gemm_eval.cli.output import print_json

        variant = entries[0].variant
        print_json(
            {
                "arch": arch,
                "activation": str(variant.activation),
                "mode": variant.mode.name.lower(),
                "group_size": variant.group_size,
                "sizes": None if sizes is None else sizes._asdict(),
                "kernels": [_document(*row) for row in described],
            }
        )
    else:
        _print_tables(described, sizes)


def _print_measured(arch: str, activation: str, *, as_json: bool) -> None:
    from gemm_eval.arch import data_root
    from gemm_eval.cli.measure_kernels import print_comparison
    from gemm_eval.cli.output import print_json
    from gemm_eval.errors import InvalidInputError
    from gemm_eval.measure import compare_kernels

    folder = data_root() / "measured" / arch / "w4a16"
    ours, cublas = folder / f"{activation}.parquet", folder / f"{activation}-cublas.parquet"
    if not ours.is_file():
        raise InvalidInputError(f"no timings of our kernels with {activation} activations come for {arch}")
    gemms = compare_kernels(ours, cublas if cublas.is_file() else None, arch, activation)
    if as_json:
        print_json({"arch": arch, "activation": activation, "gemms": [gemm._asdict() for gemm in gemms]})
    else:
        print_comparison(gemms)


def _sizes(words: Mapping[str, str]) -> Sizes | None:
    from gemm_eval.errors import InvalidProblemError
    from gemm_eval.kernels import Sizes, check_sizes

    if not words:
        return None
    for name, word in words.items():
        if not isinstance(size := integer(word), int) or size < 1:
            raise InvalidProblemError(f"{name} must be an integer >= 1, got {shown(size)}")
    sizes = Sizes(**{name: int(word) for name, word in words.items()})
    check_sizes(sizes.K, sizes.N)
    return sizes


def _refuse_family(family: str | None) -> None:
    from gemm_eval.kernels.families import families

    raise InvalidOptionError(f"--family must be one of {', '.join(families())}, got {shown(family)}")


_Row = tuple["KernelEntry", "list[str] | None", "Occupancy | None"]
"""A kernel, how it can cut K for the sizes that were given, and what it takes if it was compiled."""


def _described(
    entries: Sequence[KernelEntry], limits: DeviceLimits, sizes: Sizes | None, is_compiling: bool
) -> Iterator[_Row]:
    from gemm_eval.cli.output import format_decomposition
    from gemm_eval.kernels import compile_for, legal_splits, occupancy_of

    for entry in entries:
        variant, splits, occupancy = entry.variant, None, None
        if entry.refusal is None and sizes is not None:
            splits = [
                format_decomposition(split.config).removeprefix("split-K ")
                for split in legal_splits(variant, sizes, limits)
            ]
        if entry.refusal is None and is_compiling:
            occupancy = occupancy_of(variant, compile_for(variant, limits), limits)
        yield entry, splits, occupancy


def _document(entry: KernelEntry, splits: list[str] | None, occupancy: Occupancy | None) -> dict[str, Any]:
    config = entry.variant.config._asdict()
    del config["decomposition"], config["split_k"]
    return {
        "config": {
            name: value.name.lower() if isinstance(value, enum.Enum) else value for name, value in config.items()
        },
        "num_threads": entry.num_threads,
        "dynamic_smem_bytes": entry.smem_bytes,
        "is_legal": entry.refusal is None,
        "refusal": entry.refusal,
        "has_run": entry.has_run,
        "splits": splits,
        "compiled": None if occupancy is None else occupancy._asdict(),
    }


def _print_tables(rows: Sequence[_Row], sizes: Sizes | None) -> None:
    """One table for each family; one line for a family of which no kernel can run, for one reason."""
    from gemm_eval.cli.output import make_console

    console = make_console()
    for family, of_family in itertools.groupby(rows, key=lambda row: row[0].variant.config.family):
        group = list(of_family)
        refusals = {entry.refusal for entry, _, _ in group}
        if len(refusals) == 1 and None not in refusals:
            console.print(f"{family}: {refusals.pop()}")
        else:
            console.print(_table(family, group, has_last=sizes is not None or len(refusals) > 1))
        console.print()
    num_legal = sum(entry.refusal is None for entry, _, _ in rows)
    console.print(f"{num_legal} of {len(rows)} kernels can run" + ("" if sizes is None else " these sizes"))
    if any(entry.refusal is None and not entry.has_run for entry, _, _ in rows):
        console.print(_NEVER_RUN)


def _table(family: str, rows: Sequence[_Row], *, has_last: bool) -> Table:
    from gemm_eval.cli.output import make_table

    numbers = ["stages", "warps", "KiB"]
    is_compiled = any(occupancy is not None for _, _, occupancy in rows)
    if is_compiled:
        numbers += ["regs", "CTAs"]
    headers = ["tile", "clus-\nter", "schedule", "raster", *numbers, *(["split-K"] if has_last else [])]
    table = make_table(headers, title=family, right=numbers)
    for entry, splits, occupancy in rows:
        config = entry.variant.config
        cells = [
            f"{config.cta_m}x{config.cta_n}x{config.cta_k}",
            f"{config.cluster_m}x{config.cluster_n}",
            config.schedule.name.lower(),
            f"{config.raster_order.name.removeprefix('ALONG_')} by {config.raster_swizzle}",
            str(config.num_stages),
            str(config.num_warps),
            f"{entry.smem_bytes / _KIB:,.1f}",
        ]
        if is_compiled:
            cells += ["-", "-"] if occupancy is None else [_registers(occupancy), str(occupancy.ctas_per_sm)]
        if has_last:
            cells.append(entry.refusal or _in_short(splits or ["yes"]))
        table.add_row(*cells)
    return table


def _in_short(splits: Sequence[str]) -> str:
    """What stands under "split-K": 1 for a K that is not split, the parts, and stream-K."""
    short = {"data parallel": "1", "stream-K": "stream"}
    return ", ".join(short.get(split, split.removeprefix("split-K ")) for split in splits)


def _registers(occupancy: Occupancy) -> str:
    return f"{occupancy.registers}" + (f" ({occupancy.spill_bytes} spilled)" if occupancy.spill_bytes else "")
