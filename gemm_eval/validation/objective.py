"""The fit of one kernel family: search the configs, fit the coefficients at these configs, and again."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gemm_eval.models.gpu.coefficients import COEFFICIENTS
from gemm_eval.models.gpu.families import FAMILIES, default_coefficients
from gemm_eval.models.gpu.libraries import LIBRARIES
from gemm_eval.validation.packing import Timings, best_configs, latencies, with_families
from gemm_eval.validation.timings import Floats

__all__ = ["ROUNDS", "fit_family"]

ROUNDS = 8
"""Rounds of search and fit; more do not change the errors."""

_LOSS_SCALE = 0.05  # log ratio: errors well below are squared, those well above count by their size
_KNOWN_CONFIG_WEIGHT = 0.7  # a measured config is a second look at a row that counts at its best config already
_STEPS_A_ROUND = 12
_DIFFERENCE = 1e-3  # for derivatives, relative
_OFF_BOUNDS = 1e-4  # scipy wants a start inside the bounds
# old kernels of many kinds, of which few pairs (N, K) were timed: more free coefficients fit the pairs, not the kernels
_FREE_OF_UNALIGNED = {"kernel_us", "step_cycles", "dram_frac", "unaligned_frac"}
_PROBE = 0.01  # of a coefficient's range: what moves no latency by this much, no row determines

Configs = npt.NDArray[np.int64]


def fit_family(
    timings: Timings, family: str, library: str, num_rounds: int = ROUNDS
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Fit the coefficients of `family` on its rows, at least one, from the family's defaults on.

    The best of all rounds counts, its loss being that at the configs which are best with its coefficients.

    Returns:
        All coefficients, and the names of those that the rows determine; the others stay at their defaults.
    """
    from scipy.optimize import least_squares

    goal = _Goal(timings.of_family(family), family, library)
    x = goal.start()
    configs = goal.configs(x)
    best = _soft_l1(goal.errors(x, configs)), x, configs
    for _ in range(num_rounds):
        x = least_squares(
            goal.errors, x, args=(configs,), bounds=(np.zeros(len(x)), np.ones(len(x))), loss="soft_l1",
            f_scale=_LOSS_SCALE, diff_step=np.array([_DIFFERENCE]), max_nfev=_STEPS_A_ROUND,
        ).x  # fmt: skip
        configs = goal.configs(x)
        loss = _soft_l1(goal.errors(x, configs))
        if loss < best[0]:
            best = loss, x, configs
    _, best_x, best_configs_of_x = best
    return goal.coefficients(best_x), goal.determined(best_x, best_configs_of_x)


class _Goal:
    """Errors of the model on the rows of one family, over its free coefficients as shares 0..1 of their ranges."""

    def __init__(self, timings: Timings, family: str, library: str) -> None:
        rows, known = timings.rows, timings.known
        self._rows, self._family, self._known_configs = rows, family, timings.known_configs
        is_quantized = bool((rows.params["b_elem_bytes"] < rows.params["a_elem_bytes"])[rows.kind_of].any())
        free = _free_names(family, library, is_quantized=is_quantized)
        self._items = [item for item in COEFFICIENTS if item.name in free]
        self._low = np.array([item.low for item in self._items])
        self._high = np.array([item.high for item in self._items])
        self._defaults = default_coefficients(family)
        # every row at its best config, then the known ones at theirs
        self._kind_of = np.concatenate([rows.kind_of, rows.kind_of[known]])
        self._sizes = np.concatenate([rows.sizes, rows.sizes[known]])
        self._log_us = np.log(np.concatenate([timings.measured_us, timings.measured_us[known]]))
        self._weights = np.concatenate([np.ones(len(rows.kind_of)), np.full(len(known), _KNOWN_CONFIG_WEIGHT)])

    def start(self) -> Floats:
        values = np.array([self._defaults[item.name] for item in self._items])
        shares: Floats = (values - self._low) / (self._high - self._low)
        return np.clip(shares, _OFF_BOUNDS, 1.0 - _OFF_BOUNDS)

    def coefficients(self, x: Floats) -> dict[str, float]:
        values = np.clip(self._low + x * (self._high - self._low), self._low, self._high)
        return self._defaults | {item.name: value for item, value in zip(self._items, values.tolist(), strict=True)}

    def configs(self, x: Floats) -> Configs:
        return np.concatenate([best_configs(self._rows, self._packed(x))[1], self._known_configs])

    def errors(self, x: Floats, configs: Configs) -> Floats:
        errors: Floats = self._weights * (np.log(self._latencies(x, configs)) - self._log_us)
        return errors

    def determined(self, x: Floats, configs: Configs) -> tuple[str, ...]:
        """The free coefficients that a latency depends on."""
        here = self._latencies(x, configs)
        names = []
        for place, item in enumerate(self._items):
            probe = x.copy()
            probe[place] += _PROBE if x[place] < 0.5 else -_PROBE
            if (self._latencies(probe, configs) != here).any():
                names.append(item.name)
        return tuple(names)

    def _packed(self, x: Floats) -> npt.NDArray[np.void]:
        return with_families(self._rows, {self._family: self.coefficients(x)})

    def _latencies(self, x: Floats, configs: Configs) -> Floats:
        latency_us = latencies(self._rows, self._packed(x), self._kind_of, self._sizes, configs)
        # where the library's choice is known, nothing is lost by it
        latency_us[len(self._rows.kind_of) :] /= 1.0 + self.coefficients(x)["choice_loss"]
        return latency_us


def _free_names(family: str, library: str, *, is_quantized: bool) -> set[str]:
    """The coefficients that timings of such kernels can tell something about."""
    if family == "mma_unaligned":
        return _FREE_OF_UNALIGNED
    names = {item.name for item in COEFFICIENTS}
    if not LIBRARIES[library].has_stream_k:
        names -= {"fixup_us"}
    if not is_quantized:
        names -= {item.name for item in COEFFICIENTS if item.name.startswith(("dequant", "vector_"))}
    if FAMILIES[family].is_warp_specialized:
        names -= {"unaligned_frac"}  # TMA loads aligned rows only
        # fits end at the bounds of these, or do without them; fewer coefficients generalize better
        names -= {"matrix_frac", "l2_frac", "store_exposed_frac", "tile_cycles"}
    else:
        names -= {"coop_step_cycles", "coop_tile_cycles", "pingpong_cycles", "cluster_loss", "outside_rows_per_cycle"}
    return names


def _soft_l1(residuals: Floats) -> float:
    """What scipy minimizes, up to a factor."""
    return float(np.sum(2.0 * (np.sqrt(1.0 + (residuals / _LOSS_SCALE) ** 2) - 1.0)))
