"""Attention that was timed: its tables, fits that find what was planted, heads held out, committed calibrations."""

from dataclasses import replace

import numpy as np
import pytest

from gemm_eval import GEMMEvaluator
from gemm_eval.arch import GpuSpec, load_arch, read_yaml
from gemm_eval.models.gpu import attention as model
from gemm_eval.models.gpu.attention.families import AttentionCalibration
from gemm_eval.validation.exam import FITTED, MODEL, NAIVE, score
from gemm_eval.validation.learned import PHYSICS
from gemm_eval.validation.subjects import attention

A100 = load_arch("a100-sxm-80gb", GpuSpec)
# MAPE in percent that held-out heads may have: context, generation, MLA
REQUIRED = {
    "h200-sxm": (10, 10, 12), "b200": (10, 10, 12), "a100-sxm-80gb": (10, 10, 12), "l40s": (14, 14, 14),
    "rtx-pro-6000-server": (14, 14, 14),
}  # fmt: skip
OF_LIBRARIES = [(gpu, "trtllm", limits) for gpu, limits in REQUIRED.items()]
OF_LIBRARIES += [("h200-sxm", "cudnn", (10, 10)), ("h200-sxm", "flash", (13, 10))]
OF_LIBRARIES += [("h100-sxm", name, (10,) * len(attention.PHASES)) for name in ("cudnn", "flash")]  # gradients


def table(gpu: str, phase: str) -> attention.AttentionTable:
    return next(item for item in attention.tables(gpu) if item.phase == phase)


def with_times(timings: attention.AttentionTable, latency_us: object) -> attention.AttentionTable:
    return replace(timings, frame=timings.frame.assign(latency_us=latency_us))


def test_tables_say_what_they_are() -> None:
    found = attention.tables("a100-sxm-80gb")
    assert [item.phase for item in found] == ["context", "generation", "mla_context", "mla_generation"]
    assert [item.is_aliased for item in found] == [False, True, False, False]
    latent = found[3].problems[0]
    assert (latent.head_dim, latent.v_head_dim, latent.num_kv_heads, latent.is_latent) == (576, 512, 1, True)
    assert all(item.q_len == 1 for item in found[1].problems)
    assert all(item.library == "trtllm" for item in found)


def test_heads_stay_together() -> None:
    timings = table("h200-sxm", "generation")
    folds = attention.folds_of_heads(timings)
    assert set(folds.tolist()) == {0, 1, 2, 3, 4}
    of_heads: dict[tuple[int, ...], set[int]] = {}
    for heads, fold in zip(timings.heads, folds.tolist(), strict=True):
        of_heads.setdefault(heads, set()).add(fold)
    assert all(len(found) == 1 for found in of_heads.values())
    assert len(set(attention.folds_of_heads(table("h200-sxm", "mla_generation")).tolist())) == 4  # numbers of heads


@pytest.mark.parametrize(("phase", "family"), [("generation", "packed_mma"), ("mla_generation", "latent_whole")])
def test_planted_coefficients_are_found(phase: str, family: str) -> None:
    timings = table("a100-sxm-80gb", phase)
    names = attention.families_of(A100, timings)
    timings = timings.select(names == family)
    defaults = model.ATTENTION_FAMILIES[family].defaults
    planted = defaults | {"fixed_us": 13.0, "cta_us": 4.0, "dram_frac": 0.7}
    exact = with_times(timings, model.family_us(A100, family, planted, timings.rows))
    found = attention.fit_family(A100, exact, family, np.ones(len(exact), bool))
    predicted = model.family_us(A100, family, found, exact.rows)
    assert np.abs(predicted / exact.measured_us - 1).mean() < 0.01
    assert found["fixed_us"] == pytest.approx(13.0, rel=0.05)


@pytest.mark.parametrize(("gpu", "library", "limits"), OF_LIBRARIES)
def test_committed_calibrations_hold_what_is_required(gpu: str, library: str, limits: tuple[int, ...]) -> None:
    """Figures as `gemm-eval validate attention` prints them, of the very tables that lie beside."""
    found = AttentionCalibration.model_validate(read_yaml(model.attention_calibration_path(gpu, library)))
    assert (found.gpu, found.library, found.model_version) == (gpu, library, model.ATTENTION_MODEL_VERSION)
    rows = {item.name: len(item) for item in attention.tables(gpu) if item.library == library}
    assert {errors.data: errors.num_rows for errors in found.errors} == rows
    limit_of = dict(zip(attention.PHASES, limits if len(limits) > 3 else (*limits, *limits[2:]), strict=False))
    for errors in found.errors:
        assert errors.mape_percent <= limit_of[errors.data.rpartition("/")[2]]


def test_a_calibration_is_what_a_fit_gives() -> None:
    """MLA in generation, the quickest: the committed coefficients come out again, and errors of held-out heads too."""
    timings = table("a100-sxm-80gb", "mla_generation")
    committed = model.attention_coefficients(A100, "trtllm").values
    fitted = attention.fit_family(A100, timings, "latent_whole", np.ones(len(timings), bool))
    untold = {"matrix8_frac"}  # an A100 multiplies nothing in fp8: a fit may end with any
    told = committed["latent_whole"].keys() - untold
    assert {name: fitted[name] for name in told} == pytest.approx(
        {name: committed["latent_whole"][name] for name in told}, rel=0.02
    )
    lines = {line.group: line for line in score(attention.exam(["mla_generation"]), ["a100-sxm-80gb"])}
    found = lines["all"].errors
    recorded = AttentionCalibration.model_validate(
        read_yaml(model.attention_calibration_path(A100.name, "trtllm"))
    ).errors[3]
    assert found[PHYSICS].mape_frac * 100 == pytest.approx(recorded.mape_percent, rel=0.02)
    assert found[MODEL].mape_frac < found[PHYSICS].mape_frac < found[FITTED].mape_frac < found[NAIVE].mape_frac
    assert {"up to 4,096 keys", "up to 65,536", "more", "bf16, KV fp8"} <= set(lines)


def test_more_heads_of_latents_follow_from_fewer() -> None:
    """FlashInfer's decode on an H100: fitted on up to 64 heads, the roof of 128 is known to 15%."""
    timings = table("h100-sxm", "mla_generation")
    heads = timings.rows.num_heads
    assert set(heads.tolist()) == {8, 16, 32, 64, 128}
    arch = load_arch("h100-sxm", GpuSpec)
    for most, held, limit in ((32, 64, 0.10), (64, 128, 0.15)):
        fitted = attention.fit_family(arch, timings, "flashinfer_decode", heads <= most)
        predicted = model.family_us(arch, "flashinfer_decode", fitted, timings.rows.take(heads == held))
        assert np.abs(predicted / timings.measured_us[heads == held] - 1).mean() < limit


@pytest.mark.parametrize("gpu", REQUIRED)
def test_validation_runs_the_kernels_that_answers_run(gpu: str) -> None:
    """Nothing but sizes and types says which phase a row is of."""
    evaluator = GEMMEvaluator(gpu)
    for phase in ("context", "generation", "mla_context", "mla_generation"):
        timings = table(gpu, phase)
        some = timings.select(np.arange(len(timings)) % 250 == 0)
        names = attention.families_of(load_arch(gpu, GpuSpec), some).tolist()
        words = ("batch", "q_len", "kv_len", "num_heads", "num_kv_heads", "head_dim", "v_head_dim", "window")
        for problem, name in zip(some.problems, names, strict=True):
            given = {word: getattr(problem, word) for word in words}
            answer = evaluator.evaluate_attention(
                **given, dtype=problem.dtype, kv_dtype=problem.kv_dtype, is_latent=problem.is_latent
            )
            assert answer.kernel == name
            assert ("context" in name) == ("context" in phase)
