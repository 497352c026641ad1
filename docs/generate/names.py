"""An extension of griffe: entries of docstrings that describe several names become an entry for each."""

from __future__ import annotations

import re
from typing import Any

import griffe

__all__ = ["OneName", "one_name_each"]

_SECTION = re.compile(r"^(?P<indent> *)(?:Args|Attributes|Returns|Yields|Raises):$")
_ENTRY = re.compile(r"^(?P<indent> *)(?P<names>\w+(?:, \w+)+):(?P<text>| .*)$")


class OneName(griffe.Extension):
    """Changes every docstring that is read."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Split its entries."""
        if obj.docstring is not None:
            obj.docstring.value = one_name_each(obj.docstring.value)


def one_name_each(text: str) -> str:
    """Return a docstring in which ``a, b: words`` in a section are ``a: words`` and ``b: words``."""
    lines: list[str] = []
    waiting: list[list[str]] = []  # entries of the names that are not written yet
    section = None
    for line in text.split("\n"):
        indent = _indent_of(line)
        if waiting and line.strip() and indent > _indent_of(waiting[0][0]):
            for entry in waiting:
                entry.append(line)
            continue
        lines += [part for entry in waiting for part in entry]
        waiting = []
        found = _ENTRY.match(line)
        if section is not None and line.strip() and indent <= section:
            section = None
        if heading := _SECTION.match(line):
            section = len(heading["indent"])
        if found and section is not None:
            waiting = [[f"{found['indent']}{name}:{found['text']}"] for name in found["names"].split(", ")]
        else:
            lines.append(line)
    lines += [part for entry in waiting for part in entry]
    return "\n".join(lines)


def _indent_of(line: str) -> int:
    return len(line) - len(line.lstrip())
