"""Run fuzzed cases and print what became of them: ``python -m tools.fuzz [KIND...] --count 10000``."""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from tools.fuzz.harness import Report, fuzz, kind_names

NUM_SHOWN = 10


def main() -> int:
    """Return the exit code: 1 with violations."""
    kinds = kind_names()
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__)
    parser.add_argument("kind", nargs="*", help=f"of {', '.join(kinds)}; default: all")
    parser.add_argument("--count", type=int, default=1000, help="cases of each kind (default: %(default)s)")
    parser.add_argument("--seed", default="0", help="any text (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="worker processes (default: %(default)s)")
    parser.add_argument("--only", type=int, metavar="INDEX", help="one case; its folder is kept")
    options = parser.parse_args()
    if unknown := sorted(set(options.kind) - set(kinds)):
        parser.error(f"there is no kind {', '.join(unknown)}, only {', '.join(kinds)}")
    if options.count < 1 or options.jobs < 1:
        parser.error("--count and --jobs must be >= 1")

    is_replay = options.only is not None
    indices = [options.only] if is_replay else range(options.count)
    num_failed = 0
    root = Path(tempfile.mkdtemp(prefix="fuzz-"))
    try:
        for kind in options.kind or kinds:
            report = fuzz(kind, options.seed, indices, jobs=options.jobs, root=root, keep=is_replay)
            show(report, options.seed, with_details=is_replay)
            num_failed += len(report.failed)
    finally:
        if is_replay:
            print(f"kept: {root}")
        else:
            shutil.rmtree(root, ignore_errors=True)
    return 1 if num_failed else 0


def show(report: Report, seed: str, *, with_details: bool) -> None:
    """Print one kind's report."""
    if report.skipped:
        print(f"{report.kind}: skipped, {report.skipped}", flush=True)
    if report.slowest is None or report.largest is None:
        return
    labels = ", ".join(f"{label} {num:,}" for label, num in report.labels.most_common())
    print(
        f"{report.kind}: {report.num_cases:,} cases: {labels}; slowest {1e3 * report.slowest.cpu_s:,.0f} ms "
        f"(case {report.slowest.index}), most memory {report.largest.growth_bytes >> 20:,} MB "
        f"(case {report.largest.index}); {len(report.failed)} with violations",
        flush=True,
    )
    for outcome in report.failed[:NUM_SHOWN]:
        for violation in outcome.violations:
            print(f"  case {outcome.index}: {violation}")
        print(f"    python -m tools.fuzz {report.kind} --seed {seed} --only {outcome.index}")
        if with_details:
            print(outcome.details)
    if len(report.failed) > NUM_SHOWN:
        print(f"  and {len(report.failed) - NUM_SHOWN:,} more")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
