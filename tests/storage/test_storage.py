"""Files that appear whole, those that are set aside, and packages that cost nothing before a name is used."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from gemm_eval.errors import GemmEvalError
from gemm_eval.storage import (
    is_temporary,
    place_new,
    read_checked,
    set_aside,
    staged,
    write_checked,
    write_text,
    write_whole,
)
from tests.cases import case


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_staged_file_is_gone_unless_it_was_renamed(tmp_path: Path) -> None:
    with staged(tmp_path / "a.bin", b"one") as temporary:
        assert temporary.read_bytes() == b"one"
        assert is_temporary(temporary.name)
        assert names(tmp_path) == [temporary.name]
    assert names(tmp_path) == []
    assert not any(map(is_temporary, ("a.bin", ".a.bin.tmp", "a.0123456789abcdef0123456789abcdef.tmp")))


def test_a_file_is_replaced_whole_or_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.bin"
    write_whole(file, b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(file, b"new")
    assert (names(tmp_path), file.read_bytes()) == (["a.bin"], b"old")
    write_whole(file, b"unsynced", is_durable=False)
    assert file.read_bytes() == b"unsynced"


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no modes here")
def test_a_private_file_is_nobody_elses_whatever_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_whole(tmp_path / "usual", b"")
        os.umask(0)
        write_whole(tmp_path / "private", b"", is_private=True)
        write_checked(tmp_path / "made" / "checked", b"x")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {"usual": 0o644, "private": 0o600, "made": 0o700, "checked": 0o600}


@pytest.mark.parametrize("has_links", [True, False])
def test_a_new_file_never_replaces_another(has_links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("no links here")

    if not has_links:
        monkeypatch.setattr(Path, "hardlink_to", refuse)
    for content in (b"first", b"second"):
        with staged(tmp_path / "a", content) as temporary:
            place_new(temporary, tmp_path / "a")
    assert (names(tmp_path), (tmp_path / "a").read_bytes()) == (["a"], b"first")


def test_a_text_goes_where_a_link_leads(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "there" / "a.txt")
    write_text(tmp_path / "link", "ä\n")

    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "a.txt").read_bytes() == "ä\n".encode()
    with pytest.raises(GemmEvalError, match="cannot write"):
        write_text(tmp_path / "there" / "a.txt" / "b", "")


def test_what_is_not_what_was_written_is_nothing(tmp_path: Path) -> None:
    file = tmp_path / "a"
    write_checked(file, b"line\nline")
    whole = file.read_bytes()

    assert read_checked(file) == b"line\nline"
    for raw in (whole[:-1], whole + b"x", b"", b"\n"):
        file.write_bytes(raw)
        with case(raw):
            assert read_checked(file) is None
    file.unlink()
    assert read_checked(file) is None
    os.mkfifo(file)
    assert read_checked(file) is None, "and nobody waits for a writer"


def test_the_oldest_of_what_was_set_aside_go_with_their_companions(tmp_path: Path) -> None:
    for number in (8, 9, 10):
        (tmp_path / f"a.damaged-{number}").touch()
        (tmp_path / f"a.damaged-{number}-wal").touch()
    for name in ("a", "a-wal", "a.damaged-by-hand", "b.damaged-1"):
        (tmp_path / name).write_text(name)
    found = set_aside(tmp_path / "a", "a.damaged-11", companions=("-wal",), earlier=r"a\.damaged-\d+", num_kept=2)

    assert found.read_text() == "a"
    assert names(tmp_path) == [
        "a.damaged-10", "a.damaged-10-wal", "a.damaged-11", "a.damaged-11-wal", "a.damaged-by-hand", "b.damaged-1",
    ]  # fmt: skip


def test_packages_are_cheap_until_a_name_is_used(tmp_path: Path) -> None:
    code = (
        "import sys, gemm_eval.storage, gemm_eval.device, gemm_eval.kernels, "
        "gemm_eval.measure, gemm_eval.measure.runners\n"
        "print([name for name in ('numba', 'numpy', 'pydantic', 'sqlite3', 'cupy', 'pandas') if name in sys.modules])\n"
        "try: gemm_eval.device.no_such_name\n"
        "except AttributeError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert done.stdout.splitlines() == ["[]", "module 'gemm_eval.device' has no attribute 'no_such_name'"]
