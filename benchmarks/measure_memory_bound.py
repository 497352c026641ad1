"""Times kernels that are bound by memory, written as serving engines have them, where they stand between others.

    python -m benchmarks.measure_memory_bound --out FOLDER     # a GPU, PyTorch, CuPy and pandas; some minutes

Norms, positions, activations, a cast, gathers, and what surrounds experts (engine_kernels.py). Before each call runs a
kernel that reads 24 MB of weights, others each time, and writes the input, as a GEMM of the layer would: a CUDA graph
of such pairs, less one of these kernels alone, over their number, medians of several replays. Values are bf16; each
kernel is held to float64 first.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
from torch.nn import functional

from benchmarks.engine_kernels import Kernels
from benchmarks.graph_replays import replay_us

BF16 = torch.bfloat16
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
HIDDEN = (1024, 2048, 2880, 4096, 5120, 7168, 8192)
INNER = (768, 1536, 2048, 3584, 8192, 14336, 28672)
HEADS = ((8, 1), (16, 2), (32, 8), (32, 4), (40, 8), (64, 8), (32, 32))
HEAD_DIM, TOP, EXPERTS, VOCABULARY = 128, 8, (64, 128, 256), (32768, 131072)
MOST_BYTES = 1 << 30
WEIGHT_BYTES, WEIGHTS = 24 << 20, 16
CALLS, REPLAYS = 16, 9


class Case(NamedTuple):
    """A call.

    Attributes:
        what: the kernel.
        rows, width: CTAs, or tokens, and elements of one.
        read_bytes, write_bytes: of the call, each tensor once.
        x: the tensor that the operation before wrote.
        call: the kernel.
        check: returns what it gave beside what it should, in float64.
    """

    what: str
    rows: int
    width: int
    read_bytes: int
    write_bytes: int
    x: torch.Tensor
    call: Callable[[], object]
    check: Callable[[], tuple[torch.Tensor, torch.Tensor]]


def normal(*shape: int) -> torch.Tensor:
    """Random bf16."""
    return torch.randn(*shape, device="cuda", dtype=BF16)


def norms(run: Kernels, rows: int, width: int) -> Iterator[Case]:
    """Yield a norm with a residual and one without."""
    x, residual, weight = normal(rows, width), normal(rows, width), normal(width)
    size = 2 * rows * width

    def scaled(values: torch.Tensor) -> torch.Tensor:
        return values * torch.rsqrt(values.pow(2).mean(-1, keepdim=True) + 1e-6) * weight.double()

    def added() -> tuple[torch.Tensor, torch.Tensor]:
        expected = scaled(x.double() + residual.double())
        return run.norm(x, weight, residual), expected

    call = lambda: run.norm(x, weight, residual)  # noqa: E731
    yield Case("add_rms_norm", rows, width, 2 * size, 2 * size, x, call, added)

    def alone() -> torch.Tensor:
        return run.norm(x, weight, None)

    yield Case("rms_norm", rows, width, size, size, x, alone, lambda: (alone(), scaled(x.double())))


def activation(run: Kernels, rows: int, width: int) -> Iterator[Case]:
    """Yield gate through its sigmoid times up."""
    x = normal(rows, 2 * width)

    def check() -> tuple[torch.Tensor, torch.Tensor]:
        gate, up = x.double().chunk(2, -1)
        return run.silu_mul(x), functional.silu(gate) * up

    yield Case("act_mul", rows, width, 4 * rows * width, 2 * rows * width, x, lambda: run.silu_mul(x), check)


def positions(run: Kernels, rows: int, heads: tuple[int, int]) -> Iterator[Case]:
    """Yield positions with the write of the cache, and norms of heads."""
    num, kv = heads
    x = normal(rows, (num + 2 * kv) * HEAD_DIM)
    turns = torch.randn(rows, HEAD_DIM // 2, device="cuda")
    angles = torch.stack((turns.cos(), turns.sin()), -1)
    cache = normal(1, rows, kv, HEAD_DIM), normal(1, rows, kv, HEAD_DIM)
    weights = normal(HEAD_DIM), normal(HEAD_DIM)

    def turn() -> None:
        run.rotary_kv_write(x, angles, cache, num, rows)

    def norm() -> None:
        run.qk_norm(x, weights, num, kv)

    def turned() -> tuple[torch.Tensor, torch.Tensor]:
        low, high = x.double().view(rows, -1, 2, HEAD_DIM // 2)[:, : num + kv].unbind(2)
        cosine, sine = (part[:, None].double() for part in angles.unbind(-1))
        expected = torch.cat((low * cosine - high * sine, high * cosine + low * sine), -1)
        values = x.view(rows, -1, HEAD_DIM)[:, num + kv :].double()
        turn()
        found = torch.cat((x.view(rows, -1, HEAD_DIM)[:, :num], cache[0][0], cache[1][0]), 1)
        return found, torch.cat((expected, values), 1)

    def normed() -> tuple[torch.Tensor, torch.Tensor]:
        of = x.view(rows, -1, HEAD_DIM)[:, : num + kv].double()
        scale = torch.cat((weights[0].expand(num, -1), weights[1].expand(kv, -1))).double()
        expected = of * torch.rsqrt(of.pow(2).mean(-1, keepdim=True) + 1e-6) * scale
        norm()
        return x.view(rows, -1, HEAD_DIM)[:, : num + kv], expected

    size, some = 2 * x.numel(), 2 * rows * (num + kv) * HEAD_DIM
    yield Case("rotary_kv_write", rows, x.shape[1], size, size, x, turn, turned)
    yield Case("qk_norm", rows, (num + kv) * HEAD_DIM, some, some, x, norm, normed)


def experts(run: Kernels, rows: int, num: int) -> Iterator[Case]:
    """Yield the choice of experts and its sort."""
    logits = normal(rows, num)
    counts = torch.zeros(2, num, device="cuda", dtype=torch.int32)
    chosen, _ = run.routing(logits, TOP, counts[0])
    frozen = counts[0].clone()

    def routed() -> tuple[torch.Tensor, torch.Tensor]:
        counts.zero_()
        found, weights = run.routing(logits, TOP, counts[0])
        values = logits.double().topk(TOP, -1).values
        ties = logits.double().gather(-1, found.long())
        assert torch.equal(counts[0], torch.bincount(found.view(-1), minlength=num).int())
        return torch.cat((ties, weights.double()), -1), torch.cat((values, values.softmax(-1)), -1)

    def sort() -> tuple[torch.Tensor, torch.Tensor]:
        return run.expert_sort(chosen, frozen, counts[1])

    def ordered() -> tuple[torch.Tensor, torch.Tensor]:
        counts.zero_()
        offsets, places = sort()
        found = chosen.view(-1)[places.view(-1).long().argsort()]
        assert torch.equal(offsets[1:], frozen.cumsum(0).int())
        return found, chosen.view(-1).sort().values

    size = rows * TOP * 4
    pick = lambda: run.routing(logits, TOP, counts[0])  # noqa: E731
    yield Case("top_k", rows, num, 2 * logits.numel(), 2 * size, logits, pick, routed)
    yield Case("sort", rows, TOP, size, size, chosen.view(torch.float32), sort, ordered)


def rows_of_experts(run: Kernels, rows: int, width: int) -> Iterator[Case]:
    """Yield the copy of tokens to the rows of their experts, and the weighted sum."""
    x, y = normal(rows, width), normal(rows * TOP, width)
    weights = torch.rand(rows, TOP, device="cuda")
    places = torch.randperm(rows * TOP, device="cuda").int().view(rows, TOP)
    once, many = 2 * x.numel(), 2 * y.numel()

    def copied() -> tuple[torch.Tensor, torch.Tensor]:
        found = run.permute(x, places)[places.view(-1).long()]
        return found, x.double().repeat_interleave(TOP, 0)

    def summed() -> tuple[torch.Tensor, torch.Tensor]:
        expected = (y.double()[places.long()] * weights[..., None].double()).sum(1)
        return run.finalize(y, places, weights), expected

    yield Case("permute", rows, width, once, many, x, lambda: run.permute(x, places), copied)
    sums = lambda: run.finalize(y, places, weights)  # noqa: E731
    yield Case("weighted_sum", rows, width, many, once, y, sums, summed)


def rows_of_tables(run: Kernels, rows: int, width: int) -> Iterator[Case]:
    """Yield a gather of rows."""
    table, ids = normal(VOCABULARY[0], width), torch.randint(0, VOCABULARY[0], (rows,), device="cuda")
    size = 2 * rows * width

    def call() -> torch.Tensor:
        return run.gather(table, ids)

    yield Case("gather", rows, width, size, size, ids.view(torch.float32), call, lambda: (call(), table[ids].double()))


def logits(_run: Kernels, rows: int, width: int) -> Iterator[Case]:
    """Yield a cast to fp32, by PyTorch's kernel, which deals elements to all SMs."""
    x = normal(rows, width)

    def call() -> torch.Tensor:
        return x.float()

    yield Case("cast", rows, width, 2 * x.numel(), 4 * x.numel(), x, call, lambda: (call(), x.double()))


def cases(run: Kernels) -> Iterator[Case]:
    """Yield all calls."""
    kinds: tuple[tuple[Callable[..., Iterator[Case]], tuple[object, ...]], ...] = (
        (norms, HIDDEN), (activation, INNER), (positions, HEADS), (experts, EXPERTS), (rows_of_experts, HIDDEN),
        (rows_of_tables, HIDDEN), (logits, (*HIDDEN, *VOCABULARY)),
    )  # fmt: skip
    for make, widths in kinds:
        for width in widths:
            for rows in ROWS:
                for case in make(run, rows, width):
                    if case.read_bytes + case.write_bytes <= MOST_BYTES:
                        yield case


def check(case: Case) -> None:
    """Hold a call to float64."""
    found, expected = (values.double() for values in case.check())
    error = ((found - expected).abs().max() / expected.abs().max()).item()
    if not error < 0.02:  # also where it is no number
        raise SystemExit(f"wrong by {error:.3g}: {case[:3]}")


def _nothing() -> None:
    pass


class Clock:
    """Times a call between others on a stream of its own."""

    def __init__(self, run: Kernels) -> None:
        self.run, self.stream = run, torch.cuda.Stream()
        self.weights = torch.zeros(WEIGHTS, WEIGHT_BYTES // 4, device="cuda")

    def time_us(self, case: Case) -> float:
        """Return the time that a call adds."""
        empty, full = (self._graph(case, call) for call in (_nothing, case.call))
        times = [replay_us(full, self.stream) - replay_us(empty, self.stream) for _ in range(REPLAYS)]
        return statistics.median(times[1:]) / CALLS

    def _graph(self, case: Case, call: Callable[[], object]) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self.stream):
            self.run.operation_before(self.weights[0], case.x)
            call()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=self.stream):
            for place in range(CALLS):
                self.run.operation_before(self.weights[place % WEIGHTS], case.x)
                call()
        return graph


def main() -> None:
    """Check and time all cases, and write a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the table")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    run = Kernels()
    clock, rows, begun = Clock(run), [], time.monotonic()
    for case in cases(run):
        check(case)
        rows.append((*case[:5], round(clock.time_us(case), 4)))
    columns = ["what", "rows", "width", "read_bytes", "write_bytes", "latency_us"]
    pd.DataFrame(rows, columns=columns).to_csv(options.out / "kernels.csv", index=False)
    print(f"{len(rows)} kernels on {torch.cuda.get_device_name()} in {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
