"""Times training steps of stacks of four layers (training_stacks.py): bf16, eager and by torch.compile, AdamW fused.

    python -m benchmarks.measure_training --out FOLDER [--limit-s 280]     # a GPU, PyTorch and pandas; some minutes

Writes FOLDER/steps.csv and FOLDER/operations.csv. Columns of steps.csv:

    forward_us, gradients_us, step_us   replays of CUDA graphs of the forward pass, of both passes, and with the
                                        optimizer: medians, with pauses between them
    launched_us                         the step without a graph, as it is launched by the CPU
    weight_bytes, held_bytes            by torch.cuda.memory_allocated: weights, and all that a step begins with
    activation_bytes                    kept between both passes, likewise
    peak_bytes                          torch.cuda.max_memory_allocated of a step without a graph

operations.csv has the kernels of a step under torch's profiler, means of three, by the operator that launched them;
those of Triton have none. The losses of both modes are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from benchmarks.graph_replays import replay_us
from benchmarks.training_stacks import CASES, inputs_of, make_stack

REPLAYS, PAUSE_S, PROFILED = 9, 0.03, 3
LARGEST_LOSS_ERROR = 0.01


class Trained:
    """A stack with its optimizer, and the parts of a step."""

    def __init__(self, name: str, batch: int, tokens: int, *, is_compiled: bool) -> None:
        torch.manual_seed(0)
        self.stream = torch.cuda.Stream()
        before = torch.cuda.memory_allocated()
        stack = make_stack(name, tokens, "cuda")
        self.weight_bytes = torch.cuda.memory_allocated() - before
        self.inputs = inputs_of(name, batch, tokens, "cuda")
        self.parameters = list(stack.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-5, fused=True, capturable=True)
        self.module = torch.compile(stack, dynamic=False) if is_compiled else stack

    def forward(self) -> torch.Tensor:
        """Return the loss."""
        loss: torch.Tensor = self.module(*self.inputs)
        return loss

    def gradients(self) -> torch.Tensor:
        """Run both passes; gradients begin as None."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.forward()
        loss.backward()
        return loss

    def step(self) -> torch.Tensor:
        """Run both passes and the optimizer."""
        loss = self.gradients()
        self.optimizer.step()
        return loss

    def on_stream(self, call: Callable[[], Any]) -> Any:
        """Run a part on the stream of this stack, to its end."""
        with torch.cuda.stream(self.stream):
            out = call()
        torch.cuda.synchronize()
        return out

    def memory(self) -> dict[str, int]:
        """Return the bytes that a step without a graph holds."""
        self.optimizer.zero_grad(set_to_none=True)
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        loss = self.on_stream(self.forward)
        kept = torch.cuda.memory_allocated() - held
        del loss
        self.on_stream(self.step)
        return {
            "weight_bytes": self.weight_bytes, "held_bytes": held, "activation_bytes": kept,
            "peak_bytes": torch.cuda.max_memory_allocated(),
        }  # fmt: skip

    def graph_us(self, call: Callable[[], Any]) -> float:
        """Return the time of a replay of a part."""
        self.optimizer.zero_grad(set_to_none=True)
        gc.collect()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            out = call()
        times = []
        for _ in range(REPLAYS):
            time.sleep(PAUSE_S)
            times.append(replay_us(graph, self.stream))
        del out
        self.optimizer.zero_grad(set_to_none=True)
        graph.reset()
        torch.cuda.empty_cache()
        return float(statistics.median(times[1:]))

    def launched_us(self) -> float:
        """Return the time of a step that the CPU launches."""
        times = []
        for _ in range(REPLAYS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            with torch.cuda.stream(self.stream):
                start.record()
                self.step()
                end.record()
            torch.cuda.synchronize()
            times.append(start.elapsed_time(end) * 1e3)
        return float(statistics.median(times[1:]))

    def operations(self) -> list[tuple[str, str, int, float]]:
        """Return operator, kernel, number of calls and microseconds of a step, in the order of the first calls."""
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            for _ in range(PROFILED):
                self.on_stream(self.step)
        events = profiler.profiler.kineto_results.events()
        operator_of = {event.correlation_id(): event.name() for event in events if event.name().startswith("aten::")}
        sums: dict[tuple[str, str], list[float]] = {}
        kernels = [
            event for event in events
            if event.device_type() == DeviceType.CUDA and not event.is_user_annotation() and event.duration_ns()
        ]  # fmt: skip
        for event in sorted(kernels, key=lambda item: item.start_ns()):
            name = operator_of.get(event.linked_correlation_id(), "")
            sums.setdefault((name, event.name()[:120]), []).append(event.duration_ns() / 1e3)
        return [(*names, len(us) // PROFILED, sum(us) / PROFILED) for names, us in sums.items()]


def main() -> None:
    """Measure all cases in both modes until the time is over, and write both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the tables")
    parser.add_argument("--limit-s", type=float, default=1e9, help="time after which no case begins")
    parser.add_argument("--modes", nargs="*", default=("eager", "compiled"))
    options = parser.parse_args()
    begin = time.time()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.randn(64, 64, device="cuda", dtype=torch.bfloat16) @ torch.randn(64, 64, device="cuda", dtype=torch.bfloat16)
    steps: list[dict[str, Any]] = []
    operations: list[dict[str, Any]] = []
    losses: dict[tuple[Any, ...], float] = {}
    for mode in options.modes:
        for case in CASES:
            what = dict(zip(("model", "batch", "tokens"), case, strict=True)) | {"mode": mode}
            if time.time() - begin > options.limit_s:
                print("out of time:", *what.values(), flush=True)
                continue
            torch._dynamo.reset()
            started = time.time()
            try:
                trained = Trained(*case, is_compiled=mode == "compiled")
                loss = trained.on_stream(trained.step).item()
                expected = losses.setdefault(case, loss)
                if not abs(loss - expected) < LARGEST_LOSS_ERROR * abs(expected):  # also where it is no number
                    raise RuntimeError(f"loss {loss}, expected {expected}")
                trained.on_stream(trained.step)
                row = what | trained.memory()
                for part in ("forward", "gradients", "step"):
                    row[f"{part}_us"] = round(trained.graph_us(getattr(trained, part)), 3)
                row |= {"launched_us": round(trained.launched_us(), 3), "loss": round(loss, 4)}
                steps.append(row)
                operations += [
                    what | {"operator": operator, "kernel": kernel, "calls": calls, "latency_us": round(us, 3)}
                    for operator, kernel, calls, us in trained.operations()
                ]
                print(*row.values(), f"{time.time() - started:.0f} s", flush=True)
            except Exception as error:  # of one case; the others are worth having
                print(*what.values(), type(error).__name__, str(error)[:1500], flush=True)
            trained = None  # type: ignore[assignment]
            gc.collect()
            torch.cuda.empty_cache()
            pd.DataFrame(steps).to_csv(options.out / "steps.csv", index=False)
            pd.DataFrame(operations).to_csv(options.out / "operations.csv", index=False)
    print(torch.cuda.get_device_name(), "torch", torch.__version__)


if __name__ == "__main__":
    main()
