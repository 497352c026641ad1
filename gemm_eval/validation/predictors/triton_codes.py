"""A table of what the machine code of Triton kernels says: one row a kernel, as the Triton model reads it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from gemm_eval.errors import InvalidInputError
from gemm_eval.models.gpu.triton import KernelCode, MainLoop, MmaCount
from gemm_eval.words import shown

__all__ = ["CODE_COLUMNS", "KernelKey", "mma_text", "parse_mma", "read_codes", "write_codes"]


class KernelKey(NamedTuple):
    """What makes a kernel of its own; `group_m`, and how often K is cut, are numbers in the same machine code.

    Attributes:
        data_set: name of the data types and the kernel, such as ``w4a16-fp16``.
        block_m, block_n, block_k: tile of C, and elements of K in a step.
        num_warps, num_stages: as in `TritonConfig`.
        is_split: K is cut at all.
    """

    data_set: str
    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    is_split: bool


_OF_KERNEL = ("registers", "smem_bytes", "stack_bytes", "outside", "is_compiled")
CODE_COLUMNS = (*KernelKey._fields, *_OF_KERNEL, *MainLoop._fields)
"""Columns of the table: `KernelKey`, `KernelCode` and `MainLoop`; `mma` as in `mma_text`."""

_SHARED, _REGISTERS = "s", "r"
_MMA = re.compile(rf"(\d+)x(\d+)x(\d+):(\d+):([{_SHARED}{_REGISTERS}])\*(\d+)")


def mma_text(mma: Iterable[MmaCount]) -> str:
    """Return tensor-core instructions as text.

    >>> mma_text([MmaCount(64, 128, 16, 16, False, 8)])  # A from shared memory; r: from registers
    '64x128x16:16:s*8'
    """
    return " ".join(
        f"{one.m}x{one.n}x{one.k}:{one.input_bits}:{_REGISTERS if one.has_a_in_registers else _SHARED}*{one.num}"
        for one in mma
    )


def parse_mma(text: str) -> tuple[MmaCount, ...]:
    """Return what `mma_text` made a text of.

    Raises:
        InvalidInputError: it made no such text.
    """
    found = []
    for word in text.split():
        match = _MMA.fullmatch(word)
        if match is None:
            raise InvalidInputError(f"tensor-core instructions are written as 64x128x16:16:s*8, got {shown(word)}")
        m, n, k, bits, num = (int(match[place]) for place in (1, 2, 3, 4, 6))
        found.append(MmaCount(m, n, k, bits, match[5] == _REGISTERS, num))
    return tuple(found)


def write_codes(path: Path, codes: Mapping[KernelKey, KernelCode]) -> None:
    """Write kernels as CSV, sorted by their keys."""
    rows: list[dict[str, Any]] = [
        key._asdict()
        | {name: getattr(code, name) for name in _OF_KERNEL}
        | code.loop._asdict()
        | {"mma": mma_text(code.loop.mma)}
        for key, code in sorted(codes.items())
    ]
    pd.DataFrame(rows, columns=list(CODE_COLUMNS)).to_csv(path, index=False, lineterminator="\n")


def read_codes(path: Path) -> dict[KernelKey, KernelCode]:
    """Read what `write_codes` wrote.

    Raises:
        InvalidInputError: the file cannot be read, or lacks a column.
    """
    try:
        frame = pd.read_csv(path, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"cannot read the machine code of kernels from {path}: {error}") from error
    if missing := [name for name in CODE_COLUMNS if name not in frame]:
        raise InvalidInputError(f"{path} lacks {', '.join(missing)}; examples/measure_triton.py --codes writes it")
    codes = {}
    for row in frame.to_dict("records"):
        loop = MainLoop(**{name: row[name] for name in MainLoop._fields} | {"mma": parse_mma(row["mma"])})
        of_kernel = {name: row[name] for name in _OF_KERNEL}
        key = KernelKey(*(row[name] for name in KernelKey._fields))
        codes[key] = KernelCode(num_warps=key.num_warps, loop=loop, **of_kernel)
    return codes
