"""The disk cache under kills and crowds: `python -m tools.stress.cache --kills 200`, and every byte of a small file.

Eight processes of eight threads add entries of their own to one file, and note each write after it was confirmed. One
process after another is killed (-9) in the middle and replaced. Afterwards every confirmed entry must be there, whole
and once, and nothing else but what was in flight. Every entry carries a seal, so a wrong one is noticed.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gemm_eval.storage import ResultFile
from gemm_eval.storage import arrays as results

ROOT = Path(__file__).parents[2]
SECTIONS = ("model-1", "model-2")
WAIT_S = 120.0


class Task(NamedTuple):
    """A task of a process, given as JSON on its command line."""

    path: str
    seed: int
    run_s: float
    num_threads: int
    may_warn: bool = False


def entry(name: str, rng: random.Random) -> str:
    filler = rng.randbytes(rng.randrange(200)).hex()
    return f"{name} {filler} {hashlib.sha256(f'{name} {filler}'.encode()).hexdigest()}"


def as_arrays(lines: Sequence[str]) -> dict[str, Any]:
    return {"lines": np.frombuffer("\n".join(lines).encode(), np.uint8)}


def lines_of(arrays: Mapping[str, Any]) -> list[str]:
    return arrays["lines"].tobytes().decode().split("\n") if arrays else []


def add(file: ResultFile, section: str, lines: Sequence[str]) -> bool:
    return file.merge(section, lambda old: as_arrays([*lines_of(old), *lines]))


def names_of(lines: Sequence[str]) -> list[str]:
    """Raise unless every entry is one that somebody wrote; return their names."""
    for line in lines:
        text, _, seal = line.rpartition(" ")
        assert hashlib.sha256(text.encode()).hexdigest() == seal, line
    return [line.partition(" ")[0] for line in lines]


# in the processes


def work(task: Task) -> int:
    """Add entries with all threads, and note each batch once it is confirmed; return how many were written."""
    if task.may_warn:
        warnings.simplefilter("ignore", RuntimeWarning)
    file = ResultFile(Path(task.path), timeout_s=WAIT_S)
    num_written: list[int] = []
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            num_written.append(_write(task, file, number))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(task.num_threads)]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return sum(num_written)


def _write(task: Task, file: ResultFile, number: int) -> int:
    rng = random.Random(f"{task.seed}/{number}")
    end_s, num, batch = time.monotonic() + task.run_s, 0, 0
    with notes_of(Path(task.path), task.seed).open("ab", buffering=0) as notes:  # a note outlives a kill
        while time.monotonic() < end_s:
            section = SECTIONS[batch % 2]
            names = [f"{task.seed}/{number}/{batch}/{place}" for place in range(rng.choice((1, 5, 25)))]
            is_written = add(file, section, [entry(name, rng) for name in names])
            assert is_written or task.may_warn
            notes.write("".join(f"{section}\t{name}\n" for name in names).encode())
            num += len(names) * is_written
            found = names_of(lines_of(file.read(section)))
            assert task.may_warn or set(names) <= set(found)
            batch += 1
    return num


def notes_of(path: Path, seed: int) -> Path:
    return path.with_name(f"notes-{seed}")


# in the process that starts them


class Worker:
    """A process at a task."""

    def __init__(self, task: Task) -> None:
        filters = () if task.may_warn else ("-W", "error")
        command = [sys.executable, *filters, "-m", "tools.stress.cache", "--task", json.dumps(task)]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=os.environ
        )

    def kill_in_the_middle(self, rng: random.Random) -> None:
        """Wait until it works, and a little longer, then SIGKILL."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n", self._process.communicate()[1]
        time.sleep(rng.uniform(0.05, 0.25))
        assert self._process.poll() is None, "it must be alive to be killed"
        self._process.kill()
        self._process.communicate()
        assert self._process.returncode == -signal.SIGKILL

    def result(self, timeout_s: float) -> int:
        """Return how many entries it wrote."""
        out, err = self._process.communicate(timeout=timeout_s)
        assert self._process.returncode == 0, err
        assert not err
        return int(out.splitlines()[-1])

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


class Outcome(NamedTuple):
    """Entries and files after `kill_writers`."""

    num_kills: int
    num_confirmed: int  # entries whose write was confirmed
    num_lost: int  # of these, not there or not whole
    num_in_flight: int  # there, whole, and not confirmed: their process was killed between the two
    num_doubled: int
    num_set_aside: int
    num_left: int  # temporary files, after one more write

    @property
    def is_sound(self) -> bool:
        return (self.num_lost, self.num_doubled, self.num_set_aside, self.num_left) == (0, 0, 0, 0)


def kill_writers(
    folder: Path, *, num_kills: int, num_processes: int = 8, num_threads: int = 8, seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> Outcome:  # fmt: skip
    """Let processes add entries of their own, kill and replace one after another, and count what is left."""
    path, rng = folder / "costs.npz", random.Random(seed)
    started = 0

    def start() -> Worker:
        nonlocal started
        started += 1
        return Worker(Task(str(path), started, 1e9, num_threads))

    workers = [start() for _ in range(num_processes)]
    try:
        for kill in range(num_kills):
            place = rng.randrange(num_processes)
            fresh = start()  # while the other still runs: it takes its place at once
            workers[place].kill_in_the_middle(rng)
            workers[place] = fresh
            if (kill + 1) % 20 == 0:
                say(f"{kill + 1} kills")
    finally:
        for worker in workers:
            worker.stop()  # killed as well
    return count_left(path, num_kills + num_processes, started)


def count_left(path: Path, num_kills: int, num_started: int) -> Outcome:
    file = ResultFile(path)
    assert add(file, "last", ["last"])
    confirmed: set[tuple[str, str]] = set()
    for seed in range(1, num_started + 1):
        with contextlib.suppress(FileNotFoundError):  # killed before it came so far
            for line in notes_of(path, seed).read_text().split("\n")[:-1]:  # the last may be cut
                section, _, name = line.partition("\t")
                confirmed.add((section, name))
    kept = Counter((section, name) for section in SECTIONS for name in names_of(lines_of(file.read(section))))
    return Outcome(
        num_kills, len(confirmed), len(confirmed - kept.keys()), len(kept.keys() - confirmed),
        kept.total() - len(kept), len(list(path.parent.glob("*.damaged-*"))), len(list(path.parent.glob(".*.tmp"))),
    )  # fmt: skip


def check_damaged(path: Path, content: bytes, lines: Sequence[str]) -> str:
    """Check that a file is used, or set aside with a warning and begun anew, or is not ours and stays; say which."""
    for left in path.parent.iterdir():
        left.unlink()
    path.write_bytes(content)
    results._warned.clear()
    file = ResultFile(path)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = lines_of(file.read(SECTIONS[0]))
        assert found in ([], list(lines))
        is_written = file.merge(SECTIONS[0], lambda _: as_arrays(lines))
    asides = list(path.parent.glob("*.damaged-*"))
    assert len(asides) <= 1
    if not is_written:
        assert path.read_bytes() == content
        assert ("is no cache of gemm_eval" in str(told[0].message), asides) == (True, [])
        return "left alone"
    assert lines_of(file.read(SECTIONS[0])) == list(lines)
    if asides:
        assert asides[0].read_bytes() == content
        assert ["set aside" in str(warning.message) for warning in told] == [True]
        return "set aside"
    assert (found, told) == (list(lines), [])
    return "used"


def damage_every_byte(folder: Path, step: int = 1) -> Counter[str]:
    """Damage every byte of a small file in four ways; return what became of the files."""
    path, rng = folder / "costs.npz", random.Random(3)
    lines = [entry(f"{number}", rng) for number in range(3)]
    assert add(ResultFile(path), SECTIONS[1], lines[:1])
    assert add(ResultFile(path), SECTIONS[0], lines)
    whole, became = path.read_bytes(), Counter[str]()
    for place in range(0, len(whole), step):
        for value in {whole[place] ^ 0xFF, whole[place] ^ 0x80, whole[place] ^ 1, 0} - {whole[place]}:
            became[check_damaged(path, whole[:place] + bytes([value]) + whole[place + 1 :], lines)] += 1
    return became


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.stress.cache", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--task", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.task is not None:
        print(work(Task(*json.loads(asked.task))))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        begin_s = time.monotonic()
        outcome = kill_writers(Path(folder), num_kills=asked.kills, seed=asked.seed, say=print)
        print(f"8 processes x 8 threads, {time.monotonic() - begin_s:.0f} s: {outcome}")
    with tempfile.TemporaryDirectory() as folder:
        became = damage_every_byte(Path(folder))
        print(f"every byte damaged, {became.total():,} files: {dict(became)}; every answer right")
    return 0 if outcome.is_sound else 1


if __name__ == "__main__":
    raise SystemExit(main())
