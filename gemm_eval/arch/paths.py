"""The one resolver of packaged data: a checkout, an editable install and a wheel alike."""

from functools import cache
from pathlib import Path

from gemm_eval.errors import ArchNotFoundError


@cache
def data_root() -> Path:
    """Return the folder that holds `multicore/*.yaml` and the other packaged data.

    A wheel carries it inside the package; a checkout (and so an editable install) has it beside the package.

    Raises:
        ArchNotFoundError: the installation lost its data.
    """
    package = Path(__file__).resolve().parent.parent
    for root in (package / "_arch_data", package.parent / "arch"):
        if (root / "multicore").is_dir():
            return root
    raise ArchNotFoundError(f"no packaged architectures beside or inside {package}: reinstall gemm_eval")


def preset_files(*folders: str) -> dict[str, Path]:
    """Return the YAML files in folders of the packaged data, by name.

    A file whose name starts with an underscore is a base of others, nothing of its own.
    """
    paths = (path for folder in folders for path in (data_root() / folder).glob("*.yaml"))
    return {path.stem: path for path in paths if not path.name.startswith("_")}
