"""Many GEMMs of one command: rows of a file, or all combinations of sizes, on one arch or several."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import gemm_eval
from gemm_eval.cli.options import RUN_OPTIONS, TYPE_OPTIONS
from gemm_eval.cli.output import format_number, make_console, print_table
from gemm_eval.cli.values import integer, parse_rows
from gemm_eval.errors import InfeasibleError, InvalidInputError, InvalidOptionError, UnsupportedError
from gemm_eval.units import interval_text, time_text
from gemm_eval.words import did_you_mean, shown

_SIZES = ("G", "M", "K", "N")
_GROUPS = "row_groups"
_WHOLE = ("group_size", "group_n")
_FLAGS = {"true": True, "false": False, "1": True, "0": False}


class Shape(NamedTuple):
    """A GEMM to evaluate."""

    sizes: tuple[Any, ...]  # G, M, K, N as they are given: the library checks them
    where: str = ""  # its place in a file, for errors; empty: the command line
    row_groups: tuple[int, ...] | None = None  # rows of each group; None: M in all
    options: Mapping[str, Any] = {}  # types and options of its own, by the names of `evaluate_many`
    own: Mapping[str, Any] = {}  # columns of the file that are neither sizes nor row groups


class Answer(NamedTuple):
    """The result of a shape on an arch, as a row of a table."""

    shape: Shape
    table: gemm_eval.GEMMTable
    row: int

    @property
    def arch_name(self) -> str:
        """Name of the arch."""
        return self.table.evaluator.arch.name

    @property
    def problem(self) -> gemm_eval.GemmProblem:
        """The GEMM, with its types."""
        return self.table.problem(self.row)

    @property
    def is_feasible(self) -> bool:
        """True where a mapping fits."""
        return bool(self.table.is_feasible[self.row])

    @property
    def why_not(self) -> InfeasibleError | None:
        """The error that says what does not fit, and what would help; None: it fits."""
        try:
            self.table[self.row]
        except InfeasibleError as error:
            return error
        return None


def evaluate_shapes(
    evaluator: gemm_eval.GEMMEvaluator, shapes: Sequence[Shape], types: Mapping[str, Any], options: Mapping[str, Any]
) -> list[Answer]:
    """Evaluate shapes, also ones that do not fit; the words of a shape win over `types` and `options`."""
    problems = [_problem(evaluator, shape, types) for shape in shapes]
    alike: dict[Any, list[int]] = {}
    for index, (shape, problem) in enumerate(zip(shapes, problems, strict=True)):
        asked = tuple(shape.options.get(name, options[name]) for name in RUN_OPTIONS)
        alike.setdefault((problem.types, asked), []).append(index)
    answers: list[Any] = [None] * len(shapes)
    for (_, asked), places in alike.items():
        try:
            table = evaluator.evaluate_many(
                [problems[index] for index in places], errors="mark", **dict(zip(RUN_OPTIONS, asked, strict=True))
            )
        except (InvalidInputError, UnsupportedError) as error:
            raise _placed(shapes[places[0]], error) from None
        for row, index in enumerate(places):
            answers[index] = Answer(shapes[index], table, row)
    if not any(answer.is_feasible for answer in answers) and (error_of_first := answers[0].why_not):
        raise error_of_first
    return answers


def records(answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """Return answers as rows: arch, columns of the file (``latency_us_given`` where ours has the name), results."""
    rows_of = cache(lambda table: table.to_dicts())
    ours = [{"arch": answer.arch_name} | rows_of(answer.table)[answer.row] for answer in answers]
    known = dict.fromkeys(name for row in ours for name in row)
    names = {name: f"{name}_given" if name in known else name for name in answers[0].shape.own}
    for name in [name for name in names if name in known]:
        given = [answer.shape.own[name] for answer in answers]
        if name in (*TYPE_OPTIONS, *RUN_OPTIONS) or all(map(_says_nothing, given, (row.get(name) for row in ours))):
            del names[name]
    return [
        {"arch": row["arch"]} | {to: answer.shape.own[name] for name, to in names.items()} | row
        for answer, row in zip(answers, ours, strict=True)
    ]


def documents(answers: Iterable[Answer]) -> Iterator[dict[str, Any]]:
    """Yield answers as documents; one that does not fit has an error, and one of a file what the file says of it."""
    for answer in answers:
        given = {"given": dict(answer.shape.own)} if answer.shape.own else {}
        if answer.is_feasible:
            yield answer.table[answer.row].to_dict() | given
            continue
        sizes = dict(zip(_SIZES, answer.problem.sizes, strict=True))
        error = {"type": InfeasibleError.__name__, "message": str(answer.why_not)}
        yield {"problem": sizes, "arch_name": answer.arch_name, "error": error} | given


def _says_nothing(given: Any, ours: Any) -> bool:
    """Return whether a cell of a file is empty, or equals our own cell."""
    if given is None or given == ours or str(given) == str(ours):
        return True
    try:
        return float(given) == float(ours)
    except (TypeError, ValueError):
        return False


def shape_of(where: str, row: Mapping[str, Any]) -> Shape:
    """Return the GEMM of a row of a file: columns M, K, N, and any of G, row_groups, types, options and others."""
    groups = row.get(_GROUPS)
    needed = _SIZES[2:] if groups is not None else _SIZES[1:]
    if absent := [name for name in needed if name not in row]:
        meant = did_you_mean(absent[0], row)
        raise InvalidInputError(f"{where}: there is no column {absent[0]}{meant}; shapes have M, K, N, and may have G")
    options = {name: row[name] for name in (*TYPE_OPTIONS, *RUN_OPTIONS) if row.get(name) is not None}
    for name in _WHOLE:
        if name in options:
            options[name] = _number(options[name])
    if isinstance(flag := options.get("correction"), str):
        if flag.lower() not in _FLAGS:
            raise InvalidInputError(f"{where}, column correction: true or false, got {shown(flag)}")
        options["correction"] = _FLAGS[flag.lower()]
    sizes = tuple(_number(1 if name == "G" and row.get(name) is None else row.get(name)) for name in _SIZES)
    own = {name: cell for name, cell in row.items() if name not in (*_SIZES, _GROUPS)}
    if groups is None:
        return Shape(sizes, where, None, options, own)
    try:
        groups = parse_rows(groups) if isinstance(groups, str) else tuple(groups)
    except (InvalidOptionError, TypeError) as error:
        raise InvalidInputError(f"{where}, column {_GROUPS}: {error}") from None
    of_groups = (len(groups), max(groups, default=0))
    filled = (old if row.get(name) is not None else new for name, old, new in zip("GM", sizes, of_groups, strict=False))
    return Shape((*filled, *sizes[2:]), where, groups, options, own)


def _number(cell: Any) -> Any:
    """Return the whole number in a cell, or the cell where it is none: a column with gaps is often one of floats."""
    if isinstance(cell, str):
        whole, _, rest = cell.partition(".")
        return integer(whole if not rest.strip("0") else cell)
    return int(cell) if isinstance(cell, float) and cell.is_integer() else cell


def _problem(evaluator: gemm_eval.GEMMEvaluator, shape: Shape, types: Mapping[str, Any]) -> gemm_eval.GemmProblem:
    from gemm_eval.workload import make_problem

    own = {name: value for name, value in shape.options.items() if name in TYPE_OPTIONS}
    asked = own if "dtype" in own else {**types, **own}
    try:
        return make_problem(
            *shape.sizes, default_dtype=evaluator.arch.default_dtype, row_groups=shape.row_groups, **asked
        )
    except InvalidInputError as error:
        raise _placed(shape, error) from None


def _placed(shape: Shape, error: InvalidInputError | UnsupportedError) -> InvalidInputError | UnsupportedError:
    """Return the error with the line of its shape, and the column that it begins with."""
    if not shape.where:
        return error
    name = str(error).partition(" ")[0]
    column = f", column {name}" if name in (*_SIZES, _GROUPS, *shape.options) else ""
    return type(error)(f"{shape.where}{column}: {error}")


_ARCH, _TYPES_HEADER, _BOUND, _SOURCE = "arch", "types", "bound", "source"
_COSTS = ("time", "80% within", "TFLOP/s", "of peak", "DRAM GB/s", _BOUND, "library", _SOURCE)
_MISFIT = "does not fit"


def print_shapes(answers: Sequence[Answer]) -> None:
    """Print answers in their order; what all have in common stands above them."""
    cells = [_cells(answer, row) for answer, row in zip(answers, records(answers), strict=True)]
    common = [name for name in (_ARCH, *_SIZES, _TYPES_HEADER) if len({row[name] for row in cells}) == 1]
    words = [f"{name}={cells[0][name].replace(',', '')}" for name in _SIZES if name in common]  # as others show them
    words += [cells[0][_TYPES_HEADER]] * (_TYPES_HEADER in common) + [f"on {cells[0][_ARCH]}"] * (_ARCH in common)
    title = f"{len(cells):,} GEMMs{': ' * bool(words)}{' '.join(words)}"
    keys = [name for name in (_ARCH, *_SIZES, _TYPES_HEADER) if name not in common]
    print_table(cells, [*keys, *_COSTS], title=title, num_keys=len(keys))
    if misfits := say_misfits(answers):
        make_console().print(f"\n{misfits}")


def say_misfits(answers: Sequence[Answer]) -> str:
    """Say how many GEMMs do not fit, and why the first does not; an empty text where all do."""
    misfits = [answer for answer in answers if not answer.is_feasible]
    if not misfits:
        return ""
    first = misfits[0]
    return f"{len(misfits):,} of {len(answers):,} do not fit; the first, on {first.arch_name}: {first.why_not}"


def _cells(answer: Answer, row: dict[str, Any]) -> dict[str, str]:
    problem, groups = answer.problem, answer.problem.row_groups
    sizes = dict(zip(_SIZES, (f"{size:,}" for size in problem.sizes), strict=True))
    if groups is not None:
        sizes["M"] = f"{min(groups):,} to {max(groups):,}"
    cells = {_ARCH: answer.arch_name, **sizes, _TYPES_HEADER: problem.types.inputs}
    if not answer.is_feasible:
        return cells | dict.fromkeys(_COSTS, "-") | {"time": _MISFIT}
    return cells | {
        "time": time_text(row["latency_us"]),
        "80% within": interval_text(row["low_us"], row["high_us"]),
        "TFLOP/s": format_number(row["tflop_per_s"]),
        "of peak": f"{row['utilization_frac']:.1%}",
        "DRAM GB/s": format_number(row["dram_bytes"] / row["latency_us"] / 1e3),
        _BOUND: row["bound"],
        "library": row.get("library") or "-",
        _SOURCE: row["source"],
    }
