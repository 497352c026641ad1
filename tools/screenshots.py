"""Pictures of every page and plot, to look at: ``python -m tools.screenshots``, or ``make screenshots``.

PNG files in the folder ``screenshots``: each page from top to bottom and its first screen, at four widths, light and
dark. A page that says something on the console, asks for anything, or is wider than its window fails the run. With
``--readme`` the picture of README is taken anew instead.
"""

import argparse
import io
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from gemm_eval.report import Page
from tests.browser import pages
from tests.browser.conftest import OpenPage, launch

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "screenshots"
README_PICTURE = ROOT / "docs" / "assets" / "report.png"
README_SIZE = (1280, 650)
"""Of the first screen of the page that compares archs: verdict and main picture."""
HEIGHTS = {1280: 800, 768: 1024, 390: 844, 360: 740}
WIDE = (1280, 390)  # of plots, which are no wider or narrower elsewhere
SCHEMES = ("light", "dark")
PAGES: dict[str, Callable[[], Page]] = {
    "sweep": pages.sweep_page,
    "model": pages.model_page,
    "compare": pages.compare_page,
    "gemms": pages.gemms_page,
    "serve": pages.serve_page,
    **{f"plot-{name}": partial(pages.plot_page, name) for name in pages.PLOTS},
}


def take(browser: Any, path: Path, name: str, width: int, scheme: str) -> list[str]:
    """Write the pictures of a page in one window; return what is wrong with it."""
    size = {"width": width, "height": HEIGHTS[width]}
    context = browser.new_context(viewport=size, color_scheme=scheme, device_scale_factor=1)
    opened = OpenPage(context.new_page(), path)
    opened.page.wait_for_timeout(100)  # charts are drawn when their width is known
    to = FOLDER / f"{name}-{width}-{scheme}"
    if name.startswith("plot-"):
        opened.page.locator("main").screenshot(path=f"{to}.png")
    else:
        opened.page.screenshot(path=f"{to}.png", full_page=True)
        opened.page.screenshot(path=f"{to}-first.png")
    wide = opened.page.evaluate("document.documentElement.scrollWidth")
    context.close()
    others = [url for url in opened.asked_for if url != path.as_uri()]
    return opened.said + others + ([f"{wide} px wide"] if wide > width else [])


def take_for_readme(browser: Any, path: Path) -> None:
    """Write README's picture of a page: the top of its first screen, with few colours."""
    width, height = README_SIZE
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
    page.goto(path.as_uri())
    page.wait_for_timeout(100)
    whole = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    whole.quantize(64, dither=Image.Dither.NONE).save(README_PICTURE, optimize=True)


def main() -> int:
    """Take all pictures, or those of pages whose name starts with a word, or README's."""
    parser = argparse.ArgumentParser(description="Pictures of every page and plot.")
    parser.add_argument("names", nargs="*", help="pages whose names start so; default: all")
    parser.add_argument("--readme", action="store_true", help="README's picture, and no other")
    options = parser.parse_args()
    wanted = tuple(options.names)
    if options.readme:
        with launch() as browser, tempfile.TemporaryDirectory() as folder:
            take_for_readme(browser, pages.compare_page().write(Path(folder) / "compare.html"))
        return 0
    FOLDER.mkdir(exist_ok=True)
    num_wrong = num_done = 0
    with launch() as browser, tempfile.TemporaryDirectory() as folder:
        for name, make in PAGES.items():
            if wanted and not name.startswith(wanted):
                continue
            path = make().write(Path(folder) / f"{name}.html")
            for width in WIDE if name.startswith("plot-") else HEIGHTS:
                for scheme in SCHEMES:
                    wrong = take(browser, path, name, width, scheme)
                    num_done += 1
                    num_wrong += bool(wrong)
                    for text in wrong:
                        print(f"{name} at {width} px, {scheme}: {text}", file=sys.stderr)
    print(f"{num_done} windows in {FOLDER}, {num_wrong} with something wrong")
    return 1 if num_wrong or not num_done else 0


if __name__ == "__main__":
    sys.exit(main())
