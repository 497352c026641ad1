"""The exam of attention on GPUs: heads held out; and its calibrations."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.dtypes import DType, parse_dtype
from gemm_eval.models.gpu import Features, FittedKernel, physics_digest
from gemm_eval.models.gpu import attention as model
from gemm_eval.units import bytes_per_us
from gemm_eval.validation.baselines import fit_roof
from gemm_eval.validation.exam import FITTED, MODEL, NAIVE, Exam, Groups, MeasuredTable, Predict
from gemm_eval.validation.fit import MIN_ROWS, Search, deal, fit_moving, provenance, rounded
from gemm_eval.validation.learned import PHYSICS, Subject
from gemm_eval.validation.metrics import ALL
from gemm_eval.validation.subjects import Fitted, fitted, of_library, rows_between
from gemm_eval.validation.tables import Floats, Ints, Mask, measured_root
from gemm_eval.words import check_word
from gemm_eval.workload import AttentionProblem

PHASES = ("context", "generation", "mla_context", "mla_generation", "backward")
"""Kinds of tables, in the order in which they are shown; the last is of gradients."""
BACKWARD = PHASES[-1]

NUM_FOLDS = 5
_SEARCH = Search(loss_scale=0.1, difference=0.01, off_bounds=0.01, evaluations=60)
_MOST_OVERHEAD_US = 100.0
_TOKENS = (("up to 1,024 tokens", 0, 1024), ("up to 8,192", 1024, 8192), ("more", 8192, np.inf))
_KEYS = (("up to 4,096 keys", 0, 4096), ("up to 65,536", 4096, 65536), ("more", 65536, np.inf))
_SIZES = ("batch", "q_len", "kv_len", "num_heads", "num_kv_heads", "head_dim", "v_head_dim", "window")


@dataclass(frozen=True, eq=False)
class AttentionTable(MeasuredTable):
    """Measured calls for one layer, one a row; `window` 0: none, a column `causal` may say 0: attention to all.

    Attributes:
        framework: that ran the kernels, and its release.
        phase: one of `PHASES`.
        is_aliased: whether whoever timed them gave keys and values the same memory.
    """

    COLUMNS: ClassVar[tuple[str, ...]] = (*_SIZES, "dtype", "kv_dtype", "latency_us")
    KEYS: ClassVar[tuple[str, ...]] = ("gpu", "library", "framework", "phase")

    framework: str
    phase: str
    is_aliased: bool = False

    @classmethod
    def read_meta(cls, path: Path, meta: Mapping[str, Any]) -> dict[str, Any]:
        return {**super().read_meta(path, meta), "is_aliased": bool(meta.get("values_are_keys", False))}

    @cached_property
    def problems(self) -> list[AttentionProblem]:
        types = zip(self.words("dtype"), self.words("kv_dtype"), strict=True)
        sizes = self.frame[[*_SIZES]].assign(causal=self.frame.get("causal", 1) == 1).to_dict("records")
        return [
            AttentionProblem(
                **{str(name): size for name, size in row.items()} | {"window": row["window"] or None},
                dtype=parse_dtype(dtype), kv_dtype=parse_dtype(kv_dtype), is_latent=self.phase == "mla_generation",
                backward=self.phase == BACKWARD,
            )
            for row, (dtype, kv_dtype) in zip(sizes, types, strict=True)
        ]  # fmt: skip

    @cached_property
    def rows(self) -> model.AttentionRows:
        return replace(model.attention_rows(self.problems), is_aliased=np.full(len(self), float(self.is_aliased)))

    @cached_property
    def heads(self) -> list[tuple[int, ...]]:
        """(query heads, KV heads, head_dim) of each row: rows with the same are held out together.

        Of MLA the number of heads alone: all sizes are the same, and each query head has keys of its own, or none has.
        """
        names = ["num_heads"] if self.phase.startswith("mla") else ["num_heads", "num_kv_heads", "head_dim"]
        return [tuple(map(int, row)) for row in self.frame[names].itertuples(index=False, name=None)]


def tables(gpu: str) -> list[AttentionTable]:
    """Read all measured attention of a GPU, in the order of libraries and `PHASES`."""
    sets = [AttentionTable.read(path) for path in sorted(measured_root(gpu).glob("attention-*/*.parquet"))]
    libraries = list(model.ATTENTION_LIBRARIES)
    return sorted(sets, key=lambda table: (libraries.index(table.library), PHASES.index(table.phase)))


def folds_of_heads(table: AttentionTable, seed: int = 0) -> Ints:
    """Return the fold of each row: heads are dealt in the order of a hash, those of MLA one number of heads each."""
    return deal(table.heads, NUM_FOLDS, lambda heads: f"{seed}:{heads}")


def roofs(arch: GpuSpec, table: AttentionTable) -> tuple[Floats, Floats]:
    """Return the times at the data sheet's rates, [rows], in microseconds: of the products, and of compulsory bytes."""

    def rate(dtype: DType) -> float:
        is_narrow = dtype is DType.FP8 and DType.FP8 in arch.tensor_flop_per_cycle
        return arch.peak_tflop_per_s(DType.FP8 if is_narrow else DType.BF16) * 1e6

    compute = [item.flop / rate(item.dtype) for item in table.problems]
    dram = [item.num_bytes / bytes_per_us(arch.dram_gb_per_s) for item in table.problems]
    return np.array(compute), np.array(dram)


def families_of(arch: GpuSpec, table: AttentionTable) -> npt.NDArray[np.str_]:
    """Return the family of kernels that runs each row, [rows]: the library chooses by sizes and types alone."""
    committed = model.attention_coefficients(arch, table.library).values
    names: npt.NDArray[np.str_] = model.attention_costs(arch, committed, table.rows, table.library).families
    return names


def fit_family(arch: GpuSpec, table: AttentionTable, name: str, train: Mask) -> dict[str, float]:
    """Return all coefficients of a family, fitted on the rows where `train` is true.

    A coefficient that changes the time of none of these rows keeps its default.
    """
    family, rows = model.ATTENTION_FAMILIES[name], table.rows.take(train)

    def predict(values: Mapping[str, float]) -> Floats:
        return model.family_us(arch, name, values, rows)

    fitted = fit_moving(family.coefficients, family.defaults, predict, table.measured_us[train], _SEARCH)
    return family.defaults | fitted


def predictions(arch: GpuSpec, table: AttentionTable) -> Predict:
    """Return the predictions of a table, ready to be fitted."""
    names, (compute_us, dram_us) = families_of(arch, table), roofs(arch, table)
    committed = model.attention_coefficients(arch, table.library).values

    def predict(train: Mask, rows: Mask) -> dict[str, Floats]:
        of_families = {name: train & (names == name) for name in np.unique(names[rows]).tolist()}
        fits = {name: fit_family(arch, table, name, of) for name, of in of_families.items() if of.sum() >= MIN_ROWS}
        roof = fit_roof(compute_us[train], dram_us[train], table.measured_us[train], _MOST_OVERHEAD_US)
        return {
            NAIVE: np.maximum(compute_us, dram_us)[rows],
            FITTED: roof.predict(compute_us[rows], dram_us[rows]),
            MODEL: model.attention_costs(arch, committed | fits, table.rows.take(rows), table.library).latency_us,
        }

    return predict


def committed_us(arch: GpuSpec, sets: Sequence[AttentionTable]) -> tuple[Floats, dict[str, str]]:
    """Return the latencies of rows by committed coefficients, and the digest of those of each family."""
    (table,) = sets
    values = model.attention_coefficients(arch, table.library).values
    digests = {name: physics_digest(of, model.ATTENTION_MODEL_VERSION) for name, of in values.items()}
    return model.attention_costs(arch, values, table.rows, table.library).latency_us, digests


def describe(
    arch: GpuSpec, sets: Sequence[AttentionTable], latency_us: Floats
) -> tuple[npt.NDArray[np.str_], Features]:
    """Return the family of each row, and its features."""
    (table,) = sets
    return families_of(arch, table), model.attention_features(table.rows, np.maximum(latency_us, 1e-3))


LEARNS = Subject(
    model.ATTENTION, model.ATTENTION_MODEL_VERSION, model.INCREASING_ATTENTION, committed_us, describe,
    MappingProxyType({"min_samples_leaf": 8}), fall_frac=0.2,
)  # fmt: skip


def calibrate_attention(arch: GpuSpec, library: str, seed: int = 0) -> model.AttentionCalibration:
    """Fit all families of a library on the committed tables of a GPU; errors are of heads that are held out."""
    sets = of_library(tables(arch.name), library, "attention", arch.name)
    families: dict[str, FittedKernel] = {}
    for table in sets:
        names = families_of(arch, table)
        for name in (item for item in model.ATTENTION_FAMILIES if (names == item).sum() >= MIN_ROWS):
            coefficients = rounded(fit_family(arch, table, name, names == name))
            families[name] = FittedKernel(num_rows=int((names == name).sum()), coefficients=coefficients)
    return model.AttentionCalibration(
        gpu=arch.name, library=library, model_version=model.ATTENTION_MODEL_VERSION, families=families,
        errors=exam(seed=seed).errors(arch, sets), **provenance(NUM_FOLDS, "rows", seed, "heads"),
    )  # fmt: skip


def _groups(table: AttentionTable) -> Groups:
    rows = table.rows
    is_context = "context" in table.phase or table.phase == BACKWARD
    sizes = rows.batch * (rows.q_len if is_context else rows.keys)
    groups = rows_between(sizes, _TOKENS if is_context else _KEYS)
    types = table.frame["dtype"] + ", KV " + table.frame["kv_dtype"]
    groups |= {str(name): (types == name).to_numpy(bool) for name in sorted(types.unique())}
    windows = (rows.window < rows.kv_len).astype(bool)
    groups |= {"window": windows} if windows.any() else {}
    for group, mask in (groups | {ALL: np.ones(len(table), bool)}).items():
        yield {"library": table.library, "phase": table.phase, "group": group}, mask


def calibrate(arch: str, library: str, seed: int) -> Iterator[Fitted]:
    """Fit a library's families on a GPU; parameters are the options of the command."""
    calibration = calibrate_attention(load_arch(arch, GpuSpec), library, seed)
    title = f"Attention by {library} on {calibration.gpu}: errors {calibration.folds}"
    yield fitted(calibration, model.attention_calibration_path(calibration.gpu, library), title)


def exam(phase: Sequence[str] | None = None, seed: int = 0) -> Exam[AttentionTable]:
    """Return the exam of some `PHASES`, or all; `seed` deals heads to folds."""
    phases = phase or PHASES
    for name in phases:
        check_word("phase", name, PHASES)
    return Exam(
        read=lambda gpu: [table for table in tables(gpu) if table.phase in phases],
        predict=lambda arch, sets: predictions(arch, sets[0]),
        folds=lambda sets: folds_of_heads(sets[0], seed),
        groups=_groups,
        headline="heads held out: MAPE of a naive and of a fitted roofline, and of the model without what was learned "
        "beyond its terms, then the errors of gemm_eval",
        title="{gpu}, {library}, {phase}",
        columns={"group": "rows of"},
        baselines={NAIVE: "naive", FITTED: "roofline", PHYSICS: "physics"},
        is_main=lambda labels: labels["group"] == ALL,
        learns=LEARNS,
    )
