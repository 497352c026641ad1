"""Times stacks of layers on a GPU, whole steps in CUDA graphs and each operation in them, and counts their memory.

    python -m benchmarks.measure_stacks --out FOLDER     # a GPU, PyTorch, CuPy, pandas; some minutes

Writes FOLDER/steps.csv and FOLDER/held.csv (memory, and rows of each expert by layer); `gemm-eval validate stacks`
sets predictions beside them. Stacks are shaped like models, with random weights (stack_model.py). Each is first held to
float64, prompt and decode. A step is a prompt, or one token for each sequence of a batch over a filled cache. Its time
is the median of replays with pauses between them, so that clocks are those of a GPU that is not hot. The time of an
operation is that of its kernels in replays under torch's profiler, medians again, and a share of what lies between
kernels, as much for each: gaps that the profiler itself makes are no operation's. All add up to the step without the
profiler: long kernels, whose clock is another there, are scaled.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch

from benchmarks.graph_replays import replay_us
from benchmarks.stack_model import BF16, Stack, reference, use_torch_memory
from gemm_eval.transformer import load_model
from gemm_eval.transformer.config import stage_config

MODELS = ("llama-3-8b", "qwen3-30b-a3b")
NUM_LAYERS = 4
PROMPTS = (512, 4096, 16384)
DECODES = [(batch, context) for batch in (1, 16, 128) for context in (1024, 8192)]
REPLAYS, PROFILED = 11, 5
PAUSE_S = 0.03
MOST_GAP_US = 1.0
LARGEST_ERROR = 0.05


class Case(NamedTuple):
    """A step: tokens of each sequence, and positions of its cache."""

    batch: int
    q_len: int
    kv_len: int


def cases() -> Iterator[Case]:
    """Yield prompts, then decode."""
    yield from (Case(1, tokens, tokens) for tokens in PROMPTS)
    yield from (Case(batch, 1, context) for batch, context in DECODES)


def nothing(_name: str) -> None:
    """No mark."""


def check(stack: Stack) -> None:
    """Hold a prompt, and a token after it, to float64."""
    stack.set_positions(64)
    ids = torch.randint(0, stack.config.vocab_size, (2, 41), device="cuda")
    expected = reference(stack, ids)
    caches = [tuple(torch.full_like(part, float("nan")) for part in pair) for pair in stack.caches(2, 40)]
    prompt = stack.step(ids[:, :40].contiguous(), caches, nothing)
    longer = [tuple(torch.cat((part, part[:, :1] * float("nan")), 1) for part in pair) for pair in caches]
    token = stack.step(ids[:, 40:].contiguous(), longer, nothing)
    for what, found, wanted in (("prompt", prompt, expected[:, 39]), ("decode", token, expected[:, 40])):
        error = ((found.double() - wanted).norm() / wanted.norm()).item()
        print(f"{what}: relative error {error:.4f}")
        if not error < LARGEST_ERROR:  # also where it is no number
            raise SystemExit("wrong")


def kernels_of(call: Callable[[], None]) -> list[tuple[str, float, float]]:
    """Return name, start and end in microseconds of all kernels (and sets of memory) that a call runs, in order."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    found = [
        (event.name(), event.start_ns() / 1e3, (event.start_ns() + event.duration_ns()) / 1e3)
        for event in profile.profiler.kineto_results.events()
        if event.device_type() == torch.profiler.DeviceType.CUDA and "stream" not in event.name().lower()
    ]
    return sorted(found, key=lambda item: item[1])


class Step:
    """A step that is ready to run: eagerly, as a graph, and with marks between its operations."""

    def __init__(self, stack: Stack, case: Case) -> None:
        self.stack, self.case = stack, case
        stack.set_positions(case.kv_len)
        self.ids = torch.randint(0, stack.config.vocab_size, (case.batch, case.q_len), device="cuda")
        self.stream = torch.cuda.Stream()
        before = torch.cuda.memory_allocated()
        self.caches = stack.caches(case.batch, case.kv_len)
        self.cache_bytes = torch.cuda.memory_allocated() - before
        self._run(nothing)  # chooses kernels, makes workspaces
        self._run(nothing)
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        self._run(nothing)
        self.activation_bytes = torch.cuda.max_memory_allocated() - held
        self.loads = [] if stack.loads is None else stack.loads.tolist()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, stream=self.stream):
            self.logits = stack.step(self.ids, self.caches, nothing)

    def _run(self, begin: Callable[[str], None]) -> None:
        with torch.cuda.stream(self.stream):
            self.stack.step(self.ids, self.caches, begin)
        torch.cuda.synchronize()

    def time_us(self) -> float:
        """Return the time of a replay."""
        times = []
        for _ in range(REPLAYS):
            time.sleep(PAUSE_S)
            times.append(replay_us(self.graph, self.stream))
        return float(statistics.median(times[1:]))

    def operations(self) -> list[tuple[str, str, int, float]]:
        """Return name, longest kernel, number of kernels and their microseconds, of each operation in their order."""
        names: list[str] = []

        def begin(name: str) -> None:
            names.append(name)
            self.stack.kernels.marker()

        nums: list[int] = []
        for name, *_ in kernels_of(lambda: self._run(begin)):
            if name.startswith("marker"):
                nums.append(0)
            else:
                nums[-1] += 1
        assert len(nums) == len(names)
        runs = []
        for _ in range(PROFILED):
            time.sleep(PAUSE_S)
            kernels = kernels_of(self._replay)
            if len(kernels) != sum(nums):
                raise SystemExit(f"{len(kernels)} kernels in the graph, {sum(nums)} without it")
            runs.append(list(_spans(kernels, nums)))
        medians = [statistics.median(run[place][1] for run in runs) for place in range(len(names))]
        longest = [span[0] for span in runs[0]]
        return list(zip(names, longest, nums, medians, strict=True))

    def _replay(self) -> None:
        with torch.cuda.stream(self.stream):
            self.graph.replay()


def _spans(kernels: list[tuple[str, float, float]], nums: list[int]) -> Iterator[tuple[str, float]]:
    first = 0
    for num in nums:
        own = kernels[first : first + num]
        first += num
        yield max(own, key=lambda item: item[2] - item[1])[0], sum(end - start for _, start, end in own)


def measure(stack: Stack, case: Case) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return rows of steps.csv and one of held.csv."""
    step = Step(stack, case)
    step_us = step.time_us()
    found = step.operations()
    kernels_us, num_kernels = sum(us for *_, us in found), sum(num for _, _, num, _ in found)
    gap_us = min(max((step_us - kernels_us) / num_kernels, 0.0), MOST_GAP_US)
    scale = (step_us - num_kernels * gap_us) / kernels_us
    rows: dict[str, dict[str, Any]] = {}
    for name, kernel, num, us in found:
        row = rows.setdefault(name, {"operation": name, "calls": 0, "kernels": 0, "latency_us": 0.0, "kernel": kernel})
        row["calls"] += 1
        row["kernels"] += num
        row["latency_us"] += us * scale + num * gap_us
    said = f"gap {gap_us:.3f} us, kernels times {scale:.3f}"
    whole = {"operation": "step", "calls": 1, "kernels": num_kernels, "latency_us": step_us, "kernel": said}
    loads = ";".join(" ".join(map(str, counts)) for counts in step.loads)
    held = {"cache_bytes": step.cache_bytes, "activation_bytes": step.activation_bytes, "expert_rows": loads}
    return [whole, *rows.values()], held


def main() -> None:
    """Check and time all stacks, and write both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the tables")
    parser.add_argument("--models", nargs="*", default=MODELS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    use_torch_memory()
    torch.randn(64, 64, device="cuda", dtype=BF16) @ torch.randn(
        64, 64, device="cuda", dtype=BF16
    )  # cuBLAS's workspace
    steps, memory = [], []
    for name in options.models:
        for dtype in ("bf16", "w4a16"):
            config = stage_config(load_model(name), range(NUM_LAYERS))
            before = torch.cuda.memory_allocated()
            stack = Stack(config, is_packed=dtype == "w4a16")
            gc.collect()
            weight_bytes = torch.cuda.memory_allocated() - before
            with torch.no_grad():
                check(stack)
                for case in cases():
                    what = {"model": name, "num_layers": NUM_LAYERS, "dtype": dtype, **case._asdict()}
                    rows, held = measure(stack, case)
                    steps += [what | row for row in rows]
                    memory.append(what | {"weight_bytes": weight_bytes} | held)
                    print(*what.values(), round(rows[0]["latency_us"], 1), rows[0]["kernel"], flush=True)
                    gc.collect()
                    torch.cuda.empty_cache()
                    pd.DataFrame(steps).round(3).to_csv(options.out / "steps.csv", index=False)
                    pd.DataFrame(memory).to_csv(options.out / "held.csv", index=False)
            del stack
            gc.collect()
    print(torch.cuda.get_device_name(), "torch", torch.__version__)


if __name__ == "__main__":
    main()
