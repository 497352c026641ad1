"""`python -m benchmarks.simulators`: our multi-core model beside ZigZag and SCALE-Sim: bytes, cycles, and causes.

`chips` has the chips, the GEMMs and our counts; `zigzag` and `scalesim` count a GEMM on a chip, each by its simulator;
`causes` says why two counts differ. The simulators need an environment of their own: `make compare`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from benchmarks.command import run
from benchmarks.simulators import causes
from benchmarks.simulators.chips import GEMMS, Chip, Counted, Gemm, count_ours, find_chips
from benchmarks.simulators.scalesim import count_scalesim
from benchmarks.simulators.zigzag import count_zigzag
from gemm_eval.cli.output import make_console, print_json, print_wide
from gemm_eval.cli.values import Command
from gemm_eval.errors import InvalidOptionError
from gemm_eval.progress import progress_bar
from gemm_eval.words import check_extra

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table

QUANTITIES = ("bytes", "compute_cycles", "cycles")
"""Least DRAM traffic; cycles of the array alone; cycles of the fastest mapping with DRAM."""

SIMULATORS: dict[str, Callable[[Chip, Gemm], Counted]] = {"zigzag": count_zigzag, "scalesim": count_scalesim}
"""By name, what counts a GEMM on a chip."""


class Difference(NamedTuple):
    """A quantity of both sides, and why they differ where they do by more than 5%."""

    ours: float
    theirs: float
    reason: causes.Reason

    @property
    def ratio(self) -> float:
        """Theirs over ours."""
        return self.theirs / self.ours


class SideBySide(NamedTuple):
    """A GEMM on a chip, by us and by another simulator; `differences` are by quantity, of those that both say."""

    chip: Chip
    gemm: Gemm
    simulator: str
    ours: Counted
    theirs: Counted
    differences: dict[str, Difference]


def compare_simulators(
    chips: Sequence[Chip], gemms: Sequence[Gemm], names: Sequence[str] = tuple(SIMULATORS)
) -> Iterator[SideBySide]:
    """Yield each GEMM on each chip beside each simulator, as they are done: seconds each.

    Raises:
        GemmEvalError: a package of the extra is missing.
        InvalidOptionError: a name is not one of `SIMULATORS`.
    """
    for name in names:
        if name not in SIMULATORS:
            raise InvalidOptionError(f"--simulator must be one of {', '.join(SIMULATORS)}, got {name!r}")
    for chip in chips:
        for gemm in gemms:
            ours = count_ours(chip, gemm)
            for name in names:
                yield put_beside(chip, gemm, name, ours, SIMULATORS[name](chip, gemm))


def put_beside(chip: Chip, gemm: Gemm, name: str, ours: Counted, theirs: Counted) -> SideBySide:
    """Return both sides, and why they differ."""
    if name == "zigzag":
        why = {
            "bytes": causes.zigzag_bytes(chip, gemm, ours),
            "compute_cycles": [],
            "cycles": causes.zigzag_cycles(chip, ours, theirs),
        }
    else:
        why = {
            "bytes": causes.scalesim_bytes(chip, gemm, ours, theirs),
            "compute_cycles": causes.scalesim_compute(chip, gemm, ours, theirs),
            "cycles": causes.scalesim_cycles(chip, gemm, ours, theirs),
        }
    differences = {}
    for quantity in QUANTITIES:
        our_value, others = _quantity(ours, quantity), _quantity(theirs, quantity)
        if our_value is not None and others is not None:
            differences[quantity] = Difference(our_value, others, causes.explain(our_value, others, why[quantity]))
    return SideBySide(chip, gemm, name, ours, theirs, differences)


def _quantity(counted: Counted, name: str) -> float | None:
    value: float | None = counted.least.total if name == "bytes" else getattr(counted, name)
    return value


def simulators_frame(lines: Sequence[SideBySide]) -> pd.DataFrame:
    """Return a row for each line: both sides by quantity and operand, microseconds, causes with their amounts."""
    import pandas as pd

    return pd.DataFrame([dict(_frame_cells(line)) for line in lines])


def _frame_cells(line: SideBySide) -> Iterator[tuple[str, Any]]:
    yield from (("chip", line.chip.name), *line.gemm._asdict().items(), ("simulator", line.simulator))
    for side, counted in (("ours", line.ours), ("theirs", line.theirs)):
        yield from ((f"{operand}_{side}", count) for operand, count in counted.least._asdict().items())
    for quantity, difference in line.differences.items():
        yield from ((f"{quantity}_ours", difference.ours), (f"{quantity}_theirs", difference.theirs))
        yield f"{quantity}_ratio", difference.ratio
        yield f"{quantity}_causes", "; ".join(f"{name} {amount:+.0f}" for name, amount in difference.reason.causes)
        yield f"{quantity}_unexplained", difference.reason.unexplained
    if cycles := line.differences.get("cycles"):
        yield from (("us_ours", line.chip.us(cycles.ours)), ("us_theirs", line.chip.us(cycles.theirs)))
    yield from (("mapping_ours", line.ours.mapping), ("mapping_theirs", line.theirs.mapping))


_HEADERS = ("M x K x N", "kB", "theirs", "ratio", "array cycles", "theirs", "us", "theirs", "ratio", "why")
_WORDS = {"bytes": "bytes", "compute_cycles": "array", "cycles": "time"}


app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command(cls=Command)
def simulators(
    chip: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="Chips of one core: array32, array32-small, array128. Repeatable. Default: each."
        ),
    ] = None,
    simulator: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="zigzag or scalesim. Repeatable. Default: both.")
    ] = None,
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write both sides of it all as CSV.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Put the multi-core model beside ZigZag and SCALE-Sim: the same GEMMs on the same chips; takes minutes.

    Bytes are those of the mapping that moves least, cycles those of the fastest one. Each difference above 5% is taken
    apart by rules that are checked on its numbers; what they leave over is called unexplained.
    """
    check_extra("comparing with simulators", "simulators", "zigzag", "scalesim")
    chips, names = find_chips(chip or []), simulator or list(SIMULATORS)
    lines = []
    with progress_bar(len(chips) * len(GEMMS) * len(names), "GEMMs", None) as advance:
        for line in compare_simulators(chips, GEMMS, names):
            lines.append(line)
            advance(1)
    if csv is not None:
        simulators_frame(lines).to_csv(csv, index=False)
    if json:
        print_json({"lines": [_plain(line) for line in lines]})
        return
    console = make_console()
    for name in names:
        of_simulator = [line for line in lines if line.simulator == name]
        marks = _marks(of_simulator)
        for on_chip in chips:
            print_wide(_table([line for line in of_simulator if line.chip == on_chip], marks))
        console.print("why bytes/array cycles/us are more than 5% apart, ? being unexplained:")
        console.print(*(f"  {mark} {title}" for title, mark in marks.items()), *_summary(of_simulator), sep="\n")


def _plain(line: SideBySide) -> dict[str, Any]:
    return {
        "chip": line.chip._asdict(),
        "gemm": line.gemm._asdict(),
        "simulator": line.simulator,
        "ours": line.ours._asdict() | {"least": line.ours.least._asdict(), "moved": line.ours.moved._asdict()},
        "theirs": line.theirs._asdict() | {"least": line.theirs.least._asdict(), "moved": line.theirs.moved._asdict()},
        "differences": {
            quantity: {
                "ours": difference.ours, "theirs": difference.theirs,
                "causes": [cause._asdict() for cause in difference.reason.causes],
                "unexplained": difference.reason.unexplained,
            }
            for quantity, difference in line.differences.items()
        },
    }  # fmt: skip


def _marks(lines: Sequence[SideBySide]) -> dict[str, str]:
    """Return a letter for each cause that is named, in the order in which they are met."""
    causes = (
        cause.name for line in lines for difference in line.differences.values() for cause in difference.reason.causes
    )
    return dict(zip(dict.fromkeys(causes), ascii_lowercase, strict=False))


def _table(lines: Sequence[SideBySide], marks: dict[str, str]) -> Table:
    from gemm_eval.validation import report_table

    chip = lines[0].chip
    table = report_table(
        _HEADERS,
        f"{lines[0].simulator}, {chip.name}: {chip.rows} x {chip.columns}, {chip.sram_bytes // 1024} KiB, "
        f"{chip.dram_bytes_per_cycle} B a cycle, {chip.frequency_ghz:g} GHz",
    )
    for line in lines:
        table.add_row(*_cells(line, marks))
    return table


def _cells(line: SideBySide, marks: dict[str, str]) -> Iterator[str]:
    moved, array, time = (line.differences.get(name) for name in _WORDS)
    yield " x ".join(map(str, line.gemm))
    yield from _pair(moved, 1e-3, "{:,.0f}")
    yield "-" if moved is None else f"{moved.ratio:.2f}"
    yield from _pair(array, 1.0, "{:,.0f}")
    yield from _pair(time, line.chip.us(1.0), "{:,.1f}")
    yield "-" if time is None else f"{time.ratio:.2f}"
    why = [_why(difference, marks) for difference in (moved, array, time)]
    yield "/".join(mark or "-" for mark in why) if any(why) else ""


def _why(difference: Difference | None, marks: dict[str, str]) -> str:
    if difference is None:
        return ""
    return "".join(marks[cause.name] for cause in difference.reason.causes) + "?" * bool(difference.reason.unexplained)


def _pair(difference: Difference | None, unit: float, form: str) -> Iterator[str]:
    if difference is None:
        yield from ("-", "-")
    else:
        yield from (form.format(side * unit) for side in (difference.ours, difference.theirs))


def _summary(lines: Sequence[SideBySide]) -> Iterator[str]:
    """Yield two lines for each quantity: how often each side says less, and the causes."""
    for quantity, word in _WORDS.items():
        differences = [line.differences[quantity] for line in lines if quantity in line.differences]
        less = sum(each.ours < each.theirs for each in differences)
        same = sum(each.ours == each.theirs for each in differences)
        more = len(differences) - less - same
        large = [each.reason for each in differences if str(each.reason)]
        names = Counter(cause.name for reason in large for cause in reason.causes)
        unexplained = sum(bool(reason.unexplained) for reason in large)
        causes = ", ".join([*(f"{name} {num}" for name, num in names.most_common()), f"unexplained {unexplained}"])
        yield f"{word}: ours less in {less} of {len(differences)}, equal in {same}, more in {more}"
        yield f"  more than 5% apart: {len(large)}; {causes}"


if __name__ == "__main__":
    run(app)
