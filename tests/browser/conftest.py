"""A headless Chromium for tests of pages: named by $GEMM_EVAL_CHROMIUM, on the PATH, or playwright's own."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gemm_eval.report.page import Page as ReportPage

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    *("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
)

Open = Callable[..., "OpenPage"]


class OpenPage:
    """A page in the browser, all it said and all it asked for."""

    def __init__(self, page: Page, path: Path) -> None:
        self.page = page
        self.said: list[str] = []
        self.asked_for: list[str] = []
        page.on("console", lambda message: self.said.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: self.said.append(f"error: {error}"))
        page.on("request", lambda request: self.asked_for.append(request.url))
        page.goto(path.as_uri())


def find_chromium() -> str | None:
    """The browser to use, or None.

    Raises:
        FileNotFoundError: $GEMM_EVAL_CHROMIUM names something that is no program; nobody wants a silent skip then.
    """
    named = os.environ.get("GEMM_EVAL_CHROMIUM")
    if named:
        if shutil.which(named) is None:
            raise FileNotFoundError(f"GEMM_EVAL_CHROMIUM={named} is not a program")
        return named
    return next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def launch() -> Iterator[Browser]:
    """A browser for as long as the block lasts.

    Raises:
        ImportError: there is no playwright.
        FileNotFoundError: there is no browser.
    """
    from playwright.sync_api import sync_playwright

    chromium = find_chromium()
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0  # Chromium refuses to sandbox itself as root
    with sync_playwright() as driver:
        chromium = chromium or driver.chromium.executable_path
        if shutil.which(chromium) is None:
            raise FileNotFoundError(
                f"needs a browser: {sys.executable} -m playwright install chromium, or one of {', '.join(NAMES)} on "
                "the PATH, or $GEMM_EVAL_CHROMIUM to name one"
            )
        found = driver.chromium.launch(executable_path=chromium, args=FLAGS, chromium_sandbox=not is_root)
        yield found
        found.close()


@pytest.fixture(scope="module")  # its driver keeps an event loop running, in which tests of notebooks could not run
def browser() -> Iterator[Browser]:
    pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    find_chromium()  # a browser that is named and missing is no reason to skip
    with ExitStack() as stack:
        try:
            found = stack.enter_context(launch())
        except FileNotFoundError as error:
            pytest.skip(str(error))
        yield found


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Open a report, in a window of its own with the given options; it fails at the end if the page complained."""
    opened: list[OpenPage] = []

    def open_report(report: ReportPage, **options: Any) -> OpenPage:
        path = report.write(tmp_path / "report.html")
        page = browser.new_context(**options).new_page()
        page.set_default_timeout(20_000)
        opened.append(OpenPage(page, path))
        return opened[-1]

    yield open_report
    for found in opened:
        found.page.context.close()
        assert found.said == []
        assert found.asked_for == [found.page.url]
