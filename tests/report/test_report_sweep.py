"""The report on a sweep: its numbers are those of the sweep, and every kind of sweep has a page that says so."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from gemm_eval import GEMMEvaluator, load_arch
from gemm_eval.report import sweep_report
from gemm_eval.report.page import Page
from gemm_eval.report.parts import Chart, Facts, Figure, Table, Text, Verdict
from gemm_eval.report.sweep_page import Points, names_of_best, say_field
from gemm_eval.sweep import (
    LogRange,
    Random,
    Range,
    Space,
    SweepResult,
    Workload,
    load_sweep,
    sweep,
)
from gemm_eval.units import time_text
from gemm_eval.workload import make_problem
from tests.report.figures import parts, rows

GEMMS = [(1, 16, 1024, 1024), (1, 256, 1024, 2048)]
AREA = "= num_cores * (2.0 + 1.2 * sram_bytes / 2**20) + 0.02 * dram_gb_per_s"


def space(**more: Any) -> Space:
    fields = {"num_cores": [4, 8, 16], "sram_bytes": LogRange(2**18, 2**20, 3), "dram_gb_per_s": [100.0, 400.0]}
    return Space("demo-8core", fields | more)


def workload(name: str, *sizes: tuple[int, int, int, int], tokens: int | None = None) -> Workload:
    problems = [make_problem(*one, default_dtype=load_arch("demo-8core").default_dtype) for one in sizes]
    return Workload(name, tuple((problem, at) for at, problem in enumerate(problems, 2)), tokens)


LOADS = [workload("first", GEMMS[0], tokens=16), workload("second", GEMMS[1])]


@pytest.fixture(scope="module")
def result() -> SweepResult:
    aims = ["latency_us", "area_mm2"]
    return sweep(space(area_mm2=AREA), LOADS, aims, ["area_mm2 <= 40"], progress=False)


@pytest.fixture(scope="module")
def page(result: SweepResult) -> Page:
    return sweep_report(result)


def headings(page: Page) -> list[str]:
    return [section.heading for section in page.sections]


def same(row: dict[str, Any], expected: Any) -> bool:
    """Whether a row says what a row of the sweep does, in every column but for those that are not known."""
    return all(
        row[name] == expected[name] or (row[name] is None and pd.isna(expected[name]))
        for name in row
        if name in expected.index
    )


def test_sections_and_facts(result: SweepResult, page: Page) -> None:
    assert page.title == "Design space of demo-8core"
    assert page.subtitle == "18 chips, first, second"
    assert headings(page) == [
        "Overview", "Trade-offs", "Best designs, and why", "Figures", "Pareto front", "All points", "Excluded points",
    ]  # fmt: skip
    (facts,) = parts(page, "Overview", Facts)
    found = dict(facts.items)
    num_excluded = int((~result.is_feasible).sum())
    assert found["points"] == f"18, {num_excluded} excluded, {len(result.pareto())} on the front"
    assert found["objective 2"] == "area_mm2, less is better"
    assert found["constraint"] == "area_mm2 <= 40"
    flop = 2 * 2 * 16 * 1024 * 1024
    assert found["workload first"] == f"1 GEMM, {flop / 1e6:.1f} MFLOP, 16 tokens"
    assert found["sampling"] == "all combinations"
    assert found["cost model"].startswith("multicore")


def test_tables_of_points_are_the_front_and_all_feasible_points(result: SweepResult, page: Page) -> None:
    table = result.to_pandas().set_index("point", drop=False)
    (front,), (everything,) = parts(page, "Pareto front"), parts(page, "All points")

    assert [row["point"] for row in rows(front)] == result.pareto()["point"].tolist()
    feasible = table[table["excluded"] == ""].sort_values("latency_us", kind="stable")
    assert [row["point"] for row in rows(everything)] == feasible["point"].tolist()
    for row in rows(front) + rows(everything):
        assert same(row, table.loc[row["point"]])
    names = [column.name for column in everything.columns]
    assert names[:6] == ["point", "num_cores", "sram_bytes", "dram_gb_per_s", "area_mm2", "latency_us"]
    (excluded,) = parts(page, "Excluded points")
    assert [list(row.values()) for row in rows(excluded)] == result.excluded().to_numpy().tolist()
    assert set(result.columns) - set(names) <= {"arch", "excluded"} | {n for n in table if table[n].isna().all()}


def test_best_designs_are_the_best(result: SweepResult, page: Page) -> None:
    front = result.pareto()
    (table,) = parts(page, "Overview", Table)
    found = {said: row for row in rows(table) for said in row["best in"].split(", ")}

    assert set(found) == {"least latency_us", "least area_mm2", "balance"}
    assert found["least latency_us"]["latency_us"] == front["latency_us"].min()
    assert found["least area_mm2"]["area_mm2"] == front["area_mm2"].min()
    product = front["latency_us"] * front["area_mm2"]
    assert found["balance"]["point"] == front["point"].iloc[int(np.argmin(product))]
    assert "ratios" in table.note
    points = [row["point"] for row in rows(table)]
    assert len(set(points)) == len(points)
    sram, latency = (next(c for c in table.columns if c.name == name) for name in ("sram_bytes", "latency_us"))
    assert (sram.heading, sram.format(2**20), sram.format(3 << 19)) == ("sram", "1 MiB", "1.5 MiB")
    assert (latency.heading, latency.format(20_805_922.82)) == ("latency", "20.8 s")


def test_what_varies_and_how_much_it_matters(result: SweepResult, page: Page) -> None:
    (table,) = parts(page, "Trade-offs", Table)
    found = {row["field"]: row for row in rows(table)}
    feasible = result.rows(np.flatnonzero(result.is_feasible))

    assert found["num_cores"]["values"] == "4, 8, 16"
    assert found["sram_bytes"]["values"] == "256 KiB to 1 MiB, logarithmic, 3 values"
    assert found["area_mm2"]["values"] == AREA
    on_front = sorted(result.pareto()["num_cores"].unique())
    assert found["num_cores"]["on the front"] == ", ".join(map(str, on_front))
    for name in ("num_cores", "sram_bytes", "dram_gb_per_s"):
        best = [feasible.loc[feasible[name] == value, "latency_us"].min() for value in feasible[name].unique()]
        assert found[name]["latency differs by"] == pytest.approx(max(best) / min(best))
    assert "area_mm2 differs by" in found["num_cores"]


def test_the_chart_holds_all_feasible_points_marks_the_front_and_names_the_best(
    result: SweepResult, page: Page
) -> None:
    _, chart = page.lead
    assert isinstance(chart, Chart)

    assert parts(page, "Trade-offs", Chart) == []
    assert (chart.x, chart.y, chart.joined) == ("area_mm2", "latency_us", "after")
    assert len(chart.rows) == int(result.is_feasible.sum())
    marked = {row["point"] for row, mark in zip(rows(chart), chart.highlight, strict=True) if mark}
    assert marked == set(result.pareto()["point"])
    named = {chart.rows[row][0]: name for row, name in chart.names.items()}
    assert named == names_of_best(Points(result).best)
    assert "Fastest" in " ".join(named.values())


def test_the_verdict_holds_the_best_design_against_the_base(result: SweepResult, page: Page) -> None:
    verdict = page.lead[0]
    assert isinstance(verdict, Verdict)
    best = Points(result).best[0]
    base = GEMMEvaluator("demo-8core", disk_cache=False)
    base_us = sum(count * base.evaluate_problem(problem).latency_us for load in LOADS for problem, count in load.gemms)
    ratio = base_us / best.row["latency_us"]

    assert verdict.headline == (
        f"Point {best.point} is the fastest of {int(result.is_feasible.sum())} chips: "
        f"{time_text(best.row['latency_us'])}, {max(ratio, 1 / ratio):.3g} times as "
        f"{'fast' if ratio > 1 else 'slow'} as the unchanged demo-8core ({time_text(base_us)})."
    )
    found = dict(verdict.points)
    assert found[f"Point {best.point}"].startswith(f"num_cores {best.row['num_cores']}, sram ")
    assert "would gain" in " ".join(found)
    assert "num_cores" in found["Strongest fields for latency"]


def test_what_would_help_is_of_the_objective_of_the_headline() -> None:
    load = workload("large", (1, 4096, 4096, 4096))
    result = sweep(space(), [load], ["dram_bytes", "latency_us"], progress=False)
    page = sweep_report(result)
    verdict = page.lead[0]
    assert isinstance(verdict, Verdict)
    helps = dict(verdict.points)["It would gain from"].split("; ")

    best = Points(result).best[0]
    arch = result.arch(best.point)
    base = float(best.row["dram_bytes"])
    for text in helps:
        change, _, rest = text.partition(" x2: ")
        changed = arch.with_(**{change: 2 * getattr(arch, change)})
        evaluator = GEMMEvaluator(changed, disk_cache=False, allow_idle_cores=False)
        num_bytes = sum(count * evaluator.evaluate_problem(problem).dram_bytes for problem, count in load.gemms)
        assert rest.endswith(f"({num_bytes / base - 1:+.0%})")
        assert num_bytes < base
    assert not any("dram_gb_per_s" in text for text in helps)  # which would save time, and no byte


def test_designs_are_explained_by_their_gemms(result: SweepResult, page: Page) -> None:
    best = Points(result).best
    tables, texts = (parts(page, "Best designs, and why", kind) for kind in (Table, Text))

    assert [text.title for text in texts if text.title] == [f"Point {one.point}: {one.best_in}" for one in best]
    at = 0
    for one in best:
        for load, gemms in result.evaluate(one.point).items():
            found = rows(tables[at])
            assert tables[at].caption == f"Point {one.point}, {load}: its GEMMs, heaviest first"
            assert [row["no."] for row in found] == list(range(1, len(found) + 1))
            total_us = sum(row["total"] for row in found)
            assert total_us == pytest.approx(result.row(one.point)[f"{load}_latency_us"])
            assert sum(row["share"] for row in found) == pytest.approx(100.0)
            assert gemms[0].explain() in {text.text for text in texts}
            at += 1
    assert at == len(tables)


def test_the_whole_report_has_figures_and_is_a_page(result: SweepResult, page: Page) -> None:
    points = Points(result)
    point, (across, up, *_) = points.best[-1].point, points.strongest("latency_us")

    assert [figure.caption for figure in parts(page, "Figures", Figure)] == [
        f"Point {point}: its GEMMs under its roofs",
        f"Point {point}: where the time of its GEMMs goes",
        f"Best latency_us over {across} and {up}",
    ]
    html = page.to_html()
    assert html == sweep_report(result).to_html()
    assert html.count("<svg") == 3
    assert "LogRange(" not in html
    assert "Choices(" not in html


def test_one_objective_over_its_fields_and_one_to_be_large() -> None:
    result = sweep(space(), GEMMS, progress=False)
    page = sweep_report(result)
    charts = [part for part in page.lead if isinstance(part, Chart)] + parts(page, "Trade-offs", Chart)

    frame = result.to_pandas()
    effect = Points(result).effects("latency_us")
    assert [chart.x for chart in charts] == sorted(effect, key=lambda name: -effect[name])
    assert len(charts) == 3
    assert {chart.joined for chart in charts} == {"line"}
    for chart in charts:
        for row, mark in zip(rows(chart), chart.highlight, strict=True):
            best = frame.loc[frame[chart.x] == row[chart.x], "latency_us"].min()
            assert mark == (row["latency_us"] == best)
    (best_table,) = parts(page, "Overview", Table)
    assert [row["best in"] for row in rows(best_table)] == ["least latency_us"]
    assert best_table.note == ""

    result = sweep(space(), LOADS, ["first_tokens_per_s", "dram_bytes"], progress=False)
    (table,) = parts(sweep_report(result), "Overview", Table)
    (most,) = [row for row in rows(table) if "most first_tokens_per_s" in row["best in"]]
    assert most["first_tokens_per_s"] == result["first_tokens_per_s"].max()


def test_several_base_archs_gpus_and_nothing_that_varies() -> None:
    bases = ["demo-8core", "sg2260e"]
    page = sweep_report(sweep(Space(bases, dram_gb_per_s=[200.0, 400.0]), GEMMS, dtype="fp16", progress=False))
    assert page.title == "Design space of demo-8core, sg2260e"
    found = rows(parts(page, "Trade-offs", Table)[0])
    assert (found[0]["field"], found[0]["values"]) == ("arch", "demo-8core, sg2260e")
    assert {row["arch"] for row in rows(parts(page, "All points")[0])} == set(bases)

    gpus = Space("h100-sxm", dram_gb_per_s=[2000.0, 4000.0], num_sms=[132])
    page = sweep_report(sweep(gpus, GEMMS[:1], progress=False))
    (facts,) = parts(page, "Overview", Facts)
    assert dict(facts.items)["cost model"].startswith("gpu")
    assert len(rows(parts(page, "All points")[0])) == 2
    assert len(parts(page, "Figures")) == 2  # one field varies: no heat map

    page = sweep_report(sweep(Space("demo-8core"), GEMMS, progress=False))
    assert parts(page, "Trade-offs", Chart) == []
    assert page.subtitle == "1 chip, gemms"


def test_no_point_is_feasible() -> None:
    page = sweep_report(sweep(space(), GEMMS, constraints=["latency_us <= 0.001"], progress=False))

    assert headings(page) == ["Overview", "Excluded points", "Design space"]
    assert parts(page, "Overview", Text)[0].title == "No point is feasible"
    assert rows(parts(page, "Excluded points")[0])[0]["points"] == 18


def test_an_objective_that_is_not_known() -> None:
    page = sweep_report(sweep(Space("sg2260e", num_cores=[1, 2]), GEMMS, ["energy_pj", "latency_us"], progress=False))

    assert parts(page, "Overview", Text)[0].title == "There is no best design"
    assert headings(page) == ["Overview", "Trade-offs", "All points"]
    (chart,) = parts(page, "Trade-offs", Chart)
    assert (chart.x, chart.y) == ("num_cores", "latency_us")


def test_an_unfinished_sweep_says_so(tmp_path: Path) -> None:
    whole = sweep(space(), GEMMS, path=tmp_path / "whole", chunk_size=6, progress=False)
    assert not parts(sweep_report(whole), "Overview", Text)
    for left, num in ((["points-0000000006.parquet"], 6), ([], 0)):
        folder = tmp_path / f"part{num}"
        folder.mkdir()
        for name in ["_sweep.json", *left]:
            shutil.copy(tmp_path / "whole" / name, folder)
        page = sweep_report(load_sweep(folder))

        said = parts(page, "Overview", Text)[0]
        assert said.title == "This sweep is not finished"
        assert said.text.startswith(f"{num} of 18 points are done")
        points = [row["point"] for row in rows(parts(page, "All points")[0])] if num else []
        assert sorted(points) == list(range(6, 6 + num))


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ([8], "8"),
        ([8, 16.5, None, "mesh", True], "8, 16.5, None, mesh, True"),
        (list(range(20)), "0, 1, 2, 3, 4, ..., 15, 16, 17, 18, 19 (20 values)"),
        (Range(100.0, 1600.0, 4), "100 to 1,600, 4 values"),
        (Range(1, 9, step=2), "1 to 9, multiples of 2"),
        (LogRange(2**18, 2**22), "262,144 to 4,194,304, logarithmic"),
        ("= 2 * num_cores", "= 2 * num_cores"),
        (lambda a: a.num_cores, "a function of the others"),
    ],
)
def test_fields_in_words(field: Any, words: str) -> None:
    described = sweep(Space("demo-8core", variables={"x": field}), GEMMS[:1], sampling=Random(1), progress=False)
    assert say_field(described.description["variables"]["x"]) == words
