"""Which config is best for which GEMM: a JSON file that people can read, and that processes and machines can merge.

A record holds for one GPU and for the source of its kernel: with another it is ignored, and that is noted. With another
driver or compiler it is used, with a warning, where there is none of the present ones. Files of other versions of the
kernels may be merged: what is void for one version stays for the other.
"""

from __future__ import annotations

import re
import subprocess
import warnings
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from gemm_eval.arch import DeviceLimits, data_root
from gemm_eval.device import compiler_version
from gemm_eval.errors import GemmEvalError
from gemm_eval.kernels.configs import (
    ANY_VERSIONS,
    FOUND_BY,
    L2_STATES,
    ConfigCache,
    ConfigKey,
    ConfigRecord,
    ConfigVersionWarning,
    Versions,
    build_from_timings,
    change_file,
    kernel_hash_of,
)
from gemm_eval.kernels.registry import make_variant
from gemm_eval.mapping import KernelConfig
from gemm_eval.storage import cache_dir

__all__ = [
    "FOUND_BY",
    "L2_STATES",
    "ConfigCache",
    "ConfigKey",
    "ConfigRecord",
    "ConfigVersionWarning",
    "Versions",
    "build_from_timings",
    "driver_version",
    "kernel_hash_of",
    "lookup",
    "new_record",
    "present_versions",
    "remember",
    "shipped_path",
    "user_path",
]

_USER_NAME = "w4a16-configs.json"
_DRIVER_FILE = Path("/proc/driver/nvidia/version")
_SMI = ("nvidia-smi", "-i", "0", "--query-gpu=driver_version", "--format=csv,noheader")

_loaded: dict[Path, tuple[tuple[int, ...], ConfigCache]] = {}


def user_path() -> Path | None:
    """The file of what this user's GPUs were found to do best; None: caching is turned off."""
    folder = cache_dir()
    return None if folder is None else folder / _USER_NAME


def shipped_path(gpu: str) -> Path:
    """Where the file that comes with the library for a GPU lies, if there is one. It is never written."""
    return data_root() / "measured" / gpu / "w4a16" / "configs.json"


def lookup(
    key: ConfigKey, limits: DeviceLimits | None = None, versions: Versions = ANY_VERSIONS
) -> ConfigRecord | None:
    """Return the record for a GEMM: of the user's file, else of the library's; an estimate only where neither has more.

    Files are read once, and again when they have changed. One that cannot be used is a RuntimeWarning and counts as
    empty: no GEMM fails for it. Arguments and errors are those of `ConfigCache.find`.
    """
    estimate = None
    for path, is_read_only in ((user_path(), False), (shipped_path(key.gpu), True)):
        found = None if path is None else _current(path, is_read_only).find(key, limits, versions)
        if found is not None and found.is_measured:
            return found
        estimate = estimate or found
    return estimate


def remember(record: ConfigRecord) -> None:
    """Put a record into the user's file, if there is one; a RuntimeWarning if that fails.

    What was found just now replaces an older record of the same GEMM, GPU and kernel, faster or not: that was another
    driver, compiler or GPU.
    """
    path = user_path()
    if path is None:
        return

    def put(found: ConfigCache) -> ConfigCache:
        found.put(record)
        return found

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
    found = ConfigCache(path=path)
    if state:
        try:
            found = ConfigCache.load(path, is_read_only=is_read_only)
        except GemmEvalError as error:
            warnings.warn(f"configs are not used: {error}", RuntimeWarning, stacklevel=3)
    _loaded[path] = state, found
    return found


def new_record(
    key: ConfigKey, config: KernelConfig, latency_us: float, found_by: str, num_timed: int, limits: DeviceLimits
) -> ConfigRecord:
    """Return the record of what was found on this machine today; see `ConfigRecord` for the arguments.

    Args:
        limits: of the GPU.

    Raises:
        InvalidInputError: a field that cannot be, or a config of no family.
        UnsupportedError: the config's family has no kernels for such a GPU.
        GemmEvalError: CuPy or NVRTC is missing.
    """
    variant = make_variant(config, key.activation, key.mode, key.group_size or None)
    return ConfigRecord(
        key=key,
        config=config,
        latency_us=float(latency_us),
        found_by=found_by,
        num_timed=num_timed,
        driver=driver_version() or "unknown",
        compiler=compiler_version(),
        kernel_hash=kernel_hash_of(variant, limits),
        date=datetime.now(UTC).date().isoformat(),
    )


def present_versions() -> Versions:
    """Return the versions of this machine, for `lookup`.

    Raises:
        GemmEvalError: CuPy or NVRTC is missing.
    """
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
