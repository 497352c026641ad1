"""Gradient-boosted trees of scikit-learn as the plain arrays that the library keeps and evaluates itself."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemm_eval.extras import has_package, needs_extra
from gemm_eval.models.gpu import LEAF, Trees
from gemm_eval.validation.timings import Floats, Ints

__all__ = ["fit_trees", "is_available", "trees_of"]

# More trees, or larger ones, change held-out errors by a tenth of a point; these take 3 us and 40 KB.
_HOW: dict[str, Any] = {
    "max_iter": 70, "max_leaf_nodes": 31, "max_depth": 10, "learning_rate": 0.08, "min_samples_leaf": 15,
    "l2_regularization": 1.0, "early_stopping": False, "random_state": 0,
}  # fmt: skip


def is_available() -> bool:
    """Whether scikit-learn is installed."""
    return has_package("sklearn")


def fit_trees(features: Floats, targets: Floats, weights: Floats, pairs: Ints) -> Trees:
    """Fit trees to `targets` [rows] by least squares.

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
    fitted = HistGradientBoostingRegressor(**_HOW).fit(features, targets, sample_weight=weights)
    return trees_of(fitted, pairs)


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
        np.array([depth], np.int16), np.asarray(fitted._baseline_prediction, np.float64).reshape(1), pairs,
    )  # fmt: skip
