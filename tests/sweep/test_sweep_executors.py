"""Sweeps on threads, processes and a Dask cluster: the same table to the bit, a worker killed in the middle or not."""

import logging
import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gemm_eval.errors import GemmEvalError
from gemm_eval.sweep import Adaptive, LogRange, Space, load_sweep, run, sweep
from tests.sweep.test_sweep_run import same

SHAPES = [(1, 64, 96, 128)]
FIELDS: dict[str, Any] = {"num_cores": [2, 4, 8], "sram_bytes": LogRange(1 << 14, 1 << 20, 8)}
SPACE = Space("demo-8core", {**FIELDS, "area_mm2": "= num_cores"})
CHUNK = 4


def table(space: Space = SPACE, **options: Any) -> Any:
    return sweep(space, SHAPES, chunk_size=CHUNK, progress=False, **options).to_arrow()


@pytest.fixture
def on_progress(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Take what to do when the first chunk is there."""

    def take(action: Callable[[], None]) -> None:
        actions = [action]

        @contextmanager
        def bar(*_: Any) -> Iterator[Any]:
            yield lambda _: actions and actions.pop()()

        monkeypatch.setattr(run, "progress_bar", bar)

    return take


def slow(a: Any) -> float:
    time.sleep(0.01)
    return float(a.num_cores)


SLOW = Space("demo-8core", {**FIELDS, "area_mm2": slow})


@contextmanager
def processes(num: int = 2) -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(num, mp_context=multiprocessing.get_context("spawn")) as executor:
        yield executor


def test_processes() -> None:
    with processes() as executor:
        assert same(table(executor=executor), table())
        sampling = Adaptive(12, 6, seed=1)
        assert same(table(executor=executor, sampling=sampling), table(sampling=sampling))
        with pytest.raises((pickle.PicklingError, AttributeError)):
            table(Space("demo-8core", area_mm2=lambda a: 1.0), executor=executor)


def test_a_dead_process_is_an_error_and_the_folder_goes_on(tmp_path: Path, on_progress: Any) -> None:
    with processes(1) as executor:
        on_progress(lambda: os.kill(next(iter(executor._processes)), signal.SIGKILL))
        with pytest.raises(GemmEvalError, match=r"a worker of the executor died .*the same call"):
            table(SLOW, executor=executor, path=tmp_path)
    done = load_sweep(tmp_path)["point"].tolist()
    assert CHUNK <= len(done) < 24
    assert not list(tmp_path.glob(".*.tmp"))
    assert same(table(SLOW, path=tmp_path), table(SLOW))


class Unreliable(Executor):
    """Runs at once; the second job fails, while the third is good."""

    def __init__(self) -> None:
        self.num = 0

    def submit(self, function: Any, /, *args: Any, **options: Any) -> Future[Any]:
        self.num += 1
        future: Future[Any] = Future()
        if self.num == 2:
            future.set_exception(RuntimeError("no such luck"))
        else:
            future.set_result(function(*args, **options))
        return future


def test_what_is_good_is_kept_when_another_chunk_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no such luck"):
        table(executor=Unreliable(), path=tmp_path)
    points = load_sweep(tmp_path)["point"].tolist()
    assert set(range(CHUNK)) | set(range(2 * CHUNK, 3 * CHUNK)) <= set(points)
    assert CHUNK not in points


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    """A cluster of two processes, without its web pages; its log is of no interest."""
    distributed = pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=logging.CRITICAL, protocol="tcp://"
    )
    with cluster, distributed.Client(cluster) as client:
        yield client


def test_dask(client: Any) -> None:
    assert same(table(executor=client), table())
    assert same(table(SLOW, executor=client), table(SLOW))  # it sends functions too
    assert sum(client.nthreads().values()) == 2  # the cluster is still its owner's


def test_a_dask_worker_killed_in_the_middle(client: Any, tmp_path: Path, on_progress: Any) -> None:
    pids = list(client.run(os.getpid).values())
    on_progress(lambda: os.kill(pids[0], signal.SIGKILL))
    assert same(table(SLOW, executor=client, path=tmp_path), table(SLOW))
    assert len(list(tmp_path.glob("points-*.parquet"))) == 6
