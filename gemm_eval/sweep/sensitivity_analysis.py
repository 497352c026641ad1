"""`sensitivity`: which field of a space matters to which objective, or which input of the unit cube to any output.

Three methods, from cheap to thorough:

- ``"oat"``, one at a time: each input runs over a few levels while the others stay at their base. It sees no
  interactions.
- ``"morris"``, elementary effects: steps of one input from many places. It ranks inputs, and tells those that interact
  or bend (large sigma) from those that do not. M. D. Morris, Technometrics 33, 1991; mu_star: F. Campolongo et al.,
  Environmental Modelling & Software 22, 2007.
- ``"sobol"``, variance: the share of an output's variance that is due to an input alone (S1) and with all its
  interactions (ST). A. Saltelli et al., Computer Physics Communications 181, 2010.

The last two are SALib's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.errors import GemmEvalError, InvalidInputError, InvalidOptionError
from gemm_eval.extras import needs_extra
from gemm_eval.frozen import FrozenDict
from gemm_eval.sweep.fields import Choices
from gemm_eval.sweep.metrics import is_maximized
from gemm_eval.sweep.pareto import check_maximize
from gemm_eval.sweep.run import sweep
from gemm_eval.sweep.space import Space
from gemm_eval.sweep.workload import as_workloads
from gemm_eval.words import shown

Floats = npt.NDArray[np.float64]

METHODS = ("oat", "morris", "sobol")
MEASURES = {
    "oat": ("swing", "relative_swing", "low", "high", "num_infeasible"),
    "morris": ("mu_star", "mu_star_conf", "mu", "sigma"),
    "sobol": ("ST", "ST_conf", "S1", "S1_conf"),
}
"""The measures of each method; the first is how much an input matters."""

CONFIDENCE_FRAC = 0.95
"""The level of the intervals; what ends in ``_conf`` is half of an interval's width."""

_NUM_SAMPLES = {"oat": 5, "morris": 32, "sobol": 512}
_MORRIS_LEVELS = 4  # what the method's papers use
_ON_INFEASIBLE = ("raise", "worst", "omit")


@dataclass(frozen=True, eq=False)
class SensitivityResult:
    """The importance of each input to each output.

    Attributes:
        method: ``"oat"``, ``"morris"`` or ``"sobol"``.
        names, output_names: of inputs and outputs.
        num_evaluations: how many points were evaluated, duplicates included.
        num_replaced: how many of them had an output that is not finite and was replaced by the worst finite value.
        measures: by name of the measure, [num_inputs, num_outputs], read-only. All are in the unit of the output, but
            for relative_swing, S1 and ST, which are fractions, and num_infeasible, a count.

            - oat: low and high, the least and the largest output while the input runs over its levels and its base;
              swing, their difference; relative_swing, swing over the output at the base (nan if that is 0 or
              infeasible); num_infeasible, levels that were left out.
            - morris: the mean of effects (mu), of their absolute values (mu_star) and their standard deviation (sigma).
              An effect is the change of the output per unit of the input, which goes from 0 to 1.
            - sobol: S1, ST. 0 for an output that is constant; nan if all points of the two base samples agree while
              others do not: that takes more samples.
    """

    method: str
    names: tuple[str, ...]
    output_names: tuple[str, ...]
    num_evaluations: int
    num_replaced: int
    measures: FrozenDict[str, Floats]

    def __repr__(self) -> str:
        what = f"{len(self.names)} inputs to {len(self.output_names)} outputs"
        return f"<SensitivityResult by {self.method} of {what}, {self.num_evaluations:,} evaluations>"

    @property
    def importance(self) -> Floats:
        """[num_inputs, num_outputs]: swing, mu_star or ST."""
        return self.measures[MEASURES[self.method][0]]

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame: a row for each output and input, the most important input of an output first.

        Raises:
            GemmEvalError: pandas is not installed.
        """
        with needs_extra("to_pandas", "sweep"):
            import pandas as pd
        places = [
            (i, j) for j in range(len(self.output_names)) for i in np.argsort(-self.importance[:, j], kind="stable")
        ]
        columns: dict[str, Any] = {
            "output": [self.output_names[j] for _, j in places],
            "input": [self.names[i] for i, _ in places],
        }
        return pd.DataFrame(columns | {name: [of[place] for place in places] for name, of in self.measures.items()})


class _Plan(NamedTuple):
    """The points of a method, and what it makes of their outputs."""

    points: Floats  # [num_points, num_inputs]
    measure: Callable[[Floats], dict[str, Floats]]  # [num_points, num_outputs] -> [num_inputs, num_outputs] each


def analyze_sensitivity(
    evaluate: Callable[[Floats], npt.ArrayLike],
    names: Sequence[str],
    *,
    output_names: Sequence[str],
    method: str = "morris",
    num_samples: int | None = None,
    seed: int = 0,
    base: Sequence[float] | None = None,
    on_infeasible: str = "raise",
    maximize: Sequence[bool] | None = None,
) -> SensitivityResult:
    """Measure how much each input matters to each output.

    Args:
        evaluate: called once with all points, float64 [num_points, num_inputs], each 0..1 with both ends possible;
            returns [num_points, num_outputs], where nan or infinite means infeasible. Many points may mean the same.
        names: [num_inputs], all different.
        output_names: [num_outputs], all different.
        method: ``"oat"``, ``"morris"`` or ``"sobol"``.
        num_samples: oat: levels of each input (default 5; evaluates ``1 + num_inputs * num_samples`` points);
            morris: trajectories (default 32; ``num_samples * (num_inputs + 1)`` points); sobol: base samples, a power
            of 2 (default 512; ``num_samples * (num_inputs + 2)`` points).
        seed: of the samples of morris and sobol, and of their confidence intervals; the same seed, the same result.
        base: oat only: [num_inputs] in 0..1, where the inputs that do not move stay; default 0.5 each.
        on_infeasible: ``"raise"``; ``"worst"``: take the worst finite value of that output instead; ``"omit"`` (oat
            only): leave those points out.
        maximize: [num_outputs], which outputs are better when larger, for ``"worst"``; None: none.
    """
    inputs, outputs = _checked_names(names, "names"), _checked_names(output_names, "output_names")
    num_samples = _checked_options(method, num_samples, seed, on_infeasible)
    base_point = _checked_base(method, base, len(inputs))
    is_maximized = check_maximize(maximize, len(outputs), "outputs")
    if method == "oat":
        plan = _plan_oat(base_point, num_samples)
    else:
        plan = (_plan_morris if method == "morris" else _plan_sobol)(len(inputs), num_samples, seed)
    answers = _checked_outputs(evaluate(plan.points.copy()), len(plan.points), len(outputs))
    num_replaced = _settle_infeasible(answers, outputs, method, on_infeasible, is_maximized)
    measured = plan.measure(answers)
    for measure in measured.values():
        measure.setflags(write=False)
    measures = FrozenDict({name: measured[name] for name in MEASURES[method]})
    return SensitivityResult(method, inputs, outputs, len(answers), num_replaced, measures)


def _plan_oat(base: Floats, num_levels: int) -> _Plan:
    num_inputs = len(base)
    points = np.tile(base, (1 + num_inputs * num_levels, 1))  # the base itself comes first
    for i in range(num_inputs):
        points[1 + i * num_levels : 1 + (i + 1) * num_levels, i] = np.linspace(0.0, 1.0, num_levels)

    def measure(answers: Floats) -> dict[str, Floats]:
        at_base, moved = answers[0], answers[1:].reshape(num_inputs, num_levels, -1)
        low = np.fmin(np.fmin.reduce(moved, axis=1), at_base)  # fmin and fmax pass over nan
        high = np.fmax(np.fmax.reduce(moved, axis=1), at_base)
        swing = high - low
        relative = np.full_like(swing, np.nan)
        np.divide(swing, np.abs(at_base), out=relative, where=at_base != 0.0)
        num_infeasible = np.isnan(moved).sum(axis=1).astype(np.float64)
        return {"low": low, "high": high, "swing": swing, "relative_swing": relative, "num_infeasible": num_infeasible}

    return _Plan(points, measure)


def _plan_morris(num_inputs: int, num_trajectories: int, seed: int) -> _Plan:
    sampler, analyzer = _import_salib("morris")
    problem, last_level = _salib_problem(num_inputs), _MORRIS_LEVELS - 1
    raw = sampler.sample(problem, num_trajectories, num_levels=_MORRIS_LEVELS, seed=_salib_seed(seed))
    # Sums of steps miss a level by a rounding, and a caller who maps levels to whole numbers would see it jump.
    points = np.round(raw * last_level) / last_level

    def measure(answers: Floats) -> dict[str, Floats]:
        measured = {name: np.empty((num_inputs, answers.shape[1])) for name in MEASURES["morris"]}
        for j, values in enumerate(answers.T.copy()):
            indices = analyzer.analyze(
                problem, points, values, num_levels=_MORRIS_LEVELS, conf_level=CONFIDENCE_FRAC, seed=_salib_seed(seed)
            )
            for name, column in measured.items():
                column[:, j] = indices[name]
        return measured

    return _Plan(points, measure)


def _plan_sobol(num_inputs: int, num_base: int, seed: int) -> _Plan:
    sampler, analyzer = _import_salib("sobol")
    problem, stride = _salib_problem(num_inputs), num_inputs + 2  # rows: A, A with one column of B each, B; and again
    points = sampler.sample(problem, num_base, calc_second_order=False, seed=_salib_seed(seed))

    def measure(answers: Floats) -> dict[str, Floats]:
        measured = {name: np.zeros((num_inputs, answers.shape[1])) for name in MEASURES["sobol"]}
        for j, values in enumerate(answers.T.copy()):
            if np.ptp(values) == 0.0:  # SALib would divide by no variance
                continue
            base = np.concatenate([values[::stride], values[stride - 1 :: stride]])
            is_flat = np.ptp(base) <= values.std() * np.finfo(np.float64).eps
            indices = (
                {}
                if is_flat
                else analyzer.analyze(
                    problem, values, calc_second_order=False, conf_level=CONFIDENCE_FRAC, seed=_salib_seed(seed)
                )
            )
            for name, column in measured.items():
                column[:, j] = indices.get(name, np.nan)
        return measured

    return _Plan(points, measure)


def _import_salib(method: str) -> tuple[Any, Any]:
    """The sampling and the analysis module of a method."""
    with needs_extra(f"method {method!r}", "sweep"):
        if method == "morris":
            from SALib.analyze import morris as analyzer
            from SALib.sample import morris as sampler
        else:
            from SALib.analyze import sobol as analyzer
            from SALib.sample import sobol as sampler
    return sampler, analyzer


def _salib_problem(num_inputs: int) -> dict[str, Any]:
    return {"num_vars": num_inputs, "names": [str(i) for i in range(num_inputs)], "bounds": [[0.0, 1.0]] * num_inputs}


def _salib_seed(seed: int) -> int:
    """SALib's analysis of Sobol indices takes 0 for no seed."""
    return seed + 1


def _settle_infeasible(
    answers: Floats,
    output_names: tuple[str, ...],
    method: str,
    on_infeasible: str,
    is_maximized: npt.NDArray[np.bool_],
) -> int:
    """Refuse, replace or mark with nan, in place, what is not finite; returns how many points had a value replaced."""
    is_infeasible = ~np.isfinite(answers)
    num_points = int(is_infeasible.any(axis=1).sum())
    if num_points == 0:
        return 0
    if on_infeasible == "raise":
        where = ", ".join(output_names[j] for j in np.flatnonzero(is_infeasible.any(axis=0)))
        omit = ', on_infeasible="omit" to leave them out' if method == "oat" else ""
        raise GemmEvalError(
            f"{num_points} of the {len(answers)} points are infeasible (not finite: {where}), which {method} cannot "
            f'use: narrow the inputs, or give on_infeasible="worst" to take the worst finite value there{omit}'
        )
    if is_infeasible.all(axis=0).any():
        name = output_names[int(np.argmax(is_infeasible.all(axis=0)))]
        raise GemmEvalError(f"all {len(answers)} points are infeasible: output {name!r} is finite nowhere")
    answers[is_infeasible] = np.nan
    if on_infeasible == "omit":
        return 0
    worst = np.where(is_maximized, np.nanmin(answers, axis=0), np.nanmax(answers, axis=0))
    answers[:] = np.where(is_infeasible, worst, answers)
    return num_points


def _checked_outputs(returned: npt.ArrayLike, num_points: int, num_outputs: int) -> Floats:
    try:
        answers = np.array(returned, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"evaluate must return numbers [{num_points}, {num_outputs}]: {error}") from None
    if answers.shape != (num_points, num_outputs):
        raise InvalidInputError(
            f"evaluate must return [{num_points}, {num_outputs}] numbers, got shape {answers.shape}"
        )
    return answers


def _checked_names(names: Sequence[str], what: str) -> tuple[str, ...]:
    if isinstance(names, str) or not names or not all(isinstance(name, str) for name in names):
        raise InvalidOptionError(f"{what} must be one str or more, in a sequence, got {shown(names)}")
    if len(set(names)) < len(names):
        raise InvalidOptionError(f"{what} must be all different, got {shown(names)}")
    return tuple(names)


def _checked_options(method: str, num_samples: int | None, seed: int, on_infeasible: str) -> int:
    """The number of samples."""
    if method not in METHODS:
        raise InvalidOptionError(f"method must be one of {', '.join(METHODS)}, got {shown(method)}")
    if not _is_int(seed) or seed < 0:
        raise InvalidOptionError(f"seed must be an integer >= 0, got {shown(seed)}")
    if on_infeasible not in _ON_INFEASIBLE or (on_infeasible == "omit" and method != "oat"):
        allowed = _ON_INFEASIBLE if method == "oat" else _ON_INFEASIBLE[:-1]
        raise InvalidOptionError(
            f"on_infeasible must be one of {', '.join(allowed)} for {method}, got {shown(on_infeasible)}"
        )
    if num_samples is None:
        return _NUM_SAMPLES[method]
    if not _is_int(num_samples) or num_samples < 2:
        raise InvalidOptionError(f"num_samples must be an integer >= 2, got {shown(num_samples)}")
    if method == "sobol" and num_samples & (num_samples - 1):
        raise InvalidOptionError(f"num_samples must be a power of 2 for sobol, got {num_samples}")
    return int(num_samples)


def _checked_base(method: str, base: Sequence[float] | None, num_inputs: int) -> Floats:
    if base is None:
        return np.full(num_inputs, 0.5)
    if method != "oat":
        raise InvalidOptionError(f"base is for oat only: {method} has no base point; leave it out")
    try:
        point = np.array(base, dtype=np.float64)
    except (TypeError, ValueError):
        point = np.array(np.nan)
    if point.shape != (num_inputs,) or not ((point >= 0.0) & (point <= 1.0)).all():
        raise InvalidOptionError(f"base must be {num_inputs} numbers in 0..1, one for each input, got {shown(base)}")
    return point


def _is_int(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


_NUM_HALVINGS = 60  # to the last bit of a float


@dataclass(frozen=True)
class _Places:
    """Points of the unit cube of a space, as a method of sensitivity analysis wants them."""

    unit: npt.NDArray[np.float64] = field(repr=False)  # [num_points, num_fields]
    digest: str = field(init=False)  # of these, so that a folder knows its own

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", hashlib.sha256(self.unit.tobytes()).hexdigest())

    def num_points_of(self, space: Space) -> int:  # noqa: ARG002
        return len(self.unit)

    def rows(self, space: Space, start: int, stop: int) -> list[tuple[Any, ...]]:
        return space.rows_of(self.unit[start:stop])


def sensitivity(
    space: Space,
    workloads: Any,
    objectives: str | Sequence[str] = ("latency_us",),
    *,
    method: str = "morris",
    num_samples: int | None = None,
    seed: int = 0,
    base: Mapping[str, Any] | None = None,
    on_infeasible: str = "raise",
    **options: Any,
) -> SensitivityResult:
    """Measure which fields and variables of a space matter, each over the whole of its range or values.

    Args:
        space: the chips; dependent fields follow, they are no inputs.
        workloads, objectives: as for `sweep`.
        method: ``"oat"`` (one at a time around `base`), ``"morris"`` (elementary effects) or ``"sobol"`` (variance).
        num_samples, seed: see `analyze_sensitivity`.
        base: oat only: values of fields, by name, that stay while others move; default: the middle.
        on_infeasible: ``"raise"``, ``"worst"`` (count as the worst point) or, oat only, ``"omit"``.
        options: as for `sweep`: constraints, dtype, executor, allow_idle_cores, ...

    Raises:
        InvalidOptionError: an option out of its range.
        GemmEvalError: points are infeasible and `on_infeasible` does not say what to do.
    """
    aims = (objectives,) if isinstance(objectives, str) else tuple(objectives)
    names = tuple(space.drawn)

    def evaluate(unit: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        result = sweep(space, loads, aims, sampling=_Places(unit), **options)
        answers = np.stack([result[name].astype(np.float64) for name in aims], axis=1)
        answers[~result.is_feasible] = np.nan
        return answers

    loads = as_workloads(workloads, next(iter(space.bases.values())), options.get("dtype"))
    return analyze_sensitivity(
        evaluate, names, output_names=aims, method=method, num_samples=num_samples, seed=seed,
        base=None if base is None else [_unit_of(space, name, base) for name in names],
        on_infeasible=on_infeasible, maximize=[is_maximized(name, loads) for name in aims],
    )  # fmt: skip


def _unit_of(space: Space, name: str, base: Mapping[str, Any]) -> float:
    """Return the place of a value in the unit interval of its field, or of the nearest that the field takes."""
    unknown = set(base) - set(space.drawn)
    if unknown:
        raise InvalidOptionError(f"base names {', '.join(sorted(unknown))}, which the space does not vary")
    if name not in base:
        return 0.5
    of, value = space.drawn[name], base[name]
    if isinstance(of, Choices):
        if value not in of.values:
            raise InvalidOptionError(
                f"base: {name} must be one of {', '.join(map(str, of.values))}, got {shown(value)}"
            )
        return (of.values.index(value) + 0.5) / len(of.values)
    low, high = of.take(np.array([0.0, 1.0]))
    if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not low <= value <= high:
        raise InvalidOptionError(f"base: {name} must be in {low:g}..{high:g}, got {shown(value)}")
    return _find_unit(lambda unit: float(of.take(np.array([unit]))[0]), float(value))


def _find_unit(take: Callable[[float], float], value: float) -> float:
    """Return the argument at which a function that never falls is nearest to a value between its ends."""
    low, high = 0.0, 1.0
    for _ in range(_NUM_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (low, middle) if take(middle) >= value else (middle, high)
    return min((low, high), key=lambda unit: abs(take(unit) - value))
