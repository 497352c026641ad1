"""The disk cache under many processes and threads of which some are killed in the middle of a write.

Every value tells its key, so a wrong one is noticed whoever wrote it, and whenever.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gemm_eval.cache import DiskCache

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
NUM_PROCESSES, NUM_THREADS, NUM_KEYS = 8, 8, 3000
NAMESPACES = ("model 1", "model 2")
MAX_BYTES = 3 << 20  # less than all keys of both namespaces take: something is always evicted
RUN_S = 8.0
WORKER_DEADLINE_S = 60.0

WORKER = """
import pathlib, random, sys, threading, time
from gemm_eval.cache import DiskCache
from tests.unit.test_disk_cache_stress import MAX_BYTES, NAMESPACES, NUM_KEYS, NUM_THREADS, check, key_of, value_of

path, run_s, seed = pathlib.Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
may_warn = sys.argv[4] == "may-warn"
if may_warn:
    import warnings
    warnings.simplefilter("ignore", RuntimeWarning)
caches = {n: DiskCache(path, namespace=n, max_bytes=MAX_BYTES, timeout_s=5.0) for n in NAMESPACES}
end_s, errors, num_written, num_found = time.monotonic() + run_s, [], [], []

def work(seed):
    rng = random.Random(seed)
    try:
        while time.monotonic() < end_s:
            namespace = rng.choice(NAMESPACES)
            cache = caches[namespace]
            numbers = rng.sample(range(NUM_KEYS), rng.choice((1, 10, 100)))
            action = rng.random()
            if action < 0.4:
                num_written.append(cache.put_many({key_of(n): value_of(namespace, n, rng) for n in numbers}))
            elif action < 0.9:
                num_found.append(check(namespace, cache.get_many(map(key_of, numbers)).items()))
            elif action < 0.97:
                num_found.append(check(namespace, cache.load_all(key_of(numbers[0])[:1])))
            elif action < 0.99:
                cache.touch(map(key_of, numbers))
            else:
                cache.close()
    except BaseException as error:
        errors.append(error)

def write_for_ever(seed):
    rng = random.Random(seed)
    namespace, numbers = rng.choice(NAMESPACES), rng.sample(range(NUM_KEYS), 1000)
    items = {key_of(n): value_of(namespace, n, rng) for n in numbers}
    while True:
        caches[namespace].put_many(items)

is_victim = sys.argv[5] == "victim"
threads = [
    threading.Thread(target=write_for_ever if is_victim else work, args=(seed * 1000 + i,)) for i in range(NUM_THREADS)
]
for thread in threads: thread.start()
print("ready", flush=True)
for thread in threads: thread.join()
if errors:
    raise errors[0]
print(sum(num_written), sum(num_found))
"""


def key_of(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


def value_of(namespace: str, number: int, rng: random.Random) -> str:
    filler = rng.randbytes(rng.randrange(400)).hex()
    seal = hashlib.sha256(f"{namespace}/{number}/{filler}".encode()).hexdigest()
    return json.dumps({"namespace": namespace, "number": number, "filler": filler, "seal": seal})


def check(namespace: str, entries: object) -> int:
    """Raise unless every value is one that somebody wrote for that key in that namespace; return how many there are."""
    num = 0
    for key, text in entries:  # type: ignore[attr-defined]
        value = json.loads(text)
        seal = hashlib.sha256(f"{namespace}/{value['number']}/{value['filler']}".encode()).hexdigest()
        assert value["namespace"] == namespace
        assert key == key_of(value["number"])
        assert value["seal"] == seal
        num += 1
    return num


class Worker:
    """A process that hammers the cache."""

    def __init__(self, path: Path, run_s: float, seed: int, *, may_warn: bool = False, is_victim: bool = False) -> None:
        filters = () if may_warn else ("-W", "error")
        options = ("may-warn" if may_warn else "quiet", "victim" if is_victim else "survivor")
        command = [sys.executable, *filters, "-c", WORKER, path, run_s, seed, *options]
        self._process = subprocess.Popen(
            list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )

    def kill_in_the_middle(self, rng: random.Random) -> None:
        """Wait until it works, and a little longer, then SIGKILL. It does nothing but long writes."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n", self._process.communicate()[1]
        time.sleep(rng.uniform(0.05, 0.25))
        assert self._process.poll() is None, "it must be alive to be killed"
        self._process.kill()
        self._process.communicate()
        assert self._process.returncode == -signal.SIGKILL

    def result(self) -> tuple[int, int]:
        """How many entries it wrote and found."""
        out, err = self._process.communicate(timeout=WORKER_DEADLINE_S)
        assert self._process.returncode == 0, err
        assert not err
        num_written, num_found = out.splitlines()[-1].split()
        return int(num_written), int(num_found)

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


def assert_sound(path: Path) -> None:
    num_left = 0  # eviction may leave little of one namespace, but not of both
    for namespace in NAMESPACES:
        with DiskCache(path, namespace=namespace) as cache:
            assert check(namespace, cache.load_all()) == cache.num_entries
            num_left += cache.num_entries
    assert num_left > 1000
    assert path.stat().st_size <= MAX_BYTES
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("seed", [1])
def test_killed_in_the_middle_of_writes(tmp_path: Path, seed: int) -> None:
    """Seven processes run through, the eighth is killed again and again."""
    path, rng = tmp_path / "cache.sqlite3", random.Random(seed)
    survivors = [Worker(path, RUN_S, seed * 100 + i) for i in range(NUM_PROCESSES - 1)]
    victims: list[Worker] = []
    num_killed = 0
    try:
        end_s = time.monotonic() + RUN_S
        victims.append(Worker(path, 0.0, seed * 100 + 50, is_victim=True))
        while time.monotonic() < end_s:
            victims.append(Worker(path, 0.0, seed * 100 + 50 + len(victims), is_victim=True))  # starts meanwhile
            victims[-2].kill_in_the_middle(rng)
            num_killed += 1
        results = [survivor.result() for survivor in survivors]
    finally:
        for worker in survivors + victims:
            worker.stop()
    assert num_killed >= 3
    assert all(num_written > 100 and num_found > 100 for num_written, num_found in results), results
    assert not list(tmp_path.glob("*.damaged-*")), "a killed process damages nothing"
    assert_sound(path)


def test_damaged_while_in_use(tmp_path: Path) -> None:
    """Somebody writes rubbish into the file, cuts it and deletes it while four processes use it."""
    path, rng = tmp_path / "cache.sqlite3", random.Random(2)
    workers = [Worker(path, 5.0, i, may_warn=True) for i in range(4)]
    try:
        end_s = time.monotonic() + 4.0
        num_damages = 0
        while time.monotonic() < end_s:
            time.sleep(rng.uniform(0.3, 0.8))
            with contextlib.suppress(FileNotFoundError):
                size = path.stat().st_size
                kind = num_damages % 3
                if kind == 0:
                    with path.open("r+b") as file:
                        for _ in range(20):
                            file.seek(rng.randrange(max(1, size)))
                            file.write(rng.randbytes(200))
                elif kind == 1:
                    os.truncate(path, size // 3)
                else:
                    path.unlink()
                num_damages += 1
        results = [worker.result() for worker in workers]
    finally:
        for worker in workers:
            worker.stop()
    assert num_damages >= 3
    assert all(num_written > 0 for num_written, _ in results), results
