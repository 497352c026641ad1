"""Calibrations: fitted coefficients of kernels on one GPU, intervals of their errors, and the rule of transfer.

Intervals are those in which 80% of measured latencies lie, by regime of M: quantiles of log(measured / predicted) of
rows whose (N, K) pair was held out (MODEL.md, "Intervals").
"""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from functools import cache, wraps
from itertools import compress
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Self, TypeVar, cast

import numpy as np
import numpy.typing as npt
import yaml
from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from gemm_eval.arch import SM_ARCHS, GpuSpec, data_root, ladder_of, load_arch, read_yaml
from gemm_eval.errors import ArchError, ArchValidationError
from gemm_eval.models.gpu.coefficients import Coefficient, check_coefficients, complete_coefficients
from gemm_eval.models.gpu.families import FAMILIES, default_coefficients
from gemm_eval.models.gpu.libraries import LIBRARIES, OURS
from gemm_eval.models.gpu.w4a16.coefficients import W4A16_FAMILIES
from gemm_eval.words import shown

F = TypeVar("F", bound=Callable[..., Any])
_MAX_ARCHS = 256  # specs and words whose results a function keeps

ALL_OURS = "w4a16"
"""Instead of a family: all of our kernels for single GEMMs, which have one correction."""

COVERAGE_FRAC = 0.8
"""Share of measured latencies that intervals are made to hold."""

REGIMES_OF_M = (("decode", 1, 16), ("mid", 17, 256), ("prefill", 257, None))
"""Name, least and most rows of A; None: no upper end."""

MIN_INTERVAL_ROWS = 20
"""Rows of a regime for quantiles of its own; with fewer it has those of all regimes."""

_ALL = "all"
_WIDER = ("uneven", "batched")
_OF_M = tuple(name for name, _, _ in REGIMES_OF_M)
_REGIMES = (*_OF_M, *(f"uneven {name}" for name in _OF_M), "batched few", "batched many")
"""Regimes of intervals: by M; by M where no tile of 64 divides N or K; batches of less than `_MANY` GEMMs, and of more.

One of few timings has the interval of `_WIDER` that its first word names, else that of all.
"""
_FIRST_UNEVEN, _FIRST_BATCHED = len(_OF_M), 2 * len(_OF_M)
_EVEN, _MANY = 64, 64
ALIKE, OTHER_SMS = 0.02, 0.15
"""Logarithm by which coefficients err on a GPU that they were not fitted on, of the same generation of SMs and of
another: besides the errors on their own GPU, so added in squares. MODEL.md, "Intervals", says what that holds where
timings are known."""

OF_DEFAULTS = math.log(1.5)
"""Logarithm of the ends of intervals where nothing was fitted: `python -m tools.left_out`."""
_ENDS = [most for _, _, most in REGIMES_OF_M if most is not None]


class Frozen(BaseModel):
    """Base of the contents of files with fitted numbers."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Spread(Frozen):
    """Quantiles of log(measured / predicted) of held-out rows, between which 80% of them lie.

    It holds for a regime of GEMMs, or for predictions up to `max_us` of problems up to `max_octaves` from the nearest
    that a fit had seen.
    """

    regime: str = Field(
        default=_ALL,
        description="decode, mid or prefill, alone or after uneven; batched few or many; uneven, batched, all",
    )
    max_us: float | None = Field(default=None, description="predicted latency; null: any longer one")
    max_octaves: float | None = Field(default=None, description="distance; null: any greater one")
    num_rows: int = Field(description="timings of the regime")
    low_log: float = Field(le=0.0, description="10th percentile, at most 0")
    high_log: float = Field(ge=0.0, description="90th percentile, at least 0")

    @model_validator(mode="after")
    def _check(self) -> Spread:
        names = [*_REGIMES, *_WIDER, _ALL]
        if self.regime not in names:
            raise ValueError(f"regime must be one of {', '.join(names)}, got {self.regime}")
        return self

    @model_serializer(mode="wrap")
    def _write(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: value for name, value in handler(self).items() if value is not None}


def regime_place(G: int, M: int, K: int, N: int) -> int:
    """Return the number of the regime of one GEMM; see `regime_places`."""
    if G > 1:
        return _FIRST_BATCHED + (G >= _MANY)
    place = bisect_left(_ENDS, M)
    return place + _FIRST_UNEVEN if K % _EVEN or N % _EVEN else place


def regime_places(M: Any, G: Any = 1, K: Any = _EVEN, N: Any = _EVEN) -> npt.NDArray[np.intp]:
    """Return the number of each GEMM's regime, [rows]; of groups M is the mean, and G is 1."""
    is_uneven = (np.asarray(K) % _EVEN != 0) | (np.asarray(N) % _EVEN != 0)
    places = np.searchsorted(_ENDS, M) + _FIRST_UNEVEN * is_uneven
    return np.where(np.asarray(G) > 1, _FIRST_BATCHED + (np.asarray(G) >= _MANY), places)


def fit_intervals(
    places: npt.NDArray[np.intp], log_errors: npt.NDArray[np.float64], pairs: Sequence[Hashable] = ()
) -> tuple[Spread, ...]:
    """Return the intervals of each regime that has rows enough, and of all rows.

    Args:
        places: [rows], as of `regime_places`.
        log_errors: [rows], log(measured / predicted) by fits that had not seen the row's pair.
        pairs: (N, K) of each row, whose rows err partly alike: the fewer pairs, the wider; empty: rows are unlike.
    """
    masks = {name: places == place for place, name in enumerate(_REGIMES)}
    for wider in _WIDER:
        masks[wider] = np.any([mask for name, mask in masks.items() if name.startswith(wider)], axis=0)

    def spread(mask: npt.NDArray[np.bool_], **limits: str) -> Spread:
        num = len(set(compress(pairs, mask.tolist()))) if pairs else math.inf
        return spread_between(log_errors[mask], max(0.0, (1.0 - COVERAGE_FRAC) / 2.0 - _OF_A_PAIR / num), **limits)

    of_regimes = [
        spread(mask, regime=name) for name, mask in masks.items() if np.count_nonzero(mask) >= MIN_INTERVAL_ROWS
    ]
    return (*of_regimes, spread(np.ones(len(places), np.bool_)))


_OF_A_PAIR = 0.45
"""Share of rows that intervals leave out less, at either end, over the number of pairs: 0.9 would hold if rows of a
pair erred alike, 0 if each by itself. Half of it holds 80% of three sets of an MI300X; no other GPU was looked at."""


def spread_between(log_errors: npt.NDArray[np.float64], tail: float, **limits: Any) -> Spread:
    """Return the spread of errors [rows] that leaves out `tail` of them at either end; `limits` say where it holds.

    A model that is biased is told by its bias; the prediction itself always lies inside.
    """
    low, high = np.quantile(log_errors, (tail, 1.0 - tail)).tolist()
    return Spread(
        num_rows=len(log_errors), low_log=round(min(low, 0.0), 5), high_log=round(max(high, 0.0), 5), **limits
    )


def interval_of(found: Sequence[Spread], carried_log: float = 0.0) -> npt.NDArray[np.float64]:
    """Return the logs of the factors to both ends of intervals, [regimes, 2], as `regime_places` numbers regimes.

    `carried_log`: 0, `ALIKE` or `OTHER_SMS`, what carrying over adds.
    """
    by_name = {item.regime: item for item in found}
    wider = [(name, name.split()[0], _ALL) for name in _REGIMES]
    items = [next(by_name[name] for name in names if name in by_name) for names in wider]
    return np.array([(-math.hypot(i.low_log, carried_log), math.hypot(i.high_log, carried_log)) for i in items])


def even_interval(log: float) -> npt.NDArray[np.float64]:
    """Return intervals as `interval_of` does, of errors that are alike in all regimes and to both sides."""
    return np.full((len(_REGIMES), 2), (-log, log))


class ErrorFigures(Frozen):
    """Held-out errors of a fit on one data set."""

    data: str = Field(description="name of the data set")
    sha256: str = Field(description="of its table")
    num_rows: int = Field(description="timings of the set")
    mape_percent: float = Field(description="mean of the errors without their signs")
    median_percent: float = Field(description="median of the same")
    p90_percent: float = Field(description="nine in ten of them are below")
    bias_percent: float = Field(description="mean of the errors with their signs; above 0: predicted too slow")
    kendall_tau: float | None = Field(description="how alike the orders are; null where it is undefined")


class CalibrationFile(Frozen):
    """Base of the files that `gemm-eval calibrate` writes: coefficients that were fitted on timings of a GPU.

    A subject has a subclass, which names its coefficients and the command that fits them, and adds what else it says.
    """

    command: ClassVar[str]
    gpu: str = Field(description="the preset that was timed")
    code_version: str = Field(description="version of the package")
    date: str = Field(description="when it was fitted, YYYY-MM-DD")
    folds: str = Field(description="how rows were held out for the errors")
    errors: Annotated[tuple[ErrorFigures, ...], Field(min_length=1, description="held out, one for each data set")]

    @property
    def stem(self) -> str | None:
        """Name of the file without its suffix; None where several files of a GPU have the same contents."""
        return None

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a file; a file that did not change is read once.

        Raises:
            ArchValidationError: it is malformed, its coefficients are not those of the model or out of range, or it is
                of another GPU or kind than its folder and name say.
        """
        return cast("Self", _load(cls, path, path.stat().st_mtime_ns))

    def to_yaml(self) -> str:
        """Return the text of the file, with units and meanings as comments."""
        fields = self.model_dump(mode="json", exclude={"coefficients", "families"})
        head = {name: fields[name] for name in sorted(fields, key=lambda name: _PLACES.get(name, len(_PLACES)))}
        text = yaml.safe_dump(head, sort_keys=False)
        comment = f"# Written by `{self.command}`; not to be edited by hand."
        return "\n".join([comment, text, self.text_of_coefficients(), ""])

    @abstractmethod
    def text_of_coefficients(self) -> str:
        """Return the last part of a file."""


_FIRST = (
    "gpu", "library", "libraries", "family", "triton_version", "model_version", "code_version", "date", "folds",
    "fitted", "shared", "errors",
)  # fmt: skip
_PLACES = {name: place for place, name in enumerate(_FIRST)}


def coefficient_lines(
    values: Mapping[str, float], known: Sequence[Coefficient], fitted: Collection[str] | None = None,
    shared: Collection[str] = (), indent: str = "  ",
) -> list[str]:  # fmt: skip
    """Return the lines of coefficients in a file, with their units and meanings.

    Args:
        known: the coefficients of the model, in their order.
        fitted: names of those that are no defaults; None: all are fitted.
        shared: names of those that are of other fits.
    """
    lines = []
    for item in known:
        if item.name in values:
            mark = "" if fitted is None else ", fitted" if item.name in fitted else ", default"
            mark = ", shared" if item.name in shared else mark
            lines.append(f"{indent}{item.name}: {values[item.name]:.6g}  # {item.unit}{mark}: {item.meaning}")
    return lines


class SingleCalibration(CalibrationFile):
    """A calibration of one set of coefficients."""

    known: ClassVar[Sequence[Coefficient]]
    coefficients: dict[str, float] = Field(description="by name, in their units")

    @model_validator(mode="after")
    def _check_coefficients(self) -> Self:
        check_coefficients(self.coefficients, self.all_known)
        for what in ("fitted", "shared"):
            if unknown := sorted(set(getattr(self, what, ())) - set(self.coefficients)):
                raise ValueError(f"{what} names no coefficient: {', '.join(unknown)}")
        return self

    @property
    def all_known(self) -> Sequence[Coefficient]:
        """The coefficients of the model, in their order."""
        return self.known

    def complete(self) -> dict[str, float]:
        """Return all coefficients; the terms of those that are younger than the file are absent."""
        return complete_coefficients(self.coefficients, self.all_known)

    def text_of_coefficients(self) -> str:
        """Return the last part of a file."""
        fitted = getattr(self, "fitted", None)
        lines = coefficient_lines(self.coefficients, self.all_known, fitted, getattr(self, "shared", ()))
        return "\n".join(["coefficients:", *lines])


class FittedKernel(Frozen):
    """The coefficients of one of several kernels in a file, or of a family of them."""

    num_rows: int
    coefficients: dict[str, float]


class KernelsCalibration(CalibrationFile):
    """Coefficients of a library's kernels of a subject, each with a set of its own; `subject` begins its file's name.

    `kernels` has a line about each kernel and its coefficients.
    """

    subject: ClassVar[str]
    kernels: ClassVar[Mapping[str, tuple[str, Sequence[Coefficient]]]]
    library: str
    model_version: str
    families: Mapping[str, FittedKernel]

    @property
    def stem(self) -> str:
        """Name of the file, without its suffix."""
        return f"{self.subject}-{self.library}"

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, fitted in self.families.items():
            if name not in self.kernels:
                raise ValueError(f"families must be of {', '.join(self.kernels)}, got {shown(name)}")
            check_coefficients(fitted.coefficients, self.kernels[name][1])
        return self

    def text_of_coefficients(self) -> str:
        """Return the last part of a file."""
        lines = ["families:"]
        for name, fitted in self.families.items():
            meaning, known = self.kernels[name]
            facts = [f"    {field}: {value}" for field, value in fitted if field != "coefficients"]
            lines += [f"  {name}:  # {meaning}", *facts, "    coefficients:"]
            lines += coefficient_lines(fitted.coefficients, known, indent=6 * " ")
        return "\n".join(lines)


@cache
def _load(kind: type[CalibrationFile], path: Path, time_ns: int) -> CalibrationFile:  # noqa: ARG001  of its last change
    try:
        calibration = kind.model_validate(read_yaml(path))
    except ValueError as error:
        raise ArchValidationError(f"{path}: {error}") from error
    stem = path.stem if calibration.stem is None else calibration.stem
    if (path.parent.name, path.stem) != (calibration.gpu, stem):
        raise ArchValidationError(f"{path}: this is a calibration of {calibration.gpu}/{stem}")
    return calibration


class Calibration(SingleCalibration):
    """Coefficients of a library's kernel family, as `gemm-eval calibrate` writes them, and how they came about."""

    command: ClassVar[str] = "gemm-eval calibrate"
    library: str = Field(description="whose kernels")
    family: str = Field(description="which of its kernel families")
    model_version: str = Field(description="version of the cost model")
    fitted: tuple[str, ...] = Field(description="the coefficients that the data determine; the others are defaults")
    shared: dict[str, str] = Field(
        default={}, description="coefficients that the data cannot tell, and which fits of other data their values are"
    )
    intervals: Annotated[tuple[Spread, ...], Field(description="of held-out rows of all sets")] = ()

    @property
    def stem(self) -> str:
        """Name of the file, without its suffix."""
        return f"{self.library}-{self.family}"

    @property
    def all_known(self) -> Sequence[Coefficient]:
        """The coefficients of the family, in their order."""
        return FAMILIES[self.family].coefficients

    @model_validator(mode="before")
    @classmethod
    def _check_names(cls, data: Any) -> Any:
        for what, known in (("library", LIBRARIES), ("family", FAMILIES)):
            if isinstance(data, Mapping) and (name := data.get(what)) is not None and name not in known:
                raise ValueError(f"{what} must be one of {', '.join(known)}, got {shown(name)}")
        return data


_WORDS = {"title", "notes", "published", "sources", "provenance"}  # what a spec says about itself
_NOT_OF_GEMMS = _WORDS | {"interconnect"}


def cached_by_arch(find: F) -> F:
    """Cache what a function returns for a spec, which is recognized as the same object, and words."""
    results: dict[Any, tuple[Any, Any]] = {}

    @wraps(find)
    def cached(arch: Any, *words: Any) -> Any:
        key = id(arch), data_root(), words
        known = results.get(key)
        if known is None:
            while len(results) >= _MAX_ARCHS:
                results.pop(next(iter(results)), None)
            known = results[key] = arch, find(arch, *words)  # kept, so that nothing else has its id
        return known[1]

    return cast("F", cached)


class Origin(NamedTuple):
    """The source of the coefficients of a library on a GPU."""

    is_calibrated: bool  # fitted on this very GPU
    gpu: str | None  # the GPU that they were fitted on; None: defaults
    text: str
    library: str = ""  # whose kernels they were fitted on


class Chip(NamedTuple):
    """Facts of a GPU that decide whose coefficients it takes; a key of caches."""

    name: str  # of its spec
    sm_arch: str  # its generation of SMs
    tensor_core: tuple[str, str]  # from where its instructions read operands, and where they accumulate
    dram_gb_per_s: float  # bandwidth of its DRAM, as published
    dram_efficiency_frac: float = 1.0  # share of that bandwidth that a large read reaches
    carried_from: str | None = None  # preset of another maker, as of its spec


def chip_of(arch: GpuSpec) -> Chip:
    """Return the facts of a GPU that decide whose coefficients it takes."""
    core = arch.mma_operands_from, arch.mma_accumulators_in
    return Chip(arch.name, arch.sm_arch, core, arch.dram_gb_per_s, arch.dram_efficiency_frac, arch.carried_from)


def nearest_first(
    root: Path, chip: Chip, pattern: str, preferred: Sequence[str] = (),
    distance: Callable[[GpuSpec], tuple[float, ...]] | None = None,
) -> list[Path]:  # fmt: skip
    """Return the calibration files from which a GPU may take coefficients, the best first.

    This is the rule of transfer for every kind of calibration. The GPU's own file comes first, then those of its own
    generation of SMs, of a generation in `preferred`, of the same kind of tensor core, of the nearest generation, of
    the most similar DRAM bandwidth, and last the first by name. Of GPUs of another maker only the one that a spec names
    (`carried_from`) gives some, where those of its own maker have none.

    Args:
        root: the folder that has a folder for each calibrated GPU.
        pattern: of names of files, such as ``attention-trtllm.yaml``.
        preferred: generations of SMs whose coefficients carry better to this GPU than those of nearer ones.
        distance: of a calibrated GPU, where something else than its SMs decides; None: as above.
    """

    def of_sms(other: GpuSpec) -> tuple[float, ...]:
        theirs = chip_of(other)
        return (
            theirs.sm_arch != chip.sm_arch,
            preferred.index(theirs.sm_arch) if theirs.sm_arch in preferred else len(preferred),
            sum(own != part for own, part in zip(chip.tensor_core, theirs.tensor_core, strict=True)),
            abs(_generation(theirs.sm_arch) - _generation(chip.sm_arch)),
            abs(math.log(theirs.dram_gb_per_s / chip.dram_gb_per_s)),
        )

    def rank(path: Path) -> tuple[bool, tuple[float, ...], Path]:
        other = preset_named(path.parent.name)
        return path.parent.name != chip.name, (math.inf,) if other is None else (distance or of_sms)(other), path

    paths = list(root.glob(f"*/{pattern}"))
    own = [path for path in paths if _ladder_of_gpu(path.parent.name) == ladder_of(chip.sm_arch)]
    return sorted(own or (path for path in paths if path.parent.name == chip.carried_from), key=rank)


def _ladder_of_gpu(gpu: str) -> tuple[str, ...]:
    """Return the generations of the maker of a GPU that was timed, NVIDIA's where no preset has its name."""
    preset = preset_named(gpu)
    return SM_ARCHS if preset is None else ladder_of(preset.sm_arch)


def _generation(sm_arch: str) -> int:
    return ladder_of(sm_arch).index(sm_arch)


def is_other_maker(chip: Chip | GpuSpec, gpu: str) -> bool:
    """Return True if a GPU that was timed is of another maker than a chip."""
    return _ladder_of_gpu(gpu) != ladder_of(chip.sm_arch)


def to_chip(values: dict[str, float], chip: Chip, gpu: str) -> dict[str, float]:
    """Return coefficients fitted on a GPU as a chip takes them: as they are, or for a chip of another maker.

    Shares of the published DRAM bandwidth are then those of what a large read reaches, of which specs know.
    """
    preset = preset_named(gpu)
    if preset is None or not is_other_maker(chip, gpu):
        return values
    factor = chip.dram_efficiency_frac / preset.dram_efficiency_frac
    return {name: value * factor if name in _DRAM_FRACS else value for name, value in values.items()}


_DRAM_FRACS = ("dram_frac", "vector_frac")


def origin_of(fitted_on: str, date: str, library: str = "", *, is_own: bool) -> Origin:
    """Return the origin of coefficients of a calibration.

    Args:
        library: whose kernels it is of, where that is to be said.
        is_own: it is of the very GPU and library that take them; else they are carried over.
    """
    if is_own:
        return Origin(True, fitted_on, f"fitted on timings of {fitted_on} ({date})", library)
    source = f"{library} kernels on {fitted_on}" if library else fitted_on
    return Origin(False, fitted_on, f"carried over from {source}, not fitted on this GPU", library)


def checked_origin(arch: GpuSpec, origin: Origin) -> Origin:
    """Return the origin, no longer calibrated where the spec differs from the preset of its name."""
    if not origin.is_calibrated or is_preset(arch):
        return origin
    text = f"those of {arch.name}, whose spec was changed: not fitted on this GPU"
    return origin._replace(is_calibrated=False, text=text)


def calibration_path(gpu: str, library: str, family: str) -> Path:
    """Return the path of the calibration of a library's kernel family on a GPU, if there is one."""
    return data_root() / "calibration" / gpu / f"{library}-{family}.yaml"


def load_calibration(path: Path) -> Calibration:
    """Read the calibration file of a kernel family; see `CalibrationFile.load`."""
    return Calibration.load(path)


def transferred(kind: type[SingleCalibration], arch: GpuSpec, file_name: str) -> tuple[dict[str, float], Origin]:
    """Return all coefficients of a subject with one set of them on a GPU, and where they come from.

    A calibration of this GPU is taken as it is. Without one, that of the nearest GPU carries over (`nearest_first`);
    without any, defaults hold.

    Args:
        file_name: of its calibrations, in the folders of GPUs.
    """
    values, origin = _transferred(kind, data_root() / "calibration", chip_of(arch), file_name)
    return dict(values), checked_origin(arch, origin)


@cache
def _transferred(
    kind: type[SingleCalibration], root: Path, chip: Chip, file_name: str
) -> tuple[dict[str, float], Origin]:
    paths = nearest_first(root, chip, file_name)
    if not paths:
        return {item.name: item.default for item in kind.known}, Origin(False, None, "defaults, not fitted")
    nearest = kind.load(paths[0])
    values = to_chip(nearest.complete(), chip, nearest.gpu)
    return values, origin_of(nearest.gpu, nearest.date, is_own=nearest.gpu == chip.name)


def coefficients_for(arch: GpuSpec, library: str, family: str) -> tuple[dict[str, float], Origin]:
    """Return the coefficients of a library's kernel family on a GPU, and where they come from.

    A calibration of this GPU is taken as it is. Without one, that of the same library and family on the nearest GPU
    carries over (`nearest_first`), because coefficients belong to kernels and not to chips; without that, one of the
    same family in another library; without that, the defaults of the family hold. A spec that was changed keeps the
    coefficients of its name, but nothing was fitted on such a GPU. `ALL_OURS` has those of all its families.
    """
    if family == ALL_OURS:
        families = {name: coefficients_for(arch, library, name) for name in W4A16_FAMILIES}
        values = {f"{name}.{item}": of for name, (all_of, _) in families.items() for item, of in all_of.items()}
        return values, min((origin for _, origin in families.values()), key=lambda origin: origin.is_calibrated)
    coefficients, origin = _coefficients(data_root() / "calibration", chip_of(arch), library, family)
    return coefficients, checked_origin(arch, origin)


def corrected_as(family: str) -> str:
    """Return the family whose correction the kernels of a family have."""
    return ALL_OURS if FAMILIES[family].is_ours else family


def preset_of(arch: GpuSpec) -> GpuSpec | None:
    """Return the preset of a spec's name, which a changed spec was made of; None: there is none."""
    return preset_named(arch.name)


def preset_named(name: str) -> GpuSpec | None:
    """Return the GPU preset of a name, read once; None: there is none."""
    return _preset(data_root(), name)


@cached_by_arch
def is_preset(arch: GpuSpec) -> bool:
    """Return True if a spec is, apart from its words, the preset of its name."""
    preset = preset_of(arch)
    return preset is arch or (
        preset is not None
        and all(
            getattr(arch, name) == getattr(preset, name) for name in GpuSpec.model_fields if name not in _NOT_OF_GEMMS
        )
    )


@cache
def _preset(root: Path, name: str) -> GpuSpec | None:  # noqa: ARG001  another root has other presets
    try:
        return load_arch(name, GpuSpec)
    except ArchError:
        return None


@cache
def _coefficients(root: Path, chip: Chip, library: str, family: str) -> tuple[dict[str, float], Origin]:
    preferred = FAMILIES[family].carries_from.get(chip.sm_arch, ())
    patterns = f"{library}-{family}.yaml", f"*-{family}.yaml"
    if not FAMILIES[family].is_quantization:  # kernels of GEMMs are those of a maker
        chip = chip._replace(carried_from=None)
    paths = [path for pattern in patterns for path in nearest_first(root, chip, pattern, preferred)]
    if not paths:
        return default_coefficients(family), Origin(False, None, "defaults of the kernel family, not fitted")
    found = Calibration.load(paths[0])
    coefficients = found.complete()
    if found.library != library or not has_sibling_sms(chip, found.gpu):
        defaults = default_coefficients(family)
        coefficients.update({name: defaults[name] for name in defaults.keys() & {"choice_loss"}})  # another chooses
    if (cost := FAMILIES[family].tile_cost.get(chip.sm_arch)) and not has_sms_of(chip, found.gpu):
        coefficients.update({name: coefficients[name] * cost**power for name, power in _TILE_COSTS.items()})
    is_own = (found.gpu, found.library) == (chip.name, library)
    return coefficients, origin_of(found.gpu, found.date, found.library, is_own=is_own)


_TILE_COSTS = {"tile_cycles": 1, "coop_tile_cycles": 1, "pingpong_cycles": 1, "epilogue_bytes_per_cycle": -1}
"""Coefficients of what a tile takes outside its main loop, each with the power of that cost that it is in."""


def has_sms_of(arch: GpuSpec | Chip, gpu: str) -> bool:
    """Return True if a GPU is of the generation of SMs of a preset."""
    preset = preset_named(gpu)
    return preset is not None and preset.sm_arch == arch.sm_arch


def has_sibling_sms(arch: GpuSpec | Chip, gpu: str) -> bool:
    """Return True if a GPU is of the generation of SMs of a preset, or of sm_103 beside sm_100.

    sm_80 and sm_89 differ in too much for that.
    """
    preset = preset_named(gpu)
    siblings = [name for name in SM_ARCHS if name[:-1] == arch.sm_arch[:-1] and len(name) > len("sm_80")]
    return preset is not None and preset.sm_arch in (arch.sm_arch, *siblings)


def calibration_stamp(arch: GpuSpec) -> str:
    """Return a digest of all coefficients and corrections that can decide a cost on this GPU."""
    return _stamp(data_root() / "calibration", chip_of(arch))


@cache
def _stamp(root: Path, chip: Chip) -> str:
    digest = hashlib.sha256()
    for library in LIBRARIES:
        is_ours = library == OURS
        families = (name for name, of in FAMILIES.items() if chip.sm_arch in of.sm_archs and of.is_ours == is_ours)
        for family in families:
            coefficients, origin = _coefficients(root, chip, library, family)
            digest.update(repr((library, family, sorted(coefficients.items()), origin.is_calibrated)).encode())
    for path in sorted((root / chip.name / "corrections").glob("*.*")):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]
