"""One fuzzed case under limits, and many of them in worker processes.

A case depends on its seed, kind and index only, so that a failure is replayed by these three. It has a home, temporary
folder, cache folder and working folder of its own, all removed afterwards.
"""

import contextlib
import importlib
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

ADDRESS_SPACE_BYTES = 8 << 30  # a runaway allocation raises MemoryError before it takes the machine
PREPARE_S = 600.0  # kernels may be compiled
_MAXRSS_BYTES = 1 if sys.platform == "darwin" else 1024
_STATUS = Path("/proc/self/status")
_XDG = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR")
_WRITING_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_PATHS = {  # audit events that change files: which of their arguments are paths, and which is the folder of these
    "os.mkdir": ((0,), 2), "os.rename": ((0, 1), 2), "os.remove": ((0,), 1), "os.rmdir": ((0,), 1),
    "os.link": ((1,), 3), "os.symlink": ((1,), 2), "os.chmod": ((0,), 2), "os.chown": ((0,), 3), "os.utime": ((0,), 3),
    "os.truncate": ((0,), None), "os.setxattr": ((0,), None),
}  # fmt: skip


class Limits(NamedTuple):
    """Most time and memory of a case."""

    cpu_s: float = 2.0  # of its process, and of those that it waited for
    wall_s: float = 20.0  # after which its worker is killed
    growth_bytes: int = 300 << 20  # beyond what its process had before the first case


LIMITS = Limits()


class Outcome(NamedTuple):
    """The outcome of one case."""

    index: int  # type: ignore[assignment]  # hides the method of tuples
    label: str  # by the kind; empty with a violation that kept it from giving one
    cpu_s: float  # of this process and of those it waited for
    growth_bytes: int  # of the most memory so far over that before the first case, if this case set it
    violations: tuple[str, ...]  # one line each
    details: str = ""  # traceback of an exception


@dataclass
class Report:
    """All outcomes of one kind."""

    kind: str
    num_cases: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    slowest: Outcome | None = None  # by CPU time
    largest: Outcome | None = None  # by memory
    failed: list[Outcome] = field(default_factory=list)  # those with violations
    skipped: str = ""  # why none ran

    def add(self, outcome: Outcome) -> None:
        """Count one case."""
        self.num_cases += 1
        self.labels[outcome.label or "(violation)"] += 1
        if self.slowest is None or outcome.cpu_s > self.slowest.cpu_s:
            self.slowest = outcome
        if self.largest is None or outcome.growth_bytes > self.largest.growth_bytes:
            self.largest = outcome
        if outcome.violations:
            self.failed.append(outcome)


def kind_names() -> list[str]:
    """Names of all kinds."""
    return sorted(path.stem for path in (Path(__file__).parent / "kinds").glob("*.py") if path.stem != "__init__")


def load_kind(name: str) -> ModuleType:
    """Import a kind, or another module with its functions, and let it prepare.

    Raises:
        ModuleNotFoundError: a library that it needs is not there.
    """
    kind = importlib.import_module(name if "." in name else f"tools.fuzz.kinds.{name}")
    getattr(kind, "prepare", lambda: None)()
    return kind


class _Watch:
    """Notes what is written outside of some folders, while it is on."""

    def __init__(self) -> None:
        self._allowed: tuple[str, ...] | None = None
        self._found: list[str] = []
        sys.addaudithook(self._on_event)  # cannot be taken back: there is one for each process

    @contextlib.contextmanager
    def over(self, *allowed: Path) -> Iterator[list[str]]:
        self._allowed, self._found = tuple(os.path.realpath(folder) for folder in allowed), []
        try:
            yield self._found
        finally:
            self._allowed = None

    def _on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._allowed is None:
            return
        if event == "open":
            path, mode, flags = arguments
            if (set(mode) & set("wax+")) if isinstance(mode, str) else flags & _WRITING_FLAGS:
                self._note(event, path, None, follows=not flags & _NOFOLLOW)
        elif event in _PATHS:
            paths, folder_fd = _PATHS[event]
            for at in paths:
                self._note(event, arguments[at], None if folder_fd is None else arguments[folder_fd])

    def _note(self, event: str, path: Any, folder_fd: int | None, *, follows: bool = False) -> None:
        if not isinstance(path, str | bytes | os.PathLike):  # a descriptor, opened before
            return
        name = os.fsdecode(path)
        if name == os.devnull or "\0" in name:
            return
        if folder_fd is not None and folder_fd >= 0:
            name = str(Path(f"/proc/self/fd/{folder_fd}").readlink() / name)
        folder, last = os.path.split(os.path.abspath(name))  # noqa: PTH100  of a link itself, not of where it leads
        found = os.path.realpath(name) if follows else os.path.join(os.path.realpath(folder), last)  # noqa: PTH118
        if not any(found == place or found.startswith(place + os.sep) for place in self._allowed or ()):
            self._found.append(f"{event} outside of its folders: {found}")


_watch: _Watch | None = None


def run_case(
    kind: ModuleType, seed: str, index: int, folder: Path, *, most_bytes: int, limits: Limits = LIMITS
) -> Outcome:
    """Run one case of a kind in this process, in an empty `folder`, which the caller removes.

    `most_bytes` is the memory of this process before the first case, as `peak_bytes` tells it.
    """
    global _watch
    _watch = _watch or _Watch()
    name = kind.__name__.rpartition(".")[2]
    rng = random.Random(f"{seed}:{name}:{index}")
    label, violations, details = "", [], ""
    with _places(folder) as (own, written, unwritten):
        before_s, before_bytes = _cpu_s(), peak_bytes()
        with _watch.over(*written) as found:
            try:
                label = kind.run_one(rng, own)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # whatever escapes is the finding
                where = traceback.extract_tb(error.__traceback__)[-1]
                text = " ".join(str(error).split())[:200]
                violations.append(f"{type(error).__name__} at {Path(where.filename).name}:{where.lineno}: {text}")
                details = "".join(traceback.format_exception(error)[-30:])
        cpu_s, peak = _cpu_s() - before_s, peak_bytes()
        violations += dict.fromkeys(found)
        violations += [f"left behind: {path}" for place in unwritten for path in place.iterdir()]
    growth = max(0, peak - most_bytes) if peak > before_bytes else 0
    if cpu_s > limits.cpu_s:
        violations.append(f"took {cpu_s:.1f} s of CPU time")
    if growth > limits.growth_bytes:
        violations.append(f"memory grew by {growth >> 20} MB")
    return Outcome(index, label, cpu_s, growth, tuple(violations), details)


def peak_bytes() -> int:
    """The most memory that this process, or one that it waited for, ever had."""
    of_children = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * _MAXRSS_BYTES
    if _STATUS.exists():  # on Linux, what `getrusage` says of this process is at first its parent's
        (line,) = (line for line in _STATUS.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM:"))
        return max(of_children, int(line.split()[1]) << 10)
    return max(of_children, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_BYTES)


def _cpu_s() -> float:
    usages = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


@contextlib.contextmanager
def _places(folder: Path) -> Iterator[tuple[Path, tuple[Path, ...], tuple[Path, ...]]]:
    """The input's folder, those that may be written, and those that must be empty at the end."""
    home, cwd, own, temporary, cache = (folder / name for name in ("home", "cwd", "input", "tmp", "cache"))
    for place in (home, cwd, own, temporary, cache):
        place.mkdir(mode=0o700)
    changes = {
        "HOME": home, "TMPDIR": temporary, "GEMM_EVAL_CACHE_DIR": cache, "USERPROFILE": home,
        **{name: home / name.lower() for name in _XDG},
    }  # fmt: skip
    environment, before, tempdir, without_pyc = dict(os.environ), Path.cwd(), tempfile.tempdir, sys.dont_write_bytecode
    os.environ.update({name: str(place) for name, place in changes.items()})
    os.chdir(cwd)
    tempfile.tempdir = str(temporary)
    sys.dont_write_bytecode = True  # of what a case is the first to import
    try:
        yield own, (own, temporary, cache), (home, cwd, temporary)
    finally:
        os.chdir(before)
        tempfile.tempdir, sys.dont_write_bytecode = tempdir, without_pyc
        for name in changes:
            if name in environment:
                os.environ[name] = environment[name]
            else:
                os.environ.pop(name, None)


def fuzz(
    name: str, seed: str, indices: Sequence[int], *, jobs: int, root: Path, keep: bool = False, limits: Limits = LIMITS
) -> Report:
    """Run cases of one kind in worker processes, with folders in `root`, and `keep` these or not.

    RuntimeError: the kind cannot be prepared.
    """
    report = Report(name)
    shares = [indices[i::jobs] for i in range(min(jobs, len(indices)))]
    with ThreadPoolExecutor(jobs) as pool:
        for found in pool.map(lambda share: _run_share(name, seed, share, root, keep, limits), shares):
            if isinstance(found, str):
                report.skipped = found
            else:
                for outcome in found:
                    report.add(outcome)
    report.failed.sort(key=lambda outcome: outcome.index)
    return report


def _run_share(
    name: str, seed: str, indices: Sequence[int], root: Path, keep: bool, limits: Limits
) -> list[Outcome] | str:
    """Cases of one worker, or why the kind is skipped; one that dies, hangs or has grown is followed by a new one."""
    outcomes: list[Outcome] = []
    while len(outcomes) < len(indices):
        todo = list(indices[len(outcomes) :])
        with _worker(name, seed, todo, root, keep, limits) as (process, connection):
            skipped = _receive(connection, PREPARE_S)
            if not isinstance(skipped, str):
                raise RuntimeError(f"the worker of {name} {_ending_of(process)} before its first case")
            if skipped:
                return skipped
            for index in todo:
                outcome = _receive(connection, limits.wall_s)
                if not isinstance(outcome, Outcome):
                    outcomes.append(Outcome(index, "", 0.0, 0, (f"its worker {_ending_of(process)}",)))
                    break
                outcomes.append(outcome)
                if _has_grown(outcome, limits):
                    break
    return outcomes


def _has_grown(outcome: Outcome, limits: Limits) -> bool:
    """Return True where its worker must end: the peak of a process only rises, and a smaller one would not be seen."""
    return outcome.growth_bytes > limits.growth_bytes


def _receive(connection: Connection, timeout_s: float) -> object:
    """Return what a worker sends; None: it died, or takes too long."""
    try:
        return connection.recv() if connection.poll(timeout_s) else None
    except (EOFError, ConnectionError):
        return None


def _ending_of(process: multiprocessing.process.BaseProcess) -> str:
    process.join(1.0)
    code = process.exitcode
    if code is None:
        return "was killed: no answer for too long"
    return f"died of {signal.Signals(-code).name}" if code < 0 else f"left with exit code {code}"


@contextlib.contextmanager
def _worker(
    name: str, seed: str, indices: list[int], root: Path, keep: bool, limits: Limits
) -> Iterator[tuple[multiprocessing.process.BaseProcess, Connection]]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(theirs, name, seed, indices, root, keep, limits), daemon=True)
    process.start()
    theirs.close()
    try:
        yield process, ours
    finally:
        if process.is_alive() and process.pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # its group, with those that it started
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
        process.join()
        ours.close()


def _work(
    connection: Connection, name: str, seed: str, indices: list[int], root: Path, keep: bool, limits: Limits
) -> None:
    """A worker: first why the kind is skipped, or an empty text; then outcomes."""
    os.setsid()
    try:
        kind = load_kind(name)
    except ModuleNotFoundError as error:
        connection.send(f"needs {error.name or error}")
        return
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE_BYTES, ADDRESS_SPACE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    connection.send("")
    most_bytes = peak_bytes()
    for index in indices:
        folder = root / f"{name}-{index}"
        folder.mkdir()
        outcome = run_case(kind, seed, index, folder, most_bytes=most_bytes, limits=limits)
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
        connection.send(outcome)
        if _has_grown(outcome, limits):
            return
