"""What a change of a chip would bring: some changes, each by itself, against the chip as it is."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gemm_eval.arch import ArchSpec, GpuSpec, MulticoreSpec, load_arch
from gemm_eval.errors import InvalidOptionError
from gemm_eval.sweep.run import sweep
from gemm_eval.sweep.space import Space
from gemm_eval.sweep.spec_fields import build_arch, check_field
from gemm_eval.words import shown

__all__ = ["what_if"]

_AS_IS = "as it is"


def what_if(
    arch: ArchSpec | str | os.PathLike[str],
    workloads: Any,
    changes: Mapping[str, Mapping[str, Any]] | Sequence[Mapping[str, Any]],
    *,
    objectives: str | Sequence[str] = ("latency_us",),
    **options: Any,
) -> Any:
    """Return a DataFrame of the chip as it is and after each change, with objectives and their ratio to the first row.

    Args:
        arch: the chip.
        workloads: as for `sweep`.
        changes: fields and their new values, each set by itself: a list, or a mapping with a name for each.
            ``[{"dram_gb_per_s": 2000.0}, {"num_cores": 16, "sram_bytes": 1 << 21}]``
        objectives: metric columns; each has a second one, ``latency_us_ratio``.
        options: as for `sweep`: dtype, allow_idle_cores, library, l2, clock.

    Raises:
        InvalidOptionError, ArchValidationError: a change that makes no valid spec.
    """
    base = load_arch(arch) if isinstance(arch, str | os.PathLike) else arch
    if not isinstance(base, MulticoreSpec | GpuSpec):
        raise InvalidOptionError(f"arch must be a spec, a preset name or a path, got {shown(arch)}")
    if isinstance(changes, Mapping):
        if not all(isinstance(change, Mapping) for change in changes.values()):
            raise InvalidOptionError(f"changes are tables of fields, by name or in a list, got {shown(changes)}")
        named = {str(name): change for name, change in changes.items()}
    else:
        named = {_describe_change(change): change for change in changes}
    archs = {_AS_IS: base}
    for name, change in named.items():
        for field in change:
            check_field(base, field)
        archs[name] = build_arch(base, change)
    aims = [objectives] if isinstance(objectives, str) else list(dict.fromkeys(objectives))
    # labels may be any text, and two changes may give the same chip: they are told apart by their order
    numbered = {f"{at}": arch for at, arch in enumerate(archs.values())}
    result = sweep(Space(numbered), workloads, aims, progress=False, **options)
    table = result.to_pandas([*aims, "excluded"])
    table.insert(0, "change", list(archs))
    for name in aims:
        column = table[name].to_numpy(np.float64)
        table.insert(list(table.columns).index(name) + 1, f"{name}_ratio", column / column[0])
    return table


def _describe_change(change: Mapping[str, Any]) -> str:
    is_number = {name: isinstance(value, int | float) and not isinstance(value, bool) for name, value in change.items()}
    return ", ".join(f"{name} {value:,}" if is_number[name] else f"{name} {value}" for name, value in change.items())
