"""The disk cache under kills and crowds: `python -m tools.stress.cache --kills 200`, and every byte of its first page.

Eight processes of eight threads put entries of their own into one file, and note each write after it was confirmed.
One process after another is killed (-9) in the middle and replaced. Afterwards every confirmed entry must be there,
whole and once, and nothing else but what was in flight. Every value tells its key, so a wrong one is noticed whoever
wrote it, and whenever.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

from gemm_eval.storage.cache import DiskCache

ROOT = Path(__file__).parents[2]
NAMESPACES = ("model 1", "model 2")
NUM_KEYS = 3000  # in the crowd that shares its keys
WAIT_S = 60.0


class Task(NamedTuple):
    """What a process does: given as JSON on its command line."""

    path: str
    seed: int
    mode: str  # crowd: all keys are shared; victim: nothing but writes for ever; owner: keys of its own, each noted
    run_s: float
    num_threads: int
    max_bytes: int
    may_warn: bool = False


def key_of(number: object) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


def value_of(namespace: str, number: object, rng: random.Random) -> str:
    filler = rng.randbytes(rng.randrange(400)).hex()
    seal = hashlib.sha256(f"{namespace}/{number}/{filler}".encode()).hexdigest()
    return json.dumps({"namespace": namespace, "number": number, "filler": filler, "seal": seal})


def check(namespace: str, entries: Iterable[tuple[bytes, str]]) -> list[object]:
    """Raise unless every value is one that somebody wrote for that key in that namespace; return their numbers."""
    numbers = []
    for key, text in entries:
        value = json.loads(text)
        seal = hashlib.sha256(f"{namespace}/{value['number']}/{value['filler']}".encode()).hexdigest()
        assert value["namespace"] == namespace
        assert key == key_of(value["number"])
        assert value["seal"] == seal
        numbers.append(value["number"])
    return numbers


# in the processes


def work(task: Task) -> tuple[int, int]:
    """Do a task with all its threads; return how many entries were written and found."""
    if task.may_warn:
        warnings.simplefilter("ignore", RuntimeWarning)
    caches = {
        name: DiskCache(Path(task.path), namespace=name, max_bytes=task.max_bytes, timeout_s=WAIT_S)
        for name in NAMESPACES
    }
    run = {"crowd": _crowd, "victim": _victim, "owner": _owner}[task.mode]
    num_written: list[int] = []
    num_found: list[int] = []
    errors: list[BaseException] = []

    def one(number: int) -> None:
        try:
            run(task, caches, random.Random(f"{task.seed}/{number}"), number, num_written, num_found)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(task.num_threads)]
    for thread in threads:
        thread.start()
    print("ready", flush=True)
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return sum(num_written), sum(num_found)


def _crowd(
    task: Task, caches: dict[str, DiskCache], rng: random.Random, number: int, written: list[int], found: list[int]
) -> None:
    end_s = time.monotonic() + task.run_s
    while time.monotonic() < end_s:
        namespace = rng.choice(NAMESPACES)
        cache = caches[namespace]
        numbers = rng.sample(range(NUM_KEYS), rng.choice((1, 10, 100)))
        action = rng.random()
        if action < 0.4:
            written.append(cache.put_many({key_of(n): value_of(namespace, n, rng) for n in numbers}))
        elif action < 0.9:
            found.append(len(check(namespace, cache.get_many(map(key_of, numbers)).items())))
        elif action < 0.97:
            found.append(len(check(namespace, cache.load_all(key_of(numbers[0])[:1]))))
        elif action < 0.99:
            cache.touch(map(key_of, numbers))
        else:
            cache.close()


def _victim(
    task: Task, caches: dict[str, DiskCache], rng: random.Random, number: int, written: list[int], found: list[int]
) -> None:
    namespace = rng.choice(NAMESPACES)
    items = {key_of(n): value_of(namespace, n, rng) for n in rng.sample(range(NUM_KEYS), 1000)}
    while True:
        caches[namespace].put_many(items)


def _owner(
    task: Task, caches: dict[str, DiskCache], rng: random.Random, number: int, written: list[int], found: list[int]
) -> None:
    """Write entries of this thread's own, and note each batch once it is confirmed: the note outlives a kill."""
    end_s = time.monotonic() + task.run_s
    batch = 0
    with notes_of(Path(task.path), task.seed).open("ab", buffering=0) as notes:
        while time.monotonic() < end_s:
            namespace = NAMESPACES[batch % 2]
            names = [f"{task.seed}/{number}/{batch}/{place}" for place in range(rng.choice((1, 5, 25)))]
            items = {key_of(name): value_of(namespace, name, rng) for name in names}
            num = caches[namespace].put_many(items)
            assert num == len(items), caches[namespace].status
            notes.write("".join(f"{namespace}\t{name}\n" for name in names).encode())
            written.append(num)
            found.append(len(check(namespace, caches[namespace].get_many(items).items())))
            batch += 1


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

    def result(self, timeout_s: float) -> tuple[int, int]:
        """How many entries it wrote and found."""
        out, err = self._process.communicate(timeout=timeout_s)
        assert self._process.returncode == 0, err
        assert not err
        num_written, num_found = out.splitlines()[-1].split()
        return int(num_written), int(num_found)

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


class Outcome(NamedTuple):
    """What is left after `kill_owners`."""

    num_kills: int
    num_confirmed: int  # entries whose write was confirmed
    num_lost: int  # of these, not there or not whole
    num_in_flight: int  # there, whole, and not confirmed: their process was killed between the two
    num_doubled: int
    num_set_aside: int
    integrity: str

    @property
    def is_sound(self) -> bool:
        return (self.num_lost, self.num_doubled, self.num_set_aside, self.integrity) == (0, 0, 0, "ok")


def kill_owners(
    folder: Path, *, num_kills: int, num_processes: int = 8, num_threads: int = 8, seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> Outcome:  # fmt: skip
    """Let processes write entries of their own, kill and replace one after another, and count what is left."""
    path, rng = folder / "cache.sqlite3", random.Random(seed)
    started = 0

    def start() -> Worker:
        nonlocal started
        started += 1
        return Worker(Task(str(path), started, "owner", 1e9, num_threads, 1 << 30))

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
    confirmed: set[tuple[str, str]] = set()
    for seed in range(1, num_started + 1):
        with contextlib.suppress(FileNotFoundError):  # killed before it came so far
            for line in notes_of(path, seed).read_text().split("\n")[:-1]:  # the last may be cut
                namespace, _, name = line.partition("\t")
                confirmed.add((namespace, name))
    there: set[tuple[str, str]] = set()
    num_entries = 0
    for namespace in NAMESPACES:
        with DiskCache(path, namespace=namespace, max_bytes=1 << 30) as cache:
            numbers = check(namespace, cache.load_all())
            there |= {(namespace, str(number)) for number in numbers}
            num_entries += cache.num_entries
    with contextlib.closing(sqlite3.connect(path)) as connection:
        ((integrity,),) = connection.execute("PRAGMA integrity_check(1)").fetchall()
    return Outcome(
        num_kills, len(confirmed), len(confirmed - there), len(there - confirmed), num_entries - len(there),
        len(list(path.parent.glob("*.damaged-*"))), integrity,
    )  # fmt: skip


def damage_first_page(folder: Path) -> tuple[int, int]:
    """Damage each byte of the first page in four ways; return how many files were set aside, of how many."""
    from tests.storage.disk_caches import check_damaged, some

    path, items = folder / "cache.sqlite3", some(3)
    with DiskCache(path, namespace="model 1") as cache:
        cache.put_many(items)
    whole = path.read_bytes()
    num_aside = num = 0
    for place in range(4096):
        for value in {whole[place] ^ 0xFF, whole[place] ^ 0x80, whole[place] ^ 1, 0} - {whole[place]}:
            num_aside += check_damaged(path, whole[:place] + bytes([value]) + whole[place + 1 :], items)
            num += 1
    return num_aside, num


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.stress.cache", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--task", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.task is not None:
        print(*work(Task(*json.loads(asked.task))))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        begin_s = time.monotonic()
        outcome = kill_owners(Path(folder), num_kills=asked.kills, seed=asked.seed, say=print)
        print(f"8 processes x 8 threads, {time.monotonic() - begin_s:.0f} s: {outcome}")
    with tempfile.TemporaryDirectory() as folder:
        num_aside, num = damage_first_page(Path(folder))
        print(f"first page: {num:,} damaged bytes, {num_aside:,} files set aside and begun anew, every answer right")
    return 0 if outcome.is_sound else 1


if __name__ == "__main__":
    raise SystemExit(main())
