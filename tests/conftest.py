"""What all tests share: Hypothesis profiles, marks of slow tests, durations, and a cache folder of a test's own.

Profiles are `default`, `thorough` (three times as many examples), `nojit` (kernels as plain Python, slowly) and `deep`
(for long runs). All but `deep` draw the same examples in every run: a test fails for what was changed, not by chance.
"""

from __future__ import annotations  # older pytest has no TerminalReporter

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from gemm_eval.storage import cache_dir
from tests.cases import THOROUGH
from tools import durations

os.environ.setdefault("OMP_NUM_THREADS", "1")
"""Fits of trees are small: beside other processes of tests, more threads only wait for each other."""

_COMMON = {
    "deadline": None,  # the first example may compile kernels
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
}
_SAME = {"derandomize": True, "database": None}
settings.register_profile("default", max_examples=50, **_COMMON, **_SAME)
settings.register_profile("thorough", max_examples=THOROUGH, **_COMMON, **_SAME)
settings.register_profile("nojit", max_examples=25, **_COMMON, **_SAME)
settings.register_profile("deep", max_examples=5000, **_COMMON)
settings.load_profile("default")


def pytest_configure(config: pytest.Config) -> None:
    """Fill the cache of compiled kernels before several processes of tests would each do so."""
    is_worker = hasattr(config, "workerinput")
    if (
        getattr(config.option, "numprocesses", None)
        and not is_worker
        and config.option.markexpr != "gpu"  # tests/gpu/conftest.py compiles what those need, beside their kernels
        and os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"
    ):
        subprocess.run([sys.executable, "-m", "gemm_eval.compiled", "--all"], cwd=Path(__file__).parents[1], check=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that tests/slow.txt lists."""
    listed = durations.slow_names()
    for item in items:
        if durations.is_slow(item.nodeid, listed):
            item.add_marker(pytest.mark.slow)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Keep how long each test took, for `python -m tools.durations`."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not hasattr(session.config, "workerinput"):
        durations.keep(report for reports in reporter.stats.values() for report in reports)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say what was skipped, by folder or file and reason; a reason says how to have it run."""
    groups: Counter[tuple[str, str]] = Counter()
    for report in terminalreporter.stats.get("skipped", []):
        place = report.nodeid.split("::")[0]
        folder = place.rpartition("/")[0]
        place = folder if folder in ("tests/gpu", "tests/browser") else place  # skipped as a whole
        groups[place, report.longrepr[-1].removeprefix("Skipped: ")] += 1
    if groups:
        terminalreporter.section("skipped")
    for (place, reason), num in sorted(groups.items()):
        terminalreporter.write_line(f"{num} in {place}: {reason}")


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of this test, with the kernels of the usual one, which take half a minute to compile."""
    usual, own = cache_dir(), tmp_path / "cache"
    own.mkdir()
    if usual is not None and (usual / "kernels").is_dir():
        (own / "kernels").symlink_to((usual / "kernels").absolute(), target_is_directory=True)
    monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", str(own))
    return own
