"""Layers of experts that were timed: their loads, fits that find what was planted, models held out, committed files."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gemm_eval import GEMMEvaluator, MoeLayer, moe_layers
from gemm_eval.arch import GpuSpec, data_root, load_arch
from gemm_eval.models.gpu import (
    GPU_MODEL_VERSION,
    MOE,
    calibration_path,
    coefficients_for,
    library_of,
    load_calibration,
    physics_digest,
)
from gemm_eval.models.gpu.families import FAMILIES
from gemm_eval.models.gpu.learned import learned_path, load_learned
from gemm_eval.moe import ExpertCounts, group_limited_counts
from gemm_eval.validation.exam import FITTED, MODEL, gpus_with, score
from gemm_eval.validation.learned import MIN_ROWS, PHYSICS, is_better
from gemm_eval.validation.metrics import REGIMES
from gemm_eval.validation.subjects import experts
from gemm_eval.validation.subjects.experts_tables import ExpertTable, LayerTable
from gemm_eval.validation.tables import Mask

A100 = load_arch("a100-sxm-80gb", GpuSpec)
PLANTED = FAMILIES["triton_moe"].defaults | {"moe_fixed_us": 31.0, "kernel_us": 5.0, "tile_cycles": 4000.0}


def table(gpu: str, name: str) -> LayerTable:
    (found,) = experts.find_tables(gpu, [name])
    assert isinstance(found, LayerTable)
    return found


def committed_model(arch: GpuSpec, timings: ExpertTable) -> experts.LayerModel:
    rules = library_of(timings.library)
    return experts.LayerModel(arch, coefficients_for(arch, rules.name, rules.family(arch, timings.types))[0])


def some_rows(timings: LayerTable, num: int, seed: int = 0) -> LayerTable:
    """As many rows of each model, balanced ones alone: their loads are known."""
    rng, models = np.random.default_rng(seed), np.array(timings.models)
    is_balanced = (timings.frame["distribution"] == "balanced").to_numpy()
    mask: Mask = np.zeros(len(timings), np.bool_)
    for model in np.unique(models):
        rows = np.flatnonzero((models == model) & is_balanced)
        mask[rng.choice(rows, min(num, len(rows)), replace=False)] = True
    return timings.select(mask)


def with_times(timings: LayerTable, latency_us: np.ndarray[tuple[int], np.dtype[np.float64]]) -> LayerTable:
    return replace(timings, frame=timings.frame.assign(latency_us=latency_us))


@pytest.fixture(scope="module")
def planted() -> LayerTable:
    """Layers of an A100 whose times are those of the model with other coefficients."""
    timings = some_rows(table("a100-sxm-80gb", "triton-bf16"), 15)
    model = experts.LayerModel(A100, PLANTED)
    return with_times(timings, model.predict(experts.pack_table(A100, timings)))


def test_a_fit_finds_what_was_planted(planted: LayerTable) -> None:
    packed = experts.pack_table(A100, planted)
    everything = np.ones(len(planted), np.bool_)
    free = ("moe_fixed_us", "kernel_us", "tile_cycles")
    before = experts.LayerModel(A100, FAMILIES["triton_moe"].defaults).predict(packed)
    fitted = experts.fit_layers(A100, planted, packed, everything, free)
    assert np.abs(before / planted.measured_us - 1.0).mean() > 0.05
    assert np.abs(fitted.predict(packed) / planted.measured_us - 1.0).mean() < 0.01
    assert fitted.coefficients["tile_cycles"] == pytest.approx(PLANTED["tile_cycles"], rel=0.05)
    # two GEMMs wait for kernel_us: only what they and the rest of the layer take together is known
    fixed_us = [values["moe_fixed_us"] + 2.0 * values["kernel_us"] for values in (fitted.coefficients, PLANTED)]
    assert fixed_us[0] == pytest.approx(fixed_us[1], rel=0.02)
    others = set(PLANTED) - set(free)
    assert {name: fitted.coefficients[name] for name in others} == {name: PLANTED[name] for name in others}


def test_lines_by_regime_and_model(planted: LayerTable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experts, "tables", lambda *_: {"mine": planted})
    lines = list(score(experts.exam(), ["a100-sxm-80gb"]))
    by_group = {line.group: line.errors for line in lines}
    assert set(by_group) == {regime.name for regime in REGIMES} | set(planted.models)
    assert by_group["all"][MODEL].num == len(planted)
    assert sum(by_group[name][MODEL].num for name in ("decode", "mid", "prefill")) == len(planted)
    assert by_group["all"][MODEL].mape_frac < min(0.05, by_group["all"][FITTED].mape_frac)
    calibration = experts.calibrate_layers(A100, planted)
    assert calibration.errors[0].mape_percent == pytest.approx(100.0 * by_group["all"][PHYSICS].mape_frac, abs=1e-3)
    assert calibration.fitted == experts.free_coefficients(FAMILIES["triton_moe"])
    assert set(calibration.coefficients) == set(FAMILIES["triton_moe"].defaults)


CORRECTIONS = sorted((data_root() / "calibration").glob(f"*/learned/{MOE}-*.yaml"))


def test_every_table_of_layers_has_a_correction() -> None:
    expected = {
        learned_path(gpu, MOE, library_of(timings.library).family(load_arch(gpu, GpuSpec), timings.types))
        for gpu in gpus_with(experts.exam())
        for timings in experts.tables(gpu).values()
        if isinstance(timings, LayerTable) and len(timings) >= MIN_ROWS
    }
    assert set(CORRECTIONS) == expected


@pytest.mark.parametrize("path", CORRECTIONS, ids=lambda path: f"{path.parent.parent.name} {path.stem}")
def test_a_correction_is_of_the_committed_model_and_gains_held_out(path: Path) -> None:
    correction, trees = load_learned(path)
    (calibrated,) = path.parent.parent.glob(f"*-{correction.group}.yaml")
    coefficients = load_calibration(calibrated).complete()
    assert correction.physics == physics_digest(coefficients, GPU_MODEL_VERSION)
    assert (trees is not None) is correction.is_on
    (data,) = correction.data
    if correction.is_on:
        assert data.corrected_mape_percent < data.physics_mape_percent
    widest = correction.intervals[-1]
    assert widest.low_log < 0.0 < widest.high_log


def test_a_correction_that_makes_a_line_worse_is_off() -> None:
    before = np.full(300, 0.15)
    after = np.repeat([0.05, 0.1, 0.16], 100)
    lines = [np.arange(300) // 100 == third for third in range(3)]
    assert is_better(after, before, lines[:2])
    assert not is_better(after, before, lines)
    assert not is_better(before, before, [])


def test_answers_are_those_that_the_correction_learned_from() -> None:
    """Public answers, whose loads are drawn as those of the exam are, lie nearer to the timings."""
    timings = table("b200", "deepgemm-fp8_block")
    timings = timings.select(np.arange(len(timings)) % 97 == 0)
    layers, row_of = timings.layers(0)
    errors = []
    for correction in (False, True):
        answers = moe_layers("b200", layers, library="deepgemm", l2="warm", correction=correction, progress=False)
        us = np.bincount(row_of, answers["latency_us"]) / np.bincount(row_of)
        errors.append(np.abs(us / timings.measured_us - 1.0).mean())
    assert errors[1] < 0.8 * errors[0]


def test_each_load_of_a_table_is_drawn_by_a_seed_of_its_own() -> None:
    """Rows of one load, cut otherwise between ranks, share its draws; other loads share no luck with it."""
    timings = table("h200-sxm", "cutlass-fp8")
    seeds: dict[tuple[object, ...], set[int]] = {}
    for layer in timings.layers(1)[0]:
        load = layer.num_tokens, layer.num_experts, layer.topk, layer.ep, str(layer.distribution)
        seeds.setdefault(load, set()).add(layer.seed)
    assert len(timings) > len(seeds) > 100
    assert all(len(some) == 1 for some in seeds.values())
    assert len(set().union(*seeds.values())) == len(seeds)
    assert not set().union(*seeds.values()) & {layer.seed for layer in timings.layers(0)[0]}


def test_a_router_of_groups_cuts_the_loads_of_its_model_alone() -> None:
    gen = table("b200", "trtllm-gen-nvfp4")
    assert gen.router_groups == (256, 8, 4)
    is_theirs = gen.column("num_experts") == 256
    is_some = (gen.num_tokens < 300) & ((gen.frame["distribution"] == "balanced").to_numpy() | is_theirs)
    gen = gen.select(is_some)
    layers, row_of = gen.layers(0)
    for row, layer in zip(row_of.tolist(), layers, strict=True):
        num_tokens, topk, is_drawn = layer.num_tokens, layer.topk, gen.frame["distribution"][row] != "balanced"
        if layer.num_experts != 256:
            assert str(layer.distribution) == "balanced"
            continue
        assert isinstance(layer.distribution, ExpertCounts)
        assert layer.rank == 0
        assert (row_of == row).sum() == (5 if is_drawn else 1)
        counts = layer.distribution.counts
        assert sum(counts) == num_tokens * topk
        if not is_drawn:
            assert counts == tuple(group_limited_counts(None, num_tokens, topk, (256, 8, 4)).tolist())
            assert not any(counts[128:])


def test_coefficients_that_a_table_cannot_tell_are_those_of_its_siblings() -> None:
    """Of gpt-oss alone, 32 experts: a token costs what it does for other types of the library, at 896 experts too."""
    b200 = load_arch("b200", GpuSpec)
    timings = table("b200", "trtllm-gen-w4a16_mxfp4")
    told = experts.told_by(b200, timings, experts.pack_table(b200, timings), np.ones(len(timings), np.bool_))
    siblings = [
        load_calibration(calibration_path("b200", "trtllm-gen", family)).coefficients["moe_token_expert_ps"]
        for family in ("gen_moe", "gen_moe_fp8", "gen_moe_fp4")
    ]
    assert told.held["moe_token_expert_ps"] == pytest.approx(np.mean(siblings))
    assert "moe_token_expert_ps" not in told.free
    assert "one value of num_experts" in told.sources["moe_token_expert_ps"]
    nvfp4 = table("b200", "trtllm-gen-nvfp4")
    packed = experts.pack_table(b200, nvfp4)
    of_many = experts.told_by(b200, nvfp4, packed, np.ones(len(nvfp4), np.bool_))
    is_deepseek = nvfp4.column("num_experts") == 256
    assert "moe_grouped_router_ns" in of_many.free
    assert "moe_grouped_router_ns" not in experts.told_by(b200, nvfp4, packed, ~is_deepseek).free
    assert "moe_token_expert_ps" in of_many.free
    committed = load_calibration(calibration_path("b200", "trtllm-gen", "gen_moe_mxfp4"))
    assert set(committed.shared) == set(told.held)
    assert not set(committed.shared) & set(committed.fitted)
    layer = moe_layers(b200, [{"num_tokens": 4096, "hidden": 2880, "inter": 2880, "num_experts": 896, "topk": 8,
                               "dtype": "w4a16_mxfp4"}], progress=False)[0]  # fmt: skip
    assert layer.breakdown["routing_us"] < 0.1 * layer.latency_us


def test_coefficients_carry_over_to_another_generation() -> None:
    """Triton's, fitted on an H200 alone, on layers of an A100: nearer than a roofline that is fitted on these."""
    timings = some_rows(table("a100-sxm-80gb", "triton-bf16"), 60)
    of_h200 = load_calibration(calibration_path("h200-sxm", "triton", "triton_moe")).coefficients
    predicted = experts.LayerModel(A100, of_h200).predict(experts.pack_table(A100, timings))
    assert np.abs(predicted / timings.measured_us - 1.0).mean() < 0.1


TABLES = [(gpu, timings.name) for gpu in ("a100-sxm-80gb", "b200", "h200-sxm") for timings in experts.find_tables(gpu)]


@pytest.mark.parametrize(("gpu", "name"), TABLES)
def test_committed_coefficients_predict_their_table(gpu: str, name: str) -> None:
    """A few hundred rows, in sample: not worse than models held out, but for the luck of the draw."""
    arch = load_arch(gpu, GpuSpec)
    (timings,) = [found for found in experts.find_tables(gpu) if found.name == name]
    rules = library_of(timings.library)
    family = rules.family(arch, timings.types)
    calibration = load_calibration(calibration_path(gpu, rules.name, family))
    (errors,) = calibration.errors
    assert errors.num_rows == len(timings)
    mask: Mask = np.zeros(len(timings), np.bool_)
    mask[np.random.default_rng(0).choice(len(timings), 300, replace=False)] = True
    if isinstance(timings, LayerTable):
        timings, mask = timings.select(mask), np.ones(300, np.bool_)
    predicted = committed_model(arch, timings).predict(experts.pack_table(arch, timings), mask)
    kept = predicted > 0.0
    error = 100.0 * np.abs(predicted[kept] / timings.measured_us[kept] - 1.0).mean()
    assert kept.sum() > 250
    assert error < 1.15 * errors.mape_percent


@pytest.mark.parametrize(
    ("gpu", "name"),
    [
        ("h200-sxm", "triton-bf16"), ("h200-sxm", "marlin-w4a16"), ("b200", "deepgemm-fp8_block"),
        ("b200", "trtllm-gen-bf16"), ("b200", "cutlass-nvfp4"),
    ],
)  # fmt: skip
def test_what_is_scored_is_what_users_get(gpu: str, name: str) -> None:
    """Many rows at once, and `moe_layers` with what the table says: also of a warm L2, which has to hold both GEMMs."""
    arch, timings = load_arch(gpu, GpuSpec), some_rows(table(gpu, name), 6)
    for l2 in ("cold", "warm"):
        predicted = committed_model(arch, timings).predict(experts.pack_table(arch, timings, l2=l2))
        layers = [
            MoeLayer(
                row.num_tokens, row.hidden_size, row.inter_size, row.num_experts, row.topk, row.moe_tp_size,
                row.moe_ep_size, gated=bool(row.gated), dtype=timings.dtype,
                num_expert_groups=8 if (row.hidden_size, row.num_experts) == (7168, 256) else 1,
            )
            for row in timings.frame.itertuples()
        ]  # fmt: skip
        evaluator = GEMMEvaluator(arch, disk_cache=False)
        found = moe_layers(evaluator, layers, library=timings.library, l2=l2, correction=False, progress=False)
        assert found["latency_us"] == pytest.approx(predicted, rel=1e-9)


def test_weights_of_both_gemms_count_together_in_a_warm_l2() -> None:
    """Each GEMM's weights fit into the L2 of an L40S, those of both do not."""
    layer = {"num_tokens": 8, "hidden": 4096, "inter": 3584, "num_experts": 2, "topk": 2, "dtype": "bf16"}
    found = moe_layers("l40s", [layer], l2="warm", library="triton", progress=False)[0]
    evaluator = GEMMEvaluator("l40s", disk_cache=False)
    for gemm in (found.gemm1, found.gemm2):
        assert gemm is not None
        alone = evaluator.evaluate_problem(gemm.problem, library=gemm.options["library"], l2="warm")
        assert alone.dram_bytes < gemm.dram_bytes
