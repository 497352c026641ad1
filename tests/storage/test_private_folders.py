"""What others could have written is not read: folders and files of the caches, and the folders above them."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gemm_eval import GEMMEvaluator, storage
from gemm_eval import jit as _jit
from gemm_eval.autotune.asm import score as asm_score
from gemm_eval.evaluate import disk as _disk
from gemm_eval.storage import cache_dir, folders
from gemm_eval.storage.cache import DiskCache
from gemm_eval.storage.folders import make_folder, why_unsafe
from tests.storage.disk_caches import recorded

STRANGER = 12345
SIZES = (1, 16, 512, 768)

needs_modes = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no modes here")
pytestmark = needs_modes


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder below a sticky one that all may write, which pytest's own are not."""
    made = Path(tempfile.mkdtemp())
    yield made
    shutil.rmtree(made)
    _disk._cache_at.cache_clear()


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


def test_without_modes_every_place_is_safe(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.chmod(0o777)
    monkeypatch.delattr(os, "geteuid")  # as on Windows
    assert why_unsafe(folder) is None


def test_folders_are_made_for_this_user_alone(folder: Path) -> None:
    mask = os.umask(0)
    try:
        make_folder(folder / "a" / "b" / "c")
        make_folder(folder / "a" / "b")
        with DiskCache(folder / "d" / "cache.sqlite3", namespace="x") as cache:
            assert cache.put_many({b"k": "1"}) == 1
        storage.write_checked(folder / "e" / "f.kernel", b"code")
    finally:
        os.umask(mask)
    for name in ("a", "a/b", "a/b/c", "d", "e"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o700
    for file in (*(folder / "d").iterdir(), *(folder / "e").iterdir()):
        assert why_unsafe(file) is None


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
    _disk._cache_at.cache_clear()
    folders._is_ours.cache_clear()  # what it found holds for a process
    if how == "of another":
        give_away(place)
    else:
        (place if how == "open to all" else folder).chmod(0o777)

    with pytest.warns(RuntimeWarning, match="no cache in .*, which is not yours alone: .*GEMM_EVAL_CACHE_DIR"):
        assert cache_dir() is None
    with recorded() as told:
        assert cache_dir() is None
        evaluator = GEMMEvaluator("demo-8core")
        assert evaluator.evaluate(*SIZES) == table[0]
        assert evaluator.save_to_disk(table) == 0
        assert asm_score._path_of(b"code") is None
    assert not told, "once is enough"
    assert evaluator.cache_info().records.hits == 0
    assert storage.read_checked(place / "asm" / "x.json") is None
    with recorded() as told:  # a file of one's own, named
        named = GEMMEvaluator("demo-8core", disk_cache=place / "results-v1.sqlite3")
        assert named.evaluate(*SIZES) == table[0]
    assert named.cache_info().records.hits == 0
    assert ["it is not yours alone" in str(one.message) for one in told] == [True]
    folders._is_ours.cache_clear()


@pytest.mark.parametrize("suffix", ["", "-wal"])
def test_answers_of_others_are_not_read(folder: Path, suffix: str, give_away: Callable[[Path], None]) -> None:
    path = folder / "cache.sqlite3"
    with DiskCache(path, namespace="x") as cache:
        cache.put_many({b"k": "1"})
    file = path.with_name(path.name + suffix)
    file.touch()
    give_away(file)
    with DiskCache(path, namespace="x") as cache:
        with pytest.warns(RuntimeWarning, match=f"belongs to user {STRANGER}"):
            assert cache.get(b"k") is None
        assert cache.put_many({b"k": "2"}) == 0
        assert cache.status.startswith("given up: it is not yours alone")


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
    for entry in ("evaluate_one", "block_of"):
        (kernels / f"cost_kernels.{entry}-1.py311.nbi").write_bytes(
            b"cos\nsystem\n(S'touch " + str(mark).encode() + b"'\ntR."
        )
    for place in (cache, *cache.rglob("*")):
        os.chown(place, STRANGER, -1)
    assert where() == "None\n"
    assert not mark.exists()
