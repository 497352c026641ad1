"""What CPU this is: caches and cores as Linux and macOS tell them, vector units, and quotas of containers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gemm_eval.arch import ProvenanceKind
from gemm_eval.measure.host.cpu import (
    CacheLevel,
    cores_of,
    detect_host,
    parse_cpu_list,
    quota_cores,
    simd_width,
    sysctl_caches,
    sysfs_caches,
)
from tests.measure.host_samples import FACTS


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


@pytest.fixture
def two_cores(tmp_path: Path) -> Path:
    """Sysfs of two cores with two hardware threads each: 0 and 2 are one core, 1 and 3 the other."""
    for cpu in range(4):
        write(tmp_path / f"cpu{cpu}/topology/thread_siblings_list", f"{cpu % 2},{cpu % 2 + 2}")
        for index, (level, kind, size, sharing) in enumerate(
            (
                ("1", "Data", "48K", f"{cpu % 2},{cpu % 2 + 2}"),
                ("1", "Instruction", "32K", f"{cpu % 2},{cpu % 2 + 2}"),
                ("2", "Unified", "2048K", f"{cpu % 2},{cpu % 2 + 2}"),
                ("3", "Unified", "30M", "0-3"),
            )
        ):
            for name, text in (("level", level), ("type", kind), ("size", size), ("shared_cpu_list", sharing)):
                write(tmp_path / f"cpu{cpu}/cache/index{index}/{name}", text)
    return tmp_path


def test_lists_of_cpus() -> None:
    assert parse_cpu_list("0-3,8\n") == (0, 1, 2, 3, 8)
    assert parse_cpu_list("") == ()


def test_a_core_is_counted_once(two_cores: Path) -> None:
    assert cores_of((0, 1, 2, 3), two_cores) == (0, 1)
    assert cores_of((1, 2, 3), two_cores) == (1, 2)
    assert cores_of((5, 6), two_cores) == (5, 6)


def test_caches_of_linux_are_shared_by_cores_not_threads(two_cores: Path) -> None:
    assert sysfs_caches(0, two_cores) == (
        CacheLevel(1, 48 << 10, 1),
        CacheLevel(2, 2 << 20, 1),
        CacheLevel(3, 30 << 20, 2),
    )
    assert sysfs_caches(9, two_cores) == ()


def test_caches_of_a_mac_are_those_of_its_fast_cores() -> None:
    values = {
        "hw.l1dcachesize": 65536, "hw.l2cachesize": 4 << 20,
        "hw.perflevel0.l1dcachesize": 131072, "hw.perflevel0.l2cachesize": 16 << 20, "hw.perflevel0.cpusperl2": 4,
    }  # fmt: skip
    assert sysctl_caches(values, 8) == (CacheLevel(1, 131072, 1), CacheLevel(2, 16 << 20, 4))
    assert sysctl_caches({"hw.l3cachesize": 8 << 20}, 6) == (CacheLevel(3, 8 << 20, 6),)


@pytest.mark.parametrize(
    ("flags", "machine", "bits", "kind"),
    [
        (["sse2", "avx", "avx2", "fma", "avx512f"], "x86_64", 512, ProvenanceKind.SPEC),
        (["sse2", "avx"], "x86_64", 256, ProvenanceKind.SPEC),
        (["sse2"], "x86_64", 128, ProvenanceKind.SPEC),
        (["asimd"], "aarch64", 128, ProvenanceKind.SPEC),
        ([], "arm64", 128, ProvenanceKind.SPEC),
        ([], "riscv64", 128, ProvenanceKind.ASSUMED),
    ],
)
def test_vector_width(flags: list[str], machine: str, bits: int, kind: ProvenanceKind) -> None:
    found = simd_width(flags, machine)
    assert (found.value, found.kind) == (bits, kind)


@pytest.mark.parametrize(
    ("text", "cores"), [("max 100000", None), ("250000 100000", 2), ("50000 100000", 1), ("", None), ("1 0", None)]
)
def test_quota_of_a_container(tmp_path: Path, text: str, cores: int | None) -> None:
    (tmp_path / "cpu.max").write_text(text)
    assert quota_cores(tmp_path / "cpu.max") == cores
    assert quota_cores(tmp_path / "none") is None


def test_caches_of_facts() -> None:
    private = FACTS.last_private_cache
    assert private is not None
    assert private.level == 2
    assert FACTS.last_cache_bytes == 8 << 20
    assert replace(FACTS, caches=FACTS.caches[:2]).last_cache_bytes == 4 << 20
    assert replace(FACTS, caches=()).last_private_cache is None


def test_this_machine() -> None:
    facts = detect_host()

    assert facts.title
    assert facts.num_cores.value >= 1
    assert facts.simd_bits.value in (64, 128, 256, 512, 1024, 2048)
    assert len(facts.cpus) in (0, facts.num_cores.value)
    assert 0.1 < facts.clock_ghz.value < 10.0
    assert facts.clock_ghz.kind is ProvenanceKind.MEASURED
    sizes = [cache.size_bytes for cache in facts.caches]
    assert sizes == sorted(sizes)
