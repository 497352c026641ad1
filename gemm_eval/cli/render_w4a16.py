"""Tables on our W4A16 kernels: which a GPU can run, how fast they are, and where a dense GEMM is faster."""

from __future__ import annotations

import enum
import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gemm_eval.cli.options import give
from gemm_eval.cli.output import Column, format_decomposition, format_number, make_console, rows_table
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
    """Print the kernels of a mode, of a family or of all, that a GPU can run; `activation` "fp8": of `w4a8_gemm`."""
    from gemm_eval.dtypes import DType, parse_dtype
    from gemm_eval.kernels import limits_of, list_kernels
    from gemm_eval.kernels.families import families, fp8_families

    limits = limits_of(arch)
    is_fp8 = parse_dtype(activation, what="activation") is DType.FP8
    of_output = DType.FP16 if is_fp8 else activation
    entries = [
        entry
        for entry in list_kernels(limits, of_output, mode, group_size, sizes, is_fp8=is_fp8)
        if family in {None, entry.variant.config.family}
    ]
    if not entries:
        known = fp8_families() if is_fp8 else families()
        raise InvalidOptionError(f"--family must be one of {', '.join(known)}, got {shown(family)}")
    described = [_described(entry, limits, sizes, is_compiling) for entry in entries]
    variant = entries[0].variant
    head = {
        "arch": getattr(arch, "name", arch),
        "activation": str(DType.FP8 if is_fp8 else variant.activation),
        "mode": variant.mode.name.lower(),
        "group_size": variant.group_size,
        "sizes": None if sizes is None else sizes._asdict(),
    }
    give(
        as_json,
        lambda: head | {"kernels": list(itertools.starmap(_document, described))},
        lambda: _print_tables(described, sizes),
    )


def give_measured(arch: str, activation: str, *, as_json: bool) -> None:
    """Print how fast our kernels are on a GPU, by timings that come with the library."""
    from gemm_eval.arch import data_root
    from gemm_eval.cli.measure_run import print_comparison
    from gemm_eval.measure import compare_kernels

    folder = data_root() / "measured" / arch / "w4a16"
    ours, cublas = folder / f"{activation}.parquet", folder / f"{activation}-cublas.parquet"
    if not ours.is_file():
        raise InvalidInputError(f"the package has no timings of our kernels with {activation} activations on {arch}")
    gemms = compare_kernels(ours, cublas if cublas.is_file() else None, arch, activation)
    give(
        as_json,
        lambda: {"arch": arch, "activation": activation, "gemms": [gemm._asdict() for gemm in gemms]},
        lambda: print_comparison(gemms),
    )


_Row = tuple["KernelEntry", "list[str] | None", "Occupancy | None"]
"""A kernel, how it can cut K for the sizes that were given, and what it takes if it was compiled."""


def _described(entry: KernelEntry, limits: DeviceLimits, sizes: Sizes | None, is_compiling: bool) -> _Row:
    from gemm_eval.kernels import compile_for, legal_splits, occupancy_of

    variant, splits, occupancy = entry.variant, None, None
    if entry.refusal is None and sizes is not None:
        words = (format_decomposition(split.config) for split in legal_splits(variant, sizes, limits))
        splits = [word.removeprefix("split-K ") for word in words]
    if entry.refusal is None and is_compiling:
        occupancy = occupancy_of(variant, compile_for(variant, limits), limits)
    return entry, splits, occupancy


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
    is_compiled = any(occupancy is not None for _, _, occupancy in rows)
    cells = []
    for entry, splits, occupancy in rows:
        config = entry.variant.config
        row = {
            "tile": f"{config.cta_m}x{config.cta_n}x{config.cta_k}",
            "clus-\nter": f"{config.cluster_m}x{config.cluster_n}",
            "schedule": config.schedule.name.lower(),
            "raster": f"{config.raster_order.name.removeprefix('ALONG_')} by {config.raster_swizzle}",
            "stages": str(config.num_stages),
            "warps": str(config.num_warps),
            "KiB": f"{entry.smem_bytes / _KIB:,.1f}",
        }
        if is_compiled:
            spilled = f" ({occupancy.spill_bytes} spilled)" if occupancy and occupancy.spill_bytes else ""
            row["regs"] = "-" if occupancy is None else f"{occupancy.registers}{spilled}"
            row["CTAs"] = "-" if occupancy is None else str(occupancy.ctas_per_sm)
        if has_last:
            short = {"data parallel": "1", "stream-K": "stream"}
            row["split-K"] = entry.refusal or ", ".join(short.get(split, split) for split in splits or ["yes"])
        cells.append(row)
    return rows_table(cells, title=family)


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
    title = f"measured on {result.arch_name} and predicted, us: {tables}; {_FITTED[bool(points['is_held_back'].all())]}"
    right, clear = points["is_sign_right"], points["is_clear"]
    winners = ["right" if ok else "wrong" if is_clear else "close" for ok, is_clear in zip(right, clear, strict=True)]
    columns: list[Column] = [
        ("M", "M", ","),
        ("W4A16", "w4a16_us", format_number),
        ("pred.", "predicted_w4a16_us", format_number),
        (result.dense_dtype, "dense_us", format_number),
        ("pred.", "predicted_dense_us", format_number),
        ("speedup", "speedup", ".2f"),
        ("pred.", "predicted_speedup", ".2f"),
        ("winner", "winner", ""),
    ]
    console.print()
    console.print(rows_table(points.assign(winner=winners).to_dict("records"), columns, title=title))
    console.print(f"winner: predicted right, wrong, or wrong within {validation.CLEAR_FRAC:.0%} of a draw (close).")


_FITTED = {True: "held back from the fit", False: "W4A16 was fitted on it, cuBLAS on other tables"}


def give_all(evaluator: GEMMEvaluator, group_size: int, dense_dtype: str, *, as_json: bool) -> None:
    """Print all K and N that were measured, and how often the predicted winner is the measured one."""
    from gemm_eval import validation

    measured = validation.measured_speedups(evaluator.arch.name, group_size, dense_dtype)
    predicted = validation.predict_speedups(evaluator, measured, group_size, dense_dtype)
    pairs = validation.compare_crossovers(evaluator, predicted, group_size, dense_dtype)
    shares = validation.sign_shares(predicted)

    def document() -> dict[str, Any]:
        whole = pairs.astype({"first_loss_M": object, "last_win_M": object})
        records = whole.where(whole.notna(), None).to_dict("records")
        return {"arch": evaluator.arch.name, "pairs": records, "shares": shares.to_dict("records")}

    give(as_json, document, lambda: _print_pairs(pairs, shares, evaluator.arch.name, dense_dtype))


def _print_pairs(pairs: pd.DataFrame, shares: pd.DataFrame, arch_name: str, dense_dtype: str) -> None:
    from gemm_eval import validation

    console = make_console()
    held_back = set(shares.loc[shares["is_held_back"], "table"])
    marks = pairs["agrees_clearly"].map({True: " ", False: "*"})
    pairs = pairs.assign(right=pairs["num_right"].astype(str) + "/" + pairs["num"].astype(str) + marks)
    for name, of_table in pairs.groupby("table", sort=False):
        title = f"{name}: W4A16 against {dense_dtype} on {arch_name}; {_FITTED[name in held_back]}"
        console.print(rows_table(of_table.to_dict("records"), _PAIRS, title=title))
        console.print()
    console.print(
        "first loss, last win: predicted, of every M; measured: between which measured M. Tiles end at the M that were "
        "measured, so the first loss is often just beyond one. right: measured M with the right winner; * wrong at one "
        f"that is more than {validation.CLEAR_FRAC:.0%} off a draw."
    )
    console.print()
    title = "how often the predicted winner is the measured one"
    console.print(rows_table(shares.to_dict("records"), _SHARES, title=title))
    console.print(
        f"clear: measured more than {validation.CLEAR_FRAC:.0%} off a draw; wins: of W4A16 among these. lost: mean "
        "time lost by taking the predicted winner, over the faster of both; always, never: by always or never taking "
        "W4A16."
    )


_PAIRS: tuple[Column, ...] = (
    ("N", "N", ","),
    ("K", "K", ","),
    ("M up to", "max_M", ","),
    ("first loss", "first_loss_M", lambda value: f"{value:,}" if isinstance(value, int) else "none"),
    ("measured", "measured_first_loss", str),
    ("last win", "last_win_M", lambda value: f"{value:,}" if isinstance(value, int) else "none"),
    ("measured", "measured_last_win", str),
    ("right", "right", ""),
)
_SHARES: tuple[Column, ...] = (
    ("table", "table", ""),
    ("points", "num", ","),
    ("right", "right_frac", ".1%"),
    ("clear", "num_clear", ","),
    ("right", "clear_right_frac", ".1%"),
    ("wins", "always_frac", ".1%"),
    ("lost", "lost_frac", ".1%"),
    ("always", "always_lost_frac", ".1%"),
    ("never", "never_lost_frac", ".1%"),
)
