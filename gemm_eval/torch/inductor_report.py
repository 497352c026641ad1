"""Reports of what `prune_inductor` did, GEMM by GEMM, and timing of candidates in CUDA graphs: TORCH.md says why."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from gemm_eval.models.gpu.triton import TritonConfig
from gemm_eval.workload import GemmProblem


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

    def __str__(self) -> str:
        time = "" if self.time_us is None else f": {self.time_us:.2f} us"
        return f"{self.config}{time}" + ("" if self.graph_us is None else f", {self.graph_us:.2f} in a CUDA graph")


class PrunedTemplate(NamedTuple):
    """The candidates of one template for one GEMM.

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
        """Candidates that stayed, best first."""
        return sorted((each for each in self.candidates if each.is_kept), key=lambda each: each.time_us or 0.0)


class _Sums:
    """Sums of candidates over the parts of a GEMM, or over GEMMs."""

    def _parts(self) -> Iterable[Any]:
        raise NotImplementedError

    @property
    def num_before(self) -> int:
        """Candidates of templates that Inductor had."""
        return sum(each.num_before for each in self._parts())

    @property
    def num_kept(self) -> int:
        """Candidates of templates that stayed."""
        return sum(each.num_kept for each in self._parts())

    @property
    def num_slower(self) -> int:
        """Candidates among the first `top_k` that do not stay because a library's kernel surely beats them."""
        return sum(each.num_slower for each in self._parts())


@dataclass(frozen=True)
class PrunedGemm(_Sums):
    """A GEMM of a graph that Inductor lowered.

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

    def _parts(self) -> Iterable[PrunedTemplate]:
        return self.templates

    def __str__(self) -> str:
        text = f"{self.op_name} {self.problem}: {self.num_kept} of {self.num_before} candidates stay"
        text += f", besides {self.num_extern} of libraries" if self.num_extern else ""
        text += "" if self.library_us is None else f" ({self.library_us:.2f} us in a CUDA graph)"
        lines = [text + (f"; {self.num_slower} are surely slower" if self.num_slower else "")]
        for template in self.templates:
            by = f"by {template.ranked_by}" + (f" ({template.reason})" if template.reason else "")
            lines.append(f"  {template.name}, {by}: {template.num_kept} of {template.num_before}")
            lines += [f"    {each}" for each in template.kept]
        return "\n".join(lines)


@dataclass
class PruneReport(_Sums):
    """The report of a `prune_inductor`; it grows while graphs are compiled.

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

    def _parts(self) -> Iterable[PrunedGemm]:
        return self.gemms

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


_MOST_CALLS = 10
_GRAPH_MS = 1.0  # so many calls as this holds
_REPLAYS = 5
_LEAST_MS = 1e-4  # where a difference is within its noise


def time_in_graphs(choices: Sequence[Any]) -> bool:
    """Let candidates of a GEMM, Inductor's `ChoiceCaller`s, be timed in CUDA graphs, all or none; say which.

    None where this torch times them otherwise than torch 2.10 to 2.15 do, or in another process.
    """
    from torch._inductor import config

    # what goes to another process is pickled, and timed there
    if config.autotune_in_subproc or getattr(config, "pipeline_max_autotune_gemm", False):
        return False
    if len(choices) < 2 or not all(map(_can_be_timed, choices)):
        return False
    for choice in choices:
        choice.benchmark = _in_graph(choice.bmreq, choice.benchmark)
    return True


def _can_be_timed(choice: Any) -> bool:
    from torch._inductor.select_algorithm import ExternKernelCaller, TritonTemplateCaller

    # others, such as graphs of several kernels and calls that allocate their result, are timed in ways of their own
    if not isinstance(choice, ExternKernelCaller | TritonTemplateCaller) or choice.layout.device.type != "cuda":
        return False
    is_timed_by_request = callable(getattr(getattr(choice, "bmreq", None), "do_bench", None))
    return is_timed_by_request and getattr(choice, "has_out_variant", True)


def _in_graph(request: Any, benchmark: Callable[..., float]) -> Callable[..., float]:
    def benchmark_in_graph(*args: Any, **kwargs: Any) -> float:
        import torch

        do_bench = request.do_bench

        def of_graph(call: Callable[[], Any], *tensors: Any, **options: Any) -> Any:
            try:
                return _graph_ms(call)
            except RuntimeError:  # it cannot be captured, or does not run, which Inductor is to see
                torch.cuda.synchronize()
                return do_bench(call, *tensors, **options)

        # launchers take the stream that is current when they are made, and the default one cannot be captured
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        request.do_bench = of_graph
        try:
            with torch.cuda.stream(stream):
                return benchmark(*args, **kwargs)
        finally:
            del request.do_bench
            torch.cuda.current_stream().wait_stream(stream)

    return benchmark_in_graph


def _graph_ms(call: Callable[[], Any]) -> float:
    """Return what a call takes on the GPU when its operands are not in L2: what it adds to a graph of flushes."""
    import torch

    l2_bytes = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
    flushed = torch.empty(l2_bytes // 4, dtype=torch.int32, device="cuda")
    call()  # modules are loaded, workspaces allocated
    once_ms = _elapsed_ms(call)
    num_calls = max(1, min(_MOST_CALLS, round(_GRAPH_MS / max(once_ms, _LEAST_MS))))

    def flush_and_call() -> None:
        flushed.zero_()
        call()

    both_ms, flush_ms = (_replay_ms(each, num_calls) for each in (flush_and_call, flushed.zero_))
    return max((both_ms - flush_ms) / num_calls, _LEAST_MS)


def _replay_ms(call: Callable[[], Any], num_calls: int) -> float:
    import torch

    graph = torch.cuda.CUDAGraph()
    # not `torch.cuda.graph`, which may collect garbage and empties the allocator's cache each time
    graph.capture_begin(capture_error_mode="thread_local")
    try:
        for _ in range(num_calls):
            call()
    finally:
        graph.capture_end()
    graph.replay()
    return min(_elapsed_ms(graph.replay) for _ in range(_REPLAYS))


def _elapsed_ms(call: Callable[[], Any]) -> float:
    import torch

    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))
