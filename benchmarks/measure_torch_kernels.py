"""Times torch's own kernels between others: elementwise, sums, norms, copies, convolutions, attention with a mask.

    python -m benchmarks.measure_torch_kernels --out FOLDER               # a GPU and PyTorch; two minutes
    python -m benchmarks.measure_torch_kernels --out FOLDER --table       # without a GPU, as the next
    python -m benchmarks.measure_torch_kernels --out arch/measured/h200-sxm/torch --show

Each call is captured in a CUDA graph behind a kernel that writes its input, again and again; a graph of these alone is
taken off. Writes FOLDER/kernels.csv: the call as torch_kernel_cases.py makes it, latency_us, and the names and times of
its kernels as torch's profiler saw them, alone. From it `--table` makes FOLDER/torch.csv, for `gemm-eval calibrate
memory-bound --library torch`: a row for each kernel that eager mode has for an operation, as `gemm_eval.torch` sees it;
of several kernels each has its share of the time. Convolutions, GEMMs and attention are in kernels.csv alone, but for
changes of layout. `--show` prints errors of whole calls by group, as `gemm_eval.torch` predicts them.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.graph_replays import replay_us
from benchmarks.torch_kernel_cases import CASES, COMPILED, Case

_CALLS = 8
_REPLAYS = 8
_PAUSE_S = 0.004
_PROFILED = 3


def graph_us(call: Callable[[], Any], num_calls: int = _CALLS, pause_s: float = _PAUSE_S) -> Callable[[], float]:
    """Capture calls; what is returned replays them, after a pause, and returns microseconds of all."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(num_calls):
            call()

    def replay() -> float:
        time.sleep(pause_s)
        return replay_us(graph, stream)

    return replay


def latency_us(run: Callable[[], Any], written: torch.Tensor) -> float:
    """Time of one call whose input was just written."""

    def both() -> None:
        written.neg_()
        run()

    with_call, without = graph_us(both), graph_us(written.neg_)
    times = [with_call() - without() for _ in range(_REPLAYS)]
    return statistics.median(times[1:]) / _CALLS


def kernels_of(run: Callable[[], Any], written: torch.Tensor) -> list[tuple[str, float]]:
    """Names of the kernels of a call, and the median of the time of each, as the profiler saw them."""
    from torch.profiler import ProfilerActivity, profile

    runs: list[list[tuple[str, float]]] = []
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(_PROFILED):
            written.neg_()
            run()
        torch.cuda.synchronize()
    assert profiler.profiler is not None
    events = [e for e in profiler.profiler.kineto_results.events() if "CUDA" in str(e.device_type())]
    found = sorted((e.start_ns(), e.name(), 1e-3 * e.duration_ns()) for e in events)
    each = len(found) // _PROFILED
    runs = [[(name, us) for _, name, us in found[i * each : (i + 1) * each]] for i in range(_PROFILED)]
    return [(at[0][0], round(statistics.median(us for _, us in at), 3)) for at in zip(*runs, strict=True)][1:]


def row_of(case: Case) -> dict[str, Any]:
    """Measure one call."""
    run, written = case.make("cuda")
    with torch.no_grad():
        run()
        us = latency_us(run, written)
        kernels = kernels_of(run, written)
    return {"group": case.group, "call": case.text, "latency_us": round(us, 3), "kernels": json.dumps(kernels)}


def table(folder: Path) -> None:
    """Write the kernels that are bound by memory as the model of these reads them."""
    from gemm_eval.torch.graph import VECTORS
    from gemm_eval.transformer import MemoryWork
    from gemm_eval.workload import TORCH, memory_kernel

    with (folder / "kernels.csv").open(newline="", encoding="utf-8") as file:
        measured = {(row["group"], row["call"]): row for row in csv.DictReader(file)}
    with (folder / "torch.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["what", "rows", "width", "read_bytes", "write_bytes", "latency_us", "call"])
        for case in (*CASES, *COMPILED):
            row = measured.get((case.group, case.text))
            if row is None or case.group in ("bmm", "attention"):
                continue
            kernels = [(name, us) for name, us in json.loads(row["kernels"]) if not name.startswith("Memset")]
            works = [work for work in works_of(case) if getattr(work, "what", None) != "memset"]
            if len(works) != len(kernels):
                print(f"not as expected: {case.text}: {len(works)} kernels, found {[name[:60] for name, _ in kernels]}")
                continue
            share = float(row["latency_us"]) / sum(us for _, us in kernels)
            for work, (_, us) in zip(works, kernels, strict=True):
                if not isinstance(work, MemoryWork) or memory_kernel(work.what).library != TORCH:
                    continue
                if case.group != "compiled" or work.what not in VECTORS:  # those are Inductor's, priced as eager's
                    sizes = work.rows, work.width, work.read_bytes, work.write_bytes
                    writer.writerow([work.what, *sizes, round(us * share, 3), case.text])


def show(folder: Path, arch: str) -> None:
    """Print how far predictions of whole calls are off, by group."""
    from gemm_eval.torch import predict_module

    class Call(torch.nn.Module):  # type: ignore[misc]
        """One call, as a module."""

        def __init__(self, run: Callable[[], Any]) -> None:
            super().__init__()
            self.run = run

        def forward(self) -> Any:
            """Make it."""
            return self.run()

    with (folder / "kernels.csv").open(newline="", encoding="utf-8") as file:
        measured = {(row["group"], row["call"]): float(row["latency_us"]) for row in csv.DictReader(file)}
    errors: dict[str, list[float]] = {}
    for case in (*CASES, *COMPILED):
        if (case.group, case.text) in measured:
            fusion = "inductor" if case in COMPILED else "eager"
            with torch.no_grad():
                found = predict_module(Call(case.make("meta")[0]), (), arch, fusion=fusion)
            group = f"{case.group} {case.text.split()[0]}" if case.group in ("attention", "compiled") else case.group
            if case.group == "convolution":
                group = f"{group} {case.text.split()[1] if case.text.startswith('conv2d') else 'of other kinds'}"
            errors.setdefault(group, []).append(found.latency_us / measured[case.group, case.text] - 1)
    errors["all"] = [error for of in errors.values() for error in of]
    print(f"{'group':28s} {'n':>4s}   MAPE median   bias")
    for group, of in errors.items():
        sizes = sorted(abs(error) for error in of)
        mape, median, bias = statistics.mean(sizes), statistics.median(sizes), statistics.mean(of)
        print(f"{group:28s} {len(of):4d} {mape:6.1%} {median:6.1%} {bias:+6.1%}")


def works_of(case: Case) -> list[Any]:
    """Return what a call is for the models, kernel by kernel."""
    from gemm_eval.torch.fusion import kernels_of
    from gemm_eval.torch.recorder import Recorder, current_precision
    from gemm_eval.transformer import MemoryWork

    run, x = case.make("meta")
    if case.group == "rms_norm":  # one kernel on a GPU, and apart on "meta"
        return [MemoryWork("torch_rms_norm", 2 * x.numel(), 2 * x.numel(), *x.shape)]
    recorder = Recorder(current_precision())
    with torch.no_grad(), recorder:
        out = run()
    trace = recorder.finish()
    del out
    return [work for kernel in kernels_of(trace, "inductor" if case in COMPILED else "eager") for work in kernel.works]


def main() -> None:
    """Measure all, and write each as it comes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the table")
    parser.add_argument("--groups", nargs="+", default=None, help="only these kinds")
    parser.add_argument("--budget-s", type=float, default=240.0, help="begin nothing after so long")
    parser.add_argument("--table", action="store_true", help="only make torch.csv of what was measured")
    parser.add_argument("--show", action="store_true", help="only print errors of predictions")
    parser.add_argument("--arch", default="h200-sxm", help="what --show predicts for")
    options = parser.parse_args()
    if options.show:
        show(options.out, options.arch)
        return
    if options.table:
        table(options.out)
        return
    options.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    begun = time.monotonic()
    with (options.out / "kernels.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["group", "call", "latency_us", "kernels"])
        writer.writeheader()
        for case in (*CASES, *COMPILED):
            if options.groups and case.group not in options.groups:
                continue
            if time.monotonic() - begun > options.budget_s:
                print(f"not measured, for time ran out: {case.group} {case.text} and what follows")
                break
            try:
                writer.writerow(row_of(case))
            except RuntimeError as error:  # of one call; the others are worth having
                print(f"{case.group} {case.text}: {error}", flush=True)
            file.flush()
    print(torch.cuda.get_device_name(), "torch", torch.__version__, f"{time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
