"""Comparison of a spec with what its maker publishes; numbers without a source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gemm_eval.arch.gpu import GpuSpec
from gemm_eval.arch.loader import ArchSpec

PUBLISHED_TOLERANCE_FRAC = 0.01
"""How far a figure of a spec may be from the published one: makers round their headlines to two or three digits."""

_NOTE = "note: "


class CheckFinding(NamedTuple):
    """One thing that a check looked at."""

    field: str
    ok: bool
    message: str

    @property
    def is_note(self) -> bool:
        """True for a remark, which is neither right nor wrong; a note is always `ok`."""
        return self.message.startswith(_NOTE)


def check_arch(arch: ArchSpec) -> list[CheckFinding]:
    """Check that a spec reproduces its published figures within 1%; note odd numbers, and those without a source.

    A spec that does not hold together never gets this far: `load_arch` refuses it.

    Returns:
        Findings on published figures first, then notes. The spec is sound when all of them are `ok`.
    """
    notes = (CheckFinding(text.split()[0], True, f"{_NOTE}{text}") for text in arch.implausible_numbers())
    return [*_compare_with_published(arch), *notes, *_note_unsourced_numbers(arch)]


def _compare_with_published(arch: ArchSpec) -> Iterator[CheckFinding]:
    published = arch.published
    if published is None:
        yield CheckFinding("published", True, f"{_NOTE}no published figures to compare with")
        return
    table = "tensor_flop_per_cycle" if isinstance(arch, GpuSpec) else "cube_steps_per_cycle"
    for dtype, peak in published.peak_tflop_per_s.items():
        field = f"peak_tflop_per_s.{dtype}"
        if dtype in getattr(arch, table):
            yield _compare(field, arch.peak_tflop_per_s(dtype), peak, "TFLOP/s")
        else:
            yield CheckFinding(field, False, f"{peak:,} TFLOP/s published, but {table} has no {dtype}")
    if published.dram_gb_per_s is not None:
        yield _compare("dram_gb_per_s", arch.dram_gb_per_s, published.dram_gb_per_s, "GB/s")
    if isinstance(arch, GpuSpec):
        num_cores, sram_bytes, cores = arch.num_sms, arch.smem_per_sm_bytes, "SMs"
    else:
        num_cores, sram_bytes, cores = arch.num_cores, arch.sram_bytes, "cores"
    if published.num_sms is not None:
        is_same = cores == "SMs" and num_cores == published.num_sms
        yield CheckFinding("num_sms", is_same, f"{num_cores:,} {cores}, published {published.num_sms:,} SMs")
    if published.sram_bytes is not None:
        yield _compare("sram_bytes", num_cores * sram_bytes, published.sram_bytes, f"bytes in all {cores}")


def _compare(field: str, derived: float, published: float, unit: str) -> CheckFinding:
    is_close = abs(derived - published) <= PUBLISHED_TOLERANCE_FRAC * published
    difference = f"{derived / published - 1.0:+.2%}"
    allowed = "" if is_close else f", more than {PUBLISHED_TOLERANCE_FRAC:.0%} apart"
    return CheckFinding(field, is_close, f"{derived:,.10g} {unit}, published {published:,.10g} ({difference}{allowed})")


def _note_unsourced_numbers(arch: ArchSpec) -> Iterator[CheckFinding]:
    for field in type(arch).model_fields:
        if field not in arch.model_fields_set or field in arch.provenance:  # a default is the library's, not the file's
            continue
        for name, entry in _entries(field, getattr(arch, field)):
            if isinstance(entry, int | float) and not isinstance(entry, bool) and name not in arch.provenance:
                yield CheckFinding(name, True, f"{_NOTE}{entry:,} has no kind and source")


def _entries(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what tables of any depth hold, each with its path."""
    if not isinstance(value, Mapping):
        yield path, value
        return
    for key, item in value.items():
        yield from _entries(f"{path}.{key}", item)
