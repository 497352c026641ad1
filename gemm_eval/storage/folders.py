"""The library's cache folder, and which places are this user's alone: what others could have written is not believed.

Others are all users but this one and root, who needs no trick. A place is unsafe if it or a folder above it belongs to
another user, or may be written by others: they could put a file there, or a folder of theirs in the place of ours.
Above the place itself the sticky bit will do (``/tmp``): under it nobody renames what is not his. On Windows, which has
no modes, every place counts as safe: a profile's access list lets nobody else in.
"""

from __future__ import annotations

import os
import stat
import warnings
from functools import cache
from pathlib import Path

__all__ = ["cache_dir", "make_folder", "why_unsafe"]

_ROOT_UID = 0
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_ENTER = stat.S_IXGRP | stat.S_IXOTH


def cache_dir() -> Path | None:
    """The user's cache folder of this library, or None: caching is turned off, or others can write there.

    The latter is one RuntimeWarning. Whoever makes the folder does it with `make_folder`.
    """
    configured = os.environ.get("GEMM_EVAL_CACHE_DIR")
    if configured is None:
        import platformdirs

        folder = platformdirs.user_cache_path("gemm_eval", appauthor=False)
    elif configured.strip().lower() in ("", "off", "0", "none"):
        return None
    else:
        folder = Path(configured)
    return folder if _is_ours(folder) else None


@cache
def _is_ours(folder: Path) -> bool:
    unsafe = why_unsafe(folder)
    if unsafe is not None:
        warnings.warn(
            f"no cache in {folder}, which is not yours alone: {unsafe}; GEMM_EVAL_CACHE_DIR names another",
            RuntimeWarning,
            stacklevel=3,
        )
    return unsafe is None


def why_unsafe(*places: Path) -> str | None:
    """Return why others could have written what lies at one of these files or folders, and what to do; None: nobody.

    Where nothing lies, the folders above decide. Links are followed.
    """
    if not hasattr(os, "geteuid"):
        return None
    own_uids = {_ROOT_UID, os.geteuid()}
    for place in places:
        reason = _why_unsafe(place, own_uids)
        if reason is not None:
            return reason
    return None


def _why_unsafe(place: Path, own_uids: set[int]) -> str | None:
    try:
        resolved = place.resolve()
    except (OSError, RuntimeError) as error:
        return f"{place} cannot be followed ({error})"
    for found in (resolved, *resolved.parents):
        try:
            status = found.stat()
        except OSError:  # nothing is there, or nothing that this user could read
            continue
        if status.st_uid not in own_uids:
            return f"{found} belongs to user {status.st_uid}"
        if not status.st_mode & _OTHERS_WRITE:
            continue
        is_guarded = (
            found is not resolved and status.st_mode & stat.S_ISVTX
            if stat.S_ISDIR(status.st_mode)
            else not found.parent.stat().st_mode & _OTHERS_ENTER
        )
        if not is_guarded:
            mode = stat.S_IMODE(status.st_mode)
            return f"others may write {found} (mode {mode:o}; chmod go-w would mend it)"
    return None


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it that are missing, for this user alone.

    Raises:
        OSError: it cannot be made.
    """
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(mode=stat.S_IRWXU, exist_ok=True)
