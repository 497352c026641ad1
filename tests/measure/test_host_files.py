"""The spec of a machine and the tables beside it: the library reads what was written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gemm_eval import GEMMEvaluator, MulticoreSpec, load_arch
from gemm_eval.arch import ProvenanceKind
from gemm_eval.measure import host as measured
from gemm_eval.measure.host.campaign import HostMeasurement
from gemm_eval.measure.host.spec import can_be_spec, chip_name, host_spec_text, write_host_files
from gemm_eval.validation.subjects.chip_timings import read_chip_timings
from gemm_eval.validation.subjects.chips import calibrate_chip
from tests.cli.commands import Ran
from tests.measure.host_samples import FACTS, measurement, timing

DATE = "2026-01-31"


def load(folder: Path, found: HostMeasurement) -> MulticoreSpec:
    path = folder / "host.yaml"
    path.write_text(host_spec_text(found, DATE), encoding="utf-8")
    spec = load_arch(path)
    assert isinstance(spec, MulticoreSpec)
    return spec


def test_spec_says_what_was_measured(tmp_path: Path) -> None:
    spec = load(tmp_path, measurement())

    assert (spec.name, spec.num_cores, spec.frequency_ghz, spec.sram_bytes) == ("maker-chip-4000-4c", 4, 2.0, 1 << 20)
    assert (spec.dram_gb_per_s, spec.dram_core_limit_gb_per_s) == (30.0, 12.0)  # of the 64 MiB that were timed
    assert spec.peak_tflop_per_s() == pytest.approx(2 * 4 * 2e9 * 8 / 1e12)
    assert spec.launch_us == pytest.approx(measurement().launch.latency_us, abs=1e-3)
    assert "gemm-eval measure host" in spec.sources["host"]
    assert DATE in spec.sources["timings"]


def test_every_number_has_a_kind_and_a_source(tmp_path: Path) -> None:
    spec = load(tmp_path, measurement())
    numbers = {
        name for name in spec.model_fields_set
        if isinstance(getattr(spec, name), int | float) and not isinstance(getattr(spec, name), bool)
    }  # fmt: skip
    assert numbers <= set(spec.provenance)
    assert spec.provenance["cube_steps_per_cycle.fp32"].kind is ProvenanceKind.DERIVED
    assert spec.provenance["dram_gb_per_s"].kind is ProvenanceKind.MEASURED


@pytest.mark.parametrize(("peak_frac", "units"), [(0.3, 1), (0.9, 1), (1.04, 1), (1.2, 2), (3.9, 4), (7.0, 8)])
def test_units_are_as_few_as_the_fastest_gemm_needs(tmp_path: Path, peak_frac: float, units: int) -> None:
    spec = load(tmp_path, measurement(timings=(timing(512, 1024, 1024, peak_frac),)))
    assert spec.cube_m * spec.cube_n * spec.cube_steps_per_cycle["fp32"] == 8 * units  # type: ignore[index]


def test_a_machine_that_tells_no_caches(tmp_path: Path) -> None:
    spec = load(tmp_path, measurement(facts=replace(FACTS, caches=())))
    assert spec.provenance["sram_bytes"].kind is ProvenanceKind.ASSUMED


def test_names_are_plain() -> None:
    for title, name in (
        ("Intel(R) Core(TM) i7-8550U CPU @ 1.80GHz", "intel-core-i7-8550u-4c"),
        ("Apple M3 Pro", "apple-m3-pro-4c"),
        ("日本", "host-4c"),
        ("x" * 200, "x" * 50 + "-4c"),
    ):
        assert chip_name(measurement(facts=replace(FACTS, title=title))) == name


def test_files_are_read_back(tmp_path: Path) -> None:
    found = measurement()
    files = write_host_files(tmp_path / "new", found, DATE)

    assert files.spec is not None
    spec = load_arch(files.spec)
    timings = read_chip_timings(spec.name, files.timings)
    (rows,) = timings.sets
    assert rows.frame[["M", "K", "N"]].values.tolist() == [list(timing.shape) for timing in found.timings]
    assert rows.measured_us.tolist() == pytest.approx([timing.latency_us for timing in found.timings], abs=1e-3)
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

    monkeypatch.setattr(measured, "measure_host", measure)
    out = tmp_path / "host"
    ran = Ran("measure", "host", "--out", out, "--threads", "4", "--budget-s", "30", columns=200)

    assert ran.code == 0
    assert ran.err.startswith("3 (N, K) are too few for a fit")
    assert (asked["dtype"], asked["num_threads"], asked["budget_s"]) == ("fp32", 4, 30.0)
    assert "Maker(R) Chip(TM) 4000 CPU @ 2.00GHz: 4 cores, 2.00 GHz, nominal 2.00, 256-bit vectors" in ran.out
    assert "3 more never ran undisturbed" in ran.out
    assert f"written to {out / 'maker-chip-4000-4c.yaml'}" in ran.out
    assert Ran("evaluate", "--arch", out / "maker-chip-4000-4c.yaml", "1", "64", "64", "64").code == 0


def test_command_in_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "host").write_text("")
    assert Ran("measure", "host", "--out", tmp_path / "host").code == 1


def test_options_alone_measure_the_gpu(tmp_path: Path) -> None:
    words = ("--out", tmp_path, "--list", "--set", "smoke")
    bare, named = Ran("measure", *words), Ran("measure", "gpu", *words)
    assert (bare.code, bare.out, bare.err) == (named.code, named.out, named.err) == (0, named.out, named.err)
    assert Ran("measure", "cpu").err.startswith("error: No such command 'cpu'")


def test_command_fits_what_it_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [(M, 256 * k, 512 * k) for M in (1, 16, 256) for k in range(1, 6)]
    found = measurement(timings=tuple(timing(*shape, 0.7) for shape in shapes))
    monkeypatch.setattr(measured, "measure_host", lambda dtype, **_: found)

    ran = Ran("measure", "host", "--out", tmp_path, columns=200)

    assert ran.code == 0, ran.err
    assert "maker-chip-4000-4c, fitted 5-fold by (N, K)" in ran.out
    assert "M >= 16" in ran.out
    spec = load_arch(tmp_path / "maker-chip-4000-4c.yaml")
    assert isinstance(spec, MulticoreSpec)
    assert spec.calibration.startswith("15 GEMMs of numpy")
    assert {spec.provenance[path].kind for path in spec.coefficients} == {ProvenanceKind.FITTED}
    assert GEMMEvaluator(spec).evaluate(1, 16, 256, 512).source == "calibrated"
    name = tmp_path / "maker-chip-4000-4c"
    again = Ran("validate", "multicore", f"{name}.yaml", "--data", f"{name}-fp32.csv")
    assert again.code == 0, again.err


def test_command_says_it_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [(M, 256 * k, 512 * k) for M in (1, 16, 256) for k in range(1, 6)]
    found = measurement(timings=tuple(timing(*shape, 0.7) for shape in shapes))
    monkeypatch.setattr(measured, "measure_host", lambda dtype, **_: found)

    ran = Ran("measure", "host", "--out", tmp_path, "--json")

    assert ran.code == 0, ran.err
    document = json.loads(ran.out)
    assert (document["num_gemms"], document["num_cores"], document["num_noisy"]) == (15, 4, 0)
    assert document["folds"].startswith("5-fold by (N, K)")
    assert {line["rows"] for line in document["lines"]} >= {"decode", "M >= 16", "all"}
    spec = load_arch(tmp_path / "maker-chip-4000-4c.yaml")
    assert document["coefficients"] == pytest.approx({path: _at(spec, path) for path in document["coefficients"]})
    assert str(tmp_path / "maker-chip-4000-4c.yaml") in document["files"]


def _at(spec: Any, path: str) -> float:
    for key in path.split("."):
        spec = spec[key] if isinstance(spec, Mapping) else getattr(spec, key)
    return float(spec)


def test_without_a_folder_it_writes_to_the_users_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "measure_host", lambda dtype, **_: measurement())
    monkeypatch.setattr("platformdirs.user_data_path", lambda name, **_: tmp_path / name)
    assert Ran("measure", "host", columns=200).code == 0
    assert (tmp_path / "gemm_eval" / "host" / "maker-chip-4000-4c.yaml").is_file()
