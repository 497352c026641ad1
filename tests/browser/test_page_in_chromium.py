"""Report pages in a browser: sorting, filter, tooltips, small screens, dark mode, and no word to the network."""

import math
from typing import Any

import pytest
from matplotlib.figure import Figure as MatplotlibFigure

from gemm_eval.report.page import Page, Section
from gemm_eval.report.parts import Chart, Column, Facts, Figure, Table, Text
from tests.browser.conftest import Open, OpenPage
from tests.browser.contrast import LEAST_CONTRAST, contrasts, luminance

COLUMNS = [Column("design <b>", kind="text"), Column("area", "mm2"), Column("latency", "us")]
ROWS: list[tuple[Any, ...]] = [
    ("d10", 9.5, 1_000.0), ("d9", 10_000, 30.0), ("d2", None, 200.0), ("D1", 1_200, 4.0), ("d30", math.inf, 5_000.0),
    ("d4", 1_200, 77.0),
]  # fmt: skip
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "device_scale_factor": 2}


def until(opened: OpenPage, condition: str) -> None:
    """Wait for a condition; playwright's own way evaluates words within the page, which the page's policy forbids."""
    for _ in range(400):
        if opened.page.evaluate(condition):
            return
        opened.page.wait_for_timeout(50)
    raise AssertionError(f"never: {condition}")


def report(rows: list[tuple[Any, ...]] = ROWS) -> Page:
    figure = MatplotlibFigure(figsize=(6.4, 4.8))
    figure.add_subplot().plot([1, 2], [3, 4])
    chart = Chart(COLUMNS, rows, "area", "latency", log_x=True, log_y=True, highlight=[row[0] == "d9" for row in rows])
    filler = [(f"row {n}", n, n * 0.37) for n in range(60)]
    parts = [
        Text("Some words.\nMore words.", title="Words"),
        Facts([("a name", "a value"), ("a-long-name-that-cannot-wrap-" * 2, "x" * 60)]),
        chart,
        Table(COLUMNS, rows, caption="Designs", note="Small print."),
        Table([*COLUMNS, *(Column(f"column {n}", "GB/s") for n in range(12))], [(*f, *range(12)) for f in filler]),
        Figure(figure, caption="A drawing."),
    ]
    return Page("A report with-a-long-name-of-a-design-that-has-hyphens", "and more", [Section("One", parts)] * 2)


def column(opened: OpenPage, number: int, table: int = 0) -> list[str]:
    return opened.page.locator("tbody").nth(table).locator(f"tr:visible > :nth-child({number + 1})").all_inner_texts()


def sorted_by(opened: OpenPage) -> list[str | None]:
    heads = opened.page.locator("table").nth(0).locator("thead th").all()
    return [head.get_attribute("aria-sort") for head in heads]


def test_headers_sort_numbers_by_value_with_missing_ones_last(open_page: Open) -> None:
    opened = open_page(report())
    area = opened.page.get_by_role("button", name="area").nth(0)

    area.click()
    assert column(opened, 1) == ["9.500", "1,200", "1,200", "10,000", "∞", "–"]  # noqa: RUF001
    assert column(opened, 0)[1:3] == ["D1", "d4"]
    assert sorted_by(opened) == ["none", "ascending", "none"]
    area.click()
    assert column(opened, 0) == ["d30", "d9", "D1", "d4", "d10", "d2"]
    assert sorted_by(opened) == ["none", "descending", "none"]
    area.click()
    assert column(opened, 0) == [row[0] for row in ROWS]
    assert sorted_by(opened) == ["none", "none", "none"]


def test_the_keyboard_sorts_and_words_sort_with_their_numbers(open_page: Open) -> None:
    opened = open_page(report())

    opened.page.get_by_role("button", name="design").nth(0).focus()
    opened.page.keyboard.press("Enter")
    assert column(opened, 0) == ["D1", "d2", "d4", "d9", "d10", "d30"]
    opened.page.keyboard.press("Tab")
    opened.page.keyboard.press("Space")
    assert column(opened, 0)[0] == "d10"
    assert sorted_by(opened) == ["none", "ascending", "none"]


def test_the_filter_keeps_rows_that_have_all_words(open_page: Open) -> None:
    opened = open_page(report())
    box = opened.page.get_by_role("searchbox").nth(0)

    def with_words(*words: str) -> list[str]:
        texts = [" ".join([f"row {n}", str(n), COLUMNS[2].format(n * 0.37), *map(str, range(12))]) for n in range(60)]
        return [f"row {n}" for n in range(60) if all(word in texts[n] for word in words)]

    box.fill("ROW 59 21.83")
    assert column(opened, 0, table=1) == with_words("row", "59", "21.83") == ["row 59"]
    assert opened.page.locator("output").nth(0).inner_text() == "1 of 60 rows"
    box.fill("58")
    assert column(opened, 0, table=1) == with_words("58") != ["row 58"]
    box.fill("")
    assert len(column(opened, 0, table=1)) == 60
    assert opened.page.locator("output").nth(0).inner_text() == "60 rows"


def front_place(opened: OpenPage) -> tuple[float, float]:
    """Pixels of the one point that stands out, from the corner of its chart."""
    path = opened.page.locator(".front").nth(0).get_attribute("d") or ""
    x, y = path.removeprefix("M").removesuffix("h0").split()
    return float(x), float(y)


def tip(opened: OpenPage) -> dict[str, str]:
    shown = opened.page.locator(".tip:visible")
    if not shown.count():
        return {}
    return dict(zip(shown.locator("dt").all_inner_texts(), shown.locator("dd").all_inner_texts(), strict=True))


D9 = {"design <b>": "d9", "area": "10,000 mm2", "latency": "30.00 us"}


def test_hover_shows_all_columns_of_the_point(open_page: Open) -> None:
    opened = open_page(report())
    chart = opened.page.locator(".plot svg").nth(0)
    x, y = front_place(opened)

    chart.hover(position={"x": x + 3, "y": y - 3})
    assert tip(opened) == D9
    opened.page.locator("h1").hover()
    assert tip(opened) == {}


def test_arrow_keys_go_from_point_to_point(open_page: Open) -> None:
    opened = open_page(report())
    words = opened.page.locator(".plot svg").nth(0)
    words.scroll_into_view_if_needed()
    opened.page.keyboard.press("Tab")  # the first link; the chart of the first section follows
    while not words.evaluate("element => element === document.activeElement"):
        opened.page.keyboard.press("Tab")

    assert tip(opened) == D9  # the first that stands out
    seen = []
    for key in ("Home", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowRight", "ArrowLeft", "ArrowUp"):
        opened.page.keyboard.press(key)
        seen.append(tip(opened)["design <b>"])
    assert seen == ["d10", "D1", "d4", "d9", "d9", "d4", "d9"]
    opened.page.keyboard.press("Escape")
    assert tip(opened) == {}
    opened.page.keyboard.press("End")
    opened.page.keyboard.press("Tab")
    assert tip(opened) == {}


def test_a_tap_shows_the_point(open_page: Open) -> None:
    opened = open_page(report(), **PHONE)
    x, y = front_place(opened)

    opened.page.locator(".plot svg").nth(0).tap(position={"x": x - 10, "y": y + 10})
    assert tip(opened) == D9
    box = opened.page.locator(".tip").nth(0).bounding_box()
    assert box
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 360


def test_a_phone_scrolls_up_and_down_only_and_can_be_read(open_page: Open) -> None:
    opened = open_page(report(), **PHONE)

    assert opened.page.evaluate("document.documentElement.scrollWidth") == 360
    assert opened.page.evaluate(SMALLEST_PX) >= 14
    for button in opened.page.locator("thead button, input").all():
        box = button.bounding_box()
        assert box
        assert box["height"] >= 40
    chart = opened.page.locator(".plot svg").nth(0).bounding_box()
    assert chart
    assert chart["width"] <= 328
    opened.page.set_viewport_size({"width": 740, "height": 360})
    until(opened, "document.querySelector('.plot svg').viewBox.baseVal.width > 600")
    assert opened.page.evaluate("document.documentElement.scrollWidth") == 740


SMALLEST_PX = """() => Math.min(...[...document.body.querySelectorAll("*")]
  .filter((element) => !element.closest(".drawing svg, script, noscript"))
  .filter((element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim()))
  .map((element) => parseFloat(getComputedStyle(element).fontSize)))"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_words_stand_out_from_what_is_behind_them(open_page: Open, scheme: str) -> None:
    opened = open_page(report(), color_scheme=scheme)
    opened.page.get_by_role("searchbox").nth(0).fill("area <")
    x, y = front_place(opened)
    opened.page.locator(".plot svg").nth(0).hover(position={"x": x, "y": y})
    found = contrasts(opened.page)

    assert len(found) > 100
    assert [word for word in found if word.ratio < LEAST_CONTRAST] == []
    assert {word.text for word in found} >= {"a value is missing after <", "Pareto front"}
    assert luminance(found[0].behind) == pytest.approx(1.0 if scheme == "light" else 0.0, abs=0.02)


def test_a_script_in_a_name_does_not_run(open_page: Open) -> None:
    name = "</script><script>document.title = 'run'</script><img src=x onerror=\"document.title = 'run'\">"
    opened = open_page(report([(name, 1, 2.0), (name, 3, 4.0)]))

    opened.page.locator(".plot svg").nth(0).focus()
    opened.page.keyboard.press("Home")
    assert tip(opened)["design <b>"] == name
    assert column(opened, 0) == [name, name]
    assert opened.page.title() != "run"


def test_large_pages_open(open_page: Open) -> None:
    rows = [(f"d{n}", 1 + n * 7919 % 20_011, 1e6 / (n + 1)) for n in range(20_000)]
    chart = Chart(
        COLUMNS, rows, "area", "latency", log_x=True, log_y=True, highlight=[n % 500 == 0 for n in range(20_000)]
    )
    opened = open_page(Page("large", sections=[Section("all", [chart, Table(COLUMNS, rows)])]))
    opened.page.get_by_role("button", name="area").click()

    assert column(opened, 1)[:3] == [f"{area:,}" for area in sorted(row[1] for row in rows[:2000])[:3]]
