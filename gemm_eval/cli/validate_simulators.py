"""`gemm-eval validate simulators`: our multi-core model beside ZigZag and SCALE-Sim."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from gemm_eval.validation.simulators import Difference, SideBySide

__all__ = ["validate_simulators"]

_HEADERS = ("M x K x N", "kB", "theirs", "ratio", "array cycles", "theirs", "us", "theirs", "ratio", "why")
_WORDS = {"bytes": "bytes", "compute_cycles": "array", "cycles": "time"}


def validate_simulators(chips: list[str], names: list[str], *, csv: Path | None, as_json: bool) -> None:
    """Count and print; arguments as the options of the command."""
    from gemm_eval.extras import check_extra

    check_extra("comparing with simulators", "simulators", "zigzag", "scalesim")
    from gemm_eval.cli.output import make_console, print_json, widest, write_csv
    from gemm_eval.evaluate import progress_bar
    from gemm_eval.validation.simulators import (
        GEMMS,
        SIMULATORS,
        compare_simulators,
        find_chips,
        simulators_frame,
    )

    found, simulators = find_chips(chips), names or list(SIMULATORS)
    lines = []
    with progress_bar(len(found) * len(GEMMS) * len(simulators), "GEMMs", None) as advance:
        for line in compare_simulators(found, GEMMS, simulators):
            lines.append(line)
            advance(1)
    if csv is not None:
        write_csv(simulators_frame(lines), csv)
    if as_json:
        print_json({"lines": [_plain(line) for line in lines]})
        return
    console = make_console()
    for simulator in simulators:
        of_it = [line for line in lines if line.simulator == simulator]
        marks = _marks(of_it)
        for chip in found:
            table = _table([line for line in of_it if line.chip == chip], marks)
            console.width = max(console.width, widest(console, table))  # half a number says nothing
            console.print(table)
        console.print("why bytes/array cycles/us are more than 5% apart, ? being unexplained:")
        console.print(*(f"  {mark} {name}" for name, mark in marks.items()), *_summary(of_it), sep="\n")


def _plain(line: SideBySide) -> dict[str, Any]:
    return {
        "chip": line.chip._asdict(),
        "gemm": line.gemm._asdict(),
        "simulator": line.simulator,
        "ours": line.ours._asdict() | {"least": line.ours.least._asdict(), "moved": line.ours.moved._asdict()},
        "theirs": line.theirs._asdict() | {"least": line.theirs.least._asdict(), "moved": line.theirs.moved._asdict()},
        "differences": {
            quantity: {
                "ours": found.ours, "theirs": found.theirs,
                "causes": [cause._asdict() for cause in found.reason.causes],
                "unexplained": found.reason.unexplained,
            }
            for quantity, found in line.differences.items()
        },
    }  # fmt: skip


def _marks(lines: Sequence[SideBySide]) -> dict[str, str]:
    """A letter for each cause that is named, in the order in which they are met."""
    causes = (cause.name for line in lines for found in line.differences.values() for cause in found.reason.causes)
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
    why = [_why(found, marks) for found in (moved, array, time)]
    yield "/".join(mark or "-" for mark in why) if any(why) else ""


def _why(found: Difference | None, marks: dict[str, str]) -> str:
    if found is None:
        return ""
    return "".join(marks[cause.name] for cause in found.reason.causes) + "?" * bool(found.reason.unexplained)


def _pair(found: Difference | None, unit: float, form: str) -> Iterator[str]:
    if found is None:
        yield from ("-", "-")
    else:
        yield from (form.format(side * unit) for side in (found.ours, found.theirs))


def _summary(lines: Sequence[SideBySide]) -> Iterator[str]:
    """Two lines for each quantity: how often who says less, and which causes."""
    for quantity, word in _WORDS.items():
        found = [line.differences[quantity] for line in lines if quantity in line.differences]
        less = sum(each.ours < each.theirs for each in found)
        same = sum(each.ours == each.theirs for each in found)
        large = [each.reason for each in found if str(each.reason)]
        names = Counter(cause.name for reason in large for cause in reason.causes)
        unexplained = sum(bool(reason.unexplained) for reason in large)
        said = ", ".join([*(f"{name} {num}" for name, num in names.most_common()), f"unexplained {unexplained}"])
        yield f"{word}: ours less in {less} of {len(found)}, equal in {same}, more in {len(found) - less - same}"
        yield f"  more than 5% apart: {len(large)}; {said}"
