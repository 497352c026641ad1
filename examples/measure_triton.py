"""Times many configs of the Triton kernels in this folder on many GEMMs: the data that the Triton model is fitted on.

    python examples/measure_triton.py --out FOLDER  # a GPU, PyTorch, Triton, pandas and pyarrow

Every config is first checked against float64 on a ragged GEMM, with a poisoned result. A time is the median of launches
between CUDA events, each after 256 MB were written, so that L2 holds none of the operands: as `triton.testing.do_bench`
does it, but with the GPU held back until all launches are queued, because a launch by Python takes longer than a small
kernel does. GEMMs and configs are drawn at random from a fixed seed, and none has the (N, K) of benchmark_asm_aware.py.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
import triton
import triton_gemm
import triton_w4a16_gemm
from triton_operands import Operands, make_operands, relative_error

PAIRS = (  # N, K
    (5120, 5120), (2560, 2560), (13824, 5120), (5120, 13824), (11008, 4096), (4096, 11008), (18944, 3584),
    (3584, 18944), (5632, 2048), (2048, 5632), (1280, 8192), (8192, 1024), (7168, 2048), (2048, 7168), (1536, 7168),
    (24576, 1536), (9216, 3072), (3072, 12288), (12288, 6144), (16384, 2048), (640, 640), (384, 1280), (448, 2048),
    (896, 4864), (4864, 896), (1152, 1152), (1792, 1792), (2304, 2304), (3328, 3328), (21504, 5376), (14336, 5120),
    (1408, 2048), (2048, 1408), (10752, 2688), (32000, 4096), (576, 7168), (320, 256), (768, 384), (6656, 6656),
    (2816, 8448),
)  # fmt: skip
TOKENS = (
    1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 333, 384, 512, 768, 1000, 1024, 1536, 2048, 3072, 4096, 8192
)  # fmt: skip
CHECKED = (133, 384, 1280)  # M, N, K
_FLUSH_BYTES = 256 << 20
_SMEM_BYTES = 227 << 10
_TIMED_MS = 4.0
_AHEAD_CYCLES = 200_000  # 0.1 ms: longer than Python needs for a launch


class DataSet(NamedTuple):
    """What is timed: data type, weights' group (0: not quantized), how many configs, GEMMs, and configs of a GEMM."""

    name: str
    dtype: str
    group_size: int
    num_configs: int
    num_gemms: int
    num_timed: int


DATA_SETS = (
    DataSet("fp16", "fp16", 0, 150, 240, 60),
    DataSet("bf16", "bf16", 0, 40, 50, 40),
    DataSet("fp8", "fp8", 0, 80, 110, 50),
    DataSet("w4a16-fp16", "fp16", 128, 150, 240, 60),
    DataSet("w4a16-bf16", "bf16", 128, 40, 50, 40),
    DataSet("w4a16-fp16-g64", "fp16", 64, 30, 40, 40),
)


def _pool(data: DataSet) -> list[triton.Config]:
    """The configs of the example, and random ones from the product of all values."""
    example = triton_w4a16_gemm if data.group_size else triton_gemm
    configs = list(example.CONFIGS)
    rng = random.Random(f"configs of {data.name}")
    bits = 8 if data.dtype == "fp8" else 16
    depths = (64, 128) if data.group_size else ((64, 128, 256) if bits == 8 else (32, 64, 128, 256))
    everything = list(
        itertools.product(
            (16, 32, 64, 128, 256), (32, 64, 128, 256), depths, (4, 8), (2, 3, 4, 5, 6), (1, 1, 2, 4, 8), (1, 4, 8, 16)
        )
    )
    known = {str(config) for config in configs}
    while len(configs) < len(example.CONFIGS) + data.num_configs:
        m, n, k, warps, stages, split, group = rng.choice(everything)
        b_bits = 4 if data.group_size else bits
        if stages * k * (m * bits + n * b_bits) // 8 > _SMEM_BYTES or m * n // (32 * warps) > 256 or m * n < 64 * warps:
            continue
        if split > 1 and m * n > 128 * 128:
            continue
        meta = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": group, "SPLIT_K": split}
        config = triton.Config(meta, num_warps=warps, num_stages=stages)
        if str(config) not in known:
            known.add(str(config))
            configs.append(config)
    return configs


def _gemms(data: DataSet) -> list[tuple[int, int, int]]:
    """(M, N, K), sorted by size."""
    rng = random.Random(f"GEMMs of {data.name}")
    all_gemms = [(m, n, k) for m in TOKENS for n, k in PAIRS if m * n * k <= 1 << 39]
    return sorted(rng.sample(all_gemms, data.num_gemms), key=lambda gemm: gemm[0] * gemm[1] * gemm[2])


def _is_worth_timing(config: triton.Config, M: int, N: int, K: int) -> bool:
    """Leaves out what nobody needs to know: tiles of more than three times the work, crumbs of a huge GEMM."""
    m, n, split = (config.kwargs[name] for name in ("BLOCK_M", "BLOCK_N", "SPLIT_K"))
    work = triton.cdiv(M, m) * m * triton.cdiv(N, n) * n
    smallest = triton.cdiv(M, 16) * 16 * triton.cdiv(N, 32) * 32
    tiles = triton.cdiv(M, m) * triton.cdiv(N, n)
    return work <= 3 * smallest and tiles * split <= 20_000 and not (split > 1 and tiles > 600) and split <= K // 128


def _grid_of(operands: Operands, config: triton.Config) -> tuple[int, int]:
    named = operands.named
    tiles, parts = triton_gemm.grid({**config.kwargs, "M": named["M"], "N": named["N"]})
    return tiles, parts


def _launch(operands: Operands, config: triton.Config) -> None:
    operands.kernel[_grid_of(operands, config)](*operands.args, **operands.meta, **config.all_kwargs())


def _compile(task: tuple[DataSet, list[triton.Config], tuple[int, int, int]]) -> list[str | None]:
    """In a process of its own: fill Triton's cache. What does not compile is said."""
    data, configs, gemm = task
    operands = make_operands(*gemm, data.dtype, group_size=data.group_size)
    said: list[str | None] = []
    for config in configs:
        try:
            kwargs = {**operands.meta, **config.all_kwargs()}
            operands.kernel.warmup(*operands.args, grid=_grid_of(operands, config), **kwargs)
            said.append(None)
        except Exception as error:  # whatever a compiler raises
            said.append(f"{type(error).__name__}: {error}"[:300])
    return said


def _time_us(operands: Operands, config: triton.Config, flush: torch.Tensor) -> tuple[float, float, int]:
    """Median and least of some launches, and how many those were."""

    def times(count: int) -> list[float]:
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
        torch.cuda._sleep(count * _AHEAD_CYCLES)
        for start, end in events:
            flush.zero_()
            start.record()
            _launch(operands, config)
            end.record()
        torch.cuda.synchronize()
        return sorted(start.elapsed_time(end) for start, end in events)

    first = times(2)[0]
    count = max(3, min(15, int(_TIMED_MS / (first + 0.07))))
    found = times(count)
    return 1e3 * found[count // 2], 1e3 * found[0], count


def _run(data: DataSet, flush: torch.Tensor, deadline: float) -> Iterator[dict[str, Any]]:
    configs = _pool(data)
    processes = os.cpu_count() or 1
    slices = [configs[i::processes] for i in range(processes)]
    start = time.time()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        said = pool.map(_compile, [(data, part, CHECKED) for part in slices])
    failed = {
        str(c): why for part, whys in zip(slices, said, strict=True) for c, why in zip(part, whys, strict=True) if why
    }
    print(f"{data.name}: {len(configs)} configs compiled in {time.time() - start:.0f} s, {len(failed)} not", flush=True)
    good = []
    operands = make_operands(*CHECKED, data.dtype, group_size=data.group_size)
    worst = 0.0
    for config in configs:
        if str(config) in failed:
            continue
        operands.c.fill_(float("nan"))
        try:
            _launch(operands, config)
            error = relative_error(operands)
        except triton.runtime.errors.OutOfResources as out:
            failed[str(config)] = str(out)
            continue
        worst = max(worst, error)
        if not error < 1e-2:
            failed[str(config)] = f"wrong: relative error {error}"
            print("WRONG", config, error, flush=True)
            continue
        good.append(config)
    print(f"{data.name}: {len(good)} configs right, largest relative error {worst:.1e}", flush=True)
    for config, why in failed.items():
        yield {"data": data.name, "config": config, "why": why}
    rng = random.Random(f"timed of {data.name}")
    start, num = time.time(), 0
    gemms = _gemms(data)
    rng.shuffle(gemms)
    for gemm in gemms:
        if time.time() > deadline:
            print(f"{data.name}: out of time after {num} timings", flush=True)
            break
        operands = make_operands(*gemm, data.dtype, group_size=data.group_size)
        worth = [config for config in good if _is_worth_timing(config, *gemm)]
        for config in rng.sample(worth, min(len(worth), data.num_timed)):
            median, least, count = _time_us(operands, config, flush)
            num += 1
            yield {
                "data": data.name, "dtype": data.dtype, "group_size": data.group_size,
                "M": gemm[0], "N": gemm[1], "K": gemm[2],
                **{name.lower(): value for name, value in config.kwargs.items()},
                "num_warps": config.num_warps, "num_stages": config.num_stages,
                "latency_us": round(median, 3), "min_us": round(least, 3), "num_timed": count,
            }  # fmt: skip
    print(f"{data.name}: {num} timings in {time.time() - start:.0f} s", flush=True)


def main() -> None:
    """Time all data sets and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for triton.parquet and triton.json")
    parser.add_argument("--only", nargs="*", default=[data.name for data in DATA_SETS])
    parser.add_argument("--limit-s", type=float, default=3600.0, help="stop timing after so many seconds")
    options = parser.parse_args()
    begin = time.time()
    chosen = [data for data in DATA_SETS if data.name in options.only]
    flush = torch.empty(_FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
    rows: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    all_work = sum(data.num_gemms * data.num_timed for data in chosen)
    work = 0
    try:
        for data in chosen:
            work += data.num_gemms * data.num_timed
            for row in _run(data, flush, begin + work / all_work * options.limit_s):
                (rows if "latency_us" in row else failed).append(row)
    finally:  # what was timed is kept
        _write(options.out, rows, failed)


def _write(folder: Path, rows: list[dict[str, Any]], failed: list[dict[str, Any]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows).to_parquet(folder / "triton.parquet", compression="zstd")
    meta = {
        "gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "triton": triton.__version__,
        "date": time.strftime("%Y-%m-%d"), "not_run": failed,
    }  # fmt: skip
    (folder / "triton.json").write_text(json.dumps(meta, indent=1, default=str), encoding="utf-8")


if __name__ == "__main__":
    main()
