"""Figures of the documentation are those of the documents that commands printed."""

from __future__ import annotations

import re
import shlex

import jinja2
import pytest
import typer

from gemm_eval.cli.app import app
from tests.cli.test_documented_commands import parse
from tests.project.site_pages import pages
from tests.project.test_docs import own_pages
from tools.figures.documents import BENCH, COMMANDS, DENSE, FOLDER, ROOT
from tools.figures.tables import PAGE, TEMPLATE, Phrases, environment, phrases, render, text_of, times

NUMBER = re.compile(r"(?<![\w.`-])\d[\d,.]*\s?(?:%|us\b|ms\b|MB\b|times\b)")
PAGES = sorted({"README.md", *(f"docs/{page}" for page in own_pages()), *pages.BESIDE_CODE.values()})
TYPED = [page for page in PAGES if page not in ("docs/figures.md", "CHANGELOG.md")]
"""Without the page of all figures, which is rendered, and the history, whose figures are of its versions."""
_RENDERED = re.compile(r"\{\{.*?\}\}|\{%.*?%\}")
_FILE = re.compile(r"[\w.-]+(?:/[\w.-]+)+")
_PRINTED = "printed by gemm-eval "
_AROUND = 40  # characters beside a figure, to find it by
_CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)


def test_the_page_is_what_its_documents_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "python -m tools.figures renders it"


@pytest.mark.parametrize("of", phrases(), ids=lambda of: of.page.stem)
def test_phrases_stand_in_their_pages(of: Phrases) -> None:
    text = text_of(of.page)
    assert not [phrase for phrase in (*of.quotes, *of.others) if phrase not in text]


@pytest.mark.parametrize("page", [*TYPED, TEMPLATE.relative_to(ROOT).as_posix()])
def test_no_other_figures_stand_in_pages(page: str) -> None:
    text = text_of(ROOT / page)
    for of in phrases():
        if of.page == ROOT / page:
            for phrase in (*of.quotes, *of.others):
                text = text.replace(phrase, "")
    text = _CODE.sub("", _RENDERED.sub("", text))
    found = [text[max(0, number.start() - _AROUND) : number.end() + _AROUND] for number in NUMBER.finditer(text)]
    assert not found, "quote a document, or say what holds it (docs/figures/quotes)"


@pytest.mark.parametrize("of", phrases(), ids=lambda of: of.page.stem)
def test_what_holds_a_phrase_is_there(of: Phrases) -> None:
    for by in of.others.values():
        assert by.strip()
        assert all((ROOT / path).exists() for path in _FILE.findall(by)), by
        if by.startswith(_PRINTED):
            parse(typer.main.get_command(app), shlex.split(by.removeprefix(_PRINTED)))


def test_what_is_not_in_a_document_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError):
        environment().from_string("{{ held_out('attention')[0].errors.nobody.mape_frac|pct }}").render()


def test_every_document_has_a_command() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == {*COMMANDS, BENCH, DENSE}


def test_times_that_belong_together() -> None:
    assert times(31.2, 34.4) == "31 / 34 us"
    assert times(20_100, 740_000, 14.2e6) == "20 ms / 740 ms / 14 s"
    assert times(0.4321) == "0.43 us"
