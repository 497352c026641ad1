"""One line of the file of best configs: for which GEMM, which config, how fast, and what it holds for."""

from __future__ import annotations

import enum
import hashlib
import json
import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from typing import Any, NamedTuple

from gemm_eval.arch import MEASURED_L2_STATES, DeviceLimits
from gemm_eval.checks import check_word, plain_integer
from gemm_eval.device import COMPILE_OPTIONS
from gemm_eval.dtypes import DType
from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.kernels import build
from gemm_eval.kernels.families import Sizes, Variant, WeightMode, family_of
from gemm_eval.kernels.layout import parse_activation, parse_group_size, parse_mode
from gemm_eval.kernels.registry import check_kernel, make_variant
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder, Schedule
from gemm_eval.words import shown
from gemm_eval.workload import MAX_DIM

__all__ = ["FOUND_BY", "L2_STATES", "ConfigKey", "ConfigRecord", "kernel_hash_of", "why_void"]

FOUND_BY = ("all", "top_k", "model")
"""How a config was found: all legal ones were timed, some were, or a model estimated the time."""

L2_STATES = MEASURED_L2_STATES

_HASH_DIGITS = 16
_HASH_FORMAT = 1
_REMEMBERED = 4096
_ENUMS: dict[str, type[enum.IntEnum]] = {
    "schedule": Schedule, "decomposition": Decomposition, "raster_order": RasterOrder,
}  # fmt: skip


class ConfigKey(NamedTuple):
    """What a config is best for.

    Attributes:
        gpu: preset of the GPU, such as "h200-sxm".
        M, K, N: sizes, in elements.
        activation: DType.FP16 or DType.BF16.
        mode: of the weights.
        group_size: weights along K that share a scale; 0 in mode COLUMN.
        l2: "cold": weights come from DRAM; "warm": what fits is in L2.
    """

    gpu: str
    M: int
    K: int
    N: int
    activation: DType
    mode: WeightMode
    group_size: int
    l2: str

    @property
    def sizes(self) -> Sizes:
        """M, K and N."""
        return Sizes(self.M, self.K, self.N)

    @classmethod
    def of(
        cls,
        gpu: str,
        sizes: Sizes,
        activation: DType | str = DType.FP16,
        mode: WeightMode | str = WeightMode.GROUP,
        group_size: int | None = None,
        l2: str = "cold",
    ) -> ConfigKey:
        """A key from what callers give: names for enums; group size None: 128, or 0 in mode COLUMN.

        Raises:
            InvalidInputError: a value that there is not.
        """
        mode = parse_mode(mode)
        group_size = parse_group_size(None if plain_integer(group_size) == 0 else group_size, mode)
        if not isinstance(gpu, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", gpu):
            raise InvalidOptionError(f"gpu must be the name of a preset, such as h200-sxm, got {shown(gpu)}")
        if not isinstance(sizes, Sizes) or not all(type(size) is int and 1 <= size <= MAX_DIM for size in sizes):
            raise InvalidOptionError(f"sizes must be M, K and N, integers in 1..2**40, got {shown(sizes)}")
        check_word("l2", l2, L2_STATES)
        return cls(gpu, *sizes, parse_activation(activation), mode, group_size, l2)


@dataclass(frozen=True)
class ConfigRecord:
    """The best config known for one GEMM.

    Attributes:
        key: the GEMM and the GPU.
        config: the kernel and how it is launched.
        latency_us: device time of one GEMM: measured, or estimated if `found_by` is "model".
        found_by: one of `FOUND_BY`.
        num_timed: configs that were timed for this GEMM (the k of "top_k"); 0 if `found_by` is "model".
        driver: version of the GPU's driver, such as "580.159.04".
        compiler: of NVRTC, as `compiler_version` gives it.
        kernel_hash: as `kernel_hash_of` gave it when the config was found.
        date: ISO 8601, such as "2026-11-21".

    Raises:
        InvalidOptionError: a field that cannot be.
    """

    key: ConfigKey
    config: KernelConfig
    latency_us: float
    found_by: str
    num_timed: int
    driver: str
    compiler: str
    kernel_hash: str
    date: str

    def __post_init__(self) -> None:
        if not isinstance(self.latency_us, float) or not 0 < self.latency_us < math.inf:
            raise InvalidOptionError(f"latency_us must be a finite float > 0, got {shown(self.latency_us)}")
        check_word("found_by", self.found_by, FOUND_BY)
        if type(self.num_timed) is not int or self.num_timed < 0 or (self.num_timed == 0) is self.is_measured:
            raise InvalidOptionError(f"num_timed must be >= 1, or 0 if found_by is model, got {shown(self.num_timed)}")
        for name in ("driver", "compiler", "kernel_hash", "date"):
            if not isinstance(getattr(self, name), str):
                raise InvalidOptionError(f"{name} must be a text, got {shown(getattr(self, name))}")
        if not re.fullmatch(rf"[0-9a-f]{{{_HASH_DIGITS}}}", self.kernel_hash):
            raise InvalidOptionError(f"kernel_hash must be {_HASH_DIGITS} hex digits, got {shown(self.kernel_hash)}")
        try:
            date.fromisoformat(self.date)
        except ValueError:
            raise InvalidOptionError(f"date must be as 2026-11-21, got {shown(self.date)}") from None

    def __repr__(self) -> str:
        key = self.key
        gemm = f"M={key.M} K={key.K} N={key.N} {key.activation} {key.mode.name.lower()} {key.group_size} {key.l2}"
        return f"<ConfigRecord {gemm} on {key.gpu}: {self.latency_us:.4g} us ({self.found_by}), {self.config!r}>"

    @property
    def is_measured(self) -> bool:
        """Whether `latency_us` is of a device, not of a model."""
        return self.found_by != "model"

    @property
    def variant(self) -> Variant:
        """What the kernel is compiled for."""
        return make_variant(self.config, self.key.activation, self.key.mode, self.key.group_size or None)

    def order(self) -> tuple[Any, ...]:
        """A total order: measured before estimated, faster before slower, later before earlier; then by content."""
        return not self.is_measured, self.latency_us, -date.fromisoformat(self.date).toordinal(), self.to_line()

    def to_line(self) -> str:
        """One line of JSON, always the same for the same record."""
        return json.dumps(self.to_json(), allow_nan=False)

    def to_json(self) -> dict[str, Any]:
        """All fields by name, enums in small letters."""
        key, config = self.key._asdict(), self.config._asdict()
        key |= {"activation": str(self.key.activation), "mode": self.key.mode.name.lower()}
        config |= {name: config[name].name.lower() for name in _ENUMS}
        names = ("latency_us", "found_by", "num_timed", "driver", "compiler", "kernel_hash", "date")
        return key | {name: getattr(self, name) for name in names} | {"config": config}

    @classmethod
    def from_json(cls, fields: Any) -> ConfigRecord:
        """What `to_json` made.

        Raises:
            InvalidInputError: fields are missing, unknown, or hold what they cannot.
        """
        rest = _object(fields, "a record")
        gemm = {name: _taken(rest, name) for name in ConfigKey._fields}
        sizes = Sizes(*(gemm.pop(name) for name in Sizes._fields))
        config = config_from_json(_taken(rest, "config"))
        group_size = gemm["group_size"]
        if type(group_size) is not int or (group_size == 0) is not (gemm["mode"] == "column"):
            raise InvalidOptionError(f"group_size must be 32, 64 or 128, or 0 in mode column, got {shown(group_size)}")
        names = [name for name in cls.__dataclass_fields__ if name not in {"key", "config"}]
        values = {name: _taken(rest, name) for name in names}
        if rest:
            raise InvalidOptionError(f"a record has no field {', '.join(sorted(rest))}")
        latency_us = values["latency_us"]
        if type(latency_us) is int and latency_us.bit_length() < sys.float_info.max_exp:  # a person writes 5 for 5.0
            values["latency_us"] = float(latency_us)
        return cls(ConfigKey.of(sizes=sizes, **gemm), config, **values)


def config_from_json(fields: Any) -> KernelConfig:
    """Return the config of a record or of a row of timings: enums are names in small letters.

    Raises:
        InvalidOptionError: fields are missing, unknown, or hold what they cannot.
    """
    rest = _object(fields, "config")
    values = {name: _taken(rest, name) for name in KernelConfig._fields}
    if rest:
        raise InvalidOptionError(f"config has no field {', '.join(sorted(rest))}")
    for name, value in values.items():
        if name in _ENUMS:
            members = _ENUMS[name].__members__
            if not isinstance(value, str) or not value.islower() or value.upper() not in members:
                raise InvalidOptionError(
                    f"config.{name} must be one of {', '.join(members).lower()}, got {shown(value)}"
                )
            values[name] = members[value.upper()]
        elif type(value) is not (str if name == "family" else int):
            raise InvalidOptionError(
                f"config.{name} must be {'a text' if name == 'family' else 'int'}, got {shown(value)}"
            )
    return KernelConfig(**values)


def kernel_hash_of(variant: Variant, limits: DeviceLimits | str) -> str:
    """Return a digest of all of ours that decides about a kernel: its CUDA text, macros, options and target.

    Compiles nothing, and knows nothing of the compiler; how K is cut does not matter.

    Args:
        variant: the kernel.
        limits: of the GPU, or the target itself, such as "sm_90a".

    Raises:
        InvalidMappingError: there is no such family.
        UnsupportedError: the family has no kernels for that GPU.
    """
    family = family_of(variant.config)
    target = limits if isinstance(limits, str) else build.target_of(family, limits.compute_capability)
    config = family_of(variant.config).compiled(variant.config)
    return _hash_of(variant._replace(config=config), target)


@lru_cache(maxsize=_REMEMBERED)
def _hash_of(variant: Variant, target: str) -> str:
    family = family_of(variant.config)
    macros = sorted((variant.macros() | family.macros(variant)).items())
    text = build.text_of(family, variant)
    content = json.dumps([_HASH_FORMAT, family.entry, COMPILE_OPTIONS, target, macros, text])
    return hashlib.sha256(content.encode()).hexdigest()[:_HASH_DIGITS]


@lru_cache(maxsize=_REMEMBERED)
def why_void(record: ConfigRecord, limits: DeviceLimits) -> str | None:
    """Return why a record says nothing about the kernels of today on such a GPU, or None."""
    try:
        check_kernel(record.variant, record.key.sizes, limits)
        current = kernel_hash_of(record.variant, limits)
    except GemmEvalError as error:
        return str(error)
    if current != record.kernel_hash:
        return f"its kernel has changed since (kernel_hash {record.kernel_hash}, now {current})"
    return None


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise InvalidOptionError(f"{what} must be a JSON object, got {type(value).__name__}")
    return dict(value)


def _taken(fields: dict[str, Any], name: str) -> Any:
    if name not in fields:
        raise InvalidOptionError(f"field {name} is missing")
    return fields.pop(name)
