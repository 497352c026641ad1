"""Records of the best configs of GEMMs, and the file that holds them."""

from __future__ import annotations

import contextlib
import enum
import hashlib
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from gemm_eval.arch import MEASURED_L2_STATES, DeviceLimits
from gemm_eval.device import COMPILE_OPTIONS
from gemm_eval.dtypes import DType
from gemm_eval.errors import GemmEvalError, InvalidInputError, InvalidOptionError
from gemm_eval.kernels import registry
from gemm_eval.kernels.families import Sizes, Variant, WeightMode, family_of
from gemm_eval.kernels.layout import parse_activation, parse_group_size, parse_mode
from gemm_eval.kernels.registry import check_kernel, make_variant
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder, Schedule
from gemm_eval.storage import FileLock, read_bounded
from gemm_eval.words import check_word, one_line, plain_integer, shown
from gemm_eval.workload import MAX_DIM

FOUND_BY = ("all", "top_k")
"""How a config was found: all legal ones were timed, or some were."""

_HASH_DIGITS = 16
_HASH_FORMAT = 1
_REMEMBERED = 4096
_ENUMS: dict[str, type[enum.IntEnum]] = {
    "schedule": Schedule, "decomposition": Decomposition, "raster_order": RasterOrder,
}  # fmt: skip


class ConfigKey(NamedTuple):
    """A GEMM on a GPU (a preset), with weights from DRAM (`l2` cold) or from L2 (warm); group_size 0: COLUMN."""

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

    def __str__(self) -> str:
        weights = f"{self.activation} {self.mode.name.lower()} {self.group_size} {self.l2}"
        return f"{self.gpu} M={self.M} K={self.K} N={self.N} {weights}"

    def variant_of(self, config: KernelConfig) -> Variant:
        """Return what a kernel for this GEMM is compiled for."""
        return make_variant(config, self.activation, self.mode, self.group_size or None)

    @classmethod
    def of(
        cls, gpu: str, sizes: Sizes, activation: DType | str = DType.FP16, mode: WeightMode | str = WeightMode.GROUP,
        group_size: int | None = None, l2: str = "cold",
    ) -> ConfigKey:  # fmt: skip
        """Return the key of what callers give, enums by name or not; group size None: 128, or 0 in mode COLUMN."""
        mode = parse_mode(mode)
        group_size = parse_group_size(None if plain_integer(group_size) == 0 else group_size, mode)
        if not isinstance(gpu, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", gpu):
            raise InvalidOptionError(f"gpu must be the name of a preset, such as h200-sxm, got {shown(gpu)}")
        if not isinstance(sizes, Sizes) or not all(type(size) is int and 1 <= size <= MAX_DIM for size in sizes):
            raise InvalidOptionError(f"sizes must be M, K and N, integers in 1..2**40, got {shown(sizes)}")
        check_word("l2", l2, MEASURED_L2_STATES)
        return cls(gpu, *sizes, parse_activation(activation), mode, group_size, l2)


@dataclass(frozen=True)
class ConfigRecord:
    """The best config known for one GEMM.

    Attributes:
        latency_us: device time of one GEMM.
        found_by: one of `FOUND_BY`.
        num_timed: configs that were timed for this GEMM (the k of "top_k").
        driver: version of the GPU's driver, such as "580.159.04".
        compiler: of NVRTC, as `compiler_version` gives it.
        kernel_hash: as `kernel_hash_of` gave it when the config was found.
        date: ISO 8601, such as "2026-11-21".
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
        if type(self.num_timed) is not int or self.num_timed < 1:
            raise InvalidOptionError(f"num_timed must be an integer >= 1, got {shown(self.num_timed)}")
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
        gpu, _, gemm = str(self.key).partition(" ")
        return f"<ConfigRecord {gemm} on {gpu}: {self.latency_us:.4g} us ({self.found_by}), {self.config!r}>"

    def order(self) -> tuple[Any, ...]:
        """Return a total order: faster before slower, later before earlier; then by content."""
        return self.latency_us, -date.fromisoformat(self.date).toordinal(), self.to_line()

    def to_line(self) -> str:
        """Return a line of JSON, always the same for the same record."""
        return json.dumps(self.to_json(), allow_nan=False)

    def to_json(self) -> dict[str, Any]:
        """All fields by name, enums in small letters."""
        key, config = self.key._asdict(), self.config._asdict()
        key |= {"activation": str(self.key.activation), "mode": self.key.mode.name.lower()}
        config |= {name: config[name].name.lower() for name in _ENUMS}
        return key | {name: getattr(self, name) for name in _FACTS} | {"config": config}

    @classmethod
    def from_json(cls, fields: Any) -> ConfigRecord:
        """Return the record that `to_json` made JSON of; fields that are missing, unknown or wrong are refused."""
        values = _fields_of(fields, "a record", (*ConfigKey._fields, "config", *_FACTS))
        mode, group_size, latency_us = (values[name] for name in ("mode", "group_size", "latency_us"))
        if type(group_size) is not int or (group_size == 0) is not (mode == "column"):
            raise InvalidOptionError(f"group_size must be 32, 64 or 128, or 0 in mode column, got {shown(group_size)}")
        if type(latency_us) is int and latency_us.bit_length() < sys.float_info.max_exp:  # a person writes 5 for 5.0
            values["latency_us"] = float(latency_us)
        sizes = Sizes(values["M"], values["K"], values["N"])
        key = ConfigKey.of(values["gpu"], sizes, values["activation"], mode, group_size, values["l2"])
        return cls(key, config_from_json(values["config"]), **{name: values[name] for name in _FACTS})


_FACTS = tuple(ConfigRecord.__dataclass_fields__)[2:]


def config_from_json(fields: Any) -> KernelConfig:
    """Return the config of a record or of a row of timings: enums are names in small letters."""
    values = _fields_of(fields, "config", KernelConfig._fields)
    for name, value in values.items():
        if name in _ENUMS:
            members = _ENUMS[name].__members__
            check_word(f"config.{name}", value, [member.lower() for member in members])
            values[name] = members[value.upper()]
        elif type(value) is not (str if name == "family" else int):
            kind = "a text" if name == "family" else "int"
            raise InvalidOptionError(f"config.{name} must be {kind}, got {shown(value)}")
    return KernelConfig(**values)


def _fields_of(value: Any, what: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a JSON object that has these, and no others."""
    if not isinstance(value, Mapping):
        raise InvalidOptionError(f"{what} must be a JSON object, got {type(value).__name__}")
    for name in names:
        if name not in value:
            raise InvalidOptionError(f"field {name} is missing")
    if len(value) > len(names):
        raise InvalidOptionError(f"{what} has no field {', '.join(sorted(map(str, value.keys() - set(names))))}")
    return dict(value)


def kernel_hash_of(variant: Variant, limits: DeviceLimits | str) -> str:
    """Return a digest of all of ours that decides about a kernel: its CUDA text, macros, options and target.

    Nothing is compiled, and the compiler does not count; how K is cut does not matter. `limits` may be the target
    itself, such as "sm_90a".
    """
    family = family_of(variant.config)
    target = limits if isinstance(limits, str) else registry.target_of(family, limits.compute_capability)
    return _hash_of(variant._replace(config=family.compiled(variant.config)), target)


@lru_cache(maxsize=_REMEMBERED)
def _hash_of(variant: Variant, target: str) -> str:
    family = family_of(variant.config)
    macros = sorted((variant.macros() | family.macros(variant)).items())
    text = registry.text_of(family, variant)
    content = json.dumps([_HASH_FORMAT, family.entry, COMPILE_OPTIONS, target, macros, text])
    return hashlib.sha256(content.encode()).hexdigest()[:_HASH_DIGITS]


@lru_cache(maxsize=_REMEMBERED)
def why_void(record: ConfigRecord, limits: DeviceLimits) -> str | None:
    """Return why a record says nothing about the kernels of today on such a GPU, or None."""
    try:
        variant = record.key.variant_of(record.config)
        check_kernel(variant, record.key.sizes, limits)
        current = kernel_hash_of(variant, limits)
    except GemmEvalError as error:
        return str(error)
    if current != record.kernel_hash:
        return f"its kernel has changed since (kernel_hash {record.kernel_hash}, now {current})"
    return None


_FORMAT = "gemm-eval w4a16 configs"
_VERSION = 1
_LOCK_TIMEOUT_S = 30.0
_MAX_FILE_BYTES = 1 << 23  # some 20,000 GEMMs
_MAX_RECORDS = 100_000
_MAX_TOLD_CHARS = 300


Content = tuple[tuple[ConfigRecord, ...], str | None]
"""The readable records of a file, and its faults."""


def to_text(records: Sequence[ConfigRecord]) -> str:
    """Return a JSON document with a line for each record, in ASCII."""
    head = f'{{\n"format": {json.dumps(_FORMAT)},\n"version": {_VERSION},\n"records": ['
    text = head + ",".join(f"\n{record.to_line()}" for record in records) + "\n]\n}\n"
    if len(text) > _MAX_FILE_BYTES:
        raise GemmEvalError(
            f"{len(records):,} configs take {len(text):,} bytes, and a file may have {_MAX_FILE_BYTES:,} at most: "
            "keep fewer GEMMs in one file"
        )
    return text


def read_content(path: Path) -> Content | None:
    """Read a file; None: there is none."""
    try:
        raw = read_bounded(path, _MAX_FILE_BYTES, "file of configs", unreadable=GemmEvalError, too_large=GemmEvalError)
    except GemmEvalError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
    try:
        document = json.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        return (), f"it is no JSON document ({one_line(str(error))})"
    if not isinstance(document, dict) or document.get("format") != _FORMAT or type(document.get("version")) is not int:
        return (), f'it has no "format": "{_FORMAT}" and "version"'
    if document["version"] > _VERSION:
        raise GemmEvalError(
            f"{path} has version {shown(document['version'])}, and this gemm_eval reads {_VERSION} at most: "
            "update gemm_eval, or move the file away"
        )
    records, damages = [], []
    lines = document.get("records")
    if isinstance(lines, list) and len(lines) > _MAX_RECORDS:
        return (), f"it has {len(lines):,} records, more than {_MAX_RECORDS:,}"
    for number, fields in enumerate(lines if isinstance(lines, list) else (), 1):
        try:
            records.append(ConfigRecord.from_json(fields))
        except InvalidInputError as error:
            damages.append(f"record {number}: {one_line(str(error), _MAX_TOLD_CHARS)}")
    if not isinstance(lines, list) or document["version"] < 1:
        damages.append(f"it has no list of records in version {_VERSION}")
    more = f", and {len(damages) - 1} more" if len(damages) > 1 else ""
    return tuple(records), f"{damages[0]}{more}" if damages else None


@contextlib.contextmanager
def lock(path: Path, timeout_s: float = _LOCK_TIMEOUT_S) -> Iterator[None]:
    """Be the only process and thread that changes the file at `path`, if its file system has locks."""
    lock_path = path.with_name(path.name + ".lock")
    held = FileLock(lock_path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        is_ours = held.acquire(timeout_s=timeout_s)
    except OSError as error:
        raise GemmEvalError(f"cannot write {lock_path}: {error}") from error
    if not is_ours:
        raise GemmEvalError(f"other processes hold {lock_path} for more than {timeout_s:g} s")
    try:
        yield
    finally:
        held.release()
