"""The report on a model: its numbers are those of the results, and what would help is what a changed arch brings."""

from __future__ import annotations

import math
from typing import Any

import pytest

from gemm_eval import GEMMEvaluator, estimate_model
from gemm_eval.report import model_report
from gemm_eval.report.model_page import model_page
from gemm_eval.report.page import Page
from gemm_eval.report.parts import Bars, Facts, Figure, Part, Table, Text, Verdict
from gemm_eval.report.phase import PhaseResult
from gemm_eval.transformer import GemmWork, ModelConfig, load_model, transformer_gemms
from gemm_eval.units import time_text

SEQ_LEN = 64


def phase(evaluator: GEMMEvaluator, name: Any, model: str = "llama-3-8b", dtype: str = "fp16") -> PhaseResult:
    gemms = transformer_gemms(load_model(model), phase=name, batch_size=2, seq_len=SEQ_LEN, dtype=dtype)
    results = evaluator.evaluate_many([gemm.problem for gemm in gemms])
    return PhaseResult(name, 2 * (SEQ_LEN if name == "prefill" else 1), list(zip(gemms, results, strict=True)))


@pytest.fixture(scope="module")
def evaluator() -> GEMMEvaluator:
    return GEMMEvaluator("demo-8core", disk_cache=False)


@pytest.fixture(scope="module")
def config() -> ModelConfig:
    return load_model("llama-3-8b")


@pytest.fixture(scope="module")
def phases(evaluator: GEMMEvaluator) -> list[PhaseResult]:
    return [phase(evaluator, "prefill"), phase(evaluator, "decode")]


@pytest.fixture(scope="module")
def page(config: ModelConfig, evaluator: GEMMEvaluator, phases: list[PhaseResult]) -> Page:
    return model_page(config, evaluator, phases, setting=[("sequences", "2")], num_explained=2)


def parts(page: Page, heading: str) -> list[Part]:
    return [part for section in page.sections if section.heading == heading for part in section.parts]


def rows(table: Part) -> list[dict[str, Any]]:
    assert isinstance(table, Table)
    names = [column.name for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in table.rows]


def test_a_phase_is_the_sum_of_its_gemms(phases: list[PhaseResult]) -> None:
    prefill = phases[0]

    total_us = sum(gemm.total_count * result.latency_us for gemm, result in prefill.gemms)
    assert prefill.latency_us == pytest.approx(total_us, rel=1e-12)
    assert prefill.tokens_per_s == pytest.approx(2 * SEQ_LEN / (total_us * 1e-6), rel=1e-12)
    shares = [prefill.share_frac(*row) for row in prefill.heaviest(99)]
    assert shares == sorted(shares, reverse=True)
    assert math.fsum(shares) == pytest.approx(1.0)
    assert prefill.heaviest(1) == prefill.heaviest(99)[:1]


def test_sections_and_overview(page: Page, phases: list[PhaseResult]) -> None:
    assert page.title == "GEMMs of llama-3-8b on demo-8core"
    assert [section.heading for section in page.sections] == ["Overview", "Prefill", "Decode", "What would help"]
    facts, totals, _ = parts(page, "Overview")
    assert isinstance(facts, Facts)
    found = dict(facts.items)
    assert (found["model"], found["arch"], found["sequences"]) == ("llama-3-8b", "demo-8core", "2")
    assert (found["parameters"], found["cores"], found["source of times"]) == ("8.03 billion", "8", "analytic")
    for row, of_phase in zip(rows(totals), phases, strict=True):
        gemm, result = of_phase.heaviest(1)[0]
        assert (row["phase"], row["tokens"]) == (of_phase.name, of_phase.num_tokens)
        assert (row["latency"], row["rate"]) == (of_phase.latency_us, of_phase.tokens_per_s)
        assert row["a token"] * of_phase.num_tokens == pytest.approx(of_phase.latency_us)
        assert row["heaviest GEMM"] == f"{gemm.name}, {of_phase.share_frac(gemm, result):.0%}"


def test_utilization_of_a_phase_is_its_flop_over_what_the_peak_allows(page: Page, phases: list[PhaseResult]) -> None:
    peak = phases[0].gemms[0][1].arch.peak_tflop_per_s("fp16")

    for row, of_phase in zip(rows(parts(page, "Overview")[1]), phases, strict=True):
        flop = sum(gemm.total_count * gemm.problem.flop for gemm, _ in of_phase.gemms)
        assert row["of peak"] == pytest.approx(100 * flop / (of_phase.latency_us * 1e-6 * peak * 1e12), rel=1e-9)


def test_every_gemm_has_a_row_with_its_numbers(page: Page, phases: list[PhaseResult]) -> None:
    for of_phase in phases:
        found = rows(parts(page, of_phase.name.capitalize())[0])
        for row, (gemm, result) in zip(found, of_phase.gemms, strict=True):
            assert row["GEMM"] == gemm.name
            assert tuple(row[name] for name in "GMKN") == gemm.problem.sizes
            assert (row["types"], row["count"], row["bound"]) == ("fp16", gemm.total_count, result.bound)
            assert (row["latency"], row["in all"]) == (result.latency_us, gemm.total_count * result.latency_us)
            assert (row["of peak"], row["DRAM"]) == (100 * result.utilization_frac, result.dram_gb_per_s)
            assert row["mapping"] == str(result.mapping)
        assert math.fsum(row["share"] for row in found) == pytest.approx(100.0)


def test_changes_bring_what_an_evaluator_of_the_changed_arch_says(
    page: Page, evaluator: GEMMEvaluator, phases: list[PhaseResult]
) -> None:
    faster = evaluator.on(evaluator.arch.with_(dram_gb_per_s=2 * evaluator.arch.dram_gb_per_s))
    tables = [part for part in parts(page, "What would help") if isinstance(part, Table)]

    for table, of_phase in zip(tables, phases, strict=True):
        found = rows(table)
        assert [row["GEMMs would take"] for row in found] == sorted(row["GEMMs would take"] for row in found)
        assert all(0.5 <= row["saves"] < 100 for row in found)
        (row,) = [row for row in found if row["change"] == "dram_gb_per_s x2"]
        expected_us = phase(faster, of_phase.name).latency_us
        assert row["GEMMs would take"] == pytest.approx(expected_us, rel=1e-9)
        assert row["saves"] == pytest.approx(100 * (1 - expected_us / of_phase.latency_us), rel=1e-6)
        assert row["helps most"] in {gemm.name for gemm, _ in of_phase.gemms}


def test_the_heaviest_gemms_are_explained(page: Page, phases: list[PhaseResult]) -> None:
    texts = [part for part in parts(page, "What would help") if isinstance(part, Text)]

    heaviest = [row for of_phase in phases for row in of_phase.heaviest(2)]
    assert [text.text for text in texts] == [result.explain() for _, result in heaviest]
    assert [text.title.split(",")[0] for text in texts] == [gemm.name for gemm, _ in heaviest]


def test_figures_have_a_section(config: ModelConfig, evaluator: GEMMEvaluator, phases: list[PhaseResult]) -> None:
    figure = Figure('<svg width="1" height="1"/>', caption="roofline")
    page = model_page(config, evaluator, phases[1:], figures=[figure], num_explained=0)

    assert parts(page, "Figures") == [figure]
    assert [section.heading for section in page.sections] == ["Overview", "Figures", "Decode", "What would help"]
    assert "roofline" in page.to_html()


def test_quantized_weights_on_a_gpu_and_options_of_the_call() -> None:
    evaluator = GEMMEvaluator("h100-sxm", disk_cache=False, l2="warm")
    page = model_page(load_model("llama-3-8b"), evaluator, [phase(evaluator, "decode", dtype="w4a16")], num_explained=1)

    assert {row["types"] for row in rows(parts(page, "Decode")[0])} == {"fp16 x int4", "fp16"}
    facts = parts(page, "Overview")[0]
    assert isinstance(facts, Facts)
    assert dict(facts.items)["SMs"] == "132"
    changes = rows(parts(page, "What would help")[0])
    assert "dram_gb_per_s x2" in {row["change"] for row in changes}
    (text,) = [part for part in parts(page, "What would help") if isinstance(part, Text)]
    assert "warm L2" in text.text


def test_the_verdict_says_how_long_phases_take_and_what_would_help(page: Page, phases: list[PhaseResult]) -> None:
    verdict, picture = page.lead
    assert isinstance(verdict, Verdict)
    assert isinstance(picture, Bars)
    found = dict(verdict.points)

    for of_phase, table in zip(phases, parts(page, "What would help")[::3], strict=True):
        assert time_text(of_phase.latency_us) in verdict.headline
        first = rows(table)[0]
        name = of_phase.name.capitalize()
        assert found[f"{name} would gain from"].startswith(
            f"{first['change']}: {time_text(first['GEMMs would take'])} (-"
        )
        gemm, result = of_phase.heaviest(1)[0]
        assert found[f"{name} is mostly"].startswith(f"{gemm.name} {of_phase.share_frac(gemm, result):.0%}")


def test_each_phase_has_bars_on_an_axis_of_its_own(page: Page, phases: list[PhaseResult]) -> None:
    picture = page.lead[1]
    assert isinstance(picture, Bars)

    assert len(picture.panels) == 2
    for panel, of_phase in zip(picture.panels, phases, strict=True):
        lengths = [length for bar in panel.bars for _, length in bar.segments]
        assert sum(lengths) == pytest.approx(of_phase.latency_us)
        assert len(panel.bars) <= 6
        assert panel.bars[0].name == of_phase.heaviest(1)[0][0].name


def test_a_report_is_the_estimate_of_the_same_question() -> None:
    options: dict[str, Any] = {"prompt_len": 300, "output_len": 16, "dtype": "fp8", "tensor_parallel": 2}
    estimate = estimate_model("llama-3-8b", "h200-sxm", 4, **options)
    page = model_report("llama-3-8b", GEMMEvaluator("h200-sxm"), batch=4, **options)

    assert page.title == "llama-3-8b on h200-sxm"
    verdict = page.lead[0]
    assert isinstance(verdict, Verdict)
    assert f"first token takes {time_text(estimate.ttft_us)}" in verdict.headline
    assert f"each after it {time_text(estimate.tpot_us)}" in verdict.headline
    _, totals, text = parts(page, "Overview")
    assert isinstance(text, Text)
    assert text.text == estimate.explain()
    for row, step in zip(rows(totals), (estimate.prefill, estimate.decode), strict=True):
        assert row["latency"] == step.latency_us
        operations, gemms = parts(page, step.phase.capitalize())
        found = rows(operations)
        assert [item["operation"] for item in found] == [cost.operation.name for cost in step.costs]
        assert math.fsum(item["share"] for item in found) == pytest.approx(100.0)
        names = [cost.operation.name for cost in step.costs if isinstance(cost.operation.work, GemmWork)]
        assert [item["GEMM"] for item in rows(gemms)] == names


def test_the_page_is_a_page(page: Page) -> None:
    html = page.to_html()

    assert html == page.to_html()
    assert html.count("<h2") == 4
    assert "gate_up_proj" in html
