"""Cards of code that was scored before, in the user's cache folder: one JSON file for each code.

A file is named after a digest of the code and of the modules that count, and begins with a checksum. Processes may
share the folder: a file appears whole or not at all, and one that is damaged, or holds no cards, is written anew.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from gemm_eval.autotune.asm.card import ScoreCard
from gemm_eval.device import control_flow, sass
from gemm_eval.storage import cache_dir, read_checked, write_checked

__all__ = ["load_cards", "save_cards"]

Cards = tuple[ScoreCard, ...]


@cache
def _counting_version() -> bytes:
    """A digest of the modules that count."""
    digest = hashlib.sha256()
    for path in (*sorted(Path(__file__).parent.glob("*.py")), Path(sass.__file__), Path(control_flow.__file__)):
        digest.update(path.read_bytes())
    return digest.digest()


def _path_of(code: bytes) -> Path | None:
    root = cache_dir()
    if root is None:
        return None
    return root / "asm" / f"{hashlib.sha256(_counting_version() + code).hexdigest()}.json"


def load_cards(code: bytes) -> Cards | None:
    """Return the cards of all kernels of a file, or None: it was not scored before, or the cache is turned off."""
    path = _path_of(code)
    content = None if path is None else read_checked(path)
    if content is None:
        return None
    try:
        return _adapter().validate_json(content, strict=True)
    except ValidationError:
        return None


def save_cards(code: bytes, cards: Cards) -> None:
    """Keep the cards of all kernels of a file. A folder that cannot be written only means no cache."""
    path = _path_of(code)
    if path is not None:
        write_checked(path, json.dumps(cards).encode())


@cache
def _adapter() -> TypeAdapter[Cards]:
    """Makes cards of what JSON makes of them, lists, and checks every value's type."""
    return TypeAdapter(Cards)
