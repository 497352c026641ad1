"""The corpus of answers: equal answers have one digest, and one that differs is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.corpus.__main__ import main
from tools.corpus.answer import read_answers, write_answers


def test_what_differs_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["memory-bound", "--small"]
    assert main([*asked, "--write", str(tmp_path)]) == 0
    assert main([*asked, "--against", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[1] == lines[2].split()[1], "the same digest again"

    answers = read_answers(tmp_path, "memory-bound")
    question = next(iter(answers))
    write_answers(
        tmp_path, "memory-bound", answers | {question: answers[question].replace('"source": "', '"source": "un')}
    )
    assert main([*asked, "--against", str(tmp_path)]) == 1
    printed = capsys.readouterr().out
    assert question in printed
    assert 'source: "un' in printed
    assert f"1 of {len(answers)} answers differ" in printed


def test_nothing_kept_is_no_equality(tmp_path: Path) -> None:
    assert main(["memory-bound", "--small", "--against", str(tmp_path)]) == 1
