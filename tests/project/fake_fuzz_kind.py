"""A kind of fuzzed input whose cases misbehave, each in its own way: those of `MISDEEDS`, by index."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path


def nothing(folder: Path) -> None:
    """Only what is allowed."""
    (folder / "input").write_text("own", encoding="utf-8")
    (Path(os.environ["GEMM_EVAL_CACHE_DIR"]) / "answers").write_text("own", encoding="utf-8")
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "file").touch()


def raises(folder: Path) -> None:
    raise KeyError("a key")


def burns(folder: Path) -> None:
    end = time.process_time() + 0.5
    while time.process_time() < end:
        pass


def grows(folder: Path) -> None:
    assert len(bytearray(b"x") * (100 << 20)) == 100 << 20


def runs_away(folder: Path) -> None:
    bytes(1 << 40)


def writes_elsewhere(folder: Path) -> None:
    (folder.parents[1] / "elsewhere").touch()


def opens_a_link_itself(folder: Path) -> None:
    """Allowed: the system refuses it."""
    (folder / "link").symlink_to(folder.parents[1])
    try:
        os.close(os.open(folder / "link", os.O_RDWR | os.O_NOFOLLOW))
    except OSError:
        return


def writes_through_a_link(folder: Path) -> None:
    (folder / "link").symlink_to(folder.parents[1] / "target")
    (folder / "link").write_text("elsewhere", encoding="utf-8")


def renames_elsewhere(folder: Path) -> None:
    (folder / "file").touch()
    (folder / "file").rename(folder.parents[1] / "moved")


def lets_others_write_at_home(folder: Path) -> None:
    subprocess.run([sys.executable, "-c", "import pathlib; (pathlib.Path.home() / 'x').touch()"], check=True)


def forgets_a_temporary_file(folder: Path) -> None:
    handle, _ = tempfile.mkstemp()
    os.close(handle)


def dies(folder: Path) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def hangs(folder: Path) -> None:
    time.sleep(3600.0)


MISDEEDS = (
    nothing, raises, burns, grows, runs_away, writes_elsewhere, opens_a_link_itself, writes_through_a_link,
    renames_elsewhere, lets_others_write_at_home, forgets_a_temporary_file, dies, hangs,
)  # fmt: skip


def run_one(rng: random.Random, folder: Path) -> str:
    """Misbehave as the number of the case says, which its folder tells."""
    misdeed = MISDEEDS[int(folder.parent.name.rpartition("-")[2])]
    misdeed(folder)
    return f"{misdeed.__name__} {rng.random()}"
