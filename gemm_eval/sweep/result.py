"""`SweepResult`: the table of a sweep, its front, its ranking, and any of its points in full and in words."""

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import ArchSpec
from gemm_eval.errors import InvalidOptionError
from gemm_eval.evaluate import AttentionResult, GEMMEvaluator, GEMMTable, sum_interval
from gemm_eval.progress import progress_bar
from gemm_eval.sweep.chunk import point_evaluator
from gemm_eval.sweep.fields import build_arch
from gemm_eval.sweep.folder import FolderStore, Store, as_folder
from gemm_eval.sweep.metrics import Schema, Workload, is_maximized
from gemm_eval.sweep.pareto import pareto_front, pareto_rank
from gemm_eval.sweep.space import ARCH
from gemm_eval.sweep.sweep_file import base_archs, read_description, workloads_of
from gemm_eval.words import check_extra, did_you_mean, needs_extra, shown


class SweepResult:
    """A row for each point: number, base arch, variables, fields, area, metrics, and why it is excluded, if it is.

    Columns have units in their names; ``result["latency_us"]`` is one as an array. A sweep in a folder stays there:
    what is asked for is read, column by column, and of a single point only the file that holds it. Of a sweep that was
    interrupted, there are rows for the points that are done.
    """

    def __init__(self, store: Store, description: Mapping[str, Any]) -> None:
        self._store = store
        self._description = description

    def __len__(self) -> int:
        return len(self._store)

    def __repr__(self) -> str:
        return f"<SweepResult of {self._description['num_points']:,} points on {', '.join(self.bases)}>"

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        self._check_columns([name])
        return self._store.read([name])[name].to_numpy()

    @property
    def description(self) -> Mapping[str, Any]:
        """The sweep as plain values: space, workloads, objectives, sampling, versions of the models."""
        return self._description

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns, with units."""
        return tuple(self._description["columns"])

    @property
    def field_names(self) -> tuple[str, ...]:
        """Columns that say what a chip is: variables and fields."""
        return (*self._description["variables"], *self._description["fields"])

    @property
    def objectives(self) -> tuple[str, ...]:
        """The columns that count."""
        return tuple(self._description["objectives"])

    @cached_property
    def bases(self) -> dict[str, ArchSpec]:
        """The base archs by name."""
        return base_archs(self._description)

    @cached_property
    def workloads(self) -> tuple[Workload, ...]:
        """The workloads that ran on every chip."""
        return workloads_of(self._description)

    @property
    def is_feasible(self) -> npt.NDArray[np.bool_]:
        """[num_points]: whether a point can run everything and holds all constraints."""
        return self["excluded"] == ""

    def is_maximized(self, name: str) -> bool:
        """Say whether more of a column is better."""
        return is_maximized(name, self.workloads)

    def to_arrow(self, columns: Sequence[str] | None = None) -> Any:
        """Return a pyarrow Table, in the order of the points."""
        if columns is not None:
            self._check_columns(columns)
        return self._store.read(columns)

    def to_pandas(self, columns: Sequence[str] | None = None) -> Any:
        """Return a pandas DataFrame, in the order of the points."""
        return self.to_arrow(columns).to_pandas()

    def rows(self, places: Any) -> Any:
        """Return some rows as a DataFrame, in the order asked for."""
        return self._store.take(np.asarray(places, np.int64)).to_pandas()

    def pareto(self, objectives: Sequence[str] | None = None) -> Any:
        """Return the rows of the Pareto front as a DataFrame, best first by the first objective.

        A point is on it if it holds all constraints and no other such point is better in one objective and no worse in
        the rest; exact for any number of objectives.
        """
        values, places, maximize = self._aims(objectives)
        front = pareto_front(values, maximize=maximize)
        return self.rows(places[front][np.lexsort([places[front], _costs(values, maximize)[front]])])

    def rank(self, objectives: Sequence[str] | None = None, *, limit: int | None = 10) -> Any:
        """Return the best points as a DataFrame, by `front` (from 0), and within one by the first objective."""
        values, places, maximize = self._aims(objectives)
        costs = _costs(values, maximize)
        if len(maximize) == 1:
            return self.rows(places[np.argsort(costs, kind="stable")[:limit]])
        fronts = pareto_rank(values, maximize=maximize)
        order = np.lexsort([places, costs, fronts])
        order = order[fronts[order] >= 0][:limit]
        return self.rows(places[order]).assign(front=fronts[order])

    def excluded(self) -> Any:
        """Return a DataFrame of the reasons for which points are excluded, how many for each, and the first of them."""
        with needs_extra("a table of a sweep", "sweep"):
            import pandas as pd

        first_of: dict[str, list[Any]] = {}
        for table in self._store.parts(["point", "excluded"]):
            for point, reason in zip(*(table[name].to_pylist() for name in ("point", "excluded")), strict=True):
                if reason:  # points share its kind, or the columns of constraints
                    head, colon, _ = reason.partition(": ")
                    is_kind = colon and head in ("invalid", "unsupported", "infeasible")
                    kind = head if is_kind else ", ".join(part.split(" ")[0] for part in reason.split("; "))
                    first_of.setdefault(kind, [0, point, reason])[0] += 1
        rows = sorted(((kind, *of) for kind, of in first_of.items()), key=lambda row: -row[1])
        return pd.DataFrame(rows, columns=["reason", "num_points", "first_point", "example"])

    def arch(self, point: int) -> ArchSpec:
        """Return the spec of a point."""
        row = self.row(point)
        schema = Schema(self._description["columns"])
        changes = {name: schema.plain(name, row[name]) for name in self._description["fields"]}
        return build_arch(self.bases[row[ARCH]], changes) if changes else self.bases[row[ARCH]]

    def evaluate(self, point: int) -> dict[str, GEMMTable]:
        """Evaluate a point again, GEMM by GEMM: a table for each workload, rows in its order."""
        evaluator = self.evaluator(point)
        return {
            load.name: evaluator.evaluate_many([problem for problem, _ in load.gemms], errors="mark", progress=False)
            for load in self.workloads
        }

    def attention(self, point: int) -> dict[str, list[AttentionResult]]:
        """Evaluate the attention of a point again: of each workload that has some, the results in its order."""
        evaluator = self.evaluator(point)
        return {
            load.name: evaluator.evaluate_attention_problems([problem for problem, _ in load.attention])
            for load in self.workloads
            if load.attention
        }

    def basis(self, points: Iterable[int]) -> Any:
        """Return a DataFrame of what the latencies of feasible points rest on, a row each, in the order given.

        Columns: point; low_us and high_us, between which 80% of measured latencies are expected, of all workloads
        together and, where there are several, of each (``decode_low_us``); library ("-" on multi-core chips) and source
        of the GEMMs and of attention, those of most time first.
        """
        with needs_extra("a table of a sweep", "sweep"):
            import pandas as pd

        numbers, rows = list(points), []
        with progress_bar(len(numbers), "points", None) as advance:
            for point in numbers:
                rows.append({"point": point} | self._basis_of(point))
                advance(1)
        return pd.DataFrame(rows)

    def _basis_of(self, point: int) -> dict[str, Any]:
        tables, of_attention = self.evaluate(point), self.attention(point)
        all_parts: list[tuple[float, float, float]] = []
        us_by_word: dict[str, dict[str, float]] = {"library": {}, "source": {}}
        row: dict[str, Any] = {}
        for load in self.workloads:
            table, parts = tables[load.name], []
            names = [*_TIMES, "source", *(["library"] if "library" in table.columns else [])]
            answers = [dict(zip(names, row, strict=True)) for row in zip(*(table[name] for name in names), strict=True)]
            results = of_attention.get(load.name, ())
            answers += [{name: getattr(result, name) for name in _OF_ATTENTION} for result in results]
            for answer, (_, count) in zip(answers, load.problems, strict=True):
                parts.append(tuple(count * answer[name] for name in _TIMES))
                for name, times in us_by_word.items():
                    word = answer.get(name) or "-"
                    times[word] = times.get(word, 0.0) + parts[-1][0]
            if len(self.workloads) > 1:
                row |= dict(zip((f"{load.name}_low_us", f"{load.name}_high_us"), sum_interval(parts), strict=True))
            all_parts += parts
        words = {name: ", ".join(sorted(times, key=lambda word: -times[word])) for name, times in us_by_word.items()}
        return dict(zip(("low_us", "high_us"), sum_interval(all_parts), strict=True)) | row | words

    def evaluator(self, point: int) -> GEMMEvaluator:
        """Return an evaluator of the chip of a point, with the options of the sweep."""
        return point_evaluator(self.arch(point), self._description["options"])

    def explain(self, point: int, objectives: str | Sequence[str] | None = None) -> str:
        """Return a text on a point: what it is, where the time of each workload goes, what would help the heaviest.

        `objectives` are the columns whose values it starts with, as for `pareto`; None: those of the sweep.
        """
        row = self.row(point)
        texts = {name: f"{row[name]:,}" if type(row[name]) is int else row[name] for name in self.field_names}
        texts = {name: f"{text:,.6g}" if isinstance(text, float) else text for name, text in texts.items()}
        chip = ", ".join(f"{name} {text}" for name, text in texts.items())
        lines = [f"Point {point}: {row['arch']}" + (f" with {chip}" if chip else "")]
        if row["excluded"]:
            lines.append(f"Excluded: {row['excluded']}")
            if row["excluded"].startswith(("invalid", "unsupported")):  # there is nothing to evaluate
                return "\n".join(lines)
        aims = self.objectives if objectives is None else [objectives] if isinstance(objectives, str) else objectives
        self._check_columns(aims)
        known = [name for name in aims if isinstance(row[name], int | float | np.number) and not np.isnan(row[name])]
        lines += [f"{name}: {row[name]:,.6g}" for name in known]
        of_attention = self.attention(point)
        for workload, table in zip(self.workloads, self.evaluate(point).values(), strict=True):
            if table.is_feasible.all():
                lines += _explain_workload(workload, table, of_attention.get(workload.name, ()))
            else:
                lines.append(f"{workload.name}: {int((~table.is_feasible).sum())} of {len(table)} GEMMs do not fit")
        return "\n".join(lines)

    def row(self, point: int) -> dict[str, Any]:
        """Return all columns of a point."""
        num = self._description["num_points"]
        if isinstance(point, bool) or not isinstance(point, int | np.integer) or not 0 <= point < num:
            raise InvalidOptionError(f"point must be in 0..{num - 1}, got {shown(point)}")
        row = self._store.point(int(point))
        if row is None:
            raise InvalidOptionError(f"point {point} is not done yet: {len(self):,} of {num:,} are")
        return row

    def _check_columns(self, names: Sequence[str]) -> None:
        for name in names:
            if name not in self.columns:
                raise InvalidOptionError(
                    f"no column {shown(name)}; there are {', '.join(self.columns)}{did_you_mean(name, self.columns)}"
                )

    def _aims(self, names: Sequence[str] | None) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64], list[bool]]:
        """Objectives [num, num_objectives] of the feasible points, where these stand, and which are to be large."""
        aims = self.objectives if names is None else (names,) if isinstance(names, str) else tuple(names)
        self._check_columns(aims)
        if not aims:
            raise InvalidOptionError("at least one objective is needed")
        values, places, num = [np.empty((0, len(aims)))], [np.empty(0, np.int64)], 0
        for table in self._store.parts(list(dict.fromkeys([*aims, "excluded"]))):
            good = np.flatnonzero(table["excluded"].to_numpy() == "")
            values.append(np.stack([table[name].to_numpy().astype(np.float64)[good] for name in aims], axis=1))
            places.append(good + num)
            num += table.num_rows
        return np.concatenate(values), np.concatenate(places), [self.is_maximized(name) for name in aims]


def _costs(values: npt.NDArray[np.float64], maximize: Sequence[bool]) -> npt.NDArray[np.float64]:
    """Return the first objective, less being better."""
    return -values[:, 0] if maximize[0] else values[:, 0]


def load_sweep(path: str | os.PathLike[str]) -> SweepResult:
    """Return the sweep in a folder, as far as it has come.

    What is read of it later is checked then: a file that is damaged or of another sweep raises a `GemmEvalError`.

    Raises:
        GemmEvalError: the folder holds none, its description is damaged, or a package of the extra ``[sweep]`` is
            missing.
    """
    check_extra("a sweep", "sweep", "pandas", "pyarrow")
    folder = as_folder(path)
    description = read_description(folder)
    return SweepResult(FolderStore(folder, Schema(description["columns"]), description), description)


_MOST = 5
_TIMES = ("latency_us", "low_us", "high_us")
_OF_ATTENTION = (*_TIMES, "source", "library")


def _explain_workload(workload: Workload, table: GEMMTable, of_attention: Sequence[AttentionResult]) -> list[str]:
    times = table["latency_us"] * np.array([count for _, count in workload.gemms])
    attention_us = sum(
        count * result.latency_us for (_, count), result in zip(workload.attention, of_attention, strict=True)
    )
    total_us = times.sum() + attention_us
    lines = [f"{workload.name}: {total_us:,.1f} us"]
    if attention_us:
        lines.append(f"  {attention_us / total_us:5.1%}  attention: {attention_us:,.1f} us")
    order = np.argsort(-times, kind="stable").tolist()
    for at in order[:_MOST]:
        gemm = table[at]
        lines.append(
            f"  {times[at] / total_us:5.1%}  {workload.gemms[at][1]} x {gemm.problem}: "
            f"{gemm.latency_us:,.1f} us, {gemm.bound}, {gemm.mapping}"
        )
    return lines + ["  " + line for line in table[order[0]].explain().splitlines()]
