"""Durations of tests in the last runs, and the slow ones, which commits skip.

    python -m tools.durations               # the folders and tests that took longest
    python -m tools.durations --over 5      # also the tests over so many seconds that are not marked slow

Every run of pytest keeps its durations in .durations.json. A test is slow by the marker `slow`, or as a line of
tests/slow.txt: the id of a test, that of all its parameters, a file, or a folder.
"""

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / ".durations.json"
SLOW = ROOT / "tests" / "slow.txt"


def slow_names() -> frozenset[str]:
    """Return the ids of tests that are listed as slow."""
    lines = SLOW.read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))


def is_slow(name: str, listed: frozenset[str]) -> bool:
    """Return whether a test is listed: itself, without its parameters, or by its file or a folder."""
    file = Path(name.split("::", maxsplit=1)[0])
    return not listed.isdisjoint(
        {name, name.split("[", maxsplit=1)[0], file.as_posix(), *(path.as_posix() for path in file.parents)}
    )


def keep(reports: Iterable[Any]) -> None:
    """Add the seconds of tests, setup and teardown included, to those kept before; an unwritable folder keeps none."""
    seconds: dict[str, float] = defaultdict(float)
    for report in reports:
        if hasattr(report, "duration") and hasattr(report, "nodeid"):
            seconds[report.nodeid] += report.duration
    try:
        KEPT.write_text(json.dumps(load() | {name: round(value, 3) for name, value in seconds.items()}, indent=0))
    except OSError:
        return


def load() -> dict[str, float]:
    """Return test -> seconds; empty where none were kept."""
    try:
        seconds: dict[str, float] = json.loads(KEPT.read_text())
    except (OSError, ValueError):
        return {}
    return seconds


def main(arguments: list[str] | None = None) -> None:
    """Print sums by folder, and the longest tests."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--over", type=float, help="list the tests that took longer and are not slow")
    options = parser.parse_args(arguments)
    seconds, slow = load(), slow_names()
    folders: Counter[str] = Counter()
    for name, value in seconds.items():
        folders["/".join(name.split("::")[0].split("/")[:2])] += value  # type: ignore[assignment]
    for folder, value in folders.most_common():
        print(f"{value:8.1f} s  {folder}")
    least = options.over if options.over is not None else 10.0
    print(f"tests of over {least:g} s that tests/slow.txt does not list:")
    for name, value in sorted(seconds.items(), key=lambda item: -item[1]):
        if value > least and not is_slow(name, slow):
            print(f"{value:8.1f} s  {name}")


if __name__ == "__main__":
    main()
