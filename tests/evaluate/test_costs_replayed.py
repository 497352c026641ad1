"""Costs read from disk are replayed: true ones are found again to the bit, and a record off by one bit is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemm_eval import GEMMEvaluator
from gemm_eval.errors import InvalidMappingError
from gemm_eval.evaluate import disk as _disk
from gemm_eval.evaluate.backend import Kind, Records
from gemm_eval.models.multicore.cost_kernels import COST_DTYPE
from gemm_eval.workload import GemmProblem, RunOptions

KINDS: list[tuple[str, dict[str, Any], str | None, dict[str, Any]]] = [
    ("demo-8core", {}, None, {}),
    ("demo-8core", {"allow_idle_cores": False}, "w4a16", {}),
    ("demo-8core", {"plan": "balanced"}, "int8", {}),
    ("sg2260e", {}, "w4a16", {}),
    ("h100-sxm", {}, "fp16", {}),
    ("h100-sxm", {}, "fp8", {"l2": "warm", "clock": "sustained"}),
    ("h100-sxm", {}, "w4a16", {}),
    ("h100-sxm", {}, "w4a16", {"library": "trtllm"}),
    ("a100-sxm-80gb", {}, "w4a16", {"l2": "warm"}),
    ("l4", {}, "int8", {}),
]

TWINS = ("P_G", "P_M", "P_N", "P_K", "loop_order")  # other numbers of these may name a mapping of the very same cost


@pytest.fixture(autouse=True)
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "costs.sqlite3"
    _disk._cache_at.cache_clear()


def some_sizes(rng: np.random.Generator, num: int, dtype: str | None) -> Any:
    """G, M, K, N of all alignments: odd ones, multiples of 8 and of 128; with 4-bit weights of 64 only."""
    unit = rng.choice([64, 128] if dtype == "w4a16" else [1, 8, 128], (num, 3))
    sizes = np.minimum(rng.integers(1, 40, (num, 3)) * unit, 4096)
    return np.column_stack([rng.choice([1, 1, 1, 3], num), sizes])


def test_every_answer_is_found_again(path: Path) -> None:
    rng = np.random.default_rng(16)
    for arch, settings, dtype, options in KINDS:
        saver = GEMMEvaluator(arch, disk_cache=path, **settings)
        table = saver.evaluate_many(some_sizes(rng, 12 if settings.get("plan") else 60, dtype), dtype, **options)
        saver.save_to_disk(table)

        later = GEMMEvaluator(arch, disk_cache=path, **settings)
        again = later.evaluate_many(table.batch.sizes, dtype, **options)
        assert later.cache_info().records.misses == 0, (arch, dtype, options)
        assert again.records.tobytes() == table.records.tobytes()


def refused(evaluator: GEMMEvaluator, kind: Kind, sizes: Any, records: Records) -> Any:
    """Which records the replay does not confirm; counts of the search do not matter."""
    backend = evaluator.backend
    again = backend.replay_many([backend.pack(kind)], np.zeros(len(sizes), np.int64), sizes, None, records)
    for name in backend.search_counts:
        again[name] = records[name]
    size = records.dtype.itemsize
    new, old = again.tobytes(), records.tobytes()
    return np.array([new[i : i + size] != old[i : i + size] for i in range(0, len(old), size)])


def test_a_record_off_by_one_bit_is_refused() -> None:
    rng = np.random.default_rng(17)
    for arch, settings, dtype, options in KINDS:
        evaluator = GEMMEvaluator(arch, disk_cache=False, **settings)
        table = evaluator.evaluate_many(some_sizes(rng, 1, dtype), dtype, **options)
        skipped = {*evaluator.backend.search_counts, *TWINS}
        names = [name for name in table.records.dtype.names or () if name not in skipped]
        changed = np.repeat(table.records, 64 * len(names))
        for place, name in enumerate(names):
            rows = slice(64 * place, 64 * (place + 1))
            changed[name][rows] = (
                changed[name].view(np.int64)[rows] ^ (1 << np.arange(64, dtype=np.uint64)).view(np.int64)
            ).view(changed[name].dtype)
        sizes = np.repeat(table.batch.sizes, len(changed), axis=0)

        assert not refused(evaluator, table.batch.kinds[0], table.batch.sizes, table.records).any()
        is_refused = refused(evaluator, table.batch.kinds[0], sizes, changed)
        assert is_refused.all(), (arch, dtype, options, {names[row // 64] for row in np.flatnonzero(~is_refused)})


def test_noise_is_refused_and_does_no_harm() -> None:
    rng = np.random.default_rng(18)
    for arch, settings, dtype, options in KINDS:
        evaluator = GEMMEvaluator(arch, disk_cache=False, **settings)
        sizes = some_sizes(rng, 400, dtype)
        table = evaluator.evaluate_many(sizes[:1], dtype, **options)
        noise = np.zeros(len(sizes), table.records.dtype)
        for name in noise.dtype.names or ():
            low = rng.integers(-2, 10, len(sizes))
            wide = rng.integers(-(1 << 63), (1 << 63) - 1, len(sizes))
            noise[name] = np.where(rng.random(len(sizes)) < 0.9, low, wide)

        assert refused(evaluator, table.batch.kinds[0], sizes, noise).all()


def test_legal_for_a_replay_is_legal_for_a_user() -> None:
    """Both ask one kernel; this holds the way there: orders, numbers below 1, and numbers beyond 63 bits."""
    rng = np.random.default_rng(19)
    evaluator = GEMMEvaluator("demo-8core", disk_cache=False)
    kind = Kind(GemmProblem(1, 1, 1, 1).types, RunOptions())
    problem = GemmProblem(2, 48, 96, 80)
    stored = np.zeros(2000, COST_DTYPE)
    for name in ("P_G", "P_M", "P_N", "P_K"):
        stored[name] = rng.choice([0, 1, 1, 1, 1, 1, 2, 2, 2, 4, 1 << 62], len(stored))
    for name in ("tile_m", "tile_n", "tile_k"):
        stored[name] = rng.choice([-1, 1, 16, 16, 16, 16, 24, 40, 48, 1 << 40], len(stored))
    stored["loop_order"] = rng.integers(-1, 7, len(stored))
    sizes = np.repeat([problem.sizes], len(stored), axis=0)
    again = evaluator.backend.replay_many(
        [evaluator.backend.pack(kind)], np.zeros(len(stored), np.int64), sizes, None, stored
    )

    num_legal = 0
    for row, found in zip(stored.tolist(), again, strict=True):
        if found["active_cores"] == 0:
            with pytest.raises(InvalidMappingError):
                evaluator.evaluate_mapping(problem, (row[:4], row[4:7], row[7]))  # type: ignore[arg-type]
        else:
            num_legal += 1
            cost = evaluator.evaluate_mapping(problem, (row[:4], row[4:7], row[7]))  # type: ignore[arg-type]
            assert (found["latency_us"], found["dram_bytes"]) == (cost.latency_us, cost.dram_bytes)
    assert 20 < num_legal < 1500
