"""The disk cache under many processes and threads of which some are killed in the middle of a write.

What they do is in `tools.stress.cache`, whose command kills 200 times.
"""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import time
from pathlib import Path

import pytest

from gemm_eval.storage.cache import DiskCache
from tools.stress.cache import NAMESPACES, Task, Worker, check, kill_owners

pytestmark = pytest.mark.slow

NUM_PROCESSES, NUM_THREADS = 8, 8
MAX_BYTES = 3 << 20  # less than all keys of both namespaces take: something is always evicted
RUN_S = 4.0
WORKER_DEADLINE_S = 90.0


def crowd(path: Path, seed: int, run_s: float, *, may_warn: bool = False) -> Worker:
    return Worker(Task(str(path), seed, "crowd", run_s, NUM_THREADS, MAX_BYTES, may_warn))


def victim(path: Path, seed: int) -> Worker:
    return Worker(Task(str(path), seed, "victim", 0.0, NUM_THREADS, MAX_BYTES))


def test_nothing_confirmed_is_lost_and_nothing_doubled(tmp_path: Path) -> None:
    outcome = kill_owners(tmp_path, num_kills=3, num_processes=4, num_threads=4, seed=3)
    assert outcome.is_sound, outcome
    assert outcome.num_confirmed > 100


def assert_sound(path: Path) -> None:
    num_left = 0  # eviction may leave little of one namespace, but not of both
    for namespace in NAMESPACES:
        with DiskCache(path, namespace=namespace) as cache:
            assert len(check(namespace, cache.load_all())) == cache.num_entries
            num_left += cache.num_entries
    assert num_left > 1000
    assert path.stat().st_size <= MAX_BYTES
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_killed_in_the_middle_of_writes(tmp_path: Path) -> None:
    """Seven processes run through, the eighth is killed again and again; all share their keys, and some are evicted."""
    path, rng = tmp_path / "cache.sqlite3", random.Random(1)
    survivors = [crowd(path, i, RUN_S) for i in range(NUM_PROCESSES - 1)]
    victims: list[Worker] = []
    num_killed = 0
    try:
        end_s = time.monotonic() + RUN_S
        victims.append(victim(path, 50))
        while time.monotonic() < end_s or num_killed < 3:
            victims.append(victim(path, 50 + len(victims)))  # starts meanwhile
            victims[-2].kill_in_the_middle(rng)
            num_killed += 1
        results = [survivor.result(WORKER_DEADLINE_S) for survivor in survivors]
    finally:
        for worker in survivors + victims:
            worker.stop()
    assert all(num_written > 100 and num_found > 100 for num_written, num_found in results), results
    assert not list(tmp_path.glob("*.damaged-*")), "a killed process damages nothing"
    assert_sound(path)


def test_damaged_while_in_use(tmp_path: Path) -> None:
    """Somebody writes rubbish into the file, cuts it and deletes it while four processes use it."""
    path, rng = tmp_path / "cache.sqlite3", random.Random(2)
    workers = [crowd(path, i, 5.0, may_warn=True) for i in range(4)]
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
        results = [worker.result(WORKER_DEADLINE_S) for worker in workers]
    finally:
        for worker in workers:
            worker.stop()
    assert num_damages >= 3
    assert all(num_written > 0 for num_written, _ in results), results
