"""Learned corrections: what timings of a GPU show beyond the terms of the model; those of GEMMs.

The trees of a correction are plain arrays, with a YAML file of the same name beside them; `learned.py` has those of
other subjects. A correction of GEMMs belongs to a GPU, a library, a kernel family and a question: types, L2 and clock
state. It lies in ``calibration/<gpu>/corrections``. Other states
and changed specs take its factor for the same GEMM (`nearest_corrected`). It is off for GPUs that have none, and where
coefficients or the model have changed since. MODEL.md, "Correction".
"""

from __future__ import annotations

import hashlib
import math
import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import yaml
from pydantic import Field, model_validator

from gemm_eval.arch import ClockState, GpuSpec, L2State, data_root, read_yaml
from gemm_eval.dtypes import DType
from gemm_eval.errors import ArchValidationError, UnsupportedError
from gemm_eval.jit import read_only
from gemm_eval.models.gpu.calibration import (
    ALIKE,
    OF_DEFAULTS,
    OTHER_SMS,
    Frozen,
    Spread,
    calibration_path,
    coefficients_for,
    even_interval,
    has_sms_of,
    interval_of,
    load_calibration,
    preset_named,
)
from gemm_eval.models.gpu.correction_kernels import FEATURES, LEAF, LIMITS_DTYPE, NO_VERSION, NODE_DTYPE
from gemm_eval.models.gpu.libraries import AUTO, OURS, library_of
from gemm_eval.units import bytes_per_us
from gemm_eval.workload import GemmTypes, RunOptions

MAX_LOG_FACTOR = math.log(1.5)
"""No correction changes a time by more."""

_ALIKE = {
    DType.FP16: "f16",
    DType.BF16: "f16",
}  # one rate, the same kernels: what is learned of one holds for the other
_NOT_ASKED = {"library", "correction"}  # options that are no part of a question
_OF_OTHER_MODES, _TIMED_MODE = re.compile(r"-fp4-g\d+"), "-int4-g128"
"""Weights of our W4A16 kernels in questions: four-bit floats, and those that corrections are learned of."""


class HeldOut(Frozen):
    """Held-out errors of physics alone and of the corrected model."""

    num_rows: int
    physics_mape_percent: float
    corrected_mape_percent: float


class CorrectionData(HeldOut):
    """A data set that a correction was learned from, with the errors on it."""

    data: str = Field(description="name of the data set")
    sha256: str


class CorrectionErrors(HeldOut):
    """The errors of a regime of M, over all data sets."""

    regime: str


class Region(Frozen):
    """The sizes and latencies for which a correction holds.

    Attributes:
        min_m, max_m, max_g: sizes of its data; beyond, it fades within one octave.
        min_us: least latency of its data; where physics says less, it fades within one octave. Files without it do not.
        near, far: octaves from the nearest known (N, K), up to which it holds in full, and from which on not at all.
    """

    min_m: int
    max_m: int
    max_g: int
    min_us: float = Field(default=0.001, gt=0.0)
    near: float
    far: float


class CorrectionFile(Frozen):
    """Base of the YAML files that `gemm-eval calibrate correction` writes beside the trees."""

    gpu: str
    model_version: str
    code_version: str
    date: str
    folds: str = Field(description="how rows were held out for the errors")
    is_on: bool = Field(description="whether it is better than physics alone, held out; else it has no trees")
    physics: str = Field(description="digest of the coefficients that it corrects")
    arrays_sha256: str
    features: tuple[str, ...]
    min_log_factor: float = Field(ge=-MAX_LOG_FACTOR, le=0.0)
    max_log_factor: float = Field(ge=0.0, le=MAX_LOG_FACTOR)
    data: Annotated[tuple[CorrectionData, ...], Field(min_length=1)]
    physics_intervals: Annotated[tuple[Spread, ...], Field(min_length=1)]
    intervals: Annotated[tuple[Spread, ...], Field(min_length=1)]

    @property
    @abstractmethod
    def path(self) -> Path:
        """Path of the file; its trees are in the .npz file beside it."""

    @property
    def bounds(self) -> tuple[float, float]:
        """Least and most of the log factor."""
        return self.min_log_factor, self.max_log_factor

    @classmethod
    def load(cls, path: Path) -> tuple[Self, Trees | None]:
        """Read a correction and its trees, None where it is off.

        Raises:
            ArchValidationError: it is malformed, damaged, or another one than its folder and name say.
        """
        try:
            loaded = cls.model_validate(read_yaml(path))
            arrays = path.with_suffix(".npz")
            trees = load_trees(arrays, loaded.arrays_sha256, len(loaded.features)) if loaded.is_on else None
        except (ValueError, KeyError, OSError) as error:
            raise ArchValidationError(f"{path}: {error}") from error
        if path != loaded.path:
            raise ArchValidationError(f"{path}: this is a correction of {loaded.gpu}/{loaded.path.stem}")
        return loaded, trees

    def is_of(self, physics: str, features: Sequence[str]) -> bool:
        """Return True if it corrects the coefficients of a digest, by these features."""
        return (self.physics, self.features) == (physics, tuple(features))

    def to_yaml(self) -> str:
        """Return the text of the file, tables last."""
        head = "# Written by `gemm-eval calibrate correction`; not to be edited by hand.\n"
        fields = dict(sorted(self.model_dump(mode="json").items(), key=lambda item: isinstance(item[1], list | dict)))
        return head + yaml.safe_dump(fields, sort_keys=False)


class Correction(CorrectionFile):
    """A correction of GEMMs; it is on where it also is worse in no regime, and of pairs enough."""

    library: str
    family: str
    question: str
    region: Region
    versions: tuple[str, ...] = Field((), description="versions of the library that it tells apart")
    errors: Annotated[tuple[CorrectionErrors, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _check(self) -> Correction:
        if not self.region.near < self.region.far:
            raise ValueError("region: near must be below far")
        return self

    @property
    def path(self) -> Path:
        """Path of the file."""
        return correction_path(self.gpu, self.library, self.family, self.question)


class Trees(NamedTuple):
    """Gradient-boosted trees: the log factor is `baseline` and the value of one leaf of each.

    Attributes:
        left: [nodes], where what is at most the threshold goes; the rest goes to the node after that.
    """

    number: npt.NDArray[np.float64]  # [nodes], threshold of a node, or value of a leaf
    left: npt.NDArray[np.int16]
    feature: npt.NDArray[np.int8]  # [nodes], index into `FEATURES`; `LEAF`: a leaf
    roots: npt.NDArray[np.int16]  # [trees], those of `SMOOTH_FEATURES` first
    num_smooth: npt.NDArray[np.int16]  # [1], how many these are
    depth: npt.NDArray[np.int16]  # [1], most nodes above a leaf
    baseline: npt.NDArray[np.float64]  # where they start
    pairs: npt.NDArray[Any]  # [pairs, 2], the (N, K) of their data; of other subjects log2 of sizes, [sites, sizes]

    def save(self, file: BinaryIO) -> None:
        """Write them as a .npz file of plain arrays."""
        np.savez_compressed(file, **self._asdict())


class PackedCorrection(NamedTuple):
    """A correction as `correction_kernels` take it."""

    nodes: npt.NDArray[np.void]
    roots: npt.NDArray[np.uint32]
    sites: npt.NDArray[np.float64]
    limits: npt.NDArray[np.void]


def pack_trees(
    trees: Trees, near: float, far: float, bounds: tuple[float, float], limits: npt.NDArray[np.void] | None = None
) -> PackedCorrection:
    """Pack trees, how far they hold (octaves), and the least and most of the log factor.

    Args:
        trees: whose `pairs` are log2 of sizes.
        limits: [1], to be completed, of GEMMs or of a `Fall`; None: no factor falls by one.
    """
    nodes = np.zeros(len(trees.number), NODE_DTYPE)
    for name in NODE_DTYPE.names or ():
        nodes[name] = getattr(trees, name)
    limits = np.zeros(1, LIMITS_DTYPE) if limits is None else limits
    limits["baseline"], limits["num_smooth"], limits["share"] = trees.baseline[0], trees.num_smooth[0], 1.0
    limits["lowest"], limits["highest"] = bounds
    limits["near"], limits["far"] = near, far
    sites = trees.pairs.astype(np.float64)
    sort_size = int(sites.std(axis=0).argmax())
    limits["sort_size"] = sort_size
    sites = sites[np.argsort(sites[:, sort_size], kind="stable")]
    return PackedCorrection(
        read_only(nodes), read_only(trees.roots.astype(np.uint32)), read_only(sites), read_only(limits)
    )


def question_of(types: GemmTypes, options: RunOptions) -> str:
    """Return what timings must have asked for to tell of an answer: types, and states of the GPU, in one word.

    Types of scales are not told apart: kernels are the same for those that a format may have.
    """
    words = [_word(types.a.dtype)]
    if types.is_weight_quantized:
        words.append(_word(types.b.dtype))
    scale = types.b.scale
    if scale is not None:
        words.append(f"g{scale.group_size or 'column'}" + (f"x{scale.group_n}" if scale.group_n > 1 else ""))
        words += [f"z{_word(scale.zero_dtype)}"] if scale.zero_dtype else []
    if types.c.bits != 16:
        words.append(f"c{types.c.bits}")
    words += [str(value) for name, value in options._asdict().items() if name not in _NOT_ASKED and value is not None]
    return "-".join(words)


def _word(dtype: DType) -> str:
    return _ALIKE.get(dtype, str(dtype))


def correction_path(gpu: str, library: str, family: str, question: str) -> Path:
    """Return the path of a correction's YAML file, if there is one; its trees lie beside it."""
    return data_root() / f"calibration/{gpu}/corrections/{library}-{family}-{question}.yaml"


def physics_digest(coefficients: Mapping[str, float], model_version: str) -> str:
    """Return what changes when the answers that are corrected do."""
    return _digest(model_version, tuple(sorted(coefficients.items())))


@lru_cache(maxsize=1024)
def _digest(model_version: str, items: tuple[tuple[str, float], ...]) -> str:
    return hashlib.sha256(repr((model_version, list(items))).encode()).hexdigest()[:16]


def load_trees(path: Path, sha256: str, leaf: int) -> Trees:
    """Read trees whose leaves have the feature `leaf`; ValueError: damaged, or another file than was written."""
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise ValueError(f"{path.name} is not the file that was written with it")
    with np.load(path, allow_pickle=False) as arrays:
        trees = Trees(**{name: arrays[name] for name in Trees._fields})
    num = len(trees.number)
    is_leaf, places = trees.feature == leaf, np.arange(num)
    is_sound = np.where(is_leaf, trees.left == places, (trees.left > places) & (trees.left + 1 < num))
    is_known = (trees.feature >= 0) & (trees.feature <= leaf)
    if not (is_sound.all() and is_known.all() and ((trees.roots >= 0) & (trees.roots < num)).all()):
        raise ValueError(f"{path.name} holds no trees")
    return trees


load_correction = Correction.load


@cache
def _loaded(path: Path) -> tuple[Correction, Trees | None] | None:
    return load_correction(path) if path.is_file() else None


def find_correction(
    arch: GpuSpec, library: str, family: str, question: str, model_version: str
) -> tuple[Correction, Trees | None] | None:
    """Return what was learned of a question on this very GPU, with the coefficients that it has; None: nothing."""
    loaded = _loaded(correction_path(arch.name, library, family, question))
    if loaded is None:
        return None
    coefficients, origin = coefficients_for(arch, library, family)
    is_of_today = loaded[0].is_of(physics_digest(coefficients, model_version), FEATURES)
    return loaded if is_of_today and origin.is_calibrated else None


class Found(NamedTuple):
    """A correction that answers take: of their own GPU, or of a sibling whose coefficients they have.

    `carried_log` is what carrying it over adds to intervals; `share` of the log factor is taken.
    """

    correction: Correction
    trees: Trees | None
    carried_log: float = 0.0
    share: float = 1.0


OTHER_SMS_SHARE = 0.7
"""Share of a correction that GPUs with other SMs of the generation take, sm_103 from sm_100: assumed, as no timings of
such a GPU are in arch/measured."""


def nearest_correction(arch: GpuSpec, library: str, family: str, question: str, model_version: str) -> Found | None:
    """Return what was learned of a question on this GPU, or on the sibling whose coefficients it has; None: nothing.

    Modes of our W4A16 kernels of which nothing was learned take what was learned of int4 in groups of 128.
    """
    found = _nearest_correction(arch, library, family, question, model_version)
    alike = _OF_OTHER_MODES.sub(_TIMED_MODE, question)
    if found is not None or library != OURS or alike == question:
        return found
    found = _nearest_correction(arch, library, family, alike, model_version)
    return None if found is None else found._replace(carried_log=math.hypot(found.carried_log, ALIKE))


def _nearest_correction(arch: GpuSpec, library: str, family: str, question: str, model_version: str) -> Found | None:
    own = find_correction(arch, library, family, question, model_version)
    if own is not None:
        return Found(*own)
    origin = coefficients_for(arch, library, family)[1]
    if origin.is_calibrated or origin.gpu is None or origin.library != library:
        return None
    sibling = preset_named(origin.gpu)
    if sibling is None or sibling.sm_arch[:-1] != arch.sm_arch[:-1]:  # of another generation
        return None
    found = find_correction(sibling, library, family, question, model_version)
    if found is None:
        return None
    return Found(*found, ALIKE) if sibling.sm_arch == arch.sm_arch else Found(*found, OTHER_SMS, OTHER_SMS_SHARE)


def _spared_clock(arch: GpuSpec, gpu: str, dtype: DType) -> float:
    """Return the share of the clock's fall under tensor load on a GPU that another, with more power, is spared.

    A correction learned where power holds the clock has some of that in it, which is the chip's and not the kernels'.
    """
    if gpu == arch.name:
        return 0.0
    theirs = preset_named(gpu)
    assert theirs is not None  # a correction carries over from presets only
    loaded_ghz, own_ghz = theirs.tensor_clock_ghz(dtype), arch.tensor_clock_ghz(dtype)
    return min(1.0, max(0.0, (own_ghz - loaded_ghz) / (theirs.max_clock_ghz - loaded_ghz + 1e-9)))


def correction_for(
    arch: GpuSpec, library: str, family: str, types: GemmTypes, options: RunOptions, model_version: str
) -> PackedCorrection | None:
    """Return the correction of the answers of a library's kernel family, packed; None: there is none, or it is off."""
    found = nearest_correction(arch, library, family, question_of(types, options), model_version)
    if found is None or found.trees is None:
        return None
    learned, trees = found.correction, found.trees
    if found.share < 1.0:
        number = np.where(trees.feature == LEAF, found.share * trees.number, trees.number)
        trees = trees._replace(number=number, baseline=found.share * trees.baseline)
    packed = pack_correction(arch, types, options, trees, learned.region, learned.bounds)
    limits = packed.limits.copy()
    limits["spared_clock"] = _spared_clock(arch, learned.gpu, types.a.dtype)
    return packed._replace(limits=read_only(limits))


def version_of(options: RunOptions) -> str:
    """Return the version of the library that options name; empty: none."""
    return "" if options.library in (None, AUTO) else library_of(str(options.library)).version


def check_version(
    arch: GpuSpec, library: str, family: str, types: GemmTypes, options: RunOptions, model_version: str
) -> None:
    """Raise UnsupportedError where options name a version of the library that timings do not tell from others."""
    version = version_of(options)
    near = nearest_corrected(arch, library, family, types, options, model_version) if version else None
    learned = near and nearest_correction(arch, library, family, question_of(types, near), model_version)
    known = learned.correction.versions if learned else ()
    has_own_kernels = bool(version) and (version, family) in library_of(str(options.library)).version_tiles
    if version and version not in known and not has_own_kernels:
        raise UnsupportedError(
            f"library {options.library}: timings of {types.inputs} on {arch.name} are not told apart by this version, "
            f"only by {', '.join(known) or 'none'}; leave the version out"
        )


def nearest_corrected(
    arch: GpuSpec, library: str, family: str, types: GemmTypes, options: RunOptions, model_version: str
) -> RunOptions | None:
    """Return the options whose answers have a correction of their own, nearest to those that are asked for.

    These are the very same; else with A quantized from another type, as only the GEMM's own time is corrected; else
    with the burst clock, with cold L2, with both, in which most timings were taken. None: there are none.
    """
    for l2, clock in _near(options.l2, options.clock):
        for quantize_from in dict.fromkeys((options.quantize_from, DType.BF16, None)):
            near = options._replace(l2=l2, clock=clock, quantize_from=quantize_from)
            found = nearest_correction(arch, library, family, question_of(types, near), model_version)
            if found is not None and found.trees is not None:
                return near
    return None


def _near(l2: str | None, clock: str | None) -> Iterable[tuple[str | None, str | None]]:
    cold, burst = str(L2State.COLD), str(ClockState.BURST)
    return dict.fromkeys([(l2, clock), (l2, burst), (cold, clock), (cold, burst)])


def interval_for(
    arch: GpuSpec, library: str, family: str, question: str, model_version: str, *, is_corrected: bool
) -> npt.NDArray[np.float64]:
    """Return `interval_of` answers of a library's kernel family on a GPU; MODEL.md, "Intervals"."""
    learned = nearest_correction(arch, library, family, question, model_version)
    if learned is not None:
        intervals = learned.correction.intervals if is_corrected else learned.correction.physics_intervals
        return interval_of(intervals, learned.carried_log)
    _, origin = coefficients_for(arch, library, family)
    if origin.gpu is None:
        return even_interval(OF_DEFAULTS)
    carried_log = 0.0 if origin.is_calibrated else ALIKE if has_sms_of(arch, origin.gpu) else OTHER_SMS
    asked_there = _loaded(correction_path(origin.gpu, origin.library, family, question))
    if carried_log and asked_there is not None:
        return interval_of(asked_there[0].physics_intervals, carried_log)
    found = load_calibration(calibration_path(origin.gpu, origin.library, family))
    if found.intervals:
        return interval_of(found.intervals, carried_log)
    p90_frac = max(errors.p90_percent for errors in found.errors) / 100.0
    return even_interval(math.hypot(math.log1p(p90_frac), carried_log))


def interval_carried(
    arch: GpuSpec, library: str, family: str, types: GemmTypes, near: RunOptions, model_version: str
) -> npt.NDArray[np.float64]:
    """Return the interval of answers that take the correction of a preset's under other options (`near`): wider."""
    learned = nearest_correction(arch, library, family, question_of(types, near), model_version)
    if learned is None:
        return even_interval(OF_DEFAULTS)
    return interval_of(learned.correction.intervals, math.hypot(ALIKE, learned.carried_log))


def pack_correction(
    arch: GpuSpec, types: GemmTypes, options: RunOptions, trees: Trees, region: Region, bounds: tuple[float, float]
) -> PackedCorrection:
    """Pack trees, their bounds and region, and what the data sheet of a GPU allows.

    Args:
        options: of which the L2 state and the version of the library count.
        bounds: least and most of the log factor.
    """
    limits = pack_limits(arch, types, options)
    limits["least_m"], limits["most_m"], limits["most_g"] = np.log2([region.min_m, region.max_m, region.max_g])
    limits["least_latency"] = math.log2(region.min_us)
    trees = trees._replace(pairs=np.log2(trees.pairs.astype(np.float64)))
    return pack_trees(trees, region.near, region.far, bounds, limits)


def pack_limits(arch: GpuSpec, types: GemmTypes, options: RunOptions) -> npt.NDArray[np.void]:
    """Return limits [1] of `LIMITS_DTYPE` with what the data sheet of a GPU allows; the rest is that of no trees."""
    limits = np.zeros(1, LIMITS_DTYPE)
    limits["peak_flop_per_us"] = arch.highest_tflop_per_s(types.a.dtype) * 1e6
    if options.l2 != L2State.WARM:
        limits["dram_bytes_per_us"] = bytes_per_us(arch.dram_gb_per_s)
    limits["weight_bytes"] = types.b.dtype.bits / 8
    limits["launch_us"] = arch.graph_node_us
    limits["is_a_along_m"], limits["is_b_along_n"] = types.is_a_along_m, types.is_b_along_n
    version = version_of(options)
    limits["version"] = library_of(str(options.library)).versions.index(version) if version else NO_VERSION
    return limits
