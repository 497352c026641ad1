"""Reports on models and comparisons of archs, and groups of rows in both."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from gemm_eval import (
    GemmEvalError,
    GEMMEvaluator,
    GemmProblem,
    GEMMResult,
    InvalidOptionError,
    estimate_model,
)
from gemm_eval.cli.render_model import print_phase
from gemm_eval.errors import UnsupportedError
from gemm_eval.report import compare_report, model_report
from gemm_eval.report.compare import Contender, Contest, share_by_term, why
from gemm_eval.report.model_page import model_page
from gemm_eval.report.page import Page
from gemm_eval.report.parts import Bars, Facts, Figure, Part, Table, Text, Verdict
from gemm_eval.report.plots import plot_breakdown, plot_mapping, plot_roofline
from gemm_eval.report.runs import GEMM_COLUMNS, PhaseResult, gemm_cells
from gemm_eval.transformer import GemmWork, LayerGemm, ModelConfig, load_model, transformer_gemms, types_on
from gemm_eval.units import time_text
from tests.evaluate.grouped_stand_in import give_answers
from tests.report.figures import draw, offsets, same_points, texts

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


pytest.importorskip("matplotlib")

SIZES = [(1, 16, 4096, 4096), (1, 2048, 4096, 4096)]
ARCHS = ("h200-sxm", "b200", "sg2260")


@pytest.fixture(scope="module")
def evaluators() -> list[GEMMEvaluator]:
    return [GEMMEvaluator(name, disk_cache=False) for name in ARCHS]


@pytest.fixture(scope="module")
def gemms(evaluators: list[GEMMEvaluator]) -> Page:
    return compare_report(SIZES, evaluators)


def tables(page: Page, heading: str) -> list[Table]:
    return [part for one in page.sections if one.heading == heading for part in one.parts if isinstance(part, Table)]


def compared_rows(table: Table) -> list[dict[str, Any]]:
    names = [column.name for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in table.rows]


def test_each_gemm_is_ranked_with_its_interval_and_source(gemms: Page, evaluators: list[GEMMEvaluator]) -> None:
    for sizes in SIZES:
        results = {one.arch.name: one.evaluate(*sizes) for one in evaluators}
        found = compared_rows(tables(gemms, f"M={sizes[1]} K=4096 N=4096")[0])
        times = [row["time"] for row in found]
        assert times == sorted(result.latency_us for result in results.values())
        for row in found:
            result = results[row["arch"]]
            assert (row["time"], row["source"]) == (result.latency_us, result.source)
            assert row["over the fastest"] == pytest.approx(result.latency_us / times[0])
            if result.low_us is None or result.high_us is None:
                assert row["interval"] is None
            else:
                assert row["interval"] == f"{time_text(result.low_us)} to {time_text(result.high_us)}"
        assert {row["interval"] is None for row in found} == {True, False}


def test_the_verdict_names_the_fastest_and_says_why(gemms: Page, evaluators: list[GEMMEvaluator]) -> None:
    verdict, picture = gemms.lead
    assert isinstance(verdict, Verdict)
    assert isinstance(picture, Bars)
    fast, slow = (evaluators[at].evaluate(*SIZES[0]) for at in (1, 0))

    assert verdict.headline.startswith("b200 is fastest in both: M=16 K=4096 N=4096 with")
    assert f"{slow.latency_us / fast.latency_us:.3g} times as fast as h200-sxm" in verdict.headline
    reason = dict(verdict.points)["M=16 K=4096 N=4096: why"]
    assert reason.startswith(
        "h200-sxm is bound by DRAM bandwidth; b200 has 1.60x the bandwidth (7,700 against 4,800 GB/s)"
    )
    assert [panel.title for panel in picture.panels] == [f"M={M} K=4096 N=4096" for M in (16, 2048)]
    for panel in picture.panels:
        for bar in panel.bars:
            assert (bar.low is None) == (bar.name == "sg2260")


def contest(low: float, high: float) -> Contest:
    """Two archs of which the slower one's interval is given."""
    fast, slow = (GEMMEvaluator(name, disk_cache=False) for name in ("b200", "h200-sxm"))
    problem = GemmProblem(1, 16, 4096, 4096)
    results = [fast.evaluate_problem(problem), replace(slow.evaluate_problem(problem), low_us=low, high_us=high)]
    return Contest("x", None, [Contender(one, [("x", r, 1)]) for one, r in zip((fast, slow), results, strict=True)])


def test_whether_intervals_overlap() -> None:
    fast = contest(1e6, 2e6).contenders[0].interval_us
    assert fast is not None
    assert contest(fast[1] + 1.0, 1e6).is_clear
    assert contest(fast[1] - 0.1, 1e6).is_clear is False
    chips = [GEMMEvaluator(name, disk_cache=False) for name in ("sg2260", "demo-8core")]
    assert (
        Contest("x", None, [Contender(one, [("x", one.evaluate(1, 8, 64, 64), 1)]) for one in chips]).is_clear is None
    )


def test_terms_add_up(evaluators: list[GEMMEvaluator], gemms: Page) -> None:
    result = evaluators[0].evaluate(*SIZES[0])
    shares = share_by_term(Contender(evaluators[0], [("a", result, 3), ("b", evaluators[0].evaluate(*SIZES[1]), 1)]))

    assert sum(shares.values()) == pytest.approx(100.0)
    (table,) = [table for table in tables(gemms, "M=16 K=4096 N=4096") if "share" in table.caption]
    found = {row["term"]: row["h200-sxm"] for row in compared_rows(table)}
    assert found["DRAM"] == pytest.approx(100.0 * result.breakdown["dram_us"] / result.latency_us)
    assert list(found)[-1] == "hidden"


def test_reasons_without_a_resource_are_named_alone(evaluators: list[GEMMEvaluator]) -> None:
    one = Contender(evaluators[0], [("x", evaluators[0].evaluate(*SIZES[0]), 1)])
    assert why(one, one) == "h200-sxm is bound by DRAM bandwidth"


def test_a_model_phase_by_phase(evaluators: list[GEMMEvaluator]) -> None:
    page = compare_report("llama-3-8b", evaluators[:2], batch_size=2, seq_len=64)
    sizes: Any = {"batch_size": 2, "seq_len": 64}

    assert [one.heading for one in page.sections] == ["Archs", "Figures", "Prefill", "Decode", "In full"]
    for phase in ("prefill", "decode"):
        ranking, by_gemm, _ = tables(page, phase.capitalize())
        for evaluator in evaluators[:2]:
            config = load_model("llama-3-8b")
            of = transformer_gemms(config, phase=phase, **sizes, **types_on(evaluator.arch, None, None, config))  # type: ignore[arg-type]
            times = [gemm.total_count * evaluator.evaluate_problem(gemm.problem).latency_us for gemm in of]
            (row,) = [row for row in compared_rows(ranking) if row["arch"] == evaluator.arch.name]
            assert row["time"] == pytest.approx(sum(times))
            assert [row[evaluator.arch.name] for row in compared_rows(by_gemm)] == pytest.approx(times)
        for row in compared_rows(by_gemm):
            assert row[row["fastest"]] == min(row[name] for name in ARCHS[:2])
    assert "<h2" in page.to_html()
    assert "prefill with" in page.lead[0].headline  # type: ignore[union-attr]


def test_archs_without_room_are_named_with_the_reason() -> None:
    archs = [GEMMEvaluator(name, disk_cache=False) for name in ("l4", "h200-sxm", "b200")]
    page = compare_report("llama-3-70b", archs, phases=["decode"], tensor_parallel=2)

    (said,) = [part for part in page.sections[0].parts if isinstance(part, Text) and part.title == "Not compared"]
    assert said.text.startswith("l4: ")
    assert page.title == "GEMMs of llama-3-70b on h200-sxm, b200"
    with pytest.raises(GemmEvalError, match="fewer than two of the archs can run it: l4: "):
        compare_report("llama-3-70b", archs[:2], phases=["decode"])


def test_what_cannot_be_compared_is_refused(evaluators: list[GEMMEvaluator]) -> None:
    for archs in (evaluators[:1], [evaluators[0], evaluators[0]]):
        with pytest.raises(InvalidOptionError, match="two or more archs of different names"):
            compare_report(SIZES, archs)
    with pytest.raises(InvalidOptionError, match="at least one GEMM"):
        compare_report([], evaluators)


pytest.importorskip("matplotlib")

GROUPED = GemmProblem.grouped((120, 3, 0, 17), 512, 256)


@pytest.fixture
def of_groups(monkeypatch: pytest.MonkeyPatch) -> GEMMEvaluator:
    give_answers(monkeypatch)
    return GEMMEvaluator("demo-8core", disk_cache=False)


@pytest.fixture
def result(of_groups: GEMMEvaluator) -> GEMMResult:
    return of_groups.evaluate_problem(GROUPED)


def test_cells_multiply_to_the_rows_that_there_are(of_groups: GEMMEvaluator, result: GEMMResult) -> None:
    for one in (result, of_groups.evaluate(4, 35, 512, 256, "fp16")):
        cells = dict(zip([column.name for column in GEMM_COLUMNS], gemm_cells(one, 2, 1.0), strict=True))
        assert [cells[name] for name in "GMKN"] == [4, 35, 512, 256]
        assert 2 * cells["G"] * cells["M"] * cells["K"] * cells["N"] == one.flop
        texts_of = [column.format(cell) for column, cell in zip(GEMM_COLUMNS, gemm_cells(one, 2, 1.0), strict=True)]
        assert texts_of[1:5] in (["4", "35.00", "512", "256"], ["4", "35", "512", "256"])


def test_bars_are_named_by_rows(of_groups: GEMMEvaluator, result: GEMMResult) -> None:
    figure = plot_breakdown([result, of_groups.evaluate(4, 35, 512, 256)])
    draw(figure)

    assert {"140 rows in G4 K512 N256", "G4 M35 K512 N256"} <= set(texts(figure))


def test_a_roofline_has_the_flop_of_the_rows(of_groups: GEMMEvaluator) -> None:
    results = [of_groups.evaluate_problem(one) for one in (GROUPED, GemmProblem(4, 35, 512, 256))]
    figure = plot_roofline(of_groups, [one.problem for one in results])

    intensity = [one.flop / one.dram_bytes for one in results]
    assert same_points(offsets(figure.axes[0]), intensity, [one.tflop_per_s for one in results])


def test_a_mapping_of_groups_is_not_drawn_as_one_of_a_batch(result: GEMMResult) -> None:
    with pytest.raises(UnsupportedError, match=r"mapping of G=4 rows=140 .* cannot be drawn: its groups differ"):
        plot_mapping(result)


def test_a_model_names_rows(result: GEMMResult, capsys: pytest.CaptureFixture[str]) -> None:
    gemm = LayerGemm("experts", GROUPED, 32, is_weight=True)
    print_phase("decode", load_model("llama-3-8b"), [(gemm, result)], 1)

    assert "(140 in 4)·512·256" in capsys.readouterr().out
