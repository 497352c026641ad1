"""Design spaces: the chips that a sweep looks at, as a base arch and what varies, and which of them are taken."""

from __future__ import annotations

import contextlib
import math
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import ArchSpec, GpuSpec, MulticoreSpec, load_arch
from gemm_eval.errors import InvalidOptionError
from gemm_eval.sweep.expressions import Known, NoValueError, check_expression
from gemm_eval.sweep.fields import (
    Choices,
    Dependent,
    Drawn,
    Field,
    as_field,
    as_spec_value,
    build_arch,
    check_field,
    check_value,
    field_kind,
    fit_range,
    plain_fields,
)
from gemm_eval.words import as_integer, check_word, needs_extra, one_line, shown

_MAX_DRAWN = 1 << 27  # numbers: 1 GiB, and as much again to sort them
_MAX_COUNT = 1 << 62
_MAX_OPTUNA_SEED = 1 << 31
_BLOCK = 4096  # points that one seed draws: any chunk of points is found without drawing those before it


Rows = list[tuple[Any, ...]]


@dataclass(frozen=True)
class Grid:
    """All combinations of the values; as in every sampling, a number is the same point however the work is cut."""

    def num_points_of(self, space: Space) -> int:
        """Return how many points there are."""
        return space.grid_size

    def rows(self, space: Space, start: int, stop: int) -> Rows:
        """Return what points start..stop-1 choose; the last field varies fastest."""
        return space.grid_rows(start, stop)


@dataclass(frozen=True)
class _Drawn:
    """So many points of a seed."""

    num_points: int
    seed: int = 0

    def __post_init__(self) -> None:
        check_count("num_points", self.num_points)
        as_integer("seed", self.seed, 0, _MAX_COUNT)

    def num_points_of(self, space: Space) -> int:  # noqa: ARG002
        """Return how many points there are."""
        return self.num_points


class Random(_Drawn):
    """Points drawn at random, each field by itself."""

    def rows(self, space: Space, start: int, stop: int) -> Rows:
        """Return what points start..stop-1 choose."""
        width = len(space.drawn)
        blocks = range(start // _BLOCK, -(-stop // _BLOCK))
        drawn = [np.random.default_rng([self.seed, block]).random((_BLOCK, width)) for block in blocks]
        first = blocks.start * _BLOCK
        return space.rows_of(np.concatenate(drawn)[start - first : stop - first])


class LatinHypercube(_Drawn):
    """Points at random, but evenly spread along every field: as many strata as points, one point in each."""

    def rows(self, space: Space, start: int, stop: int) -> Rows:
        """Return what points start..stop-1 choose."""
        return space.rows_of(_latin_hypercube(self.num_points, len(space.drawn), self.seed)[start:stop])


@dataclass(frozen=True)
class Adaptive:
    """Points that optuna chooses in batches by what it has seen, for one or several objectives.

    Attributes:
        num_points: how many, as many batches as that takes.
        batch_size: points that are chosen at once, and evaluated in parallel.
        seed: of the sampler; the same seed takes the same points.
        sampler: ``"nsga2"`` (NSGA-II), ``"tpe"`` (tree-structured Parzen estimators) or ``"qmc"`` (quasi-Monte Carlo).
    """

    num_points: int
    batch_size: int = 64
    seed: int = 0
    sampler: str = "nsga2"

    def __post_init__(self) -> None:
        check_count("num_points", self.num_points)
        check_count("batch_size", self.batch_size)
        as_integer("seed", self.seed, 0, _MAX_OPTUNA_SEED)
        check_word("sampler", self.sampler, ("nsga2", "tpe", "qmc"))


def check_count(name: str, value: Any) -> int:
    """Return a whole number of at least 1, such as points have in a column."""
    return as_integer(name, value, 1, _MAX_COUNT)


@lru_cache(maxsize=1)
def _latin_hypercube(num_points: int, width: int, seed: int) -> npt.NDArray[np.float64]:
    with needs_extra("LatinHypercube", "sweep"):
        from scipy.stats import qmc
    if num_points * width > _MAX_DRAWN:
        raise InvalidOptionError(
            f"LatinHypercube draws all its points at once, {_MAX_DRAWN:,} numbers at most; {num_points:,} points of "
            f"{width} are more: take Random"
        )
    if width == 0:
        return np.empty((num_points, 0))
    return qmc.LatinHypercube(width, rng=np.random.default_rng(seed)).random(num_points)


ARCH = "arch"
"""The name of the column that tells several base archs apart."""

_RESERVED = {ARCH, "point", "excluded"}
_MAX_REPR_CHARS = 200
_MAX_NAMES = 256  # dependents look for each other
_MAX_POINTS = 2**63 - 1  # what a column of point numbers holds

Base = ArchSpec | str | os.PathLike[str]


class Space:
    """A design space: one or several base archs, and the fields of their spec that vary.

    >>> Space("demo-8core", num_cores=[8, 16, 32], sram_bytes=LogRange(2**19, 2**23, 5))      # doctest: +SKIP

    A field is given as values (a list), a `Range`, a `LogRange`, a single value, or something that follows from other
    fields: a function (``area_mm2=lambda a: 0.5 * a.num_cores + a.sram_bytes / 2**20``) or the same as text
    (``area_mm2="= 0.5 * num_cores + sram_bytes / 2**20"``). A dotted name is an entry of a table (``"mac_pj.fp16"``).
    Where such a function divides by 0 or raises another error that is a matter of the point, the point is excluded.

    Args:
        base: an arch, its name or path; or several (say, made by `arch.with_`), each of which gets all fields: a list
            of archs with names of their own, or a mapping of labels to archs. A GPU keeps the calibration of its name.
        fields: fields by name, in the order of the columns; dotted names can only be given here.
        variables: names that are not fields of a spec, for dependent fields and constraints to use.
        more_fields: as `fields`.

    Raises:
        InvalidOptionError: a name that is no field of the spec, values that make no field, or an expression that names
            something that there is not.
        ArchError: `base` names no valid arch.
    """

    def __init__(
        self,
        base: Base | Sequence[Base] | Mapping[str, Base],
        fields: Mapping[str, Any] | None = None,
        *,
        variables: Mapping[str, Any] | None = None,
        **more_fields: Any,
    ) -> None:
        self.bases = _read_bases(base)
        fields, variables = fields or {}, variables or {}
        twice = sorted(set(fields) & set(more_fields))
        if twice:
            raise InvalidOptionError(f"a field is given once, got {', '.join(twice)} twice")
        num = len({**fields, **more_fields, **variables})
        if num > _MAX_NAMES:
            raise InvalidOptionError(f"a space has at most {_MAX_NAMES} fields and variables, got {num:,}")
        given = {name: as_field(name, value) for name, value in {**fields, **more_fields}.items()}
        self._check_names(given, variables)
        self.kinds = {name: self._kind_of(name) for name in given}
        """The kind of each field of the spec: whole, number, truth, text or json."""
        self.fields = {name: fit_range(name, field, self.kinds[name]) for name, field in given.items()}
        self.variables = {name: as_field(name, value) for name, value in variables.items()}
        drawn: dict[str, Field] = {ARCH: Choices(tuple(self.bases))} if len(self.bases) > 1 else {}
        drawn |= self.variables | self.fields
        self.drawn = {name: field for name, field in drawn.items() if not isinstance(field, Dependent)}
        """The fields that a point chooses, by name."""
        self.dependent = {name: field.of for name, field in drawn.items() if isinstance(field, Dependent)}
        for name, of in self.dependent.items():
            if isinstance(of, str):
                example = plain_fields(next(iter(self.bases.values())))
                check_expression(name, of, {*example, *self.variables}, example)

    def __repr__(self) -> str:
        said = (*self.bases, *(f"{name}={field!r}" for name, field in self.fields.items()))
        return f"Space({one_line(', '.join(said), _MAX_REPR_CHARS)})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_plain", "_grids")}

    @property
    def names(self) -> tuple[str, ...]:
        """Columns of a point: the base arch, variables, fields, each group in the order given."""
        return (ARCH, *self.variables, *self.fields)

    @property
    def grid_size(self) -> int:
        """Points of the full grid; InvalidOptionError: a range does not say how many, or there are over 2**63 - 1."""
        size = math.prod(map(len, self._grids))
        if size > _MAX_POINTS:
            raise InvalidOptionError(f"a grid of {size:.3g} points cannot be numbered: sample it, Random(num_points)")
        return size

    def grid_rows(self, start: int, stop: int) -> Rows:
        """Return what points start..stop-1 of the full grid choose; the last name varies fastest."""
        columns = []
        places = np.arange(start, stop, dtype=np.int64)
        for values in reversed(self._grids):
            places, at = np.divmod(places, len(values))
            columns.append([values[place] for place in at.tolist()])
        return list(zip(*reversed(columns), strict=True)) if columns else [()] * (stop - start)

    def rows_of(self, unit: npt.NDArray[np.float64]) -> Rows:
        """Return what points choose, given numbers in [0, 1], [num_points, len(drawn)]."""
        columns = [field.take(unit[:, at]) for at, field in enumerate(self.drawn.values())]
        return list(zip(*columns, strict=True)) if columns else [()] * len(unit)

    def values(self, row: Sequence[Any]) -> tuple[dict[str, Any], str]:
        """Return all columns of a point by name, dependent ones too, given what it chooses.

        Also returns why the point makes no chip, or ``""``: a dependent field without a value, None among the columns.

        Raises:
            InvalidOptionError: a dependent field names something unknown, or itself.
        """
        chosen = dict(zip(self.drawn, row, strict=True))
        base = chosen.pop(ARCH, None) or next(iter(self.bases))
        known = Known(self._plain[base], self.dependent)
        for name, value in chosen.items():
            known.set(name, value)
        values, why = {ARCH: base}, ""
        for name in (*self.variables, *self.fields):
            try:
                value = chosen[name] if name in chosen else known[name]
                values[name] = as_spec_value(self.kinds.get(name, ""), value)
            except NoValueError as error:
                values[name] = None
                why = why or str(error)
        return values, why

    def arch(self, values: Mapping[str, Any]) -> ArchSpec:
        """Return the spec of a point, given its columns; ArchValidationError: the values make no valid spec."""
        base = self.bases[values[ARCH]]
        return build_arch(base, {field: values[field] for field in self.fields}) if self.fields else base

    @cached_property
    def _plain(self) -> dict[str, dict[str, Any]]:
        """The fields that do not vary, by base, without dependent fields, which would pass for their base's values."""
        return {
            label: {name: value for name, value in plain_fields(arch).items() if name not in self.dependent}
            for label, arch in self.bases.items()
        }

    @cached_property
    def _grids(self) -> tuple[tuple[Any, ...], ...]:
        return tuple(field.grid() for field in self.drawn.values())

    def _kind_of(self, name: str) -> str:
        kinds = {field_kind(type(arch), name) for arch in self.bases.values()}
        return kinds.pop() if len(kinds) == 1 else "json"

    def _check_names(self, fields: Mapping[str, Field], variables: Mapping[str, Any]) -> None:
        for arch in self.bases.values():
            for name in fields:
                check_field(arch, name)
        tops = [name.partition(".")[0] for name in fields if "." in name]
        both = sorted(set(tops) & set(fields))
        if both:
            raise InvalidOptionError(f"a table varies as a whole or by its entries, got both of {', '.join(both)}")
        known = {name for arch in self.bases.values() for name in type(arch).model_fields}
        clash = sorted(set(variables) & (_RESERVED | known))
        if clash:
            raise InvalidOptionError(f"variables need names that nothing else has, got {', '.join(clash)}")
        wrong = [name for name in variables if not isinstance(name, str) or not name.isidentifier()]
        if wrong:
            raise InvalidOptionError(f"a variable's name is of letters, digits and _, got {shown(wrong[0])}")


def _read_bases(base: Any) -> dict[str, ArchSpec]:
    is_one = isinstance(base, MulticoreSpec | GpuSpec | str | os.PathLike)
    items: list[tuple[Any, Any]] = []
    if isinstance(base, Mapping):
        items = list(base.items())
    elif is_one or isinstance(base, Sequence):
        items = [(None, arch) for arch in ([base] if is_one else base)]
    archs = [load_arch(one) if isinstance(one, str | os.PathLike) else one for _, one in items]
    if not archs or not all(isinstance(arch, MulticoreSpec | GpuSpec) for arch in archs):
        raise InvalidOptionError(f"base must be an arch, a name, a path, or several of them, got {shown(base)}")
    labels = [arch.name if label is None else str(label) for (label, _), arch in zip(items, archs, strict=True)]
    bases = dict(zip(labels, archs, strict=True))
    for label in bases:
        check_value(label)
    if len(bases) < len(archs):
        raise InvalidOptionError(
            f"base archs need names of their own, got {', '.join(arch.name for arch in archs)}: "
            "give a mapping of labels to archs"
        )
    return bases


class Proposer:
    """A study of optuna over the unit cube of a space; fields of some values are categories there."""

    def __init__(self, space: Space, sampling: Adaptive, maximize: Sequence[bool]) -> None:
        with needs_extra("adaptive sampling", "sweep"):
            import optuna
        self._optuna = optuna
        self._space = space
        with self._silent():
            self._study = optuna.create_study(
                directions=["maximize" if more else "minimize" for more in maximize],
                sampler=_make_sampler(optuna, sampling),
            )
        self._waiting: list[Any] = []

    def propose(self, num_points: int) -> Rows:
        """Return what the next points choose."""
        with self._silent():
            self._waiting = [self._study.ask() for _ in range(num_points)]
            return [
                tuple(_suggested(trial, name, field) for name, field in self._space.drawn.items())
                for trial in self._waiting
            ]

    def tell(self, objectives: npt.NDArray[np.float64], is_good: npt.NDArray[np.bool_]) -> None:
        """Say how the points proposed last did: objectives [num_points, num_objectives], and whether they count."""
        is_good = is_good & np.isfinite(objectives).all(axis=1)
        with self._silent():
            for trial, values, counts in zip(self._waiting, objectives.tolist(), is_good.tolist(), strict=True):
                # a broken constraint, not a failed trial: samplers learn from it, and any point that counts beats it
                trial.set_constraint("excluded", 0.0 if counts else 1.0)
                self._study.tell(trial, values if counts else [0.0] * len(values))

    @contextlib.contextmanager
    def _silent(self) -> Iterator[None]:
        """Optuna announces every study and trial, and warns of what is new in it."""
        before = self._optuna.logging.get_verbosity()
        self._optuna.logging.set_verbosity(self._optuna.logging.ERROR)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", self._optuna.exceptions.ExperimentalWarning)
                yield
        finally:
            self._optuna.logging.set_verbosity(before)


def _suggested(trial: Any, name: str, field: Drawn) -> Any:
    if isinstance(field, Choices):
        return field.values[trial.suggest_categorical(name, list(range(len(field.values))))]
    return field.take(np.array([trial.suggest_float(name, 0.0, 1.0)]))[0]


def _make_sampler(optuna: Any, sampling: Adaptive) -> Any:
    samplers, seed = optuna.samplers, sampling.seed
    if sampling.sampler == "nsga2":
        return samplers.NSGAIISampler(seed=seed, population_size=sampling.batch_size)
    if sampling.sampler == "tpe":
        return samplers.TPESampler(seed=seed)
    independent = samplers.RandomSampler(seed=seed)  # for the first point, and for categories
    quiet = {"warn_independent_sampling": False, "warn_asynchronous_seeding": False}
    return samplers.QMCSampler(seed=seed, scramble=True, independent_sampler=independent, **quiet)
