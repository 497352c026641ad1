"""Times attention in PyTorch forward and backward, by its FlashAttention and cuDNN kernels.

    python -m benchmarks.measure_attention_gradients --out FOLDER [--limit-s 250]   # a GPU, PyTorch, pandas, pyarrow

Writes FOLDER/attention-torch-RELEASE-LIBRARY/backward.parquet, as gemm_eval/validation/subjects/attention.py reads it,
and FOLDER/attention-kernels.csv: the kernels of some cases under torch's profiler. The meta files are written by hand.

Cases are drawn from a seed: heads, lengths, batches, types, masks, and windows, which FlashAttention alone takes. Each
is run in a CUDA graph of several calls, forward and backward in graphs of their own, which go in turn through copies of
all tensors, 256 MB together at least; the time is the median of replays. Outputs and gradients of each kind of heads
are held to float64 on a small case.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch

HEADS = (  # query heads, KV heads, elements of a key and of a value; those of 192 and 128 are DeepSeek's, cuDNN alone
    (32, 32, 64, 64), (12, 12, 64, 64), (16, 16, 64, 64), (64, 8, 64, 64), (32, 8, 64, 64), (16, 2, 64, 64),
    (25, 25, 64, 64), (32, 32, 96, 96), (32, 8, 96, 96), (32, 32, 128, 128), (32, 8, 128, 128), (64, 8, 128, 128),
    (40, 40, 128, 128), (40, 8, 128, 128), (28, 4, 128, 128), (16, 8, 128, 128), (32, 4, 128, 128), (8, 8, 128, 128),
    (16, 16, 128, 128), (8, 1, 128, 128), (16, 4, 128, 128), (64, 64, 128, 128), (48, 8, 128, 128),
    (16, 16, 192, 192), (24, 8, 192, 192), (16, 16, 192, 128), (32, 32, 192, 128), (128, 128, 192, 128),
    (16, 16, 256, 256), (16, 8, 256, 256), (8, 4, 256, 256), (8, 1, 256, 256), (32, 16, 256, 256),
)  # fmt: skip
LENGTHS = (512, 768, 1000, 1024, 1536, 2048, 2500, 3072, 4096, 6144, 8192, 10000, 12288, 16384, 24576, 32768)
WINDOWS = (256, 512, 1024, 4096)
LEAST_TOKENS, MOST_TOKENS = 2048, 65536
MOST_MACS = 6e12
CASES_OF_HEADS = 16
CAUSAL_FRAC, WINDOW_FRAC, FP16_FRAC = 0.7, 0.2, 0.08
COLD_BYTES, MOST_BYTES, MOST_COPIES, REPLAYS = 256 << 20, 24 << 30, 8, 7
LONG_US = 30_000.0
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
LARGEST_ERROR = 0.02
aten = torch.ops.aten


class Case(NamedTuple):
    """Sizes of a call; window 0: none."""

    batch: int
    q_len: int
    kv_len: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    v_head_dim: int
    window: int
    dtype: str
    causal: int

    @property
    def num_bytes(self) -> int:
        """Of queries, keys, values, outputs and their gradients."""
        width = (self.num_heads + self.num_kv_heads) * (self.head_dim + self.v_head_dim)
        return 4 * self.batch * self.q_len * width

    @property
    def macs(self) -> float:
        """Of both products of the forward pass, without a mask."""
        return self.batch * self.num_heads * self.q_len * self.kv_len * (self.head_dim + self.v_head_dim)


def cases(seed: int) -> list[Case]:
    """Return all cases, in an order of chance."""
    draw = random.Random(seed)
    rows: set[Case] = set()
    for heads in HEADS:
        while sum(row[3:7] == heads for row in rows) < CASES_OF_HEADS:
            length, batch = draw.choice(LENGTHS), 2 ** draw.randint(0, 7)
            if not LEAST_TOKENS <= batch * length <= MOST_TOKENS:
                continue
            causal = draw.random() < CAUSAL_FRAC
            window = draw.choice(WINDOWS) if causal and draw.random() < WINDOW_FRAC else 0
            dtype = "fp16" if draw.random() < FP16_FRAC else "bf16"
            case = Case(batch, length, length, *heads, window * (window < length), dtype, int(causal))
            if case.macs <= MOST_MACS:
                rows.add(case)
    ordered = sorted(rows)
    draw.shuffle(ordered)
    return ordered


class Calls(NamedTuple):
    """The forward and the backward pass on one set of tensors."""

    forward: Callable[[], Any]
    backward: Callable[[], Any]


def calls_of(library: str, case: Case) -> tuple[Calls, tuple[torch.Tensor, ...]]:
    """Return both passes on new tensors, as models have them ([batch, tokens, heads, elements]), and the tensors."""

    def new(heads: int, elements: int) -> torch.Tensor:
        return torch.randn(case.batch, case.q_len, heads, elements, device="cuda", dtype=DTYPES[case.dtype])

    q, k = new(case.num_heads, case.head_dim), new(case.num_kv_heads, case.head_dim)
    v, dout = new(case.num_kv_heads, case.v_head_dim), new(case.num_heads, case.v_head_dim)
    if library == "flash":
        window = {"window_size_left": case.window - 1, "window_size_right": 0} if case.window else {}
        lengths = None, None, case.q_len, case.kv_len
        forward = partial(aten._flash_attention_forward, q, k, v, *lengths, 0.0, bool(case.causal), False, **window)
        out, lse, rng, unused, _ = forward()
        backward = partial(
            aten._flash_attention_backward, dout, q, k, v, out, lse, *lengths, 0.0, bool(case.causal), rng, unused,
            **window,
        )  # fmt: skip
        return Calls(forward, backward), (q, k, v, dout)
    turned = [x.transpose(1, 2) for x in (q, k, v)]
    forward = partial(aten._scaled_dot_product_cudnn_attention, *turned, None, True, 0.0, bool(case.causal), False)
    out, lse, cum_q, cum_k, max_q, max_k, rng, offset, _ = forward()
    backward = partial(
        aten._scaled_dot_product_cudnn_attention_backward, dout.transpose(1, 2), *turned, out, lse, rng, offset, None,
        cum_q, cum_k, max_q, max_k, 0.0, bool(case.causal),
    )  # fmt: skip
    return Calls(forward, backward), (q, k, v, dout)


def check(library: str, case: Case) -> float:
    """Return the largest relative error of output and gradients, against float64."""
    calls, (q, k, v, dout) = calls_of(library, case)
    results = [calls.forward()[0], *calls.backward()[:3]]
    if library == "cudnn":
        results = [x.transpose(1, 2) for x in results]
    group = case.num_heads // case.num_kv_heads
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    keys, values = (x.repeat_interleave(group, dim=2) for x in exact[1:])
    scores = torch.einsum("bqhd,bkhd->bhqk", exact[0], keys) / case.head_dim**0.5
    at = torch.arange(case.q_len, device="cuda")
    apart = at[:, None] - at[None, :]
    if case.causal:
        scores = scores.masked_fill(apart < 0, float("-inf"))
    if case.window:
        scores = scores.masked_fill(apart >= case.window, float("-inf"))
    expected = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), values)
    gradients = torch.autograd.grad(expected, exact, dout.double())
    errors: list[float] = [
        ((got.double() - want).norm() / want.norm()).item()
        for got, want in zip(results, (expected, *gradients), strict=True)
    ]
    return sum(errors) if any(map(math.isnan, errors)) else max(errors)


def replayed_us(calls: Sequence[Callable[[], Any]], stream: torch.cuda.Stream) -> float:
    """Return the time of one of the calls, in the median of replays of a graph of all of them."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for call in calls:
            call()
    times: list[float] = []
    while len(times) < REPLAYS and (len(times) < 2 or sum(times) * len(calls) < 2 * LONG_US):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200_000)
            start.record()
            graph.replay()
            end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / len(calls))
    return sorted(times[1:])[(len(times) - 1) // 2]


def measure(library: str, case: Case, stream: torch.cuda.Stream) -> tuple[float, float]:
    """Return the time of the forward and of the backward pass."""
    copies = max(1, min(MOST_COPIES, -(-COLD_BYTES // case.num_bytes), MOST_BYTES // (2 * case.num_bytes)))
    copies = max(2, copies) if case.num_bytes < COLD_BYTES else copies
    with torch.cuda.stream(stream):
        sets = [calls_of(library, case)[0] for _ in range(copies)]
        for calls in sets[:1]:
            calls.backward()
    return tuple(replayed_us([getattr(of, name) for of in sets], stream) for name in ("forward", "backward"))  # type: ignore[return-value]


def kernels_of(call: Callable[[], Any]) -> Iterator[tuple[str, float]]:
    """Yield name and microseconds of all kernels that a call runs, in order."""
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    events = [
        event
        for event in profile.profiler.kineto_results.events()
        if event.device_type() == torch.profiler.DeviceType.CUDA and "stream" not in event.name().lower()
    ]
    for event in sorted(events, key=lambda item: item.start_ns()):
        yield event.name()[:160], event.duration_ns() / 1e3


def main() -> None:
    """Check, then time all cases until the time is over, and write tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the tables")
    parser.add_argument("--limit-s", type=float, default=1e9, help="time after which no case begins")
    options = parser.parse_args()
    begin = time.time()
    torch.manual_seed(0)
    stream, release = torch.cuda.Stream(), ".".join(torch.__version__.split(".")[:2])
    every = cases(46)
    rows: dict[str, list[Any]] = {"flash": [], "cudnn": []}
    kernels, refused, profiled = [], set(), set()
    for case in every:
        if time.time() - begin > options.limit_s:
            print("out of time", flush=True)
            break
        for library, own in rows.items():
            heads = (library, *case[3:7], case.causal)
            is_unknown = case.window if library == "cudnn" else case.v_head_dim != case.head_dim
            if is_unknown or heads in refused:
                continue
            try:
                small = case._replace(batch=2, q_len=384, kv_len=384, window=min(case.window, 100))
                if heads not in profiled:
                    error = check(library, small)
                    print(library, "checked", *small, f"error {error:.4f}", flush=True)
                    if not error < LARGEST_ERROR:  # also where it is no number
                        raise RuntimeError(f"wrong by {error}")
                forward_us, backward_us = measure(library, case, stream)
                if heads not in profiled:
                    profiled.add(heads)
                    for name, us in kernels_of(calls_of(library, case)[0].backward):
                        kernels.append((library, *case, name, round(us, 3)))
            except RuntimeError as error:  # a library that does not take such sizes
                refused.add(heads)
                print(library, *case, "not run:", str(error).partition("\n")[0][:150], flush=True)
                torch.cuda.synchronize()
                continue
            own.append((*case, case.dtype, round(forward_us, 3), round(backward_us, 3)))
        if sum(map(len, rows.values())) % 50 == 0:
            torch.cuda.empty_cache()
    names = [*Case._fields, "kv_dtype", "forward_us", "latency_us"]
    for library, of in rows.items():
        folder = options.out / f"attention-torch-{release}-{library}"
        folder.mkdir(parents=True, exist_ok=True)
        pd.DataFrame(of, columns=names).to_parquet(folder / "backward.parquet", index=False)
        print(f"{library}: {len(of)} rows on {torch.cuda.get_device_name()}, torch {torch.__version__}", flush=True)
    columns = ["library", *Case._fields, "kernel", "us"]
    pd.DataFrame(kernels, columns=columns).to_csv(options.out / "attention-kernels.csv", index=False)


if __name__ == "__main__":
    main()
