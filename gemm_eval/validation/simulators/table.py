"""Our model and the other simulators side by side: bytes, cycles, seconds, and why they differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gemm_eval.errors import InvalidOptionError
from gemm_eval.validation.simulators import causes
from gemm_eval.validation.simulators.ours import count_ours
from gemm_eval.validation.simulators.scalesim import count_scalesim
from gemm_eval.validation.simulators.work import Chip, Counted, Gemm
from gemm_eval.validation.simulators.zigzag import count_zigzag

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["QUANTITIES", "SIMULATORS", "Difference", "SideBySide", "compare_simulators", "simulators_frame"]

QUANTITIES = ("bytes", "compute_cycles", "cycles")
"""What is compared: least DRAM traffic; cycles of the array alone; cycles of the fastest mapping with DRAM."""

SIMULATORS: dict[str, Callable[[Chip, Gemm], Counted]] = {"zigzag": count_zigzag, "scalesim": count_scalesim}
"""By name, what counts a GEMM on a chip."""


class Difference(NamedTuple):
    """One quantity of both sides, and why they differ where they do by more than 5%."""

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
        mine, others = _quantity(ours, quantity), _quantity(theirs, quantity)
        if mine is not None and others is not None:
            differences[quantity] = Difference(mine, others, causes.explain(mine, others, why[quantity]))
    return SideBySide(chip, gemm, name, ours, theirs, differences)


def _quantity(counted: Counted, name: str) -> float | None:
    found: float | None = counted.least.total if name == "bytes" else getattr(counted, name)
    return found


def simulators_frame(lines: Sequence[SideBySide]) -> pd.DataFrame:
    """Return a row for each line: both sides by quantity and operand, microseconds, causes with their amounts."""
    import pandas as pd

    return pd.DataFrame([dict(_cells(line)) for line in lines])


def _cells(line: SideBySide) -> Iterator[tuple[str, Any]]:
    yield from (("chip", line.chip.name), *line.gemm._asdict().items(), ("simulator", line.simulator))
    for side, counted in (("ours", line.ours), ("theirs", line.theirs)):
        yield from ((f"{operand}_{side}", count) for operand, count in counted.least._asdict().items())
    for quantity, found in line.differences.items():
        yield from ((f"{quantity}_ours", found.ours), (f"{quantity}_theirs", found.theirs))
        yield f"{quantity}_ratio", found.ratio
        yield f"{quantity}_causes", "; ".join(f"{name} {amount:+.0f}" for name, amount in found.reason.causes)
        yield f"{quantity}_unexplained", found.reason.unexplained
    if cycles := line.differences.get("cycles"):
        yield from (("us_ours", line.chip.us(cycles.ours)), ("us_theirs", line.chip.us(cycles.theirs)))
    yield from (("mapping_ours", line.ours.mapping), ("mapping_theirs", line.theirs.mapping))
