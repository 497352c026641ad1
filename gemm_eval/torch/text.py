"""Predictions as tables of text, with layers that are alike in one row."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gemm_eval.torch.prediction import ModulePrediction, PredictedOperation

__all__ = [
    "FoldedModule",
    "FoldedOperation",
    "aligned",
    "fold_modules",
    "fold_operations",
    "folded_path",
    "module_table",
    "us_text",
]

_NUMBER = re.compile(r"(?<=[._])\d+(?=\.|$)|^\d+(?=\.|$)")
_MAX_UNPRICED = 10


@dataclass(frozen=True, slots=True)
class FoldedModule:
    """Modules whose paths differ by numbers alone, and that are of one class, as are those around them.

    Attributes:
        path: with ``*`` in the place of numbers, where there are several.
        module_class: of all.
        depth: below the outermost.
        count: how many.
        latency_us, low_us, high_us: of all.
        share_frac: of the outermost module's time.
        bound: what limits most of the time of the first.
    """

    path: str
    module_class: str
    depth: int
    count: int
    latency_us: float
    low_us: float
    high_us: float
    share_frac: float
    bound: str


@dataclass(frozen=True, slots=True)
class FoldedOperation:
    """Operations that are alike: name, sizes, phase and folded path.

    Attributes:
        first: one of them.
        path: with ``*`` in the place of numbers, where there are several.
        count: how many.
        latency_us: of all.
    """

    first: PredictedOperation
    path: str
    count: int
    latency_us: float


def folded_path(path: str) -> str:
    """A path with ``*`` in the place of numbers that stand at the end of a name: ``layers.*``, ``layer_*``."""
    return _NUMBER.sub("*", path)


def fold_modules(prediction: ModulePrediction, *, depth: int | None, fold: bool) -> list[FoldedModule]:
    """Return modules, outer ones first, down to a depth."""
    groups: dict[tuple[str, tuple[str, ...]], list[ModulePrediction]] = {}
    classes: dict[str, tuple[str, ...]] = {}  # of a module and those around it
    base = prediction.path.count(".") + 1 if prediction.path else 0
    for node in prediction.walk():
        level = (node.path.count(".") + 1 if node.path else 0) - base
        if depth is None or level <= depth:
            path = folded_path(node.path) if fold else node.path
            classes[node.path] = (*classes.get(node.path.rpartition(".")[0], ()), node.module_class)
            groups.setdefault((path, classes[node.path]), []).append(node)
    rows = []
    for (path, _), nodes in groups.items():
        first = nodes[0]
        level = (first.path.count(".") + 1 if first.path else 0) - base
        sums = [sum(values) for values in zip(*((n.latency_us, n.low_us, n.high_us) for n in nodes), strict=True)]
        share = sum(node.share_frac for node in nodes)
        shown = path if len(nodes) > 1 else first.path
        rows.append(
            FoldedModule(shown, first.module_class, level, len(nodes), sums[0], sums[1], sums[2], share, first.bound)
        )
    return rows


def fold_operations(operations: Iterable[PredictedOperation]) -> list[FoldedOperation]:
    """Return operations that are alike in one row, those that take most of the time first."""
    groups: dict[tuple[str, ...], list[PredictedOperation]] = {}
    for one in operations:
        groups.setdefault((folded_path(one.path), one.name, one.phase, one.kind, one.detail), []).append(one)
    rows = [
        FoldedOperation(
            found[0], key[0] if len(found) > 1 else found[0].path, len(found), sum(one.latency_us for one in found)
        )
        for key, found in groups.items()
    ]
    return sorted(rows, key=lambda row: -row.latency_us)


def module_table(prediction: ModulePrediction, *, depth: int | None, fold: bool) -> str:
    """Return the table of `ModulePrediction.table`."""
    lines = [_headline(prediction)]
    rows = [("module", "class", "runs", "us", "share", "80% within", "bound")]
    for row in fold_modules(prediction, depth=depth, fold=fold):
        name = "  " * row.depth + (row.path.rpartition(".")[2] if row.depth else row.path or "(all)")
        interval = "" if row.low_us == row.high_us else f"{us_text(row.low_us)}..{us_text(row.high_us)}"
        rows.append(
            (name, row.module_class, f"{row.count}" if row.count > 1 else "", us_text(row.latency_us),
             f"{row.share_frac:.1%}", interval, row.bound)
        )  # fmt: skip
    lines += aligned(rows, right={2, 3, 4, 5})
    unpriced = fold_operations(prediction.unpriced)
    lines += [
        f"not priced: {row.first.name}{f' in {row.path}' if row.path else ''}, {row.count}x: {row.first.detail}"
        for row in unpriced[:_MAX_UNPRICED]
    ]
    if len(unpriced) > _MAX_UNPRICED:
        lines.append(f"not priced: {len(unpriced) - _MAX_UNPRICED} more kinds of operations")
    return "\n".join(lines)


def _headline(prediction: ModulePrediction) -> str:
    kinds = ", ".join(
        f"{kind} {us / max(prediction.latency_us, 1e-9):.0%}" for kind, us in prediction.us_by_kind.items() if us > 0
    )
    return (
        f"{prediction.module_class or 'operations'} on {prediction.arch_name}, fused as by {prediction.fusion}: "
        f"{us_text(prediction.latency_us)} us, {prediction.flop / 1e9:,.4g} GFLOP, "
        f"{prediction.num_bytes / 1e6:,.4g} MB ({kinds})"
    )


def us_text(us: float) -> str:
    """Microseconds with as many digits as matter."""
    return f"{us:,.0f}" if us >= 1000 else f"{us:,.1f}" if us >= 10 else f"{us:,.2f}"


def aligned(rows: Sequence[tuple[str, ...]], right: set[int]) -> list[str]:
    """Lines of cells in columns; those of `right` are aligned to the right."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
