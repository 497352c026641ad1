"""What `explain` says of a multi-core chip: changes of the spec that could help."""

from __future__ import annotations

from typing import Any

from gemm_eval.arch import MulticoreSpec

__all__ = ["spec_changes"]


def spec_changes(arch: MulticoreSpec) -> list[tuple[str, dict[str, Any]]]:
    """Return doublings of everything that can be bought, and the removal of fixed costs."""
    dram: dict[str, Any] = {"dram_gb_per_s": arch.dram_gb_per_s * 2}
    if arch.dram_core_limit_gb_per_s is not None:
        dram["dram_core_limit_gb_per_s"] = arch.dram_core_limit_gb_per_s * 2
    rates = {dtype: rate * 2 for dtype, rate in arch.cube_steps_per_cycle.items()}
    changes: list[tuple[str, dict[str, Any]]] = [
        ("dram_gb_per_s x2", dram),
        ("cube_steps_per_cycle x2", {"cube_steps_per_cycle": rates}),
        ("num_cores x2", {"num_cores": arch.num_cores * 2}),
        ("sram_bytes x2", {"sram_bytes": arch.sram_bytes * 2}),
        ("frequency_ghz x2", {"frequency_ghz": arch.frequency_ghz * 2}),
    ]
    if arch.noc_gb_per_s is not None:
        changes.append(("noc_gb_per_s x2", {"noc_gb_per_s": arch.noc_gb_per_s * 2}))
    if arch.vector_ops_per_cycle is not None:
        changes.append(("vector_ops_per_cycle x2", {"vector_ops_per_cycle": arch.vector_ops_per_cycle * 2}))
    if arch.timing == "overlap" and arch.overlap_frac < 1.0:
        changes.append(("overlap_frac 1", {"overlap_frac": 1.0}))
    if arch.launch_us > 0.0:
        changes.append(("launch_us 0", {"launch_us": 0.0}))
    return changes
