"""The best configs of GEMMs: a JSON file that people can read, and that processes and machines can merge.

A record holds for one GPU and for the source of its kernel: with another it is ignored, and that is noted. With another
driver or compiler it is used, with a warning, where there is none of the present ones. Files of other versions of the
kernels may be merged: a record that is void for one version stays for the other.
"""

from __future__ import annotations

import logging
import math
import re
import subprocess
import warnings
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gemm_eval.arch import DeviceLimits, data_root
from gemm_eval.device import compiler_version
from gemm_eval.errors import GemmEvalError, InvalidProblemError
from gemm_eval.kernels.config_records import (
    ConfigKey,
    ConfigRecord,
    config_from_json,
    kernel_hash_of,
    lock,
    read_content,
    to_text,
    why_void,
)
from gemm_eval.kernels.families import Sizes
from gemm_eval.kernels.plan import limits_of
from gemm_eval.kernels.registry import legal_configs
from gemm_eval.mapping import KernelConfig
from gemm_eval.storage import cache_dir, set_aside, write_text

if TYPE_CHECKING:
    import pandas as pd


_log = logging.getLogger(__name__)
_noted: set[tuple[Path | None, ConfigRecord, str]] = set()
_warned: set[tuple[Path | None, Versions, Versions]] = set()


class ConfigVersionWarning(UserWarning):
    """A config was used that was found with another driver or compiler: it runs, but another may be faster now."""


class Versions(NamedTuple):
    """Versions that the time of a kernel depends on. None: not known, and not compared."""

    driver: str | None = None
    compiler: str | None = None

    def fit(self, record: ConfigRecord) -> bool:
        """Say whether `record` was found with these versions, as far as they are known."""
        return self.driver in {None, record.driver} and self.compiler in {None, record.compiler}


ANY_VERSIONS: Versions = Versions()


class ConfigCache:
    """Records of best configs: at most one for each GEMM, GPU and kernel. `path` is for notes and warnings."""

    def __init__(self, records: Iterable[ConfigRecord] = (), path: Path | None = None) -> None:
        self.path = path
        self._by_gemm: dict[ConfigKey, dict[tuple[str, str], ConfigRecord]] = {}
        for record in records:
            old = self._by_gemm.get(record.key._replace(gpu=""), {}).get((record.key.gpu, record.kernel_hash))
            if old is None or record.order() < old.order():
                self.put(record)

    def __len__(self) -> int:
        return sum(map(len, self._by_gemm.values()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConfigCache) and self.records == other.records

    __hash__ = None  # type: ignore[assignment]  # records come and go

    @property
    def records(self) -> list[ConfigRecord]:
        """All records, in the order of the file: by GPU, N, K, M and weights."""
        result = [record for records in self._by_gemm.values() for record in records.values()]
        return sorted(result, key=lambda record: (_order(record.key), record.order()))

    def put(self, record: ConfigRecord) -> None:
        """Add a record; it replaces that of the same GEMM, GPU and kernel."""
        self._by_gemm.setdefault(record.key._replace(gpu=""), {})[record.key.gpu, record.kernel_hash] = record

    def merge(self, other: ConfigCache) -> ConfigCache:
        """Return a new cache with the records of both; of the same GEMM, GPU and kernel the faster, then the later."""
        return ConfigCache((*self.records, *other.records), self.path)

    def find(
        self, key: ConfigKey, limits: DeviceLimits | None = None, versions: Versions = ANY_VERSIONS
    ) -> ConfigRecord | None:
        """Return the best record for a GEMM (`limits` None: its preset's), of these versions first, then fast."""
        records = self._by_gemm.get(key._replace(gpu=""))
        if not records:
            return None
        limits = limits_of_preset(key.gpu) if limits is None else limits
        valid = []
        for (gpu, _), record in records.items():
            void = why_void(record, limits) if gpu == key.gpu else f"it is of {gpu}, not {key.gpu}"
            if void is None:
                valid.append(record)
            else:
                self._note(record, void)
        if not valid:
            return None
        best = min(valid, key=lambda record: (not versions.fit(record), record.order()))
        if not versions.fit(best):
            self._warn_of_versions(best, versions)
        return best

    def _note(self, record: ConfigRecord, void: str) -> None:
        if (note := (self.path, record, void)) not in _noted:
            _noted.add(note)
            _log.info("%s: ignored the config for %s: %s", self.path or "configs", record.key, void)

    def _warn_of_versions(self, record: ConfigRecord, versions: Versions) -> None:
        warning = self.path, Versions(record.driver, record.compiler), versions
        if warning in _warned:
            return
        _warned.add(warning)
        warnings.warn(
            f"{self.path or 'configs'}: found with driver {record.driver} and NVRTC {record.compiler}, used with "
            f"driver {versions.driver or record.driver} and NVRTC {versions.compiler or record.compiler}; other "
            "configs may be faster now: profile again to know",
            ConfigVersionWarning,
            stacklevel=3,
        )

    @classmethod
    def load(cls, path: Path, *, is_read_only: bool = False) -> ConfigCache:
        """Read a file; none is an empty cache.

        A damaged file is set aside as ``<name>.damaged-<n>`` with a RuntimeWarning, and a new one is started with the
        records that could be read; `is_read_only`: it is refused instead, as one of a newer version always is.
        """
        records, damage = read_content(path) or ((), None)
        if damage is None:
            return cls(records, path)
        if is_read_only:
            raise GemmEvalError(f"{path} is damaged: {damage}")
        with lock(path):
            return cls._load_locked(path)

    @classmethod
    def _load_locked(cls, path: Path) -> ConfigCache:
        """Only under the lock: another process may have mended the file meanwhile."""
        records, damage = read_content(path) or ((), None)
        result = cls(records, path)
        if damage is not None:
            try:
                aside = set_aside(path)
            except OSError as error:
                raise GemmEvalError(f"cannot set {path} aside: {error}") from error
            result.save(path)
            warnings.warn(
                f"{path} is damaged: {damage}; it was set aside as {aside.name}, and a new one is started with "
                f"{len(result)} records",
                RuntimeWarning,
                stacklevel=3,
            )
        return result

    def save(self, path: Path) -> None:
        """Replace a file, as a whole: same records, same bytes."""
        write_text(path, to_text(self.records))


def change_file(path: Path, change: Callable[[ConfigCache], ConfigCache]) -> ConfigCache:
    """Replace what a file holds by `change` of it, and return that: processes that do so at once lose nothing."""
    with lock(path):
        result = ConfigCache._load_locked(path)
        changed = change(ConfigCache(result.records, path))
        if changed != result or not path.exists():
            changed.save(path)
        return changed


def _order(key: ConfigKey) -> tuple[object, ...]:
    return key.gpu, key.N, key.K, key.M, key.activation, key.mode, key.group_size, key.l2


limits_of_preset = cache(limits_of)


_GEMM = ("M", "K", "N", "input_dtype", "mode", "group_size", "l2")
_PER_COLUMN = -1  # what data sets call one scale a column
_DIGITS = 3  # nanoseconds, for readers; replays differ by more


def build_from_timings(table: pd.DataFrame, meta: Mapping[str, Any], gpu: str) -> ConfigCache:
    """Return the fastest config of each GEMM that was timed, of those that kernels of today have.

    `table` has the columns of data sets in arch/measured/<gpu>/w4a16, `meta` is what the .meta.yaml beside it says.
    """
    columns = [*_GEMM, *KernelConfig._fields, "latency_us"]
    if missing := set(columns) - set(table.columns):
        raise InvalidProblemError(f"timings of kernels must have the columns {', '.join(sorted(missing))}")
    try:
        facts = {
            "driver": str(meta["gpu"]["driver_version"]), "compiler": str(meta["runner"]["compiler"]),
            "date": max(str(state["time"]) for state in meta["gpu_states"])[: len("2026-11-21")],
        }  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidProblemError(
            f"the meta file of timings must say gpu.driver_version, runner.compiler and gpu_states: {error!r}"
        ) from None
    limits = limits_of(gpu)
    times: dict[ConfigKey, dict[KernelConfig, float]] = {}
    for row in table[columns].itertuples(index=False):
        M, K, N, activation, mode, group_size, l2, *values, latency_us = row
        if math.isfinite(latency_us) and latency_us > 0:
            group = None if group_size == _PER_COLUMN else int(group_size)
            key = ConfigKey.of(gpu, Sizes(int(M), int(K), int(N)), activation, mode, group, l2)
            plain = (value if isinstance(value, str) else int(value) for value in values)
            config = config_from_json(dict(zip(KernelConfig._fields, plain, strict=True)))
            of_gemm = times.setdefault(key, {})
            of_gemm[config] = min(float(latency_us), of_gemm.get(config, math.inf))
    records = (_fastest(key, of_gemm, limits, facts) for key, of_gemm in times.items())
    return ConfigCache(record for record in records if record is not None)


def _fastest(
    key: ConfigKey, times: Mapping[KernelConfig, float], limits: DeviceLimits, facts: Mapping[str, str]
) -> ConfigRecord | None:
    """Return the record of a GEMM, or None where none of its configs exists any more."""
    try:
        legal = set(legal_configs(key.sizes, limits, key.activation, key.mode, key.group_size or None))
    except GemmEvalError as error:
        raise InvalidProblemError(f"{key}: {error}") from error
    timed = {config: latency_us for config, latency_us in times.items() if config in legal}
    if not timed:
        return None
    config = min(timed, key=lambda config: (timed[config], config))
    return ConfigRecord(
        key=key, config=config, latency_us=max(round(timed[config], _DIGITS), 10.0**-_DIGITS),
        found_by="all" if len(timed) == len(legal) else "top_k", num_timed=len(timed),
        kernel_hash=kernel_hash_of(key.variant_of(config), limits), **facts,
    )  # fmt: skip


_USER_NAME = "w4a16-configs.json"
_DRIVER_FILE = Path("/proc/driver/nvidia/version")
_SMI = ("nvidia-smi", "-i", "0", "--query-gpu=driver_version", "--format=csv,noheader")

_loaded: dict[Path, tuple[tuple[int, ...], ConfigCache]] = {}


def user_path() -> Path | None:
    """Return the file of what this user's GPUs were found to do best; None: caching is turned off."""
    folder = cache_dir()
    return None if folder is None else folder / _USER_NAME


def shipped_path(gpu: str) -> Path:
    """Return the path of the file that comes with the library for a GPU, if there is one. It is never written."""
    return data_root() / "measured" / gpu / "w4a16" / "configs.json"


def lookup(
    key: ConfigKey, limits: DeviceLimits | None = None, versions: Versions = ANY_VERSIONS
) -> ConfigRecord | None:
    """Return the record for a GEMM: of the user's file, else of the library's.

    Files are read again when they have changed. One that cannot be used is a RuntimeWarning and counts as empty.
    """
    for path, is_read_only in ((user_path(), False), (shipped_path(key.gpu), True)):
        result = None if path is None else _current(path, is_read_only).find(key, limits, versions)
        if result is not None:
            return result
    return None


def remember(record: ConfigRecord) -> None:
    """Put a record into the user's file, if there is one, for an older one; a RuntimeWarning if that fails."""
    path = user_path()
    if path is None:
        return

    def put(records: ConfigCache) -> ConfigCache:
        records.put(record)
        return records

    try:
        change_file(path, put)
    except GemmEvalError as error:
        warnings.warn(f"a config was not kept: {error}", RuntimeWarning, stacklevel=2)


def _current(path: Path, is_read_only: bool) -> ConfigCache:
    try:
        stat = path.stat()
        state: tuple[int, ...] = stat.st_mtime_ns, stat.st_size, stat.st_ino
    except OSError:
        state = ()
    known = _loaded.get(path)
    if known is not None and known[0] == state:
        return known[1]
    result = ConfigCache(path=path)
    if state:
        try:
            result = ConfigCache.load(path, is_read_only=is_read_only)
        except GemmEvalError as error:
            warnings.warn(f"configs are not used: {error}", RuntimeWarning, stacklevel=3)
    _loaded[path] = state, result
    return result


def new_record(
    key: ConfigKey, config: KernelConfig, latency_us: float, found_by: str, num_timed: int, limits: DeviceLimits
) -> ConfigRecord:
    """Return the record of what was found today on this machine, whose GPU has `limits`."""
    return ConfigRecord(
        key=key, config=config, latency_us=float(latency_us), found_by=found_by, num_timed=num_timed,
        driver=driver_version() or "unknown", compiler=compiler_version(), date=datetime.now(UTC).date().isoformat(),
        kernel_hash=kernel_hash_of(key.variant_of(config), limits),
    )  # fmt: skip


def present_versions() -> Versions:
    """Return the versions of this machine, for `lookup`."""
    return Versions(driver_version(), compiler_version())


@cache
def driver_version() -> str | None:
    """Version of the driver of this machine's NVIDIA GPUs, such as "580.159.04"; None: not known."""
    try:
        text = _DRIVER_FILE.read_text("utf-8", "replace")
    except OSError:  # not Linux, or a container without it
        try:
            text = subprocess.run(_SMI, capture_output=True, text=True, check=True, timeout=20).stdout
        except (OSError, subprocess.SubprocessError):
            return None
    match = re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", text)
    return match[0] if match else None
