"""Gradient-boosted trees of scikit-learn as the plain arrays that the library keeps and evaluates itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemm_eval.extras import has_package, needs_extra
from gemm_eval.models.gpu import LEAF, MOST_OF_KERNEL_LOG, SMOOTH_FEATURES, Trees
from gemm_eval.validation.timings import Floats, Ints

__all__ = ["fit_trees", "is_available", "trees_of"]

# More trees, or larger ones, change held-out errors by a tenth of a point.
_HOW: dict[str, Any] = {
    "max_leaf_nodes": 31, "max_depth": 8, "min_samples_leaf": 15, "l2_regularization": 1.0, "early_stopping": False,
    "random_state": 0,
}  # fmt: skip
_SMOOTH: dict[str, Any] = {"max_iter": 60, "learning_rate": 0.11}  # trees of smooth features
_OF_KERNEL: dict[str, Any] = {"max_iter": 30, "learning_rate": 0.15}  # those that know the kernel config too


def is_available() -> bool:
    """Whether scikit-learn is installed."""
    return has_package("sklearn")


def fit_trees(features: Floats, targets: Floats, weights: Floats, pairs: Ints) -> Trees:
    """Fit trees to `targets` [rows] by least squares: first those of smooth features, then all features to the rest.

    Args:
        features: [rows, features], in the order of `correction_kernels.FEATURES`.
        targets: [rows].
        weights: [rows], of the squares.
        pairs: [pairs, 2] of N and K, kept with the trees.

    Raises:
        GemmEvalError: scikit-learn is not installed.
    """
    with needs_extra("a learned correction", "calibrate"):
        from sklearn.ensemble import HistGradientBoostingRegressor

    def fit(how: dict[str, Any], x: Floats, y: Floats, seed: int) -> tuple[Trees, Floats]:
        fitted = HistGradientBoostingRegressor(**_HOW, **how).fit(x, y, sample_weight=weights)
        return _spread(trees_of(fitted, pairs), x, seed), fitted.predict(x)

    smooth, predicted = fit(_SMOOTH, features[:, : len(SMOOTH_FEATURES)], targets, 0)
    rest = np.clip(targets - predicted, -MOST_OF_KERNEL_LOG, MOST_OF_KERNEL_LOG)
    of_kernel, _ = fit(_OF_KERNEL, features, rest, 1)
    num_nodes = len(smooth.number)
    return Trees(
        np.concatenate([smooth.number, of_kernel.number]),
        np.concatenate([smooth.left, of_kernel.left + num_nodes]).astype(np.int16),
        np.concatenate([smooth.feature, of_kernel.feature]),
        np.concatenate([smooth.roots, of_kernel.roots + num_nodes]).astype(np.int16),
        smooth.num_smooth, np.maximum(smooth.depth, of_kernel.depth), smooth.baseline + of_kernel.baseline, pairs,
    )  # fmt: skip


def _spread(trees: Trees, features: Floats, seed: int) -> Trees:
    """Move each threshold to a random place between the values of the data around it.

    The data do not tell where between two values a step lies. All trees would have it in the middle; this way their
    sum is a ramp of small steps from one value to the next. Values for the data stay as they are.
    """
    number, rng = trees.number.copy(), np.random.default_rng(seed)
    for index in range(features.shape[1]):
        nodes, values = np.flatnonzero(trees.feature == index), np.unique(features[:, index])
        above = np.clip(np.searchsorted(values, number[nodes], side="right"), 1, max(1, len(values) - 1))
        if len(nodes):
            low, high = values[above - 1], values[above]
            number[nodes] = low + (high - low) * rng.random(len(nodes))
    return trees._replace(number=number)


def trees_of(fitted: Any, pairs: Ints) -> Trees:
    """Return the trees of a fitted `HistGradientBoostingRegressor`, whose nodes are read as its predictor has them."""
    number: list[float] = []
    left: list[int] = []
    feature: list[int] = []
    roots: list[int] = []
    for (predictor,) in fitted._predictors:
        nodes = predictor.nodes
        roots.append(len(number))
        order = [0]  # breadth first, so that both children of a node are neighbours
        for place, number_of in enumerate(order):
            node = nodes[number_of]
            if node["is_leaf"]:
                number.append(float(node["value"]))
                left.append(roots[-1] + place)
                feature.append(LEAF)
            else:
                number.append(float(node["num_threshold"]))
                left.append(roots[-1] + len(order))
                feature.append(int(node["feature_idx"]))
                order += [int(node["left"]), int(node["right"])]
    depth = max(predictor.get_max_depth() for (predictor,) in fitted._predictors)
    return Trees(
        np.array(number), np.array(left, np.int16), np.array(feature, np.int8), np.array(roots, np.int16),
        np.array([len(roots)], np.int16), np.array([depth], np.int16),
        np.asarray(fitted._baseline_prediction, np.float64).reshape(1), pairs,
    )  # fmt: skip
