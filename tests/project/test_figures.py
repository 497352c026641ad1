"""Figures of the documentation are those of the documents that commands printed."""

import re

import jinja2
import pytest

from tests.project.site_pages import pages
from tests.project.test_docs import own_pages
from tools.figures.documents import BENCH, COMMANDS, DENSE, FOLDER, ROOT
from tools.figures.tables import PAGE, README, README_ROWS, environment, render, times

PROSE = sorted(
    {*(f"docs/{page}" for page in own_pages()), *pages.BESIDE_CODE.values()} - {"docs/figures.md", "CHANGELOG.md"}
)
"""Pages that link to the page of all figures, and have no errors of the model themselves."""
ERROR = re.compile(r"\d% (?:off|in the mean|too (?:fast|slow))")


def test_the_page_is_what_its_documents_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "python -m tools.figures renders it"


@pytest.mark.parametrize("row", render(README_ROWS).splitlines())
def test_rows_of_readme_are_what_documents_say(row: str) -> None:
    assert row in README.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("page", PROSE)
def test_prose_has_no_errors_of_the_model(page: str) -> None:
    text = " ".join((ROOT / page).read_text(encoding="utf-8").split())
    assert not [text[max(0, found.start() - 40) : found.end()] for found in ERROR.finditer(text)]


def test_what_is_not_in_a_document_is_an_error() -> None:
    with pytest.raises(jinja2.UndefinedError):
        environment().from_string("{{ held_out('attention')[0].errors.nobody.mape_frac|pct }}").render()


def test_every_document_has_a_command() -> None:
    assert {path.stem for path in FOLDER.glob("*.json")} == {*COMMANDS, BENCH, DENSE}


def test_times_that_belong_together() -> None:
    assert times(31.2, 34.4) == "31 / 34 us"
    assert times(20_100, 740_000, 14.2e6) == "20 ms / 740 ms / 14 s"
    assert times(0.4321) == "0.43 us"
