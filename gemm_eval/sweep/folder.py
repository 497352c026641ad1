"""The folder of a sweep as its writer has it: taken by one sweep at a time, and rid of what does not belong there."""

from __future__ import annotations

import contextlib
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gemm_eval import storage
from gemm_eval.errors import GemmEvalError, InvalidOptionError, StorageError
from gemm_eval.storage import FileLock, is_temporary, place_new, staged
from gemm_eval.sweep.chunks import Chunks
from gemm_eval.sweep.description import DESCRIPTION, chunks_of, description_bytes, read_description
from gemm_eval.words import shown

__all__ = ["as_folder", "claim", "part_name", "part_names", "set_aside", "write_whole"]

_LOCK = ".lock"
_PART = re.compile(r"points-([0-9]{10,})\.parquet")
_ASIDE = "_damaged-"  # readers of parquet folders pass over names that begin with _


def as_folder(path: Any) -> Path:
    """Read what a user gives for a folder.

    Raises:
        InvalidOptionError: it is no path.
    """
    if not isinstance(path, str | os.PathLike):
        raise InvalidOptionError(f"a folder is given by its path, got {shown(path)}")
    return Path(path)


@contextlib.contextmanager
def claim(folder: Path, description: Mapping[str, Any], ignore: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Take a folder for a sweep, a new one or the one that it holds; yields the description that it has then.

    Nobody else takes it until the end. What killed writers left half is removed, and files that no part of this sweep
    is called like are set aside.

    Args:
        folder: it is made if there is none.
        description: what the sweep is.
        ignore: keys in which the sweep of the folder may differ.

    Raises:
        InvalidOptionError: the folder holds another sweep, or files that are none.
        StorageError: another sweep is at work there, or it cannot be written.
        GemmEvalError: its description is damaged.
    """
    with _storing(folder):
        if folder.exists() and not folder.is_dir():
            raise InvalidOptionError(f"{folder} must be a folder, and is a file")
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / _LOCK)
        is_ours = lock.acquire()
    if not is_ours:
        raise StorageError(f"another sweep is at work in {folder}: wait for its end, or choose another folder")
    try:
        with _storing(folder):
            known = _begin(folder, description, ignore)
            for left in folder.iterdir():
                if is_temporary(left.name) and (left.is_symlink() or left.is_file()):
                    left.unlink()
        for name in part_names(folder, chunks_of(known))[1]:
            set_aside(folder / name, "no part of this sweep has its name")
        yield known
    finally:
        lock.release()


def part_name(first: int) -> str:
    """Return the name of the file of a part, given the number of its first point."""
    return f"points-{first:010d}.parquet"


def part_names(folder: Path, chunks: Chunks) -> tuple[list[int], list[str]]:
    """Return the first points of the parts that are there, in order, and names that look like parts and are none.

    Raises:
        GemmEvalError: the folder cannot be read.
    """
    firsts, foreign = [], []
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError as error:
        raise GemmEvalError(f"cannot read {folder}: {error.strerror or error}") from error
    for name in names:
        match = _PART.fullmatch(name)
        if match and chunks.num_at(int(match[1])) and name == part_name(int(match[1])):
            firsts.append(int(match[1]))
        elif name.startswith("points-"):
            foreign.append(name)
    return sorted(firsts), sorted(foreign)


def set_aside(path: Path, why: str) -> None:
    """Rename a file that is no part of the sweep beside it, the way that nobody reads it, and warn of that.

    Raises:
        StorageError: it cannot be renamed.
    """
    with _storing(path.parent):
        aside = storage.set_aside(path, f"{_ASIDE}{path.name}")
    warnings.warn(
        f"{path} is set aside as {aside.name}: {why}; points that it should hold are evaluated anew",
        RuntimeWarning,
        stacklevel=2,
    )


def write_whole(path: Path, raw: bytes) -> None:
    """Write a file that others see whole or not at all.

    Raises:
        StorageError: it cannot be written; what was there is as it was.
    """
    with _storing(path.parent):
        storage.write_whole(path, raw)


def _begin(folder: Path, description: Mapping[str, Any], ignore: Sequence[str]) -> dict[str, Any]:
    """Write the description into a new folder, or compare it with the one that is there."""
    file = folder / DESCRIPTION
    if not os.path.lexists(file):
        there = sorted(entry.name for entry in folder.iterdir() if not entry.name.startswith("."))
        if there:
            raise InvalidOptionError(f"{folder} must be a new folder or one of a sweep, and holds {there[0]}")
        with staged(file, description_bytes(description)) as temporary:
            place_new(temporary, file)  # on a file system without locks somebody may have been faster
    known = read_description(folder)
    differs = [key for key in description if key not in (*ignore, "digest") and known[key] != description[key]]
    if differs:
        raise InvalidOptionError(
            f"{folder} holds another sweep (it differs in {', '.join(differs)}): choose another folder"
        )
    return known


@contextlib.contextmanager
def _storing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"cannot write {folder}: {error.strerror or error}; what is done is kept: the same call goes on there once "
            "that is mended"
        ) from error
    except ValueError as error:
        if isinstance(error, GemmEvalError):
            raise
        raise InvalidOptionError(f"no folder has the name {shown(str(folder))}: {error}") from None
