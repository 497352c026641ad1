"""Layers of experts that were timed: their loads, fits that find what was planted, models held out, committed files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemm_eval import GEMMEvaluator, MoeLayer, moe_layers
from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.models.gpu import calibration_path, library_of, load_calibration
from gemm_eval.models.gpu.families import FAMILIES
from gemm_eval.moe import balanced_counts, group_limited_counts
from gemm_eval.validation.metrics import REGIMES
from gemm_eval.validation.moe import (
    MODEL,
    ROOFLINE,
    GroupedTimings,
    LayerTimings,
    calibrate_layers,
    find_layer_timings,
    gpus_with_layers,
    read_layer_timings,
    score_layers,
)
from gemm_eval.validation.moe import scores as scores_module
from gemm_eval.validation.moe.model import LayerModel, fit_layers, layer_model, pack_layers
from gemm_eval.validation.moe.scores import free_coefficients, held_out, pack_timings
from gemm_eval.validation.timings import Mask

A100 = load_arch("a100-sxm-80gb", GpuSpec)
PLANTED = FAMILIES["triton_moe"].defaults | {"moe_fixed_us": 31.0, "kernel_us": 5.0, "tile_cycles": 4000.0}


def table(gpu: str, name: str) -> LayerTimings:
    (found,) = find_layer_timings(gpu, [name])
    assert isinstance(found, LayerTimings)
    return found


def some_rows(timings: LayerTimings, num: int, seed: int = 0) -> LayerTimings:
    """As many rows of each model, balanced ones alone: their loads are known."""
    rng, models = np.random.default_rng(seed), np.array(timings.models)
    is_balanced = (timings.frame["distribution"] == "balanced").to_numpy()
    mask: Mask = np.zeros(len(timings), np.bool_)
    for model in np.unique(models):
        rows = np.flatnonzero((models == model) & is_balanced)
        mask[rng.choice(rows, min(num, len(rows)), replace=False)] = True
    return timings.select(mask)


def with_times(timings: LayerTimings, latency_us: np.ndarray[tuple[int], np.dtype[np.float64]]) -> LayerTimings:
    return replace(timings, frame=timings.frame.assign(latency_us=latency_us))


@pytest.fixture(scope="module")
def planted() -> LayerTimings:
    """Layers of an A100 whose times are those of the model with other coefficients."""
    timings = some_rows(table("a100-sxm-80gb", "triton-bf16"), 15)
    model = LayerModel(A100, "triton", PLANTED)
    return with_times(timings, model.predict(timings, pack_layers(A100, timings)))


def test_a_fit_finds_what_was_planted(planted: LayerTimings) -> None:
    packed = pack_layers(A100, planted)
    everything = np.ones(len(planted), np.bool_)
    free = ("moe_fixed_us", "kernel_us", "tile_cycles")
    before = LayerModel(A100, "triton", FAMILIES["triton_moe"].defaults).predict(planted, packed)
    fitted = fit_layers(A100, planted, packed, everything, free)

    assert np.abs(before / planted.measured_us - 1.0).mean() > 0.05
    assert np.abs(fitted.predict(planted, packed) / planted.measured_us - 1.0).mean() < 0.01
    assert fitted.coefficients["tile_cycles"] == pytest.approx(PLANTED["tile_cycles"], rel=0.05)
    # two GEMMs wait for kernel_us: only what they and the rest of the layer take together is known
    fixed_us = [values["moe_fixed_us"] + 2.0 * values["kernel_us"] for values in (fitted.coefficients, PLANTED)]
    assert fixed_us[0] == pytest.approx(fixed_us[1], rel=0.02)
    others = set(PLANTED) - set(free)
    assert {name: fitted.coefficients[name] for name in others} == {name: PLANTED[name] for name in others}


def test_whole_models_are_held_out(planted: LayerTimings) -> None:
    """Times of a model decide the predictions of the others, and never its own."""
    models = np.array(planted.models)
    one = models == models[0]
    changed = with_times(planted, np.where(one, 3.0, 1.0) * planted.measured_us)

    _, before = held_out(A100, planted)
    _, after = held_out(A100, changed)

    assert np.array_equal(before[one], after[one])
    for model in np.unique(models[~one]):
        assert not np.allclose(before[models == model], after[models == model], rtol=1e-3)
    assert np.abs(before / planted.measured_us - 1.0).mean() < 0.05


def test_a_table_of_one_model_holds_tokens_out(planted: LayerTimings) -> None:
    alone = planted.select(np.array(planted.models) == planted.models[0])
    tokens = np.unique(alone.num_tokens)
    is_held = np.isin(alone.num_tokens, tokens[1::2])
    changed = with_times(alone, np.where(is_held, 2.0, 1.0) * alone.measured_us)

    _, before = held_out(A100, alone)
    _, after = held_out(A100, changed)

    assert np.array_equal(before[is_held], after[is_held])
    assert not np.allclose(before[~is_held], after[~is_held], rtol=1e-3)


def test_lines_by_regime_and_model(planted: LayerTimings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scores_module, "find_layer_timings", lambda *_: [planted])
    lines = list(score_layers(["a100-sxm-80gb"]))

    by_group = {line.group: line.errors for line in lines}
    assert set(by_group) == {regime.name for regime in REGIMES} | set(planted.models)
    assert by_group["all"][MODEL].num == len(planted)
    assert sum(by_group[name][MODEL].num for name in ("decode", "mid", "prefill")) == len(planted)
    assert by_group["all"][MODEL].mape_frac < by_group["all"][ROOFLINE].mape_frac
    calibration = calibrate_layers(A100, planted)
    assert calibration.errors[0].mape_percent == pytest.approx(100.0 * by_group["all"][MODEL].mape_frac, abs=1e-3)
    assert calibration.fitted == free_coefficients(FAMILIES["triton_moe"])
    assert set(calibration.coefficients) == set(FAMILIES["triton_moe"].defaults)


def test_what_is_not_there_is_refused(planted: LayerTimings, tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match=r"data must be one of .* did you mean triton-bf16"):
        find_layer_timings("h200-sxm", ["triton-bf61"])
    with pytest.raises(InvalidOptionError, match="gpu must be one of"):
        list(score_layers(["l4"]))
    with pytest.raises(InvalidInputError, match="is of a100-sxm-80gb"):
        calibrate_layers(load_arch("h200-sxm", GpuSpec), planted)
    path = tmp_path / "triton-bf16.parquet"
    planted.frame.drop(columns="topk").to_parquet(path)
    path.with_suffix(".meta.yaml").write_text("gpu: a100-sxm-80gb\nlibrary: triton\ndtype: bf16\n")
    with pytest.raises(InvalidInputError, match="topk, framework"):
        read_layer_timings(path)


def test_loads_are_those_of_the_data(planted: LayerTimings) -> None:
    for row, draws in zip(planted.frame.itertuples(), planted.loads(3, seed=0), strict=True):
        (groups,) = draws  # nothing is drawn
        counts = balanced_counts(row.num_tokens, row.num_experts, row.topk)
        assert groups == tuple(counts[: row.num_experts // row.moe_ep_size].tolist())
    gen = table("b200", "trtllm-gen-fp8_block")
    skewed = gen.select(((gen.frame["distribution"] != "balanced") & (gen.frame["num_tokens"] < 300)).to_numpy())
    for row, draws in zip(skewed.frame.itertuples(), skewed.loads(2, seed=0), strict=True):
        assert len(draws) == 2
        total, mean = row.num_tokens * row.topk, row.num_tokens * row.topk / row.moe_ep_size
        for groups in draws:
            assert len(groups) == row.num_experts // row.moe_ep_size
            assert 0 <= min(groups) <= max(groups) <= row.num_tokens
            if row.num_experts != 256:  # the rank that has most; a router of groups may leave it less
                assert mean <= sum(groups) <= total


def test_a_router_of_groups_cuts_the_loads_of_its_model_alone() -> None:
    gen = table("b200", "trtllm-gen-nvfp4")
    assert gen.router_groups == (256, 8, 4)
    gen = gen.select((gen.frame["distribution"] == "balanced").to_numpy())
    plain = replace(gen, router_groups=None)
    is_theirs = gen.column("num_experts") == 256
    assert 0 < is_theirs.sum() < len(gen)
    for row, theirs, (cut,), (whole,) in zip(
        gen.frame.itertuples(), is_theirs, gen.loads(1, 0), plain.loads(1, 0), strict=True
    ):
        if not theirs:
            assert cut == whole
        elif row.moe_ep_size == 1:
            assert cut == tuple(group_limited_counts(None, row.num_tokens, row.topk, (256, 8, 4)).tolist())
            assert sum(cut) == sum(whole)
            assert not any(cut[128:])


def test_ranks_without_a_token_have_no_time() -> None:
    timings = some_rows(table("b200", "deepgemm-fp8_block"), 12)
    frame = timings.frame.assign(num_tokens=1, moe_ep_size=timings.frame["num_experts"] // 2, distribution="balanced")
    lonely = replace(timings, frame=frame)
    b200 = load_arch("b200", GpuSpec)
    packed = pack_layers(b200, lonely)
    predicted = layer_model(b200, lonely).predict(lonely, packed)
    has_tokens = [any(groups) for (groups,) in lonely.loads(1, 0)]
    assert (predicted > 0.0).tolist() == has_tokens


def test_coefficients_carry_over_to_another_generation() -> None:
    """Triton's, fitted on an H200 alone, on layers of an A100: nearer than a roofline that is fitted on these."""
    timings = some_rows(table("a100-sxm-80gb", "triton-bf16"), 60)
    of_h200 = load_calibration(calibration_path("h200-sxm", "triton", "triton_moe")).coefficients
    predicted = LayerModel(A100, "triton", of_h200).predict(timings, pack_layers(A100, timings))
    assert np.abs(predicted / timings.measured_us - 1.0).mean() < 0.1


TABLES = [(gpu, timings.name) for gpu in ("a100-sxm-80gb", "b200", "h200-sxm") for timings in find_layer_timings(gpu)]


@pytest.mark.parametrize(("gpu", "name"), TABLES)
def test_committed_coefficients_predict_their_table(gpu: str, name: str) -> None:
    """A few hundred rows, in sample: not worse than models held out, but for the luck of the draw."""
    arch = load_arch(gpu, GpuSpec)
    (timings,) = [found for found in find_layer_timings(gpu) if found.name == name]
    rules = library_of(timings.library)
    family = rules.family(arch, timings.types)
    calibration = load_calibration(calibration_path(gpu, rules.name, family))
    (errors,) = calibration.errors
    assert errors.num_rows == (len(timings) if isinstance(timings, GroupedTimings) else sum(_runs(timings)))
    mask: Mask = np.zeros(len(timings), np.bool_)
    mask[np.random.default_rng(0).choice(len(timings), 300, replace=False)] = True
    if isinstance(timings, LayerTimings):
        timings, mask = timings.select(mask), np.ones(300, np.bool_)
    predicted = layer_model(arch, timings).predict(timings, pack_timings(arch, timings), mask)
    kept = predicted > 0.0
    error = 100.0 * np.abs(predicted[kept] / timings.measured_us[kept] - 1.0).mean()
    assert kept.sum() > 250
    assert error < 1.15 * errors.mape_percent


def _runs(timings: LayerTimings) -> list[bool]:
    return [any(map(any, draws)) for draws in timings.loads(1, 0)]


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        ("h200-sxm", "triton-bf16"),
        ("h200-sxm", "marlin-w4a16"),
        ("b200", "deepgemm-fp8_block"),
        ("b200", "trtllm-gen-bf16"),
        ("b200", "cutlass-nvfp4"),
    ],
)
def test_what_is_scored_is_what_users_get(gpu: str, name: str) -> None:
    """Layers of a model, whose weights are cold: the many rows at once, and `moe_layers`."""
    arch, timings = load_arch(gpu, GpuSpec), some_rows(table(gpu, name), 6)
    predicted = layer_model(arch, timings).predict(timings, pack_layers(arch, timings, l2="cold"))
    layers = [
        MoeLayer(
            row.num_tokens, row.hidden_size, row.inter_size, row.num_experts, row.topk, row.moe_tp_size,
            row.moe_ep_size, rank=0, gated=bool(row.gated), dtype=timings.dtype,
            num_expert_groups=8 if (row.hidden_size, row.num_experts) == (7168, 256) else 1,
        )
        for row in timings.frame.itertuples()
    ]  # fmt: skip
    evaluator = GEMMEvaluator(arch, disk_cache=False)
    found = moe_layers(evaluator, layers, library=timings.library, correction=False, progress=False)
    has_tokens = predicted > 0.0  # what has none is not timed, but routes
    assert has_tokens.sum() > 10
    assert found["latency_us"][has_tokens] == pytest.approx(predicted[has_tokens], rel=1e-9)


def test_gpus_with_layers() -> None:
    assert gpus_with_layers() == ["a100-sxm-80gb", "b200", "h200-sxm"]
