"""Compiles layers by torch.compile, from nothing, and times what Inductor chose; for `measure_inductor.py`."""

from __future__ import annotations

import contextlib
import statistics
import time
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._inductor import config, select_algorithm
from torch._inductor.utils import fresh_inductor_cache

from benchmarks.inductor_layers import Layer
from benchmarks.measure_inductor import NOT_TIMED, Compiled
from gemm_eval.torch import PruneReport, prune_inductor

_MODE = "max-autotune-no-cudagraphs"
_COLD_FACTOR = 4  # so many times L2 are read before a copy of the weights is read again
_MOST_COPIES = 128
_TURNS = 7
_LEAST_BURST_US = 3000.0
_IDLE_S = 0.01  # before a burst: else the clock depends on what ran before
_CHECKED_ROWS = 64
_functions = 0


def _linear(x: Any, weight: Any, bias: Any) -> Any:
    return torch.nn.functional.linear(x, weight, bias)


def _linears(tensors: Any) -> Any:
    return [torch.nn.functional.linear(*one) for one in tensors]


def fresh(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of the same code that torch.compile has never seen; what was compiled before stays alive."""
    global _functions  # noqa: PLW0603
    _functions += 1
    name = f"{function.__name__}_{_functions}"
    code = function.__code__.replace(co_name=name)
    return types.FunctionType(code, function.__globals__, name)


class Recorder:
    """Keeps Inductor's own timings of candidates: what its feedback functions are given."""

    def __init__(self) -> None:
        self.timings: list[tuple[tuple[int, ...], dict[Any, float]]] = []

    def __call__(self, timings: dict[Any, float], name: str, nodes: Sequence[Any], *_: Any) -> None:
        """Keep the timings of one GEMM, in ms."""
        del name
        a, b = nodes[-2:]
        sizes = (a.get_size()[0], b.get_size()[1], a.get_size()[1])
        self.timings.append((tuple(int(size) for size in sizes), dict(timings)))

    def choice(self, layer: Layer) -> str | None:
        """Name of what was fastest for a layer; None: nothing was timed."""
        for sizes, timings in self.timings:
            if sizes == (layer.M, layer.N, layer.K) and timings:
                return _describe(min(timings, key=timings.__getitem__))
        return None

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a row for each candidate."""
        for (M, N, K), timings in self.timings:
            for choice, time_ms in timings.items():
                yield {"M": M, "N": N, "K": K, "choice": _describe(choice), "inductor_us": 1e3 * time_ms}


def _describe(choice: Any) -> str:
    info = getattr(choice, "log_info", None)
    if not info or "tile_shape" not in info:
        return str(choice.name).rstrip("_0123456789")
    m, k, n = (int(size) for size in str(info["tile_shape"]).strip("()").split(","))
    return f"{choice.name.rpartition('_')[0]} {m}x{n}x{k} {info['num_warps']} warps {info['num_stages']} stages"


@contextlib.contextmanager
def recorded() -> Iterator[Recorder]:
    """Record Inductor's timings."""
    recorder = Recorder()
    functions = select_algorithm.get_algorithm_selector_cache().feedback_saver_fns
    functions.append(recorder)
    try:
        yield recorder
    finally:
        functions.remove(recorder)


class GpuBench:
    """The `measure_inductor.Bench` of a real GPU.

    Args:
        device: ``"cuda"``; tests take ``"cpu"``.
        arch: the GPU to rank for; None: the one that runs.
    """

    def __init__(self, device: str = "cuda", arch: str | None = None) -> None:
        self.device, self.arch = device, arch
        self.l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size if device == "cuda" else 1
        self._tensors: dict[Layer, tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]] = {}
        for top_k in (None, 1):  # the pool of compilers starts, libraries are loaded
            self.compile_model([Layer("warm-up", "up", 128, 256, 256, False)], top_k)

    def compile_model(self, layers: Sequence[Layer], top_k: int | None) -> Compiled:
        """Compile a model's layers as one graph from nothing, then each alone out of the same caches."""
        if not self._tensors.keys() >= set(layers):
            self._tensors = {layer: self._make(layer) for layer in layers}
        tensors = [self._tensors[layer] for layer in layers]
        with torch.no_grad(), fresh_inductor_cache(), self._pruned(top_k) as report:
            with recorded() as recorder:
                self._synchronize()
                start = time.perf_counter()
                torch.compile(fresh(_linears), mode=_MODE)(tensors)
                self._synchronize()
                compile_s = time.perf_counter() - start
            num_candidates = sum(len(timings) for _, timings in recorder.timings)
            alone, choices = [], []
            for layer in layers:
                with recorded() as again:  # where Inductor does not find its timings in the cache
                    alone.append(self._alone(layer))
                choices.append(again.choice(layer) or recorder.choice(layer) or NOT_TIMED)
        if report is not None:
            print(f"  {report.num_kept} of {report.num_before} candidates of templates stay", flush=True)
        return Compiled(
            compile_s, [run for run, _ in alone], choices, list(recorder.rows()), num_candidates,
            [error for _, error in alone],
        )  # fmt: skip

    def times_us(self, runs: Sequence[Any]) -> list[float]:
        """Medians of replays in turns, in us of one call."""
        found: list[list[float]] = [[] for _ in runs]
        for _ in range(_TURNS):
            for times, run in zip(found, runs, strict=True):
                times.append(run())
        return [statistics.median(times) for times in found]

    @contextlib.contextmanager
    def _pruned(self, top_k: int | None) -> Iterator[PruneReport | None]:
        # candidates are to be timed, not found in caches of another run
        with config.patch(fx_graph_cache=False, autotune_remote_cache=False):
            if top_k is None:
                yield None
            else:
                with prune_inductor(top_k, self.arch) as report:
                    yield report

    def _make(self, layer: Layer) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        def normal(*shape: int) -> torch.Tensor:
            return torch.randn(*shape, device=self.device, dtype=torch.bfloat16)

        weight = normal(layer.N, layer.K) * layer.K**-0.5
        return normal(layer.M, layer.K), weight, normal(layer.N) if layer.has_bias else None

    def _alone(self, layer: Layer) -> tuple[Callable[[], float], float]:
        """Return what times a call of a layer, in us, and its largest error over the largest value."""
        x, weight, bias = self._tensors[layer]
        compiled = torch.compile(fresh(_linear), mode=_MODE)
        rows = slice(None, None, max(1, layer.M // _CHECKED_ROWS))
        found = compiled(x, weight, bias)[rows].double()
        expected = x[rows].double() @ weight.double().T + (0.0 if bias is None else bias.double())
        error = float((found - expected).abs().max() / expected.abs().max())
        copies = min(_MOST_COPIES, max(2, -(-_COLD_FACTOR * self.l2_bytes // layer.weight_bytes)))
        weights = [weight, *(weight.clone() for _ in range(copies - 1))]

        def calls() -> None:
            for one in weights:
                compiled(x, one, bias)

        return self._run(calls, copies), error

    def _run(self, calls: Callable[[], Any], num_calls: int) -> Callable[[], float]:
        if self.device != "cuda":
            return lambda: _wall_us(calls) / num_calls
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            calls()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            calls()
        graph.replay()
        repeats = max(1, round(_LEAST_BURST_US / max(_events_us(graph.replay, 1), 1.0)))

        def run(kept: Callable[[], Any] = calls) -> float:  # the graph does not keep what it reads alive
            del kept
            time.sleep(_IDLE_S)
            return _events_us(graph.replay, repeats) / repeats / num_calls

        return run

    def _synchronize(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def _events_us(call: Callable[[], Any], repeats: int) -> float:
    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return 1e3 * float(start.elapsed_time(end))


def _wall_us(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    with torch.no_grad():  # as when it was compiled
        call()
    return 1e6 * (time.perf_counter() - start)
