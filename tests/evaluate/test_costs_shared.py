"""Costs on disk that processes and threads share, and calls that must leave the disk alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gemm_eval import GEMMEvaluator, load_arch
from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.evaluate import disk as _disk
from gemm_eval.evaluate.backend import Kind
from gemm_eval.evaluate.disk import CostStore
from gemm_eval.storage import cache_dir
from gemm_eval.storage.cache import default_path
from gemm_eval.transformer.prewarm import prewarm
from gemm_eval.workload import GemmProblem, RunOptions

ARCH = load_arch("demo-8core")
PROBLEMS = [(1, m, 256, 64) for m in range(1, 40)]
TYPES = [
    GemmProblem(1, 8, 16, 8, a, None, c)  # type: ignore[arg-type]
    for a in ("fp16", "bf16", "fp32", "int8", "fp8")
    for c in ("fp16", "bf16", "fp32", "int8", "fp8", "int32")
]
PREWARM = """
import sys
from gemm_eval import GEMMEvaluator
from gemm_eval.transformer.prewarm import prewarm
sizes = dict(batch_sizes=range(1, 6), seq_lens=[int(sys.argv[1])])
report = prewarm(GEMMEvaluator("demo-8core"), "llama-3-8b", **sizes)
print(report.num_stored, report.num_unique, report.num_hits_after)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder of this test, with the kernels of the usual one: other processes need not compile."""
    GEMMEvaluator(ARCH, disk_cache=False).evaluate_many([(1, 1, 1, 1)])
    usual, own = cache_dir(), tmp_path / "cache"
    own.mkdir()
    if usual is not None and (usual / "kernels").is_dir():
        (own / "kernels").symlink_to((usual / "kernels").absolute(), target_is_directory=True)
    monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", str(own))
    yield own
    _disk._cache_at.cache_clear()  # closes the files of this test


def results_file() -> Path:
    path = default_path()
    assert path is not None
    return path


def test_without_disk_cache_nothing_is_read_or_written() -> None:
    evaluator = GEMMEvaluator(ARCH, disk_cache=False)
    assert evaluator.save_to_disk(evaluator.evaluate_many(PROBLEMS)) == 0
    assert prewarm(evaluator, "llama-3-8b", batch_sizes=[1], seq_lens=[8]).num_stored == 0
    assert not results_file().exists()

    saver = GEMMEvaluator(ARCH)
    assert saver.save_to_disk(saver.evaluate_many(PROBLEMS)) == len(PROBLEMS)
    for other in (GEMMEvaluator(ARCH, disk_cache=False), evaluator.on(ARCH)):
        other.evaluate(*PROBLEMS[0])
        assert other.cache_info().records.hits == 0
        assert other.cache_info().records.currsize == 1


def test_evaluation_alone_writes_nothing() -> None:
    evaluator = GEMMEvaluator(ARCH)
    evaluator.evaluate(1, 8, 8, 8)
    evaluator.evaluate_many(PROBLEMS).to_dicts()
    evaluator.top(GemmProblem(1, 8, 8, 8), 3)
    assert not results_file().exists()


def test_infeasible_problems_are_not_stored() -> None:
    evaluator = GEMMEvaluator(ARCH.with_(sram_bytes=4096, num_cores=1))
    table = evaluator.evaluate_many([(1, 16, 64, 16), (1, 16, 1 << 20, 16), (1, 16, 64, 16)], "fp16", errors="mark")
    table_of_none = evaluator.on(ARCH.with_(sram_bytes=64)).evaluate_many(PROBLEMS, errors="mark")

    assert evaluator.save_to_disk(table) == len(evaluator._costs.store().load())
    assert not table_of_none.is_feasible.any()
    none = GEMMEvaluator(ARCH.with_(sram_bytes=64))
    assert none.save_to_disk(table_of_none) == 0
    assert none.evaluate_many(PROBLEMS, errors="mark").records.tobytes() == table_of_none.records.tobytes()
    assert none.cache_info().records[:2] == (0, len(PROBLEMS))


def test_unknown_energy_comes_back_as_none() -> None:
    arch = load_arch("sg2260e")
    evaluator = GEMMEvaluator(arch)
    table = evaluator.evaluate_many(PROBLEMS)
    assert evaluator.save_to_disk(table) == len(PROBLEMS)

    later = GEMMEvaluator(arch)
    for row, sizes in enumerate(PROBLEMS):
        assert later.evaluate(*sizes).energy_pj is None
        assert later.evaluate(*sizes) == table[row]
    assert later.cache_info().records.misses == 0
    assert later.evaluate_many(PROBLEMS).records.tobytes() == table.records.tobytes()


def test_every_combination_of_types_comes_back() -> None:
    quantized = [
        GemmProblem(1, 8, 256, 8, "fp16", "int4", None, None, group, scale, zero)  # type: ignore[arg-type]
        for group in (None, 32, 64)
        for scale in (None, "fp32", "bf16")
        for zero in (None, "fp16", "int8")
    ]
    saver = GEMMEvaluator(ARCH)
    problems = [p for p in [*TYPES, *quantized] if p.input_dtype in ARCH.cube_steps_per_cycle]
    assert len(problems) > 30
    table = saver.evaluate_many(problems)
    assert saver.save_to_disk(table) == len(problems)

    later, never = GEMMEvaluator(ARCH), GEMMEvaluator(ARCH, disk_cache=False)
    assert [later.evaluate_problem(p) for p in problems] == [never.evaluate_problem(p) for p in problems]
    assert later.cache_info().records.misses == 0


@pytest.mark.parametrize("other", [GEMMEvaluator("sg2260e"), GEMMEvaluator(ARCH, allow_idle_cores=False)], ids=repr)
def test_a_table_of_another_evaluator_is_refused(other: GEMMEvaluator) -> None:
    evaluator = GEMMEvaluator(ARCH)
    with pytest.raises(InvalidInputError, match="table"):
        evaluator.save_to_disk(other.evaluate_many(PROBLEMS))
    assert GEMMEvaluator(ARCH).save_to_disk(evaluator.evaluate_many(PROBLEMS)) == len(PROBLEMS)


def test_entries_survive_clearing_the_memory() -> None:
    evaluator = GEMMEvaluator(ARCH)
    evaluator.save_to_disk(evaluator.evaluate_many(PROBLEMS))
    evaluator.cache_clear()

    later = GEMMEvaluator(ARCH)
    later.evaluate_many(PROBLEMS)
    assert later.cache_info().records[:2] == (len(PROBLEMS), 0)


# threads and processes


def test_threads_wait_for_the_disk_and_see_right_results(monkeypatch: pytest.MonkeyPatch) -> None:
    saver = GEMMEvaluator(ARCH)
    expected = list(saver.evaluate_many(PROBLEMS))
    saver.save_to_disk(saver.evaluate_many(PROBLEMS))
    num_reads = 0
    load = CostStore.load

    def slow_load(store: CostStore) -> Any:
        nonlocal num_reads
        num_reads += 1
        time.sleep(0.2)
        return load(store)

    monkeypatch.setattr(CostStore, "load", slow_load)
    evaluator = GEMMEvaluator(ARCH)
    barrier = threading.Barrier(8)

    def work(start: int) -> list[Any]:
        barrier.wait()
        return [evaluator.evaluate(*PROBLEMS[(start + i) % len(PROBLEMS)]) for i in range(len(PROBLEMS))]

    with ThreadPoolExecutor(8) as pool:
        for start, found in enumerate(pool.map(work, range(8))):
            assert found == expected[start:] + expected[:start]
    assert num_reads == 1
    assert evaluator.cache_info().records.misses == 0


def test_a_warning_handler_may_use_the_evaluator(monkeypatch: pytest.MonkeyPatch) -> None:
    saver = GEMMEvaluator(ARCH)
    saver.save_to_disk(saver.evaluate_many(PROBLEMS))
    ((key, _), *_rest) = _disk._cache_at(default_path()).load_all()
    _disk._cache_at(default_path()).put_many({key: "{}"})
    evaluator = GEMMEvaluator(ARCH)
    seen: list[Any] = []
    monkeypatch.setattr("warnings.warn", lambda *_, **__: seen.append(evaluator.cache_info()))

    worker = threading.Thread(target=evaluator.evaluate, args=PROBLEMS[0], daemon=True)
    worker.start()
    worker.join(20)

    assert not worker.is_alive(), "locked out"
    assert len(seen) == 1


def test_threads_never_give_one_number_to_two_combinations_of_types() -> None:
    """One number would hand the costs of fp32 to who asks for int8."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(200):
            evaluator = GEMMEvaluator(ARCH, disk_cache=False)
            barrier = threading.Barrier(8)

            def number(part: int, evaluator: GEMMEvaluator = evaluator, barrier: Any = barrier) -> list[int]:
                barrier.wait()
                return [evaluator._costs.number_of(Kind(types.types, RunOptions())) for types in TYPES[part::8]]

            with ThreadPoolExecutor(8) as pool:
                numbers = [n for found in pool.map(number, range(8)) for n in found]
            assert len(set(numbers)) == len(TYPES)
    finally:
        sys.setswitchinterval(interval)


def test_two_processes_prewarm_at_once() -> None:
    lengths = ("64", "96")
    command = [sys.executable, "-c", PREWARM]
    running = [
        subprocess.Popen([*command, length], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
        for length in lengths
    ]
    for process in running:
        out, _ = process.communicate(timeout=300)
        assert process.returncode == 0
        num_stored, num_unique, num_hits = map(int, out.split())
        assert num_stored == num_unique == num_hits > 20

    evaluator = GEMMEvaluator(ARCH)
    report = prewarm(evaluator, "llama-3-8b", batch_sizes=range(1, 6), seq_lens=list(map(int, lengths)))
    assert report.num_known == report.num_unique
    texts = [json.loads(text) for _, text in _disk._cache_at(default_path()).load_all()]
    assert len(texts) == report.num_unique


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "mine.sqlite3"
    warm = GEMMEvaluator("demo-8core", disk_cache=path)
    assert warm.save_to_disk(warm.evaluate_many([(1, 16, 512, 768)])) == 1
    assert path.exists()
    later = GEMMEvaluator("demo-8core", disk_cache=str(path))
    assert later.evaluate(1, 16, 512, 768) == warm.evaluate(1, 16, 512, 768)
    assert later.cache_info().records.hits == 1
    elsewhere = GEMMEvaluator("demo-8core")
    elsewhere.evaluate(1, 16, 512, 768)
    assert elsewhere.cache_info().records.hits == 0
    with pytest.raises(InvalidOptionError, match="disk_cache must be"):
        GEMMEvaluator("demo-8core", disk_cache=3)  # type: ignore[arg-type]
