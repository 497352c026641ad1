"""Grouped GEMMs in tables and plots: the rows that there are, never G x M of the largest."""

from __future__ import annotations

import pytest

from gemm_eval import GEMMEvaluator, GemmProblem, GEMMResult, load_model
from gemm_eval.cli.render_model import print_phase
from gemm_eval.errors import UnsupportedError
from gemm_eval.report.plots import plot_breakdown, plot_mapping, plot_roofline
from gemm_eval.report.runs import GEMM_COLUMNS, gemm_cells
from gemm_eval.transformer import LayerGemm
from tests.evaluate.grouped_stand_in import give_answers
from tests.report.figures import draw, offsets, same_points, texts

pytest.importorskip("matplotlib")

GROUPED = GemmProblem.grouped((120, 3, 0, 17), 512, 256)


@pytest.fixture
def evaluator(monkeypatch: pytest.MonkeyPatch) -> GEMMEvaluator:
    give_answers(monkeypatch)
    return GEMMEvaluator("demo-8core", disk_cache=False)


@pytest.fixture
def result(evaluator: GEMMEvaluator) -> GEMMResult:
    return evaluator.evaluate_problem(GROUPED)


def test_cells_multiply_to_the_rows_that_there_are(evaluator: GEMMEvaluator, result: GEMMResult) -> None:
    for one in (result, evaluator.evaluate(4, 35, 512, 256, "fp16")):
        cells = dict(zip([column.name for column in GEMM_COLUMNS], gemm_cells(one, 2, 1.0), strict=True))
        assert [cells[name] for name in "GMKN"] == [4, 35, 512, 256]
        assert 2 * cells["G"] * cells["M"] * cells["K"] * cells["N"] == one.flop
        texts_of = [column.format(cell) for column, cell in zip(GEMM_COLUMNS, gemm_cells(one, 2, 1.0), strict=True)]
        assert texts_of[1:5] in (["4", "35.00", "512", "256"], ["4", "35", "512", "256"])


def test_bars_are_named_by_rows(evaluator: GEMMEvaluator, result: GEMMResult) -> None:
    figure = plot_breakdown([result, evaluator.evaluate(4, 35, 512, 256)])
    draw(figure)

    assert {"140 rows in G4 K512 N256", "G4 M35 K512 N256"} <= set(texts(figure))


def test_a_roofline_has_the_flop_of_the_rows(evaluator: GEMMEvaluator) -> None:
    results = [evaluator.evaluate_problem(one) for one in (GROUPED, GemmProblem(4, 35, 512, 256))]
    figure = plot_roofline(evaluator, [one.problem for one in results])

    intensity = [one.flop / one.dram_bytes for one in results]
    assert same_points(offsets(figure.axes[0]), intensity, [one.tflop_per_s for one in results])


def test_a_mapping_of_groups_is_not_drawn_as_one_of_a_batch(result: GEMMResult) -> None:
    with pytest.raises(UnsupportedError, match=r"mapping of G=4 rows=140 .* cannot be drawn: its groups differ"):
        plot_mapping(result)


def test_a_model_names_rows(result: GEMMResult, capsys: pytest.CaptureFixture[str]) -> None:
    gemm = LayerGemm("experts", GROUPED, 1, 32, is_weight=True)
    print_phase("decode", load_model("llama-3-8b"), [(gemm, result)], 1)

    assert "(140 in 4)·512·256" in capsys.readouterr().out
