"""Times attention in PyTorch, by its flash and cuDNN kernels: prompts, chunks of prompts, and decode over a cache.

    python examples/measure_attention.py --out FOLDER     # a GPU, PyTorch, pandas and pyarrow; some minutes

Writes FOLDER/attention-torch-RELEASE-BACKEND/PHASE.parquet, as `gemm_eval/validation/attention/tables.py` reads them;
the meta files beside them are written by hand.

Each call is captured in a CUDA graph of several, which go in turn through copies of keys and values, 256 MB together at
least, as layers of a model each have their own; queries are warm. The time is that of a replay over the calls, the
median of several. Before it is timed, the first sequence of each case is held to float64. bf16, causal.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
HEADS = (
    (32, 8, 128), (64, 8, 128), (40, 8, 128), (28, 4, 128), (32, 32, 128), (16, 16, 128), (32, 4, 128), (8, 1, 128),
    (12, 2, 128), (64, 8, 64), (32, 32, 64), (16, 8, 64), (16, 8, 256), (8, 4, 256),
)  # fmt: skip
DECODE = [(batch, 1, kv) for batch in (1, 2, 4, 16, 64, 256) for kv in (64, 256, 1024, 2048, 4096, 8192, 16384, 65536)]
PROMPTS = [
    (1, 64, 64), (1, 256, 256), (1, 512, 512), (1, 1024, 1024), (1, 2048, 2048), (1, 4096, 4096), (1, 8192, 8192),
    (1, 16384, 16384), (4, 512, 512), (4, 2048, 2048), (16, 256, 256), (16, 1024, 1024),
]  # fmt: skip
CHUNKS = [(1, 512, 4096), (1, 2048, 8192), (1, 2048, 32768), (1, 8192, 32768), (4, 512, 8192)]
COLD_BYTES, MOST_BYTES = 256 << 20, 12 << 30
MOST_COPIES, REPLAYS = 16, 9
LONG_US = 20_000.0


class Case(NamedTuple):
    """Sizes of a call."""

    batch: int
    q_len: int
    kv_len: int
    num_heads: int
    num_kv_heads: int
    head_dim: int

    @property
    def kv_bytes(self) -> int:
        """Of keys and values, bf16."""
        return 4 * self.batch * self.kv_len * self.num_kv_heads * self.head_dim


def cases() -> Iterator[Case]:
    """Yield all sizes that fit."""
    for heads in HEADS:
        for sizes in (*DECODE, *PROMPTS, *CHUNKS):
            case = Case(*sizes, *heads)
            if 2 * case.kv_bytes <= MOST_BYTES:
                yield case


def attend(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Call it as models do: [batch, tokens, heads, elements] seen as [batch, heads, tokens, elements]."""
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    is_gqa = case.num_heads > case.num_kv_heads
    if 1 < case.q_len < case.kv_len:
        mask = causal_lower_right(case.q_len, case.kv_len)
        return scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=is_gqa)
    return scaled_dot_product_attention(q, k, v, is_causal=case.q_len > 1, enable_gqa=is_gqa)


def check(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Hold a few queries of the first sequence to float64."""
    found = attend(case, q, k, v).transpose(1, 2)[0, -4:].double()
    group = case.num_heads // case.num_kv_heads
    keys, values = (tensor[0].double().repeat_interleave(group, dim=1) for tensor in (k, v))
    some = q[0, -4:].double()
    scores = torch.einsum("qhd,khd->hqk", some, keys) / case.head_dim**0.5
    last = torch.arange(case.kv_len - some.shape[0], case.kv_len, device="cuda")
    hidden = torch.arange(case.kv_len, device="cuda")[None, :] > last[:, None]
    expected = torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, float("-inf")).softmax(-1), values)
    error = ((found - expected).abs().max() / expected.abs().max()).item()
    if not error < 0.03:  # also where it is no number
        raise SystemExit(f"wrong by {error:.3g}: {case}")


def time_us(case: Case) -> float:
    """Return the time of one call."""
    copies = min(MOST_COPIES, max(2, -(-COLD_BYTES // case.kv_bytes)))
    copies = max(1, min(copies, MOST_BYTES // case.kv_bytes))
    shape = case.batch, case.kv_len, case.num_kv_heads, case.head_dim
    q = torch.randn(case.batch, case.q_len, case.num_heads, case.head_dim, device="cuda", dtype=torch.bfloat16)
    caches = [[torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2)] for _ in range(copies)]
    check(case, q, *caches[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [attend(case, q, k, v) for k, v in caches]
    times: list[float] = []
    while len(times) < REPLAYS and sum(times) * copies < 3 * LONG_US:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / copies)
    del kept
    return sorted(times)[len(times) // 2]


def main() -> None:
    """Check and time all cases, and write a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the table")
    options = parser.parse_args()
    release = ".".join(torch.__version__.split(".")[:2])
    for name, backend in BACKENDS.items():
        rows = []
        for case in cases():
            if name == "cudnn" and 1 < case.q_len < case.kv_len:
                continue  # PyTorch gives it a mask that is written out
            try:
                with torch.no_grad(), sdpa_kernel(backend):
                    latency_us = time_us(case)
            except RuntimeError as error:  # a backend that does not take such sizes
                print(name, *case, "not run:", str(error).partition("\n")[0][:80])
                continue
            rows.append((*case, case.head_dim, 0, "bf16", "bf16", round(latency_us, 4)))
        columns = [*Case._fields, "v_head_dim", "window", "dtype", "kv_dtype", "latency_us"]
        frame = pd.DataFrame(rows, columns=columns)
        folder = options.out / f"attention-torch-{release}-{name}"
        folder.mkdir(parents=True, exist_ok=True)
        for phase, is_phase in (("context", frame["q_len"] > 1), ("generation", frame["q_len"] == 1)):
            frame[is_phase].reset_index(drop=True).to_parquet(folder / f"{phase}.parquet", index=False)
        print(f"{name}: {len(rows)} rows on {torch.cuda.get_device_name()}, torch {torch.__version__}")


if __name__ == "__main__":
    main()
