"""Dense GEMMs of GPU libraries: exams of their own choices, by set and by GPU, and commands of their calibrations."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import groupby, product
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from rich.console import RenderableType

from gemm_eval.arch import GpuSpec, data_root, list_archs, load_arch, read_yaml
from gemm_eval.errors import InvalidMappingError, InvalidOptionError, UnsupportedError
from gemm_eval.evaluate import GEMMEvaluator, GEMMTable
from gemm_eval.mapping import Decomposition, KernelConfig
from gemm_eval.measure import TABLE_SUFFIXES
from gemm_eval.models.gpu import LIBRARIES, OURS, TRTLLM, load_bytes_of, load_correction
from gemm_eval.models.gpu.families import FAMILIES, GENERIC, QUANTIZE
from gemm_eval.validation import baselines, metrics, tables
from gemm_eval.validation.exam import FITTED, Line, chosen_gpus, lines_of, lines_table
from gemm_eval.validation.fit import Predictor, assign_joint_folds, cross_fit
from gemm_eval.validation.subjects import Fitted, Report, corrections, dense, fitted, written
from gemm_eval.validation.subjects.corrections import CorrectedPredictor, held_out_answers
from gemm_eval.validation.subjects.dense_rows import families_of
from gemm_eval.validation.tables import Floats, Mask, Timings, measured_root
from gemm_eval.words import check_word, has_package

Names = Sequence[str] | None


def compare(
    arch: GpuSpec, sets: Sequence[Timings], num_folds: int = 5, seed: int = 0, *, refit: bool | None = None
) -> Iterator[list[metrics.Score]]:
    """Score each set: the model first, then the model with learned corrections, then the baselines.

    Args:
        num_folds: at most; a set with fewer (N, K) pairs has as many as pairs. `seed` deals them.
        refit: False: the model as it is; None: refitted on a GPU that has a calibration of its own, else as it is.

    Raises:
        UnsupportedError: the library has no kernels for these types on this GPU, or the GPU no peak.
    """
    for timings in sets:
        if dense.origin_of(arch, timings).is_calibrated if refit is None else refit:
            yield [*_refitted(arch, timings, num_folds, seed), *_refitted_baselines(arch, timings, num_folds, seed)]
        else:
            yield _as_it_is(arch, timings, num_folds, seed)


def _refitted(arch: GpuSpec, timings: Timings, num_folds: int, seed: int) -> Iterator[metrics.Score]:
    """Yield the scores of the model and of its correction, fitted on other pairs (N, K) of the set."""
    folds = min(num_folds, len(set(timings.pairs)))
    model = dense.model_predictor(arch, timings.library)
    predictors: list[Predictor] = [model, CorrectedPredictor(model)] if has_package("sklearn") else [model]
    for predictor in predictors:
        crossed = cross_fit(predictor, [timings], folds, seed)
        yield metrics.score_crossed(crossed, predictor.name, timings, note="refitted on this set", has_interval=True)


def make_baselines(arch: GpuSpec, timings: Timings) -> list[Predictor]:
    """Return rooflines, interpolation of the timings themselves, and nvMatmulHeuristics if it can."""
    predictors: list[Predictor] = [
        of(arch) for of in (baselines.NaiveRoofline, baselines.FittedRoofline, baselines.TableInterpolation)
    ]
    if baselines.has_heuristics(arch.name) and baselines.knows_types(timings):
        predictors += [baselines.NvidiaHeuristics(arch.name), baselines.NvidiaHeuristics(arch.name, is_refit=True)]
    return predictors


def _refitted_baselines(arch: GpuSpec, timings: Timings, num_folds: int, seed: int) -> Iterator[metrics.Score]:
    asked, folds = timings.whole(), min(num_folds, len(set(timings.pairs)))
    for baseline in make_baselines(arch, asked):
        yield metrics.score(baseline, asked, 0 if isinstance(baseline, baselines.NaiveRoofline) else folds, seed)


def _as_it_is(arch: GpuSpec, timings: Timings, num_folds: int, seed: int) -> list[metrics.Score]:
    origin = dense.origin_of(arch, timings)
    carried = f"on {origin.gpu}" if origin.gpu else "as it is"
    how = "not refitted" if origin.is_calibrated else "transfer" if origin.gpu else "analytic"
    note = f"{how}; coefficients: {dense.describe_origin(arch, timings, origin)}"
    asked = timings.whole()
    scores = []
    for name, has_correction in ((dense.model_predictor(arch, timings.library).name, False), ("corrected", True)):
        answers = answer(arch, asked, correction=has_correction)
        is_changed = bool((answers["latency_us"] != answers["physics_us"]).any())
        if not has_correction or (is_changed and (origin.is_calibrated or not is_taught(timings))):
            us, inside = answers["latency_us"] + asked.timer_us, are_in_answers(asked, answers)
            scores.append(metrics.Score(asked, name, us, carried, is_inside=inside, note=note))
    if origin.is_calibrated:
        return [*scores, *_refitted_baselines(arch, timings, num_folds, seed)]
    carried_on: list[tuple[Predictor, str]] = [(baselines.NaiveRoofline(arch), "as it is")]
    if (roofline := carried_roofline(arch, timings)) is not None:
        carried_on.append((roofline, carried))
    if baselines.has_heuristics(arch.name) and baselines.knows_types(timings):
        carried_on.append((baselines.NvidiaHeuristics(arch.name), "as it is"))
    return [*scores, *(metrics.Score(asked, item.name, item.predict(asked), words) for item, words in carried_on)]


def is_taught(timings: Timings) -> bool:
    """Return whether corrections are learned from a set, so that users' answers say nothing of what is held out."""
    return timings.name in {item.name for item in tables.list_correction_timings(timings.gpu)}


def answer(arch: GpuSpec, asked: Timings, *, correction: bool = True) -> GEMMTable:
    """Return the answers that users get for the rows of a set, by the words that its table has for them."""

    def by(library: str) -> GEMMTable:
        evaluator = GEMMEvaluator(arch, disk_cache=False, library=library, l2=asked.l2, clock=asked.clock)
        return evaluator.evaluate_many(
            asked.problems(), correction=correction, quantize_from=asked.quantize_from or None, progress=False
        )

    try:
        return by(asked.library_word)
    except UnsupportedError:  # versions are not told apart there
        return by(asked.library)


def are_in_answers(asked: Timings, answers: GEMMTable) -> Mask:
    """Return which times of a set, without what the measurement added, lie in the intervals of its answers."""
    return (asked.kernel_us >= answers["low_us"]) & (asked.kernel_us <= answers["high_us"])


_timings_of = cache(tables.list_timings)


def carried_roofline(arch: GpuSpec, timings: Timings) -> baselines.FittedRoofline | None:
    """Return a roofline fitted on timings of the GPU of the coefficients, of this library and types; None: none."""
    gpu = dense.origin_of(arch, timings).gpu
    if gpu is None:
        return None
    others = [item for item in _timings_of(gpu) if item.library == timings.library]
    alike = [item for item in others if (item.l2, item.clock) == (timings.l2, timings.clock)] or others
    train = [item for item in alike if _types(item) == _types(timings)] or alike
    if not train:
        return None
    carried = baselines.FittedRoofline(load_arch(gpu, GpuSpec)).fit(
        *(item.whole().select(~item.in_band) for item in train)
    )
    return replace(carried, arch=arch)


def _types(timings: Timings) -> set[tuple[str, str]]:
    return set(zip(timings.column("input_dtype").tolist(), timings.column("weight_dtype").tolist(), strict=True))


def validate_dense(
    arch: str, data: Names, folds: int, seed: int, refit: bool | None, worst: int, library: str | None,
    dtype: str | None,
) -> Report:  # fmt: skip
    """Score a library's own choices; parameters are the options of the command."""
    data = data or []
    if (library or dtype) and not any(name.endswith(TABLE_SUFFIXES) for name in data):
        raise InvalidOptionError("--library and --dtype go with --data FILE: committed timings say theirs")
    spec = load_arch(arch, GpuSpec)
    sets = tables.find_timings(spec.name, data, library=library, dtype=dtype)
    if not sets:
        raise InvalidOptionError(f"no timings of {spec.name} are committed: give --data FILE")
    choices = [] if data else list(compare_choices(spec))
    compared = list(compare(spec, sets, folds, seed, refit=refit))
    scores = [scored for of_set in compared for scored in of_set]

    def document() -> dict[str, Any]:
        notes = {of_set[0].timings.name: of_set[0].note for of_set in compared}
        head = {"arch": spec.name, "coefficients": notes}
        of_choices = {"choices": [item._asdict() for item in choices]} if choices else {}
        return head | of_choices | metrics.report_document(scores, worst)

    def parts() -> Iterator[RenderableType]:
        for index, of_set in enumerate(compared):
            if index:
                yield ""
            yield metrics.errors_table(of_set, of_set[0].note)
            if worst:
                yield ""
                yield metrics.worst_table(of_set[0], worst)
        if choices:
            yield ""
            columns = {"type": "", "GEMMs": ",", "gemm_eval": "+.1%", "origami": "+.1%", "any": "+.1%"}
            yield metrics.rows_table(
                columns, choices, "choice among kernels of one date: mean time over the fastest's", 1
            )

    return Report(document, parts)


# The choice among kernels of AMD's libraries, of GEMMs that several kernels of a tuner ran on one date:
# arch/measured/<gpu>/aiter/choice.parquet has a row for each kernel: sizes, type, rows, columns and k-step of its tile,
# parts of K (0: as many as the kernel likes), version of the library (`Library.versions`), date, time, and the cycles
# that AMD's origami predicts.

_OF_CHOICE = ["M", "N", "K", "date"]
_DTYPES = {"fp8_row": "fp8"}
_LEAST_STEP, _MOST_STEP = 64, 256  # bytes of a k-step that the families have
_MOST_STAGES = 4
_SPLITS = (1, 2, 3, 4, 5, 6, 8, 12, 16)  # of K, where a kernel cuts it as it likes


class Choice(NamedTuple):
    """Mean time of the first kernel of a ranking over the fastest kernel of the GEMM, minus 1.

    Attributes:
        model_frac: by this model; `origami_frac`: by origami, whose own way to split K its prediction has.
        any_frac: by any kernel, each as likely.
    """

    dtype: str
    num_gemms: int
    model_frac: float
    origami_frac: float
    any_frac: float


def compare_choices(arch: GpuSpec) -> Iterator[Choice]:
    """Yield the choice among kernels by type; nothing where no table of a GPU tells several."""
    path = measured_root(arch.name) / "aiter" / "choice.parquet"
    if not path.is_file():
        return
    evaluator = GEMMEvaluator(arch, disk_cache=False)
    for dtype, of_type in pd.read_parquet(path).groupby("type", observed=True):
        model_us = [_predict(evaluator, str(dtype), row) for row in of_type.itertuples(index=False)]
        rows = of_type.assign(model_us=model_us)[np.isfinite(model_us)]
        times = rows.groupby(_OF_CHOICE, observed=True)["latency_us"]
        rows = rows.assign(loss=rows["latency_us"] / times.transform("min") - 1.0)[times.transform("size") > 1]
        of_model, of_origami = (_mean_of_firsts(rows, by) for by in ("model_us", "origami_cycles"))
        by_gemm = rows.groupby(_OF_CHOICE, observed=True)["loss"].mean()
        yield Choice(str(dtype), len(by_gemm), of_model, of_origami, float(by_gemm.mean()))


def _mean_of_firsts(rows: pd.DataFrame, by: str) -> float:
    """Return the mean loss over GEMMs of the kernel that is first by a column; of several, each is as likely."""
    least = rows.groupby(_OF_CHOICE, observed=True)[by].transform("min")
    return float(rows[rows[by] == least].groupby(_OF_CHOICE, observed=True)["loss"].mean().mean())


def _predict(evaluator: GEMMEvaluator, dtype: str, row: Any) -> float:
    """Return the time of a row's kernel in microseconds; inf where the model has no such kernel."""
    library = f"aiter/{row.version}" if row.version else None
    best = evaluator.evaluate(1, row.M, row.K, row.N, dtype=_DTYPES.get(dtype, dtype), library=library)
    assert isinstance(best.mapping, KernelConfig)
    bits = best.problem.types.a.dtype.bits
    step = min(max(row.cta_k * bits // 8, _LEAST_STEP), _MOST_STEP)
    times = []
    for split_k in (row.split_k,) if row.split_k else _SPLITS:
        work = Decomposition.SPLIT_K if split_k > 1 else Decomposition.DATA_PARALLEL
        for step_bytes, stages in product((step, step // 2), range(_MOST_STAGES, 1, -1)):
            config = best.mapping._replace(
                cta_m=row.cta_m, cta_n=row.cta_n, cta_k=step_bytes * 8 // bits, num_stages=stages, decomposition=work,
                split_k=split_k,
            )  # fmt: skip
            with suppress(InvalidMappingError):
                times.append(evaluator.evaluate_mapping(best.problem, config, library=library).latency_us)
                break
    return min(times, default=np.inf)


ROOFLINE, INTERPOLATION, PHYSICS, CORRECTED = FITTED, "interpolation", "physics", "corrected"
"""Predictors in the order of columns: a roofline whose constants are fitted on the training rows; the table of these
rows, interpolated; the model's terms alone; the model with what was learned beyond its terms."""

_MIN_ROWS = 200  # of a set: smaller ones are left to `validate dense`, unless their GEMMs were drawn
_LIBRARIES = ("cublas", "trtllm", "aiter", "hipblaslt")


def gpus_with_timings() -> list[str]:
    """Return the GPUs with committed timings of libraries, by name."""
    timed = [name for name in list_archs() if tables.measured_root(name).is_dir()]
    return [name for name in timed if isinstance(load_arch(name), GpuSpec) and _sets_of(name)]


def compare_gpus(names: Sequence[str], num_folds: int = 5, seed: int = 0) -> Iterator[Line]:
    """Yield the errors of GPUs (names, or ``all``) by table and regime: those that something was fitted on first.

    Label `is_fitted` says that they are of fits on other pairs of this GPU; else everything was carried over.
    `coverage_frac` is the share of rows in 80% intervals of the last predictor: those of other folds' errors, or what
    users get. InvalidOptionError: a GPU without timings.
    """
    archs = [load_arch(name, GpuSpec) for name in chosen_gpus(names, gpus_with_timings())]
    library_of = attrgetter("library")
    carried: list[Line] = []
    fitted: dict[tuple[str, str], list[Timings]] = {}  # by GPU and library of the coefficients
    for arch in archs:
        for _, of_library in groupby(sorted(_sets_of(arch.name), key=library_of), library_of):
            sets = list(of_library)
            for item in sets:
                origin = dense.origin_of(arch, item)
                if origin.is_calibrated or (origin.gpu and is_taught(item)):
                    fitted.setdefault((str(origin.gpu), item.library), []).append(item)
            carried += _carried_over(arch, [item for item in sets if not any(item in of for of in fitted.values())])
    for (gpu, _), sets in fitted.items():
        yield from _fitted(load_arch(gpu, GpuSpec), sets, num_folds, seed)
    yield from carried


def _sets_of(gpu: str) -> list[Timings]:
    """Return default sets and those held back from fits, of libraries' own choices; large enough, or drawn."""
    sets = [item for item in tables.list_timings(gpu, has_held_back=True) if item.library in _LIBRARIES]
    shown: set[int] = set()
    for indices in _by_table(sets).values():
        if sum(len(sets[i]) for i in indices) >= _MIN_ROWS or all(_is_drawn(sets[i]) for i in indices):
            shown.update(indices)
    return [item for index, item in enumerate(sets) if index in shown]


def _is_drawn(timings: Timings) -> bool:
    return "layout" in timings.frame


def _by_table(sets: Sequence[Timings]) -> dict[tuple[str, str], list[int]]:
    """Return the indices of sets by GPU and name of their table, without states of L2 and clock."""
    indices: dict[tuple[str, str], list[int]] = {}
    for index, item in enumerate(sets):
        indices.setdefault((item.gpu, "/".join(item.name.split("/")[:2])), []).append(index)
    return indices


def _fitted(arch: GpuSpec, asked_for: Sequence[Timings], num_folds: int, seed: int) -> Iterator[Line]:
    """Yield the errors of sets, of this GPU and of siblings with its coefficients, by fits on other pairs of all."""
    library, family = asked_for[0].library, families_of(arch, asked_for[0])[0]
    more = [*_sets_of(arch.name), *corrections.list_training(arch, library, family)]
    known = {(item.gpu, item.name) for item in asked_for}
    sets = [*asked_for, *(item for item in more if item.library == library and (item.gpu, item.name) not in known)]
    sets = [item for item in sets if dense.origin_of(load_arch(item.gpu, GpuSpec), item).gpu == arch.name]
    sets = list({(item.gpu, item.name): item for item in sets}.values())
    folds = assign_joint_folds(sets, num_folds, seed)
    predictor = CorrectedPredictor(dense.model_predictor(arch, library), dense.fitted_sets(arch.name, library))
    crossed = cross_fit(predictor, sets, num_folds, folds=folds)
    asked = [item.whole() for item in sets[: len(asked_for)]]
    of_model = [held_out_answers(crossed, item, index) for index, item in enumerate(asked)]
    corrected_us, keys = [of[1] for of in of_model], [of[2] for of in of_model]
    inside = metrics.are_inside_of_all(asked, corrected_us, folds[: len(asked)], keys)
    for (gpu, name), indices in _by_table(asked).items():
        arch = load_arch(gpu, GpuSpec)
        of_table, of_folds = [asked[index] for index in indices], [folds[index] for index in indices]
        predicted: dict[str, Sequence[Floats]] = {}
        for who, baseline in (
            (ROOFLINE, baselines.FittedRoofline(arch)),
            (INTERPOLATION, baselines.TableInterpolation(arch)),
        ):
            fits = cross_fit(baseline, of_table, num_folds, folds=of_folds)
            predicted[who] = [fits.predict(item, index) for index, item in enumerate(of_table)]
        predicted[PHYSICS] = [of_model[index][0] for index in indices]
        predicted[CORRECTED] = [corrected_us[index] for index in indices]
        yield from _lines(arch.name, name, of_table, predicted, [inside[index] for index in indices], is_fitted=True)


def _carried_over(arch: GpuSpec, sets: Sequence[Timings]) -> Iterator[Line]:
    for (_, name), indices in _by_table(sets).items():
        of_table = [sets[index].whole() for index in indices]
        answers = [answer(arch, item) for item in of_table]
        roofline = carried_roofline(arch, of_table[0])
        predicted = {} if roofline is None else {ROOFLINE: [roofline.predict(item) for item in of_table]}
        predicted[PHYSICS] = [of["latency_us"] + item.timer_us for of, item in zip(answers, of_table, strict=True)]
        inside = list(map(are_in_answers, of_table, answers))
        yield from _lines(arch.name, name, of_table, predicted, inside, is_fitted=False)


def _lines(
    gpu: str, name: str, sets: Sequence[Timings], predicted: dict[str, Any], inside: Sequence[Mask], *, is_fitted: bool
) -> Iterator[Line]:
    measured_us, is_inside = np.concatenate([item.measured_us for item in sets]), np.concatenate(inside)
    us = {who: np.concatenate(parts) for who, parts in predicted.items()}
    head = {"gpu": gpu, "data": name, "types": sets[0].problems()[0].types.inputs}
    groups = {
        regime.name: [regime.mask(item.sizes[:, 1]) & ~item.in_band for item in sets] for regime in metrics.REGIMES
    }
    if all(map(_is_drawn, sets)):
        load_bytes = [list(map(load_bytes_of, item.problems())) for item in sets]
        frames = [item.frame.assign(load_bytes=of) for item, of in zip(sets, load_bytes, strict=True)]
        rules = drawn_groups().items()
        groups |= {group: [np.asarray(frame.eval(rule), bool) for frame in frames] for group, rule in rules}
    for group, masks in groups.items():
        mask = np.concatenate(masks)
        labels = {"regime": group, "is_fitted": is_fitted}
        for line in lines_of(head, measured_us, us, [(labels, mask)]):
            yield line._replace(more={"coverage_frac": float(is_inside[mask].mean())})


@cache
def drawn_groups() -> dict[str, str]:
    """Return the groups of drawn GEMMs that are reported apart: name -> condition on columns (arch/data_sets.yaml)."""
    groups: dict[str, str] = read_yaml(data_root() / "data_sets.yaml")["kinds"]["DrawnShape"]["groups"]
    return groups


_SHARES = {ROOFLINE: "roofline", INTERPOLATION: "table", PHYSICS: "physics", CORRECTED: "corrected"}


def validate_gpu(names: Sequence[str], folds: int, seed: int) -> Report:
    """Score whole GPUs; parameters are the options of the command."""
    lines = list(compare_gpus(names, folds, seed))

    def parts() -> Iterator[RenderableType]:
        for is_fitted, title in (
            (True, f"held out by (N, K), {folds}-fold: MAPE of each, then more of the last one's errors"),
            (False, "carried over from another GPU, nothing fitted on this one"),
        ):
            chosen = [line for line in lines if line.labels["is_fitted"] == is_fitted]
            if chosen:
                yield f"\n{title}"
            for of_table, of_set in groupby(chosen, lambda line: "{gpu}, {data}: {types}".format(**line.labels)):
                yield lines_table(list(of_set), of_table, {"regime": "regime"}, _SHARES)
        yield f"\n{off_coverage(lines)}"

    return Report(lambda: {"folds": folds, "seed": seed, "lines": [line.to_dict() for line in lines]}, parts)


_LEAST_ROWS, _COVERED = 50, (0.75, 0.85)


def off_coverage(lines: Sequence[Line]) -> str:
    """Return which lines of enough rows have more or fewer of them in 80% intervals than `_COVERED`."""
    shares = {
        "{gpu} {data}: {regime}".format(**line.labels): line.more["coverage_frac"]
        for line in lines
        if list(line.errors.values())[-1].num >= _LEAST_ROWS
    }
    off = [f"{name} {share:.0%}" for name, share in shares.items() if not _COVERED[0] <= share <= _COVERED[1]]
    least, most = _COVERED
    head = f"{len(off)} of {len(shares)} lines with less than {least:.0%} or more than {most:.0%} in intervals"
    return "; ".join([head, *off])


def calibrate_dense(
    arch: str, family: str, library: str, data: Names, dtype: str | None, seed: int, max_evaluations: int | None,
    out: Path | None, correction: bool,
) -> Iterator[Fitted]:  # fmt: skip
    """Fit a kernel family on a library's own choices; parameters are the options of the command."""
    check_word("--family", family, GENERIC)
    _check_library(library)
    if correction and out is not None:
        raise InvalidOptionError("--correction corrects the committed calibration: leave out --out")
    data = data or []
    spec = dense.load_gpu_of(arch, family)
    path = out or dense.calibration_out(spec.name, library, family)
    if dtype and not any(name.endswith(TABLE_SUFFIXES) for name in data):
        raise InvalidOptionError("--dtype goes with --data FILE: committed timings say theirs")
    sets = tables.find_timings(spec.name, data, library=library, dtype=dtype)
    if not data:
        kept = (library, "cold", "burst")  # cold weights, boost clock
        sets = [timings for timings in sets if (timings.library, timings.l2, timings.clock) == kept]
    for timings in sets:
        if (timings.library, timings.gpu) != (library, spec.name):
            raise InvalidOptionError(
                f"--data must be timings of {library} on {spec.name}, got {timings.name}, "
                f"which is of {timings.library} on {timings.gpu}"
            )
    if not sets:
        raise InvalidOptionError(f"no cold burst timings of {library} on {spec.name} are committed: give --data FILE")
    limits = {} if max_evaluations is None else {"max_evaluations": max_evaluations}
    calibration = dense.calibrate(spec, library, family, sets, seed=seed, **limits)
    yield fitted(calibration, path, dense.family_title(calibration), {timings.name: len(timings) for timings in sets})
    if correction:  # of what was written by now
        yield from calibrate_correction(arch, family, library, None, seed)


def calibrate_correction(arch: str, family: str, library: str, data: Names, seed: int) -> Iterator[Fitted]:
    """Learn the corrections of a kernel family; parameters are the options of the command."""
    check_word("--family", family, [name for name, of in FAMILIES.items() if not of.is_ours])
    _check_library(library)
    spec = dense.load_gpu_of(arch, family)
    sets = tables.find_timings(spec.name, data) if data else corrections.list_training(spec, library, family)
    sets = [timings for timings in sets if timings.library == library]
    if not sets:
        raise InvalidOptionError(f"no timings of {library} on {spec.name} are committed: give --data FILE")
    dense.calibration_out(spec.name, library, family)  # refuses an installed package, which is not written to
    yield from written(corrections.calibrate_correction(spec, library, family, sets, seed=seed))


def calibrate_intervals(arch: str, family: str | None, seed: int) -> Iterator[Fitted]:
    """Fit the intervals of corrections anew, and write them into their files."""
    spec = load_arch(arch, GpuSpec)
    folder = dense.calibration_out(spec.name, "cublas", "").parent / "corrections"
    loaded = (load_correction(path)[0] for path in sorted(folder.glob("*.yaml")))
    committed = [item for item in loaded if item.library != OURS]  # whose rows are configs
    if family is not None:
        check_word("--family", family, sorted({item.family for item in committed}))
    rows: list[tuple[object, ...]] = []
    for library, of_family in dict.fromkeys((item.library, item.family) for item in committed):
        if family not in (None, of_family):
            continue
        of_library = corrections.list_training(spec, library, of_family)
        for learned in corrections.refit_intervals(spec, library, of_family, of_library, seed=seed):
            learned.path.write_text(learned.to_yaml(), encoding="utf-8")
            rows += [(learned.path.stem, item.regime, item.low_log, item.high_log) for item in learned.intervals]
    columns = {"correction": "", "regime": "", "low": "+.3f", "high": "+.3f"}
    table = metrics.rows_table(columns, rows, f"80% intervals on {spec.name}", 2)
    yield Fitted(None, lambda _: None, (table,))


def calibrate_quantization(arch: str, data: Names, seed: int, out: Path | None) -> Iterator[Fitted]:
    """Fit the kernels that quantize A; parameters are the options of the command."""
    spec = load_arch(arch, GpuSpec)
    path = out or dense.calibration_out(spec.name, TRTLLM, QUANTIZE.name)
    sets = tables.find_timings(spec.name, data or [], has_held_back=True)
    calibration = dense.calibrate_quantization(spec, sets, seed=seed)
    yield fitted(calibration, path, dense.family_title(calibration))


def _check_library(library: str) -> None:
    # what the model chooses was not timed, or stands in tables that tell the config
    check_word("--library", library, [name for name, of in LIBRARIES.items() if of.has_plain_timings])
