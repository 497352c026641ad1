"""Costs in memory and on disk: whose entries are whose, where they lie, and threads and processes that share them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gemm_eval
from gemm_eval import GEMMEvaluator, GemmProblem, GEMMResult, MulticoreSpec, load_arch
from gemm_eval.arch import data_root
from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.evaluate import costs as _disk
from gemm_eval.evaluate import multicore as _multicore
from gemm_eval.evaluate.backend import Kind
from gemm_eval.evaluate.costs import CostStore, FoundCosts, default_path
from gemm_eval.storage import arrays as results
from gemm_eval.transformer.prewarm import prewarm
from tests.cases import case

# ---- memory ----------------------------------------------------------------------------------------------------------


EVALUATOR = GEMMEvaluator("demo-8core", disk_cache=False)
FEW_ROWS = [GemmProblem(1, M, 32, 16) for M in range(1, 81)]
KIND: Kind = EVALUATOR.kind_of_types(FEW_ROWS[0].types, EVALUATOR.preferred)


def memory(maxsize: int) -> FoundCosts:
    return FoundCosts(EVALUATOR.backend, disk_cache=False, maxsize=maxsize)


def find(costs: FoundCosts, *places: int) -> None:
    for place in places:
        latency_us = costs.find(FEW_ROWS[place], KIND)["latency_us"]
        assert latency_us == EVALUATOR.evaluate_problem(FEW_ROWS[place]).latency_us


@pytest.mark.parametrize("maxsize", [2, 3, 10, 64])
def test_the_oldest_half_is_forgotten_where_there_are_too_many(maxsize: int) -> None:
    costs = memory(maxsize)
    find(costs, *range(maxsize))
    assert costs.info() == (0, maxsize, maxsize, maxsize)
    find(costs, *range(maxsize))
    assert costs.info() == (maxsize, maxsize, maxsize, maxsize)
    find(costs, maxsize)  # one too many
    assert costs.info().currsize == maxsize // 2
    find(costs, maxsize)
    assert costs.info()[:2] == (maxsize + 1, maxsize + 1)
    find(costs, 0)
    assert costs.info().misses == maxsize + 2
    costs.clear()
    assert costs.info() == (0, 0, maxsize, 0)


# ---- disk ------------------------------------------------------------------------------------------------------------


SIZES, OTHER_SIZES = (1, 16, 512, 768), (1, 16, 512, 769)
PROBLEMS = [(1, m, 256, 64) for m in range(1, 40)]
GROUPS = (120, 3, 0, 17)
ARCH = load_arch("demo-8core")
PACKAGE = Path(gemm_eval.__file__).parent
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
def folder(own_cache: Path) -> Path:
    results._warned.clear()
    return own_cache


@pytest.fixture(scope="module")
def expected() -> GEMMResult:
    return GEMMEvaluator(ARCH, disk_cache=False).evaluate(*SIZES)


def file_of(arch: str = "demo-8core") -> Path:
    path = default_path(arch)
    assert path is not None
    return path


def store(arch: MulticoreSpec | str = ARCH, problems: Any = (SIZES,), **options: Any) -> int:
    evaluator = GEMMEvaluator(arch, **options)
    return evaluator.save_to_disk(evaluator.evaluate_many(list(problems)))


def num_found(arch: MulticoreSpec | str = ARCH, **options: Any) -> int:
    """How many entries a new evaluator reads from disk, besides the one that it evaluates."""
    evaluator = GEMMEvaluator(arch, **options)
    evaluator.evaluate(1, 1, 1, 1)
    return evaluator.cache_info().records.currsize - 1


# whose entries are whose


def test_other_options_and_archs_find_nothing() -> None:
    asked: list[tuple[Any, dict[str, Any], int]] = [
        (ARCH, {}, 0), (ARCH, {"allow_idle_cores": False}, 1), ("sg2260e", {}, 1), ("tpu-v4", {}, 0),
    ]  # fmt: skip
    for arch, options, num in asked:
        if num:
            assert store(arch, **options) == 1
    for arch, options, num in asked:
        with case(f"{arch} {options}"):
            assert num_found(arch, **options) == num


def test_another_version_of_the_model_or_library_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for arch, name, value in (
        ("demo-8core", "multicore.model.MODEL_VERSION", "multicore-next"),
        ("demo-8core", "costs.answers_stamp", lambda: "of another library"),
        ("h100-sxm", "gpu.model.GPU_MODEL_VERSION", "gpu-next"),
        ("h100-sxm", "gpu.model.calibration_stamp", lambda _: "fitted anew"),
    ):
        store(arch)
        with case(f"{arch} {name}"), monkeypatch.context() as changed:
            changed.setattr(f"gemm_eval.evaluate.{name}", value)
            assert num_found(arch) == 0
            assert store(arch, problems=PROBLEMS) == len(PROBLEMS)
    assert num_found("demo-8core") == num_found("h100-sxm") == 1, "each leaves the others' costs in the file"


CHANGES: dict[str | tuple[str, ...], Any] = {
    "num_cores": 4, "frequency_ghz": 1.25, "cube_m": 8, "cube_k": 8, "cube_n": 8, "cube_k_by_dtype": {"int8": 64},
    "cube_steps_per_cycle": dict.fromkeys(ARCH.cube_steps_per_cycle, 0.125), "fill_drain_cycles": 77,
    "default_dtype": "int8", "sram_bytes": 1 << 19, "sram_usable_frac": 0.625, "input_buffers": 1,
    "output_buffers": 2, "tile_buffers": {"C": 0}, "lane_num": 3, "align_bytes": 256, "dram_gb_per_s": 77.0,
    "dram_efficiency_frac": 0.375, "dram_sharing": "static", "dram_core_limit_gb_per_s": 1.5,
    ("multicast_readers", "dram_core_limit_gb_per_s"): (4, 1.75), "load_sharing": "private", "noc_gb_per_s": 7.0,
    "reduction": "none", "vector_ops_per_cycle": 3.0, "vector_is_concurrent": False, "dequant": "inline",
    "dequant_ops_per_elem": 9.0, "exp_ops_per_elem": 2.0, "timing": "pipeline", "overlap_frac": 0.375,
    "launch_us": 5.5, "launch_floor_us": 500.0, "sync_us": 9.0, "task_us": 3.0,
    ("packs", "pack_gb_per_s"): ({"B": "shared"}, 3.0),
    ("packs", "pack_gb_per_s", "pack_near_bytes"): ({"B": "private"}, 3.0, 100), "weight_load_cycles": 9.0,
    "feed_bytes_per_cycle": 7.0, "load_clock_frac": {"fp16": 0.5}, "partial_dtype": {"fp16": "bf16"},
    "resident": ("A",), "resident_max_frac": 0.5, ("shared_bytes", "shared_gb_per_s"): (1 << 20, 900.0),
    "dram_write_gb_per_s": 33.0, "by_dtype": {"fp16": {"launch_us": 7.0}}, "rules": {"whole": ("K",)},
    "mac_pj": {"fp16": 77.0}, "sram_pj_per_byte": 7.5, "dram_pj_per_byte": 77.5, "noc_pj_per_byte": 3.5,
    "static_w": 7.5,
}  # fmt: skip
WORDS: dict[str, Any] = {
    "name": "another-name", "title": "another title", "notes": "another note", "setting": "used otherwise",
    "is_coarse": True, "published": {"dram_gb_per_s": 1.0, "source": "a sheet"}, "sources": {"x": "a book"},
    "provenance": {}, "area_mm2": 12.0, "tdp_w": 34.0, "calibration": "somebody's timings",
    "coefficients": ("launch_us",), "dram_bytes": 1 << 35, "host_us": 50.0,
    "interconnect": {"topology": "ring", "gb_per_s": 100.0, "latency_us": 2.0, "num_chips": 8},
}  # fmt: skip


def section(arch: MulticoreSpec) -> str:
    return GEMMEvaluator(arch)._costs.store().section


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
            assert section(changed) != section(ARCH)


def test_words_about_a_chip_and_the_order_of_tables_do_not() -> None:
    for field, value in WORDS.items():
        with case(field):
            assert section(ARCH.with_(**{field: value})) == section(ARCH)
    steps = dict(reversed(list(ARCH.cube_steps_per_cycle.items())))
    assert section(ARCH.with_(cube_steps_per_cycle=steps, output_buffers=ARCH.output_buffers)) == section(ARCH)


# what is kept


def test_every_combination_of_types_comes_back() -> None:
    quantized = [
        GemmProblem(1, 8, 256, 8, "fp16", "int4", None, None, group, scale, zero)  # type: ignore[arg-type]
        for group in (None, 32, 64)
        for scale in (None, "fp32", "bf16")
        for zero in (None, "fp16", "int8")
    ]
    problems = [p for p in [*TYPES, *quantized] if p.input_dtype in ARCH.cube_steps_per_cycle]
    assert len(problems) > 30
    assert store(problems=problems) == len(problems)

    later, never = GEMMEvaluator(ARCH), GEMMEvaluator(ARCH, disk_cache=False)
    assert [later.evaluate_problem(p) for p in problems] == [never.evaluate_problem(p) for p in problems]
    assert later.cache_info().records.misses == 0


def test_groups_are_found_in_any_order() -> None:
    batch = GemmProblem(4, 120, 512, 256)
    problems = [GemmProblem.grouped(GROUPS, 512, 256), batch, GemmProblem.grouped((9, 0), 512, 256)]
    for arch in ("demo-8core", "h200-sxm"):
        saver = GEMMEvaluator(arch)
        assert saver.save_to_disk(saver.evaluate_many([*problems, problems[0]])) == len(problems)
        assert saver.save_to_disk(saver.evaluate_many([GemmProblem.grouped(sorted(GROUPS), 512, 256)])) == 1
        later = GEMMEvaluator(arch)
        with case(arch), warnings.catch_warnings():
            warnings.simplefilter("error")
            assert list(later.evaluate_many(problems)) == list(saver.evaluate_many(problems))
            turned = later.evaluate_grouped(GROUPS[::-1], 512, 256, input_dtype="fp16", output_dtype="fp16")
            assert turned.latency_us == saver.evaluate_problem(problems[0]).latency_us
            assert later.cache_info().records == (4, 0, *later.cache_info().records[2:3], 3)


def test_unknown_energy_comes_back_as_none() -> None:
    assert store("sg2260e", PROBLEMS) == len(PROBLEMS)
    later, never = GEMMEvaluator("sg2260e"), GEMMEvaluator("sg2260e", disk_cache=False)
    assert later.evaluate(*PROBLEMS[0]).energy_pj is None
    assert later.evaluate_many(PROBLEMS).records.tobytes() == never.evaluate_many(PROBLEMS).records.tobytes()
    assert later.cache_info().records.misses == 0


def test_infeasible_problems_are_not_stored() -> None:
    some = [GemmProblem(1, 16, 64, 16, dtype) for dtype in ("int8", "fp16", "fp16")]  # type: ignore[arg-type]
    for sram_bytes, problems, num in ((5500, some, 1), (64, PROBLEMS, 0)):
        evaluator = GEMMEvaluator(ARCH.with_(sram_bytes=sram_bytes, num_cores=1))
        table = evaluator.evaluate_many(problems, errors="mark")
        assert evaluator.save_to_disk(table) == num == len(evaluator._costs.store().load())


def test_the_last_costs_stay_where_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_disk, "_MAX_COSTS", 30)
    store(problems=[SIZES])
    assert store(problems=PROBLEMS) == len(PROBLEMS)
    later = GEMMEvaluator(ARCH)
    later.evaluate_many(PROBLEMS[-30:])
    assert later.cache_info().records[:2] == (30, 0)
    later.evaluate(*SIZES)
    assert later.cache_info().records.misses == 1


@pytest.mark.parametrize("other", [GEMMEvaluator("sg2260e"), GEMMEvaluator(ARCH, allow_idle_cores=False)], ids=repr)
def test_a_table_of_another_evaluator_is_refused(other: GEMMEvaluator) -> None:
    evaluator = GEMMEvaluator(ARCH)
    with pytest.raises(InvalidInputError, match="table"):
        evaluator.save_to_disk(other.evaluate_many(PROBLEMS))
    assert GEMMEvaluator(ARCH).save_to_disk(evaluator.evaluate_many(PROBLEMS)) == len(PROBLEMS)


# where, and where not


def test_evaluation_alone_and_a_cache_that_is_off_write_nothing(
    expected: GEMMResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluator = GEMMEvaluator(ARCH)
    assert evaluator.evaluate(*SIZES) == expected
    evaluator.evaluate_many(PROBLEMS).to_dicts()
    evaluator.top(GemmProblem(1, 8, 8, 8), 3)
    off = GEMMEvaluator(ARCH, disk_cache=False)
    assert off.save_to_disk(off.evaluate_many(PROBLEMS)) == 0
    assert prewarm(off, "llama-3-8b", batch_sizes=[1], seq_lens=[8]).num_stored == 0
    assert not file_of().exists()
    store()
    assert (num_found(disk_cache=False), num_found()) == (0, 1)
    for value in ("off", "", "/" + "a" * 300, str(file_of())):  # a name that no folder has, and a file
        monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", value)
        with case(value):
            assert (store(), num_found()) == (0, 0)
            assert GEMMEvaluator(ARCH).evaluate(*SIZES) == expected


def test_a_file_of_ones_own_holds_all_chips(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "mine.npz"
    for arch in ("demo-8core", "sg2260e"):
        warm = GEMMEvaluator(arch, disk_cache=path)
        assert warm.save_to_disk(warm.evaluate_many([SIZES])) == 1
    for arch in ("demo-8core", "sg2260e"):
        later = GEMMEvaluator(arch, disk_cache=str(path))
        assert later.evaluate(*SIZES) == GEMMEvaluator(arch, disk_cache=False).evaluate(*SIZES)
        assert later.cache_info().records.hits == 1
        assert num_found(arch) == 0
    assert path.is_file()
    with pytest.raises(InvalidOptionError, match="disk_cache must be"):
        GEMMEvaluator("demo-8core", disk_cache=3)  # type: ignore[arg-type]


def test_a_relative_folder_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", "here")
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        assert (num_found(), store()) == (0, 1)


def test_a_file_that_is_no_cache_stays(expected: GEMMResult) -> None:
    file_of().parent.mkdir()
    file_of().write_bytes(b"no archive" * 1000)
    with pytest.warns(RuntimeWarning, match="is no cache of gemm_eval"):
        assert GEMMEvaluator(ARCH).evaluate(*SIZES) == expected
    assert store() == 0
    assert file_of().read_bytes() == b"no archive" * 1000


def test_arrays_that_make_no_sense_are_no_costs(expected: GEMMResult) -> None:
    costs = GEMMEvaluator(ARCH)._costs.store()
    assert costs._file is not None
    store()
    whole = dict(costs._file.read(costs.section))
    for name, array in (
        ("kinds", np.frombuffer(b"{", np.uint8)), ("kinds", np.frombuffer(b"[]", np.uint8)),
        ("problems", np.zeros((2, 5), np.int64)), ("problems", np.int64(3)), ("rows", None), ("records", None),
    ):  # fmt: skip
        changed = {key: value for key, value in (whole | {name: array}).items() if value is not None}
        assert costs._file.merge(costs.section, lambda _, changed=changed: changed)
        with case(name), pytest.warns(RuntimeWarning, match="results on disk are damaged"):
            assert GEMMEvaluator(ARCH).evaluate(*SIZES) == expected
    with pytest.warns(RuntimeWarning, match="results on disk are damaged"):
        assert store() == 1
    assert num_found() == 1


# threads and processes


def test_threads_wait_for_the_disk_and_see_right_results(monkeypatch: pytest.MonkeyPatch) -> None:
    saver = GEMMEvaluator(ARCH)
    answers = list(saver.evaluate_many(PROBLEMS))
    saver.save_to_disk(saver.evaluate_many(PROBLEMS))
    num_reads, load = 0, CostStore.load

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
            assert found == answers[start:] + answers[:start]
    assert num_reads == 1
    assert evaluator.cache_info().records.misses == 0


def test_a_warning_handler_may_use_the_evaluator(monkeypatch: pytest.MonkeyPatch) -> None:
    store()
    os.truncate(file_of(), 1000)
    evaluator = GEMMEvaluator(ARCH)
    seen: list[Any] = []
    monkeypatch.setattr("warnings.warn", lambda *_, **__: seen.append(evaluator.cache_info()))

    worker = threading.Thread(target=evaluator.evaluate, args=SIZES, daemon=True)
    worker.start()
    worker.join(20)

    assert not worker.is_alive(), "locked out"
    assert len(seen) == 1


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
    assert report.num_known == report.num_unique == num_found()


# the stamp of code and data


# (in the copy, what a change of it is)
SOURCES = [
    ("gemm_eval/models/gpu/cost_kernels.py", "a cost"),
    ("gemm_eval/units.py", "a unit"),
    ("arch/kernels/w4a16/sm_90a-fp16.csv", "a line of a kernel table"),
    ("arch/calibration/h200-sxm/cublas-sm90_wgmma.yaml", "a coefficient"),
    ("arch/gpu/h200-sxm.yaml", "which GPU a calibration is of"),
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(PACKAGE, folder / "gemm_eval", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("kernels", "calibration", "gpu"):
        shutil.copytree(data_root() / name, folder / "arch" / name)
    return folder


def test_it_changes_with_all_that_decides_an_answer(copy: Path) -> None:
    seen = {stamp := _disk._digest(copy / "gemm_eval", copy / "arch")}
    assert stamp == _disk.answers_stamp(), "where the library lies does not matter"
    for name, what in SOURCES:
        path = copy / name
        text = path.read_bytes()
        for changed in (text + b"#", text.replace(b"1", b"2", 1)):
            assert changed != text
            path.write_bytes(changed)
            stamp = _disk._digest(copy / "gemm_eval", copy / "arch")
            assert stamp not in seen, what
            seen.add(stamp)
        path.write_bytes(text)
    assert _disk._digest(copy / "gemm_eval", copy / "arch") == _disk.answers_stamp()


def test_it_changes_with_names_and_not_with_what_is_no_source(copy: Path) -> None:
    before = _disk._digest(copy / "gemm_eval", copy / "arch")
    cached = copy / "gemm_eval" / "models" / "__pycache__"
    cached.mkdir()
    (cached / "x.cpython-311.pyc").write_bytes(b"code")
    assert _disk._digest(copy / "gemm_eval", copy / "arch") == before
    calibrations = copy / "arch" / "calibration"
    (calibrations / "h200-sxm").rename(calibrations / "h100-pcie")
    assert _disk._digest(copy / "gemm_eval", copy / "arch") != before


EVALUATE = """
import json, os, sys
read = set()

def note(event, args):
    if event == "open" and isinstance(args[0], (str, os.PathLike)):
        read.add(os.fspath(args[0]))

sys.addaudithook(note)
from gemm_eval import GEMMEvaluator, GemmProblem
for arch, dtypes in (("demo-8core", ("fp16", "w4a16")), ("h100-sxm", ("fp16", "w4a16"))):
    evaluator = GEMMEvaluator(arch, disk_cache=sys.argv[1])
    for dtype in dtypes:
        evaluator.save_to_disk(evaluator.evaluate_many([(1, 16, 256, 256), (1, 3, 7, 5)], dtype))
        GEMMEvaluator(arch, disk_cache=sys.argv[1]).evaluate(1, 16, 256, 256, dtype)
files = [module.__file__ for name, module in sys.modules.items() if name.startswith("gemm_eval")]
print(json.dumps([files, sorted(read)]))
"""


def test_it_covers_every_module_and_table_that_an_evaluation_uses(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EVALUATE, tmp_path / "costs.npz"],
        capture_output=True, text=True, check=True, cwd=PACKAGE.parent,
    )  # fmt: skip
    modules, read = json.loads(done.stdout)
    covered = set(_disk._files(PACKAGE, _disk._CODE)) | set(_disk._files(data_root(), _disk._DATA))

    assert len(modules) > 40
    assert {Path(name) for name in modules} <= covered
    data = {Path(name) for name in read if Path(name).is_relative_to(data_root())}
    assert len(data) > 5
    # the spec of a multi-core chip stands in the key itself
    assert {path for path in data - covered if path.parent.name != "multicore"} == set()
