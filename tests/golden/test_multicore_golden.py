"""Answers stay what they are, to the bit, on every machine, until somebody changes them on purpose."""

from __future__ import annotations

from tests.golden.generate import GOLDEN_FILE, golden_text


def test_answers_are_the_golden_ones() -> None:
    expected = GOLDEN_FILE.read_text(encoding="utf-8").splitlines()
    actual = golden_text().splitlines()
    changed = [f"- {old}\n+ {new}" for old, new in zip(expected, actual, strict=False) if old != new]
    assert not changed, "\n".join(["answers changed; if on purpose: raise MODEL_VERSION, make golden", *changed[:10]])
    assert len(actual) == len(expected)
