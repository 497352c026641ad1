"""What `prune_inductor` did, GEMM by GEMM: how many candidates there were, which stayed, and what the model says."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from gemm_eval.models.gpu.triton import TritonConfig
from gemm_eval.workload import GemmProblem

__all__ = ["PruneReport", "PrunedGemm", "PrunedTemplate", "RankedConfig"]


class RankedConfig(NamedTuple):
    """A candidate of a template.

    Attributes:
        config: what it is launched with.
        time_us: what it was ranked by; None where nothing was predicted. Infinite: it is not expected to launch.
        is_kept: whether Inductor gets it.
        graph_us: the time in a CUDA graph, which is held against the library's; None where it was not.
    """

    config: TritonConfig
    time_us: float | None
    is_kept: bool
    graph_us: float | None = None


@dataclass(frozen=True)
class PrunedTemplate:
    """One template's candidates for one GEMM.

    Attributes:
        name: Inductor's name of the template.
        ranked_by: ``"model"``: the Triton model's time; ``"roofline"``: the model knows no such kernel, and times are
            the least that its tiles can take; ``"order"``: no tile is known, and the first of Inductor's list stay.
        candidates: in Inductor's order; those of no known tile are not among them.
        num_before, num_kept: all candidates, and those that stayed.
        reason: why the model did not rank them.
        num_slower: of the first `top_k` those that do not stay, for a library's kernel surely beats them.
    """

    name: str
    ranked_by: str
    candidates: tuple[RankedConfig, ...]
    num_before: int
    num_kept: int
    reason: str = ""
    num_slower: int = 0

    @property
    def kept(self) -> list[RankedConfig]:
        """Those that stayed, best first."""
        return sorted((one for one in self.candidates if one.is_kept), key=lambda one: one.time_us or 0.0)


@dataclass(frozen=True)
class PrunedGemm:
    """One GEMM of a graph that Inductor lowered.

    Attributes:
        op_name: Inductor's: mm, addmm, bmm, grouped_mm, ...
        problem: the GEMM that the candidates were ranked for.
        templates: what became of each template's candidates.
        num_extern: kernels of libraries, all of which stay.
        library_us: predicted time of the library's kernel in a CUDA graph; None: candidates are not held against it.
    """

    op_name: str
    problem: GemmProblem
    templates: tuple[PrunedTemplate, ...]
    num_extern: int
    library_us: float | None = None

    @property
    def num_before(self) -> int:
        """Candidates of templates that Inductor had."""
        return sum(one.num_before for one in self.templates)

    @property
    def num_kept(self) -> int:
        """Candidates of templates that stayed."""
        return sum(one.num_kept for one in self.templates)

    @property
    def num_slower(self) -> int:
        """Candidates that do not stay because a library's kernel surely beats them."""
        return sum(one.num_slower for one in self.templates)

    def __str__(self) -> str:
        text = f"{self.op_name} {self.problem}: {self.num_kept} of {self.num_before} candidates stay"
        text += f", besides {self.num_extern} of libraries" if self.num_extern else ""
        text += "" if self.library_us is None else f" ({self.library_us:.2f} us in a CUDA graph)"
        lines = [text + (f"; {self.num_slower} are surely slower" if self.num_slower else "")]
        for template in self.templates:
            by = f"by {template.ranked_by}" + (f" ({template.reason})" if template.reason else "")
            lines.append(f"  {template.name}, {by}: {template.num_kept} of {template.num_before}")
            for one in template.kept:
                time = "" if one.time_us is None else f": {one.time_us:.2f} us"
                in_graph = "" if one.graph_us is None else f", {one.graph_us:.2f} in a CUDA graph"
                lines.append(f"    {one.config}{time}{in_graph}")
        return "\n".join(lines)


@dataclass
class PruneReport:
    """What a `prune_inductor` did so far; it grows while graphs are compiled.

    Attributes:
        gpu: name of the GPU that was ranked for.
        top_k: as given.
        is_active: whether candidates are pruned: False where this torch's interface is unknown, and after leaving.
        gemms: one entry each time that Inductor lowered a GEMM with candidates of templates.
        notes: what was out of the ordinary.
    """

    gpu: str
    top_k: int | float
    is_active: bool = False
    gemms: list[PrunedGemm] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def num_before(self) -> int:
        """Candidates of templates that Inductor had for all GEMMs."""
        return sum(one.num_before for one in self.gemms)

    @property
    def num_kept(self) -> int:
        """Candidates of templates that stayed."""
        return sum(one.num_kept for one in self.gemms)

    @property
    def num_slower(self) -> int:
        """Candidates among the first `top_k` that do not stay because a library's kernel surely beats them."""
        return sum(one.num_slower for one in self.gemms)

    def add(self, gemm: PrunedGemm) -> None:
        """Append what became of a GEMM; several threads may."""
        with self._lock:
            self.gemms.append(gemm)

    def note(self, text: str) -> None:
        """Append a note, once."""
        with self._lock:
            if text not in self.notes:
                self.notes.append(text)

    def __str__(self) -> str:
        text = f"{self.gpu}: {self.num_kept} of {self.num_before} candidates stay for {len(self.gemms)} GEMMs"
        text += f"; {self.num_slower} are surely slower than libraries" if self.num_slower else ""
        counts = Counter(map(str, self.gemms))
        blocks = [block + (f"\n  {times} times" if times > 1 else "") for block, times in counts.items()]
        return "\n".join([text, *self.notes, *blocks])
