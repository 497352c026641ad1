"""Learned corrections and intervals of subjects other than GEMMs of GPUs: attention, experts, bytes, chips.

A correction belongs to a GPU, a subject and a group of kernels that share coefficients. Its trees know the sizes of a
problem and what the terms of the model say of it. What was learned of a GPU carries to siblings as that of GEMMs does
(`correction.nearest_correction`). MODEL.md, "Correction" and "Intervals".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from gemm_eval.arch import GpuSpec, data_root
from gemm_eval.jit import read_only
from gemm_eval.models.gpu.calibration import (
    ALIKE,
    OF_DEFAULTS,
    OTHER_SMS,
    Chip,
    Origin,
    Spread,
    has_sibling_sms,
    has_sms_of,
    is_other_maker,
)
from gemm_eval.models.gpu.correction import (
    OTHER_SMS_SHARE,
    CorrectionFile,
    PackedCorrection,
    pack_trees,
    physics_digest,
)
from gemm_eval.models.gpu.correction_kernels import LIMITS_DTYPE, NODE_DTYPE, answer_rows

Floats = npt.NDArray[np.float64]

OTHER_GENERATION = 0.35
"""Logarithm by which coefficients err on a GPU of another generation: 80% of the errors of attention are within it, of
A100, L40S, RTX PRO 6000, H200 and B200 in the mean, each by the nearest other (`python -m tools.left_out`)."""

OTHER_MAKER = 0.5
"""Logarithm of the ends of intervals where coefficients are those of a GPU of another maker (`GpuSpec.carried_from`):
assumed, as no timings of such kernels are here; wider than `OTHER_GENERATION`, and than where nothing was fitted."""


class Features(NamedTuple):
    """Inputs of the trees: columns [rows] by name.

    `sizes` are log2 of sizes, which also say how far a problem is from those that were timed; `others` is the rest.
    """

    sizes: Mapping[str, Floats]
    others: Mapping[str, Floats]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all columns, sizes first."""
        return (*self.sizes, *self.others)

    def columns(self) -> Floats:
        """Return [rows, columns and one], the last of which is -inf: beside leaves."""
        columns = [*self.sizes.values(), *self.others.values()]
        x = np.full((len(columns[0]), len(columns) + 1), -np.inf)
        x.T[:-1] = columns
        return x


def features_of(names: Sequence[str], num_sizes: int, x: Floats) -> Features:
    """Return features by name, those of the columns of x [rows, features or one more]; the first are sizes."""
    columns = list(zip(names, x.T, strict=False))
    return Features(dict(columns[:num_sizes]), dict(columns[num_sizes:]))


class Fall(NamedTuple):
    """Limit to the fall of a factor where sizes grow: a share of what the latency by the terms rises, up to a latency.

    log(factor) is the trees' sum, which never falls, less that share of log(latency): so no corrected latency falls
    where that by the terms does not.
    """

    frac: float = 0.0
    max_log2: float = 0.0  # of us

    def log(self, latency_log2: Floats) -> Floats:
        """Return what is taken off the trees' sum."""
        taken: Floats = self.frac * math.log(2.0) * np.minimum(latency_log2, self.max_log2)
        return taken

    def limits(self, features: Sequence[str]) -> npt.NDArray[np.void]:
        """Return limits [1] of `LIMITS_DTYPE` with this fall alone; `features` are the names of the columns."""
        limits = np.zeros(1, LIMITS_DTYPE)
        if self.frac:
            limits["latency"] = features.index("latency")
            limits["max_latency_log2"], limits["fall_per_octave"] = self.max_log2, self.frac * math.log(2.0)
        return limits


class LearnedCorrection(CorrectionFile):
    """A correction of a subject other than GEMMs."""

    subject: str
    group: str
    fall_frac: float = Field(default=0.0, ge=0.0, lt=1.0, description="of the rise of the latency, see `Fall`")
    max_latency_log2: float = Field(default=0.0, description="of log2(us), see `Fall`")
    near: float = Field(gt=0.0, description="octaves from the nearest known sizes, up to which it holds in full")
    far: float = Field(gt=0.0, description="octaves, from which on it does not hold at all")

    @property
    def path(self) -> Path:
        """Path of the file."""
        return learned_path(self.gpu, self.subject, self.group)

    @property
    def fall(self) -> Fall:
        """Limit to the fall of a factor."""
        return Fall(self.fall_frac, self.max_latency_log2)


class Answers(NamedTuple):
    """Corrections of problems, [rows] each: factors of the latency, and from it to both ends of the 80% interval."""

    factor: Floats
    low_frac: Floats
    high_frac: Floats

    def ends_us(self, latency_us: Floats) -> tuple[Floats, Floats]:
        """Return the ends of the intervals around corrected latencies [rows]."""
        return latency_us * self.low_frac, latency_us * self.high_frac


def learned_path(gpu: str, subject: str, group: str) -> Path:
    """Return the path of the YAML file of a correction; its trees are in the .npz file beside it."""
    return data_root() / "calibration" / gpu / "learned" / f"{subject}-{group}.yaml"


load_learned = LearnedCorrection.load


class Learned(NamedTuple):
    """A correction of a group of kernels and its intervals, ready for use on a GPU."""

    trees: PackedCorrection
    spreads: Floats  # [spreads, limits and ends], see `answer_rows`
    physics_spreads: Floats  # likewise, of the terms alone

    def answers(self, x: Floats, physics_us: Floats) -> Floats:
        """Return what was learned of problems [rows, 4], as `answer_rows` writes it: first the fields of `Answers`.

        Args:
            x: [rows, features and -inf].
            physics_us: [rows], by the terms of the model, contiguous.
        """
        out = np.empty((len(x), _NUM_ANSWERS))
        answer_rows(x, physics_us, *self.trees, self.spreads, self.physics_spreads, out)
        return out


_NUM_ANSWERS = 4


@cache
def _ready(path: Path) -> tuple[LearnedCorrection, Learned] | None:
    """Return a correction as its file has it; None: there is none."""
    if not path.is_file():
        return None
    of, trees = load_learned(path)
    limits = of.fall.limits(of.features)
    packed = _NO_TREES if trees is None else pack_trees(trees, of.near, of.far, of.bounds, limits)
    return of, Learned(packed, _pack_spreads(of.intervals), _pack_spreads(of.physics_intervals))


def _pack_spreads(spreads: Sequence[Spread]) -> Floats:
    rows = [(item.max_us or math.inf, item.max_octaves or math.inf, -item.low_log, item.high_log) for item in spreads]
    return read_only(np.array(rows))


_NO_TREES = PackedCorrection(
    *(read_only(array) for array in (
        np.zeros(0, NODE_DTYPE), np.zeros(0, np.uint32), np.zeros((0, 1)), np.zeros(1, LIMITS_DTYPE)
    ))
)  # fmt: skip
_ANY = _pack_spreads([Spread(num_rows=0, low_log=-OF_DEFAULTS, high_log=OF_DEFAULTS)])
NOTHING_LEARNED = Learned(_NO_TREES, _ANY, _ANY)
"""Factors are 1, and intervals those of defaults."""
_OF_OTHER_MAKER = NOTHING_LEARNED._replace(
    physics_spreads=_pack_spreads([Spread(num_rows=0, low_log=-OTHER_MAKER, high_log=OTHER_MAKER)])
)


def apply_trees(packed: PackedCorrection, features: Features) -> tuple[Floats, Floats]:
    """Return the factors [rows], and the octaves to the nearest known sizes."""
    x = features.columns()
    out = np.empty((len(x), _NUM_ANSWERS))
    answer_rows(x, np.ones(len(x)), *packed, _ANY, _ANY, out)
    return out[:, 0], out[:, 3]


def learned_for(
    arch: GpuSpec | Chip | None, subject: str, group: str, origin: Origin, coefficients: Mapping[str, float],
    model_version: str, names: Sequence[str], *, is_on: bool = True,
) -> Learned:  # fmt: skip
    """Return what was learned of a group of kernels on this GPU, or on that of its coefficients.

    Where nothing was, factors are 1, and intervals are those of defaults. Nothing that was learned on a GPU of another
    maker holds.

    Args:
        arch: None: that of the coefficients.
        origin, coefficients: of the group.
        names: of the features.
        is_on: False: factors are 1, and intervals those of the terms alone.
    """
    if arch is not None and origin.gpu is not None and is_other_maker(arch, origin.gpu):
        return _OF_OTHER_MAKER
    ready = None if origin.gpu is None else _ready(learned_path(origin.gpu, subject, group))
    digest = physics_digest(coefficients, model_version)
    if ready is None or not ready[0].is_of(digest, names):
        return NOTHING_LEARNED
    of, learned = ready
    share, carried_log = (1.0, 0.0) if arch is None else _carried(arch, origin)
    limits = learned.trees.limits.copy()
    limits["share"], limits["carried_log"] = share * (of.is_on and is_on), carried_log
    return learned._replace(trees=learned.trees._replace(limits=read_only(limits)))


def answers_for(
    arch: GpuSpec | Chip, subject: str, group: str, origin: Origin, coefficients: Mapping[str, float],
    model_version: str, features: Features, physics_us: Floats, *, is_on: bool = True,
) -> Answers:  # fmt: skip
    """Return what was learned of problems of one group of kernels; arguments as of `learned_for`.

    Args:
        features: of the problems.
        physics_us: [rows], by the terms of the model.
    """
    names = features.names
    learned = learned_for(arch, subject, group, origin, coefficients, model_version, names, is_on=is_on)
    return Answers(*learned.answers(features.columns(), np.ascontiguousarray(physics_us)).T[: len(Answers._fields)])


def _carried(arch: GpuSpec | Chip, origin: Origin) -> tuple[float, float]:
    """Return the share of a correction that a GPU takes, and what taking it from another adds to intervals."""
    if origin.is_calibrated or origin.gpu is None:
        return 1.0, 0.0
    if has_sms_of(arch, origin.gpu):
        return 1.0, ALIKE
    is_sibling = has_sibling_sms(arch, origin.gpu)
    return (OTHER_SMS_SHARE, OTHER_SMS) if is_sibling else (0.0, OTHER_GENERATION)
