"""Measured collectives: reading their tables.

Committed tables lie in ``arch/measured/<gpu>/collective-<source>/<library>``. A table has the columns `COLUMNS`; one
row is one collective in one node, and what its time covers stands in the meta file beside it: gpu, library (whose
choice of algorithm), framework (name and release), and, for the reader, source, license and protocol.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np
import pandas as pd

from gemm_eval.arch import data_root
from gemm_eval.dtypes import parse_dtype
from gemm_eval.errors import InvalidInputError
from gemm_eval.validation.tables import meta_of
from gemm_eval.validation.timings import Floats, Ints, Mask
from gemm_eval.workload import CollectiveProblem

__all__ = ["COLUMNS", "CollectiveTimings", "list_collective_timings", "read_collective_timings"]

COLUMNS = ("what", "dtype", "num_ranks", "message_bytes", "latency_us")
"""Of a table; the first four are those of `CollectiveProblem`."""


@dataclass(frozen=True, eq=False)
class CollectiveTimings:
    """Measured collectives, one a row.

    Attributes:
        frame: columns `COLUMNS`, index 0, 1, ...
        name: ``collective-aiconfigurator-0.12/nccl``.
        gpu: arch name.
        library: whose choice of algorithm.
        framework: its name and release.
    """

    frame: pd.DataFrame
    name: str
    gpu: str
    library: str
    framework: str

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def measured_us(self) -> Floats:
        """Time of a collective, [rows], in microseconds."""
        return cast("Floats", self.frame["latency_us"].to_numpy(np.float64))

    @property
    def what(self) -> list[str]:
        """The operation of each row."""
        return [str(name) for name in self.frame["what"]]

    @property
    def num_ranks(self) -> Ints:
        """Devices, [rows]."""
        return self.frame["num_ranks"].to_numpy(np.int64)

    @cached_property
    def problems(self) -> list[CollectiveProblem]:
        """What each row did."""
        columns = self.frame[["what", "message_bytes", "num_ranks", "dtype"]].itertuples(index=False, name=None)
        return [CollectiveProblem(what, size, ranks, parse_dtype(dtype)) for what, size, ranks, dtype in columns]

    @cached_property
    def size_bytes(self) -> Ints:
        """`CollectiveProblem.buffer_bytes` of each row."""
        return np.array([item.buffer_bytes for item in self.problems], np.int64)

    def select(self, mask: Mask) -> CollectiveTimings:
        """Return the rows where `mask` is true."""
        return replace(self, frame=self.frame.loc[mask].reset_index(drop=True))


def read_collective_timings(path: Path) -> CollectiveTimings:
    """Read a table and the meta file beside it.

    Raises:
        InvalidInputError: a column or a key is missing.
    """
    frame, meta = pd.read_parquet(path), meta_of(path)
    missing = [name for name in COLUMNS if name not in frame.columns]
    missing += [key for key in ("gpu", "library", "framework") if key not in meta]
    if missing:
        raise InvalidInputError(f"{path}: columns or keys of the meta file are missing: {', '.join(missing)}")
    words = {key: str(meta[key]) for key in ("gpu", "library", "framework")}
    return CollectiveTimings(frame, f"{path.parent.name}/{path.stem}", **words)


def list_collective_timings(gpu: str) -> list[CollectiveTimings]:
    """Read all measured collectives that come with the library for a GPU, by name: NCCL's first."""
    folder = data_root() / "measured" / gpu
    return [read_collective_timings(path) for path in sorted(folder.glob("collective-*/*.parquet"))]
