"""The exam of kernels of linear and sparse attention: heads held out, of sparse attention batches; and calibrations."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.models.gpu import mixers as model
from gemm_eval.units import bytes_per_us
from gemm_eval.validation.baselines import fit_rate
from gemm_eval.validation.exam import FITTED, MODEL, NAIVE, Exam, Groups, MeasuredTable, Predict, errors_of
from gemm_eval.validation.fit import Search, deal, fit_moving, provenance, rounded
from gemm_eval.validation.metrics import ALL
from gemm_eval.validation.subjects import Fitted, fitted, of_library
from gemm_eval.validation.tables import Floats, Ints, Mask, measured_root
from gemm_eval.workload import MIXER_KERNELS, MixerProblem

NUM_FOLDS = 5
_SEARCH = Search(loss_scale=0.1, difference=0.001, off_bounds=0.01, evaluations=100)
_ROOF = (5.0, 0.5), (0.1, 0.001), (200.0, 2.0)  # start and ends of overhead in microseconds and share of the rate
_SIZES = ("batch", "q_len", "kv_len", "num_heads", "key_heads", "key_dim", "value_dim")


class MixerTable(MeasuredTable):
    """Measured calls of a library's kernels, one a row."""

    COLUMNS: ClassVar[tuple[str, ...]] = ("kernel", *_SIZES, "latency_us")

    @cached_property
    def kernels(self) -> npt.NDArray[np.str_]:
        return np.array(self.words("kernel"))

    @cached_property
    def rows(self) -> model.MixerRows:
        calls = self.frame[["kernel", *_SIZES]].to_dict("records")
        return model.mixer_rows(
            load_arch(self.gpu, GpuSpec),
            [MixerProblem(**{str(name): value for name, value in of.items()}) for of in calls],
        )

    @cached_property
    def fold(self) -> Ints:
        """Fold of each row: heads are dealt in the order of a hash; kernels timed with one number of heads: batches."""
        folds = np.zeros(len(self), np.int64)
        for kernel in np.unique(self.kernels):
            of_kernel = self.frame[self.kernels == kernel]
            names = ["num_heads", "key_heads"] if of_kernel["num_heads"].nunique() > 1 else ["batch"]
            keys = list(of_kernel[names].itertuples(index=False, name=None))
            folds[self.kernels == kernel] = deal(keys, NUM_FOLDS, repr)
        return folds


def tables(gpu: str) -> list[MixerTable]:
    """Read all measured kernels of a GPU, in the order of libraries."""
    paths = {path.stem: path for path in measured_root(gpu).glob("mixers-*/*.parquet")}
    return [MixerTable.read(paths[name]) for name in model.MIXER_LIBRARIES if name in paths]


def fit_kernel(arch: GpuSpec, rows: model.MixerRows, measured_us: Floats) -> dict[str, float]:
    """Return the coefficients of a kernel that its time depends on, fitted on some rows."""

    def predict(values: Mapping[str, float]) -> Floats:
        return model.mixer_us(arch, values, rows)

    return fit_moving(model.MIXER_COEFFICIENTS, model.MIXER_DEFAULTS, predict, measured_us, _SEARCH)


def predictions(arch: GpuSpec, table: MixerTable) -> Predict:
    """Return the predictions of a table, ready to be fitted."""
    data = table.rows
    least_us = (data.once_bytes + data.token_bytes) / bytes_per_us(arch.dram_gb_per_s)

    def predict(train: Mask, rows: Mask) -> dict[str, Floats]:
        roof_us, model_us = np.zeros((2, len(table)))
        for kernel in np.unique(table.kernels[rows]):
            asked, others = rows & (table.kernels == kernel), train & (table.kernels == kernel)
            roof_us[asked] = fit_rate(least_us, table.measured_us, others, asked, *_ROOF)
            values = model.MIXER_DEFAULTS | fit_kernel(arch, data.take(others), table.measured_us[others])
            model_us[asked] = model.mixer_us(arch, values, data.take(asked))
        return {NAIVE: least_us[rows], FITTED: roof_us[rows], MODEL: model_us[rows]}

    return predict


def calibrate_mixers(arch: GpuSpec, library: str) -> model.MixerCalibration:
    """Fit all kernels of a library on the committed table of a GPU; errors are of rows that are held out."""
    (table,) = of_library(tables(arch.name), library, "linear or sparse attention", arch.name)
    predicted_us = exam().held_out(arch, [table])[MODEL]
    errors = np.abs(predicted_us / table.measured_us - 1.0)
    families = {}
    for kernel in (name for name in MIXER_KERNELS if name in table.kernels):
        mask = table.kernels == kernel
        families[kernel] = model.FittedMixer(
            num_rows=int(mask.sum()), p80_frac=round(float(np.quantile(errors[mask], 0.8)), 4),
            coefficients=rounded(fit_kernel(arch, table.rows.take(mask), table.measured_us[mask])),
        )  # fmt: skip
    return model.MixerCalibration(
        gpu=arch.name, library=library, model_version=model.MIXER_MODEL_VERSION, families=families,
        errors=(errors_of(table, predicted_us),), **provenance(NUM_FOLDS, "rows", 0, "heads or batch, by kernel"),
    )  # fmt: skip


def calibrate(arch: str, library: str) -> Iterator[Fitted]:
    """Fit a library's kernels on a GPU; parameters are the options of the command."""
    calibration = calibrate_mixers(load_arch(arch, GpuSpec), library)
    title = f"Linear and sparse attention by {library} on {calibration.gpu}: errors {calibration.folds}"
    yield fitted(calibration, model.mixer_calibration_path(calibration.gpu, library), title)


def _groups(table: MixerTable) -> Groups:
    for kernel in (*dict.fromkeys(table.kernels.tolist()), ALL):
        yield {"library": table.library, "group": kernel}, (table.kernels == kernel) | (kernel == ALL)


def exam() -> Exam[MixerTable]:
    """Return the exam."""
    return Exam(
        read=tables,
        predict=lambda arch, sets: predictions(arch, sets[0]),
        folds=lambda sets: sets[0].fold,
        groups=_groups,
        headline="heads held out by kernel, batches of sparse attention; MAPE of the data sheet's rate, of overhead "
        "and rate fitted for each kernel, then errors of gemm_eval",
        title="{gpu}, {library}",
        columns={"group": "rows of"},
        baselines={NAIVE: "naive", FITTED: "roofline"},
        is_main=lambda labels: labels["group"] == ALL,
    )
