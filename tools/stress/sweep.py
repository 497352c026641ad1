"""Kill and crowd sweeps in folders: ``python -m tools.stress.sweep --kills 200``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tools.stress.sweep_folders import crowd, kill_many


def main() -> int:
    """Return the exit code: 1 if something was lost or doubled."""
    parser = argparse.ArgumentParser(prog="python -m tools.stress.sweep", description=__doc__)
    parser.add_argument("--kills", type=int, default=200, help="processes to kill (default: %(default)s)")
    parser.add_argument("--sweeps", type=int, default=10, help="folders for the crowd (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=8, help="of the crowd (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=8, help="of each of these (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of when to kill (default: %(default)s)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="stress-") as folder:
        killed = kill_many(options.kills, options.seed, Path(folder))
        print(
            f"{killed.num_kills} kills in {killed.num_sweeps} sweeps: {killed.num_parts:,} parts left and found again, "
            f"{killed.num_leftovers} files half written and removed; nothing lost, nothing doubled",
            flush=True,
        )
        crowded = crowd(options.processes, options.threads, options.sweeps, Path(folder))
    print(
        f"{options.processes} processes x {options.threads} threads in {crowded.num_sweeps} folders: "
        f"{crowded.num_calls} calls got the sweep, {crowded.num_refused:,} were refused for the moment, "
        f"{crowded.num_evaluated:,} evaluations of {crowded.num_points:,} points"
    )
    return 0 if crowded.num_evaluated == crowded.num_points else 1


if __name__ == "__main__":
    sys.exit(main())
