"""The exam of kernels whose time is that of their bytes: widths of rows held out; and their calibration."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.errors import InvalidInputError
from gemm_eval.models.gpu import Features, physics_digest
from gemm_eval.models.gpu import memory_bound as model
from gemm_eval.units import bytes_per_us
from gemm_eval.validation.baselines import fit_rate, interpolated
from gemm_eval.validation.exam import FITTED, MODEL, NAIVE, TABLE, Exam, Groups, MeasuredTable, Predict
from gemm_eval.validation.fit import Ranges, Search, provenance, rounded
from gemm_eval.validation.learned import EVERYWHERE, PHYSICS, Subject
from gemm_eval.validation.metrics import ALL
from gemm_eval.validation.subjects import Fitted, fitted, of_library, rows_between
from gemm_eval.validation.tables import Floats, Ints, Mask, measured_root
from gemm_eval.words import check_word
from gemm_eval.workload import ENGINES, TORCH, memory_kernel

_SEARCH = Search(loss_scale=0.1, difference=0.001, off_bounds=0.01, evaluations=100)
_REGIMES = (("up to 16", 0, 16), ("17 to 256", 16, 256), ("more", 256, np.inf))
_FOLDS = {ENGINES: "width", TORCH: "octave of elements"}
_ROOF = (2.0, 0.8), (0.1, 0.05), (50.0, 2.0)  # start and ends of overhead in microseconds and share of the rate
_LONG_US, _RATES = 200.0, ("wave_us", "sm_frac", "l2_frac", "dram_frac")
_DEALT = ("top_k", "sort")  # kernels without a CTA for each row: elements are dealt to CTAs


class MemoryBoundTable(MeasuredTable):
    """Measured kernels, one a row, with a CTA for each of its rows (but for choice and sort of experts)."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("what", "rows", "width", "read_bytes", "write_bytes", "latency_us")
    KEYS: ClassVar[tuple[str, ...]] = ("gpu",)

    @classmethod
    def read_meta(cls, path: Path, meta: Mapping[str, Any]) -> dict[str, Any]:  # noqa: ARG003
        return {"gpu": str(meta["gpu"]), "library": meta.get("library", ENGINES)}

    @cached_property
    def fold(self) -> Ints:
        """Group that each row is held out with, [rows]: a width; of PyTorch's an octave of the number of elements."""
        width = self.column("width")
        if self.library == ENGINES:
            return width
        return np.log2(self.column("rows") * width).astype(np.int64)

    @cached_property
    def kinds(self) -> npt.NDArray[np.str_]:
        """Name of each kernel, without its instructions, [rows]."""
        return np.array([name.partition(" ")[0] for name in self.words("what")])

    @cached_property
    def rows(self) -> model.MemoryBoundRows:
        columns = ["what", "read_bytes", "write_bytes", "rows", "width"]
        rows = [
            model.memory_bound_row(*row, is_dealt=row[0] in _DEALT or memory_kernel(row[0]).is_dealt)
            for row in self.frame[columns].itertuples(index=False, name=None)
        ]
        return model.MemoryBoundRows(*np.array(rows, np.float64).T.copy())


def tables(gpu: str) -> list[MemoryBoundTable]:
    """Read all measured kernels of a GPU, by name."""
    return [MemoryBoundTable.read(path) for path in sorted((measured_root(gpu) / "memory-bound").glob("*.csv"))]


def fit_memory_bound(
    arch: GpuSpec, rows: model.MemoryBoundRows, measured_us: Floats, library: str = ENGINES
) -> dict[str, float]:
    """Return all coefficients, fitted on some kernels; engines' have no long chains, so that `far_frac` is not.

    Where all kernels are long, they tell rates alone: the rest is what it was, another GPU's.
    """
    items = [item for item in model.MEMORY_BOUND_COEFFICIENTS if library == TORCH or item.name != "far_frac"]
    known = {item.name: item.default for item in model.MEMORY_BOUND_COEFFICIENTS}
    if measured_us.min() > _LONG_US:
        items = [item for item in items if item.name in _RATES]
        known = model.memory_bound_coefficients(arch, library)[0]

    def latency_us(values: Mapping[str, float]) -> Floats:
        return model.memory_bound_us(arch, {**known, **values}, rows)

    return {**known, **Ranges(items).fit(latency_us, measured_us, _SEARCH)}


def predictions(arch: GpuSpec, table: MemoryBoundTable) -> Predict:
    """Return the predictions of a table, ready to be fitted; InvalidInputError: all rows are of one fold."""
    if len(np.unique(table.fold)) < 2:
        raise InvalidInputError(f"{table.name} has one width of rows only: none can be held out")
    least_us = (table.rows.read_bytes + table.rows.write_bytes) / bytes_per_us(arch.dram_gb_per_s)
    sizes, kernels = np.stack([table.column("rows"), table.column("width")], axis=1), table.kinds

    def predict(train: Mask, rows: Mask) -> dict[str, Floats]:
        roof_us, table_us = np.full((2, len(table)), np.nan)
        for kernel in np.unique(kernels[rows]):
            asked, others = rows & (kernels == kernel), train & (kernels == kernel)
            others = others if others.any() else train  # a kernel that has no others learns from all
            table_us[asked] = interpolated(
                sizes[others], table.measured_us[others], least_us[others], sizes[asked], least_us[asked]
            )  # fmt: skip
            roof_us[asked] = fit_rate(least_us, table.measured_us, others, asked, *_ROOF)
        coefficients = fit_memory_bound(arch, table.rows.take(train), table.measured_us[train], table.library)
        model_us = model.memory_bound_us(arch, coefficients, table.rows.take(rows))
        return {NAIVE: least_us[rows], FITTED: roof_us[rows], TABLE: table_us[rows], MODEL: model_us}

    return predict


def committed_us(arch: GpuSpec, sets: Sequence[MemoryBoundTable]) -> tuple[Floats, dict[str, str]]:
    """Return the latencies of rows by committed coefficients, and the digest of these by library."""
    (table,) = sets
    coefficients, _ = model.memory_bound_coefficients(arch, table.library)
    digests = {table.library: physics_digest(coefficients, model.MEMORY_BOUND_VERSION)}
    return model.memory_bound_us(arch, coefficients, table.rows), digests


def describe(
    arch: GpuSpec, sets: Sequence[MemoryBoundTable], latency_us: Floats  # noqa: ARG001
) -> tuple[npt.NDArray[np.str_], Features]:  # fmt: skip
    """Return the library of each row, and its features."""
    (table,) = sets
    return np.full(len(table), table.library), model.memory_bound_features(table.rows, latency_us)


LEARNS = Subject(
    model.MEMORY_BOUND, model.MEMORY_BOUND_VERSION,
    ("read_bytes", "write_bytes", "num_rows", "threads", "row_bytes", "row_threads", "latency"), committed_us, describe,
    MappingProxyType({"min_samples_leaf": 8}), fall_frac=0.2, reach=EVERYWHERE,
)  # fmt: skip


def calibrate_memory_bound(arch: GpuSpec, library: str = ENGINES) -> model.MemoryBoundCalibration:
    """Fit all coefficients on the committed tables of a library's kernels on a GPU; errors are of folds held out."""
    sets = of_library(tables(arch.name), library, "memory-bound kernels", arch.name)
    rows = model.MemoryBoundRows(*map(np.concatenate, zip(*(table.rows for table in sets), strict=True)))
    coefficients = fit_memory_bound(arch, rows, np.concatenate([table.measured_us for table in sets]), library)
    how = provenance(1, "rows", 0) | {"folds": f"each {_FOLDS[library]} by a fit on the others, all kernels together"}
    return model.MemoryBoundCalibration(
        gpu=arch.name, model_version=model.MEMORY_BOUND_VERSION, errors=exam().errors(arch, sets),
        coefficients=rounded(coefficients), **how,
    )  # fmt: skip


def _groups(table: MemoryBoundTable) -> Groups:
    regimes = rows_between(table.column("rows"), _REGIMES) | {ALL: np.ones(len(table), np.bool_)}
    for kernel in (*dict.fromkeys(table.kinds.tolist()), ALL):
        for group, mask in regimes.items():
            yield {"what": kernel, "group": group}, mask & ((table.kinds == kernel) | (kernel == ALL))


def calibrate(arch: str, library: str) -> Iterator[Fitted]:
    """Fit a library's kernels on a GPU; parameters are the options of the command."""
    check_word("--library", library, _FOLDS)
    calibration = calibrate_memory_bound(load_arch(arch, GpuSpec), library)
    title = f"Memory-bound kernels of {library} on {calibration.gpu}: errors of what was held out"
    yield fitted(calibration, model.memory_bound_calibration_path(calibration.gpu, library), title)


def exam() -> Exam[MemoryBoundTable]:
    """Return the exam."""
    return Exam(
        read=tables,
        predict=lambda arch, sets: predictions(arch, sets[0]),
        folds=lambda sets: sets[0].fold,
        groups=_groups,
        headline="held out: all rows of a width, or of an octave of elements of PyTorch's kernels; MAPE of the data "
        "sheet's rate, of overhead and rate fitted for each kernel, of a table, of the "
        "model's terms alone, then errors of gemm_eval",
        title="{gpu}, {data}",
        columns={"what": "kernel", "group": "rows of"},
        baselines={NAIVE: "naive", FITTED: "roofline", TABLE: "table", PHYSICS: "physics"},
        is_main=lambda labels: ALL in (labels["group"], labels["what"]),
        learns=LEARNS,
    )
