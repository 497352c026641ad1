"""Grouped GEMMs on disk: found again in any order of groups, and believed only where they make a GEMM of that cost."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gemm_eval import GEMMEvaluator, GemmProblem
from gemm_eval.evaluate import disk as _disk
from tests.evaluate.grouped_stand_in import give_answers

GROUPS = (120, 3, 0, 17)
PROBLEMS = [GemmProblem.grouped(GROUPS, 512, 256), GemmProblem(4, 120, 512, 256), GemmProblem.grouped((9, 0), 512, 256)]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    return give_answers(monkeypatch)


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "costs.sqlite3"
    _disk._cache_at.cache_clear()


def store(path: Path, arch: str = "demo-8core", problems: list[GemmProblem] | None = None) -> GEMMEvaluator:
    evaluator = GEMMEvaluator(arch, disk_cache=path)
    given = PROBLEMS if problems is None else problems
    assert evaluator.save_to_disk(evaluator.evaluate_many(given)) == len(given)
    return evaluator


@pytest.mark.parametrize("arch", ["demo-8core", "h200-sxm"])
def test_stored_groups_are_found_in_any_order(arch: str, path: Path, asked: list[tuple[Any, ...]]) -> None:
    saver = store(path, arch)
    later = GEMMEvaluator(arch, disk_cache=path)
    asked.clear()

    for problem in PROBLEMS:
        assert later.evaluate_problem(problem) == saver.evaluate_problem(problem)
    turned = later.evaluate_grouped(GROUPS[::-1], 512, 256, input_dtype="fp16", output_dtype="fp16")
    assert turned.latency_us == saver.evaluate_problem(PROBLEMS[0]).latency_us

    assert later.cache_info().records[:2] == (4, 0)
    assert ("replay_many", True) in asked
    assert "find" not in [what for what, _ in asked]
    # once for each kind that is stored: batch and groups may mean different kernels
    assert sorted(asked[: asked.index(("replay_many", True))]) == [
        ("resolve", False),
        ("resolve", True),
        ("resolve", True),
    ]


def test_orders_of_groups_are_one_entry(path: Path, asked: list[tuple[Any, ...]]) -> None:
    assert not asked
    store(path, problems=[PROBLEMS[0]])
    store(path, problems=[GemmProblem.grouped(sorted(GROUPS), 512, 256)])

    assert len(entries(path)) == 1


def entries(path: Path) -> list[tuple[bytes, dict[str, Any]]]:
    costs = GEMMEvaluator("demo-8core", disk_cache=path)._costs.store()
    return [(key, json.loads(text)) for key, text in costs._cache.load_all(prefix=costs._prefix)]


DAMAGE: dict[str, Callable[[dict[str, Any]], object]] = {
    "no groups": lambda entry: entry.pop("row_groups"),
    "a batch": lambda entry: entry.update(row_groups=None),
    "another number": lambda entry: entry.update(row_groups=[0, 3, 120]),
    "another largest": lambda entry: entry.update(row_groups=[0, 3, 17, 121]),
    "other rows": lambda entry: entry.update(row_groups=[0, 3, 18, 120]),
    "another order": lambda entry: entry.update(row_groups=[3, 0, 17, 120]),
    "equal": lambda entry: entry.update(row_groups=[120] * 4),
    "negative": lambda entry: entry.update(row_groups=[-1, 3, 17, 120]),
    "fractions": lambda entry: entry.update(row_groups=[0.0, 3, 17, 120]),
    "words": lambda entry: entry.update(row_groups="0, 3, 17, 120"),
    "nested": lambda entry: entry.update(row_groups=[[0], 3, 17, 120]),
    "none": lambda entry: entry.update(row_groups=[]),
    "another G": lambda entry: entry.update(sizes=[5, *entry["sizes"][1:]]),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_entries_are_removed(what: str, path: Path, asked: list[tuple[Any, ...]]) -> None:
    assert not asked
    expected = store(path, problems=[PROBLEMS[0]]).evaluate_problem(PROBLEMS[0])
    ((key, entry),) = entries(path)
    DAMAGE[what](entry)
    costs = GEMMEvaluator("demo-8core", disk_cache=path)._costs.store()
    costs._cache.put_many({key: json.dumps(entry)})

    later = GEMMEvaluator("demo-8core", disk_cache=path)
    with pytest.warns(RuntimeWarning, match="removed 1 entries"):
        assert later.evaluate_problem(PROBLEMS[0]) == expected
    assert later.cache_info().records.misses == 1
    assert entries(path) == []


def test_plain_costs_are_stored_beside_them(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store(path, problems=[GemmProblem(3, 64, 512, 256)])
        later = GEMMEvaluator("demo-8core", disk_cache=path)
        later.evaluate(3, 64, 512, 256)

    ((_, entry),) = entries(path)
    assert entry["row_groups"] is None
    assert later.cache_info().records[:2] == (1, 0)


@pytest.mark.parametrize("arch", ["demo-8core", "h200-sxm"])
def test_answers_of_the_models_are_believed(arch: str, path: Path) -> None:
    saver = store(path, arch)
    later = GEMMEvaluator(arch, disk_cache=path)

    assert list(later.evaluate_many(PROBLEMS)) == list(saver.evaluate_many(PROBLEMS))
    assert later.cache_info().records.misses == 0
