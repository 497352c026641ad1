"""Predictions of modules as text, tables of sizes, a page and a timeline, and beside measurements."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gemm_eval.report import Cell, Column, Facts, Page, Section, Table, Text
from gemm_eval.torch.prediction import ModulePrediction, PredictedOperation, paths_around
from gemm_eval.words import needs_extra

if TYPE_CHECKING:
    import pandas as pd


_NUMBER = re.compile(r"(?<=[._])\d+(?=\.|$)|^\d+(?=\.|$)")
_MAX_UNPRICED = 10


@dataclass(frozen=True, slots=True)
class Folded:
    """Modules of one class, or operations that are alike, whose paths differ by numbers alone; the first of them.

    `path` has ``*`` in the place of numbers, where there are several; times are of all.
    """

    first: Any
    path: str
    count: int
    latency_us: float
    low_us: float = 0.0
    high_us: float = 0.0
    share_frac: float = 0.0


def folded_path(path: str) -> str:
    """Return a path with ``*`` in the place of numbers at the end of a name: ``layers.*``, ``layer_*``."""
    return _NUMBER.sub("*", path)


def _fold(groups: Mapping[Any, Sequence[Any]], *names: str) -> list[Folded]:
    """Return a row for each group by its path, which its key begins with; `names` are summed up."""
    return [
        Folded(
            each[0], key[0] if len(each) > 1 else each[0].path, len(each),
            *(sum(getattr(item, name) for item in each) for name in ("latency_us", *names)),
        )
        for key, each in groups.items()
    ]  # fmt: skip


def fold_modules(prediction: ModulePrediction, *, depth: int | None, fold: bool) -> list[Folded]:
    """Return modules, outer ones first, down to a depth."""
    groups: dict[tuple[str, tuple[str, ...]], list[ModulePrediction]] = {}
    classes: dict[str, tuple[str, ...]] = {}  # of a module and those around it
    base = _level(prediction.path)
    for node in prediction.walk():
        if depth is None or _level(node.path) - base <= depth:
            path = folded_path(node.path) if fold else node.path
            classes[node.path] = (*classes.get(node.path.rpartition(".")[0], ()), node.module_class)
            groups.setdefault((path, classes[node.path]), []).append(node)
    return _fold(groups, "low_us", "high_us", "share_frac")


def _level(path: str) -> int:
    return path.count(".") + 1 if path else 0


def fold_operations(operations: Iterable[PredictedOperation]) -> list[Folded]:
    """Return operations that are alike in one row, those that take most of the time first."""
    groups: dict[tuple[str, ...], list[PredictedOperation]] = {}
    for each in operations:
        groups.setdefault((folded_path(each.path), each.name, each.phase, each.kind, each.detail), []).append(each)
    return sorted(_fold(groups), key=lambda row: -row.latency_us)


def module_table(prediction: ModulePrediction, *, depth: int | None, fold: bool) -> str:
    """Return the table of `ModulePrediction.table`."""
    lines = [_headline(prediction)]
    rows = [("module", "class", "runs", "us", "share", "80% within", "bound")]
    base = _level(prediction.path)
    for row in fold_modules(prediction, depth=depth, fold=fold):
        level = _level(row.first.path) - base
        name = "  " * level + (row.path.rpartition(".")[2] if level else row.path or "(all)")
        interval = "" if row.low_us == row.high_us else f"{us_text(row.low_us)}..{us_text(row.high_us)}"
        rows.append(
            (name, row.first.module_class, f"{row.count}" if row.count > 1 else "", us_text(row.latency_us),
             f"{row.share_frac:.1%}", interval, row.first.bound)
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
    """Return microseconds with as many digits as matter."""
    return f"{us:,.0f}" if us >= 1000 else f"{us:,.1f}" if us >= 10 else f"{us:,.2f}"


def aligned(rows: Sequence[tuple[str, ...]], right: set[int]) -> list[str]:
    """Return lines of cells in columns; those of `right` are aligned to the right."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


@dataclass(frozen=True, slots=True)
class SizeTable:
    """A prediction for each combination of sizes: their names, and rows of a value of each and the prediction."""

    names: tuple[str, ...]
    rows: tuple[tuple[tuple[int, ...], ModulePrediction], ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[tuple[tuple[int, ...], ModulePrediction]]:
        return iter(self.rows)

    def __str__(self) -> str:
        head = (*self.names, "us", "TFLOP/s", "bound", "not priced")
        lines = [
            (
                *map(str, point), us_text(each.latency_us), f"{each.flop / max(each.latency_us, 1e-9) / 1e6:,.1f}",
                each.bound, str(len(each.unpriced) or ""),
            )
            for point, each in self.rows
        ]  # fmt: skip
        return "\n".join(aligned([head, *lines], right=set(range(len(self.names) + 2))))

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return a row for each combination as plain values: sizes, time, interval, FLOP, bytes, bound."""
        names = ("latency_us", "low_us", "high_us", "flop", "num_bytes", "bound")
        return [
            dict(zip(self.names, point, strict=True))
            | {name: getattr(each, name) for name in names}
            | {"num_unpriced": len(each.unpriced)}
            for point, each in self.rows
        ]

    def to_pandas(self) -> pd.DataFrame:
        """Return a DataFrame with the rows of `to_dicts`."""
        with needs_extra("a DataFrame", "sweep"):
            import pandas as pd
        return pd.DataFrame(self.to_dicts())


_MODULES = (
    Column("module", kind="text"), Column("class", kind="text"), Column("runs"), Column("time", "us"),
    Column("share", "%", digits=3), Column("low", "us"), Column("high", "us"), Column("bound", kind="text"),
)  # fmt: skip
_OPERATIONS = (
    Column("operation", kind="text"), Column("module", kind="text"), Column("phase", kind="text"), Column("runs"),
    Column("time of one", "us"), Column("of all", "us"), Column("share", "%", digits=3), Column("bound", kind="text"),
    Column("source", kind="text"), Column("sizes", kind="text"),
)  # fmt: skip
_UNPRICED = (
    Column("operation", kind="text"), Column("module", kind="text"), Column("runs"), Column("MB", digits=3),
    Column("of the bytes", "%", digits=3), Column("why", kind="text"),
)  # fmt: skip
_LEVERS = (Column("change of the arch", kind="text"), Column("would take", "us"), Column("saves", "%", digits=3))


def prediction_page(prediction: ModulePrediction) -> Page:
    """Return the page of a prediction; the levers are evaluated for it."""
    name, total_us = prediction.module_class or "operations", prediction.latency_us
    rows: list[list[Cell]] = [
        [row.path or "(all)", row.first.module_class, row.count, row.latency_us, 100 * row.share_frac, row.low_us,
         row.high_us, row.first.bound]
        for row in fold_modules(prediction, depth=None, fold=True)
    ]  # fmt: skip
    folded = fold_operations(each for each in prediction.operations if each.kind != "unpriced")
    operations: list[list[Cell]] = [
        [row.first.name, row.path, row.first.phase, row.count, row.first.latency_us, row.latency_us,
         100 * row.latency_us / total_us if total_us else 0.0, row.first.bound, row.first.source, row.first.detail]
        for row in folded
    ]  # fmt: skip
    unpriced: list[list[Cell]] = [
        [row.first.name, row.path, row.count, row.count * row.first.num_bytes / 1e6,
         100 * row.count * row.first.num_bytes / max(1, prediction.num_bytes), row.first.detail]
        for row in fold_operations(prediction.unpriced)
    ]  # fmt: skip
    sections = [
        Section("Overview", [Facts(_facts(prediction))]),
        Section("Modules", [Table(_MODULES, rows, note="Numbers in paths are folded; low and high: 80% of GEMMs.")]),
        Section("Kernels", [Table(_OPERATIONS, operations)]),
    ]
    if unpriced:
        note = "No model knows these: they count as no time."
        sections.append(Section("Not priced", [Table(_UNPRICED, unpriced, note=note)]))
    levers: list[list[Cell]] = [
        [lever.change, lever.latency_us, 100 * lever.gain_frac] for lever in prediction.what_would_help()
    ]
    help_part = Table(_LEVERS, levers) if levers else Text("No single change of the arch saves more than 0.5%.")
    sections.append(Section("What would help", [help_part]))
    return Page(f"{name} on {prediction.arch_name}", f"predicted, fused as by {prediction.fusion}", sections)


def _facts(prediction: ModulePrediction) -> list[tuple[str, str]]:
    total = prediction.latency_us
    return [
        ("arch", prediction.arch_name),
        ("time", f"{total:,.1f} us"),
        ("80% of measured times", f"{prediction.low_us:,.1f} to {prediction.high_us:,.1f} us"),
        ("operations on matrices", f"{prediction.flop / 1e9:,.4g} GFLOP"),
        ("bytes of operands", f"{prediction.num_bytes / 1e6:,.4g} MB"),
        ("kernels", f"{len(prediction.operations):,}"),
        *((f"time of {kind}", f"{us / total:.1%}") for kind, us in prediction.us_by_kind.items() if us > 0),
        *((f"bound by {bound}", f"{us / total:.1%}") for bound, us in prediction.us_by_bound.items() if us > 0),
    ]


_KERNEL_THREAD, _MODULE_THREAD = 0, 1  # threads of the trace


def chrome_trace(prediction: ModulePrediction) -> str:
    """Return JSON of complete events: a thread of kernels, and one of the modules that run them.

    Times are in microseconds, as the format has them.
    """
    names = [(_KERNEL_THREAD, "kernels"), (_MODULE_THREAD, "modules")]
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 0, "args": {"name": f"predicted on {prediction.arch_name}"}},
        *({"name": "thread_name", "ph": "M", "pid": 0, "tid": at, "args": {"name": name}} for at, name in names),
    ]

    def add(name: str, category: str, start_us: float, us: float, thread: int, **args: Any) -> None:
        event = {"name": name, "cat": category, "ph": "X", "ts": start_us, "dur": us, "pid": 0}
        events.append(event | {"tid": thread, "args": args})

    for each in prediction.operations:
        add(
            each.name, each.kind, each.start_us, each.latency_us, _KERNEL_THREAD, module=each.path, bound=each.bound,
            source=each.source, detail=each.detail, flop=each.flop, bytes=each.num_bytes, low_us=each.low_us,
            high_us=each.high_us,
        )  # fmt: skip
    # stretches of time in which a module, or one in it, runs; spans of inner ones lie within
    open_spans, end_us = dict[str, float](), 0.0
    for each in prediction.operations:
        inside = set(paths_around(each.path))
        for path in [path for path in open_spans if path not in inside]:
            start_us = open_spans.pop(path)
            add(path, "module", start_us, end_us - start_us, _MODULE_THREAD)
        for path in sorted(inside, key=len):
            open_spans.setdefault(path, each.start_us)
        end_us = each.start_us + each.latency_us
    for path, start_us in open_spans.items():
        add(path, "module", start_us, end_us - start_us, _MODULE_THREAD)
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns"})


_MAX_ROWS = 40


@dataclass(frozen=True, slots=True)
class MeasuredOperation:
    """An operation of torch, as predicted, and as it ran: the median time of its kernels, and their names.

    Without `operations` it is taken for free (a view, an empty tensor).
    """

    operations: tuple[PredictedOperation, ...]
    measured_us: float
    kernels: tuple[str, ...]

    @property
    def predicted_us(self) -> float:
        """Sum of what is predicted."""
        return sum(operation.latency_us for operation in self.operations)

    @property
    def path(self) -> str:
        """Path of the module that ran it."""
        return self.operations[0].path if self.operations else ""

    @property
    def name(self) -> str:
        """Name of the operation."""
        return self.operations[0].name if self.operations else "(free)"

    @property
    def detail(self) -> str:
        """Its sizes."""
        return self.operations[0].detail if self.operations else ""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A module on a GPU, predicted and measured, operation by operation.

    Attributes:
        operations: in the order they ran.
        outside_us: time of kernels that belong to no operation: copies between host and device.
        graph_us: time of a replay of everything as a CUDA graph, of the operations that run in eager mode: modules were
            told that they are not captured; None: not asked for, or the module cannot be captured.
        device_name: where it was measured.
    """

    prediction: ModulePrediction
    operations: tuple[MeasuredOperation, ...]
    outside_us: float
    graph_us: float | None
    device_name: str

    @property
    def predicted_us(self) -> float:
        """Time of all operations."""
        return self.prediction.latency_us

    @property
    def measured_us(self) -> float:
        """Sum of the times of all kernels, without gaps between them."""
        return sum(each.measured_us for each in self.operations) + self.outside_us

    @property
    def ratio(self) -> float:
        """Predicted over measured: in the CUDA graph, where that was timed, else the sum of kernels."""
        return self.predicted_us / (self.measured_us if self.graph_us is None else self.graph_us)

    def __str__(self) -> str:
        graph = "" if self.graph_us is None else f", {us_text(self.graph_us)} us in a CUDA graph"
        head = (
            f"{self.prediction.module_class} on {self.device_name}: predicted {us_text(self.predicted_us)} us "
            f"({self.prediction.arch_name}), measured {us_text(self.measured_us)} us of kernels{graph}; "
            f"predicted/measured {self.ratio:.3f}"
        )
        rows = [("module", "operation", "runs", "predicted us", "measured us", "ratio", "sizes", "kernel")]
        groups: dict[tuple[str, str, str], list[MeasuredOperation]] = {}
        for each in self.operations:
            groups.setdefault((folded_path(each.path), each.name, each.detail), []).append(each)
        ordered = sorted(groups.items(), key=lambda item: -_sums(item[1])[1])  # those that were measured longest first
        for (path, name, detail), alike in ordered[:_MAX_ROWS]:
            predicted, measured = _sums(alike)
            ratio = f"{predicted / measured:.2f}" if measured else ""
            kernel = alike[0].kernels[0][:40] if alike[0].kernels else ""
            rows.append((path if len(alike) > 1 else alike[0].path, name, str(len(alike)), us_text(predicted),
                         us_text(measured), ratio, detail, kernel))  # fmt: skip
        lines = [head, *aligned(rows, right={2, 3, 4, 5})]
        if len(ordered) > _MAX_ROWS:
            predicted, measured = _sums(each for _, alike in ordered[_MAX_ROWS:] for each in alike)
            more = f"predicted {us_text(predicted)} us, measured {us_text(measured)} us"
            lines.append(f"{len(ordered) - _MAX_ROWS} more kinds: {more}")
        if self.outside_us:
            lines.append(f"kernels of no operation: {us_text(self.outside_us)} us")
        return "\n".join(lines)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return a row for each operation as plain values."""
        names = ("path", "name", "detail", "predicted_us", "measured_us")
        return [
            {name: getattr(each, name) for name in names} | {"kernels": list(each.kernels)} for each in self.operations
        ]


def _sums(operations: Iterable[MeasuredOperation]) -> tuple[float, float]:
    predicted, measured = zip(*((each.predicted_us, each.measured_us) for each in operations), strict=True)
    return sum(predicted), sum(measured)
