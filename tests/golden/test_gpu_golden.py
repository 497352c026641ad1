"""Rankings of kernel configs stay what they are until somebody changes them on purpose."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Iterable

from tests.golden.generate_gpu import GPU_GOLDEN_FILE, KEY_COLUMNS, gpu_golden_text

# Times are the same to the bit where the compiler keeps the order of sums, as it does on x86; other machines may fuse
# a multiply and an add.
RELATIVE_TOLERANCE = 1e-7
MAX_BYTES = 1_500_000
HOW = "rankings changed; if on purpose: raise GPU_MODEL_VERSION, make golden"

Row = dict[str, str]


def rankings(lines: Iterable[str]) -> dict[tuple[str, ...], list[Row]]:
    rows = csv.DictReader(lines)
    return {key: list(group) for key, group in itertools.groupby(rows, lambda row: tuple(row[c] for c in KEY_COLUMNS))}


def is_close(a: Row, b: Row) -> bool:
    return math.isclose(float(a["latency_us"]), float(b["latency_us"]), rel_tol=RELATIVE_TOLERANCE)


def difference(old: list[Row], new: list[Row]) -> str | None:
    """What is different about a ranking; configs of the same time may stand in any order."""
    for a, b in itertools.zip_longest(old, new):
        if a is None or b is None:
            return f"{len(old)} configs before, {len(new)} now"
        was = f"rank {a['rank']}: {a['latency_us']} us {a['config']}, now {b['latency_us']} us {b['config']}"
        if not is_close(a, b):
            return was
        tied = [row["config"] for row in new if is_close(row, a)]
        is_cut_off = is_close(a, old[-1])  # the tie may go on beyond the last that is listed
        if a["config"] not in tied and not is_cut_off:
            return was
        if a["config"] == b["config"] and a["bound"] != b["bound"]:
            return f"{was}: bound by {a['bound']}, now {b['bound']}"
    return None


def test_rankings_are_the_golden_ones() -> None:
    expected = rankings(GPU_GOLDEN_FILE.read_text(encoding="utf-8").splitlines())
    actual = rankings(gpu_golden_text().splitlines())

    assert list(actual) == list(expected), HOW
    differences = {key: difference(expected[key], actual[key]) for key in expected}
    changed = [f"{' '.join(key)}: {text}" for key, text in differences.items() if text]
    assert not changed, "\n".join([f"{len(changed)} of {len(expected)} {HOW}", *changed[:10]])


def test_the_golden_file_says_enough_and_is_not_too_large() -> None:
    ranked = rankings(GPU_GOLDEN_FILE.read_text(encoding="utf-8").splitlines())

    assert len({key[4:] for key in ranked}) >= 40
    assert all(len(rows) == 10 for rows in ranked.values())
    assert GPU_GOLDEN_FILE.stat().st_size < MAX_BYTES


def test_a_change_of_rank_or_time_is_noticed() -> None:
    rows = [{"rank": str(i), "latency_us": f"{t}", "bound": "dram", "config": c} for i, t, c in
            ((1, 5.0, "a"), (2, 6.0, "b"), (3, 6.0, "c"), (4, 7.0, "d"))]  # fmt: skip
    a, b, c, d = rows

    assert difference(rows, rows) is None
    assert difference(rows, [a, c, b, d]) is None
    assert difference(rows, [a, b, c, d | {"config": "e"}]) is None  # perhaps another of 7 us
    assert difference(rows, [a | {"latency_us": "5.00000001"}, b, c, d]) is None
    assert difference(rows, [b, a, c, d]) is not None
    assert difference(rows, [a | {"config": "e"}, b, c, d]) is not None
    assert difference(rows, [a | {"latency_us": "5.0001"}, b, c, d]) is not None
    assert difference(rows, [a | {"bound": "l2"}, b, c, d]) is not None
    assert difference(rows, rows[:3]) is not None
