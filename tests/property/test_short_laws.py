"""A short run of every law of `tools.laws`, the same problems every time; ``make laws`` makes long ones."""

from collections.abc import Mapping
from types import ModuleType

import numba
import pytest

from tests.grouped_cases import CASES
from tools.laws import (
    collective,
    estimate,
    gpu_attention,
    gpu_corrected,
    gpu_exact,
    gpu_experts,
    gpu_grouped,
    gpu_physics,
    memory_bound,
    multicore,
    multicore_attention,
    multicore_grouped,
    multicore_presets,
    serving,
    training,
)

NEEDS_JIT = {
    estimate, gpu_corrected, gpu_exact, gpu_experts, gpu_grouped, gpu_physics, multicore_presets, serving, training,
}  # fmt: skip
"""Laws that take minutes as plain Python."""


RUNS: list[tuple[ModuleType, int, int, int, Mapping[str, int] | int]] = [
    (gpu_physics, 16, 25_000, 25, {}),
    (gpu_corrected, 16, 10_000, 15, {}),
    (gpu_exact, 16, 1_000, 1, {"equals brute force": 1_000}),
    (gpu_grouped, 0, 50 * len(CASES), 5, 45 * len(CASES)),
    (gpu_attention, 16, 10_000, 7, {}),
    (collective, 3, 1_000, 8, 200),
    (memory_bound, 0, 2_000, 3, 1_000),
    (gpu_experts, 0, 25 * len(gpu_experts.CASES), 5, {}),
    (estimate, 16, 100, 9, {"times, rates and bytes are finite and add up": 100}),
    (serving, 1, 60, 6, {"throughput grows with requests": 60}),
    (training, 1, 60, 10, {"terms add up": 60, "more memory is never slower": 5}),
    (multicore, 16, 120, 1, {"the search is brute force": 100, "the best few are those of brute force": 20,
      "a mapping costs what the oracle says": 120}),
    (
        multicore_grouped, 5, 120, 1,
        {"the search is brute force": 100, "the order of groups, and groups without rows, change nothing": 120,
         "a row more is no faster": 60},  # where nothing is resident
    ),
    (
        multicore_presets, 2, 120, 1,
        {"best is at least as good as the library": 15, "more cores are no slower": 60},
    ),
    (
        multicore_attention, 8, 60, 1,
        {"the search is brute force": 50, "a mapping costs what the oracle says": 100,
         "a wider window is no faster at best": 5},
    ),
]  # fmt: skip
"""Laws, seed, problems, laws that must come up at least, and how often single ones must; a number is that of each."""


@pytest.mark.parametrize(
    ("laws", "seed", "count", "num_laws", "least"), RUNS, ids=[laws.__name__.rpartition(".")[2] for laws, *_ in RUNS]
)
def test_no_law_is_broken(
    laws: ModuleType, seed: int, count: int, num_laws: int, least: Mapping[str, int] | int
) -> None:
    if laws in NEEDS_JIT and numba.config.DISABLE_JIT:
        pytest.skip("hundreds of times as slow without the JIT")
    if numba.config.DISABLE_JIT:
        count, least = max(12, count // 10), 1
    report = laws.run(seed=seed, count=count)
    assert not report.violations, report.text()
    assert len(report.checked) >= num_laws
    expected = least if isinstance(least, Mapping) else dict.fromkeys(report.checked, least)
    assert not {law: report.checked[law] for law, num in expected.items() if report.checked[law] < num}
    if laws is collective:
        assert {name.rpartition(": ")[2] for name in report.excepted} == {"mesh", *collective.HELPS}
