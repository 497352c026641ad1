"""`sensitivity`: which field of a space matters to which objective; SALib's methods, and one input at a time."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.frozen import FrozenDict
from gemm_eval.sweep.metrics import as_workloads, is_maximized
from gemm_eval.sweep.run import sweep
from gemm_eval.sweep.space import Space
from gemm_eval.words import as_integer, check_word, needs_extra

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
_LARGEST = 1 << 31


@dataclass(frozen=True, eq=False)
class SensitivityResult:
    """The importance of each input to each output.

    Attributes:
        method: ``"oat"``, one input at a time, which sees no interactions; ``"morris"``, elementary effects: M. D.
            Morris, Technometrics 33, 1991, F. Campolongo et al., Environmental Modelling & Software 22, 2007; or
            ``"sobol"``, shares of the variance: A. Saltelli et al., Computer Physics Communications 181, 2010.
        names, output_names: of inputs and outputs.
        num_evaluations: how many points were evaluated, duplicates included.
        num_replaced: how many of them had an output that is not finite and was replaced by the worst finite value.
        measures: by name, [num_inputs, num_outputs], read-only, in the unit of the output unless a fraction or a count.

            - oat: low and high, the least and the largest output while the input runs over its levels and its base;
              swing, their difference; relative_swing, over the output at the base (nan if that is 0 or infeasible);
              num_infeasible, levels that were left out.
            - morris: the mean of effects (mu), of their absolute values (mu_star), their standard deviation (sigma,
              large where inputs interact). An effect is the change of the output per unit of the input, of 0 to 1.
            - sobol: the part of the variance due to an input alone (S1) and with all its interactions (ST). 0 for an
              output that is constant; nan if all points of the two base samples agree while others do not.
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
        """Return a pandas DataFrame: a row for each output and input, the most important input of an output first."""
        with needs_extra("to_pandas", "sweep"):
            import pandas as pd
        rows = [
            {"output": output, "input": self.names[i], **{name: of[i, j] for name, of in self.measures.items()}}
            for j, output in enumerate(self.output_names)
            for i in np.argsort(-self.importance[:, j], kind="stable")
        ]
        return pd.DataFrame(rows)


class _Plan(NamedTuple):
    """The points of a method, and what it makes of their outputs."""

    points: Floats  # [num_points, num_inputs]
    measure: Callable[[Floats], dict[str, Floats]]  # [num_points, num_outputs] -> [num_inputs, num_outputs] each


def analyze_sensitivity(
    evaluate: Callable[[Floats], Floats],
    names: Sequence[str],
    *,
    output_names: Sequence[str],
    method: str = "morris",
    num_samples: int | None = None,
    seed: int = 0,
    on_infeasible: str = "raise",
    maximize: Sequence[bool] = (),
) -> SensitivityResult:
    """Measure how much each input of a function of the unit cube matters to each output; options as of `sensitivity`.

    `evaluate` is called once with points [num_points, num_inputs], and returns [num_points, num_outputs], where nan or
    infinite means infeasible. `maximize` says which outputs are better when larger, for ``"worst"``; empty: none.
    """
    num_samples = _checked_options(method, num_samples, seed, on_infeasible)
    plan = _PLANS[method](len(names), num_samples, seed)
    answers = np.array(evaluate(plan.points.copy()), np.float64)
    is_maximized = np.array(maximize or [False] * len(output_names), np.bool_)
    num_replaced = _settle_infeasible(answers, tuple(output_names), method, on_infeasible, is_maximized)
    measured = plan.measure(answers)
    for measure in measured.values():
        measure.setflags(write=False)
    measures = FrozenDict({name: measured[name] for name in MEASURES[method]})
    return SensitivityResult(method, tuple(names), tuple(output_names), len(answers), num_replaced, measures)


def _plan_oat(num_inputs: int, num_levels: int, seed: int) -> _Plan:  # noqa: ARG001  nothing is drawn
    points = np.full((1 + num_inputs * num_levels, num_inputs), 0.5)  # the base itself comes first
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
    raw = sampler.sample(problem, num_trajectories, num_levels=_MORRIS_LEVELS, seed=seed + 1)
    # Sums of steps miss a level by a rounding, and a caller who maps levels to whole numbers would see it jump.
    points = np.round(raw * last_level) / last_level
    options = {"num_levels": _MORRIS_LEVELS, "conf_level": CONFIDENCE_FRAC, "seed": seed + 1}
    return _Plan(
        points, _output_by_output("morris", lambda values: analyzer.analyze(problem, points, values, **options))
    )


def _plan_sobol(num_inputs: int, num_base: int, seed: int) -> _Plan:
    sampler, analyzer = _import_salib("sobol")
    problem, stride = _salib_problem(num_inputs), num_inputs + 2  # rows: A, A with one column of B each, B; and again
    points = sampler.sample(problem, num_base, calc_second_order=False, seed=seed + 1)
    options = {"calc_second_order": False, "conf_level": CONFIDENCE_FRAC, "seed": seed + 1}

    def indices(values: Floats) -> Mapping[str, Any]:
        base = np.concatenate([values[::stride], values[stride - 1 :: stride]])
        if np.ptp(base) <= values.std() * np.finfo(np.float64).eps:  # SALib would divide by no variance
            return dict.fromkeys(MEASURES["sobol"], np.full(num_inputs, np.nan if np.ptp(values) else 0.0))
        return analyzer.analyze(problem, values, **options)

    return _Plan(points, _output_by_output("sobol", indices))


def _output_by_output(
    method: str, indices: Callable[[Floats], Mapping[str, Any]]
) -> Callable[[Floats], dict[str, Floats]]:
    def measure(answers: Floats) -> dict[str, Floats]:
        of_outputs = [indices(values) for values in answers.T.copy()]
        return {name: np.stack([np.asarray(of[name], np.float64) for of in of_outputs], 1) for name in MEASURES[method]}

    return measure


_PLANS: dict[str, Callable[[int, int, int], _Plan]] = {
    "oat": _plan_oat, "morris": _plan_morris, "sobol": _plan_sobol,
}  # fmt: skip


def _import_salib(method: str) -> list[Any]:
    """Return the sampling and the analysis module of a method."""
    with needs_extra(f"method {method!r}", "sweep"):
        return [import_module(f"SALib.{part}.{method}") for part in ("sample", "analyze")]


def _salib_problem(num_inputs: int) -> dict[str, Any]:
    return {"num_vars": num_inputs, "names": [str(i) for i in range(num_inputs)], "bounds": [[0.0, 1.0]] * num_inputs}


def _settle_infeasible(
    answers: Floats, output_names: tuple[str, ...], method: str, on_infeasible: str, is_maximized: npt.NDArray[np.bool_]
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


def _checked_options(method: str, num_samples: int | None, seed: int, on_infeasible: str) -> int:
    """Return the number of samples."""
    check_word("method", method, METHODS)
    as_integer("seed", seed, 0, _LARGEST)
    check_word(f"on_infeasible of {method}", on_infeasible, _ON_INFEASIBLE if method == "oat" else _ON_INFEASIBLE[:-1])
    if num_samples is None:
        return _NUM_SAMPLES[method]
    num_samples = as_integer("num_samples", num_samples, 2, _LARGEST)
    if method == "sobol" and num_samples & (num_samples - 1):
        raise InvalidOptionError(f"num_samples must be a power of 2 for sobol, got {num_samples}")
    return num_samples


@dataclass(frozen=True)
class UnitPoints:
    """A sampling: points of the unit cube of a space, as a method of sensitivity analysis wants them."""

    unit: npt.NDArray[np.float64] = field(repr=False)  # [num_points, num_fields]
    digest: str = field(init=False)  # of these, so that a folder knows its own

    def __post_init__(self) -> None:
        object.__setattr__(self, "digest", hashlib.sha256(self.unit.tobytes()).hexdigest())

    def num_points_of(self, space: Space) -> int:  # noqa: ARG002
        """Return how many points there are."""
        return len(self.unit)

    def rows(self, space: Space, start: int, stop: int) -> list[tuple[Any, ...]]:
        """Return what points start..stop-1 choose."""
        return space.rows_of(self.unit[start:stop])


def sensitivity(
    space: Space,
    workloads: Any,
    objectives: str | Sequence[str] = ("latency_us",),
    *,
    method: str = "morris",
    num_samples: int | None = None,
    seed: int = 0,
    on_infeasible: str = "raise",
    **options: Any,
) -> SensitivityResult:
    """Measure which fields and variables of a space matter, each over the whole of its range or values.

    Args:
        space: the chips; dependent fields follow, they are no inputs.
        workloads, objectives: as for `sweep`.
        method: ``"oat"`` (one at a time, the others in the middle), ``"morris"`` (elementary effects) or ``"sobol"``
            (variance).
        num_samples: oat: levels of each input (default 5; evaluates ``1 + num_inputs * num_samples`` points);
            morris: trajectories (default 32; ``num_samples * (num_inputs + 1)`` points); sobol: base samples, a power
            of 2 (default 512; ``num_samples * (num_inputs + 2)`` points).
        seed: of the samples of morris and sobol, and of their confidence intervals; the same seed, the same result.
        on_infeasible: ``"raise"``, ``"worst"`` (count as the worst point) or, oat only, ``"omit"``.
        options: as for `sweep`: constraints, dtype, executor, allow_idle_cores, ...

    Raises:
        InvalidOptionError: an option out of its range.
        GemmEvalError: points are infeasible and `on_infeasible` does not say what to do.
    """
    if not space.drawn:
        raise InvalidOptionError(f"no field of the space varies: {space}")
    aims = (objectives,) if isinstance(objectives, str) else tuple(objectives)
    loads = as_workloads(workloads, next(iter(space.bases.values())), options.get("dtype"))

    def evaluate(unit: Floats) -> Floats:
        result = sweep(space, loads, aims, sampling=UnitPoints(unit), **options)
        answers = np.stack([result[name].astype(np.float64) for name in aims], axis=1)
        answers[~result.is_feasible] = np.nan
        return answers

    return analyze_sensitivity(
        evaluate, tuple(space.drawn), output_names=aims, method=method, num_samples=num_samples, seed=seed,
        on_infeasible=on_infeasible, maximize=[is_maximized(name, loads) for name in aims],
    )  # fmt: skip
