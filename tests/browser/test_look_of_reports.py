"""How reports look: the verdict and the picture are seen first, nothing is cut or too wide, and all words stand out."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gemm_eval.report import Figure, Page, Section
from tests.browser import pages
from tests.browser.conftest import Open
from tests.browser.contrast import LEAST_CONTRAST, contrasts

PAGES: dict[str, Callable[[], Page]] = {
    "sweep": pages.sweep_page, "model": pages.model_page, "compare": pages.compare_page, "gemms": pages.gemms_page,
    "serve": pages.serve_page,
}  # fmt: skip
HEIGHTS = {360: 740, 768: 1024, 1280: 800}

# Elements that hide a part of what they hold, and words outside of the window; what scrolls sideways may be wider.
CUT = Path(__file__).with_name("cut.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def made() -> dict[str, Page]:
    return {}


def page_of(made: dict[str, Page], name: str) -> Page:
    if name not in made:
        made[name] = PAGES[name]()
    return made[name]


@pytest.mark.parametrize("width", HEIGHTS)
@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_cut_or_too_wide(open_page: Open, made: dict[str, Page], name: str, width: int) -> None:
    height = HEIGHTS[width]
    page = open_page(page_of(made, name), viewport={"width": width, "height": height}).page
    page.wait_for_selector(".lead .plot svg")

    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CUT) == []
    verdict = page.locator(".verdict > p").bounding_box()
    picture = page.locator(".lead .plot").bounding_box()
    assert verdict
    assert picture
    assert verdict["y"] + verdict["height"] <= height
    if width == 1280:
        whole = page.locator(".lead").bounding_box()
        assert whole
        assert whole["y"] + whole["height"] <= height
        assert picture["height"] >= 250
        assert page.locator(".verdict dt").all_inner_texts()[-2:] == ["Times rest on", "Keep in mind"]
    assert page.evaluate("[...document.querySelectorAll('pre')].every((one) => one.scrollWidth <= one.clientWidth)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_all_words_of_a_report_stand_out(open_page: Open, made: dict[str, Page], name: str, scheme: str) -> None:
    page = open_page(page_of(made, name), color_scheme=scheme).page
    page.wait_for_selector(".lead .plot svg")
    found = contrasts(page)

    assert sum("-text_" in word.text for word in found) > 10 or name == "serve"  # which has no figure of matplotlib
    assert [word for word in found if word.ratio < LEAST_CONTRAST] == []


def test_a_wide_drawing_keeps_its_size_and_fits_the_page_when_asked(open_page: Open, made: dict[str, Page]) -> None:
    page = open_page(page_of(made, "model"), viewport={"width": 390, "height": 844}).page
    drawing = page.locator(".drawing").first
    wide = float(drawing.locator("svg").get_attribute("width") or 0)

    def width() -> float:
        box = drawing.locator("svg").bounding_box()
        assert box
        return box["width"]

    assert width() == pytest.approx(wide, abs=1.0)
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    drawing.get_by_role("button", name="Fit to the page").click()
    assert width() < 390
    drawing.get_by_role("button", name="Enlarge").click()
    assert width() == pytest.approx(wide, abs=1.0)


@pytest.mark.parametrize("name", ["breakdown_gpu", "mapping_multicore", "latency_over_m", "heat_map"])
@pytest.mark.usefixtures("made")
def test_words_of_plots_can_be_read_on_a_phone(open_page: Open, name: str) -> None:
    from matplotlib.text import Text

    figure = pages.PLOTS[name]()
    smallest_px = min(text.get_fontsize() for text in figure.findobj(Text) if text.get_text()) * 4 / 3
    page = open_page(
        Page(name, sections=[Section("Plot", [Figure(figure)])]), viewport={"width": 390, "height": 844}
    ).page
    scale = page.locator(".drawing svg").evaluate("e => e.getBoundingClientRect().width / e.getAttribute('width')")
    assert smallest_px * scale >= 9


def test_a_front_is_a_staircase(open_page: Open, made: dict[str, Page]) -> None:
    page = open_page(page_of(made, "sweep")).page
    line = page.locator(".lead .line").get_attribute("d") or ""
    places = [tuple(map(float, one.removesuffix("h0").split())) for one in
              (page.locator(".lead .front").get_attribute("d") or "").removeprefix("M").split("M")]  # fmt: skip

    (x, y), *rest = places
    assert line == f"M{x:.1f} {y:.1f}" + "".join(f"H{x:.1f}V{y:.1f}" for x, y in rest)
    assert len(places) > 5
    assert page.locator(".lead .chosen").count() == 3
