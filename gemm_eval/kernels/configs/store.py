"""The cache of best configs in memory: what joins, what holds, what is noted; and its file."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from gemm_eval.arch import DeviceLimits
from gemm_eval.errors import GemmEvalError
from gemm_eval.kernels.configs.file import lock, read_content, set_aside, to_text
from gemm_eval.kernels.configs.record import ConfigKey, ConfigRecord, why_void
from gemm_eval.storage import write_text

__all__ = ["ANY_VERSIONS", "ConfigCache", "ConfigVersionWarning", "Versions", "change_file", "limits_of_preset"]

_MAX_ANSWERS = 4096  # remembered by a cache

_log = logging.getLogger(__name__)
_noted: set[tuple[Path | None, ConfigRecord, str]] = set()
_warned: set[tuple[Path | None, Versions, Versions]] = set()


class ConfigVersionWarning(UserWarning):
    """A config was used that was found with another driver or compiler: it runs, but another may be faster now."""


class Versions(NamedTuple):
    """What the time of a kernel depends on besides the kernel. None: not known, and not compared.

    Attributes:
        driver: as `driver_version` gives it.
        compiler: as `gemm_eval.kernels.build.compiler_version` gives it.
    """

    driver: str | None = None
    compiler: str | None = None

    def fit(self, record: ConfigRecord) -> bool:
        """Whether `record` was found with these versions, as far as they are known."""
        return self.driver in {None, record.driver} and self.compiler in {None, record.compiler}


ANY_VERSIONS: Versions = Versions()


class ConfigCache:
    """Records of best configs: at most one for each GEMM, GPU and kernel.

    Args:
        records: as `merge` would join them, in any order.
        path: where they come from, for notes and warnings.
    """

    def __init__(self, records: Iterable[ConfigRecord] = (), path: Path | None = None) -> None:
        self.path = path
        self._notes: dict[str, None] = {}
        self._by_gemm: dict[ConfigKey, dict[tuple[str, str], ConfigRecord]] = {}
        self._answers: dict[tuple[ConfigKey, DeviceLimits | None, Versions], ConfigRecord | None] = {}
        for record in records:
            self._add(record, is_newer=False)

    def __len__(self) -> int:
        return sum(map(len, self._by_gemm.values()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConfigCache) and self.records == other.records

    __hash__ = None  # type: ignore[assignment]  # records come and go

    @property
    def records(self) -> list[ConfigRecord]:
        """All records, in the order of the file: by GPU, N, K, M and weights."""
        found = [record for records in self._by_gemm.values() for record in records.values()]
        return sorted(found, key=lambda record: (_place(record.key), record.order()))

    @property
    def notes(self) -> tuple[str, ...]:
        """Why records were ignored by `find`, each once."""
        return tuple(self._notes)

    def put(self, record: ConfigRecord) -> None:
        """Add a record; it replaces that of the same GEMM, GPU and kernel, but for an estimate, no measured one."""
        self._add(record, is_newer=True)
        self._answers.clear()

    def _add(self, record: ConfigRecord, *, is_newer: bool) -> None:
        records = self._by_gemm.setdefault(record.key._replace(gpu=""), {})
        slot = record.key.gpu, record.kernel_hash
        old = records.get(slot)
        if old is None:
            records[slot] = record
        elif is_newer:
            records[slot] = record if record.is_measured or not old.is_measured else old
        else:
            records[slot] = min(old, record, key=ConfigRecord.order)

    def merge(self, other: ConfigCache) -> ConfigCache:
        """Return a new cache with the records of both; neither changes.

        For the same GEMM, GPU and kernel: measured before estimated, then the faster, then the later. The order of
        merging does not matter.
        """
        return ConfigCache((*self.records, *other.records), self.path)

    def find(
        self, key: ConfigKey, limits: DeviceLimits | None = None, versions: Versions = ANY_VERSIONS
    ) -> ConfigRecord | None:
        """Return the best record that holds for a GEMM, or None: measured, of these versions, fast, in this order.

        Args:
            key: the GEMM and the GPU; see `ConfigKey.of`.
            limits: of the GPU; None: those of the preset `key.gpu`.
            versions: of the present.

        Raises:
            ArchError: without `limits`, there is no such preset.
        """
        asked = key, limits, versions
        if asked in self._answers:
            return self._answers[asked]
        found = self._find(*asked)
        if len(self._answers) >= _MAX_ANSWERS:
            self._answers.clear()
        self._answers[asked] = found
        return found

    def _find(self, key: ConfigKey, limits: DeviceLimits | None, versions: Versions) -> ConfigRecord | None:
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
        best = min(valid, key=lambda record: (not record.is_measured, not versions.fit(record), record.order()))
        if not versions.fit(best):
            self._warn_of_versions(best, versions)
        return best

    def _note(self, record: ConfigRecord, void: str) -> None:
        gemm = record.key
        text = (
            f"ignored the config for {gemm.gpu} M={gemm.M} K={gemm.K} N={gemm.N} {gemm.activation} "
            f"{gemm.mode.name.lower()} {gemm.group_size} {gemm.l2}: {void}"
        )
        self._notes[text] = None
        if (said := (self.path, record, void)) not in _noted:
            _noted.add(said)
            _log.info("%s: %s", self.path or "configs", text)

    def _warn_of_versions(self, record: ConfigRecord, versions: Versions) -> None:
        found_with = Versions(record.driver, record.compiler)
        if (said := (self.path, found_with, versions)) in _warned:
            return
        _warned.add(said)
        warnings.warn(
            f"{self.path or 'configs'}: found with driver {record.driver} and NVRTC {record.compiler}, used with "
            f"driver {versions.driver or record.driver} and NVRTC {versions.compiler or record.compiler}; other "
            "configs may be faster now: profile again to know",
            ConfigVersionWarning,
            stacklevel=4,
        )

    @classmethod
    def load(cls, path: Path, *, is_read_only: bool = False) -> ConfigCache:
        """Read a file; none is an empty cache.

        A damaged file is set aside as ``<name>.damaged-<n>`` with a RuntimeWarning, and a new one is begun with the
        records that could be read; `is_read_only`: it is refused instead.

        Raises:
            GemmEvalError: it cannot be read or set aside, or a newer version of this library wrote it.
        """
        content = read_content(path)
        if content is None or content.damage is None:
            return cls(content.records if content else (), path)
        if is_read_only:
            raise GemmEvalError(f"{path} is damaged: {content.damage}")
        with lock(path):
            return cls._load_locked(path)

    @classmethod
    def _load_locked(cls, path: Path) -> ConfigCache:
        """Only under the lock: another process may have mended the file meanwhile."""
        content = read_content(path)
        found = cls(content.records if content else (), path)
        if content is not None and content.damage is not None:
            aside = set_aside(path)
            found.save(path)
            warnings.warn(
                f"{path} is damaged: {content.damage}; it was set aside as {aside.name}, and a new one is begun with "
                f"{len(found)} records",
                RuntimeWarning,
                stacklevel=3,
            )
        return found

    def save(self, path: Path) -> None:
        """Replace a file, as a whole: same records, same bytes.

        Raises:
            GemmEvalError: it cannot be written.
        """
        write_text(path, to_text(self.records))

    def update_file(self, path: Path) -> ConfigCache:
        """Merge these records into a file, and return what it holds then. Processes that do so at once lose nothing.

        Raises:
            GemmEvalError: as `load` and `save`; or other processes keep the file for half a minute.
        """
        return change_file(path, lambda found: found.merge(self))


def change_file(path: Path, change: Callable[[ConfigCache], ConfigCache]) -> ConfigCache:
    """Replace what a file holds by `change` of it, and return that; nobody else changes it meanwhile.

    Raises:
        GemmEvalError: as `ConfigCache.update_file`.
    """
    with lock(path):
        found = ConfigCache._load_locked(path)
        changed = change(ConfigCache(found.records, path))
        if changed != found or not path.exists():
            changed.save(path)
        return changed


def _place(key: ConfigKey) -> tuple[object, ...]:
    return key.gpu, key.N, key.K, key.M, key.activation, key.mode, key.group_size, key.l2


@cache
def limits_of_preset(gpu: str) -> DeviceLimits:
    """Return the limits of a preset, read once."""
    from gemm_eval.kernels.plan import limits_of

    return limits_of(gpu)
