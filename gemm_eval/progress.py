"""Long work: threads for batches of searches, and progress as a bar, a spinner, or lines on stderr now and then.

The kernels of searches release the GIL. What runs inside a bar or a spinner shows none of its own.
"""

from __future__ import annotations

import html
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

_SHOW_AFTER_S = 1.0
_LINE_EVERY_S = 5.0
_CELL_EVERY_S = 0.2
_SAME_EVERY = 6
_shown: list[_Status | None] = []
"""The bar (None) or the spinner that is shown, if there is one."""


@contextmanager
def progress_bar(total: int, task: str, is_shown: bool | None) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes the number of items newly done, of `total`; `task` says what is done, in a few words.

    `is_shown` None: show progress if the work takes over a second, or where stderr is no terminal over five.
    """
    if is_shown is False or (is_shown is None and (_shown or not _can_write())):
        yield lambda _: None
        return
    if _is_notebook():
        cell = _Cell()
        _shown.append(None)
        try:
            yield _lines(total, task, cell.show, _SHOW_AFTER_S, _CELL_EVERY_S)
        finally:
            _shown.pop()
            cell.clear()
        return
    if is_shown is None and not _is_terminal():
        yield _lines(total, task, lambda line, _: _print(line), _LINE_EVERY_S, _LINE_EVERY_S)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining
    from rich.text import Text

    class Rate(ProgressColumn):
        """Items a second."""

        def render(self, task: Task) -> Text:
            return Text("" if task.speed is None else f"{task.speed:,.0f}/s", style="progress.data.speed")

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), Remaining())
    console = Console(stderr=True)
    bar = Progress(*columns, console=console, transient=console.is_terminal)  # a log gets the last state
    task_id = bar.add_task(task, total=total)
    started_s = time.monotonic()
    is_running = bool(is_shown)
    if is_running:
        bar.start()  # the first items may take long

    def advance(num_done: int) -> None:
        nonlocal is_running
        bar.advance(task_id, num_done)
        if not is_running and time.monotonic() - started_s > _SHOW_AFTER_S:
            bar.start()
            is_running = True

    _shown.append(None)
    try:
        yield advance
    finally:
        _shown.pop()
        if is_running:
            bar.stop()


def _lines(
    total: int, task: str, show: Callable[[str, float], None], after_s: float, every_s: float
) -> Callable[[int], None]:
    """Return a function that takes the number of items newly done, and shows a line and the share that is done.

    It is shown `after_s` seconds from now, and then every `every_s` seconds.
    """
    num_done, next_s = 0, time.monotonic() + after_s

    def advance(num_new: int) -> None:
        nonlocal num_done, next_s
        num_done += num_new
        if (now_s := time.monotonic()) > next_s:
            next_s = now_s + every_s
            show(f"{task}: {num_done:,} of {total:,}", num_done / total)

    return advance


class _Cell:
    """A bar in the output of a notebook's cell; it is emptied at the end."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, line: str, frac: float) -> None:
        """Show a bar of this share, with a line behind."""
        self._put(f'<progress value="{frac:.3f}" style="width: 20em"></progress> {html.escape(line)}')

    def clear(self) -> None:
        """Empty what was shown."""
        if self._handle is not None:
            self._put("")

    def _put(self, text: str) -> None:
        ipython: Any = import_module("IPython.display")
        if self._handle is None:
            self._handle = ipython.display(ipython.HTML(text), display_id=True)
        else:
            self._handle.update(ipython.HTML(text))


class _Status:
    """The text of a spinner, and the thread that prints it as lines where there is no terminal."""

    def __init__(self, task: str) -> None:
        self.task, self.started_s = task, time.monotonic()
        self.note = ""
        self.is_over = threading.Event()

    def __str__(self) -> str:
        seconds = time.monotonic() - self.started_s
        return f"{self.task}{': ' if self.note else ''}{self.note} ({seconds:.0f} s)"

    def __rich__(self) -> str:
        return str(self)

    def print_lines(self) -> None:
        """Print a line every few seconds until the work is over; of a note that stays, every sixth."""
        last, num_same = "", 0
        while not self.is_over.wait(_LINE_EVERY_S):
            num_same = num_same + 1 if self.note == last else 0
            last = self.note
            if num_same % _SAME_EVERY == 0:
                _print(str(self))


@contextmanager
def progress_status(task: str) -> Iterator[None]:
    """Show that `task` goes on, the last `progress_note`, and for how long, while the block runs."""
    if _shown or not _can_write():
        yield
        return
    status = _Status(task)
    _shown.append(status)
    try:
        if _is_terminal():
            from rich.console import Console
            from rich.live import Live
            from rich.spinner import Spinner

            with Live(Spinner("dots", status), console=Console(stderr=True), transient=True):
                yield
        else:
            threading.Thread(target=status.print_lines, daemon=True).start()
            yield
    finally:
        status.is_over.set()
        _shown.pop()


def progress_note(note: str) -> None:
    """Say what is under way, in a few words; nothing is shown outside of `progress_status`."""
    if _shown and _shown[-1] is not None:
        _shown[-1].note = note


def _print(line: str) -> None:
    if _can_write():
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()


def _can_write() -> bool:
    return not getattr(sys.stderr, "closed", True)


def _is_notebook() -> bool:
    ipython: Any = sys.modules.get("IPython")
    return hasattr(ipython.get_ipython() if ipython else None, "kernel")


def _is_terminal() -> bool:
    return sys.stderr.isatty()


_WORKERS = os.cpu_count() or 1
_CHUNKS_PER_WORKER = 8
_MIN_CHUNK, _MAX_CHUNK = 8, 256  # handing one to a thread takes as long as two searches


def run_in_chunks(
    work: Callable[[int, int], object], num: int, on_progress: Callable[[int], None] | None = None
) -> None:
    """Call `work(start, stop)` for chunks of 0..num on all cores; `on_progress`, in this thread, gets what is done."""
    chunk = max(_MIN_CHUNK, min(_MAX_CHUNK, num // (_CHUNKS_PER_WORKER * _WORKERS)))

    def run(start: int) -> int:
        stop = min(start + chunk, num)
        work(start, stop)
        return stop - start

    starts = range(0, num, chunk)
    done = map(run, starts) if num <= chunk else _pool().map(run, starts)
    for num_done in done:
        if on_progress is not None:
            on_progress(num_done)


@cache
def _pool() -> ThreadPoolExecutor:
    """Return the threads of all batches of this process; they wait for work at no cost."""
    from concurrent.futures import ThreadPoolExecutor

    return ThreadPoolExecutor(max_workers=_WORKERS, thread_name_prefix="gemm_eval")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # threads do not survive a fork
