"""A progress bar on stderr for long work, and nothing at all for short."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SHOW_AFTER_S = 1.0


@contextmanager
def progress_bar(total: int, what: str, is_shown: bool | None) -> Iterator[Callable[[int], None]]:
    """Yield a function that takes the number of items newly done.

    Args:
        total: number of items.
        what: what is being done, in a few words.
        is_shown: whether to show the bar; None: if stderr is a terminal and the work takes over a second.
    """
    if is_shown is False or (is_shown is None and not _is_terminal()):
        yield lambda _: None
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
    task = bar.add_task(what, total=total)
    started_s = time.monotonic()
    is_running = bool(is_shown)
    if is_running:
        bar.start()  # the first items may take long

    def advance(num_done: int) -> None:
        nonlocal is_running
        bar.advance(task, num_done)
        if not is_running and time.monotonic() - started_s > _SHOW_AFTER_S:
            bar.start()
            is_running = True

    try:
        yield advance
    finally:
        if is_running:
            bar.stop()


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # no stderr, or a closed one
        return False
