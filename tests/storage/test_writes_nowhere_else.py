"""Nothing is written outside the library's cache folder unless asked: reports and plots, with matplotlib's folders."""

import os
import subprocess
import sys
from pathlib import Path

from gemm_eval import GEMMEvaluator
from gemm_eval.storage import cache_dir

ROOT = Path(__file__).parents[2]
REPORT = """
import os
from gemm_eval import GEMMEvaluator
from gemm_eval.report.plots import plot_breakdown
from gemm_eval.report.page import matplotlib_svg
result = GEMMEvaluator("demo-8core").evaluate(1, 16, 512, 768)
with open("page.html", "w") as page:  # what `gemm-eval report` does for each of its plots
    page.write(matplotlib_svg(plot_breakdown([result])))
import matplotlib
assert matplotlib.rcParams["lines.linewidth"] == 7.0, "the user's own settings hold"
assert not {"MPLCONFIGDIR", "MATPLOTLIBRC"} & set(os.environ)
"""
FIGURE = """
from gemm_eval.figures import new_figure
new_figure(2.0, 2.0).savefig("figure.svg")
"""


def run(code: str, home: Path, **env: str) -> None:
    """Run `code` in a new user's home, with folders for everything."""
    for name in ("tmp", "here"):
        (home / name).mkdir(parents=True, exist_ok=True)
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "MPL", "MATPLOTLIB"))
    }
    own = {"HOME": str(home), "TMPDIR": str(home / "tmp"), "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    inherited.pop("GEMM_EVAL_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, "-c", code], env=inherited | own | env, cwd=home / "here", capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def files_of(home: Path) -> set[str]:
    found = (Path(folder).relative_to(home) / file for folder, _, files in os.walk(home) for file in files)
    return {str(file) for file in found}


def test_a_report_in_a_new_home(tmp_path: Path) -> None:
    GEMMEvaluator("demo-8core", disk_cache=False).evaluate_many([(1, 1, 1, 1)])  # compiled, and in the usual cache
    usual, own = cache_dir(), tmp_path / ".cache" / "gemm_eval"
    own.mkdir(parents=True)
    if usual is not None and (usual / "kernels").is_dir():
        (own / "kernels").symlink_to((usual / "kernels").absolute(), target_is_directory=True)
    settings = tmp_path / ".config" / "matplotlib" / "matplotlibrc"
    settings.parent.mkdir(parents=True)
    settings.write_text("lines.linewidth: 7\n")
    before = files_of(tmp_path)

    run(REPORT, tmp_path)
    new = files_of(tmp_path) - before
    assert "here/page.html" in new
    assert any(name.startswith(".cache/gemm_eval/matplotlib/") for name in new)
    assert {name for name in new if not name.startswith(".cache/gemm_eval/")} == {"here/page.html"}


def test_a_cache_that_is_off_leaves_nothing(tmp_path: Path) -> None:
    run(FIGURE, tmp_path, GEMM_EVAL_CACHE_DIR="off")
    assert files_of(tmp_path) == {"here/figure.svg"}
