"""Pages and texts of the package are plain: short sentences, and no phrases of a private language."""

from __future__ import annotations

import pytest

from tools.plain_words import MEAN_WORDS, ROOT, mean_words, pages, sentences, uses_of_banned


def test_no_text_has_a_phrase_of_the_list() -> None:
    assert uses_of_banned() == []


@pytest.mark.parametrize("page", pages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_sentences_are_short_in_the_mean(page) -> None:  # type: ignore[no-untyped-def]
    assert mean_words(page.read_text(encoding="utf-8")) <= MEAN_WORDS


def test_sentences_are_found_in_prose_alone() -> None:
    prose = "# A title\n\nOne `x.y` sentence here. Another one,\nover two lines.\n\n"
    text = prose + "```sh\nno prose. At all here\n```\n| a | b c d |\ntime_us = bytes / rate over all\n"
    assert sentences(text) == ["One code sentence here.", "Another one, over two lines."]
