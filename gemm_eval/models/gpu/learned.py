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
from typing import Annotated, NamedTuple

import numpy as np
import numpy.typing as npt
import yaml
from pydantic import Field

from gemm_eval.arch import GpuSpec, data_root, load_arch, read_yaml
from gemm_eval.errors import ArchValidationError
from gemm_eval.jit import read_only
from gemm_eval.models.gpu.calibration import ALIKE, OTHER_SMS, Chip, Frozen, Origin, has_sms_of, interval_of_defaults
from gemm_eval.models.gpu.correction import (
    MAX_LOG_FACTOR,
    OTHER_SMS_SHARE,
    CorrectionData,
    Trees,
    load_trees,
    physics_digest,
)
from gemm_eval.models.gpu.correction_kernels import NODE_DTYPE, correct_rows

Floats = npt.NDArray[np.float64]

OTHER_GENERATION = 0.35
"""Logarithm by which coefficients err on a GPU of another generation: 80% of the errors of attention are within it, of
A100, L40S, RTX PRO 6000, H200 and B200 in the mean, each by the nearest other (`python -m tools.left_out`)."""


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
        for number, column in enumerate(columns):
            x[:, number] = column
        return x


class Spread(Frozen):
    """Quantiles of log(measured / predicted) of held-out rows, between which 80% of them lie.

    It is of predictions up to `max_us`, of problems up to `max_octaves` from the nearest that a fit had seen.
    """

    max_us: float | None = Field(description="predicted latency; null: any longer one")
    max_octaves: float | None = Field(description="distance; null: any greater one")
    num_rows: int
    low_log: float = Field(le=0.0)
    high_log: float = Field(ge=0.0)


class LearnedCorrection(Frozen):
    """The YAML file that `gemm-eval calibrate correction` writes beside the trees."""

    gpu: str
    subject: str
    group: str
    model_version: str
    code_version: str
    date: str
    folds: str = Field(description="how rows were held out for the errors")
    is_on: bool = Field(description="whether it is better than physics alone, held out")
    physics: str = Field(description="digest of the coefficients that it corrects")
    arrays_sha256: str
    features: tuple[str, ...]
    fall_frac: float = Field(default=0.0, ge=0.0, lt=1.0, description="of the rise of the latency, see `Fall`")
    max_latency_log2: float = Field(default=0.0, description="of log2(us), see `Fall`")
    min_log_factor: float = Field(ge=-MAX_LOG_FACTOR, le=0.0)
    max_log_factor: float = Field(ge=0.0, le=MAX_LOG_FACTOR)
    near: float = Field(gt=0.0, description="octaves from the nearest known sizes, up to which it holds in full")
    far: float = Field(gt=0.0, description="octaves, from which on it does not hold at all")
    data: Annotated[tuple[CorrectionData, ...], Field(min_length=1)]
    physics_intervals: Annotated[tuple[Spread, ...], Field(min_length=1)]
    intervals: Annotated[tuple[Spread, ...], Field(min_length=1)]

    def to_yaml(self) -> str:
        """Return the text of the file."""
        head = "# Written by `gemm-eval calibrate correction`; not to be edited by hand.\n"
        return head + yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False)


class Answers(NamedTuple):
    """Corrections of problems, [rows] each: a factor of the latency, and the logs of the ends of the 80% interval."""

    factor: Floats
    low_log: Floats
    high_log: Floats

    def ends_us(self, latency_us: Floats) -> tuple[Floats, Floats]:
        """Return the ends of the intervals around corrected latencies [rows]."""
        return latency_us * np.exp(self.low_log), latency_us * np.exp(self.high_log)


def learned_path(gpu: str, subject: str, group: str) -> Path:
    """Return the path of the YAML file of a correction; its trees are in the .npz file beside it."""
    return data_root() / "calibration" / gpu / "learned" / f"{subject}-{group}.yaml"


def load_learned(path: Path) -> tuple[LearnedCorrection, Trees]:
    """Read a correction and its trees; ArchValidationError: malformed, or another one than its name says."""
    try:
        loaded = LearnedCorrection.model_validate(read_yaml(path))
        trees = load_trees(path.with_suffix(".npz"), loaded.arrays_sha256, len(loaded.features))
    except (ValueError, KeyError, OSError) as error:
        raise ArchValidationError(f"{path}: {error}") from error
    if path != learned_path(loaded.gpu, loaded.subject, loaded.group):
        raise ArchValidationError(f"{path}: this is a correction of {loaded.gpu}/{loaded.subject}-{loaded.group}")
    return loaded, trees


class Loaded(NamedTuple):
    """A correction, ready for use."""

    learned: LearnedCorrection
    trees: PackedTrees
    physics_spreads: Floats  # [spreads, limits and ends] of the terms alone, see `_spread_of`
    spreads: Floats

    def ends(self, latency_us: Floats, physics_us: Floats, trust: Floats, octaves: Floats) -> tuple[Floats, Floats]:
        """Return the logs of both ends around corrected latencies [rows], without their signs.

        Where the correction is not trusted, they are those of the terms alone.
        """
        own = _spread_of(self.spreads, latency_us, octaves)
        physics = _spread_of(self.physics_spreads, physics_us, np.zeros(len(trust)))
        low, high = (side * trust + other * (1.0 - trust) for side, other in zip(own, physics, strict=True))
        return low, high


@cache
def _loaded(root: Path, gpu: str, subject: str, group: str) -> Loaded | None:  # noqa: ARG001  another root, other files
    path = learned_path(gpu, subject, group)
    if not path.is_file():
        return None
    loaded, trees = load_learned(path)
    bounds, fall = (loaded.min_log_factor, loaded.max_log_factor), Fall(loaded.fall_frac, loaded.max_latency_log2)
    packed = pack_trees(trees, loaded.features, loaded.near, loaded.far, bounds, fall)
    return Loaded(loaded, packed, *map(_spread_columns, (loaded.physics_intervals, loaded.intervals)))


def _spread_columns(spreads: Sequence[Spread]) -> Floats:
    rows = [(item.max_us or math.inf, item.max_octaves or math.inf, -item.low_log, item.high_log) for item in spreads]
    return np.array(rows)


class PackedTrees(NamedTuple):
    """Trees as `correct_rows` takes them."""

    nodes: npt.NDArray[np.void]
    roots: npt.NDArray[np.int64]
    sites: Floats  # [sites, sizes], log2 of the sizes of the data
    limits: Floats  # baseline, depth, least and most of the log factor, near, far, and a `Fall`


class Fall(NamedTuple):
    """How much a factor may fall where sizes grow: by a share of what the latency by the terms rises, up to a latency.

    log(factor) is the trees' sum, which never falls, less that share of log(latency): so no corrected latency falls
    where that by the terms does not.
    """

    frac: float
    max_log2: float  # of us

    def log(self, latency_log2: Floats) -> Floats:
        """Return what is taken off the trees' sum."""
        taken: Floats = self.frac * math.log(2.0) * np.minimum(latency_log2, self.max_log2)
        return taken


_LATENCY = "latency"  # feature: log2 of the latency by the terms


def pack_trees(
    trees: Trees, features: Sequence[str], near: float, far: float, bounds: tuple[float, float], fall: Fall
) -> PackedTrees:
    """Pack trees, how far they hold (octaves), the least and most of the log factor, and how much it may fall."""
    nodes = np.zeros(len(trees.number), NODE_DTYPE)
    for name in NODE_DTYPE.names or ():
        nodes[name] = getattr(trees, name)
    latency = features.index(_LATENCY) if fall.frac else 0
    per_octave = fall.frac * math.log(2.0)
    limits = np.array([trees.baseline[0], trees.depth[0], *bounds, near, far, latency, fall.max_log2, per_octave])
    sites = trees.pairs.astype(np.float64)
    return PackedTrees(
        read_only(nodes), read_only(trees.roots.astype(np.int64)), read_only(sites), read_only(limits)
    )  # fmt: skip


def matching_learned(gpu: str | None, subject: str, group: str, digest: str, names: Sequence[str]) -> Loaded | None:
    """Return what was learned on a GPU or chip of these coefficients by these features; None: nothing."""
    loaded = None if gpu is None else _loaded(data_root(), gpu, subject, group)
    is_of_today = loaded is not None and (loaded.learned.physics, loaded.learned.features) == (digest, tuple(names))
    return loaded if is_of_today else None


def apply_trees(packed: PackedTrees, features: Features) -> tuple[Floats, Floats, Floats]:
    """Return log factors [rows], how far they are trusted (0..1), and the octaves to the nearest known sizes."""
    x = features.columns()
    out = np.empty((len(x), 3))
    correct_rows(x, *packed, out)
    return out[:, 0], out[:, 1], out[:, 2]


def answers_for(
    arch: GpuSpec | Chip, subject: str, group: str, origin: Origin, coefficients: Mapping[str, float],
    model_version: str, features: Features, physics_us: Floats, *, is_on: bool = True,
) -> Answers:  # fmt: skip
    """Return what was learned of problems of one group of kernels on this GPU, or on that of its coefficients.

    Args:
        origin, coefficients: of the group.
        features: of the problems.
        physics_us: [rows], by the terms of the model.
        is_on: False: factors are 1, and intervals those of the terms alone.
    """
    num = len(physics_us)
    digest = physics_digest(coefficients, model_version)
    loaded = matching_learned(origin.gpu, subject, group, digest, features.names)
    if loaded is None:
        low, high = (np.full(num, math.log(ends[0])) for ends in interval_of_defaults())
        return Answers(np.ones(num), low, high)
    share, carried_log = _carried(arch, origin)
    log_factor, trust, octaves = apply_trees(loaded.trees, features)
    trust = trust * share * (loaded.learned.is_on and is_on)
    factor = np.exp(trust * log_factor)
    ends = loaded.ends(physics_us * factor, physics_us, trust, octaves)
    low, high = (np.hypot(end, carried_log) for end in ends)
    return Answers(factor, -low, high)


def _carried(arch: GpuSpec | Chip, origin: Origin) -> tuple[float, float]:
    """Return the share of a correction that a GPU takes, and what taking it from another adds to intervals."""
    if origin.is_calibrated or origin.gpu is None:
        return 1.0, 0.0
    if has_sms_of(arch, origin.gpu):
        return 1.0, ALIKE
    theirs = load_arch(origin.gpu, GpuSpec).sm_arch
    is_sibling = theirs[:-1] == arch.sm_arch[:-1] and len(theirs) > len("sm_80")  # sm_80 and sm_89 differ in much
    return (OTHER_SMS_SHARE, OTHER_SMS) if is_sibling else (0.0, OTHER_GENERATION)


def _spread_of(spreads: Floats, latency_us: Floats, octaves: Floats) -> tuple[Floats, Floats]:
    """Return the logs of both ends around latencies [rows], without their signs; the first spread that fits counts.

    `spreads` [spreads, 4] are the latency and the distance up to which each holds, and its two ends; the last holds for
    all.
    """
    fits = (latency_us[:, None] <= spreads[:, 0]) & (octaves[:, None] <= spreads[:, 1])
    first = fits.argmax(axis=1)
    return spreads[first, 2], spreads[first, 3]
