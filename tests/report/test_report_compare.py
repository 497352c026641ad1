"""The page that compares archs: its numbers are those of the archs alone, and it says who wins, why and how surely."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gemm_eval import GemmEvalError, GEMMEvaluator, GemmProblem, InvalidOptionError
from gemm_eval.report import Bars, Page, Table, Text, Verdict, compare_report
from gemm_eval.report.compare import Contender, Contest, share_by_term, why
from gemm_eval.transformer import load_model, transformer_gemms, types_on
from gemm_eval.units import time_text

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


def rows(table: Table) -> list[dict[str, Any]]:
    names = [column.name for column in table.columns]
    return [dict(zip(names, row, strict=True)) for row in table.rows]


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
    found = {row["term"]: row["h200-sxm"] for row in rows(table)}
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
            (row,) = [row for row in rows(ranking) if row["arch"] == evaluator.arch.name]
            assert row["time"] == pytest.approx(sum(times))
            assert [row[evaluator.arch.name] for row in rows(by_gemm)] == pytest.approx(times)
        for row in rows(by_gemm):
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
