"""Reports on models and comparisons of archs, and groups of rows in both."""

import math
from dataclasses import replace
from typing import Any

import pytest

from gemm_eval import GemmEvalError, GEMMEvaluator, GemmProblem, InvalidOptionError, estimate_model
from gemm_eval.cli.render_model import print_phase
from gemm_eval.errors import UnsupportedError
from gemm_eval.report import compare_report, model_report
from gemm_eval.report.compare import is_clear, why
from gemm_eval.report.page import Page
from gemm_eval.report.parts import Bars, Column, Part, Run, Runs, Table, Text, Verdict, gemm_table
from gemm_eval.report.plots import plot_breakdown, plot_mapping, plot_roofline
from gemm_eval.transformer import GemmWork, LayerGemm, load_model, transformer_gemms, types_on
from gemm_eval.units import time_text
from tests.report.figures import draw, offsets, parts, rows, same_points, texts

OPTIONS: dict[str, Any] = {"batch": 2, "prompt_len": 64, "output_len": 16}
SIZES = [(1, 16, 4096, 4096), (1, 2048, 4096, 4096)]
ARCHS = ("h200-sxm", "b200", "sg2260")
GROUPED = GemmProblem.grouped((120, 3, 0, 17), 512, 256)


@pytest.fixture(scope="module")
def evaluator() -> GEMMEvaluator:
    return GEMMEvaluator("demo-8core", disk_cache=False)


@pytest.fixture(scope="module")
def page(evaluator: GEMMEvaluator) -> Page:
    return model_report("llama-3-8b", evaluator, **OPTIONS)


def gemm_runs(evaluator: GEMMEvaluator, phase: str) -> Runs:
    """The GEMMs of a step, as its cost table has them."""
    step = getattr(estimate_model("llama-3-8b", evaluator, **OPTIONS), phase)
    runs = [
        Run(cost.operation.name, evaluator.evaluate_problem(cost.operation.work.problem), cost.operation.num_layers)
        for cost in step.costs
        if isinstance(cost.operation.work, GemmWork)
    ]
    return Runs(phase, evaluator, runs, step.batch * step.new_tokens, step)


@pytest.fixture(scope="module")
def steps(evaluator: GEMMEvaluator) -> list[Runs]:
    return [gemm_runs(evaluator, "prefill"), gemm_runs(evaluator, "decode")]


def test_every_gemm_has_a_row_with_its_numbers(page: Page, steps: list[Runs]) -> None:
    for step in steps:
        found = rows(parts(page, step.title)[1])
        for row, run in zip(found, step.runs, strict=True):
            result = run.result
            assert (row["GEMM"], *(row[name] for name in "GMKN")) == (run.name, *result.problem.sizes)
            assert (row["types"], row["count"], row["bound"]) == ("bf16", run.times, result.bound)
            assert (row["latency"], row["total"]) == (result.latency_us, run.total_us)
            assert (row["of peak"], row["DRAM"]) == (100 * result.utilization_frac, result.dram_gb_per_s)
            assert row["share"] == pytest.approx(100 * run.total_us / step.total_us)
            assert row["mapping"] == str(result.mapping)


def test_changes_bring_what_an_evaluator_of_the_changed_arch_says(
    page: Page, evaluator: GEMMEvaluator, steps: list[Runs]
) -> None:
    faster = evaluator.on(evaluator.arch.with_(dram_gb_per_s=2 * evaluator.arch.dram_gb_per_s))
    tables = [part for part in parts(page, "What would help") if isinstance(part, Table)]
    texts_of = [part for part in parts(page, "What would help") if isinstance(part, Text)]
    heaviest = [run for step in steps for run in step.heaviest(3)]
    assert [(one.text, one.title.split(",")[0]) for one in texts_of] == [(r.result.explain(), r.name) for r in heaviest]
    verdict = dict(page.lead[0].points)  # type: ignore[union-attr]
    for table, step in zip(tables, steps, strict=True):
        found = rows(table)
        assert [row["GEMMs would take"] for row in found] == sorted(row["GEMMs would take"] for row in found)
        assert all(0.5 <= row["saves"] < 100 for row in found)
        (row,) = [row for row in found if row["change"] == "dram_gb_per_s x2"]
        expected_us = sum(run.times * faster.evaluate_problem(run.result.problem).latency_us for run in step.runs)
        assert row["GEMMs would take"] == pytest.approx(expected_us, rel=1e-9)
        assert row["saves"] == pytest.approx(100 * (1 - expected_us / sum(run.total_us for run in step.runs)))
        assert row["helps most"] in {run.name for run in step.runs}
        first = f"{found[0]['change']}: {time_text(found[0]['GEMMs would take'])} (-"
        assert verdict[f"GEMMs of {step.name} would gain from"].startswith(first)


def test_a_report_is_the_estimate_of_the_same_question() -> None:
    options: dict[str, Any] = {"prompt_len": 300, "output_len": 16, "dtype": "fp8", "tensor_parallel": 2}
    estimate = estimate_model("llama-3-8b", "h200-sxm", 4, **options)
    page = model_report("llama-3-8b", GEMMEvaluator("h200-sxm"), batch=4, **options)

    headline = page.lead[0].headline  # type: ignore[union-attr]
    assert f"TTFT {time_text(estimate.ttft_us)}" in headline
    assert f"TPOT {time_text(estimate.tpot_us)}" in headline
    _, totals, text = parts(page, "Overview")
    assert text.text == estimate.explain()
    for row, step in zip(rows(totals), (estimate.prefill, estimate.decode), strict=True):
        assert row["latency"] == step.latency_us
        operations, gemms = parts(page, step.phase.capitalize())
        found = rows(operations)
        assert [item["operation"] for item in found] == [cost.operation.name for cost in step.costs]
        assert math.fsum(item["share"] for item in found) == pytest.approx(100.0)
        names = [cost.operation.name for cost in step.costs if isinstance(cost.operation.work, GemmWork)]
        assert [item["GEMM"] for item in rows(gemms)] == names
    assert page.to_html() == page.to_html()


@pytest.fixture(scope="module")
def evaluators() -> list[GEMMEvaluator]:
    return [GEMMEvaluator(name, disk_cache=False) for name in ARCHS]


@pytest.fixture(scope="module")
def gemms(evaluators: list[GEMMEvaluator]) -> Page:
    return compare_report(SIZES, evaluators)


def tables(page: Page, heading: str) -> list[Part]:
    return [part for part in parts(page, heading) if isinstance(part, Table)]


def test_each_gemm_is_ranked_with_its_interval_and_source(gemms: Page, evaluators: list[GEMMEvaluator]) -> None:
    for sizes in SIZES:
        results = {one.arch.name: one.evaluate(*sizes) for one in evaluators}
        found = rows(tables(gemms, f"M={sizes[1]} K=4096 N=4096")[0])
        times = [row["time"] for row in found]
        assert times == sorted(result.latency_us for result in results.values())
        for row in found:
            result = results[row["arch"]]
            assert (row["time"], row["source"]) == (result.latency_us, result.source)
            assert row["over the fastest"] == pytest.approx(result.latency_us / times[0])
            assert row["interval"] == f"{time_text(result.low_us)} to {time_text(result.high_us)}"


def test_the_verdict_names_the_fastest_and_says_why(gemms: Page, evaluators: list[GEMMEvaluator]) -> None:
    verdict, picture = gemms.lead
    assert isinstance(verdict, Verdict)
    assert isinstance(picture, Bars)
    fast, slow = (evaluators[at].evaluate(*SIZES[0]) for at in (1, 0))

    assert verdict.headline.startswith("b200 is fastest in both: M=16 K=4096 N=4096 with")
    assert f"{slow.latency_us / fast.latency_us:.3g} times as fast as h200-sxm" in verdict.headline
    reason = "h200-sxm is bound by DRAM bandwidth; b200 has 1.60x the bandwidth (7,700 against 4,800 GB/s)"
    assert dict(verdict.points)["M=16 K=4096 N=4096: why"].startswith(reason)
    assert [panel.title for panel in picture.panels] == [f"M={M} K=4096 N=4096" for M in (16, 2048)]
    assert all(bar.low is not None for panel in picture.panels for bar in panel.bars)


def test_whether_intervals_overlap(evaluators: list[GEMMEvaluator]) -> None:
    fast, slow = (Runs("x", one, [Run("x", one.evaluate(*SIZES[0]), 1)]) for one in (evaluators[1], evaluators[0]))
    assert fast.interval_us is not None

    def contest(low_us: float) -> list[Runs]:
        result = replace(slow.runs[0].result, low_us=low_us, high_us=1e6)
        return [fast, Runs("x", slow.evaluator, [Run("x", result, 1)])]

    assert is_clear(contest(fast.interval_us[1] + 1.0))
    assert is_clear(contest(fast.interval_us[1] - 0.1)) is False
    chip = Runs("x", evaluators[2], [Run("x", evaluators[2].evaluate(1, 8, 64, 64), 1)])
    assert is_clear([chip, chip]) is False
    assert why(slow, slow) == "h200-sxm is bound by DRAM bandwidth"


def test_a_model_phase_by_phase(evaluators: list[GEMMEvaluator]) -> None:
    page = compare_report("llama-3-8b", evaluators[:2], batch_size=2, seq_len=64)
    config = load_model("llama-3-8b")

    assert [one.heading for one in page.sections] == ["Archs", "Figures", "Prefill", "Decode", "Explanations"]
    for phase in ("prefill", "decode"):
        ranking, by_gemm, _ = (rows(table) for table in tables(page, phase.capitalize()))
        for evaluator in evaluators[:2]:
            types: Any = types_on(evaluator.arch, None, None, config)
            of = transformer_gemms(config, phase=phase, batch_size=2, seq_len=64, **types)  # type: ignore[arg-type]
            times = [gemm.total_count * evaluator.evaluate_problem(gemm.problem).latency_us for gemm in of]
            (row,) = [row for row in ranking if row["arch"] == evaluator.arch.name]
            assert row["time"] == pytest.approx(sum(times))
            assert [row[evaluator.arch.name] for row in by_gemm] == pytest.approx(times)
        assert all(row[row["fastest"]] == min(row[name] for name in ARCHS[:2]) for row in by_gemm)
    assert "prefill with" in page.lead[0].headline  # type: ignore[union-attr]


def test_archs_without_room_are_named_with_the_reason() -> None:
    archs = [GEMMEvaluator(name, disk_cache=False) for name in ("l4", "h200-sxm", "b200")]
    page = compare_report("llama-3-70b", archs, phases=["decode"], tensor_parallel=2)

    (said,) = [part for part in parts(page, "Archs") if isinstance(part, Text) and part.title == "Not compared"]
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


def test_groups_of_rows_in_tables_and_plots(evaluator: GEMMEvaluator, capsys: pytest.CaptureFixture[str]) -> None:
    result, plain = evaluator.evaluate_problem(GROUPED), evaluator.evaluate(4, 35, 512, 256, "fp16")
    for one, M in ((result, "35.00"), (plain, "35")):
        table = gemm_table({Column("GEMM", kind="text"): ["x"]}, [Run("x", one, 2)], 1.0)
        (row,) = rows(table)
        assert 2 * row["G"] * row["M"] * row["K"] * row["N"] == one.flop
        formats = [column.format(cell) for column, cell in zip(table.columns, table.rows[0], strict=True)]
        assert formats[2:6] == ["4", M, "512", "256"]

    bars = plot_breakdown([result, plain])
    draw(bars)
    assert {"140 rows in G4 K512 N256", "G4 M35 K512 N256"} <= set(texts(bars))
    roofline = plot_roofline(evaluator, [GROUPED, plain.problem])
    intensity = [one.flop / one.dram_bytes for one in (result, plain)]
    assert same_points(offsets(roofline.axes[0]), intensity, [one.tflop_per_s for one in (result, plain)])
    with pytest.raises(UnsupportedError, match=r"mapping of G=4 rows=140 .* cannot be drawn: its groups differ"):
        plot_mapping(result)
    gemm = LayerGemm("experts", GROUPED, 32, is_weight=True)
    print_phase("decode", load_model("llama-3-8b"), [(gemm, result)], 1)
    assert "(140 in 4)·512·256" in capsys.readouterr().out
