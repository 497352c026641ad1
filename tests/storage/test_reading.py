"""`read_bounded`: what is no regular file, or too large, is an error at once."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from gemm_eval.errors import ArchNotFoundError, ArchValidationError, InvalidInputError
from gemm_eval.storage.checked import read_bounded

on_posix = pytest.mark.skipif(sys.platform == "win32", reason="pipes and devices with names")


def test_a_file_is_read_up_to_its_maximum(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")

    assert read_bounded(path, 5, "spec") == b"12345"
    assert read_bounded(str(path), 6, "spec") == b"12345"
    with pytest.raises(InvalidInputError, match=r"file: larger than 4 bytes, which no spec needs"):
        read_bounded(path, 4, "spec")


def test_errors_are_those_that_the_caller_names(tmp_path: Path) -> None:
    with pytest.raises(ArchNotFoundError, match="No such file") as found:
        read_bounded(tmp_path / "none", 4, "spec", unreadable=ArchNotFoundError)
    assert isinstance(found.value.__cause__, FileNotFoundError)
    (tmp_path / "large").write_bytes(b"12345")
    with pytest.raises(ArchValidationError, match="larger than"):
        read_bounded(tmp_path / "large", 4, "spec", too_large=ArchValidationError)


@on_posix
def test_what_is_no_regular_file_is_refused_unread(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    link = tmp_path / "link"
    link.symlink_to("/dev/zero")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    for path in (fifo, link, Path("/dev/zero"), Path("/dev/null"), tmp_path, loop, tmp_path / ("x" * 5000)):
        with pytest.raises(InvalidInputError, match="cannot read"):
            read_bounded(path, 4, "spec")


def test_names_that_no_file_has_stay_one_line(tmp_path: Path) -> None:
    for name in ("a\0b", "a\udfffb\n", "line\nbreak", "\x1b[2J"):
        with pytest.raises(InvalidInputError) as found:
            read_bounded(tmp_path / name, 4, "spec")
        assert str(found.value).isprintable()
