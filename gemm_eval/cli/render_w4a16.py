"""Tables on our W4A16 kernels: which a GPU can run, how fast they are, and where a dense GEMM is faster."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gemm_eval.cli.output import format_decomposition, format_number, make_console, make_table, print_json
from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.words import shown

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

    from gemm_eval.evaluate import Crossover, GEMMEvaluator
    from gemm_eval.kernels import DeviceLimits, KernelEntry, Occupancy, Sizes

_KIB = 1 << 10
_NUM_NAMED = 4  # measured K and N that an error names
_NEVER_RUN = (
    "They are compiled for this GPU and their machine code is counted, but none has ever run on a GPU of this "
    "generation: neither results nor times were checked there."
)


def give_kernels(
    arch: str, activation: str, mode: str, group_size: int | None, sizes: Sizes | None, family: str | None, *,
    is_compiling: bool, as_json: bool,
) -> None:  # fmt: skip
    """Print the kernels of a mode, of one family or of all, and which of them a GPU can run."""
    from gemm_eval.kernels import limits_of, list_kernels

    limits = limits_of(arch)
    entries = [
        entry
        for entry in list_kernels(limits, activation, mode, group_size, sizes)
        if family in {None, entry.variant.config.family}
    ]
    if not entries:
        from gemm_eval.kernels.families import families

        raise InvalidOptionError(f"--family must be one of {', '.join(families())}, got {shown(family)}")
    described = list(_described(entries, limits, sizes, is_compiling))
    if not as_json:
        _print_tables(described, sizes)
        return
    variant = entries[0].variant
    print_json({
        "arch": arch,
        "activation": str(variant.activation),
        "mode": variant.mode.name.lower(),
        "group_size": variant.group_size,
        "sizes": None if sizes is None else sizes._asdict(),
        "kernels": [_document(*row) for row in described],
    })  # fmt: skip


def give_measured(arch: str, activation: str, *, as_json: bool) -> None:
    """Print how fast our kernels are on a GPU, by timings that come with the library."""
    from gemm_eval.arch import data_root
    from gemm_eval.cli.measure_run import print_comparison
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


_Row = tuple["KernelEntry", "list[str] | None", "Occupancy | None"]
"""A kernel, how it can cut K for the sizes that were given, and what it takes if it was compiled."""


def _described(
    entries: Sequence[KernelEntry], limits: DeviceLimits, sizes: Sizes | None, is_compiling: bool
) -> Iterator[_Row]:
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
    """Print a table for each family, or a line for a family of which no kernel can run, for one reason."""
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
    """Return the cell of "split-K": 1 for a K that is not split, the parts, and stream-K."""
    short = {"data parallel": "1", "stream-K": "stream"}
    return ", ".join(short.get(split, split.removeprefix("split-K ")) for split in splits)


def _registers(occupancy: Occupancy) -> str:
    return f"{occupancy.registers}" + (f" ({occupancy.spill_bytes} spilled)" if occupancy.spill_bytes else "")


# Crossovers: up to which M our W4A16 kernels beat a dense GEMM, predicted and measured.


def measured_points(evaluator: GEMMEvaluator, result: Crossover) -> pd.DataFrame:
    """Return what was measured of the K and N of a crossover, and what is predicted of it."""
    from gemm_eval import validation

    frame = validation.measured_speedups(evaluator.arch.name, result.group_size, result.dense_dtype)
    points = frame[(frame["N"] == result.N) & (frame["K"] == result.K)].reset_index(drop=True)
    if not len(points):
        off = (frame["N"] / result.N).map(math.log2).abs() + (frame["K"] / result.K).map(math.log2).abs()
        nearest = frame.assign(off=off).sort_values("off")[["K", "N"]].drop_duplicates().head(_NUM_NAMED)
        known = ", ".join(f"K={k} N={n}" for k, n in zip(nearest["K"], nearest["N"], strict=True))
        raise InvalidInputError(
            f"K={result.K} N={result.N} was not measured on {evaluator.arch.name}; the nearest that were: {known}"
        )
    return validation.predict_speedups(evaluator, points, result.group_size, result.dense_dtype)


def print_crossover(result: Crossover, points: pd.DataFrame | None) -> None:
    """Print a crossover in words, and beside what was measured."""
    console = make_console()
    console.print(result.explain())
    if points is None:
        return
    from gemm_eval import validation

    tables = ", ".join(points["table"].unique())
    fitted = (
        "held back from the fit" if points["is_held_back"].all() else "W4A16 was fitted on it, cuBLAS on other tables"
    )
    headers = ["M", "W4A16", "pred.", result.dense_dtype, "pred.", "speedup", "pred.", "winner"]
    title = f"measured on {result.arch_name} and predicted, us: {tables}; {fitted}"
    table = make_table(headers, title=title, right=headers[:-1])
    for row in points.to_dict("records"):
        times = (row[name] for name in ("w4a16_us", "predicted_w4a16_us", "dense_us", "predicted_dense_us"))
        table.add_row(
            f"{row['M']:,}", *map(format_number, times), f"{row['speedup']:.2f}", f"{row['predicted_speedup']:.2f}",
            _verdict(row),
        )  # fmt: skip
    console.print()
    console.print(table)
    console.print(f"winner: predicted right, wrong, or wrong within {validation.CLEAR_FRAC:.0%} of a draw (close).")


def _verdict(row: dict[Any, Any]) -> str:
    if row["is_sign_right"]:
        return "right"
    return "wrong" if row["is_clear"] else "close"


def give_all(evaluator: GEMMEvaluator, group_size: int, dense_dtype: str, *, as_json: bool) -> None:
    """Print all K and N that were measured, and how often the predicted winner is the measured one."""
    from gemm_eval import validation

    measured = validation.measured_speedups(evaluator.arch.name, group_size, dense_dtype)
    predicted = validation.predict_speedups(evaluator, measured, group_size, dense_dtype)
    pairs = validation.compare_crossovers(evaluator, predicted, group_size, dense_dtype)
    shares = validation.sign_shares(predicted)
    if as_json:
        whole = pairs.astype({"first_loss_M": object, "last_win_M": object})
        records = whole.where(whole.notna(), None).to_dict("records")
        print_json({"arch": evaluator.arch.name, "pairs": records, "shares": shares.to_dict("records")})
    else:
        _print_pairs(pairs, shares, evaluator.arch.name, dense_dtype)


def _print_pairs(pairs: pd.DataFrame, shares: pd.DataFrame, arch_name: str, dense_dtype: str) -> None:
    from gemm_eval import validation

    console = make_console()
    held_back = set(shares.loc[shares["is_held_back"], "table"])
    for name, of_table in pairs.groupby("table", sort=False):
        note = "held back from the fit" if name in held_back else "W4A16 was fitted on it, cuBLAS on other tables"
        headers = ["N", "K", "M up to", "first loss", "measured", "last win", "measured", "right"]
        title = f"{name}: W4A16 against {dense_dtype} on {arch_name}; {note}"
        table = make_table(headers, title=title, right=headers)
        for row in of_table.to_dict("records"):
            table.add_row(
                f"{row['N']:,}", f"{row['K']:,}", f"{row['max_M']:,}", _whole(row["first_loss_M"]),
                str(row["measured_first_loss"]), _whole(row["last_win_M"]), str(row["measured_last_win"]),
                f"{row['num_right']}/{row['num']}" + (" " if row["agrees_clearly"] else "*"),
            )  # fmt: skip
        console.print(table)
        console.print()
    console.print(
        "first loss, last win: predicted, of every M; measured: between which measured M. Tiles end at the M that were "
        "measured, so the first loss is often just beyond one. right: measured M with the right winner; * wrong at one "
        f"that is more than {validation.CLEAR_FRAC:.0%} off a draw."
    )
    console.print()
    headers = ["table", "points", "right", "clear", "right", "wins", "lost", "always", "never"]
    table = make_table(headers, title="how often the predicted winner is the measured one", right=headers[1:])
    for row in shares.to_dict("records"):
        fracs = (row[name] for name in ("clear_right_frac", "always_frac"))
        lost = (row[name] for name in ("lost_frac", "always_lost_frac", "never_lost_frac"))
        table.add_row(
            row["table"], f"{row['num']:,}", f"{row['right_frac']:.1%}", f"{row['num_clear']:,}",
            *(f"{frac:.1%}" for frac in (*fracs, *lost)),
        )  # fmt: skip
    console.print(table)
    console.print(
        f"clear: measured more than {validation.CLEAR_FRAC:.0%} off a draw; wins: of W4A16 among these. lost: mean "
        "time lost by taking the predicted winner, over the faster of both; always, never: by always or never taking "
        "W4A16."
    )


def _whole(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "none"
