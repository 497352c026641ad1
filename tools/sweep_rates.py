"""What sweeps cost: evaluations a second in threads and on a Dask cluster of two workers, and memory over many points.

    python -m tools.sweep_rates                    # make rates: 10,000 chips x 28 GEMMs, a million points
    python -m tools.sweep_rates --points 500 --memory-points 5000

Chips are of the class of 64 cores, drawn at random: SRAM 0.5 to 8 MB a core, DRAM 0.2 to 3.2 TB/s, matrix units 16 to
64 wide. GEMMs are those of Llama 3 70B in prefill and decode, at several batch sizes. Searches are exact.
"""

import argparse
import json
import multiprocessing
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gemm_eval import load_arch
from gemm_eval.sweep import LogRange, Random, Range, Space, Workload, sweep
from gemm_eval.transformer import load_model, transformer_gemms

NUM_GEMMS = 28
_STEPS = (("prefill", 1, 2048), ("decode", 1, 2048), ("prefill", 4, 4096), ("decode", 16, 4096), ("decode", 64, 4096))


def make_space() -> Space:
    """Chips of 64 cores."""
    base = load_arch("sg2260e").with_(name="chip", num_cores=64)
    fields = {
        "sram_bytes": LogRange(1 << 19, 1 << 23), "dram_gb_per_s": Range(200.0, 3200.0),
        "cube_m": [16, 32, 64], "cube_n": [16, 32, 64], "frequency_ghz": Range(0.5, 2.0),
    }  # fmt: skip
    return Space(base, fields)


def make_workload(num_gemms: int = NUM_GEMMS) -> Workload:
    """The first GEMMs of Llama 3 70B, prefill and decode."""
    model = load_model("llama-3-70b")
    counts: dict[Any, int] = {}
    for phase, batch_size, seq_len in _STEPS:
        for gemm in transformer_gemms(model, phase=phase, batch_size=batch_size, seq_len=seq_len):  # type: ignore[arg-type]
            counts[gemm.problem] = counts.get(gemm.problem, 0) + gemm.total_count
    return Workload("llama", tuple(counts.items())[:num_gemms])


def _rate(num_points: int, executor: Any) -> tuple[float, Any]:
    space, workload = make_space(), make_workload()
    sweep(space, workload, sampling=Random(32, seed=1), executor=executor, chunk_size=8)  # compiled, and everyone awake
    start = time.perf_counter()
    result = sweep(space, workload, sampling=Random(num_points), executor=executor, progress=False)
    return num_points * NUM_GEMMS / (time.perf_counter() - start), result.to_arrow()


def _peak_mb(num_points: int, folder: str, queue: Any) -> None:
    start = time.perf_counter()
    sweep(make_space(), make_workload(1), sampling=Random(num_points), path=Path(folder) / "points", progress=False)
    seconds = time.perf_counter() - start
    kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    num_bytes = sum(file.stat().st_size for file in (Path(folder) / "points").iterdir())
    queue.put((kib / 1024, num_points / seconds, num_bytes / num_points))


def _memory(num_points: int) -> dict[str, float]:
    """Most memory of a process that streams points into a folder; points a second; bytes of a point on disk."""
    context = multiprocessing.get_context("spawn")
    folder, queue = tempfile.mkdtemp(), context.Queue()
    try:
        process = context.Process(target=_peak_mb, args=(num_points, folder, queue))
        process.start()
        peak_mb, points_per_s, point_bytes = queue.get()
        process.join()
    finally:
        shutil.rmtree(folder)
    return {"points": num_points, "peak_mb": peak_mb, "points_per_s": points_per_s, "point_bytes": point_bytes}


def _rates(num_points: int) -> dict[str, Any]:
    """Evaluations a second in threads of this process, and on two workers of Dask right after."""
    from dask.distributed import Client, LocalCluster

    threads_per_s, table = _rate(num_points, None)
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,  # type: ignore[no-untyped-call]
        Client(cluster) as client,  # type: ignore[no-untyped-call]
    ):
        dask_per_s, dask_table = _rate(num_points, client)
    is_same = table.to_pandas().equals(dask_table.to_pandas())  # where arrow takes nan for nan
    return {"threads_per_s": threads_per_s, "dask_per_s": dask_per_s, "is_same_table": is_same}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print each rate, or all of it as one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=10_000, help="chips")
    parser.add_argument("--memory-points", type=int, default=1_000_000, help="chips of the memory test, one GEMM each")
    parser.add_argument("--runs", type=int, default=3, help="of the rates")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args(arguments)
    say = (lambda _: None) if options.json else print

    say(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} before")
    runs = []
    for _ in range(options.runs):
        of = _rates(options.points)
        runs.append(of)
        share = of["dask_per_s"] / of["threads_per_s"]
        say(
            f"{options.points:,} chips x {NUM_GEMMS} GEMMs: {of['threads_per_s']:,.0f} evaluations a second in "
            f"threads, {share:.0%} of that by two workers of Dask; same table: {of['is_same_table']}"
        )
    memory = []
    for num_points in (options.memory_points // 10, options.memory_points):
        of = _memory(num_points)
        memory.append(of)
        say(
            f"streamed {num_points:,} points of one GEMM: {of['peak_mb']:,.0f} MB at most, {of['points_per_s']:,.0f} "
            f"points/s, {of['point_bytes']:,.0f} bytes a point on disk"
        )
    if options.json:
        document = {"num_cpus": os.cpu_count(), "points": options.points, "gemms": NUM_GEMMS}
        print(json.dumps(document | {"runs": runs, "memory": memory}))


if __name__ == "__main__":
    main()
