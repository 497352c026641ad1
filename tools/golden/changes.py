"""Golden answers: how they are read, compared and written anew, and what is said of those that changed."""

import csv
import itertools
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

Row = dict[str, str]
Pair = tuple[Row | None, Row | None]
"""A row as it was and as it is now; None where there is none."""

# Times are the same to the bit where the compiler keeps the order of sums, as it does on x86; other machines may fuse
# a multiply and an add.
RELATIVE_TOLERANCE = 1e-7
_SHOWN = 8


class Golden(NamedTuple):
    """A file of golden answers.

    Attributes:
        path: a CSV file; rows of one answer follow each other, best first.
        key: the columns that say what was asked, arch and dtype first.
        text: computes the file's content anew.
        first_change: of two answers [rows], the first pair of rows that is different, or None.
        version: the constant to raise when answers change on purpose.
    """

    path: Path
    key: tuple[str, ...]
    text: Callable[[], str]
    first_change: Callable[[list[Row], list[Row]], Pair | None]
    version: str


def read(golden: Golden, text: str | None = None) -> dict[tuple[str, ...], list[Row]]:
    """Return the answers by what was asked; of the file, or of a text such as `golden.text()`."""
    lines = (golden.path.read_text(encoding="utf-8") if text is None else text).splitlines()
    groups = itertools.groupby(csv.DictReader(lines), lambda row: tuple(row[name] for name in golden.key))
    return {key: list(rows) for key, rows in groups}


def first_change(old: list[Row], new: list[Row]) -> Pair | None:
    """The first pair of rows that differ in anything."""
    return next((pair for pair in itertools.zip_longest(old, new) if pair[0] != pair[1]), None)


def first_change_of_ranking(old: list[Row], new: list[Row]) -> Pair | None:
    """The first pair of rows that differ; configs of the same time may stand in any order."""
    for a, b in itertools.zip_longest(old, new):
        if a is None or b is None or not _is_as_long(a, b):
            return a, b
        tied = [row["config"] for row in new if _is_as_long(row, a)]
        is_cut_off = _is_as_long(a, old[-1])  # the tie may go on beyond the last that is listed
        if a["config"] not in tied and not is_cut_off:
            return a, b
        if a["config"] == b["config"] and a["bound"] != b["bound"]:
            return a, b
    return None


def _is_as_long(a: Row, b: Row) -> bool:
    return math.isclose(float(a["latency_us"]), float(b["latency_us"]), rel_tol=RELATIVE_TOLERANCE)


def changes(golden: Golden, text: str, *, old_text: str | None = None) -> str:
    """What changed from the file (or `old_text`) to `text`, in some 30 lines; nothing where answers are the same.

    How many answers, by how much their times moved (best row against best row), of which arch and dtype they are, and
    the first few of them, each with the first of its rows that is different.
    """
    old, new = read(golden, old_text), read(golden, text)
    both = [key for key in old if key in new]
    pairs = {key: golden.first_change(old[key], new[key]) for key in both}
    changed = [key for key, pair in pairs.items() if pair]
    gone, fresh = [key for key in old if key not in new], [key for key in new if key not in old]
    if not (changed or gone or fresh):
        return ""
    lines = [f"{len(changed)} of {len(old)} answers of {golden.path.name} changed, {len(gone)} gone, {len(fresh)} new"]
    moved = {key: float(new[key][0]["latency_us"]) / float(old[key][0]["latency_us"]) - 1.0 for key in changed}
    if moved:
        worst = max(moved, key=lambda key: abs(moved[key]))
        lines.append(
            f"latency of the best: median {statistics.median(moved.values()):+.3%}, largest {moved[worst]:+.3%} "
            f"({' '.join(worst)})"
        )
    lines += _counts(golden, [*changed, *gone, *fresh])
    for key in changed[:_SHOWN]:
        before, after = pairs[key] or (None, None)
        lines += [" ".join(key), f"  - {_told(golden, before)}", f"  + {_told(golden, after)}"]
    lines += [f"gone: {' '.join(key)}" for key in gone[:_SHOWN]] + [f"new: {' '.join(key)}" for key in fresh[:_SHOWN]]
    return "\n".join(lines)


def _counts(golden: Golden, keys: Iterable[tuple[str, ...]]) -> list[str]:
    """How many answers there are by the first two columns of the key."""
    return [f"  {' '.join(place)}: {count}" for place, count in Counter(key[:2] for key in keys).most_common(_SHOWN)]


def _told(golden: Golden, row: Row | None) -> str:
    return "no row" if row is None else " ".join(value for name, value in row.items() if name not in golden.key)


def rewrite(golden: Golden) -> None:
    """Write the file anew and print what changed."""
    text = golden.text()
    print(changes(golden, text) or f"{golden.path.name}: no answer changed")
    golden.path.write_text(text, encoding="utf-8")
