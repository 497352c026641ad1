"""Costs on disk: which entries are whose, which are believed, and what happens where the disk is off or damaged."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gemm_eval import GEMMEvaluator, GEMMResult, MulticoreSpec, load_arch
from gemm_eval.evaluate import disk as _disk
from gemm_eval.evaluate import multicore as _multicore
from gemm_eval.models.multicore.cost_kernels import COST_DTYPE
from gemm_eval.storage.cache import default_path
from gemm_eval.workload import RunOptions
from tests.cases import case

SIZES, OTHER_SIZES = (1, 16, 512, 768), (1, 16, 512, 769)
PROBLEMS = [(1, m, 256, 64) for m in range(1, 40)]
ARCH = load_arch("demo-8core")
NAMES = COST_DTYPE.names or ()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", str(tmp_path / "cache"))
    yield tmp_path / "cache"
    _disk._cache_at.cache_clear()  # closes the files of this test


@pytest.fixture(scope="module")
def expected() -> GEMMResult:
    return GEMMEvaluator(ARCH, disk_cache=False).evaluate(*SIZES)


def store(arch: MulticoreSpec | str = ARCH, problems: Any = (SIZES,), **options: Any) -> int:
    evaluator = GEMMEvaluator(arch, **options)
    return evaluator.save_to_disk(evaluator.evaluate_many(list(problems)))


def num_found(arch: MulticoreSpec | str = ARCH, **options: Any) -> int:
    """How many entries a new evaluator reads from disk, besides the one that it evaluates."""
    evaluator = GEMMEvaluator(arch, **options)
    evaluator.evaluate(1, 1, 1, 1)
    return evaluator.cache_info().records.currsize - 1


# whose entries are whose


def test_what_is_stored_is_found_by_the_next_evaluator(expected: GEMMResult) -> None:
    assert store() == 1

    evaluator = GEMMEvaluator(ARCH)
    assert evaluator.evaluate(*SIZES) == expected
    assert evaluator.cache_info().records.hits == 1


def test_other_options_and_archs_find_nothing() -> None:
    store(allow_idle_cores=False)
    store("sg2260e")
    store(plan="balanced")

    assert num_found() == 0
    assert num_found(plan="aggressive") == 0
    assert num_found(plan="balanced") == 1
    assert num_found(allow_idle_cores=False) == 1
    assert num_found("sg2260e") == 1
    assert num_found("tpu-v4") == 0


def test_another_version_of_the_model_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    store()
    monkeypatch.setattr(_multicore, "MODEL_VERSION", "multicore-next")

    assert num_found() == 0


CHANGES: dict[str | tuple[str, ...], Any] = {
    "num_cores": 4,
    "frequency_ghz": 1.25,
    "cube_m": 8,
    "cube_k": 8,
    "cube_n": 8,
    "cube_k_by_dtype": {"int8": 64},
    "cube_steps_per_cycle": dict.fromkeys(ARCH.cube_steps_per_cycle, 0.125),
    "fill_drain_cycles": 77,
    "default_dtype": "int8",
    "sram_bytes": 1 << 19,
    "sram_usable_frac": 0.625,
    "input_buffers": 1,
    "output_buffers": 2,
    "tile_buffers": {"C": 0},
    "lane_num": 3,
    "align_bytes": 256,
    "dram_gb_per_s": 77.0,
    "dram_efficiency_frac": 0.375,
    "dram_sharing": "static",
    "dram_core_limit_gb_per_s": 1.5,
    ("multicast_readers", "dram_core_limit_gb_per_s"): (4, 1.75),
    "load_sharing": "private",
    "noc_gb_per_s": 7.0,
    "reduction": "none",
    "vector_ops_per_cycle": 3.0,
    "vector_is_concurrent": False,
    "dequant": "inline",
    "dequant_ops_per_elem": 9.0,
    "exp_ops_per_elem": 2.0,
    "timing": "pipeline",
    "overlap_frac": 0.375,
    "launch_us": 5.5,
    "launch_floor_us": 500.0,
    "sync_us": 9.0,
    "task_us": 3.0,
    ("packs", "pack_gb_per_s"): ({"B": "shared"}, 3.0),
    ("packs", "pack_gb_per_s", "pack_near_bytes"): ({"B": "private"}, 3.0, 100),
    "weight_load_cycles": 9.0,
    "feed_bytes_per_cycle": 7.0,
    "load_clock_frac": {"fp16": 0.5},
    "partial_dtype": {"fp16": "bf16"},
    "resident": ("A",),
    "resident_max_frac": 0.5,
    ("shared_bytes", "shared_gb_per_s"): (1 << 20, 900.0),
    "dram_write_gb_per_s": 33.0,
    "by_dtype": {"fp16": {"launch_us": 7.0}},
    "rules": {"whole": ("K",)},
    "mac_pj": {"fp16": 77.0},
    "sram_pj_per_byte": 7.5,
    "dram_pj_per_byte": 77.5,
    "noc_pj_per_byte": 3.5,
    "static_w": 7.5,
}
WORDS: dict[str, Any] = {
    "name": "another-name",
    "title": "another title",
    "notes": "another note",
    "setting": "used otherwise",
    "is_coarse": True,
    "published": {"dram_gb_per_s": 1.0, "source": "a sheet"},
    "sources": {"x": "a book"},
    "provenance": {},
    "area_mm2": 12.0,
    "tdp_w": 34.0,
    "calibration": "somebody's timings",
    "coefficients": ("launch_us",),
}


def prefix(arch: MulticoreSpec) -> bytes:
    return GEMMEvaluator(arch)._costs.store()._prefix


def test_every_field_of_a_spec_is_either_in_the_key_or_words() -> None:
    """A field added later fails here until somebody decides."""
    assert set(WORDS) == _multicore._WORDS
    changed = {name for field in CHANGES for name in ((field,) if isinstance(field, str) else field)}
    assert changed | set(WORDS) | {"type"} == set(MulticoreSpec.model_fields)


def test_a_physical_field_changes_the_key() -> None:
    for field, value in CHANGES.items():
        fields = {field: value} if isinstance(field, str) else dict(zip(field, value, strict=True))
        with case(str(field)):
            changed = ARCH.with_(**fields)
            assert all(getattr(changed, name) != getattr(ARCH, name) for name in fields), "choose another value"

            assert prefix(changed) != prefix(ARCH)


@pytest.mark.parametrize("field", WORDS)
def test_words_about_a_chip_share_its_costs(field: str) -> None:
    other = ARCH.with_(**{field: WORDS[field]})
    store()

    assert prefix(other) == prefix(ARCH)
    evaluator = GEMMEvaluator(other)
    assert evaluator.evaluate(*SIZES) == GEMMEvaluator(other, disk_cache=False).evaluate(*SIZES)
    assert evaluator.cache_info().records.hits == 1


def test_the_order_of_tables_and_spelled_defaults_do_not_matter() -> None:
    steps = dict(reversed(list(ARCH.cube_steps_per_cycle.items())))

    assert prefix(ARCH.with_(cube_steps_per_cycle=steps, output_buffers=ARCH.output_buffers)) == prefix(ARCH)


# off, unwritable, damaged


@pytest.mark.parametrize("value", ["off", ""])
def test_off_means_off(value: str, expected: GEMMResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", value)

    assert store() == 0
    assert num_found() == 0
    assert GEMMEvaluator(ARCH).evaluate(*SIZES) == expected


def test_a_place_that_can_be_no_folder(folder: Path, expected: GEMMResult) -> None:
    folder.write_text("a file")

    assert store() == 0
    assert GEMMEvaluator(ARCH).evaluate(*SIZES) == expected


def test_a_name_that_no_file_can_have(expected: GEMMResult, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", "/" + "a" * 300)

    assert GEMMEvaluator(ARCH).evaluate(*SIZES) == expected


@pytest.mark.skipif(getattr(os, "geteuid", lambda: 0)() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_still_read(folder: Path, expected: GEMMResult) -> None:
    store()
    _disk._cache_at.cache_clear()
    folder.chmod(0o500)
    try:
        assert num_found() == 1
        assert store(problems=PROBLEMS) == 0
        assert GEMMEvaluator(ARCH).evaluate(*SIZES) == expected
    finally:
        folder.chmod(0o700)


def test_a_damaged_file_is_told_once_and_replaced(folder: Path, expected: GEMMResult) -> None:
    store()
    path = default_path()
    assert path is not None
    _disk._cache_at.cache_clear()
    os.truncate(path, 1000)

    with pytest.warns(RuntimeWarning, match="damaged"):
        assert GEMMEvaluator(ARCH).evaluate(*SIZES) == expected
    assert store() == 1
    assert num_found() == 1


def test_a_file_that_is_no_cache_stays(folder: Path, expected: GEMMResult) -> None:
    folder.mkdir()
    path = default_path()
    assert path is not None
    path.write_bytes(b"no database" * 1000)

    with pytest.warns(RuntimeWarning, match="is no cache of gemm_eval"):
        assert GEMMEvaluator(ARCH).evaluate(*SIZES) == expected
    assert store() == 0
    assert path.read_bytes() == b"no database" * 1000


def test_a_relative_folder_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", "here")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert num_found() == 0
        assert store() == 1


# entries that make no sense


def entry_text() -> dict[str, Any]:
    store()
    ((_, text),) = _disk._cache_at(default_path()).load_all()
    entry: dict[str, Any] = json.loads(text)
    return entry


def with_cost(**changes: Any) -> Callable[[dict[str, Any]], str]:
    def change(entry: dict[str, Any]) -> str:
        for name, value in changes.items():
            entry["cost"][NAMES.index(name)] = value
        return json.dumps(entry)

    return change


def with_part(**parts: Any) -> Callable[[dict[str, Any]], str]:
    return lambda entry: json.dumps(entry | parts)


NOT_SAID = [None] * len(RunOptions._fields)

LIES: dict[str, Callable[[dict[str, Any]], str]] = {
    "no json": lambda _: "{",
    "deep json": lambda _: "[" * 100_000,
    "a list": lambda _: "[1, 2, 3]",
    "no cost": lambda entry: json.dumps({key: entry[key] for key in ("sizes", "types", "options")}),
    "cost text": with_part(cost="x" * len(NAMES)),
    "cost too long": lambda entry: json.dumps(entry | {"cost": [*entry["cost"], 1.0]}),
    "cost too short": lambda entry: json.dumps(entry | {"cost": entry["cost"][:-1]}),
    "sizes zero": with_part(sizes=[0, 1, 1, 1]),
    "sizes float": with_part(sizes=[1.0, 1, 1, 1]),
    "sizes short": with_part(sizes=[1, 1, 1]),
    "sizes huge": with_part(sizes=[1 << 40] * 4),
    "types unknown": with_part(types=["fp61", *[None] * 6]),
    "types nested": with_part(types=[["fp16"], *[None] * 6]),
    "types short": with_part(types=["fp16"]),
    "options of a GPU": with_part(options=["cublas", "cold", "burst", *NOT_SAID[3:]]),
    "options nested": with_part(options=[["cublas"], *NOT_SAID[1:]]),
    "options too many": with_part(options=[*NOT_SAID, None]),
    "options a word": with_part(options="abc"),
    "group of dense": with_part(types=["fp16", "fp16", "fp16", "fp32", 64, None, None]),
    "int as text": with_cost(tile_m="16"),
    "int as float": with_cost(tile_m=16.0),
    "int as bool": with_cost(tile_m=True),
    "int null": with_cost(tile_m=None),
    "int beyond 63 bits": with_cost(dram_bytes=1 << 63),
    "float as int": with_cost(latency_us=3),
    "latency null": with_cost(latency_us=None),
    "latency nan": with_cost(latency_us=math.nan),
    "latency inf": with_cost(latency_us=math.inf),
    "latency zero": with_cost(latency_us=0.0),
    "latency negative": with_cost(latency_us=-1.0),
    "latency overflow": lambda entry: with_cost(latency_us=777.5)(entry).replace("777.5", "1e999"),
    "energy negative": with_cost(energy_pj=-1.0),
    "order unknown": with_cost(loop_order=6),
    "bound unknown": with_cost(bound=6),
    "no partition": with_cost(P_M=0),
    "too many cores": with_cost(P_M=9),
    "more at work than cores": with_cost(active_cores=9),
    "infeasible": with_cost(active_cores=0),
    "traffic negative": with_cost(a_bytes=-1),
    "a count negative": with_cost(num_candidates=-1),
    "of other sizes": with_part(sizes=[1, 16, 512, 770]),
    "too fast": with_cost(latency_us=1e-9),
    "a tile beyond the block": with_cost(tile_m=10**6),
    "a mapping that is not its own": with_cost(tile_n=16),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_entry_that_makes_no_sense_is_not_believed(lie: str, expected: GEMMResult) -> None:
    text = LIES[lie](entry_text())
    ((key, _),) = _disk._cache_at(default_path()).load_all()
    store(problems=[OTHER_SIZES])
    _disk._cache_at(default_path()).put_many({key: text})
    evaluator = GEMMEvaluator(ARCH)

    with pytest.warns(RuntimeWarning, match="removed 1 entries of the disk cache") as caught:
        assert evaluator.evaluate(*SIZES) == expected

    assert len(caught) == 1
    assert evaluator.evaluate_many([SIZES])[0] == expected
    assert evaluator.cache_info().records.currsize == 2  # the good one, and the one just computed
    later = GEMMEvaluator(ARCH)  # told once: the entry is gone
    later.evaluate(*OTHER_SIZES)
    assert later.cache_info().records[:2] == (1, 0)
