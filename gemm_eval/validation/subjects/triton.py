"""Triton kernels: code and timings of configs, their model, its calibration, and the choice among configs."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.measure import read_frame
from gemm_eval.models.gpu import Features, physics_digest
from gemm_eval.models.gpu import triton as triton_model
from gemm_eval.validation import studies
from gemm_eval.validation.baselines import FittedRoofline, NaiveRoofline
from gemm_eval.validation.exam import MODEL, Predict
from gemm_eval.validation.fit import CrossFit, Search, cross_fit, held_out, provenance, sha256_of
from gemm_eval.validation.learned import PHYSICS, FittedCorrection, Subject, calibrate_learned, corrected
from gemm_eval.validation.metrics import Score, row_groups, score_crossed
from gemm_eval.validation.studies import FIRST, Study, study_document, study_report
from gemm_eval.validation.subjects import Fitted, Report, configs, fitted
from gemm_eval.validation.subjects.dense import calibration_out
from gemm_eval.validation.tables import PROBLEM_COLUMNS, Floats, Form, Ints, Mask, Timings, measured_root, meta_of
from gemm_eval.words import shown


class KernelKey(NamedTuple):
    """Identity of a kernel: `group_m`, and into how many parts K is cut, are numbers in the same machine code.

    `data_set` names data types and kernel, such as ``w4a16-fp16``; the others are as in `TritonConfig`.
    """

    data_set: str
    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    is_split: bool


_OF_KERNEL = ("registers", "smem_bytes", "stack_bytes", "outside", "is_compiled")
CODE_COLUMNS = (*KernelKey._fields, *_OF_KERNEL, *triton_model.MainLoop._fields)
"""Columns of the table: `KernelKey`, `KernelCode` and `MainLoop`; `mma` as in `mma_text`."""

CODES_FILE = "codes.csv"
"""The table of machine code, in the folder of the timings."""

GEMM_COLUMNS = ["data_set", "N", "K", "M"]
"""Columns that tell GEMMs apart; a data set is one choice of data types, with the kernel for them."""

CONFIG_COLUMNS = ("block_m", "block_n", "block_k", "num_warps", "num_stages", "group_m", "split_k")
"""As in `TritonConfig`, in its order."""

TIMING_COLUMNS = (
    "data_set", *PROBLEM_COLUMNS, "rank", "latency_us", "min_us", "num_replays", *CONFIG_COLUMNS,
)  # fmt: skip
"""Columns of a table of timings; `rank` 0 is the fastest of a GEMM's configs."""

TRITON_FORM = Form(tuple(GEMM_COLUMNS), "data_set")
"""A row is a config of a Triton kernel; errors are told apart by data set."""

_SHARED, _REGISTERS = "s", "r"
_MMA = re.compile(rf"(\d+)x(\d+)x(\d+):(\d+):([{_SHARED}{_REGISTERS}])\*(\d+)")
_OF_GEMM = ("G", "M", "K", "N", "a_elem_bytes", "b_elem_bytes", "c_elem_bytes")  # of `Launches`


def mma_text(mma: Iterable[triton_model.MmaCount]) -> str:
    """Return tensor-core instructions as text.

    >>> mma_text([MmaCount(64, 128, 16, 16, False, 8)])  # A from shared memory; r: from registers
    '64x128x16:16:s*8'
    """
    return " ".join(
        f"{item.m}x{item.n}x{item.k}:{item.input_bits}:{_REGISTERS if item.has_a_in_registers else _SHARED}*{item.num}"
        for item in mma
    )


def parse_mma(text: str) -> tuple[triton_model.MmaCount, ...]:
    """Return the instructions that `mma_text` made a text of; InvalidInputError: it made no such text."""
    mma = []
    for word in text.split():
        match = _MMA.fullmatch(word)
        if match is None:
            raise InvalidInputError(f"tensor-core instructions are written as 64x128x16:16:s*8, got {shown(word)}")
        m, n, k, bits, operand, num = match.groups()
        mma.append(triton_model.MmaCount(int(m), int(n), int(k), int(bits), operand == _REGISTERS, int(num)))
    return tuple(mma)


def write_codes(path: Path, codes: Mapping[KernelKey, triton_model.KernelCode]) -> None:
    """Write kernels as CSV, sorted by their keys."""
    rows: list[dict[str, Any]] = [
        key._asdict() | code._asdict() | code.loop._asdict() | {"mma": mma_text(code.loop.mma)}
        for key, code in sorted(codes.items())
    ]
    pd.DataFrame(rows, columns=list(CODE_COLUMNS)).to_csv(path, index=False, lineterminator="\n")


def read_codes(path: Path) -> dict[KernelKey, triton_model.KernelCode]:
    """Read what `write_codes` wrote; InvalidInputError: the file cannot be read, or lacks a column."""
    frame = read_frame(path, CODE_COLUMNS, "examples/measure_triton.py --codes writes it", keep_default_na=False)
    codes = {}
    for row in frame.to_dict("records"):
        key = KernelKey(*(row[name] for name in KernelKey._fields))
        loop = triton_model.MainLoop(
            **{name: row[name] for name in triton_model.MainLoop._fields} | {"mma": parse_mma(row["mma"])}
        )
        codes[key] = triton_model.KernelCode(
            num_warps=key.num_warps, loop=loop, **{name: row[name] for name in _OF_KERNEL}
        )
    return codes


class TritonRows(NamedTuple):
    """The launches of rows: by their machine code, and by the code that `estimate_code` expects."""

    launches: triton_model.Launches
    estimated: triton_model.Launches


def rows_of(timings: Timings) -> TritonRows:
    """Return the launches of timings that `read_triton_timings` read."""
    assert isinstance(timings.packed, TritonRows), f"{timings.name} does not tell the configs of Triton kernels"
    rows = timings.column("packed_row")
    return TritonRows(*(triton_model.Launches(*(column[rows] for column in launches)) for launches in timings.packed))


def without_code(timings: Timings) -> Timings:
    """Return the same rows as if their kernels had not been compiled."""
    return replace(timings, packed=TritonRows(timings.packed.estimated, timings.packed.estimated))


def triton_table(gpu: str) -> Path:
    """Return where the timings of Triton kernels that come with the library for `gpu` lie, if there are any."""
    return measured_root(gpu) / "triton" / "timings.parquet"


def read_triton_timings(arch: GpuSpec, path: Path) -> Timings:
    """Read a table of timings of Triton kernels, and the machine code of these kernels beside it.

    Raises:
        InvalidInputError: a file cannot be read, or lacks a column, or the machine code of a kernel.
        UnsupportedError: the arch is one whose Triton kernels the model does not know.
    """
    frame = read_frame(path, TIMING_COLUMNS, "examples/measure_triton.py writes them")
    codes = read_codes(path.with_name(CODES_FILE))
    frame = frame.sort_values(GEMM_COLUMNS, kind="stable", ignore_index=True)
    frame = frame.assign(packed_row=np.arange(len(frame)), registry_place=np.arange(len(frame)))
    timings = Timings(frame, "triton", arch.name, "triton", form=TRITON_FORM)
    of_keys = frame.assign(is_split=frame["split_k"] > 1)[list(KernelKey._fields)]
    kernel_of = of_keys.groupby(list(KernelKey._fields), sort=False).ngroup().to_numpy()
    keys = [KernelKey(*values) for values in of_keys.drop_duplicates().itertuples(index=False, name=None)]
    if unknown := next((key for key in keys if key not in codes), None):
        raise InvalidInputError(f"{path.with_name(CODES_FILE)} has no row for {unknown}")
    is_first = ~frame.duplicated(GEMM_COLUMNS).to_numpy(bool)
    gemms = timings.select(is_first)
    types = dict(reversed(list(zip(gemms.frame["data_set"], gemms.problems(), strict=True))))
    tuned, types_of_keys = [triton_model.TritonConfig(*key[1:6]) for key in keys], [types[key.data_set] for key in keys]
    gemm_of = np.cumsum(is_first) - 1

    def launches(of_kernels: Sequence[triton_model.KernelCode]) -> triton_model.Launches:
        """Pack each kernel and each GEMM once: a table has many rows of both."""
        kernels = triton_model.stack_launches(
            [
                triton_model.pack_launches(arch, of, [config], [code])
                for of, config, code in zip(types_of_keys, tuned, of_kernels, strict=True)
            ]
        )
        problems = triton_model.stack_launches(
            [triton_model.pack_launches(arch, of, tuned[:1], of_kernels[:1]) for of in gemms.problems()]
        )
        columns = {
            name: getattr(problems, name)[gemm_of] if name in _OF_GEMM else getattr(kernels, name)[kernel_of]
            for name in triton_model.Launches._fields
        }
        return triton_model.Launches(
            **columns | {name: frame[name].to_numpy(np.float64) for name in ("group_m", "split_k")}
        )

    estimated = launches([triton_model.estimate_code(arch, *of) for of in zip(types_of_keys, tuned, strict=True)])
    ctas_per_sm = np.maximum(estimated.ctas_per_sm, 1.0)  # what was timed can be launched, whatever is expected of it
    rows = TritonRows(launches([codes[key] for key in keys]), estimated._replace(ctas_per_sm=ctas_per_sm))
    return replace(timings, packed=rows)


_MIN_ROWS = 200  # for a fit of all coefficients


@dataclass(frozen=True, eq=False)
class TritonModel(configs.ConfigModel):
    """The model of Triton kernels: one family, whose fit starts at its coefficients, unseen by held-out rows."""

    families: tuple[str, ...] = ("",)
    FAMILIES: ClassVar = {"": triton_model.TRITON_COEFFICIENTS}
    # errors to the fourth digit, and coefficients within a percent
    SEARCH: ClassVar = Search(loss_scale=0.1, difference=1e-4, off_bounds=1e-3, evaluations=60, tolerance=1e-5)
    STARTS_AT_DEFAULTS: ClassVar = False
    NUM_THREADS: ClassVar = os.cpu_count() or 1  # numpy, which this model is made of, leaves Python's lock to others

    @classmethod
    def as_it_is(cls, arch: GpuSpec) -> tuple[TritonModel, str]:
        """Return the model with the coefficients that the library has for this GPU, and where they come from."""
        coefficients, origin = triton_model.triton_coefficients(arch)
        return cls(arch, {"": coefficients}), origin.text

    def rows_of_family(self, rows: Timings, family: str) -> Mask:  # noqa: ARG002  there is one
        return np.ones(len(rows), bool)

    def fit(self, *train: Timings) -> TritonModel:
        (rows,) = train
        if len(rows) < _MIN_ROWS:
            raise InvalidInputError(f"a fit needs at least {_MIN_ROWS} timings of Triton kernels, got {len(rows)}")
        can_run = rows_of(rows).launches.ctas_per_sm > 0
        if not can_run.all():
            row = int(np.argmin(can_run)) + 1
            raise InvalidInputError(f"row {row} has a kernel that cannot be launched on {self.arch.name}")
        return super().fit(rows)

    def predict(self, rows: Timings) -> Floats:
        return triton_model.launch_times(self.arch, rows_of(rows).launches, self.values_of("")).latency_us


def calibrate_triton(arch: GpuSpec, path: Path, *, num_folds: int = 5, seed: int = 0) -> triton_model.TritonCalibration:
    """Fit all coefficients on a ``timings.parquet``; errors of each data set are held out by (N, K)."""
    timings = read_triton_timings(arch, path)
    tables = {f"triton/{name}": (sha256_of(path), timings.of_group(name)) for name in timings.groups}
    values, errors, _ = TritonModel(arch).calibrated(timings, num_folds, seed, tables)
    versions = meta_of(path).get("versions")
    version = str(versions.get("triton", "unknown")) if isinstance(versions, dict) else "unknown"
    return triton_model.TritonCalibration(
        gpu=arch.name, triton_version=version, coefficients=values, errors=errors,
        **provenance(num_folds, "data sets", seed),
    )  # fmt: skip


def study_triton(arch: GpuSpec, timings: Timings, num_folds: int = 5, seed: int = 0, *, is_fit: bool = True) -> Study:
    """Score the Triton model, fitted on other folds or (without `is_fit`) as committed, and its baselines."""
    naive = NaiveRoofline(arch)
    scores = list((_held_out if is_fit else _as_it_is)(arch, timings, num_folds, seed))
    scores.append(Score(timings, naive.name, naive.predict(timings), "data sheet"))
    nums: list[int | Ints] = [1, 3, studies.share_of_configs(timings, 0.2)]
    methods = [
        [
            studies.ranked_choice(timings, scored.predictor, studies.order_by(timings, scored.predicted_us), num, how)
            for num, how in zip(nums, FIRST, strict=True)
        ]
        for scored in scores
        if scored.has_order
    ]
    methods.append([studies.random_speeds(timings, FIRST[0])])
    first = studies.first_rows(timings)
    groups = [(rows[first], group, regime) for group, regime, rows in row_groups(timings)]
    losses = [studies.measure_loss(timings, item, *group) for method in methods for group in groups for item in method]
    title = (
        f"Triton kernels on {timings.gpu}: {len(timings):,} timings of {timings.gemm.max() + 1:,} GEMMs, "
        f"{len(set(timings.pairs))} (N, K) pairs, cold L2"
    )
    columns = timings.frame[list(CONFIG_COLUMNS)]
    return Study(
        title, timings, scores, losses, [item for method in methods for item in method],
        describe=lambda row: str(triton_model.TritonConfig(*columns.iloc[row].tolist())),
    )  # fmt: skip


def committed_us(arch: GpuSpec, sets: Sequence[Timings]) -> tuple[Floats, dict[str, str]]:
    """Return the latencies of rows by committed coefficients, and the digest of these by group."""
    (timings,) = sets
    coefficients, _ = triton_model.triton_coefficients(arch)
    groups, _ = describe(arch, sets, np.ones(len(timings)))
    digest = physics_digest(coefficients, triton_model.TRITON_VERSION)
    latency_us = triton_model.launch_times(arch, rows_of(timings).launches, coefficients).latency_us
    return latency_us, dict.fromkeys(groups.tolist(), digest)


def describe(arch: GpuSpec, sets: Sequence[Timings], latency_us: Floats) -> tuple[npt.NDArray[np.str_], Features]:
    """Return the group of each row, and its features: shares of terms are by committed coefficients."""
    (timings,) = sets
    rows = rows_of(timings)
    is_compiled = timings.packed.launches is not timings.packed.estimated
    groups = np.empty(len(timings), object)
    for name in timings.groups:
        mask = timings.of_group(name)
        types = timings.select(mask & (np.cumsum(mask) == 1)).problems()[0].types
        groups[mask] = triton_model.triton_group(types, is_compiled=is_compiled)
    times = triton_model.launch_times(arch, rows.launches, triton_model.triton_coefficients(arch)[0])
    return groups.astype(str), triton_model.triton_features(arch, rows.launches, times, np.maximum(latency_us, 1e-3))


LEARNS = Subject(triton_model.TRITON, triton_model.TRITON_VERSION, (), committed_us, describe)


def _ready(fits: CrossFit[TritonModel], timings: Timings) -> Predict:
    """Return the predictions of a table by fits of the terms on other folds than those of the rows to predict."""
    (folds,) = fits.folds

    def predict(train: Mask, rows: Mask) -> dict[str, Floats]:
        (held_out_fold,) = np.unique(folds[~train])
        return {MODEL: fits.fits[held_out_fold].predict(timings)[rows]}

    return predict


def triton_corrections(arch: GpuSpec, path: Path, num_folds: int = 5, seed: int = 0) -> Iterator[FittedCorrection]:
    """Yield what timings show beyond the terms, by types, of kernels with machine code and with estimated code."""
    timings = read_triton_timings(arch, path)
    fits = cross_fit(TritonModel(arch), [timings], num_folds, seed, num_threads=TritonModel.NUM_THREADS)
    for rows in (timings, without_code(timings)):
        yield from calibrate_learned(LEARNS, arch, [rows], _ready(fits, rows), fits.folds[0], MODEL, path=path)


def _corrected_scores(
    arch: GpuSpec, fits: CrossFit[TritonModel], rows: Timings, name: str, how: str
) -> Iterator[Score]:
    """Yield the scores of held-out rows with their correction, and without."""
    predicted = held_out(fits.folds[0], corrected(LEARNS, arch, [rows], _ready(fits, rows), MODEL))
    num = len(fits.fits)
    for who, title in ((MODEL, name), (PHYSICS, f"{name}, {PHYSICS}")):
        yield Score(rows, title, predicted[who], how, num, True, fits.fits, fits.folds[0])


def _held_out(arch: GpuSpec, timings: Timings, num_folds: int, seed: int) -> Iterator[Score]:
    folds, num_threads = f"{num_folds}-fold by (N, K)", TritonModel.NUM_THREADS
    bare = without_code(timings)
    fits = cross_fit(TritonModel(arch), [timings], num_folds, seed, num_threads=num_threads)
    refits = cross_fit(fits.fits, [bare], num_folds, folds=fits.folds, num_threads=num_threads)
    roofline = cross_fit(FittedRoofline(arch, by_group=True), [timings], num_folds, seed)
    yield from _corrected_scores(arch, fits, timings, "model", f"with machine code, {folds}")
    yield score_crossed(refits, "no code, refit", bare, how=f"estimated code, fitted on it, {folds}", has_order=True)
    yield from _corrected_scores(arch, fits, bare, "no code", "estimated code, coefficients of the model")
    yield score_crossed(roofline, "fitted roofline", timings, how=f"by data set, {folds}")


def _as_it_is(arch: GpuSpec, timings: Timings, *_: int) -> Iterator[Score]:
    model, origin = TritonModel.as_it_is(arch)
    for name, code, rows in (("model", "with machine", timings), ("no code", "estimated", without_code(timings))):
        yield Score(timings, name, model.predict(rows), f"{code} code, {origin}", has_order=True)


def _table_of(gpu: str, data: Path | None) -> Path:
    path = data or triton_table(gpu)
    if data is None and not path.is_file():
        raise InvalidOptionError(f"no timings of Triton kernels on {gpu} are committed: give --data FILE")
    return path


def validate(arch: str, data: Path | None, folds: int, seed: int, refit: bool | None, worst: int) -> Report:
    """Score Triton's kernels config by config; parameters are the options of the command."""
    spec = load_arch(arch, GpuSpec)
    is_fit = triton_model.triton_coefficients(spec)[1].is_calibrated if refit is None else refit
    timings = read_triton_timings(spec, _table_of(spec.name, data))
    study = study_triton(spec, timings, folds, seed, is_fit=is_fit)
    head = {"arch": spec.name, "num_folds": folds, "seed": seed}
    return Report(lambda: head | study_document(study, worst), lambda: study_report(study, worst))


def calibrate(arch: str, data: Path | None, seed: int, out: Path | None) -> Iterator[Fitted]:
    """Fit the model of Triton's kernels; parameters are the options of the command."""
    spec = load_arch(arch, GpuSpec)
    path = out or calibration_out(spec.name, "triton", "")
    calibration = calibrate_triton(spec, _table_of(spec.name, data), seed=seed)
    yield fitted(calibration, path, f"Triton kernels on {calibration.gpu}: errors {calibration.folds}")
