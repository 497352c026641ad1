"""Parts of a report page as plain data, and those about GEMMs that run one after the other: totals, limits, tables."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.estimate import ModelEstimate, OperationCost, StepEstimate
from gemm_eval.evaluate import GEMMEvaluator, GEMMResult, sum_interval
from gemm_eval.serving import ServingEstimate
from gemm_eval.units import interval_text, per_s, scaled_text, time_text
from gemm_eval.words import shown
from gemm_eval.workload import GemmProblem

if TYPE_CHECKING:
    import matplotlib.figure


_BASE_UNITS = {"time": "us", "bytes": "B", "capacity": "B", "energy": "pJ"}  # of the columns that are scaled
_SUFFIX_UNITS = {
    "_us": "us", "_bytes": "B", "_pj": "pJ", "_gb_per_s": "GB/s", "_tflop_per_s": "TFLOP/s", "_mm2": "mm2",
    "_ghz": "GHz", "_hz": "Hz", "_frac": "frac", "_w": "W",
}  # fmt: skip
_COMPOUND = re.compile(r"_per_(mm2|w)$|_pj_us$")


def unit_of_name(name: str) -> tuple[str, str]:
    """Return the unit that a name such as ``latency_us`` ends with, and the end itself; empty texts if it has none."""
    if _COMPOUND.search(name):
        return "", ""
    return next(((unit, end) for end, unit in _SUFFIX_UNITS.items() if name.endswith(end)), ("", ""))


Cell: TypeAlias = str | float | None
"""A cell of a table; numpy's numbers too. None and nan are missing values."""

_MIN_FIXED, _MAX_FIXED = 1e-4, 1e15  # outside, numbers are written with an exponent


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table, or what the tooltip of a chart says about a point.

    Attributes:
        name: header; the unit at its end is left away where the cells have their own.
        unit: shown beside the name; empty for none.
        kind: numbers are aligned to the right and sorted by value. Those of ``"time"`` (in us), ``"bytes"`` (that
            move), ``"capacity"`` (bytes of a memory) and ``"energy"`` (in pJ) are written with units of their own size.
        digits: significant digits of numbers that are not whole; digits before the point are never rounded away.
    """

    name: str
    unit: str = ""
    kind: Literal["number", "text", "time", "bytes", "capacity", "energy"] = "number"
    digits: int = 4

    @property
    def is_scaled(self) -> bool:
        """True if every cell has a unit of its own."""
        return self.kind in _BASE_UNITS

    @property
    def heading(self) -> str:
        """The name as the page shows it."""
        return (self.is_scaled and self.name.removesuffix(unit_of_name(self.name)[1])) or self.name

    @property
    def base_unit(self) -> str:
        """The unit of its numbers, as `unit` or the end of the name says; empty if neither does."""
        of_name = "" if self.kind == "text" else unit_of_name(self.name)[0]
        return _BASE_UNITS.get(self.kind) or self.unit or of_name

    def format(self, value: Cell) -> str:
        """Return the text of a cell, empty for a missing value; InvalidOptionError: words in a column of numbers."""
        if value is None or value != value:  # noqa: PLR0124  nan is the one value that differs from itself
            return ""
        if self.kind == "text":
            return str(value)
        if not isinstance(value, Real):
            raise InvalidOptionError(f"column {self.name!r} holds numbers, got {shown(value)}")
        number = float(value)
        if self.is_scaled:
            return scaled_text(self.kind, number)
        if isinstance(value, Integral):
            return f"{int(value):,}"
        if math.isinf(number):
            return "∞" if number > 0 else "-∞"
        rounded = f"{number:.{self.digits - 1}e}"  # before its exponent is read: 9.9996 counts as 10
        if number and not _MIN_FIXED <= abs(number) < _MAX_FIXED:
            return rounded
        return f"{number:,.{max(0, self.digits - 1 - int(rounded.partition('e')[2]))}f}"


text_column = partial(Column, kind="text")
time_column = partial(Column, kind="time")
percent_column = partial(Column, unit="%", digits=3)


@dataclass(frozen=True, slots=True)
class Text:
    """Paragraphs, an empty line between them, under a heading `title`; `is_code` keeps the spaces of commands."""

    text: str
    title: str = ""
    is_code: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """A list of names and values."""

    items: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Table:
    """A table that sorts by the click of a header; the first column names the row.

    Attributes:
        columns: what the rows hold.
        rows: one cell for each column.
        caption: says what the table shows.
        note: small print below.
        max_rows: more are left out, and the page says so.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    note: str = ""
    max_rows: int = 2000

    def __post_init__(self) -> None:
        _check_rows(self.columns, self.rows)


def table_of(
    items: Iterable[Any], columns: Sequence[tuple[Column, Callable[[Any], Cell]]], caption: str, note: str = ""
) -> Table:
    """Return a table with a row for each item, given the columns and what each says of an item."""
    rows = [[say(item) for _, say in columns] for item in items]
    return Table([column for column, _ in columns], rows, caption, note)


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawing, whose black and white, and the neutral colours of our own plots, become those of the page."""

    figure: matplotlib.figure.Figure
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """Points that say all their columns when pointed at, tapped, or reached by arrow keys.

    Attributes:
        columns: what is known of a point; names are unique.
        rows: the points. Those without `x` or `y`, or not above 0 on a log axis, are left out, and the page says so.
        x, y: names of the columns that place a point.
        log_x, log_y: logarithmic axes.
        highlight: [num_rows], which points stand out and are joined in the order of x.
        joined: by straight lines, or by stairs: ``"after"``: at the next point's x, as a front is where less of x is
            better; ``"before"``: at once, where more of x is.
        names: of a few points, by their row, written beside them.
        highlight_label, label: what the points that stand out, and the others, are.
        caption: says what the chart shows.
        max_points: more are thinned out evenly, but for those that stand out, and the page says so.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]
    x: str
    y: str
    log_x: bool = False
    log_y: bool = False
    highlight: Sequence[bool] | None = None
    joined: Literal["line", "after", "before"] = "line"
    names: Mapping[int, str] = field(default_factory=dict)
    highlight_label: str = "Pareto front"
    label: str = "others"
    caption: str = ""
    max_points: int = 20_000

    def __post_init__(self) -> None:
        _check_rows(self.columns, self.rows)
        numbers = [column.name for column in self.columns if column.kind != "text"]
        for axis, name in (("x", self.x), ("y", self.y)):
            if name not in numbers:
                raise InvalidOptionError(
                    f"{axis} must name a column of numbers ({', '.join(numbers)}), got {shown(name)}"
                )


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer of a page in words: one sentence, and its reasons, each with a word before it."""

    headline: str
    points: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar.

    Attributes:
        name: stands before it.
        segments: what each part of it is, and its length; bars of the same part have its colour.
        label: stands behind it.
        low, high: an interval around its end.
        note: shown when the mouse rests on a bar of one segment.
    """

    name: str
    segments: Sequence[tuple[str, float]]
    label: str
    low: float | None = None
    high: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """Bars on one axis, from 0; another panel has another axis."""

    title: str
    bars: Sequence[Bar]


@dataclass(frozen=True, slots=True)
class Bars:
    """Panels of bars below each other.

    Attributes:
        panels: each with at least one bar.
        colors: of the segments, by what they are; in the order of the legend.
        kind: of all lengths, as `Column` has it.
        caption: says what is shown.
    """

    panels: Sequence[Panel]
    colors: Mapping[str, str]
    kind: Literal["number", "time", "bytes", "energy"] = "time"
    caption: str = ""


Part: TypeAlias = Text | Facts | Table | Figure | Chart | Bars | Verdict


def _check_rows(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> None:
    if not columns:
        raise InvalidOptionError("columns must not be empty")
    for number, row in enumerate(rows):
        if len(row) != len(columns):
            raise InvalidOptionError(f"rows must have {len(columns)} cells each, got {len(row)} in row {number}")


Phase: TypeAlias = Literal["prefill", "decode"]

MIN_GAIN_FRAC = 0.005
"""Below, a change is not worth a word."""

_MIN_SAID_FRAC, _MOST_SAID = 0.05, 2  # of what GEMMs wait for


class Run(NamedTuple):
    """A GEMM by name, what one run of it costs, and how often it runs."""

    name: str
    result: GEMMResult
    times: int

    @property
    def total_us(self) -> float:
        """Time of all runs."""
        return self.times * self.result.latency_us


@dataclass(frozen=True, slots=True)
class Runs:
    """GEMMs on an arch: those of a forward pass, of a workload, or one alone.

    Attributes:
        num_tokens: new tokens of all sequences; None where nothing counts them.
        step: the whole step that the GEMMs are part of; None: they are all there is.
    """

    name: str
    evaluator: GEMMEvaluator
    runs: Sequence[Run]
    num_tokens: int | None = None
    step: StepEstimate | None = None

    @property
    def arch_name(self) -> str:
        """The name of the arch."""
        return self.evaluator.arch.name

    @property
    def title(self) -> str:
        """The name as a heading."""
        return capital(self.name)

    @property
    def total_us(self) -> float:
        """Time of the step; of GEMMs alone that of all of them, one after the other."""
        return sum(run.total_us for run in self.runs) if self.step is None else self.step.latency_us

    @property
    def costs(self) -> Sequence[OperationCost]:
        """All operations of the step."""
        return () if self.step is None else self.step.costs

    @property
    def tokens_per_s(self) -> float:
        """New tokens a second."""
        return per_s(self.num_tokens or 0, self.total_us)

    @property
    def utilization_frac(self) -> float:
        """Share of the highest rate of the chip, over all runs."""
        return sum(run.total_us * run.result.utilization_frac for run in self.runs) / self.total_us

    @property
    def dram_gb_per_s(self) -> float:
        """Achieved DRAM bandwidth, over all runs."""
        return sum(run.times * run.result.dram_bytes for run in self.runs) / self.total_us / 1e3

    @property
    def interval_us(self) -> tuple[float, float]:
        """The interval of `total_us` that holds 80% of measured times."""
        if self.step is not None:
            return self.step.interval_us
        return sum_interval(
            (count * of.latency_us, count * of.low_us, count * of.high_us) for _, of, count in self.runs
        )

    @property
    def us_by_bound(self) -> dict[str, float]:
        """Time of the GEMMs that each bound limits, the longest first."""
        times: dict[str, float] = {}
        for run in self.runs:
            times[run.result.bound] = times.get(run.result.bound, 0.0) + run.total_us
        return dict(sorted(times.items(), key=lambda item: -item[1]))

    @property
    def words(self) -> dict[str, str]:
        """Each bound in words."""
        return {result.bound: result.backend.bounds[result.bound] for _, result, _ in self.runs}

    def heaviest(self, number: int) -> list[Run]:
        """Return the GEMMs that take most of the time, the first one most."""
        return sorted(self.runs, key=lambda run: -run.total_us)[:number]

    def say_bounds(self) -> str:
        """Return what the GEMMs wait for: ``DRAM bandwidth, 76% of the time, then the tensor cores, 24%``."""
        times, words = self.us_by_bound, self.words
        total_us = sum(times.values())
        texts = [
            f"{words[bound]}, {us / total_us:.0%}{'' if at else ' of the time'}"
            for at, (bound, us) in enumerate(times.items())
            if not at or us / total_us >= _MIN_SAID_FRAC
        ]
        return ", then ".join(texts[:_MOST_SAID])


def capital(text: str) -> str:
    """Return a text with a capital letter first."""
    return f"{text[:1].upper()}{text[1:]}"


def distinct(words: Iterable[str]) -> str:
    """Return words in alphabetical order, each once."""
    return ", ".join(sorted(set(words)))


def trust_in_runs(contenders: Sequence[Runs], caveat: str) -> list[tuple[str, str]]:
    """Return libraries and sources of each arch, and a caveat: `caveat`, unless an arch has no timings."""
    texts: dict[str, str] = {}
    for arch in dict.fromkeys(runs.arch_name for runs in contenders):
        results = [run.result for runs in contenders if runs.arch_name == arch for run in runs.runs]
        names = [arch, *sorted({str(result.options["library"]) for result in results if "library" in result.options})]
        texts[arch] = f"{' '.join(names)} ({distinct(result.source for result in results)})"
    untimed = ", ".join(arch for arch, text in texts.items() if "analytic" in text)
    warning = f"No timings of {untimed}: coefficients carry over, or are assumed." if untimed else caveat
    return [("Times rest on", ", ".join(texts.values())), ("Keep in mind", warning)]


def trust_in_estimate(estimate: ModelEstimate | ServingEstimate, caveat: str) -> list[tuple[str, str]]:
    """Return the intervals of TTFT and TPOT, engine, libraries and sources, and a caveat."""
    ends = [interval_text(*ends) for ends in (estimate.ttft_interval_us, estimate.tpot_interval_us)]
    return [
        ("80% of measured times are expected within", f"{ends[0]} (TTFT) and {ends[1]} (TPOT)"),
        ("Times rest on", f"Engine {estimate.basis.engine}. {estimate.basis}"),
        ("Keep in mind", caveat),
    ]


def sizes_of(problem: GemmProblem) -> list[Cell]:
    """Return G, M, K, N; M of groups with rows of their own is the mean, for G x M to be the rows that there are."""
    M = problem.M if problem.row_groups is None else problem.rows / problem.G
    return [problem.G, M, problem.K, problem.N]


GEMM_COLUMNS = (
    text_column("types"), *(Column(name) for name in "GMKN"), Column("count"), time_column("latency"),
    text_column("80% within"), time_column("total"), percent_column("share"), text_column("bound"),
    percent_column("of peak"), Column("DRAM", "GB/s"), text_column("library"), text_column("source"),
    text_column("mapping"),
)  # fmt: skip


def gemm_table(
    heads: Mapping[Column, Sequence[Cell]], runs: Sequence[Run], total_us: float, caption: str = "", note: str = ""
) -> Table:
    """Return a table of GEMMs: columns `heads` with their cells, then those of all, `share` being of `total_us`."""
    rows = [
        [
            *first, result.problem.types.inputs, *sizes_of(result.problem), count, result.latency_us,
            interval_text(result.low_us, result.high_us), count * result.latency_us,
            100.0 * count * result.latency_us / total_us, result.bound, 100.0 * result.utilization_frac,
            result.dram_gb_per_s, result.options.get("library", "-"), result.source, str(result.mapping),
        ]
        for first, (_, result, count) in zip(zip(*heads.values(), strict=True), runs, strict=True)
    ]  # fmt: skip
    return Table([*heads, *GEMM_COLUMNS], rows, caption, note)


class ChangeGain(NamedTuple):
    """A change of the spec, and the time of all runs with it."""

    change: str
    total_us: float
    saved_frac: float
    helps_most: str  # the GEMM that it saves most

    def __str__(self) -> str:
        return f"{self.change}: {time_text(self.total_us)} (-{self.saved_frac:.0%})"


def changed_evaluators(evaluator: GEMMEvaluator, runs: Iterable[Run]) -> dict[str, GEMMEvaluator]:
    """Return an evaluator for each change that could help any of the GEMMs; one serves all, for setting up costs."""
    evaluators: dict[str, GEMMEvaluator] = {}
    for _, result, _ in runs:
        for change, fields in evaluator.backend.changes(result.problem):
            if change not in evaluators:
                with contextlib.suppress(GemmEvalError):  # a change that takes the spec out of its range
                    evaluators[change] = evaluator.on(evaluator.arch.with_(**fields))
    return evaluators


def change_gains(runs: Sequence[Run], changed: Mapping[str, GEMMEvaluator]) -> list[ChangeGain]:
    """Return changes that save `MIN_GAIN_FRAC` of the time by the model's terms alone, the most helpful first."""
    total_us = sum(run.total_us for run in runs)
    physics_us = sum(count * result.physics_us for _, result, count in runs)
    gains = []
    for change, evaluator in changed.items():
        savings = []
        for name, result, count in runs:
            with contextlib.suppress(GemmEvalError):  # one that does not fit the changed arch is no reason to stop
                us = evaluator.evaluate_problem(result.problem, **result.options).latency_us
                savings.append((count * (result.physics_us - us), name))
        saved_frac = sum(us for us, _ in savings) / physics_us
        if saved_frac >= MIN_GAIN_FRAC:
            gains.append(ChangeGain(change, total_us * (1.0 - saved_frac), saved_frac, max(savings)[1]))
    return sorted(gains, key=lambda gain: gain.total_us)
