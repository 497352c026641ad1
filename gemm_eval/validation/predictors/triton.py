"""Triton kernels: code and timings of configs, the fit of their model, its calibration."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd

from gemm_eval.arch import GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidInputError
from gemm_eval.models.gpu import Coefficient, ErrorFigures
from gemm_eval.models.gpu.triton import (
    TRITON_COEFFICIENTS,
    KernelCode,
    Launches,
    MainLoop,
    MmaCount,
    TritonCalibration,
    TritonConfig,
    default_triton_coefficients,
    estimate_code,
    launch_times,
    pack_launches,
    stack_launches,
    triton_coefficients,
)
from gemm_eval.validation.fit import Ranges, Search, cross_fit, fit_logs, provenance, rounded, sha256_of
from gemm_eval.validation.metrics import error_figures
from gemm_eval.validation.tables import measured_root, meta_of, read_columns
from gemm_eval.validation.timings import PER_COLUMN, Floats, Form, Ints, Mask, Timings
from gemm_eval.words import shown
from gemm_eval.workload import GemmProblem


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


_MIN_ROWS = 200  # for a fit of all coefficients

# errors to the fourth digit, and coefficients within a percent
_SEARCH = Search(loss_scale=0.1, difference=1e-4, off_bounds=1e-3, evaluations=60, tolerance=1e-5)

NUM_THREADS = os.cpu_count() or 1
"""Fits at a time: numpy, which this model is made of, leaves Python's lock to others."""


@dataclass(frozen=True, eq=False)
class TritonModel:
    """The model of Triton kernels with its coefficients; see `Model`.

    Attributes:
        arch: the GPU.
        values: the coefficients. A fit starts at them, so they must not come from rows that are held out of it.
        held: coefficients that a fit leaves as they are; they may be out of their ranges.
    """

    arch: GpuSpec
    values: Mapping[str, float] = field(default_factory=default_triton_coefficients)
    held: Mapping[str, float] = field(default_factory=dict)
    name: str = "model"
    is_screened: ClassVar[bool] = False
    buys_nothing_points: ClassVar[float] = 0.03
    num_threads: ClassVar[int] = NUM_THREADS

    @classmethod
    def as_it_is(cls, arch: GpuSpec) -> tuple[TritonModel, str]:
        """Return the model with the coefficients that the library has for this GPU, and where they come from."""
        coefficients, origin = triton_coefficients(arch)
        return cls(arch, coefficients), origin.text

    def fit(self, *train: Timings) -> TritonModel:
        """Return one that is fitted on all rows of one set.

        Raises:
            InvalidInputError: fewer than `_MIN_ROWS` rows, or one whose kernel cannot be launched on this GPU.
        """
        (rows,) = train
        if len(rows) < _MIN_ROWS:
            raise InvalidInputError(f"a fit needs at least {_MIN_ROWS} timings of Triton kernels, got {len(rows)}")
        can_run = rows_of(rows).launches.ctas_per_sm > 0
        if not can_run.all():
            row = int(np.argmin(can_run)) + 1
            raise InvalidInputError(f"row {row} has a kernel that cannot be launched on {self.arch.name}")
        ranges = Ranges([item for item in TRITON_COEFFICIENTS if item.name not in self.held], self.held)

        def predict(values: dict[str, float]) -> Floats:
            return replace(self, values=values).predict(rows)

        start = ranges.shares(self.values, _SEARCH.off_bounds)
        return replace(self, values=ranges.values(fit_logs(ranges, predict, rows.measured_us, start, _SEARCH)))

    def predict(self, rows: Timings) -> Floats:
        """Return the latency of each row at the config that ran, in microseconds."""
        return launch_times(self.arch, rows_of(rows).launches, self.values).latency_us

    def parts(self, timings: Timings) -> Iterator[tuple[str, TritonModel, Mask]]:
        """Yield itself: one set of coefficients serves all rows."""
        yield "", self, np.ones(len(timings), bool)

    def terms(self) -> Sequence[Coefficient]:
        """Return the coefficient of each term."""
        return TRITON_COEFFICIENTS

    def without(self, values: Mapping[str, float]) -> TritonModel:
        """Return one with these values, which a fit leaves as they are."""
        return replace(self, values={**self.values, **values}, held={**self.held, **values})

    def row_weights(self, rows: Timings) -> Floats:
        """Return what each row counts in a fit, [rows]: the same."""
        return np.ones(len(rows))


def is_triton_calibrated(arch: GpuSpec) -> bool:
    """Whether Triton kernels have a calibration of this very GPU."""
    return triton_coefficients(arch)[1].is_calibrated


def describe_config(timings: Timings, row: int) -> str:
    """Return the config of a row in words."""
    return str(TritonConfig(*timings.frame[list(CONFIG_COLUMNS)].iloc[row].tolist()))


def calibrate_triton(arch: GpuSpec, path: Path, *, num_folds: int = 5, seed: int = 0) -> TritonCalibration:
    """Fit all coefficients on a table of timings; the errors are of each data set, held out by (N, K).

    Args:
        arch: the GPU that the table is of.
        path: ``timings.parquet``, with the machine code beside it.
        num_folds, seed: deal the pairs to the folds.

    Raises:
        InvalidInputError: the table cannot be read, or has too few rows.
        InvalidOptionError: fewer pairs than folds.
    """
    timings = read_triton_timings(arch, path)
    model = TritonModel(arch)
    fitted = model.fit(timings)
    predicted_us = cross_fit(model, [timings], num_folds, seed, num_threads=NUM_THREADS).predict(timings)
    digest, errors = sha256_of(path), []
    for name in timings.groups:
        rows = timings.of_group(name)
        figures = error_figures(timings.measured_us[rows], predicted_us[rows])
        errors.append(ErrorFigures(data=f"triton/{name}", sha256=digest, **figures))
    return TritonCalibration(
        gpu=arch.name, triton_version=_triton_version(path), coefficients=rounded(fitted.values), errors=tuple(errors),
        **provenance(num_folds, "data sets", seed),
    )  # fmt: skip


def _triton_version(path: Path) -> str:
    versions = meta_of(path).get("versions")
    return str(versions.get("triton", "unknown")) if isinstance(versions, dict) else "unknown"
