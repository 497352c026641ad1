"""Pages and texts of the package are plain: short sentences, and no phrases of a private language."""

import ast

import pytest

from tools.plain_words import MEAN_WORDS, ROOT, mean_words, pages, sentences, uses_of_banned


def test_no_text_has_a_phrase_of_the_list() -> None:
    assert uses_of_banned() == []


@pytest.mark.parametrize("word", ["As", "For", "How", "In", "Of", "That", "What", "Where", "Whether", "Who", "Whose"])
def test_no_docstring_begins_with_a_clause(word: str) -> None:
    """A first line is an imperative, or names the thing."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "gemm_eval").rglob("*.py")}
    found = {
        f"{path.relative_to(ROOT)}: {text}"
        for path, source in texts.items()
        if f'"""{word} ' in source
        for node in ast.walk(ast.parse(source))
        if isinstance(node, kinds) and (text := ast.get_docstring(node) or "").startswith(f"{word} ")
    }
    assert not found


@pytest.mark.parametrize("page", pages(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_sentences_are_short_in_the_mean(page) -> None:  # type: ignore[no-untyped-def]
    assert mean_words(page.read_text(encoding="utf-8")) <= MEAN_WORDS


def test_sentences_are_found_in_prose_alone() -> None:
    prose = "# A title\n\nOne `x.y` sentence here. Another one,\nover two lines.\n\n"
    text = prose + "```sh\nno prose. At all here\n```\n| a | b c d |\ntime_us = bytes / rate over all\n"
    assert sentences(text) == ["One code sentence here.", "Another one, over two lines."]
