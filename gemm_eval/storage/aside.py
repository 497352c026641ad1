"""A file that is damaged, or is not what its name says, keeps what it holds under another name beside it."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

__all__ = ["set_aside"]

_NUMBERS = re.compile(r"(\d+)")


def set_aside(
    path: Path, name: str, *, companions: Sequence[str] = (), earlier: str | None = None, num_kept: int = 0
) -> Path:
    """Rename what lies at `path`, and return its new path; a file of that name is replaced where the system does so.

    Args:
        path: the file.
        name: its new name, in the same folder.
        companions: endings of files that belong to it, such as ``-wal``; those that cannot be renamed stay.
        earlier: a regular expression of the names that files set aside have had, without companions: the oldest of
            these go, numbers in a name being its age. None: all stay.
        num_kept: how many stay, this one included.

    Raises:
        OSError: it cannot be renamed.
    """
    aside = path.with_name(name)
    path.replace(aside)
    for ending in companions:
        with contextlib.suppress(OSError):
            path.with_name(path.name + ending).rename(aside.with_name(aside.name + ending))
    if earlier is not None:
        with contextlib.suppress(OSError):  # what is too much takes room, and harms nobody
            _prune(path.parent, earlier, companions, num_kept)
    return aside


def _prune(folder: Path, earlier: str, companions: Sequence[str], num_kept: int) -> None:
    pattern = re.compile(f"({earlier})({'|'.join(map(re.escape, companions))})?")
    groups: dict[str, list[Path]] = {}
    for found in folder.iterdir():
        if match := pattern.fullmatch(found.name):
            groups.setdefault(match[1], []).append(found)
    for name in sorted(groups, key=_age)[:-num_kept]:
        for found in groups[name]:
            if found.is_symlink() or found.is_file():  # a folder was never ours: leave it alone
                found.unlink(missing_ok=True)


def _age(name: str) -> list[tuple[int, str]]:
    """Numbers of a name as numbers: ``damaged-10`` is younger than ``damaged-9``."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in _NUMBERS.split(name)]
