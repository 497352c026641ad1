"""Report pages: what stands in the file, how numbers are written, what is refused, and how files are replaced."""

import base64
import hashlib
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure as MatplotlibFigure

from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.report.page import Page, Section
from gemm_eval.report.parts import (
    Bar,
    Bars,
    Chart,
    Column,
    Facts,
    Figure,
    Panel,
    Part,
    Table,
    Text,
    Verdict,
    scaled_text,
)
from gemm_eval.words import visible

HOSTILE = "</script><script>alert(1)</script> \"q\" 'a' & é 矩阵 \u2028"
VOID = {"meta", "link", "input", "br", "path", "use", "circle", "rect"}
NAME, X, Y = Column("name", kind="text"), Column("area", "mm2"), Column("latency", "us")


class Document(HTMLParser):
    """What a test asks of a page: elements with attributes, and the text of each kind of element."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID or not self.get_starttag_text().endswith(">"):  # type: ignore[union-attr]
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if self._open and self._open[-1] == tag:
            self._open.pop()
        else:
            assert tag in VOID, f"</{tag}> closes nothing; open: {self._open}"

    def handle_data(self, data: str) -> None:
        if self._open:
            self.texts.append((self._open[-1], data))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def text(self, tag: str) -> list[str]:
        return [data.strip() for name, data in self.texts if name == tag and data.strip()]


def html(*parts: Part) -> str:
    return Page("a page", "its subtitle", [Section("one", parts), Section("two", [Text("words")])]).to_html()


def document(*parts: Part) -> Document:
    return Document(html(*parts))


def points(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="[^"]*">(.*?)</script>', page, flags=re.DOTALL)
    assert found
    return json.loads(found[1])


def drawing() -> MatplotlibFigure:
    figure = MatplotlibFigure(figsize=(3, 2))
    axes = figure.add_subplot()
    axes.plot([1, 2], [3, 4], label="line")
    axes.fill_between([1, 2], [1, 1], hatch="/")
    axes.imshow(np.eye(3))
    axes.legend()
    return figure


def full_page(name: str = "plain") -> str:
    rows = [(name, 1.0, 2.0), (name, 2.0, math.nan), (name, None, 1.0)]
    columns = [Column(name, name, kind="text"), X, Y]
    parts: list[Part] = [
        Text(f"{name}\nline\n\nparagraph", title=name),
        Facts([(name, name)]),
        Verdict(name, [(name, name)]),
        Table(columns, rows, caption=name, note=name),
        Figure(drawing(), caption=name),
        Figure(drawing(), caption=name),
        Chart(columns, rows, "area", "latency", highlight=[True, False, False], highlight_label=name, label=name,
              caption=name),
        Bars([Panel(name, [Bar(name, [(name, 1.0)], name, note=name)])], {name: "#000001"}, caption=name),
    ]  # fmt: skip
    return Page(name, name, [Section(name, parts), Section(name, parts)], parts[:1]).to_html()


def test_headings_are_in_order_and_the_contents_link_to_them() -> None:
    page = document(Text("words", title="below"))

    headings = [tag for tag, _ in page.elements if re.fullmatch(r"h\d", tag)]
    assert headings == ["h1", "h2", "h3", "h2"]
    assert page.text("h2") == page.text("a") == ["one", "two"]
    assert [a["href"] for a in page.all("a")] == [f"#{h['id']}" for h in page.all("h2")]
    assert page.all("html") == [{"lang": "en"}]
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.all("meta")
    assert page.text("title") == ["a page"]
    code = Page("a page", "", [Section("one", [Text("see `command a < b` and ` alone")])]).to_html()
    assert "<p>see <code>command a &lt; b</code> and ` alone</p>" in code


def test_the_policy_allows_exactly_the_style_and_script_of_the_page_and_nothing_is_loaded() -> None:
    page = full_page()
    policy = next(m["content"] for m in Document(page).all("meta") if "http-equiv" in m) or ""
    codes = re.findall(r"<(style|script)>(.*?)</\1>", page, flags=re.DOTALL)

    assert page == full_page()
    assert page.startswith("<!DOCTYPE html>")
    assert [kind for kind, _ in codes] == ["style", "script"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    for kind, code in codes:
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        assert rules.pop(f"{kind}-src") == f"'sha256-{digest}'"
    assert rules == {"default-src": "'none'", "img-src": "data:", "base-uri": "'none'", "form-action": "'none'"}
    assert not [key for _, attributes in Document(page).elements for key in attributes if key == "style"]
    assert set(re.findall(r"\w+://[^\s\"'<>)]*", page)) == {"http://www.w3.org/2000/svg"}
    loading = [a.get("src") or a.get("href") for _, a in Document(page).elements if "src" in a or "href" in a]
    assert all(str(target).startswith(("#", "data:")) for target in loading)


def test_hostile_names_are_text_wherever_they_stand() -> None:
    page = full_page(HOSTILE)

    scripts = [script.get("type") for script in Document(page).all("script")]
    assert scripts == ["application/json"] * 4 + [None]
    assert "<script>alert" not in page
    shown = visible(HOSTILE)
    assert shown.strip() in Document(page).text("h1")[0]
    assert points(page)["columns"][0] == {"name": shown, "unit": shown, "texts": [shown]}
    assert points(page)["labels"] == [shown, shown]


def test_ids_are_unique_and_all_links_inside_figures_are_to_ids_of_the_page() -> None:
    page = full_page()
    ids = [a["id"] for _, a in Document(page).elements if "id" in a]
    used = set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"|aria-labelledby="([^"]+)"|data-points="([^"]+)"', page))

    assert len(set(ids)) == len(ids)
    assert {next(filter(None, groups)) for groups in used} <= set(ids)


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (None, 4, ""), (math.nan, 4, ""), (np.float64("nan"), 4, ""), (0, 4, "0"), (0.0, 3, "0.00"),
        (7, 4, "7"), (np.int64(1234567), 2, "1,234,567"), (2**60, 4, "1,152,921,504,606,846,976"),
        (134.357, 4, "134.4"), (4.0329, 4, "4.033"), (43561.9, 4, "43,562"), (9.9996, 4, "10.00"), (0.05, 3, "0.0500"),
        (-20.25, 4, "-20.25"), (1234.5, 1, "1,234"), (1.5e-7, 3, "1.50e-07"), (3.2e17, 2, "3.2e+17"),
        (math.inf, 4, "∞"), (-math.inf, 4, "-∞"), (np.float32(0.5), 2, "0.50"), (True, 4, "1"),
    ],
)  # fmt: skip
def test_numbers(value: Any, digits: int, text: str) -> None:
    assert Column("c", digits=digits).format(value) == text
    assert Column("c", kind="text").format(1234.5) == "1234.5"
    assert Column("c", kind="text").format(None) == ""


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("bytes", 101_580_800, "102 MB"), ("bytes", 999.6e6, "1.00 GB"), ("bytes", 12, "12.0 B"), ("bytes", 0, "0 B"),
        ("capacity", 262_144, "256 KiB"), ("capacity", 1.5 * 2**20, "1.5 MiB"), ("capacity", 100, "100 B"),
        ("capacity", math.inf, "inf B"), ("energy", 3.2e9, "3.20 mJ"), ("energy", 0.5, "0.500 pJ"),
        ("flop", 1.1073e9, "1.11 GFLOP"), ("time", 12.0, "12.0 us"),
    ],
)  # fmt: skip
def test_units_suit_the_size(kind: str, value: float, text: str) -> None:
    assert scaled_text(kind, value) == text


@pytest.mark.parametrize(
    ("column", "heading", "unit"),
    [
        (Column("latency_us", kind="time"), "latency", "us"), (Column("latency", kind="time"), "latency", "us"),
        (Column("sram_bytes", kind="capacity"), "sram", "B"), (Column("dram_gb_per_s"), "dram_gb_per_s", "GB/s"),
        (Column("area_mm2"), "area_mm2", "mm2"), (Column("tflop_per_s_per_w"), "tflop_per_s_per_w", ""),
        (Column("energy_delay_pj_us"), "energy_delay_pj_us", ""), (Column("share", "%"), "share", "%"),
        (Column("power_w", kind="text"), "power_w", ""),
    ],
)  # fmt: skip
def test_names_tell_their_units(column: Column, heading: str, unit: str) -> None:
    assert (column.heading, column.base_unit) == (heading, unit)


def test_long_tables_are_cut_and_say_so_and_have_a_filter() -> None:
    page = document(Table([X], [(n,) for n in range(30)], max_rows=25, note="Small print."))

    assert len([th for th in page.all("th") if th["scope"] == "row"]) == 25
    assert "The first 25 of 30 rows. Small print." in page.text("p")
    assert len(page.all("input")) == 1
    assert document(Table([X], [(1,)])).all("input") == []


def chart(rows: list[tuple[Any, ...]], **options: Any) -> Chart:
    return Chart([NAME, X, Y], rows, **{"x": "area", "y": "latency", **options})


def test_points_without_a_place_are_left_out_and_counted() -> None:
    rows = [("a", 1, 1), ("b", 0, 1), ("c", -1, 1), ("d", None, 1), ("e", 1, math.inf)]
    page = document(chart(rows, log_x=True, caption="Areas."))

    assert page.text("figcaption") == ["Areas. 4 of 5 points have no place on these axes."]
    assert points(html(chart(rows, log_x=True)))["columns"][0]["texts"] == ["a"]
    assert points(html(chart(rows)))["columns"][0]["texts"] == ["a", "b", "c"]


def test_many_points_are_thinned_out_but_for_those_that_stand_out() -> None:
    rows = [(f"p{n}", n, n) for n in range(1000)]
    page = html(chart(rows, max_points=100, highlight=[n % 7 == 0 for n in range(1000)]))
    data = points(page)

    shown = [int(text.removeprefix("p")) for text in data["columns"][0]["texts"]]
    assert [shown[index] for index in data["highlight"]] == list(range(0, 1000, 7))
    assert 80 <= len(shown) - len(data["highlight"]) <= 100
    assert f"{len(shown)} of 1,000 points are drawn; none that stands out is left out." in page


def test_large_pages_stay_small() -> None:
    """About 100 bytes a point and 20 a cell: a page of both opens at once."""
    rows = [(f"design-{n}", n * 1.1, 1e6 / (n + 1)) for n in range(20_000)]

    assert len(html(Table([NAME, X, Y], rows), chart(rows))) < 2_500_000


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: html(Table([X], [["big"]])), r"column 'area' holds numbers, got 'big'"),
        (lambda: Table([], [("a",)]), "columns must not be empty"),
        (lambda: Table([NAME, X], [("a",)]), "rows must have 2 cells each, got 1 in row 0"),
        (lambda: chart([], x="name"), r"x must name a column of numbers \(area, latency\), got 'name'"),
        (lambda: chart([], y="speed"), r"y must name a column of numbers \(area, latency\), got 'speed'"),
    ],
)
def test_what_is_refused(make: Any, message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        make()


def test_files_are_replaced_whole_or_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.html"
    path.write_text("old", encoding="utf-8")
    with pytest.raises(InvalidOptionError):
        Page("new", sections=[Section("s", [Table([X], [["big"]])])]).write(path)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk is gone")))
        with pytest.raises(GemmEvalError, match="disk is gone"):
            Page("new").write(path)
    assert path.read_text(encoding="utf-8") == "old"
    page = Page("new é")
    assert page.write(str(path)) == path
    assert path.read_bytes() == page.to_html().encode()
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(GemmEvalError, match="is not a file"):
        Page("new").write(tmp_path)
