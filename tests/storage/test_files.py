"""Files that are replaced whole, locks, folders of caches, and files of tensors."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemm_eval import GEMMEvaluator, storage
from gemm_eval import jit as _jit
from gemm_eval.autotune.asm import score as asm_score
from gemm_eval.errors import ArchNotFoundError, ArchValidationError, GemmEvalError, InvalidInputError
from gemm_eval.storage import (
    StoredTensor,
    TensorFile,
    cache_dir,
    files,
    is_temporary,
    make_folder,
    read_bounded,
    read_checked,
    set_aside,
    staged,
    why_unsafe,
    write_checked,
    write_tensors,
    write_text,
    write_whole,
)
from tests.cases import case

# ---- files -----------------------------------------------------------------------------------------------------------


STRANGER = 12345
SIZES = (1, 16, 512, 768)

needs_modes = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no modes here")
on_posix = pytest.mark.skipif(sys.platform == "win32", reason="pipes and devices with names")


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


def test_the_oldest_files_set_aside_go(tmp_path: Path) -> None:
    for name in ("a", "a.damaged-8", "a.damaged-9", "a.damaged-10", "a.damaged-by-hand", "b.damaged-1"):
        (tmp_path / name).write_text(name)
    aside = set_aside(tmp_path / "a")

    assert aside.read_text() == "a"
    assert names(tmp_path) == [
        "a.damaged-10", "a.damaged-11", "a.damaged-9", "a.damaged-by-hand", "b.damaged-1",
    ]  # fmt: skip


def test_packages_are_cheap_until_a_name_is_used(tmp_path: Path) -> None:
    code = (
        "import sys, gemm_eval.storage, gemm_eval.device, gemm_eval.kernels, "
        "gemm_eval.measure, gemm_eval.measure.host\n"
        "print([name for name in ('numba', 'numpy', 'pydantic', 'zipfile', 'cupy', 'pandas') if name in sys.modules])\n"
        "try: gemm_eval.device.no_such_name\n"
        "except AttributeError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)

    assert done.stdout.splitlines() == ["[]", "module 'gemm_eval.device' has no attribute 'no_such_name'"]


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


# folders of others


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder below a sticky one that all may write, which pytest's own are not."""
    made = Path(tempfile.mkdtemp())
    yield made
    shutil.rmtree(made)


@pytest.fixture
def give_away(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Make another user the owner: root really does it, others are made to believe it."""

    def give(place: Path) -> None:
        if os.geteuid() == 0:
            os.chown(place, STRANGER, -1)
            return
        inode, real = place.stat().st_ino, Path.stat

        def stat_of_another(self: Path, **options: bool) -> os.stat_result:
            found = real(self, **options)
            return os.stat_result((*found[:4], STRANGER, *found[5:])) if found.st_ino == inode else found

        monkeypatch.setattr(Path, "stat", stat_of_another)

    return give


@needs_modes
def test_what_is_safe(folder: Path) -> None:
    file = folder / "file"
    file.touch(0o644)
    for place in (folder, file, folder / "missing" / "too", Path(sys.executable), Path("/tmp/not-yet-there")):
        assert why_unsafe(place) is None
    folder.chmod(0o755)
    assert why_unsafe(folder, file) is None
    (folder / "link").symlink_to(file)
    assert why_unsafe(folder / "link") is None
    folder.chmod(0o700)
    file.chmod(0o666)
    assert why_unsafe(file) is None, "nobody else can come to it"


@needs_modes
def test_what_is_not(folder: Path, give_away: Callable[[Path], None]) -> None:
    inner = folder / "inner"
    inner.mkdir()
    file = inner / "file"
    file.touch()
    for mode in (0o770, 0o777, 0o702, 0o1777):
        inner.chmod(mode)
        for place in (inner, file):
            if mode != 0o1777 or place is inner:
                assert str(inner) in str(why_unsafe(place))
                assert "chmod go-w" in str(why_unsafe(place))
        assert (why_unsafe(inner / "missing") is None) == (mode == 0o1777), "a sticky folder above is no danger"
    inner.chmod(0o755)
    folder.chmod(0o755)
    file.chmod(0o664)
    assert str(file) in str(why_unsafe(inner, file))
    file.chmod(0o644)
    folder.chmod(0o777)
    assert str(folder) in str(why_unsafe(file)), "a folder above may be exchanged"
    folder.chmod(0o755)
    assert why_unsafe(inner, file) is None
    (folder / "loop").symlink_to(folder / "loop")
    assert why_unsafe(folder / "loop") is None or "cannot be followed" in str(why_unsafe(folder / "loop"))
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir(0o777)
    elsewhere.chmod(0o777)
    (inner / "link").symlink_to(elsewhere)
    assert str(elsewhere) in str(why_unsafe(inner / "link")), "links are followed"
    give_away(file)
    assert f"{file} belongs to user {STRANGER}" == why_unsafe(file)
    assert why_unsafe(inner) is None
    give_away(inner)
    assert f"{inner} belongs to user {STRANGER}" == why_unsafe(inner) == why_unsafe(inner / "missing")


@needs_modes
def test_without_modes_every_place_is_safe(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.chmod(0o777)
    monkeypatch.delattr(os, "geteuid")  # as on Windows
    assert why_unsafe(folder) is None


@needs_modes
def test_folders_are_made_for_this_user_alone(folder: Path) -> None:
    mask = os.umask(0)
    try:
        make_folder(folder / "a" / "b" / "c")
        make_folder(folder / "a" / "b")
        assert storage.ResultFile(folder / "d" / "costs.npz").merge("x", lambda _: {})
        storage.write_checked(folder / "e" / "f.kernel", b"code")
    finally:
        os.umask(mask)
    for name in ("a", "a/b", "a/b/c", "d", "e"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o700
    for file in (*(folder / "d").iterdir(), *(folder / "e").iterdir()):
        assert why_unsafe(file) is None


@needs_modes
@pytest.mark.parametrize("how", ["open to all", "of another", "a folder above open to all"])
def test_no_cache_in_such_a_folder(
    folder: Path, how: str, give_away: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = folder / "cache"
    make_folder(place)
    monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", str(place))
    assert cache_dir() == place
    saver = GEMMEvaluator("demo-8core")
    table = saver.evaluate_many([SIZES])
    assert saver.save_to_disk(table) == 1
    storage.write_checked(place / "asm" / "x.json", b"[]")
    files._is_ours.cache_clear()  # what it found holds for a process
    if how == "of another":
        give_away(place)
    else:
        (place if how == "open to all" else folder).chmod(0o777)

    with pytest.warns(RuntimeWarning, match="no cache in .*, which is not yours alone: .*GEMM_EVAL_CACHE_DIR"):
        assert cache_dir() is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough
        assert cache_dir() is None
        evaluator = GEMMEvaluator("demo-8core")
        assert evaluator.evaluate(*SIZES) == table[0]
        assert evaluator.save_to_disk(table) == 0
        assert asm_score._path_of(b"code") is None
    assert evaluator.cache_info().records.hits == 0
    assert storage.read_checked(place / "asm" / "x.json") is None
    named = GEMMEvaluator("demo-8core", disk_cache=place / "results" / "demo-8core.npz")
    with pytest.warns(RuntimeWarning, match="it is not yours alone") as told:
        assert named.evaluate(*SIZES) == table[0]
    assert named.cache_info().records.hits == 0
    assert len(told) == 1
    files._is_ours.cache_clear()


@needs_modes
def test_compiled_kernels_of_others_are_not_unpickled(folder: Path, give_away: Callable[[Path], None]) -> None:
    """numba unpickles an index and machine code: one foreign file, and the folder is not used."""
    kernels = _jit._kernel_folder.__wrapped__(folder)
    assert kernels is not None
    assert stat.S_IMODE(kernels.stat().st_mode) == 0o700
    (kernels / "one.nbi").touch()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert _jit._kernel_folder.__wrapped__(folder) == kernels
    give_away(kernels / "one.nbi")
    with pytest.warns(RuntimeWarning, match="compiled kernels in .* are not used: .*one.nbi belongs to user"):
        assert _jit._kernel_folder.__wrapped__(folder) is None


@pytest.mark.skipif(getattr(os, "geteuid", lambda: 1)() != 0, reason="needs root")
def test_root_does_not_run_what_another_user_left(folder: Path) -> None:
    """The attack that was made: a pickle in the cache folder of another user, and root evaluates with it."""
    cache, mark = folder / "cache", folder / "was-run"
    code = "from gemm_eval.jit import _kernel_folder, cache_dir; print(cache_dir() and _kernel_folder(cache_dir()))"

    def where() -> str:
        env = os.environ | {"GEMM_EVAL_CACHE_DIR": str(cache), "PYTHONWARNINGS": "ignore"}
        return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout

    kernels = Path(where().strip())
    for entry in ("evaluate_range", "block_of"):
        (kernels / f"cost_kernels.{entry}-1.py311.nbi").write_bytes(
            b"cos\nsystem\n(S'touch " + str(mark).encode() + b"'\ntR."
        )
    for place in (cache, *cache.rglob("*")):
        os.chown(place, STRANGER, -1)
    assert where() == "None\n"
    assert not mark.exists()


# ---- tensor file -----------------------------------------------------------------------------------------------------


TENSORS = {
    "bytes": StoredTensor.of(np.arange(3, dtype=np.uint8)),
    "half": StoredTensor.of(np.array([[1, 2.5, -3]], np.float16)),
    "brain": StoredTensor.of(np.array([[0x3F80], [0xC000]], np.uint16), "BF16"),
    "words": StoredTensor.of(np.arange(-4, 4, dtype=np.int32).reshape(2, 2, 2)),
    "scalar": StoredTensor.of(np.array(7, np.int64)),
    "none": StoredTensor.of(np.empty((0, 5), np.float32)),
    "eight": StoredTensor("F8_E4M3", (2,), np.array([1, 2], np.uint8)),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_tensors(tmp_path / "a.safetensors", TENSORS, {"key": "a text"})
    return tmp_path / "a.safetensors"


def test_what_was_written_is_read(path: Path) -> None:
    file = TensorFile(path)

    assert (set(file.names), file.metadata) == (set(TENSORS), {"key": "a text"})
    assert "half" in file
    assert "other" not in file
    for name, tensor in TENSORS.items():
        assert (file[name].dtype, file[name].shape) == (tensor.dtype, tensor.shape)
        np.testing.assert_array_equal(file[name].data, tensor.data)
        if name != "eight":
            assert file[name].array.flags.aligned
            np.testing.assert_array_equal(file[name].array, tensor.array)
    assert [p.name for p in path.parent.iterdir()] == ["a.safetensors"]


def test_types_that_numpy_lacks(path: Path) -> None:
    assert TensorFile(path)["brain"].array.dtype == np.uint16
    with pytest.raises(InvalidInputError, match="'F8_E4M3', which numpy has not"):
        _ = TensorFile(path)["eight"].array
    with pytest.raises(InvalidInputError, match="no type for complex128"):
        StoredTensor.of(np.ones(2, complex))


def test_rows_of_a_larger_array_are_written_alone() -> None:
    whole = np.arange(12, dtype=np.float32).reshape(3, 4)

    np.testing.assert_array_equal(StoredTensor.of(whole[:, ::2]).array, whole[:, ::2])


def test_the_package_safetensors_reads_it_and_the_reverse(path: Path, tmp_path: Path) -> None:
    package = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    plain = {name: tensor.array for name, tensor in TENSORS.items() if name not in ("brain", "eight")}
    write_tensors(tmp_path / "plain", {name: StoredTensor.of(array) for name, array in plain.items()})
    for name, array in package.load_file(tmp_path / "plain").items():
        np.testing.assert_array_equal(array, plain[name])
    package.save_file(plain, tmp_path / "theirs", {"key": "theirs"})
    file = TensorFile(tmp_path / "theirs")

    assert file.metadata == {"key": "theirs"}
    for name, array in plain.items():
        np.testing.assert_array_equal(file[name].array, array)


def raw(header: Any, data: bytes = b"\0" * 8, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"", "a header of 0 bytes in a file of 0"),
        (b"\x01\0\0", "in a file of 3"),
        (raw({}, length=1 << 40), "a header of 1,099,511,627,776 bytes"),
        (raw(b"{]"), "a header that is no JSON"),
        (raw(b"[" * 100_000), "a header that is no JSON"),
        (raw(b"\xff"), "a header that is no JSON"),
        (raw([1]), "a header that is no object"),
        (raw({"__metadata__": {"a": 1}}), "metadata that are no texts"),
        (raw({"__metadata__": "a"}), "metadata that are no texts"),
        (raw({"a": 1}), "tensor 'a' with 1"),
        (raw({"a": {**ENTRY, "shape": [-2]}}), "tensor 'a' with"),
        (raw({"a": {**ENTRY, "shape": [2.0]}}), "tensor 'a' with"),
        (raw({"a": {**ENTRY, "dtype": 5}}), "tensor 'a' with"),
        (raw({"a": {**ENTRY, "data_offsets": [0, 8, 9]}}), "tensor 'a' with"),
        (raw({"a": {**ENTRY, "data_offsets": [0, 12], "shape": [3]}}), "tensor 'a' with"),
        (raw({"a": {**ENTRY, "data_offsets": [8, 0]}}), "tensor 'a' with"),
        (raw({"a": {**ENTRY, "shape": [3]}}), r"tensor 'a' with 8 bytes for F32 \[3\]"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, content: bytes, rule: str) -> None:
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=rule) as caught:
        TensorFile(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"cannot read .*: No such file"):
        TensorFile(tmp_path / "none")
