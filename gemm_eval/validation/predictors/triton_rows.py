"""Timings of Triton kernels, config by config, with the machine code of each: packed for the model.

A table of timings lies beside a table of machine code, as `examples/measure_triton.py` writes both: ``timings.parquet``
with `TIMING_COLUMNS`, and ``codes.csv`` (`triton_codes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gemm_eval.arch import GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidInputError
from gemm_eval.models.gpu.triton import (
    KernelCode,
    Launches,
    TritonConfig,
    estimate_code,
    pack_launches,
    stack_launches,
)
from gemm_eval.validation.predictors.triton_codes import KernelKey, read_codes
from gemm_eval.validation.tables import measured_root, read_columns
from gemm_eval.validation.timings import PER_COLUMN, Form, Ints, Mask, Timings
from gemm_eval.workload import GemmProblem

__all__ = [
    "CODES_FILE",
    "CONFIG_COLUMNS",
    "GEMM_COLUMNS",
    "TIMING_COLUMNS",
    "TRITON_FORM",
    "TritonRows",
    "read_triton_timings",
    "rows_of",
    "triton_table",
    "without_code",
]

CODES_FILE = "codes.csv"
"""The table of machine code, in the folder of the timings."""

GEMM_COLUMNS = ["data_set", "N", "K", "M"]
"""What tells GEMMs apart; a data set is one choice of data types, with the kernel for them."""

CONFIG_COLUMNS = ("block_m", "block_n", "block_k", "num_warps", "num_stages", "group_m", "split_k")
"""As in `TritonConfig`, in its order."""

TIMING_COLUMNS = (
    "data_set", "G", "M", "K", "N", "input_dtype", "weight_dtype", "output_dtype", "group_size", "rank",
    "latency_us", "min_us", "num_replays", *CONFIG_COLUMNS,
)  # fmt: skip
"""Columns of a table of timings; `rank` 0 is the fastest of a GEMM's configs."""

_OF_GEMM = ("G", "M", "K", "N", "a_elem_bytes", "b_elem_bytes", "c_elem_bytes")  # of `Launches`
_SIZES_AND_TYPES = ("G", "M", "K", "N", "input_dtype", "weight_dtype", "output_dtype", "group_size")


TRITON_FORM = Form(tuple(GEMM_COLUMNS), "data_set")
"""A row is a config of a Triton kernel; errors are told apart by data set."""


@dataclass(frozen=True, eq=False)
class TritonRows:
    """The launches of rows, which `launch_times` takes; see `Packing`.

    Attributes:
        launches: [rows], with what their machine code says.
        estimated: the same with what `estimate_code` expects of the code.
    """

    launches: Launches
    estimated: Launches

    @property
    def place(self) -> Ints:
        """The order of the table."""
        return np.arange(len(self.launches.ctas_per_sm))

    def select(self, mask: Mask) -> TritonRows:
        """Return the rows where `mask` is true."""
        return TritonRows(*(Launches(*(column[mask] for column in item)) for item in (self.launches, self.estimated)))


def rows_of(timings: Timings) -> TritonRows:
    """Return the launches of timings that `read_triton_timings` read."""
    assert isinstance(timings.packed, TritonRows), f"{timings.name} does not tell the configs of Triton kernels"
    return timings.packed


def without_code(timings: Timings) -> Timings:
    """Return the same rows as if their kernels had not been compiled."""
    estimated = rows_of(timings).estimated
    return replace(timings, packed=TritonRows(estimated, estimated))


def triton_table(gpu: str) -> Path:
    """Return where the timings of Triton kernels that come with the library for `gpu` lie, if there are any."""
    return measured_root(gpu) / "triton" / "timings.parquet"


def read_triton_timings(arch: GpuSpec, path: Path) -> Timings:
    """Read a table of timings of Triton kernels, and the machine code of these kernels beside it.

    Raises:
        InvalidInputError: a file cannot be read, or lacks a column, or the machine code of a kernel.
        UnsupportedError: the arch is one whose Triton kernels the model does not know.
    """
    frame = read_columns(path, TIMING_COLUMNS, " lacks {}; examples/measure_triton.py writes them")
    codes = read_codes(path.with_name(CODES_FILE))
    frame = frame.sort_values(GEMM_COLUMNS, kind="stable", ignore_index=True)
    keys = [KernelKey(*values) for values in _keys_of(frame).itertuples(index=False, name=None)]
    if unknown := next((key for key in keys if key not in codes), None):
        raise InvalidInputError(f"{path.with_name(CODES_FILE)} has no row for {unknown}")
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    kernel_of = np.array([numbers[key] for key in keys], np.int64)
    types = {str(name): _problem(rows.iloc[0]) for name, rows in frame.groupby("data_set")}
    expected = {key: estimate_code(arch, types[key.data_set], _config_of(key)) for key in numbers}
    compiled = _launches(arch, frame, types, {key: codes[key] for key in numbers}, kernel_of)
    estimated = _launches(arch, frame, types, expected, kernel_of)
    ctas_per_sm = np.maximum(estimated.ctas_per_sm, 1.0)  # what was timed can be launched, whatever is expected of it
    rows = TritonRows(compiled, estimated._replace(ctas_per_sm=ctas_per_sm))
    return Timings(frame, "triton", arch.name, "triton", form=TRITON_FORM, packed=rows)


def _keys_of(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(is_split=frame["split_k"] > 1)[list(KernelKey._fields)]


def _config_of(key: KernelKey) -> TritonConfig:
    return TritonConfig(key.block_m, key.block_n, key.block_k, key.num_warps, key.num_stages)


def _launches(
    arch: GpuSpec,
    frame: pd.DataFrame,
    types: Mapping[str, GemmProblem],
    codes: Mapping[KernelKey, KernelCode],
    kernel_of: Ints,
) -> Launches:
    """Pack each kernel and each GEMM once: a table has many rows of both."""
    of_kernels = stack_launches(
        [pack_launches(arch, types[key.data_set], [_config_of(key)], [code]) for key, code in codes.items()]
    )
    key, code = next(iter(codes.items()))
    gemms = frame.drop_duplicates(GEMM_COLUMNS)
    of_gemms = stack_launches(
        [pack_launches(arch, _problem(row), [_config_of(key)], [code]) for _, row in gemms.iterrows()]
    )
    gemm_of = frame.groupby(GEMM_COLUMNS, sort=False).ngroup().to_numpy()
    columns = {
        name: getattr(of_gemms, name)[gemm_of] if name in _OF_GEMM else getattr(of_kernels, name)[kernel_of]
        for name in Launches._fields
    }
    of_rows = {name: frame[name].to_numpy(np.float64) for name in ("group_m", "split_k")}
    return Launches(**columns | of_rows)


def _problem(row: pd.Series[Any]) -> GemmProblem:
    G, M, K, N, a, b, c, group = (row[name] for name in _SIZES_AND_TYPES)
    group_size = None if group == PER_COLUMN else int(group)
    return GemmProblem(int(G), int(M), int(K), int(N), DType(a), DType(b), DType(c), group_size=group_size)
