"""The file of best configs as a file: JSON that a person can read, replaced as a whole, by one process at a time.

The file is read where there is no GPU, and none of the library's extras is installed.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gemm_eval import storage
from gemm_eval.errors import GemmEvalError, InvalidInputError
from gemm_eval.kernels.configs.record import ConfigRecord
from gemm_eval.storage import FileLock, read_bounded
from gemm_eval.words import one_line, shown

__all__ = ["Content", "lock", "read_content", "set_aside", "to_text"]

_FORMAT = "gemm-eval w4a16 configs"
_VERSION = 1
_LOCK_TIMEOUT_S = 30.0
_NUM_KEPT_ASIDE = 3
_MAX_FILE_BYTES = 1 << 23  # some 20,000 GEMMs
_MAX_RECORDS = 100_000
_MAX_TOLD_CHARS = 300


class Content(NamedTuple):
    """What a file holds: its readable records, and what is wrong with it, if something is."""

    records: tuple[ConfigRecord, ...]
    damage: str | None


def to_text(records: Sequence[ConfigRecord]) -> str:
    """A JSON document with a line for each record, in ASCII.

    Raises:
        GemmEvalError: it would be larger than what `read_content` reads.
    """
    head = f'{{\n"format": {json.dumps(_FORMAT)},\n"version": {_VERSION},\n"records": ['
    text = head + ",".join(f"\n{record.to_line()}" for record in records) + "\n]\n}\n"
    if len(text) > _MAX_FILE_BYTES:
        raise GemmEvalError(
            f"{len(records):,} configs take {len(text):,} bytes, and a file may have {_MAX_FILE_BYTES:,} at most: "
            "keep fewer GEMMs in one file"
        )
    return text


def read_content(path: Path) -> Content | None:
    """Read a file; None: there is none.

    Raises:
        GemmEvalError: it cannot be read, is larger than 8 MiB, or a newer version of this library wrote it.
    """
    try:
        raw = read_bounded(
            path, _MAX_FILE_BYTES, "file of configs", unreadable=GemmEvalError, too_large=GemmEvalError
        )  # fmt: skip
    except GemmEvalError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
    try:
        document = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=_unique, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        return Content((), f"it is no JSON document ({one_line(str(error))})")
    if not isinstance(document, dict) or document.get("format") != _FORMAT or type(document.get("version")) is not int:
        return Content((), f'it has no "format": "{_FORMAT}" and "version"')
    if document["version"] > _VERSION:
        raise GemmEvalError(
            f"{path} has version {shown(document['version'])}, and this gemm_eval reads {_VERSION} at most: "
            "update gemm_eval, or move the file away"
        )
    records, damages = [], []
    lines = document.get("records")
    if isinstance(lines, list) and len(lines) > _MAX_RECORDS:
        return Content((), f"it has {len(lines):,} records, more than {_MAX_RECORDS:,}")
    for number, fields in enumerate(lines if isinstance(lines, list) else (), 1):
        try:
            records.append(ConfigRecord.from_json(fields))
        except InvalidInputError as error:
            damages.append(f"record {number}: {one_line(str(error), _MAX_TOLD_CHARS)}")
    if not isinstance(lines, list) or document["version"] < 1:
        damages.append(f"it has no list of records in version {_VERSION}")
    more = f", and {len(damages) - 1} more" if len(damages) > 1 else ""
    return Content(tuple(records), f"{damages[0]}{more}" if damages else None)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object; lists of the same name are joined (two files pasted into one), other doubles are refused."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if isinstance(value, list) and isinstance(found.get(name), list):
            found[name] = found[name] + value
        elif name in found and found[name] != value:
            raise ValueError(f"{shown(name)} stands there twice")
        else:
            found[name] = value
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


def set_aside(path: Path) -> Path:
    """Rename a file to ``<name>.damaged-<n>``, n counting up, and return that path; the last three are kept.

    Raises:
        GemmEvalError: it cannot be renamed.
    """
    earlier = re.escape(path.name) + r"\.damaged-(\d+)"
    try:
        numbers = [int(match[1]) for found in path.parent.iterdir() if (match := re.fullmatch(earlier, found.name))]
        name = f"{path.name}.damaged-{max(numbers, default=0) + 1}"
        return storage.set_aside(path, name, earlier=earlier, num_kept=_NUM_KEPT_ASIDE)
    except OSError as error:
        raise GemmEvalError(f"cannot set {path} aside: {error}") from error


@contextlib.contextmanager
def lock(path: Path, timeout_s: float = _LOCK_TIMEOUT_S) -> Iterator[None]:
    """Be the only process and thread that changes the file at `path`; makes its folder.

    On a file system without locks nothing is kept out: a change may then be lost, but the file stays whole.

    Raises:
        GemmEvalError: others held the lock for longer than `timeout_s` seconds, or the folder cannot be written.
    """
    place = path.with_name(path.name + ".lock")
    held = FileLock(place)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_ours = held.acquire(timeout_s=timeout_s)
    except OSError as error:
        raise GemmEvalError(f"cannot write {place}: {error}") from error
    if not is_ours:
        raise GemmEvalError(f"other processes hold {place} for more than {timeout_s:g} s")
    try:
        yield
    finally:
        held.release()
