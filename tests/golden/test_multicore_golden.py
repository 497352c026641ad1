"""Answers stay what they are, to the bit, on every machine, until somebody changes them on purpose."""

from __future__ import annotations

from tests.golden import changes
from tests.golden.generate import GOLDEN


def test_answers_are_the_golden_ones() -> None:
    text = GOLDEN.text()
    said = changes.changes(GOLDEN, text)
    assert not said, f"{said}\nif on purpose: raise {GOLDEN.version}, make golden"
    assert text == GOLDEN.path.read_text(encoding="utf-8")  # order and repeated answers too
