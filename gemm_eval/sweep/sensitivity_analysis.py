"""`sensitivity`: which field of a space matters to which objective, by the methods of SALib."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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

MEASURES = {
    "morris": ("mu_star", "mu_star_conf", "mu", "sigma"),
    "sobol": ("ST", "ST_conf", "S1", "S1_conf"),
}
"""The measures of each method; the first is how much an input matters."""

CONFIDENCE_FRAC = 0.95
"""The level of the intervals; what ends in ``_conf`` is half of an interval's width."""

_NUM_SAMPLES = {"morris": 32, "sobol": 512}
_MORRIS_LEVELS = 4  # what the method's papers use
_LARGEST = 1 << 31


@dataclass(frozen=True, eq=False)
class SensitivityResult:
    """The importance of each input to each output.

    Attributes:
        method: ``"morris"``, elementary effects: M. D. Morris, Technometrics 33, 1991, F. Campolongo et al.,
            Environmental Modelling & Software 22, 2007; or ``"sobol"``, shares of the variance: A. Saltelli et al.,
            Computer Physics Communications 181, 2010.
        names, output_names: of inputs and outputs.
        num_evaluations: how many points were evaluated, duplicates included.
        num_replaced: how many of them had an output that is not finite and was replaced by the worst finite value.
        measures: by name, [num_inputs, num_outputs], read-only, in the unit of the output unless a fraction.

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
        """[num_inputs, num_outputs]: mu_star or ST."""
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
    """The points of a method, and what it makes of one output at them."""

    points: Floats  # [num_points, num_inputs]
    measure: Callable[[Floats], Mapping[str, Any]]  # [num_points] -> [num_inputs] each


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
    check_word("method", method, MEASURES)
    as_integer("seed", seed, 0, _LARGEST)
    check_word("on_infeasible", on_infeasible, ("raise", "worst"))
    num_samples = as_integer("num_samples", _NUM_SAMPLES[method] if num_samples is None else num_samples, 2, _LARGEST)
    if method == "sobol" and num_samples & (num_samples - 1):
        raise InvalidOptionError(f"num_samples must be a power of 2 for sobol, got {num_samples}")
    plan = _PLANS[method](len(names), num_samples, seed)
    answers = np.array(evaluate(plan.points.copy()), np.float64)
    is_infeasible = ~np.isfinite(answers)
    num_infeasible = int(is_infeasible.any(axis=1).sum())
    if num_infeasible and on_infeasible == "raise":
        where = ", ".join(output_names[int(j)] for j in np.flatnonzero(is_infeasible.any(axis=0)))
        raise GemmEvalError(
            f"{num_infeasible} of the {len(answers)} points are infeasible (not finite: {where}), which {method} "
            'cannot use: narrow the inputs, or give on_infeasible="worst" to take the worst finite value there'
        )
    if is_infeasible.all(axis=0).any():
        name = output_names[int(np.argmax(is_infeasible.all(axis=0)))]
        raise GemmEvalError(f"all {len(answers)} points are infeasible: output {name!r} is finite nowhere")
    answers[is_infeasible] = np.nan
    is_maximized = np.array(maximize or [False] * len(output_names), np.bool_)
    worst = np.where(is_maximized, np.nanmin(answers, axis=0), np.nanmax(answers, axis=0))
    of_outputs = [plan.measure(values) for values in np.where(is_infeasible, worst, answers).T.copy()]
    measures = {name: np.stack([np.asarray(of[name], np.float64) for of in of_outputs], 1) for name in MEASURES[method]}
    for measure in measures.values():
        measure.setflags(write=False)
    result = method, tuple(names), tuple(output_names), len(answers), num_infeasible, FrozenDict(measures)
    return SensitivityResult(*result)


def _plan_morris(num_inputs: int, num_trajectories: int, seed: int) -> _Plan:
    with needs_extra("method 'morris'", "sweep"):
        import SALib.analyze.morris as analyzer
        import SALib.sample.morris as sampler
    problem, last_level = _salib_problem(num_inputs), _MORRIS_LEVELS - 1
    raw = sampler.sample(problem, num_trajectories, num_levels=_MORRIS_LEVELS, seed=seed + 1)
    # Sums of steps miss a level by a rounding, and a caller who maps levels to whole numbers would see it jump.
    points = np.round(raw * last_level) / last_level
    options = {"num_levels": _MORRIS_LEVELS, "conf_level": CONFIDENCE_FRAC, "seed": seed + 1}
    return _Plan(points, lambda values: analyzer.analyze(problem, points, values, **options))


def _plan_sobol(num_inputs: int, num_base: int, seed: int) -> _Plan:
    with needs_extra("method 'sobol'", "sweep"):
        import SALib.analyze.sobol as analyzer
        import SALib.sample.sobol as sampler
    problem, stride = _salib_problem(num_inputs), num_inputs + 2  # rows: A, A with one column of B each, B; and again
    points = sampler.sample(problem, num_base, calc_second_order=False, seed=seed + 1)
    options = {"calc_second_order": False, "conf_level": CONFIDENCE_FRAC, "seed": seed + 1}

    def indices(values: Floats) -> Mapping[str, Any]:
        base = np.concatenate([values[::stride], values[stride - 1 :: stride]])
        if np.ptp(base) <= values.std() * np.finfo(np.float64).eps:  # SALib would divide by no variance
            return dict.fromkeys(MEASURES["sobol"], np.full(num_inputs, np.nan if np.ptp(values) else 0.0))
        return analyzer.analyze(problem, values, **options)

    return _Plan(points, indices)


_PLANS: dict[str, Callable[[int, int, int], _Plan]] = {"morris": _plan_morris, "sobol": _plan_sobol}


def _salib_problem(num_inputs: int) -> dict[str, Any]:
    return {"num_vars": num_inputs, "names": [str(i) for i in range(num_inputs)], "bounds": [[0.0, 1.0]] * num_inputs}


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
        method: ``"morris"`` (elementary effects) or ``"sobol"`` (variance); `what_if` has single changes.
        num_samples: morris: trajectories (default 32; ``num_samples * (num_inputs + 1)`` points); sobol: base samples,
            a power of 2 (default 512; ``num_samples * (num_inputs + 2)`` points).
        seed: of the samples, and of their confidence intervals; the same seed, the same result.
        on_infeasible: ``"raise"`` or ``"worst"`` (count as the worst point).
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
        result = sweep(space, loads, aims, sampling=UnitPoints(unit), **options)  # type: ignore[arg-type]
        answers = np.stack([result[name].astype(np.float64) for name in aims], axis=1)
        answers[~result.is_feasible] = np.nan
        return answers

    return analyze_sensitivity(
        evaluate, tuple(space.drawn), output_names=aims, method=method, num_samples=num_samples, seed=seed,
        on_infeasible=on_infeasible, maximize=[is_maximized(name, loads) for name in aims],
    )  # fmt: skip
