"""The site in a browser, opened from its folder: it fits, it can be read in light and dark, and search works."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WIDTHS = (360, 768, 1280)
LEAST_CONTRAST = 4.5
CONTRAST = Path(__file__).with_name("contrast.js").read_text(encoding="utf-8")
TABLES_ARE_WRAPPED = """() => document.querySelector(".md-typeset__scrollwrap")
  || !document.querySelector(".md-content table:not([class])")"""
CODE_FITS = "[...document.querySelectorAll('pre > code')].every(e => e.scrollWidth <= e.clientWidth)"
IN_COLOURS = (
    "index", "quick-start", "models/index", "models/gpu", "reference/architecture-files", "api/gemm_eval", "api/sweep",
    "extend/gpu-term",
)  # fmt: skip


@contextmanager
def quiet_page(browser: Browser, scheme: str) -> Iterator[Page]:
    """A page in which nothing complains, and which asks for files alone; it keeps the scheme that it began with."""
    said: list[str] = []
    context = browser.new_context(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
    found = context.new_page()
    found.set_default_timeout(20_000)
    found.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    found.on("pageerror", lambda error: said.append(f"error: {error}"))
    found.on("request", lambda request: request.url.startswith("file:") or said.append(f"asked for {request.url}"))
    yield found
    context.close()
    assert said == []


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    with quiet_page(browser, "light") as found:
        yield found


def test_pages_fit_at_every_width(site: Path, page: Page) -> None:
    wide = []
    for path in sorted(site.rglob("*.html")):
        name = path.relative_to(site).with_suffix("").as_posix()
        if name not in IN_COLOURS and name.startswith(("source/", "api/", "404")):
            continue  # laid out as those that are looked at
        page.goto(path.as_uri())
        page.wait_for_function(TABLES_ARE_WRAPPED)
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 800})
            excess = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            if excess > 0 or not page.evaluate(CODE_FITS):
                wide.append(f"{name} at {width}: {excess}")
    assert wide == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_stand_out(site: Path, browser: Browser, scheme: str) -> None:
    pale = []
    with quiet_page(browser, scheme) as page:
        for name in IN_COLOURS:
            page.goto((site / f"{name}.html").as_uri())
            assert page.evaluate("document.body.dataset.mdColorScheme") == {"light": "default", "dark": "slate"}[scheme]
            pale += [(name, *found) for found in page.evaluate(CONTRAST, LEAST_CONTRAST)]
    assert pale == []


def test_a_wide_table_scrolls_in_its_place(site: Path, page: Page) -> None:
    page.set_viewport_size({"width": 360, "height": 800})
    page.goto((site / "reference" / "architecture-files.html").as_uri())
    scrolls = "e => [e.scrollWidth > e.clientWidth, getComputedStyle(e).overflowX]"
    assert page.locator(".md-typeset__scrollwrap").first.evaluate(scrolls) == [True, "auto"]


@pytest.mark.parametrize(
    ("words", "page_name"),
    [
        ("cluster_loss", "/reference/coefficients.html"), ("contributing", "/contributing.html"),
        ("tensor parallel", "/api/gemm_eval.html"), ("install extras", "/install.html"), ("license", "/index.html"),
        ("add a GPU", "/extend/gpu.html"),
    ],
)  # fmt: skip
def test_search_finds_without_a_server(site: Path, page: Page, words: str, page_name: str) -> None:
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto((site / "limits.html").as_uri())
    page.click(".md-search__input")
    page.keyboard.insert_text(words[:-1])  # the last letter by its key: the search waits for one
    page.keyboard.type(words[-1])
    page.wait_for_selector(".md-search-result__item")
    links = page.locator(".md-search-result__item a").evaluate_all("links => links.map(link => link.href)")
    assert any(page_name in link for link in links), links
