"""Reports of a sweep and of a model in a browser: tables sort, charts tell their points, phones need no panning."""

from __future__ import annotations

import pytest

from gemm_eval import GEMMEvaluator
from gemm_eval.report import model_report, sweep_report
from gemm_eval.report.page import Page
from gemm_eval.report.parts import scaled_text
from gemm_eval.sweep import LogRange, Space, SweepResult, sweep
from tests.browser.conftest import Open, OpenPage


@pytest.fixture(scope="module")
def result() -> SweepResult:
    fields = {"num_cores": [2, 4, 8], "sram_bytes": LogRange(2**18, 2**20, 3), "dram_gb_per_s": [100.0, 400.0]}
    space = Space("demo-8core", fields, area_mm2="= num_cores * (2 + sram_bytes / 2**20) + 0.02 * dram_gb_per_s")
    aims = ["latency_us", "area_mm2"]
    return sweep(space, [(1, 16, 1024, 1024), (1, 256, 1024, 2048)], aims, ["area_mm2 <= 25"], progress=False)


@pytest.fixture(scope="module")
def reports(result: SweepResult) -> dict[str, Page]:
    evaluator = GEMMEvaluator("demo-8core", disk_cache=False)
    model = model_report("llama-3-8b", evaluator, phases=["decode"], batch=2, prompt_len=64)
    return {"sweep": sweep_report(result), "model": model}


def cells(opened: OpenPage, caption: str, column: str) -> list[str]:
    table = opened.page.get_by_role("table", name=caption)
    names = [text.split()[0] for text in table.locator("thead button").all_inner_texts()]
    return table.locator(f"tbody tr > :nth-child({names.index(column) + 1})").all_inner_texts()


def test_points_sort_by_what_they_are(open_page: Open, reports: dict[str, Page], result: SweepResult) -> None:
    opened = open_page(reports["sweep"])
    caption = "Points that hold all constraints, best first by latency"
    table = result.to_pandas()
    feasible = table[table["excluded"] == ""]
    first = [str(point) for point in feasible.sort_values("latency_us", kind="stable")["point"]]

    assert cells(opened, caption, "point") == first
    button = opened.page.get_by_role("table", name=caption).get_by_role("button", name="sram")
    button.click()
    assert cells(opened, caption, "sram") == [scaled_text("capacity", size) for size in sorted(feasible["sram_bytes"])]
    button.click()
    button.click()
    assert cells(opened, caption, "point") == first


def test_a_point_of_the_chart_tells_its_design(open_page: Open, reports: dict[str, Page], result: SweepResult) -> None:
    page = open_page(reports["sweep"]).page
    chart = page.locator(".plot svg").nth(0)
    chart.scroll_into_view_if_needed()
    front = result.pareto().sort_values("area_mm2", kind="stable")
    places = (page.locator(".front").nth(0).get_attribute("d") or "").removeprefix("M").split("M")
    x, y = places[0].removesuffix("h0").split()
    box = chart.bounding_box()
    assert box
    page.mouse.move(box["x"] + float(x), box["y"] + float(y))

    tip = page.locator(".tip:visible")
    said = dict(zip(tip.locator("dt").all_inner_texts(), tip.locator("dd").all_inner_texts(), strict=True))
    assert len(places) == len(front)
    assert said["point"] == str(front["point"].iloc[0])
    assert said["num_cores"] == str(front["num_cores"].iloc[0])
    assert said["sram"] == scaled_text("capacity", front["sram_bytes"].iloc[0])


def test_gemms_of_a_model_sort_by_their_time(open_page: Open, reports: dict[str, Page]) -> None:
    opened = open_page(reports["model"])
    caption = "GEMMs of decode, in the order they run"
    before = cells(opened, caption, "GEMM")
    opened.page.get_by_role("table", name=caption).get_by_role("button", name="share").click()

    shares = [float(text) for text in cells(opened, caption, "share")]
    assert shares == sorted(shares)
    assert sorted(cells(opened, caption, "GEMM")) == sorted(before)
