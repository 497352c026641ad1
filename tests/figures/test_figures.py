"""Figures of the documentation are those of the documents that commands printed."""

from __future__ import annotations

import re
from pathlib import Path

import jinja2
import pytest

from tests.figures.documents import COMMANDS, FOLDER, ROOT
from tests.figures.tables import PAGE, environment, other_phrases, quotes, render, times

NUMBER = re.compile(r"(?<![\w.`-])\d[\d,.]*\s?(?:%|us\b|ms\b|MB\b|times\b)")
PAGES = [ROOT / "docs" / "limits.md", *sorted((ROOT / "docs" / "guides").glob("*.md"))]


def test_the_page_is_what_its_documents_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "python -m tests.figures renders it"


@pytest.mark.parametrize(("page", "phrase"), quotes(), ids=lambda value: getattr(value, "stem", None))
def test_quotes_stand_in_their_pages(page: Path, phrase: str) -> None:
    text = " ".join(page.read_text(encoding="utf-8").split())
    assert " ".join(phrase.split()) in text, phrase


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_other_figures_stand_in_pages(page: Path) -> None:
    text = " ".join(re.sub(r"```.*?```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.DOTALL).split())
    for phrase in [*(of for where, of in quotes() if where == page), *other_phrases(page)]:
        text = text.replace(" ".join(phrase.split()), "")
    assert not NUMBER.findall(text), "quote a document (docs/figures/quotes.yaml)"


def test_what_is_not_in_a_document_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError):
        environment().from_string("{{ held_out('attention')[0].errors.nobody.mape_frac|pct }}").render()


def test_every_document_has_a_command() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} <= {*COMMANDS, "bench"}


def test_times_that_belong_together() -> None:
    assert times(31.2, 34.4) == "31 / 34 us"
    assert times(20_100, 740_000, 14.2e6) == "20 ms / 740 ms / 14 s"
    assert times(0.4321) == "0.43 us"
