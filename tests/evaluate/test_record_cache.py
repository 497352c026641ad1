"""`RecordCache`: its bound, what it forgets first, its counts, and many threads at once."""

from __future__ import annotations

import os
import random
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

from gemm_eval.evaluate.costs import RecordCache, RecordKey


def key(number: int) -> RecordKey:
    return (0, 1, number, 1, 1)


def record(number: int) -> bytes:
    return str(number).encode()


def put(cache: RecordCache, *numbers: int) -> None:
    cache.put_many((key(n), record(n)) for n in numbers)


def held(cache: RecordCache, *numbers: int) -> list[int]:
    return [n for n, found in zip(numbers, cache.get_many([key(n) for n in numbers]), strict=True) if found is not None]


def test_what_was_put_is_found() -> None:
    cache = RecordCache(100)
    put(cache, 1, 2)

    assert cache.get(key(1)) == record(1)
    assert cache.get_many([key(2), key(3), key(2), key(1)]) == [record(2), None, record(2), record(1)]
    assert cache.get_many([]) == []
    assert cache.get((0, 1, 1, 1, 2)) is None
    assert cache.get((1, 1, 1, 1, 1)) is None
    assert cache.info() == (4, 3, 100, 2)


def test_a_second_record_replaces_the_first_even_when_that_is_old() -> None:
    cache = RecordCache(10)
    put(cache, *range(5))  # these are old now
    cache.put_many([(key(0), b"new")])
    assert cache.get(key(0)) == b"new"
    cache.put_many([(key(0), b"newer")])
    assert cache.get(key(0)) == b"newer"


def test_clear_forgets_records_and_counts() -> None:
    cache = RecordCache(10)
    put(cache, *range(8))
    cache.get(key(7))
    cache.clear()

    assert cache.info() == (0, 0, 10, 0)
    assert held(cache, *range(8)) == []


@pytest.mark.parametrize("maxsize", [1, 2, 3, 4, 5, 7, 10, 64, 1001])
@pytest.mark.parametrize("seed", range(3))
def test_the_bound_holds_and_nothing_found_is_wrong(maxsize: int, seed: int) -> None:
    rng = random.Random(seed)
    cache = RecordCache(maxsize)
    for _ in range(300):
        numbers = [rng.randrange(3 * maxsize) for _ in range(rng.choice([1, 1, 3, maxsize, 2 * maxsize]))]
        if rng.random() < 0.5:
            put(cache, *numbers)
        else:
            found = cache.get_many([key(n) for n in numbers])
            assert all(got in (None, record(n)) for n, got in zip(numbers, found, strict=True))
        assert cache.info().currsize <= maxsize
    assert cache.info().currsize >= maxsize // 2 - 1


def test_promoting_all_that_is_old_keeps_the_bound() -> None:
    cache = RecordCache(10)
    for start in range(0, 1000, 4):
        put(cache, *range(start, start + 4))
        held(cache, *range(max(0, start - 12), start))
        assert cache.info().currsize <= 10


def test_a_look_up_that_ages_the_cache_finds_all_that_it_held() -> None:
    cache = RecordCache(10)
    put(cache, *range(9))  # 0..4 are old, 5..8 are young
    assert held(cache, *range(9)) == list(range(9))


@pytest.mark.parametrize("maxsize", [8, 9, 100])
def test_used_within_the_last_half_of_the_bound_survives(maxsize: int) -> None:
    cache = RecordCache(maxsize)
    put(cache, -1)
    number = 0
    for _ in range(20):
        for _ in range(maxsize // 2 - 1):
            put(cache, number)
            number += 1
        assert held(cache, -1) == [-1]
    put(cache, *range(number, number + maxsize))
    assert held(cache, -1) == []


def test_hits_and_misses_count_keys() -> None:
    cache = RecordCache(4)
    put(cache, 0, 1, 2)
    assert held(cache, 0, 0, 1, 9, 2) == [0, 0, 1, 2]
    assert cache.info()[:2] == (4, 1)


def test_an_error_on_the_way_in_leaves_the_cache_usable() -> None:
    cache = RecordCache(10)

    def entries():  # type: ignore[no-untyped-def]
        yield key(1), record(1)
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        cache.put_many(entries())
    assert held(cache, 1) == [1]


def test_threads_never_see_a_wrong_record_nor_break_the_bound() -> None:
    cache = RecordCache(50)
    start = threading.Barrier(8)

    def work(seed: int) -> int:
        rng = random.Random(seed)
        num_found = 0
        start.wait()
        for turn in range(500):
            numbers = [rng.randrange(80) for _ in range(10)]
            if turn == 250 and seed == 0:
                cache.clear()
            put(cache, *numbers[:5])
            found = cache.get_many([key(n) for n in numbers])
            assert all(got in (None, record(n)) for n, got in zip(numbers, found, strict=True))
            assert cache.info().currsize <= 50
            num_found += len(found) - found.count(None)
        return num_found

    with ThreadPoolExecutor(8) as pool:
        assert all(num_found >= 1 for num_found in pool.map(work, range(8)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_forked_while_a_thread_is_inside_does_not_hang() -> None:
    cache = RecordCache(10)
    put(cache, 1)
    with cache._lock:  # as another thread would hold it
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of forks of many threads
            child = os.fork()
        if child == 0:
            is_free = cache._lock.acquire(timeout=5)
            os._exit(0 if is_free else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert held(cache, 1) == [1]
