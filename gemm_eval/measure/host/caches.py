"""The data caches of this machine's CPU, as Linux (sysfs) and macOS (sysctl) tell them."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

__all__ = ["CacheLevel", "cores_of", "parse_cpu_list", "read_sysctl", "sysctl_caches", "sysfs_caches"]

SYSFS_CPUS = Path("/sys/devices/system/cpu")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_SIZE = re.compile(r"(\d+)([KMG]?)")


class CacheLevel(NamedTuple):
    """A level of data cache.

    Attributes:
        level: 1 is the nearest.
        size_bytes: of one instance.
        num_cores: physical cores that share an instance.
    """

    level: int
    size_bytes: int
    num_cores: int


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Return the numbers in a list of the kernel's, such as ``0-3,8``."""
    found: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return tuple(found)


def cores_of(cpus: tuple[int, ...], root: Path = SYSFS_CPUS) -> tuple[int, ...]:
    """Return one logical CPU of each physical core among `cpus`: the first of its hardware threads."""
    found: dict[tuple[int, ...], int] = {}
    for cpu in sorted(cpus):
        path = root / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        siblings = parse_cpu_list(_text(path)) if path.is_file() else (cpu,)
        found.setdefault(siblings, cpu)
    return tuple(sorted(found.values()))


def sysfs_caches(cpu: int, root: Path = SYSFS_CPUS) -> tuple[CacheLevel, ...]:
    """Return the data caches of a logical CPU on Linux, nearest first; none where the kernel tells none."""
    found = []
    for index in sorted((root / f"cpu{cpu}" / "cache").glob("index*")):
        size = _SIZE.fullmatch(_text(index / "size"))
        if size is None or _text(index / "type") not in ("Data", "Unified"):
            continue
        sharing = cores_of(parse_cpu_list(_text(index / "shared_cpu_list")), root)
        size_bytes = int(size[1]) * _UNITS[size[2]]
        found.append(CacheLevel(int(_text(index / "level")), size_bytes, max(1, len(sharing))))
    return tuple(sorted(found))


def sysctl_caches(values: Mapping[str, int], num_cores: int) -> tuple[CacheLevel, ...]:
    """Return the data caches of a Mac, nearest first; of its fast cores where there are two kinds.

    Args:
        values: numbers by name, as ``sysctl hw`` tells them.
        num_cores: physical cores.
    """
    found = []
    for level, name in ((1, "l1dcachesize"), (2, "l2cachesize"), (3, "l3cachesize")):
        size_bytes = values.get(f"hw.perflevel0.{name}") or values.get(f"hw.{name}") or 0
        if size_bytes:
            default = num_cores if level == 3 else 1
            sharing = values.get(f"hw.perflevel0.cpusperl{level}", default)
            found.append(CacheLevel(level, size_bytes, max(1, sharing)))
    return tuple(found)


def read_sysctl() -> dict[str, int]:
    """Return the numbers of ``sysctl hw``; none where there is no such program."""
    try:
        done = subprocess.run(["/usr/sbin/sysctl", "hw"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return {}
    pairs = (line.partition(":") for line in done.stdout.splitlines())
    return {name.strip(): int(value) for name, _, value in pairs if value.strip().isdigit()}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
