"""The table of timings that measure_triton.py writes, and what its meta file says; needs pandas and pyarrow, no GPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import triton
import yaml
from triton_pool import DataSet, kernel_sources

from gemm_eval.measure import dataset_hash
from gemm_eval.validation import GEMM_COLUMNS, TIMING_COLUMNS


def timing_row(data: DataSet, gemm: tuple[int, int, int], config: triton.Config) -> dict[str, Any]:
    """Return what a row says besides its times; `gemm` is (M, N, K)."""
    M, N, K = gemm
    return {
        "data_set": data.name, "G": 1, "M": M, "K": K, "N": N,
        "input_dtype": data.dtype, "weight_dtype": "int4" if data.group_size else data.dtype,
        "output_dtype": "fp16" if data.dtype == "fp8" else data.dtype, "group_size": data.group_size or -1,
        **{name.lower(): value for name, value in config.kwargs.items()},
        "num_warps": config.num_warps, "num_stages": config.num_stages,
    }  # fmt: skip


def write_table(
    folder: Path, rows: Sequence[Mapping[str, Any]], *, gpu: str, date: str, versions: Mapping[str, str],
    worst_errors: Mapping[str, float], not_run: Sequence[Mapping[str, str]],
) -> None:  # fmt: skip
    """Write timings.parquet, sorted and with the place of each row among those of its GEMM, and its meta file."""
    frame = pd.DataFrame(rows)
    frame["rank"] = frame.groupby(GEMM_COLUMNS)["latency_us"].rank(method="first").astype("int64") - 1
    frame = frame[list(TIMING_COLUMNS)].sort_values([*GEMM_COLUMNS, "rank"], ignore_index=True)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "timings.parquet"
    frame.to_parquet(path, compression="zstd", index=False)
    meta = {
        "what": "device time of one GEMM, C[G,M,N] = A[G,M,K] x B[G,K,N], by one config of a Triton kernel",
        "gpu": {"name": gpu},
        "library": "triton",
        "has_all_candidates": True,
        "date": date,
        "versions": dict(versions),
        "kernels": "weights W[N,K], 4-bit ones packed",
        "sources": kernel_sources(),
        "data_sets": "examples/triton_pool.py draws their configs and GEMMs at random from fixed seeds",
        "rank": "place by time among the configs of a GEMM that were timed, from 0",
        "protocol": {
            "l2": "cold: 256 MB are written before each launch",
            "clock": "burst",
            "latency_us": "median of 4 to 16 launches (num_replays), each between two CUDA events; min_us: the least",
            "queue": "the GPU is held back until all launches are queued: Python is slower than a small kernel; "
            "one launch more in the middle, because every second one takes longer",
        },
        "data": "random normal A and W; 4-bit integers all equally likely, random scales",
        "checks": {
            "how": "every config against float64, with a poisoned result, three times on a ragged GEMM (M 133, N 384, "
            "K 1280) and on a large one (M 2048, N 3072, K 14336)",
            "worst_relative_error": dict(worst_errors),
        },
        "not_run": list(not_run),
        "held_out": "no (N, K) of examples/benchmark_asm_aware.py is among these",
        "command": "python examples/measure_triton.py --out FOLDER",
        "num_rows": len(frame),
        "sha256": dataset_hash(path),
    }
    text = yaml.safe_dump(meta, sort_keys=False, width=120)
    (folder / "timings.meta.yaml").write_text(text, encoding="utf-8")
