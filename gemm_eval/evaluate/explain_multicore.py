"""Changes of the spec of a multi-core chip that could help, for `explain`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemm_eval.arch import MulticoreSpec

_DOUBLED = (
    ("dram_gb_per_s", "dram_core_limit_gb_per_s", "dram_write_gb_per_s"),
    ("dram_core_limit_gb_per_s",),
    ("dram_write_gb_per_s",),
    ("shared_gb_per_s",),
    ("shared_bytes",),
    ("noc_gb_per_s",),
    ("cube_steps_per_cycle",),
    ("feed_bytes_per_cycle",),
    ("vector_ops_per_cycle",),
    ("pack_gb_per_s",),
    ("num_cores",),
    ("sram_bytes",),
    ("frequency_ghz",),
)
"""Fields that are doubled together; the first names the change."""

_IDEAL = {
    "input_buffers": 2,
    "output_buffers": 2,
    "overlap_frac": 1.0,
    "launch_us": 0.0,
    "launch_floor_us": 0.0,
    "task_us": 0.0,
    "sync_us": 0.0,
    "weight_load_cycles": 0.0,
}
"""Fields that are set to what they are at best."""


def spec_changes(arch: MulticoreSpec) -> list[tuple[str, dict[str, Any]]]:
    """Return doublings of everything that can be bought, and the removal of fixed costs: (words, changed fields) each.

    What a data type, or the library, has of a field is changed with it.
    """
    changes = [(f"{fields[0]} x2", _changed(arch, dict.fromkeys(fields))) for fields in _DOUBLED]
    changes += [
        (f"{name} {value:g}", _changed(arch, {name: value}))
        for name, value in _IDEAL.items()
        if arch.timing == "overlap" or name not in ("input_buffers", "overlap_frac")
    ]
    return [(words, fields) for words, fields in changes if fields]


def _changed(arch: MulticoreSpec, wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes of a spec that put wanted values in place, or double where None is wanted; {}: nothing new."""

    def of(name: str, value: Any) -> Any:
        if value is None:
            return None
        if wanted[name] is not None:
            return wanted[name]
        return {key: rate * 2 for key, rate in value.items()} if isinstance(value, Mapping) else value * 2

    def of_table(table: Mapping[str, Any]) -> dict[str, Any]:
        return {name: of(name, value) if name in wanted else value for name, value in table.items()}

    changes: dict[str, Any] = {
        name: value for name in wanted if (value := of(name, getattr(arch, name))) != getattr(arch, name)
    }
    by_dtype = {dtype: of_table(fields) for dtype, fields in arch.by_dtype.items()}
    if by_dtype != arch.by_dtype:
        changes["by_dtype"] = by_dtype
    if arch.rules is not None and (rules := arch.rules.map_changes(of_table)) != arch.rules:
        changes["rules"] = rules
    return changes
