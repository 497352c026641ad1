"""The W4A16 families against timings of our kernels: predictions, choices and what choosing costs, table by table."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gemm_eval.arch import GpuSpec, read_yaml
from gemm_eval.errors import InvalidInputError
from gemm_eval.models.gpu.calibration import coefficients_for
from gemm_eval.models.gpu.w4a16.coefficients import W4A16_FAMILIES
from gemm_eval.validation.kernel_choice import (
    Choices,
    Regret,
    first_rows,
    has_all_configs,
    measure_regret,
    order_by,
    pauses_and_flushes_s,
    profile_us,
    random_choice,
    ranked_choice,
    static_points,
    time_select_config,
)
from gemm_eval.validation.kernel_nvidia import nvidia_choices
from gemm_eval.validation.kernel_scores import (
    ALL,
    KernelErrors,
    Prediction,
    measure_kernel_errors,
    predict_as_it_is,
    predict_held_out,
    predict_naively,
    predict_with_roofline,
    regime_of,
)
from gemm_eval.validation.kernel_timings import KernelTimings, list_kernel_tables, read_kernel_timings
from gemm_eval.validation.metrics import REGIMES
from gemm_eval.validation.timings import Floats, Mask

__all__ = ["ChoiceCost", "GroupRegret", "KernelStudy", "find_kernel_tables", "study_kernels"]

NOT_INSTALLED = "nvMatmulHeuristics: not installed"
_STATIC = "static scoring"
_PROFILED = (3, 10)  # of the model's first ones
_US_PER_S = 1e6


class GroupRegret(NamedTuple):
    """Regret of a method on a group of GEMMs: `gemms` is "all configs timed" or "all GEMMs"."""

    gemms: str
    regime: str
    regret: Regret


@dataclass(frozen=True, slots=True)
class ChoiceCost:
    """What it takes to choose a kernel for one GEMM, medians over those whose configs were all timed.

    Attributes:
        num_gemms: GEMMs; 0: there is none, so the model's times are of all GEMMs, and what profiling takes is 0.
        num_configs: configs of a GEMM.
        model_us, model_p90_us: `select_config` on this machine, one thread, in microseconds; and its 90th
            percentile.
        profile_device_s: device time of all replays of all configs, as the tables say, in seconds.
        profile_s: that and the pauses and L2 flushes between replays; no build, no launch that is not timed.
    """

    num_gemms: int
    num_configs: int
    model_us: float
    model_p90_us: float
    profile_device_s: float
    profile_s: float

    @property
    def ratio(self) -> float:
        """Time of profiling over that of the model."""
        return _US_PER_S * self.profile_s / self.model_us if self.model_us else 0.0


@dataclass(frozen=True, eq=False)
class KernelStudy:
    """All scores on some tables.

    Attributes:
        title: what the rows are and how they were held out.
        timings: the rows.
        predictions: of the model first, then of baselines.
        errors: of each prediction, by family and regime.
        choices: of each method.
        is_full: [gemms], whether all configs of a GEMM were timed.
        regrets: of each method and group of GEMMs.
        cost: of choosing.
        overhead_us: method -> time that it takes for one GEMM beside what it profiles, where that was measured.
        missing: methods that could not be run, in words.
        is_held_back: the rows were scored with the committed coefficients.
    """

    title: str
    timings: KernelTimings
    predictions: tuple[Prediction, ...]
    errors: tuple[KernelErrors, ...]
    choices: tuple[Choices, ...]
    is_full: Mask
    regrets: tuple[GroupRegret, ...]
    cost: ChoiceCost
    overhead_us: dict[str, float] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    is_held_back: bool = False


def find_kernel_tables(arch: GpuSpec, files: Sequence[Path], *, is_fit: bool | None) -> tuple[list[Path], list[Path]]:
    """Return the tables whose rows are held out of fits, and those that are scored with the committed coefficients.

    Args:
        arch: the GPU.
        files: tables; empty: all that come with the library.
        is_fit: False: nothing is fitted; None: only on a GPU that has calibrations of its own.
    """
    for path in files:
        if not path.is_file():
            raise InvalidInputError(f"cannot read timings from {path}: there is no such file")
    found = list(files) or list_kernel_tables(arch.name)
    held_back = [] if files else list_kernel_tables(arch.name, is_held_back=True)
    held_back += [path for path in files if "held_back" in _meta_of(path)]
    fitted = [path for path in found if path not in held_back]
    if is_fit is None:
        is_fit = all(coefficients_for(arch, "gemm-eval", family)[1].is_calibrated for family in W4A16_FAMILIES)
    return (fitted, held_back) if is_fit else ([], fitted + held_back)


def study_kernels(
    arch: GpuSpec, paths: Sequence[Path], num_folds: int = 5, seed: int = 0, train: Sequence[Path] | None = None
) -> KernelStudy:
    """Score the model and its baselines on tables of `gemm-eval measure --kernel w4a16`.

    Args:
        arch: the GPU that they are of.
        paths: tables.
        num_folds, seed: deal the pairs (N, K) to folds.
        train: None: model and roofline are fitted on other pairs of the same tables. Else the model has the
            coefficients that the library has, and the roofline is fitted on these tables; empty: no such roofline.

    Raises:
        InvalidInputError: no table, or one that cannot be read.
        InvalidOptionError: fewer pairs than folds.
    """
    timings = read_kernel_timings(arch, paths)
    if train is None:
        model = predict_held_out(timings, num_folds, seed)
        roofline = [predict_with_roofline(timings, num_folds, seed)]
        how = f"coefficients fitted on other (N, K) pairs: {num_folds} folds, seed {seed}"
    else:
        model = predict_as_it_is(timings)
        roofline = [predict_with_roofline(timings, train=read_kernel_timings(arch, train))] if train else []
        how = f"model as it is, coefficients {model.how}"
    predictions = (model, *roofline, predict_naively(timings))
    errors = [item for prediction in predictions for item in measure_kernel_errors(timings, prediction)]
    choices, overhead_us, missing = _choose(timings, predictions[:-1])
    is_full = has_all_configs(timings)
    cost = _cost_of(timings, is_full, {path.stem: _meta_of(path).get("protocol", {}) for path in paths})
    overhead_us |= {choice.method: cost.model_us for choice in choices if choice.method.startswith("model")}
    title = f"{', '.join(path.stem for path in paths)}: {_counts(timings)}; {how}"
    return KernelStudy(
        title, timings, predictions, tuple(errors), tuple(choices), is_full,
        tuple(_regrets(timings, choices, is_full)), cost, overhead_us, tuple(missing), train is not None,
    )  # fmt: skip


def _counts(timings: KernelTimings) -> str:
    pairs = len(timings.frame[["N", "K"]].drop_duplicates())
    return f"{len(timings):,} timings of {timings.gemm.max() + 1} GEMMs, {pairs} (N, K) pairs"


def _choose(
    timings: KernelTimings, predictions: Sequence[Prediction]
) -> tuple[list[Choices], dict[str, float], list[str]]:
    model = predictions[0]
    order = order_by(timings, model.predicted_us)
    choices = [ranked_choice(timings, "model", order)]
    choices += [ranked_choice(timings, f"model + profile {num}", order, num) for num in _PROFILED]
    overhead_us: dict[str, float] = {}
    num_gemms = int(timings.gemm.max()) + 1
    for name, score in [(item.name, _costs_of(item)) for item in predictions[1:]] + [(_STATIC, _static_costs)]:
        start = time.perf_counter()
        order = order_by(timings, score(timings))
        overhead_us[name] = _US_PER_S * (time.perf_counter() - start) / num_gemms
        choices.append(ranked_choice(timings, name, order))
    choices.append(ranked_choice(timings, f"static + profile {_PROFILED[-1]}", order, _PROFILED[-1]))
    overhead_us[choices[-1].method] = overhead_us[_STATIC]
    missing = []
    asked = nvidia_choices(timings)
    if asked is None:
        missing.append(NOT_INSTALLED)
    else:
        choices += asked[0]
        overhead_us |= {choice.method: asked[1] for choice in asked[0]}
    choices.append(random_choice(timings))
    choices.append(ranked_choice(timings, "profile all", order_by(timings, timings.measured_us), len(timings)))
    return choices, overhead_us, missing


def _static_costs(timings: KernelTimings) -> Floats:
    return -static_points(timings)


def _costs_of(prediction: Prediction) -> Callable[[KernelTimings], Floats]:
    return lambda _: prediction.predicted_us


def _regrets(timings: KernelTimings, choices: Sequence[Choices], is_full: Mask) -> list[GroupRegret]:
    regimes = regime_of(timings)[first_rows(timings)]
    found = []
    for name, of_group in (("all configs timed", is_full), ("all GEMMs", np.ones(len(is_full), bool))):
        for regime in (ALL, *(item.name for item in REGIMES[:-1])):
            gemms = of_group if regime == ALL else of_group & (regimes == regime)
            if gemms.any():
                found += [GroupRegret(name, regime, measure_regret(timings, item, gemms)) for item in choices]
    return found


def _cost_of(timings: KernelTimings, is_full: Mask, protocols: dict[str, dict[str, Any]]) -> ChoiceCost:
    model_us = time_select_config(timings, is_full if is_full.any() else np.ones(len(is_full), bool))
    median_us, p90_us = float(np.median(model_us)), float(np.quantile(model_us, 0.9))
    if not is_full.any():
        return ChoiceCost(0, 0, median_us, p90_us, 0.0, 0.0)
    device_s = np.bincount(timings.gemm, profile_us(timings))[is_full] / _US_PER_S
    between_s = np.bincount(timings.gemm, pauses_and_flushes_s(timings, protocols))[is_full]
    num_configs = int(np.median(np.bincount(timings.gemm)[is_full]))
    return ChoiceCost(
        int(is_full.sum()), num_configs, median_us, p90_us, float(np.median(device_s)),
        float(np.median(device_s + between_s)),
    )  # fmt: skip


def _meta_of(path: Path) -> dict[str, Any]:
    meta = path.with_suffix(".meta.yaml")
    return dict(read_yaml(meta)) if meta.is_file() else {}
