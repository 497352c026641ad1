"""Answers with a learned correction: one factor for a GEMM, by every way that leads to it; off where asked."""

from pathlib import Path

import numpy as np
import pytest

from gemm_eval import GEMMEvaluator, GemmProblem, InvalidOptionError, UnsupportedError
from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.evaluate import select_config
from gemm_eval.models.gpu import calibration
from gemm_eval.models.gpu.correction import MAX_LOG_FACTOR
from gemm_eval.search import NEAR_CONFIGS, NEAR_RATIO
from gemm_eval.units import time_text

SIZES = (1, 64, 4096, 4096)
PROBLEM = GemmProblem(*SIZES, "bf16")
GEMMS = [(1, M, K, N) for M in (1, 16, 100, 4096) for K, N in ((4096, 4096), (7168, 2112), (128, 50_000), (4097, 33))]


@pytest.fixture(scope="module")
def evaluator() -> GEMMEvaluator:
    return GEMMEvaluator("h200-sxm", disk_cache=False)


def test_a_corrected_answer_says_so(evaluator: GEMMEvaluator) -> None:
    corrected, physics = evaluator.evaluate(*SIZES, "bf16"), evaluator.evaluate(*SIZES, "bf16", correction=False)

    assert (corrected.source, physics.source) == ("corrected", "calibrated")
    assert corrected.latency_us != physics.latency_us == physics.physics_us == corrected.physics_us
    assert abs(np.log(corrected.latency_us / corrected.physics_us)) <= MAX_LOG_FACTOR
    assert corrected.breakdown["correction_us"] == corrected.latency_us - corrected.physics_us
    assert physics.breakdown["correction_us"] == 0.0
    assert sum(corrected.breakdown.values()) == pytest.approx(corrected.latency_us, rel=1e-12)
    assert corrected.mapping == physics.mapping
    assert physics.options["correction"] is False
    assert "correction" not in corrected.options


def test_the_explanation_has_the_factor_and_compares_corrected_with_corrected(evaluator: GEMMEvaluator) -> None:
    corrected, physics = evaluator.evaluate(*SIZES, "bf16"), evaluator.evaluate(*SIZES, "bf16", correction=False)
    factor = (
        f"Corrected: {corrected.latency_us / corrected.physics_us:.3f} times the {time_text(physics.latency_us)} of"
    )

    assert factor in corrected.explain()
    assert "Corrected:" not in physics.explain()
    changed = GEMMEvaluator(evaluator.arch.with_(dram_gb_per_s=2 * evaluator.arch.dram_gb_per_s), disk_cache=False)
    doubled = changed.evaluate(*SIZES, "bf16")
    assert doubled.latency_us / doubled.physics_us == pytest.approx(corrected.latency_us / corrected.physics_us)
    saved = f"{doubled.latency_us / corrected.latency_us - 1.0:.0%}"
    assert f"Would help most: dram_gb_per_s x2: {time_text(doubled.latency_us)} ({saved})" in corrected.explain()


def test_the_order_of_configs_is_that_of_physics(evaluator: GEMMEvaluator) -> None:
    corrected, physics = evaluator.top(PROBLEM, 20), evaluator.top(PROBLEM, 20, correction=False)

    assert [result.mapping for result in corrected] == [result.mapping for result in physics]
    factors = [one.latency_us / other.latency_us for one, other in zip(corrected, physics, strict=True)]
    assert factors == pytest.approx([factors[0]] * 20, rel=1e-12)
    assert corrected[0].latency_us == evaluator.evaluate(*SIZES, "bf16").latency_us


def test_of_our_kernels_the_correction_chooses_among_near_configs(evaluator: GEMMEvaluator) -> None:
    gemms = [(1, M, K, N) for M in (1, 16, 64, 1000) for K, N in ((4096, 4096), (2048, 7168), (14336, 4096))]
    results = [evaluator.evaluate(*sizes, "w4a16") for sizes in gemms]
    physics = [evaluator.top(result.problem, NEAR_CONFIGS, correction=False) for result in results]

    assert list(evaluator.evaluate_many(gemms, "w4a16", progress=False)) == results
    assert {result.source for result in results} == {"corrected"}
    assert any(result.mapping != near[0].mapping for result, near in zip(results, physics, strict=True))
    own: list[float] = []  # factors of other configs over that of the answer
    for result, near in zip(results, physics, strict=True):
        top = evaluator.top(result.problem, 6)
        assert result.mapping in [item.mapping for item in near]
        assert result.physics_us <= NEAR_RATIO * near[0].latency_us
        assert [item.mapping for item in top] == list(select_config(result.problem, "h200-sxm", 6))
        assert select_config(result.problem, "h200-sxm") == (result.mapping,)
        assert [item.latency_us for item in top] == sorted(item.latency_us for item in top)
        own += [item.latency_us / item.physics_us / (top[0].latency_us / near[0].latency_us) for item in top[1:]]
        assert top[0].latency_us == result.latency_us
        replayed = [evaluator.evaluate_mapping(result.problem, item.mapping).latency_us for item in top]
        assert replayed == [item.latency_us for item in top]
        factor = result.latency_us / near[0].latency_us
        for state in ({"clock": "sustained"}, {"l2": "warm"}, {"l2": "cold-all"}):
            other, terms = (
                evaluator.evaluate_problem(result.problem, **state, correction=flag) for flag in (True, False)
            )
            assert other.latency_us / terms.latency_us == pytest.approx(factor, rel=1e-9)
    assert min(own) < 0.99
    assert max(own) > 1.01
    h100 = GEMMEvaluator("h100-sxm", disk_cache=False).evaluate(*gemms[0], "w4a16")
    assert h100.source == "analytic"
    assert "h200-sxm, its sibling," in h100.explain()


@pytest.mark.parametrize("correction", [None, True, False])
def test_tables_have_the_same_answers(evaluator: GEMMEvaluator, correction: bool | None) -> None:
    other = GEMMEvaluator("h200-sxm", disk_cache=False)
    table = other.evaluate_many(GEMMS, "bf16", correction=correction, progress=False)
    results = [evaluator.evaluate(*sizes, "bf16", correction=correction) for sizes in GEMMS]

    assert list(table) == results
    for name in ("latency_us", "physics_us", "low_us", "high_us", "source"):
        assert table[name].tolist() == [getattr(result, name) for result in results]
    assert set(table["correction"]) == {correction is not False}
    assert ("corrected" in table["source"]) is (correction is not False)


def test_nothing_is_corrected_that_was_not_timed(evaluator: GEMMEvaluator) -> None:
    assert evaluator.evaluate(1, 64, 128, 1 << 20, "bf16").source == "calibrated"
    assert evaluator.evaluate(64, 64, 512, 512, "fp8").source == "calibrated"
    assert evaluator.evaluate(*SIZES, "w4a16", group_size=32).source == "calibrated"
    assert evaluator.evaluate(8, *SIZES[1:], "w4a16").source == "calibrated"
    assert GEMMEvaluator("h100-sxm", disk_cache=False).evaluate(*SIZES, "bf16").source == "analytic"


@pytest.mark.parametrize("M", [16, 320, 4096])
def test_a_changed_spec_keeps_the_factor_of_its_preset(evaluator: GEMMEvaluator, M: int) -> None:
    fewer = GEMMEvaluator(evaluator.arch.with_(num_sms=66), disk_cache=False)
    preset, changed = evaluator.evaluate(1, M, 4096, 4096, "bf16"), fewer.evaluate(1, M, 4096, 4096, "bf16")

    assert changed.source == "corrected as h200-sxm"
    assert fewer.evaluate_many([(1, M, 4096, 4096)], "bf16", progress=False)["source"][0] == changed.source
    assert changed.latency_us / changed.physics_us == pytest.approx(preset.latency_us / preset.physics_us)
    assert (changed.latency_us >= preset.latency_us) == (changed.physics_us >= preset.physics_us)
    assert changed.low_us / changed.latency_us < preset.low_us / preset.latency_us  # type: ignore[operator]
    assert "on h200-sxm, of which this spec is a change" in changed.explain()
    assert fewer.evaluate(1, M, 4096, 4096, "bf16", correction=False).source == "analytic"


def test_a_changed_spec_of_a_sibling_is_as_analytic_as_its_preset() -> None:
    """An H100 has the H200's correction, and so has a change of it; its fp32 was timed on itself."""
    preset = GEMMEvaluator("h100-sxm", disk_cache=False)
    changed = GEMMEvaluator(preset.arch.with_(num_sms=66), disk_cache=False)
    sources = {}
    for dtype in ("bf16", "tf32"):
        one, other = preset.evaluate(*SIZES, dtype), changed.evaluate(*SIZES, dtype)
        ranked, replayed = changed.top(other.problem, 2), changed.evaluate_mapping(other.problem, other.mapping)
        table = changed.evaluate_many([SIZES], dtype, progress=False)

        assert one.latency_us / one.physics_us == pytest.approx(other.latency_us / other.physics_us)
        assert one.latency_us != one.physics_us
        assert {*table["source"], replayed.source, *(item.source for item in ranked)} == {other.source}
        sources[dtype] = one.source, other.source
    assert sources == {"bf16": ("analytic", "analytic"), "tf32": ("corrected", "corrected as h100-sxm")}


@pytest.mark.parametrize("gpu", ["h200-sxm", "h100-sxm"])
def test_where_a_correction_fades_intervals_go_over_to_those_of_the_terms(gpu: str) -> None:
    evaluator = GEMMEvaluator(gpu, disk_cache=False)
    rows = [(1, 4096 << step, 4096, 4096) for step in range(6)]
    corrected, physics = (
        evaluator.evaluate_many(rows, "bf16", correction=correction, progress=False) for correction in (True, False)
    )
    trust = corrected.records["correction_trust"]
    logs, of_terms = (
        np.log([table[name] / table["latency_us"] for name in ("low_us", "high_us")]) for table in (corrected, physics)
    )

    assert (np.diff(trust) <= 0.0).all()
    assert set(trust[[0, -1]]) == {0.0, 1.0}
    assert logs == pytest.approx(trust * logs[:, :1] + (1.0 - trust) * of_terms)
    assert (corrected["latency_us"][trust == 0.0] == physics["latency_us"][trust == 0.0]).all()


def test_a_version_of_the_library_changes_what_timings_of_several_tell_apart(evaluator: GEMMEvaluator) -> None:
    words = ("cublas", "cublas/13.1", "cublas/trtllm-1.3.0rc20", "cublas/trtllm-1.0.0rc3")
    times = [evaluator.evaluate(*SIZES, "bf16", library=word) for word in words]
    physics = {evaluator.evaluate(*SIZES, "bf16", library=word, correction=False).latency_us for word in words}
    sibling = GEMMEvaluator("h100-sxm", disk_cache=False)

    assert len({item.latency_us for item in times}) == len(words)
    assert len(physics) == 1
    assert [item.options["library"] for item in times] == list(words)
    assert sibling.evaluate(*SIZES, "bf16", library=words[1]) != sibling.evaluate(*SIZES, "bf16")
    for l2 in ("cold", "cold-all"):  # rows off 16 bytes are not told apart, and run all the same
        table = evaluator.evaluate_many([SIZES, (1, 16, 4097, 4097)], "bf16", library=words[1], l2=l2, progress=False)
        assert table["latency_us"][0] == evaluator.evaluate(*SIZES, "bf16", library=words[1], l2=l2).latency_us
    with pytest.raises(InvalidOptionError, match="version of library cublas must be one of"):
        evaluator.evaluate(*SIZES, "bf16", library="cublas/12")
    with pytest.raises(UnsupportedError, match="not told apart by this version, only by none"):
        GEMMEvaluator("b200", disk_cache=False).evaluate(*SIZES, "bf16", library=words[2])


def test_multicore_chips_without_timings_have_no_correction_and_wide_intervals() -> None:
    evaluator = GEMMEvaluator("demo-8core", disk_cache=False)
    result = evaluator.evaluate(1, 16, 512, 768)

    us = result.latency_us
    assert (result.physics_us, result.low_us, result.high_us) == (us, pytest.approx(us / 2), pytest.approx(us * 2))
    assert evaluator.evaluate_many([(1, 16, 512, 768)]).to_dicts()[0]["low_us"] == result.low_us
    with pytest.raises(UnsupportedError, match="correction is for GPUs"):
        evaluator.evaluate(1, 16, 512, 768, correction=False)
    with pytest.raises(InvalidOptionError, match="correction must be True or False"):
        evaluator.evaluate(1, 16, 512, 768, correction="no")  # type: ignore[arg-type]


def test_the_stamp_changes_with_a_correction(tmp_path: Path) -> None:
    def stamp() -> str:
        calibration._stamp.cache_clear()
        return calibration._stamp(tmp_path, calibration.chip_of(load_arch("h200-sxm", GpuSpec)))

    without = stamp()
    folder = tmp_path / "h200-sxm" / "corrections"
    folder.mkdir(parents=True)
    (folder / "cublas-sm90_wgmma-f16-cold-burst.npz").write_bytes(b"trees")
    with_one = stamp()
    (folder / "cublas-sm90_wgmma-f16-cold-burst.npz").write_bytes(b"other")

    assert len({without, with_one, stamp()}) == 3
    calibration._stamp.cache_clear()
