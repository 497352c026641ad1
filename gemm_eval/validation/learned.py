"""Learned corrections of subjects with an exam: fits of their trees (gradient-boosted, of
scikit-learn, as plain arrays), held-out errors and intervals, their files."""

import hashlib
import io
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import ArchSpec, read_yaml
from gemm_eval.models import gpu as gpu_model
from gemm_eval.models.gpu import Fall, Features, Spread, Trees
from gemm_eval.validation.fit import held_out, provenance, sha256_of
from gemm_eval.validation.tables import Floats, Ints, Mask, Table
from gemm_eval.words import needs_extra

PHYSICS = "physics"
"""Name of the predictor that is the terms of a corrected model alone."""

_TREE_SETTINGS: dict[str, Any] = {
    "max_iter": 90, "learning_rate": 0.1, "max_leaf_nodes": 31, "min_samples_leaf": 15, "l2_regularization": 1.0,
    "early_stopping": False, "random_state": 0,
}  # fmt: skip
MIN_ROWS = 60
"""Rows of a group, for a correction of its own."""

_MOST_WORSE_PERCENT = 0.05  # points of the error on any line of an exam, with which a correction is still on
_TAIL = 0.01  # of the residuals, which bounds leave out
_APART_OCTAVES = 1.0  # between two sites that are kept
_NEAR_OCTAVES, _FAR_OCTAVES = 2.0, 4.0  # held-out heads are 1 to 2 from others
EVERYWHERE = (1e3, 2e3)
"""Reach of a correction that does not fade, in octaves."""
_MIN_SPREAD_ROWS = 40
_MOST_NEAR_OCTAVES = 1.0  # intervals are of problems nearer than that, and of others
_OUTER_TAIL = (1.0 - gpu_model.COVERAGE_FRAC) / 2.0


class Subject(NamedTuple):
    """A subject whose answers are corrected: its tables as trees see them.

    Attributes:
        name: of files and commands.
        model_version: of its terms.
        increasing: the features with which the trees never fall.
        committed: returns the latencies by committed coefficients, and their digest by group.
        describe: returns the group of each row, and its features, given latencies by terms alone [rows]; rows of the
            group "" have no correction.
        trees: settings of the trees that differ from the default ones.
        fall_frac: share of the rise of log(latency by the terms) that a log factor may fall by; not 0: no answer falls
            where features in `increasing` grow and none falls.
        reach: octaves from the nearest known sizes up to which a correction holds in full, and from which on not at
            all; `EVERYWHERE` where these sizes are in `increasing`, as what fades may fall.
    """

    name: str
    model_version: str
    increasing: Sequence[str]
    committed: Callable[[Any, Sequence[Any]], tuple[Floats, Mapping[str, str]]]
    describe: Callable[[Any, Sequence[Any], Floats], tuple[npt.NDArray[np.str_], Features]]
    trees: Mapping[str, Any] = MappingProxyType({})
    fall_frac: float = 0.0
    reach: tuple[float, float] = (_NEAR_OCTAVES, _FAR_OCTAVES)


class Learned(NamedTuple):
    """Trees of a group, both as arrays of a file and packed for the kernel."""

    trees: Trees
    packed: gpu_model.PackedCorrection
    bounds: tuple[float, float]
    fall: Fall


def _take(features: Features, rows: Mask) -> Features:
    return Features(*({name: of[rows] for name, of in part.items()} for part in features))


def learn(features: Features, residuals: Floats, subject: Subject) -> Learned:
    """Fit trees to log(measured / physics), [rows]."""
    with needs_extra("a learned correction", "calibrate"):
        from sklearn.ensemble import HistGradientBoostingRegressor

    x, names = features.columns()[:, :-1], features.names
    bounds = bounds_of(residuals)
    monotonic = [int(name in subject.increasing) for name in names]
    boosting = HistGradientBoostingRegressor(monotonic_cst=monotonic, **_TREE_SETTINGS | dict(subject.trees))
    fall = Fall(subject.fall_frac, float(features.others["latency"].max()) if subject.fall_frac else 0.0)
    target = np.clip(residuals, *bounds)
    if subject.fall_frac:
        target += fall.log(features.others["latency"])
    # an absolute error of a log, times predicted over measured, is the relative error that exams report
    weights = np.exp(-residuals) if subject.trees.get("loss") == "absolute_error" else None
    fitted = boosting.fit(x, target, sample_weight=weights)
    sizes = np.unique(x[:, : len(features.sizes)], axis=0)
    known = sizes[spread_out(sizes, _APART_OCTAVES)].astype(np.float32)
    trees = spread_thresholds(trees_of(fitted, known, len(names)), x, 0)
    return Learned(trees, gpu_model.pack_trees(trees, *subject.reach, bounds, fall.limits(names)), bounds, fall)


def _correct(
    learned: Mapping[str, Learned], groups: npt.NDArray[np.str_], features: Features, us: Floats
) -> tuple[Floats, Floats]:
    """Return corrected latencies of rows, and how far they are from what was learned, in octaves."""
    corrected, far = us.copy(), np.full(len(us), np.inf)
    for group, item in learned.items():
        rows = groups == group
        if rows.any():
            factor, far[rows] = gpu_model.apply_trees(item.packed, _take(features, rows))
            corrected[rows] = us[rows] * factor
    return corrected, far


def _learn_groups(
    subject: Subject, groups: npt.NDArray[np.str_], features: Features, us: Floats, measured_us: Floats, train: Mask
) -> dict[str, Learned]:
    learned = {}
    for group in dict.fromkeys(groups[train & (us > 0.0)].tolist()):
        rows = train & (groups == group) & (us > 0.0)
        if group and rows.sum() >= MIN_ROWS:
            learned[group] = learn(_take(features, rows), np.log(measured_us[rows] / us[rows]), subject)
    return learned


Predict = Callable[[Mask, Mask], dict[str, Floats]]
"""Fits on the rows of the first mask and predicts those of the second: microseconds, by who predicts, the model last.

Masks are [rows] of all tables, one after the other. Rows for which the model has nothing to do are 0.
"""


def corrected(
    subject: Subject, arch: ArchSpec, sets: Sequence[Table], predict: Predict, model: str, *, is_all_on: bool = False
) -> Predict:
    """Return predictions with `model` corrected where the committed correction is on (or all), and `PHYSICS`."""
    measured_us = np.concatenate([table.measured_us for table in sets])

    def fit(train: Mask, rows: Mask) -> dict[str, Floats]:
        both = train | rows
        predicted = predict(train, both)
        us = np.zeros(len(both))
        us[both] = predicted[model]
        groups, features = subject.describe(arch, sets, us)
        learned = _learn_groups(subject, groups, features, us, measured_us, train)
        for group in () if is_all_on else tuple(learned):
            path = gpu_model.learned_path(arch.name, subject.name, group)
            if not path.is_file() or not read_yaml(path)["is_on"]:
                del learned[group]
        corrected_us, octaves = _correct(learned, groups[rows], _take(features, rows), us[rows])
        others = {who: of[rows[both]] for who, of in predicted.items() if who != model}
        distance = {OCTAVES: octaves} if is_all_on else {}
        return {**others, PHYSICS: us[rows], **distance, model: corrected_us}

    return fit


OCTAVES = "octaves"
"""Name of the column of distances of held-out rows from the nearest rows of their fit, in octaves."""


class FittedCorrection(NamedTuple):
    """A correction as its two files hold it; `arrays` is the .npz file."""

    correction: gpu_model.CorrectionFile
    arrays: bytes

    def write(self, path: Path) -> None:
        """Write both files, `path` being the YAML file's; of one that is off there are no arrays."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.correction.to_yaml(), encoding="utf-8")
        if self.correction.is_on:
            path.with_suffix(".npz").write_bytes(self.arrays)
        else:
            path.with_suffix(".npz").unlink(missing_ok=True)


def fitted_correction(
    kind: type[gpu_model.CorrectionFile], trees: Trees, bounds: tuple[float, float], **fields: Any
) -> FittedCorrection:
    """Return the files of a correction; `fields` are the rest of its YAML file's."""
    arrays = io.BytesIO()
    trees.save(arrays)
    correction = kind(
        arrays_sha256=hashlib.sha256(arrays.getvalue()).hexdigest(), min_log_factor=bounds[0],
        max_log_factor=bounds[1], **fields,
    )  # fmt: skip
    return FittedCorrection(correction, arrays.getvalue())


def bounds_of(residuals: Floats) -> tuple[float, float]:
    """Return the least and most of a log factor, by the residuals [rows] that it is fitted on."""
    low, high = np.quantile(residuals, (_TAIL, 1.0 - _TAIL)).tolist()
    return max(-gpu_model.MAX_LOG_FACTOR, min(low, 0.0)), min(gpu_model.MAX_LOG_FACTOR, max(high, 0.0))


def calibrate_learned(
    subject: Subject, arch: ArchSpec, sets: Sequence[Any], predict: Predict, folds: Sequence[Hashable] | Ints,
    model: str, lines: Sequence[Mask] = (), path: Path | None = None,
) -> Iterator[FittedCorrection]:  # fmt: skip
    """Yield a correction for each group of kernels with `MIN_ROWS` rows, fitted on all rows of some tables.

    Args:
        predict: fits of the terms.
        folds: label of each row; errors and intervals are of rows whose label no fit had seen.
        model: who predicts by the terms.
        lines: rows [rows] whose errors are reported together: a correction that makes those of any line worse is off.
        path: of the table, where tables do not say.
    """
    crossed = held_out(folds, corrected(subject, arch, sets, predict, model, is_all_on=True))
    measured_us = np.concatenate([table.measured_us for table in sets])
    us, digests = subject.committed(arch, sets)
    groups, features = subject.describe(arch, sets, us)
    learned = _learn_groups(subject, groups, features, us, measured_us, np.ones(len(us), bool))
    of_table = np.concatenate([np.full(len(table), number) for number, table in enumerate(sets)])
    for group, item in learned.items():
        rows = (groups == group) & (crossed[PHYSICS] > 0.0)
        physics, after = (np.log(measured_us[rows] / crossed[who][rows]) for who in (PHYSICS, model))
        data = tuple(
            gpu_model.CorrectionData(
                data=table.name, sha256=sha256_of(path or table.path), num_rows=int(some.sum()),
                physics_mape_percent=_mape(physics[some]), corrected_mape_percent=_mape(after[some]),
            )
            for number, table in enumerate(sets)
            if (some := of_table[rows] == number).any()
        )  # fmt: skip
        yield fitted_correction(
            gpu_model.LearnedCorrection, item.trees, item.bounds, gpu=arch.name, subject=subject.name, group=group,
            model_version=subject.model_version, is_on=is_better(after, physics, [line[rows] for line in lines]),
            physics=digests[group], features=features.names, fall_frac=item.fall.frac,
            max_latency_log2=item.fall.max_log2, near=subject.reach[0], far=subject.reach[1], data=data,
            physics_intervals=fit_spreads(crossed[PHYSICS][rows], None, physics),
            intervals=fit_spreads(crossed[model][rows], crossed[OCTAVES][rows], after),
            **provenance(len(set(np.asarray(folds).tolist())), "rows", 0, "what the exam holds out"),
        )  # fmt: skip


def is_better(after: Floats, before: Floats, lines: Sequence[Mask]) -> bool:
    """Return True if errors [rows] are smaller after a correction, and on no line larger."""
    pairs = [(_mape(after[line]), _mape(before[line])) for line in lines if line.any()]
    return _mape(after) < _mape(before) and all(new <= old + _MOST_WORSE_PERCENT for new, old in pairs)


def _mape(logs: Floats) -> float:
    """Return the mean absolute error of log(measured / predicted), in percent."""
    return round(100.0 * float(np.mean(np.abs(np.exp(-logs) - 1.0))), 3)


def fit_spreads(predicted_us: Floats, octaves: Floats | None, logs: Floats) -> tuple[Spread, ...]:
    """Return conformal intervals of held-out rows by thirds of latency and, if known, distance; the widest last."""
    thirds = np.quantile(predicted_us, (1 / 3, 2 / 3)).tolist()
    lengths = list(zip((0.0, *thirds), (*thirds, np.inf), strict=True))
    distances = [(-1.0, np.inf)] if octaves is None else [(-1.0, _MOST_NEAR_OCTAVES), (_MOST_NEAR_OCTAVES, np.inf)]
    away = np.zeros(len(logs)) if octaves is None else octaves
    spreads = []
    for nearer, reach in distances:
        for shorter, length in lengths:
            rows = (away > nearer) & (away <= reach) & (predicted_us > shorter) & (predicted_us <= length)
            if rows.sum() >= _MIN_SPREAD_ROWS:
                spreads.append(_spread(logs[rows], length, reach))
    return (*spreads, _spread(logs, np.inf, np.inf))


def _spread(logs: Floats, max_us: float, max_octaves: float) -> Spread:
    """Return the quantiles that a new row of the same kind lies between in `gpu_model.COVERAGE_FRAC` of cases."""
    tail = max(0.0, _OUTER_TAIL - (1.0 - _OUTER_TAIL) / len(logs))  # of len + 1 rows
    length, reach = float(f"{max_us:.4g}"), max_octaves
    return gpu_model.spread_between(
        logs, tail, max_us=length if np.isfinite(length) else None, max_octaves=reach if np.isfinite(reach) else None
    )


def spread_out(points: Floats, apart: float) -> Ints:
    """Return which points [rows, sizes] to keep, so that none of them lies nearer to another than `apart`.

    Those left out hardly widen what the others cover.
    """
    kept: list[int] = []
    for index, point in enumerate(points):
        if not kept or np.min(np.linalg.norm(points[kept] - point, axis=1)) > apart:
            kept.append(index)
    return np.array(kept, np.int64)


def spread_thresholds(trees: Trees, features: Floats, seed: int) -> Trees:
    """Move each threshold to a random place between the values of the data around it.

    The data do not tell where between two values a step lies: the sum of all trees becomes a ramp of small steps.
    """
    number, rng = trees.number.copy(), np.random.default_rng(seed)
    for index in range(features.shape[1]):
        nodes, values = np.flatnonzero(trees.feature == index), np.unique(features[:, index])
        above = np.clip(np.searchsorted(values, number[nodes], side="right"), 1, max(1, len(values) - 1))
        if len(nodes):
            low, high = values[above - 1], values[above]
            number[nodes] = low + (high - low) * rng.random(len(nodes))
    return trees._replace(number=number)


def trees_of(fitted: Any, pairs: npt.NDArray[Any], leaf: int) -> Trees:
    """Return the trees of a fitted `HistGradientBoostingRegressor`, whose nodes are read as its predictor has them.

    A leaf has the feature `leaf`; `pairs` are kept with the trees.
    """
    rows: list[tuple[float, int, int]] = []  # number, left child, feature
    roots: list[int] = []
    for (predictor,) in fitted._predictors:
        nodes, root = predictor.nodes, len(rows)
        roots.append(root)
        order = [0]  # breadth first, so that both children of a node are neighbours
        for number_of, node in enumerate(nodes[index] for index in order):
            if node["is_leaf"]:
                rows.append((float(node["value"]), root + number_of, leaf))
            else:
                rows.append((float(node["num_threshold"]), root + len(order), int(node["feature_idx"])))
                order += [int(node["left"]), int(node["right"])]
    number, left, feature = zip(*rows, strict=True)
    depth = max(predictor.get_max_depth() for (predictor,) in fitted._predictors)
    return Trees(
        np.array(number), np.array(left, np.int16), np.array(feature, np.int8), np.array(roots, np.int16),
        np.array([len(roots)], np.int16), np.array([depth], np.int16),
        np.asarray(fitted._baseline_prediction, np.float64).reshape(1), pairs,
    )  # fmt: skip
