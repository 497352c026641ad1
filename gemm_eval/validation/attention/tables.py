"""Measured attention: reading its tables.

Committed tables lie in ``arch/measured/<gpu>/attention-<source>/<phase>``. A table has the columns `COLUMNS`; one row
is one call for one layer, and what its time covers stands in the meta file beside it: gpu, library (whose kernels ran),
framework (name and release), phase (``context``, ``generation``, ``mla_context``, ``mla_generation``), for the reader
source, license and protocol, and `values_are_keys` where whoever timed them gave both the same memory.
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
from gemm_eval.models.gpu.attention import ATTENTION_LIBRARIES, AttentionRows, attention_rows
from gemm_eval.validation.tables import meta_of
from gemm_eval.validation.timings import Floats, Mask
from gemm_eval.workload import AttentionProblem

__all__ = ["COLUMNS", "PHASES", "AttentionTimings", "list_attention_timings", "read_attention_timings"]

_SIZES = ("batch", "q_len", "kv_len", "num_heads", "num_kv_heads", "head_dim", "v_head_dim", "window")
COLUMNS = (*_SIZES, "dtype", "kv_dtype", "latency_us")
"""Of a table; `window` 0: none."""

PHASES = ("context", "generation", "mla_context", "mla_generation")
"""What a table is of, in the order in which they are shown."""


@dataclass(frozen=True, eq=False)
class AttentionTimings:
    """Measured calls, one a row.

    Attributes:
        frame: columns `COLUMNS`, index 0, 1, ...
        name: ``attention-aiconfigurator-0.12/context``.
        gpu: arch name.
        library: whose kernels ran.
        framework: that ran them, and its release.
        phase: one of `PHASES`.
        is_aliased: whether keys and values lie in the same memory.
    """

    frame: pd.DataFrame
    name: str
    gpu: str
    library: str
    framework: str
    phase: str
    is_aliased: bool = False

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def is_latent(self) -> bool:
        """Whether rows are of absorbed MLA."""
        return self.phase == "mla_generation"

    @property
    def measured_us(self) -> Floats:
        """Time of a call, [rows], in microseconds."""
        return cast("Floats", self.frame["latency_us"].to_numpy(np.float64))

    @cached_property
    def problems(self) -> list[AttentionProblem]:
        """What each row computed."""
        columns = self.frame[list(COLUMNS[:-1])].itertuples(index=False, name=None)
        return [self._problem(*row) for row in columns]

    def _problem(
        self, batch: int, q_len: int, kv_len: int, num_heads: int, num_kv_heads: int, head_dim: int, v_head_dim: int,
        window: int, dtype: str, kv_dtype: str,
    ) -> AttentionProblem:  # fmt: skip
        return AttentionProblem(
            batch, q_len, kv_len, num_heads, num_kv_heads, head_dim, parse_dtype(dtype), parse_dtype(kv_dtype),
            v_head_dim, window=window or None, is_latent=self.is_latent,
        )  # fmt: skip

    @cached_property
    def rows(self) -> AttentionRows:
        """The problems as columns, as models take them."""
        found = attention_rows(self.problems)
        return replace(found, is_aliased=np.full(len(self), float(self.is_aliased)))

    @cached_property
    def heads(self) -> list[tuple[int, ...]]:
        """(query heads, KV heads, head_dim) of each row: rows with the same are held out together.

        Of MLA the number of heads alone: all sizes are the same, and each query head has keys of its own, or none has.
        """
        names = ["num_heads"] if self.phase.startswith("mla") else ["num_heads", "num_kv_heads", "head_dim"]
        return [tuple(map(int, row)) for row in self.frame[names].itertuples(index=False, name=None)]

    def select(self, mask: Mask) -> AttentionTimings:
        """Return the rows where `mask` is true."""
        return replace(self, frame=self.frame.loc[mask].reset_index(drop=True))


def read_attention_timings(path: Path) -> AttentionTimings:
    """Read a table and the meta file beside it.

    Raises:
        InvalidInputError: a column or a key is missing.
    """
    frame, meta = pd.read_parquet(path), meta_of(path)
    missing = [name for name in COLUMNS if name not in frame.columns]
    missing += [key for key in ("gpu", "library", "framework", "phase") if key not in meta]
    if missing:
        raise InvalidInputError(f"{path}: columns or keys of the meta file are missing: {', '.join(missing)}")
    words = {key: str(meta[key]) for key in ("gpu", "library", "framework", "phase")}
    is_aliased = bool(meta.get("values_are_keys", False))
    return AttentionTimings(frame, f"{path.parent.name}/{path.stem}", **words, is_aliased=is_aliased)


def list_attention_timings(gpu: str) -> list[AttentionTimings]:
    """Read all measured attention that comes with the library for a GPU, in the order of libraries and `PHASES`."""
    folder = data_root() / "measured" / gpu
    found = [read_attention_timings(path) for path in sorted(folder.glob("attention-*/*.parquet"))]
    libraries = list(ATTENTION_LIBRARIES)
    return sorted(found, key=lambda timings: (libraries.index(timings.library), PHASES.index(timings.phase)))
