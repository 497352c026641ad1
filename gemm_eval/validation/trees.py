"""Gradient-boosted trees of scikit-learn, as plain arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval.models.gpu import Trees
from gemm_eval.validation.timings import Floats, Ints


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
