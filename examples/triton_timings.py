"""Times configs of the pool on its GEMMs and writes them; needs a GPU, PyTorch, Triton, pandas and pyarrow.

Every config is first checked against float64 on a ragged and on a large GEMM, with a poisoned result. A time is the
median of launches between CUDA events, each after 256 MB were written, so that L2 holds none of the operands: as
`triton.testing.do_bench` does it, but with the GPU held back until all launches are queued, because a launch by Python
takes longer than a small kernel does.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import triton
import triton_gemm
from triton_operands import Operands, make_operands, relative_error
from triton_pool import DATA_SETS, DataSet, config_pool, is_worth_timing, list_gemms
from triton_tables import timing_row, write_table

CHECKED = ((133, 384, 1280), (2048, 3072, 14336))  # M, N, K: ragged; and so large that all SMs are at work
_NUM_CHECKS = 3
_FLUSH_BYTES = 256 << 20
_TIMED_MS = 4.0
_AHEAD_CYCLES = 200_000  # 0.1 ms: longer than Python needs for a launch


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


def _error_of(config: triton.Config, checked: Sequence[Operands], references: Sequence[torch.Tensor]) -> float:
    """Return the largest relative error of some launches; NaN if a launch has left an element out."""
    errors = []
    for operands, reference in zip(checked, references, strict=True):
        for _ in range(_NUM_CHECKS):
            operands.c.fill_(float("nan"))
            _launch(operands, config)
            errors.append(relative_error(operands.c, reference))
    return float("nan") if any(error != error for error in errors) else max(errors)  # noqa: PLR0124


def _time_us(operands: Operands, config: triton.Config, flush: torch.Tensor) -> tuple[float, float, int]:
    """Median and least of some launches, and how many those were."""

    def times(count: int) -> list[float]:
        events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(count)]
        torch.cuda._sleep(count * _AHEAD_CYCLES)
        for place, (start, end) in enumerate(events):
            if place == count // 2:
                flush[:1].zero_()  # one launch more: every second launch of a GPU takes 0.5 us longer
            flush.zero_()
            start.record()
            _launch(operands, config)
            end.record()
        torch.cuda.synchronize()
        return sorted(start.elapsed_time(end) for start, end in events)

    first = times(2)[0]
    count = max(4, min(16, 2 * int(_TIMED_MS / (first + 0.07) / 2)))
    found = times(count)
    return 1e3 * statistics.median(found), 1e3 * found[0], count


def _run(
    data: DataSet, flush: torch.Tensor, deadline: float, worst_errors: dict[str, float], not_run: list[dict[str, str]]
) -> Iterator[dict[str, Any]]:
    configs = config_pool(data)
    processes = os.cpu_count() or 1
    slices = [configs[i::processes] for i in range(processes)]
    start = time.time()
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        said = pool.map(_compile, [(data, part, CHECKED[0]) for part in slices])
    failed = {
        str(c): why for part, whys in zip(slices, said, strict=True) for c, why in zip(part, whys, strict=True) if why
    }
    print(f"{data.name}: {len(configs)} configs compiled in {time.time() - start:.0f} s, {len(failed)} not", flush=True)
    good = []
    checked = [make_operands(*gemm, data.dtype, group_size=data.group_size) for gemm in CHECKED]
    references = [operands.reference() for operands in checked]
    worst = 0.0
    for config in configs:
        if str(config) in failed:
            continue
        try:
            error = _error_of(config, checked, references)
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
    not_run += [{"data_set": data.name, "config": config, "why": why} for config, why in failed.items()]
    worst_errors[data.name] = float(f"{worst:.2g}")
    rng = random.Random(f"timed of {data.name}")
    start, num = time.time(), 0
    gemms = list_gemms(data)
    rng.shuffle(gemms)
    for gemm in gemms:
        if time.time() > deadline:
            print(f"{data.name}: out of time after {num} timings", flush=True)
            break
        operands = make_operands(*gemm, data.dtype, group_size=data.group_size)
        worth = [config for config in good if is_worth_timing(config, *gemm)]
        for config in rng.sample(worth, min(len(worth), data.num_timed)):
            median, least, count = _time_us(operands, config, flush)
            num += 1
            yield timing_row(data, gemm, config) | {
                "latency_us": round(median, 3), "min_us": round(least, 3), "num_replays": count
            }  # fmt: skip
    print(f"{data.name}: {num} timings in {time.time() - start:.0f} s", flush=True)


def write_timings(folder: Path, names: Sequence[str], limit_s: float) -> None:
    """Time the data sets named and write timings.parquet and timings.meta.yaml."""
    begin = time.time()
    chosen = [data for data in DATA_SETS if data.name in names]
    flush = torch.empty(_FLUSH_BYTES // 4, dtype=torch.int32, device="cuda")
    rows: list[dict[str, Any]] = []
    worst_errors: dict[str, float] = {}
    not_run: list[dict[str, str]] = []
    all_work = sum(data.num_gemms * data.num_timed for data in chosen)
    work = 0
    try:
        for data in chosen:
            work += data.num_gemms * data.num_timed
            for row in _run(data, flush, begin + work / all_work * limit_s, worst_errors, not_run):
                rows.append(row)  # noqa: PERF402  kept one by one, whatever happens next
    finally:
        _write(folder, rows, worst_errors, not_run)


def _write(folder: Path, rows: list[dict[str, Any]], worst: dict[str, float], not_run: list[dict[str, str]]) -> None:
    write_table(
        folder, rows, gpu=torch.cuda.get_device_name(), date=time.strftime("%Y-%m-%d"),
        versions={"torch": str(torch.__version__), "triton": triton.__version__}, worst_errors=worst, not_run=not_run,
    )  # fmt: skip
