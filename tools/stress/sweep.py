"""Kill and crowd sweeps in folders: `python -m tools.stress.sweep --kills 200`.

One process after another goes on with a sweep in a folder, and is killed (-9) at any moment of it. After each, what was
there must be there untouched, what is there must be right, and the next must go on. Then eight processes of eight
threads ask for one sweep in one folder at once, again and again until each has it: every point is evaluated once.
"""

import argparse
import multiprocessing
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from gemm_eval.errors import StorageError
from gemm_eval.sweep import Range, Space, SweepResult, load_sweep, run, sweep

SPACE = Space("demo-8core", num_cores=[2, 4], launch_us=Range(0.0, 1.0, 60), area_mm2="= num_cores * (1 + launch_us)")
SHAPES = [(1, 64, 96, 128)]
CHUNK = 3
WAIT_S = 300.0
POLL_S = 0.01

Rows = dict[int, str]


class Killed(NamedTuple):
    """The outcome of processes that were killed before they had finished."""

    num_kills: int
    num_sweeps: int  # folders that were finished
    num_parts: int  # that kills left; each was found again as it was
    num_leftovers: int  # files half written, which the next process removed


class Crowded(NamedTuple):
    """The outcome of a crowd: one evaluation of each point of all folders is right."""

    num_sweeps: int
    num_calls: int  # that returned the whole sweep
    num_refused: int  # that were told that another sweep is at work
    num_evaluated: int
    num_points: int


def go(path: Path | None) -> SweepResult:
    """Run the sweep."""
    return sweep(SPACE, SHAPES, ("latency_us", "area_mm2"), path=path, chunk_size=CHUNK, progress=False)


def rows_of(result: SweepResult) -> Rows:
    """Return all rows by point, as text, and check that there is one for each."""
    table = result.to_arrow().to_pylist()
    rows = {row["point"]: repr(row) for row in table}
    assert len(rows) == len(table), "points are doubled"
    return rows


def kill_many(num_kills: int, seed: int, root: Path) -> Killed:
    """Kill processes in the middle of a sweep, so many, and check after each what they have left."""
    rng, whole = random.Random(seed), rows_of(go(None))
    killed = num_sweeps = num_parts = num_leftovers = 0
    took_s = 0.5
    while killed < num_kills:
        path = root / f"killed-{num_sweeps}"
        is_done = False
        while not is_done:
            before = _stamps(path)
            with closing(_Child(_go_on, path)) as child:
                child.wait("begins")
                began_s = time.monotonic()
                # at the end as often as at the beginning; a quarter may finish
                is_done = child.says("done", rng.uniform(0.0, took_s / 0.75))
                took_s = time.monotonic() - began_s if is_done else took_s
                child.kill()
            killed += not is_done
            after = _stamps(path)
            assert before.items() <= after.items(), "parts that were there are lost or written anew"
            num_parts += 0 if is_done else len(after)
            leftovers = [name for name in path.iterdir() if name.name.endswith(".tmp")]
            num_leftovers += len(leftovers)
            if (path / "_sweep.json").exists():
                assert rows_of(load_sweep(path)).items() <= whole.items()
            assert not (is_done and leftovers)
        assert rows_of(load_sweep(path)) == whole
        num_sweeps += 1
    return Killed(killed, num_sweeps, num_parts, num_leftovers)


def crowd(num_processes: int, num_threads: int, num_sweeps: int, root: Path) -> Crowded:
    """Let many ask for the same sweeps at once."""
    whole = rows_of(go(None))
    counts: Counter[str] = Counter()
    for at in range(num_sweeps):
        path = root / f"crowded-{at}"
        children = [_Child(_crowd, path, num_threads) for _ in range(num_processes)]
        for child in children:
            child.wait("begins")
        for child in children:
            child.tell("go")
        for child in children:
            counts.update(child.wait_for(dict))
            child.close()
        assert rows_of(load_sweep(path)) == whole
        assert sorted(path.name for path in path.iterdir() if path.suffix != ".parquet") == [".lock", "_sweep.json"]
    return Crowded(num_sweeps, counts["calls"], counts["refused"], counts["evaluated"], num_sweeps * len(whole))


def _stamps(path: Path) -> dict[str, tuple[int, int]]:
    parts = path.glob("points-*.parquet")
    return {part.name: (part.stat().st_ino, part.stat().st_mtime_ns) for part in parts}


class _Child:
    """A process that a server forks, which is warm."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tools.stress.warm_sweep"])
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=target, args=(theirs, *arguments), daemon=True)
        self._process.start()
        theirs.close()

    def wait_for(self, kind: type) -> Any:
        assert self._ours.poll(WAIT_S), "a process takes too long"
        said = self._ours.recv()
        assert isinstance(said, kind), said
        return said

    def wait(self, word: str) -> None:
        assert self.wait_for(str) == word

    def says(self, word: str, timeout_s: float) -> bool:
        """Return True if it says so in time."""
        if self._ours.poll(timeout_s):
            self.wait(word)
            return True
        return False

    def tell(self, word: str) -> None:
        self._ours.send(word)

    def kill(self) -> None:
        self._process.kill()
        self._process.join()

    def close(self) -> None:
        self.kill()
        self._ours.close()


def _go_on(connection: Connection, path: Path) -> None:
    connection.send("begins")
    go(path)
    connection.send("done")


def _crowd(connection: Connection, path: Path, num_threads: int) -> None:
    whole = rows_of(go(None))
    counts: Counter[str] = Counter()
    evaluate = run.evaluate_rows  # type: ignore[attr-defined]

    def counted(shared: Any, rows: Any, *more: Any) -> Any:
        counts["evaluated"] += len(rows)
        return evaluate(shared, rows, *more)

    def work() -> None:
        while True:
            try:
                assert rows_of(go(path)) == whole
            except StorageError as error:
                assert "another sweep is at work" in str(error)  # noqa: PT017
                counts["refused"] += 1
                time.sleep(POLL_S)
            else:
                counts["calls"] += 1
                return

    run.evaluate_rows = counted  # type: ignore[assignment, attr-defined]
    threads = [threading.Thread(target=work) for _ in range(num_threads)]
    connection.send("begins")
    connection.recv()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    connection.send(dict(counts))


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
