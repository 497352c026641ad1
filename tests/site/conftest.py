"""Tests of what `make docs` builds; they run where its extra is installed, on the site that is there."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.browser.conftest import browser

__all__ = ["SITE", "browser", "site"]

SITE = Path(__file__).resolve().parents[2] / "site"


@pytest.fixture(scope="session")
def site() -> Path:
    """The folder of the built site."""
    if find_spec("mkdocs") is None:
        pytest.skip("needs the site and what builds it: make docs")
    assert (SITE / "index.html").is_file(), "there is no site: make docs"
    return SITE
