"""The built site asks no network for anything, its links lead somewhere, and it has all that it should."""

import json
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

from tests.project.site_pages import names_module, pages

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "object": "data", "embed": "src"}
"""Elements that load what an attribute names; `link` does too, for these relations:"""
LOADED_RELATIONS = {
    "stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch", "modulepreload", "manifest",
}  # fmt: skip
ELEMENTS = {
    "a", "abbr", "article", "aside", "b", "base", "body", "br", "button", "circle", "code", "col", "colgroup", "dd",
    "defs", "del", "details", "dialog", "div", "dl", "dt", "em", "fieldset", "figcaption", "figure", "footer",
    "form", "g", "h1", "h2", "h3", "h4", "h5", "h6", "head", "header", "hr", "html", "i", "img", "input", "ins",
    "kbd", "label", "legend", "li", "line", "link", "main", "mark", "marker", "meta", "nav", "noscript", "ol",
    "option", "p", "path", "pre", "rect", "s", "script", "section", "select", "small", "span", "strong", "style",
    "sub", "summary", "sup", "svg", "table", "tbody", "td", "text", "tfoot", "th", "thead", "time", "title", "tr",
    "u", "ul", "var",
}  # fmt: skip


class Parsed(HTMLParser):
    """What a page has: elements, anchors, links, what it loads, and its words outside code."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.words: list[str] = []
        self.silent = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = {name: value or "" for name, value in attrs}
        self.elements.add(tag)
        self.anchors |= {named[name] for name in ("id", "name") if name in named}
        if tag == "a" and "href" in named:
            self.links.append(named["href"])
        if tag in LOADED and LOADED[tag] in named:
            self.loads.append(named[LOADED[tag]])
        if tag == "link" and LOADED_RELATIONS & set(named.get("rel", "").split()):
            self.loads.append(named["href"])
        self.silent += tag in ("code", "script", "style", "pre")

    def handle_endtag(self, tag: str) -> None:
        self.silent -= tag in ("code", "script", "style", "pre")

    def handle_data(self, data: str) -> None:
        if not self.silent:
            self.words.append(data)


@cache
def parsed(path: Path) -> Parsed:
    return Parsed(path.read_text(encoding="utf-8"))


def html(site: Path) -> list[Path]:
    found = sorted(site.rglob("*.html"))
    assert len(found) > 60
    return found


def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    for path in html(site):
        loads = parsed(path).loads
        assert loads, path
        assert [url for url in loads if re.match(r"([a-z]+:)?//", url) and not url.startswith("data:")] == [], path
    for path in site.rglob("*.css"):
        assert not re.search(r"url\(\s*[\"']?(https?:)?//|@import", path.read_text(encoding="utf-8")), path


def test_links_lead_to_pages_and_anchors(site: Path) -> None:
    for path in html(site):
        if path.name == "404.html":  # its links are those of the root of a server
            continue
        for link in parsed(path).links:
            if re.match(r"[a-z]+:", link):
                continue
            target, anchor = urldefrag(unquote(link))
            other = (path.parent / target).resolve() if target else path
            other = other / "index.html" if other.is_dir() else other
            assert other.is_file(), f"{path.relative_to(site)}: {link}"
            if anchor and other.suffix == ".html":
                assert anchor in parsed(other).anchors or anchor.startswith("__"), f"{path.relative_to(site)}: {link}"


def test_markdown_became_html(site: Path) -> None:
    for path in html(site):
        page = parsed(path)
        assert page.elements <= ELEMENTS, (path, page.elements - ELEMENTS)
        words = " ".join(page.words)
        assert not re.search(r"\]\([\w./#-]+\)|^:::|(?<!\w)\*\*\w|^```", words, flags=re.MULTILINE), path


@pytest.mark.parametrize("page", pages.API)
def test_every_public_name_is_documented(site: Path, page: str) -> None:
    module = pages.API[page]
    found = parsed(site / page.replace(".md", ".html"))
    for name in pages.public_names(module):
        if name == "__version__":
            continue
        of_facade = f"#gemm_eval.{name}"
        assert f"{module}.{name}" in found.anchors or any(link.endswith(of_facade) for link in found.links), name


@pytest.mark.parametrize("page", pages.API)
def test_each_name_has_an_entry_of_its_own(site: Path, page: str) -> None:
    """Docstrings may describe several: ``read_bytes, write_bytes: of the kernel``."""
    text = (site / page).with_suffix(".html").read_text(encoding="utf-8")
    names = re.findall(r"<b><code>(?:<span[^>]*>)?([^<]+)", text)
    assert not [name for name in names if not name.strip("* ").isidentifier()]


def test_names_with_one_description_are_taken_apart() -> None:
    pytest.importorskip("griffe", reason="taking docstrings apart needs griffe: make docs")
    text = "Do.\n\na, b: none.\n\nArgs:\n    m, n: sizes,\n        in rows.\n    k: one.\n\nx, y: none."
    apart = "    m: sizes,\n        in rows.\n    n: sizes,\n        in rows.\n    k: one."
    assert names_module().one_name_each(text) == text.replace("    m, n: sizes,\n        in rows.\n    k: one.", apart)


def test_every_page_can_be_found(site: Path) -> None:
    index = json.loads((site / "search" / "search_index.json").read_text(encoding="utf-8"))
    places = {entry["location"].split("#")[0] for entry in index["docs"]}
    for path in html(site):
        name = path.relative_to(site).as_posix()
        assert name in places or name == "404.html" or (name == "index.html" and "" in places), name
    assert (site / "search" / "search_index.js").read_text(encoding="utf-8").startswith("var __index = ")
