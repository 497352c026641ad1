"""`gemm-eval validate simulators`: our multi-core model beside ZigZag and SCALE-Sim."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table

    from gemm_eval.validation.simulators import Difference, SideBySide

__all__ = ["validate_simulators"]

_HEADERS = (
    "M x K x N", "kB", "theirs", "ratio", "array cycles", "theirs", "us", "theirs", "ratio", "why above 5%",
)  # fmt: skip
_WORDS = {"bytes": "bytes", "compute_cycles": "array", "cycles": "time"}


def validate_simulators(chips: list[str], names: list[str], *, csv: Path | None, as_json: bool) -> None:
    """Count and print; arguments as the options of the command."""
    from gemm_eval.extras import check_extra

    check_extra("comparing with simulators", "simulators", "zigzag", "scalesim")
    from gemm_eval.cli.output import make_console, print_json, write_csv
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
        for chip in found:
            console.print(_table([line for line in lines if (line.simulator, line.chip) == (simulator, chip)]))
        console.print(*_summary([line for line in lines if line.simulator == simulator]), sep="\n")


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


def _table(lines: Sequence[SideBySide]) -> Table:
    from gemm_eval.cli.output import make_table

    chip = lines[0].chip
    title = (
        f"{lines[0].simulator}, {chip.name}: {chip.rows} x {chip.columns}, {chip.sram_bytes // 1024} KiB, "
        f"{chip.dram_bytes_per_cycle} B a cycle, {chip.frequency_ghz:g} GHz"
    )
    table = make_table(_HEADERS, title=title, right=_HEADERS[1:-1])
    for line in lines:
        table.add_row(*_cells(line))
    return table


def _cells(line: SideBySide) -> Iterator[str]:
    moved, array, time = (line.differences.get(name) for name in _WORDS)
    yield " x ".join(map(str, line.gemm))
    yield from _pair(moved, 1e-3, "{:,.0f}")
    yield "-" if moved is None else f"{moved.ratio:.2f}"
    yield from _pair(array, 1.0, "{:,.0f}")
    yield from _pair(time, line.chip.us(1.0), "{:,.1f}")
    yield "-" if time is None else f"{time.ratio:.2f}"
    reasons = ((_WORDS[name], str(found.reason)) for name, found in line.differences.items())
    yield "; ".join(f"{word}: {reason}" for word, reason in reasons if reason)


def _pair(found: Difference | None, unit: float, form: str) -> Iterator[str]:
    if found is None:
        yield from ("-", "-")
    else:
        yield from (form.format(side * unit) for side in (found.ours, found.theirs))


def _summary(lines: Sequence[SideBySide]) -> Iterator[str]:
    """A line for each quantity: how often who says less, and which causes."""
    for quantity, word in _WORDS.items():
        found = [line.differences[quantity] for line in lines if quantity in line.differences]
        less = sum(each.ours < each.theirs for each in found)
        same = sum(each.ours == each.theirs for each in found)
        large = [each.reason for each in found if str(each.reason)]
        names = Counter(cause.name for reason in large for cause in reason.causes)
        unexplained = sum(bool(reason.unexplained) for reason in large)
        yield (
            f"{word}: ours less in {less} of {len(found)}, equal in {same}, more in {len(found) - less - same}; "
            f"above 5% apart {len(large)}, of them not wholly explained {unexplained}: "
            + ", ".join(f"{name} {num}" for name, num in names.most_common())
        )
