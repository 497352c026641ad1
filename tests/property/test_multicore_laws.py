"""A short run of the multi-core laws, the same problems every time; `python -m tools.laws` makes long ones."""

from __future__ import annotations

from tools.laws import multicore, multicore_grouped, multicore_presets


def test_no_law_is_broken() -> None:
    report = multicore.run(seed=16, count=12)
    assert not report.violations, report.text()
    assert report.checked["the search is brute force"] >= 10


def test_no_law_of_grouped_gemms_is_broken() -> None:
    report = multicore_grouped.run(seed=5, count=25)
    assert not report.violations, report.text()
    assert report.checked["the search is brute force"] >= 20
    assert report.checked["the order of groups, and groups without rows, change nothing"] == 25
    assert report.checked["a row more is no faster"] >= 15  # where nothing is resident


def test_no_law_of_presets_is_broken() -> None:
    report = multicore_presets.run(seed=2, count=120)
    assert not report.violations, report.text()
    assert report.checked["best is at least as good as the library"] >= 15
    assert report.checked["more cores are no slower"] >= 60
