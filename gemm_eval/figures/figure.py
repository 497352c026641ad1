"""Figures, and the one import of matplotlib: nothing is written outside the library's own cache folder.

matplotlib makes a folder for configuration and one for its list of fonts in the user's home when it is imported. Where
this library is the first to import it, both lie in the library's cache folder. Who imports matplotlib first, or sets
MPLCONFIGDIR, decides; a matplotlibrc of the user's own holds either way.
"""

from __future__ import annotations

import os
import sys
import tempfile
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from gemm_eval.extras import needs_extra
from gemm_eval.storage import cache_dir, make_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["import_matplotlib", "new_figure"]


def new_figure(width: float, height: float) -> Figure:
    """Return an empty Figure without a background, sizes in inches, that pyplot does not know of.

    Raises:
        GemmEvalError: matplotlib is not installed.
    """
    import_matplotlib()
    with needs_extra("plotting", "plot"):
        from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    figure.patch.set_facecolor("none")
    return figure


def import_matplotlib() -> ModuleType:
    """Return the package matplotlib.

    Raises:
        GemmEvalError: it is not installed.
    """
    if "matplotlib" not in sys.modules and "MPLCONFIGDIR" not in os.environ:
        _import_without_traces()
    with needs_extra("plotting", "plot"):
        import matplotlib as mpl

    return mpl


def _import_without_traces() -> None:
    given = {"MPLCONFIGDIR": str(_folder())}
    own = _own_settings()
    if own is not None and "MATPLOTLIBRC" not in os.environ:
        given["MATPLOTLIBRC"] = str(own)
    os.environ |= given
    try:
        with needs_extra("plotting", "plot"):
            import matplotlib as mpl
            import matplotlib.font_manager  # reads or writes the list of fonts

        mpl.get_configdir(), mpl.get_cachedir()  # remembered from here on
    finally:
        for name in given:
            del os.environ[name]


def _own_settings() -> Path | None:
    """The user's matplotlibrc where matplotlib looks for it, if there is one."""
    import platformdirs

    places = (platformdirs.user_config_path("matplotlib", appauthor=False), Path("~/.matplotlib").expanduser())
    return next((place / "matplotlibrc" for place in places if (place / "matplotlibrc").is_file()), None)


def _folder() -> Path:
    root = cache_dir()
    if root is not None:
        try:
            make_folder(root / "matplotlib")
        except OSError:  # a read-only folder only means no cache
            pass
        else:
            return root / "matplotlib"
    return Path(_temporary_folder().name)


@cache
def _temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """A folder that goes with this process."""
    return tempfile.TemporaryDirectory(prefix="gemm_eval-matplotlib-")
