"""Benchmarks run once each among the tests, so that none breaks unseen; slow ones run in `make bench` only."""

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out slow benchmarks unless benchmarks are asked for."""
    if not config.getoption("--benchmark-enable", default=False):
        items[:] = [
            item for item in items if "benchmarks" not in item.path.parts or not item.get_closest_marker("slow")
        ]
