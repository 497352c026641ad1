"""For chip architects: which chip of at most 300 mm2 runs Llama 3 8B, and what does more of each field bring?

    python examples/sweep_chip.py        (needs pip install 'gemm_eval[sweep]')

Area is not the library's to guess: the figures below are assumptions, to be replaced by yours.
"""

from __future__ import annotations

from typing import Any

from gemm_eval.sweep import LatinHypercube, LogRange, Space, sweep, transformer_workloads, what_if

MM2_PER_CORE, MM2_PER_MAC, MM2_PER_SRAM_MIB, MM2_PER_GB_PER_S = 1.0, 0.0006, 1.33, 0.04


def area_mm2(chip: Any) -> float:
    """Return the area of cores, matrix units, SRAM and DRAM interface, in mm2."""
    macs = chip.cube_m * chip.cube_k * chip.cube_n
    core_mm2 = MM2_PER_CORE + MM2_PER_MAC * macs + MM2_PER_SRAM_MIB * chip.sram_bytes / 2**20
    return float(chip.num_cores * core_mm2 + MM2_PER_GB_PER_S * chip.dram_gb_per_s)


def main() -> None:
    """Print chips on the Pareto front of decode, prefill and area, and what changes of one of them bring."""
    space = Space(
        "demo-8core",
        num_cores=[8, 16, 32, 64],
        cube_n=[16, 32, 64],
        sram_bytes=LogRange(2**18, 2**22, step=2**16),
        dram_gb_per_s=LogRange(100, 1600, step=20),
        area_mm2=area_mm2,
    )
    workloads = transformer_workloads("llama-3-8b", batch_size=16, seq_len=2048)
    objectives = ["decode_latency_us", "prefill_latency_us", "area_mm2"]
    found = sweep(space, workloads, objectives, "area_mm2 <= 300", sampling=LatinHypercube(500))
    front = found.pareto()
    columns = ["num_cores", "cube_n", "sram_bytes", "dram_gb_per_s", *objectives]
    print(f"{len(found)} chips, {len(front)} of at most 300 mm2 on the front. Every fifth:\n")
    print(front.set_index("point")[columns].iloc[::5].rename(columns=lambda name: name.replace("_latency", "")).round())

    first = found.row(int(front["point"].iloc[0]))
    changes = [{name: 2 * first[name]} for name in ("num_cores", "cube_n", "sram_bytes", "dram_gb_per_s")]
    print(f"\nThe fastest in decode is point {first['point']}. Ratios of latency after one change:\n")
    table = what_if(found.arch(first["point"]), workloads, changes, objectives=objectives[:2])
    print(table[["change", "decode_latency_us_ratio", "prefill_latency_us_ratio"]].round(2).to_string(index=False))


if __name__ == "__main__":
    main()
