"""Lists of modules in `quantization_config`: which names a pattern of one of its writers means."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from typing import NoReturn

from gemm_eval.transformer.json import Keys
from gemm_eval.words import shown

__all__ = ["NameRules"]

_REGEX = "re:"
_MAX_RULES = 1 << 14
_MAX_REGEXES = 64
_MAX_CHARS = 300
_MAX_QUANTIFIERS = 4  # a name has up to 70 letters: more could take minutes to match
_OTHER_EXPERT = re.compile(r"experts\.(?!0(?:\.|$))\d+(?=\.|$)")
_OTHER_MODELS = ("vision", "visual", "multi_modal_projector", "mm_projector", "audio")


class NameRules:
    """Modules by name: whole names, parts of names between dots (with ``*``), and regular expressions (``re:``).

    A pattern that is no regular expression means a module if its parts, as dots cut it, are parts of the module's
    name one after the other: ``"lm_head"``, ``"self_attn"``, ``"model.layers.0"``, ``"model.layers.*.mlp.gate"``.
    """

    def __init__(self, patterns: Iterable[str], keys: Keys, key: str) -> None:
        """Read `patterns`; `keys` and `key` say where they stand.

        Raises:
            ModelConfigError: too many patterns, or one that is no regular expression or could take long to match.
        """
        self._whole: set[str] = set()
        self._within: list[str] = []
        self._globs: list[re.Pattern[str]] = []
        self._regexes: list[re.Pattern[str]] = []
        found = [pattern for pattern in dict.fromkeys(patterns) if not _is_elsewhere(pattern)]
        if len(found) > _MAX_RULES or any(len(pattern) > _MAX_CHARS for pattern in found):
            keys.refuse(key, f"must have at most {_MAX_RULES} patterns, of {_MAX_CHARS} letters each")
        every = set(found)
        for pattern in found:
            first = _OTHER_EXPERT.sub("experts.0", pattern)
            if first not in every:
                keys.refuse(key, f"must treat the experts of a layer alike, but names {shown(pattern)} alone")
            if first == pattern:
                self._add(pattern, keys, key)
        if len(self._regexes) + len(self._globs) > _MAX_REGEXES:
            keys.refuse(key, f"must have at most {_MAX_REGEXES} patterns that are no plain names")

    def _add(self, pattern: str, keys: Keys, key: str) -> None:
        if pattern.startswith(_REGEX):
            self._regexes.append(_compiled(pattern.removeprefix(_REGEX), keys, key))
        elif any(letter in pattern for letter in "*?["):
            if pattern.count("*") > _MAX_QUANTIFIERS:
                _refuse_slow(keys, key)
            self._globs.append(re.compile(rf"(?:.*\.)?{fnmatch.translate(pattern.strip('.'))[:-2]}(?:\..*)?"))
        elif pattern.startswith(("model.", "language_model.")):
            self._whole.add(pattern.strip("."))
        else:
            self._within.append(f".{pattern.strip('.')}.")

    def matches(self, name: str) -> bool:
        """Whether a module is meant."""
        parts = name.split(".")
        if any(".".join(parts[:num]) in self._whole for num in range(1, len(parts) + 1)):
            return True
        dotted = f".{name}."
        return (
            any(part in dotted for part in self._within)
            or any(glob.fullmatch(name) for glob in self._globs)
            or any(regex.match(name) for regex in self._regexes)
        )


def _is_elsewhere(pattern: str) -> bool:
    """Whether a name is of an encoder of images or sound, of which some lists have hundreds."""
    return pattern.removeprefix("model.").startswith(_OTHER_MODELS)


def _compiled(pattern: str, keys: Keys, key: str) -> re.Pattern[str]:
    if len(re.findall(r"[*+{]", pattern)) > _MAX_QUANTIFIERS or re.search(r"\)\s*[*+{]", pattern):
        _refuse_slow(keys, key)
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError):
        keys.refuse(key, "has a pattern that is no regular expression")


def _refuse_slow(keys: Keys, key: str) -> NoReturn:
    keys.refuse(key, f"has a pattern with more than {_MAX_QUANTIFIERS} repetitions, or with repeated groups")
