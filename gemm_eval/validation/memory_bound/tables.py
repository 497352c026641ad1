"""Measured kernels that are bound by memory: reading their tables.

Committed tables lie in ``arch/measured/<gpu>/memory-bound``. A table has the columns `COLUMNS`; one row is one kernel
with a CTA for each of its rows (but for choice and sort of experts), and the meta file beside it says of what GPU it
is, whose kernels they are (`library`, where they are not of engines), and how it was timed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd

from gemm_eval.errors import InvalidInputError
from gemm_eval.models.gpu.memory_bound import MemoryBoundRows, memory_bound_row
from gemm_eval.validation.tables import measured_root, meta_of
from gemm_eval.validation.timings import Floats, Ints, Mask
from gemm_eval.workload import ENGINES, memory_kernel

__all__ = ["COLUMNS", "FOLDER", "MemoryBoundTimings", "list_memory_bound_timings", "read_memory_bound_timings"]

COLUMNS = ("what", "rows", "width", "read_bytes", "write_bytes", "latency_us")
"""Of a table: the kernel, its rows and the elements of one, its bytes and its time."""

FOLDER = "memory-bound"
"""Of tables, in the folder of a GPU."""

_DEALT = ("top_k", "sort")  # kernels without a CTA for each row: elements are dealt to CTAs


@dataclass(frozen=True, eq=False)
class MemoryBoundTimings:
    """Measured kernels, one a row.

    Attributes:
        frame: columns `COLUMNS`, index 0, 1, ...
        name: ``memory-bound/kernels``.
        gpu: arch name.
        library: whose kernels.
    """

    frame: pd.DataFrame
    name: str
    gpu: str
    library: str

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def measured_us(self) -> Floats:
        """Time of a kernel, [rows], in microseconds."""
        return cast("Floats", self.frame["latency_us"].to_numpy(np.float64))

    @property
    def what(self) -> list[str]:
        """The kernel of each row."""
        return [str(name) for name in self.frame["what"]]

    @property
    def num_rows(self) -> Ints:
        """Rows that the kernel works on, [rows]."""
        return self.frame["rows"].to_numpy(np.int64)

    @property
    def width(self) -> Ints:
        """Elements of such a row, [rows]."""
        return self.frame["width"].to_numpy(np.int64)

    @property
    def fold(self) -> Ints:
        """What is held out together, [rows]: a width; of kernels that go by elements an octave of their number."""
        if self.library == ENGINES:
            return self.width
        octaves: Ints = np.log2(self.num_rows * self.width).astype(np.int64)
        return octaves

    @property
    def num_bytes(self) -> Floats:
        """Bytes read and written, [rows]."""
        return cast("Floats", (self.frame["read_bytes"] + self.frame["write_bytes"]).to_numpy(np.float64))

    @cached_property
    def rows(self) -> MemoryBoundRows:
        """What the model reads of them."""
        columns = ("what", "read_bytes", "write_bytes", "rows", "width")
        found = [
            memory_bound_row(*row, is_dealt=row[0] in _DEALT or memory_kernel(row[0]).is_dealt)
            for row in self.frame[list(columns)].itertuples(index=False, name=None)
        ]
        return MemoryBoundRows(*np.array(found, np.float64).T.copy())

    def select(self, mask: Mask) -> MemoryBoundTimings:
        """Return the rows where `mask` is true."""
        return replace(self, frame=self.frame.loc[mask].reset_index(drop=True))


def read_memory_bound_timings(path: Path) -> MemoryBoundTimings:
    """Read a table and the meta file beside it.

    Raises:
        InvalidInputError: a column or a key is missing.
    """
    frame, meta = pd.read_csv(path), meta_of(path)
    missing = [name for name in COLUMNS if name not in frame.columns]
    missing += ["gpu"] if "gpu" not in meta else []
    if missing:
        raise InvalidInputError(f"{path}: columns or keys of the meta file are missing: {', '.join(missing)}")
    return MemoryBoundTimings(frame, f"{path.parent.name}/{path.stem}", str(meta["gpu"]), meta.get("library", ENGINES))


def list_memory_bound_timings(gpu: str) -> list[MemoryBoundTimings]:
    """Read all measured kernels of a GPU that come with the library, by name."""
    return [read_memory_bound_timings(path) for path in sorted((measured_root(gpu) / FOLDER).glob("*.csv"))]
