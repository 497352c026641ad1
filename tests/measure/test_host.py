"""What this CPU is, GEMMs and streams on it, the spec that is written of them, and the rules of its BLAS."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import cycle, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from gemm_eval import GEMMEvaluator, MulticoreSpec, load_arch
from gemm_eval.arch import ProvenanceKind
from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.measure import host
from gemm_eval.measure.host import timing as timed
from gemm_eval.measure.host.cpu import (
    BlasInfo,
    CacheLevel,
    Fact,
    HostFacts,
    blas_info,
    cores_of,
    detect_host,
    pinned_blas,
    quota_cores,
    simd_width,
    sysctl_caches,
    sysfs_caches,
)
from gemm_eval.measure.host.host_kernels import copy_words, read_words, run_chain
from gemm_eval.measure.host.spec import can_be_spec, host_spec_text, write_host_files
from gemm_eval.measure.host.timing import (
    BandwidthPoint,
    HostMeasurement,
    HostShape,
    HostTiming,
    measure_bandwidth,
    measure_host,
    pick_host_shapes,
    time_host_shapes,
    working_sets,
)
from gemm_eval.validation.subjects.chip_timings import read_chip_timings
from gemm_eval.validation.subjects.chips import calibrate_chip
from tests.cli.commands import Ran

# ---- a machine that nobody has: 4 cores at 2 GHz, vectors of 8 floats, one a cycle -----------------------------------


MIB = 1 << 20
FACTS = HostFacts(
    title="Maker(R) Chip(TM) 4000 CPU @ 2.00GHz",
    machine="x86_64",
    system="Linux 6.1",
    num_cores=Fact(4, ProvenanceKind.SPEC, "counted"),
    cpus=(0, 1, 2, 3),
    simd_bits=Fact(256, ProvenanceKind.SPEC, "flag avx of the CPU"),
    nominal_ghz=Fact(2.0, ProvenanceKind.SPEC, "told"),
    clock_ghz=Fact(2.0, ProvenanceKind.MEASURED, "a chain"),
    caches=(CacheLevel(1, 32 << 10, 1), CacheLevel(2, MIB, 1), CacheLevel(3, 8 * MIB, 4)),
    caches_source="sysfs",
    memory_bytes=16 << 30,
    is_virtual=False,
)
_PEAK_MACS_PER_US = 4 * 2000 * 8


def timing(M: int, K: int, N: int, peak_frac: float = 0.9) -> HostTiming:
    latency_us = M * K * N / (_PEAK_MACS_PER_US * peak_frac)
    return HostTiming(HostShape(M, K, N), latency_us, 0.9 * latency_us, 0.05, 20, 1, 0)


def measurement(**changes: Any) -> HostMeasurement:
    points = tuple(
        BandwidthPoint("read", threads, size * MIB, rate, 0.01)
        for threads, size, rate in ((1, 1, 60.0), (1, 64, 12.0), (4, 1, 240.0), (4, 64, 30.0))
    )
    timings = (timing(1, 4096, 4096, 0.05), timing(512, 1024, 1024), timing(64, 256, 256, 0.6))
    blas = BlasInfo("openblas", "0.3.31", "Haswell", "2.4.6", 4)
    return replace(HostMeasurement(FACTS, blas, "fp32", points, timing(1, 1, 1, 1e-5), timings), **changes)


# ---- what this CPU is ------------------------------------------------------------------------------------------------


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


@pytest.fixture
def two_cores(tmp_path: Path) -> Path:
    """Sysfs of two cores with two hardware threads each: 0 and 2 are one core, 1 and 3 the other."""
    for cpu in range(4):
        write(tmp_path / f"cpu{cpu}/topology/thread_siblings_list", f"{cpu % 2},{cpu % 2 + 2}")
        for index, (level, kind, size, sharing) in enumerate(
            (
                ("1", "Data", "48K", f"{cpu % 2},{cpu % 2 + 2}"),
                ("1", "Instruction", "32K", f"{cpu % 2},{cpu % 2 + 2}"),
                ("2", "Unified", "2048K", f"{cpu % 2},{cpu % 2 + 2}"),
                ("3", "Unified", "30M", "0-3"),
            )
        ):
            for name, text in (("level", level), ("type", kind), ("size", size), ("shared_cpu_list", sharing)):
                write(tmp_path / f"cpu{cpu}/cache/index{index}/{name}", text)
    return tmp_path


def test_a_core_is_counted_once(two_cores: Path) -> None:
    assert cores_of((0, 1, 2, 3), two_cores) == (0, 1)
    assert cores_of((1, 2, 3), two_cores) == (1, 2)
    assert cores_of((5, 6), two_cores) == (5, 6)


def test_caches_of_linux_are_shared_by_cores_not_threads(two_cores: Path) -> None:
    assert sysfs_caches(0, two_cores) == (
        CacheLevel(1, 48 << 10, 1),
        CacheLevel(2, 2 << 20, 1),
        CacheLevel(3, 30 << 20, 2),
    )
    assert sysfs_caches(9, two_cores) == ()


def test_caches_of_a_mac_are_those_of_its_fast_cores() -> None:
    values = {
        "hw.l1dcachesize": 65536, "hw.l2cachesize": 4 << 20,
        "hw.perflevel0.l1dcachesize": 131072, "hw.perflevel0.l2cachesize": 16 << 20, "hw.perflevel0.cpusperl2": 4,
    }  # fmt: skip
    assert sysctl_caches(values, 8) == (CacheLevel(1, 131072, 1), CacheLevel(2, 16 << 20, 4))
    assert sysctl_caches({"hw.l3cachesize": 8 << 20}, 6) == (CacheLevel(3, 8 << 20, 6),)


@pytest.mark.parametrize(
    ("flags", "machine", "bits", "kind"),
    [
        (["sse2", "avx", "avx2", "fma", "avx512f"], "x86_64", 512, ProvenanceKind.SPEC),
        (["sse2", "avx"], "x86_64", 256, ProvenanceKind.SPEC),
        (["sse2"], "x86_64", 128, ProvenanceKind.SPEC),
        (["asimd"], "aarch64", 128, ProvenanceKind.SPEC),
        ([], "arm64", 128, ProvenanceKind.SPEC),
        ([], "riscv64", 128, ProvenanceKind.ASSUMED),
    ],
)
def test_vector_width(flags: list[str], machine: str, bits: int, kind: ProvenanceKind) -> None:
    found = simd_width(flags, machine)
    assert (found.value, found.kind) == (bits, kind)


@pytest.mark.parametrize(
    ("text", "cores"), [("max 100000", None), ("250000 100000", 2), ("50000 100000", 1), ("", None), ("1 0", None)]
)
def test_quota_of_a_container(tmp_path: Path, text: str, cores: int | None) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert quota_cores(tmp_path / "cpu.max") == cores
    assert quota_cores(tmp_path / "none") is None


def test_this_machine() -> None:
    facts = detect_host()

    assert facts.title
    assert facts.num_cores.value >= 1
    assert facts.simd_bits.value in (64, 128, 256, 512, 1024, 2048)
    assert len(facts.cpus) in (0, facts.num_cores.value)
    assert 0.1 < facts.clock_ghz.value < 10.0
    assert facts.clock_ghz.kind is ProvenanceKind.MEASURED
    sizes = [cache.size_bytes for cache in facts.caches]
    assert sizes == sorted(sizes)


# ---- GEMMs and streams -----------------------------------------------------------------------------------------------


FEW = [HostShape(1, 8, 16), HostShape(5, 7, 3), HostShape(32, 32, 32)]


# which GEMMs


def test_shapes_span_rows_and_pairs() -> None:
    shapes = pick_host_shapes(mac_per_us=1e5, budget_s=90.0)

    assert 100 <= len(shapes) <= 200
    assert len(set(shapes)) == len(shapes)
    assert {shape.M for shape in shapes} >= {1, 2, 3, 12, 256, 2048}
    assert len({(shape.K, shape.N) for shape in shapes}) >= 10
    assert any(shape.N % 16 and shape.K % 16 for shape in shapes)


# how they are timed


@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_timings_of_a_few(dtype: str) -> None:
    found = {one.shape: one for one in time_host_shapes(FEW, dtype, budget_s=0.3)}

    assert set(found) <= set(FEW)  # on a busy machine one may never run undisturbed
    for one in found.values():
        assert 0.0 < one.min_us <= one.latency_us
        assert one.spread_frac >= 0.0
        assert min(one.num_samples, one.calls_per_sample) >= 1


def test_disturbed_samples_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system's count of switches rises during every other sample."""
    counts = cycle((0, 1, 1, 1))
    monkeypatch.setattr(timed, "_num_switches", lambda: next(counts))
    monkeypatch.setattr(timed, "_SWITCH_EVERY_S", float("inf"))  # on a busy machine a sample may last long
    monkeypatch.setattr(timed, "_NUM_PASSES", 1)
    (found,) = time_host_shapes(FEW[:1], budget_s=0.05)

    assert found.num_disturbed >= 1
    assert abs(found.num_samples - found.num_disturbed) <= 1


def test_what_never_runs_undisturbed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter(range(1_000_000))
    monkeypatch.setattr(timed, "_num_switches", lambda: next(counts))
    monkeypatch.setattr(timed, "_SWITCH_EVERY_S", float("inf"))  # on a busy machine a sample may last long
    assert time_host_shapes(FEW, budget_s=0.05) == []


def test_wrong_products_are_found() -> None:
    draws = np.random.default_rng(0)
    A, B = (draws.random((64, 64), np.float32) for _ in range(2))
    timed.check_product(A, B, A @ B, draws)
    with pytest.raises(GemmEvalError, match=r"BLAS is wrong: element \(\d+, \d+\)"):
        timed.check_product(A, B, A @ B * np.float32(1.001), draws)
    with pytest.raises(GemmEvalError, match="BLAS is wrong"):
        timed.check_product(A, B, np.full((64, 64), np.nan, np.float32), draws)


# threads


@pytest.fixture
def _same_mask() -> Iterator[None]:
    mask = getattr(os, "sched_getaffinity", lambda _: None)(0)
    yield
    assert getattr(os, "sched_getaffinity", lambda _: None)(0) == mask


@pytest.mark.usefixtures("_same_mask")
def test_threads_are_limited_and_pinned_for_a_while() -> None:
    before, cpus = blas_info(), detect_host().cpus
    if not before.max_threads:
        pytest.skip("this BLAS does not let its threads be limited")
    with pinned_blas(1, cpus):
        assert blas_info().max_threads == 1
        if cpus:
            assert os.sched_getaffinity(0) == {cpus[0]}
    assert blas_info() == before


@pytest.mark.usefixtures("_same_mask")
def test_more_threads_than_blas_has() -> None:
    with pytest.raises(InvalidOptionError, match=r"BLAS .*threads"), pinned_blas(1 << 20, (0,)):
        pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_threads": 0}, "--threads must be 1 to"),
        ({"num_threads": 1 << 20}, "--threads must be 1 to"),
        ({"budget_s": 1.0}, "--budget-s must be at least 5, got 1"),
        ({"budget_s": float("nan")}, "--budget-s must be at least 5, got nan"),
        ({"dtype": "bf16"}, "--dtype must be one of fp32, fp64, got"),
    ],
)
def test_options_out_of_range(options: dict[str, float], message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        measure_host(**options)  # type: ignore[arg-type]


# streams


def test_working_sets_grow_beyond_the_last_cache() -> None:
    sizes = working_sets(FACTS, 4)
    assert sizes[0] == 4 * (16 << 10)
    assert all(b == 2 * a for a, b in pairwise(sizes))
    assert 2 * FACTS.last_cache_bytes < sizes[-1] <= FACTS.memory_bytes // 8
    little = replace(FACTS, memory_bytes=64 << 20)
    assert working_sets(little, 4)[-1] <= little.memory_bytes // 8
    assert working_sets(replace(FACTS, memory_bytes=1), 4) == [sizes[0]]


def test_streams_are_measured() -> None:
    points = measure_bandwidth([1 << 16], 2, ())
    assert [(point.kind, point.num_threads, point.working_set_bytes) for point in points] == [
        ("read", 2, 1 << 16),
        ("copy", 2, 1 << 16),
    ]
    assert all(point.gb_per_s > 0.0 for point in points)
    assert measure_bandwidth([1 << 16], 1, (), stop_at=0.0) == []


def test_loops_do_what_they_say() -> None:
    words = np.arange(10, dtype=np.int64)
    target = np.zeros_like(words)
    copy_words(words, target, 3)
    assert target.tolist() == (words + 2).tolist()
    assert read_words(words, 2) == sum(i for i in range(10)) + sum(i ^ 1 for i in range(10))
    state = 5
    for _ in range(2):
        state ^= state << 13
        state ^= state >> 7
        state ^= state << 17
    assert run_chain(5, 2) == (state + (1 << 63)) % (1 << 64) - (1 << 63)


# ---- the spec and the tables beside it -------------------------------------------------------------------------------


DATE = "2026-01-31"


def spec_of(folder: Path, found: HostMeasurement, **how: Any) -> MulticoreSpec:
    path = folder / "host.yaml"
    path.write_text(host_spec_text(found, DATE, **how), encoding="utf-8")
    return load_arch(path, MulticoreSpec)


def test_spec_says_what_was_measured(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, measurement())

    assert (spec.name, spec.num_cores, spec.frequency_ghz, spec.sram_bytes) == ("maker-chip-4000-4c", 4, 2.0, 1 << 20)
    assert (spec.dram_gb_per_s, spec.dram_core_limit_gb_per_s) == (30.0, 12.0)  # of the 64 MiB that were timed
    assert spec.peak_tflop_per_s() == pytest.approx(2 * 4 * 2e9 * 8 / 1e12)
    assert spec.launch_us == pytest.approx(measurement().launch.latency_us, abs=1e-3)
    assert "gemm-eval measure host" in spec.sources["host"]
    assert DATE in spec.sources["timings"]


def test_every_number_has_a_kind_and_a_source(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, measurement())
    numbers = {
        name for name in spec.model_fields_set
        if isinstance(getattr(spec, name), int | float) and not isinstance(getattr(spec, name), bool)
    }  # fmt: skip
    assert numbers <= set(spec.provenance)
    assert spec.provenance["cube_steps_per_cycle.fp32"].kind is ProvenanceKind.DERIVED
    assert spec.provenance["dram_gb_per_s"].kind is ProvenanceKind.MEASURED


@pytest.mark.parametrize(("peak_frac", "units"), [(0.3, 1), (0.9, 1), (1.04, 1), (1.2, 2), (3.9, 4), (7.0, 8)])
def test_units_are_as_few_as_the_fastest_gemm_needs(tmp_path: Path, peak_frac: float, units: int) -> None:
    spec = spec_of(tmp_path, measurement(timings=(timing(512, 1024, 1024, peak_frac),)))
    assert spec.cube_m * spec.cube_n * spec.cube_steps_per_cycle["fp32"] == 8 * units  # type: ignore[index]


def test_files_are_read_back(tmp_path: Path) -> None:
    found = measurement()
    files = write_host_files(tmp_path / "new", found, DATE)

    assert files.spec is not None
    spec = load_arch(files.spec)
    timings = read_chip_timings(spec.name, files.timings)
    (rows,) = timings.sets
    assert rows.frame[["M", "K", "N"]].values.tolist() == [list(one.shape) for one in found.timings]
    assert rows.measured_us.tolist() == pytest.approx([one.latency_us for one in found.timings], abs=1e-3)
    assert DATE in timings.source
    assert FACTS.title in timings.source
    assert len(files.bandwidth.read_text().splitlines()) == 1 + len(found.bandwidth)
    facts = yaml.safe_load(files.facts.read_text())
    assert facts["clock_ghz"] == {"value": 2.0, "kind": "measured", "source": "a chain"}
    assert facts["blas"]["name"] == "openblas"
    assert facts["caches"][1] == {"level": 2, "size_bytes": 1 << 20, "num_cores": 1}


def test_timings_calibrate_the_spec(tmp_path: Path) -> None:
    """GEMMs of a chip that reaches 80% of its peak, in six (K, N): the fit finds about that."""
    shapes = [(M, 256 * k, 512 * k) for M in (64, 256, 1024) for k in range(1, 7)]
    rows = [timing(*shape, 0.8) for shape in shapes]
    found = measurement(timings=tuple(row._replace(latency_us=row.latency_us + 5.0) for row in rows))
    files = write_host_files(tmp_path, found, DATE)
    assert files.spec is not None
    spec = load_arch(files.spec, MulticoreSpec)
    _, score = calibrate_chip(spec, read_chip_timings(spec.name, files.timings))

    assert set(score.coefficients) == set(spec.coefficients)
    assert {"sync_us", "rules.changes.pack_gb_per_s", "load_clock_frac.fp32"} < set(spec.coefficients)
    assert score.coefficients["load_clock_frac.fp32"] == pytest.approx(0.8, abs=0.1)


def test_a_type_that_the_model_lacks_has_no_spec(tmp_path: Path) -> None:
    assert not can_be_spec("fp64")
    files = write_host_files(tmp_path, measurement(dtype="fp64"), DATE)
    assert files.spec is None
    assert files.timings.is_file()


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}

    def measure(dtype: str, **options: object) -> HostMeasurement:
        asked.update(options, dtype=dtype)
        return measurement(num_left_out=3)

    monkeypatch.setattr(host, "measure_host", measure)
    out = tmp_path / "host"
    ran = Ran("measure", "host", "--out", out, "--threads", "4", "--budget-s", "30", columns=200)

    assert ran.code == 0
    assert ran.err.startswith("3 (N, K) are too few for a fit")
    assert (asked["dtype"], asked["num_threads"], asked["budget_s"]) == ("fp32", 4, 30.0)
    assert "Maker(R) Chip(TM) 4000 CPU @ 2.00GHz: 4 cores, 2.00 GHz, nominal 2.00, 256-bit vectors" in ran.out
    assert "3 more never ran undisturbed" in ran.out
    assert f"written to {out / 'maker-chip-4000-4c.yaml'}" in ran.out
    assert Ran("evaluate", "--arch", out / "maker-chip-4000-4c.yaml", "1", "64", "64", "64").code == 0


def test_command_fits_what_it_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [(M, 256 * k, 512 * k) for M in (1, 16, 256) for k in range(1, 6)]
    found = measurement(timings=tuple(timing(*shape, 0.7) for shape in shapes))
    monkeypatch.setattr(host, "measure_host", lambda dtype, **_: found)
    ran = Ran("measure", "host", "--out", tmp_path, "--json")
    assert ran.code == 0, ran.err
    document = json.loads(ran.out)

    assert (document["num_gemms"], document["num_cores"], document["num_noisy"]) == (15, 4, 0)
    assert document["folds"].startswith("5-fold by (N, K)")
    assert {line["rows"] for line in document["lines"]} >= {"decode", "M >= 16", "all"}
    name = tmp_path / "maker-chip-4000-4c"
    spec = load_arch(f"{name}.yaml", MulticoreSpec)
    assert document["coefficients"] == pytest.approx({path: _at(spec, path) for path in document["coefficients"]})
    assert f"{name}.yaml" in document["files"]
    assert spec.calibration.startswith("15 GEMMs of numpy")
    assert {spec.provenance[path].kind for path in spec.coefficients} == {ProvenanceKind.FITTED}
    assert GEMMEvaluator(spec).evaluate(1, 16, 256, 512).source == "calibrated"
    again = Ran("validate", "multicore", f"{name}.yaml", "--data", f"{name}-fp32.csv")
    assert again.code == 0, again.err
    assert "maker-chip-4000-4c" in again.out


def _at(spec: Any, path: str) -> float:
    for key in path.split("."):
        spec = spec[key] if isinstance(spec, Mapping) else getattr(spec, key)
    return float(spec)


# ---- what a BLAS does ------------------------------------------------------------------------------------------------


AVX512 = BlasInfo("openblas", "0.3.31", "SkylakeX", "2.4.6", 4)
ALONE = replace(FACTS, num_cores=Fact(1, ProvenanceKind.ASSUMED, "asked for"), cpus=(0,))


@pytest.mark.parametrize(
    ("changes", "paths"),
    [
        ({}, ["vector_near", "vector", "one_core"]),
        ({"blas": AVX512}, ["vector_near", "vector", "small", "narrow"]),
        ({"blas": AVX512, "facts": ALONE}, ["vector_near", "vector", "small"]),
        ({"blas": AVX512._replace(name="mkl")}, ["vector_near", "vector"]),
        ({"facts": replace(FACTS, caches=())}, ["vector", "one_core"]),
    ],
)
def test_paths_are_those_that_are_known_of_a_blas(tmp_path: Path, changes: dict[str, Any], paths: list[str]) -> None:
    spec = spec_of(tmp_path, measurement(**changes))
    assert spec.rules is not None
    assert list(spec.rules.paths) == paths
    for path in spec.coefficients:  # each has a number to begin with
        assert path in spec.provenance


def test_a_vector_is_streamed_and_a_matrix_packed(tmp_path: Path) -> None:
    evaluator = GEMMEvaluator(spec_of(tmp_path, measurement(blas=AVX512)), disk_cache=False)
    vector, small, matrix = (
        evaluator.evaluate(1, *sizes) for sizes in ((1, 2048, 2048), (8, 256, 256), (64, 2048, 2048))
    )

    assert (vector.breakdown["pack_us"], vector.bound, vector.active_cores) == (0.0, "dram", 4)
    assert (small.breakdown["pack_us"], small.breakdown["sync_us"], small.active_cores) == (0.0, 0.0, 1)
    a, b = 4 * 64 * 2048, 4 * 2048 * 2048 / 4  # 4 cores cut N: each reads all of A, and its part of B
    near = 2 << 20
    assert matrix.breakdown["pack_us"] == pytest.approx((a + b + max(0, b - near)) / 10_000)
    assert matrix.breakdown["sync_us"] > 0.0


def test_fitted_numbers_take_the_place_of_guesses(tmp_path: Path) -> None:
    first = spec_of(tmp_path, measurement(blas=AVX512))
    values = {path: 0.5 + 0.01 * place for place, path in enumerate(first.coefficients)}
    spec = spec_of(tmp_path, measurement(blas=AVX512), fitted=values)

    assert spec.rules is not None
    assert spec.rules.changes["pack_gb_per_s"] == values["rules.changes.pack_gb_per_s"]
    assert spec.load_clock_frac["fp32"] == values["load_clock_frac.fp32"]  # type: ignore[index]
    assert all(spec.provenance[path].kind is ProvenanceKind.FITTED for path in values)
    assert not first.calibration
    assert spec.calibration.startswith("3 GEMMs of numpy")
