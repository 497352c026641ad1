"""Times attention in PyTorch, by its flash and cuDNN kernels, and decode over latents (MLA) by FlashInfer's.

    python -m benchmarks.measure_attention --out FOLDER               # a GPU, PyTorch, pandas and pyarrow; some minutes
    python -m benchmarks.measure_attention --out FOLDER --latents     # with flashinfer-python 0.5 and a CUDA compiler

Writes FOLDER/attention-torch-RELEASE-BACKEND/PHASE.parquet, or FOLDER/attention-flashinfer-RELEASE/PHASE.parquet,
as `gemm_eval/validation/subjects/attention.py` reads them; the meta files beside them are written by hand.

Each call is captured in a CUDA graph of several, which go in turn through copies of keys and values, 256 MB together at
least, as layers of a model each have their own; queries are warm. The time is that of a replay over the calls, the
median of several. Before it is timed, the first sequence of each case is held to float64. bf16, causal.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
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
LATENT_HEADS = (8, 16, 32, 64, 128)
LATENT_BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LATENT_KEYS = (128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
LATENT, ROPE, PAGE = 512, 64, 64  # elements of a value, and of a key beyond it, of DeepSeek's models; keys of a page
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
    shape = case.batch, case.kv_len, case.num_kv_heads, case.head_dim
    q = torch.randn(case.batch, case.q_len, case.num_heads, case.head_dim, device="cuda", dtype=torch.bfloat16)
    caches = [
        [torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
        for _ in range(num_copies(case.kv_bytes))
    ]
    check(case, q, *caches[0])
    return replayed_us([partial(attend, case, q, k, v) for k, v in caches])


def num_copies(num_bytes: int) -> int:
    """Return how many caches of so many bytes the calls of a graph go through."""
    copies = min(MOST_COPIES, max(2, -(-COLD_BYTES // num_bytes)))
    return max(1, min(copies, MOST_BYTES // num_bytes))


def replayed_us(calls: Sequence[Callable[[], torch.Tensor]]) -> float:
    """Return the time of one of the calls, in the median of replays of a graph of all of them."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [call() for call in calls]
    times: list[float] = []
    while len(times) < REPLAYS and sum(times) * len(calls) < 3 * LONG_US:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1e3 / len(calls))
    del kept
    return sorted(times)[len(times) // 2]


def latent_rows() -> Iterator[tuple[object, ...]]:
    """Yield a row for each size of decode over latents, timed with FlashInfer's kernels for Hopper."""
    from flashinfer.mla import BatchMLAPagedAttentionWrapper

    wrapper = BatchMLAPagedAttentionWrapper(torch.empty(1 << 28, dtype=torch.uint8, device="cuda"), backend="fa3")
    pool = torch.empty(MOST_BYTES // 2, dtype=torch.bfloat16, device="cuda").normal_()
    scale = (128 + ROPE) ** -0.5
    for batch, kv_len, heads in product(LATENT_BATCHES, LATENT_KEYS, LATENT_HEADS):
        pages = -(-kv_len // PAGE)
        num = batch * pages * PAGE * (LATENT + ROPE)
        if 4 * num > MOST_BYTES:
            continue
        copies = num_copies(2 * num)
        caches = pool[: copies * num].view(copies, batch * pages, PAGE, LATENT + ROPE)
        q, rope = (torch.randn(batch, heads, n, device="cuda", dtype=torch.bfloat16) for n in (LATENT, ROPE))
        starts = torch.arange(batch + 1, dtype=torch.int32, device="cuda")
        tables = torch.arange(batch * pages, dtype=torch.int32, device="cuda")
        lengths = torch.full((batch,), kv_len, dtype=torch.int32, device="cuda")
        wrapper.plan(
            starts, starts * pages, tables, lengths, heads, LATENT, ROPE, PAGE, False, scale, q.dtype, q.dtype
        )  # fmt: skip
        calls = [partial(wrapper.run, q, rope, cache[..., :LATENT], cache[..., LATENT:]) for cache in caches]
        keys = caches[0].reshape(batch, -1, LATENT + ROPE)[-1, :kv_len].double()
        scores = torch.cat((q[-1], rope[-1]), dim=-1).double() @ keys.T * scale
        expected = scores.softmax(-1) @ keys[:, :LATENT]
        error = ((calls[0]()[-1].double() - expected).norm() / expected.norm()).item()
        if not error < 0.01:  # also where it is no number
            raise SystemExit(f"wrong by {error:.3g}: {batch} x {kv_len}, {heads} heads")
        us = round(replayed_us(calls), 4)
        yield batch, 1, kv_len, heads, 1, LATENT + ROPE, LATENT, 0, "bf16", "bf16", us


def write_latents(out: Path) -> None:
    """Check and time decode over latents, and write a table."""
    import flashinfer

    rows = list(latent_rows())
    columns = [*Case._fields, "v_head_dim", "window", "dtype", "kv_dtype", "latency_us"]
    folder = out / f"attention-flashinfer-{'.'.join(flashinfer.__version__.split('.')[:2])}"
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows, columns=columns).to_parquet(folder / "mla_generation.parquet", index=False)
    print(f"{len(rows)} rows on {torch.cuda.get_device_name()}, flashinfer {flashinfer.__version__}")


def main() -> None:
    """Check and time all cases, and write a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the table")
    parser.add_argument("--latents", action="store_true", help="decode over latents by FlashInfer, and nothing else")
    options = parser.parse_args()
    if options.latents:
        write_latents(options.out)
        return
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
