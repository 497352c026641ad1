"""Mutate models/ and search/ at random, one place at a time, and count what the tests catch.

    python -m tools.mutation --count 200 --seed 1 --jobs 16 --out mutants.jsonl

Every mutant is tried in a scratch copy, never in the tree. First its answers to a fixed set of questions are compared:
one that changes none (a lower bound that is lower still, say) tells nothing of the tests. For the others the tests of
their module run. The file gets one line of JSON for each mutant as it is judged; a run that finds its file goes on.
"""

import argparse
import json
import queue
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tools.mutation.mutants import Mutant, draw_mutants
from tools.mutation.run import CAUGHT, SURVIVED, Scratch, Truth, Verdict

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: list[str] | None = None) -> int:
    """Run the command; 1 if less than `--least` of the mutants that change an answer are caught."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutation", description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=200, help="how many mutants (default: 200)")
    parser.add_argument("--seed", type=int, default=1, help="which of all possible ones (default: 1)")
    parser.add_argument("--jobs", type=int, default=1, help="how many at a time (default: 1)")
    parser.add_argument("--out", type=Path, help="file of one line of JSON a mutant, continued if it exists")
    parser.add_argument("--only", default="", help="only modules whose path contains this")
    parser.add_argument("--least", type=float, default=0.85, help="share that must be caught (default: 0.85)")
    asked = parser.parse_args(arguments)

    judged = _read(asked.out)
    mutants = draw_mutants(ROOT, asked.count, asked.seed, asked.only)
    left = [mutant for mutant in mutants if mutant.name not in judged]
    if left:
        with tempfile.TemporaryDirectory() as folder:
            _judge_all(left, asked.jobs, Path(folder), judged, asked.out)
    return _report([judged[mutant.name] for mutant in mutants], asked.least)


def _read(path: Path | None) -> dict[str, Verdict]:
    if path is None or not path.exists():
        return {}
    verdicts = (Verdict(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines())
    return {verdict.name: verdict for verdict in verdicts}


def _judge_all(mutants: list[Mutant], jobs: int, folder: Path, judged: dict[str, Verdict], out: Path | None) -> None:
    truth = Truth(Scratch(ROOT, folder / "unmutated"))
    idle: queue.SimpleQueue[Scratch] = queue.SimpleQueue()
    for number in range(min(jobs, len(mutants))):
        idle.put(Scratch(ROOT, folder / str(number)))

    def judge(mutant: Mutant) -> Verdict:
        scratch = idle.get()
        try:
            return scratch.judge(mutant, truth)
        finally:
            idle.put(scratch)

    with ThreadPoolExecutor(jobs) as pool:
        for future in as_completed([pool.submit(judge, mutant) for mutant in mutants]):
            verdict = future.result()
            judged[verdict.name] = verdict
            print(f"{verdict.verdict:18} {verdict.seconds:6.0f} s  {verdict.name}  [{verdict.how}]", flush=True)
            if out is not None:
                with out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(verdict._asdict()) + "\n")


def _report(verdicts: list[Verdict], least: float) -> int:
    counts = Counter(verdict.verdict for verdict in verdicts)
    changing = counts[CAUGHT] + counts[SURVIVED]
    share = counts[CAUGHT] / changing if changing else 1.0
    print(f"{len(verdicts)} mutants: {changing} change an answer, of which {counts[CAUGHT]} are caught ({share:.1%})")
    for verdict in verdicts:
        if verdict.verdict == SURVIVED:
            print(f"survived: {verdict.name}  [{verdict.how}]")
    return int(share < least)


if __name__ == "__main__":
    sys.exit(main())
