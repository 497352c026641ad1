"""What became of each config, and why: the answer of a ranking, as data and as a table."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gemm_eval.models.gpu.triton import TritonConfig
from gemm_eval.workload import GemmProblem

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["Ranking", "Verdict"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one config.

    Attributes:
        config: it, in this library's words.
        given: it, as it was given: a `triton.Config`.
        time_us: predicted time; None: not predicted.
        is_compiled: whether the prediction knows its machine code.
        is_kept: whether it stays.
        reason: why it falls, in one line; or what is to be said of one that stays.
    """

    config: TritonConfig
    given: Any
    time_us: float | None
    is_compiled: bool
    is_kept: bool
    reason: str


@dataclass(frozen=True)
class Ranking:
    """All configs of a kernel for one GEMM: those that stay first, and within each part the fastest first.

    Attributes:
        kernel, gpu: names.
        problem: the GEMM.
        verdicts: one of each config.
        is_small: the GEMM is so small that one config was dispatched at once.
        num_compiled: configs that were compiled, or found compiled.
        compile_s: how long that took, their machine code's reading and all.
        notes: what was out of the ordinary.
    """

    kernel: str
    gpu: str
    problem: GemmProblem | None
    verdicts: tuple[Verdict, ...]
    is_small: bool = False
    num_compiled: int = 0
    compile_s: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def kept(self) -> list[Any]:
        """The configs that stay, as they were given, the one predicted fastest first."""
        return [verdict.given for verdict in self.verdicts if verdict.is_kept]

    @property
    def title(self) -> str:
        """What was ranked, and how many stay."""
        text = f"{self.kernel} on {self.gpu}, {self.problem}: {len(self.kept)} of {len(self.verdicts)} configs stay"
        if self.is_small:
            text += ", a small GEMM"
        if self.num_compiled:
            text += f", {self.num_compiled} compiled in {self.compile_s:.1f} s"
        return text

    def table(self) -> Table:
        """Return a table for `rich`: each config with its time and what became of it."""
        from rich.table import Table

        table = Table(title=self.title, title_justify="left", caption="\n".join(self.notes) or None)
        table.add_column("#", justify="right")
        table.add_column("config")
        table.add_column("us", justify="right")
        table.add_column("by")
        table.add_column("verdict", overflow="fold")
        for number, verdict in enumerate(self.verdicts, 1):
            table.add_row(str(number), *_cells(verdict), style=None if verdict.is_kept else "dim")
        return table

    def __str__(self) -> str:
        lines = [self.title, *self.notes]
        for number, verdict in enumerate(self.verdicts, 1):
            config, time, by, text = _cells(verdict)
            lines.append(f"{number:4d}  {config}  {f'{time} us, {by}: ' if time else ''}{text}")
        return "\n".join(lines)


def _cells(verdict: Verdict) -> tuple[str, str, str, str]:
    time = "" if verdict.time_us is None else f"{verdict.time_us:.2f}"
    by = "" if verdict.time_us is None else ("code" if verdict.is_compiled else "estimate")
    text = ("stays" if verdict.is_kept else "falls") + (f": {verdict.reason}" if verdict.reason else "")
    return str(verdict.config), time, by, text
