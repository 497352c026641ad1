"""What a BLAS does, as rules of a spec."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemm_eval import GEMMEvaluator, MulticoreSpec, load_arch
from gemm_eval.arch import ProvenanceKind
from gemm_eval.measure.host.campaign import HostMeasurement
from gemm_eval.measure.host.cpu import BlasInfo, Fact
from gemm_eval.measure.host.spec import host_spec_text
from tests.measure.host_samples import FACTS, measurement

AVX512 = BlasInfo("openblas", "0.3.31", "SkylakeX", "2.4.6", 4)
ALONE = replace(FACTS, num_cores=Fact(1, ProvenanceKind.ASSUMED, "asked for"), cpus=(0,))


def load(folder: Path, found: HostMeasurement, **how: Any) -> MulticoreSpec:
    path = folder / "host.yaml"
    path.write_text(host_spec_text(found, "2026-01-31", **how), encoding="utf-8")
    return load_arch(path, MulticoreSpec)


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
    spec = load(tmp_path, measurement(**changes))
    assert spec.rules is not None
    assert list(spec.rules.paths) == paths
    for path in spec.coefficients:  # each has a number to begin with
        assert path in spec.provenance


def test_a_vector_is_streamed_and_a_matrix_packed(tmp_path: Path) -> None:
    evaluator = GEMMEvaluator(load(tmp_path, measurement(blas=AVX512)), disk_cache=False)
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
    first = load(tmp_path, measurement(blas=AVX512))
    values = {path: 0.5 + 0.01 * place for place, path in enumerate(first.coefficients)}
    spec = load(tmp_path, measurement(blas=AVX512), fitted=values)

    assert spec.rules is not None
    assert spec.rules.changes["pack_gb_per_s"] == values["rules.changes.pack_gb_per_s"]
    assert spec.load_clock_frac["fp32"] == values["load_clock_frac.fp32"]  # type: ignore[index]
    assert all(spec.provenance[path].kind is ProvenanceKind.FITTED for path in values)
    assert not first.calibration
    assert spec.calibration.startswith("3 GEMMs of numpy")


def test_tiles_fit_in_a_small_cache(tmp_path: Path) -> None:
    small = tuple(cache._replace(size_bytes=24 << 10) if cache.num_cores == 1 else cache for cache in FACTS.caches)
    spec = load(tmp_path, measurement(facts=replace(FACTS, caches=small)))
    assert GEMMEvaluator(spec, disk_cache=False).evaluate(1, 512, 512, 512).latency_us > 0.0
