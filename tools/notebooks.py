"""Notebooks as they are stored: run in a clean kernel, without what differs from run to run, and compared.

python -m tools.notebooks [NAME ...]    # runs them (default: all) and stores their outputs: `make notebooks`

Cells tagged `timing` show what was measured on the machine that ran them: of their outputs only number and kind are
compared. Texts of all others are the same, but for a thousandth of a number; pictures have the same size.
"""

import base64
import io
import os
import re
import struct
import sys
import tempfile
from importlib.util import find_spec
from itertools import zip_longest
from pathlib import Path
from typing import Any
from unittest import mock

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "notebooks"
TIMING = "timing"
"""Tag of cells whose outputs are of the machine that ran them."""
MAX_BYTES = 400_000  # of a stored notebook: code hosts show no large ones
PACKAGES = {"nbformat": "pip install 'gemm_eval[dev]'", "nbclient": "pip install 'gemm_eval[dev]'",
            "ipykernel": "pip install 'gemm_eval[dev]'"}  # fmt: skip
MORE_PACKAGES = {"torch_on_gpus.ipynb": {"torch": "make test-torch"}}
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}

_LIMIT_S = 300  # of a cell, after which it is given up
_NUM_COLORS = 128  # of a stored picture
_SIZE_FRAC = 0.05  # by which sides of pictures may differ: fonts are not the same everywhere
_COLUMNS = "120"  # of what commands print
_FOLDERS = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "MPLCONFIGDIR")
_NOTICE = re.compile(
    r"(gemm_eval: compiling its kernels, once|Matplotlib is building the font cache).*\n?"
)  # of a first call on a machine
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
_NEAR_FRAC, _TINY_FRAC = 1e-3, 1e-9  # by which numbers with and without decimals may differ


def stored() -> list[Path]:
    """The notebooks, by name."""
    return sorted(FOLDER.glob("*.ipynb"))


def read(path: Path) -> Any:
    """Return a notebook as it is stored."""
    import nbformat

    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


def missing(path: Path) -> str | None:
    """Return what a notebook needs and is not there, with what installs it."""
    for package, command in (PACKAGES | MORE_PACKAGES.get(path.name, {})).items():
        if find_spec(package) is None:
            return f"{path.name} needs {package}: {command}"
    return None


def run(path: Path, folder: Path) -> Any:
    """Run a notebook from top to bottom and return it cleaned.

    Args:
        path: of it.
        folder: an empty one. Cells run in its `work`; what Jupyter, IPython and matplotlib keep goes beside it.
    """
    import nbclient

    (folder / "work").mkdir()
    python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {
        "JUPYTER_PLATFORM_DIRS": "1", "PYDEVD_DISABLE_FILE_VALIDATION": "1", "PYTHONPATH": python_path,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]), "COLUMNS": _COLUMNS,
    }  # fmt: skip
    for variable in _FOLDERS:
        environment[variable] = str(folder / variable.lower())
        (folder / variable.lower()).mkdir()
    notebook = read(path)
    resources = {"metadata": {"path": str(folder / "work")}}
    with mock.patch.dict(os.environ, environment):
        nbclient.NotebookClient(notebook, timeout=_LIMIT_S, kernel_name="python3", resources=resources).execute()
    return clean(notebook)


def clean(notebook: Any) -> Any:
    """Return the notebook with what every run of it gives alike: ids and counts in order, no times, few colours."""
    notebook.metadata = {"kernelspec": dict(KERNEL), "language_info": {"name": "python"}}
    count = 0
    for place, cell in enumerate(notebook.cells):
        cell.id = f"cell-{place:02}"
        cell.metadata = {key: value for key, value in cell.metadata.items() if key == "tags" and value}
        if cell.cell_type == "code":
            count += 1
            cell.execution_count = count
            cell.outputs = _clean_outputs(cell.outputs, count)
    return notebook


def _clean_outputs(outputs: list[Any], count: int) -> list[Any]:
    kept: list[Any] = []
    for output in outputs:
        if output.output_type == "stream":
            output.text = _ANSI.sub("", output.text).replace("\r\n", "\n")
            if output.name == "stderr":
                output.text = _NOTICE.sub("", output.text)
            if not output.text:
                continue
            if kept and kept[-1].output_type == "stream" and kept[-1].name == output.name:
                kept[-1].text += output.text  # how a stream was cut depends on the time
                continue
        if output.get("data", {}).get("text/html") == "":  # where a bar of progress was
            continue
        if "metadata" in output:
            output.metadata = {}
        if output.output_type == "execute_result":
            output.execution_count = count
        if png := output.get("data", {}).get("image/png"):
            output.data["image/png"] = _fewer_colors(png)
        kept.append(output)
    return kept


def _fewer_colors(png: str) -> str:
    """Return a picture with a palette, a third of the size; itself, if that is smaller."""
    from PIL import Image

    whole = base64.b64decode(png)
    picture = Image.open(io.BytesIO(whole)).convert("RGBA")
    page = Image.new("RGB", picture.size, "white")
    page.paste(picture, mask=picture.getchannel("A"))
    small = io.BytesIO()
    page.quantize(_NUM_COLORS, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return base64.b64encode(min(small.getvalue(), whole, key=len)).decode()


def differences(kept: Any, ran: Any) -> list[str]:
    """Say where the outputs of a run are not those that are stored; nothing: they are."""
    found = []
    for old, new in zip_longest(kept.cells, ran.cells):
        if old is None or new is None or old.source != new.source:
            return ["the cells are not the same"]
        if old.cell_type == "code":
            is_timing = TIMING in old.metadata.get("tags", ())
            found += [f"{old.id}: {what}" for what in _differences(old.outputs, new.outputs, is_timing)]
    return found


def _differences(old: list[Any], new: list[Any], is_timing: bool) -> list[str]:
    kinds = [[_kind(output) for output in outputs] for outputs in (old, new)]
    if kinds[0] != kinds[1]:
        return [f"outputs {kinds[0]} are stored, a run gives {kinds[1]}"]
    if is_timing:
        return []
    return [
        f"{kind}: {shown}"
        for one, other in zip(old, new, strict=True)
        for kind, text in _content(one).items()
        if (shown := _difference(kind, text, _content(other)[kind]))
    ]


def _kind(output: Any) -> str:
    """Stream and its name, or type of the output and of its data."""
    parts = output.name if output.output_type == "stream" else "+".join(sorted(output.get("data", {})))
    return f"{output.output_type} {parts}"


def _content(output: Any) -> dict[str, Any]:
    if output.output_type == "stream":
        return {output.name: output.text}
    return dict(output.get("data", {}))


def _difference(kind: str, old: Any, new: Any) -> str:
    if kind == "image/png":
        sizes = [picture_size(png) for png in (old, new)]
        is_near = all(abs(a - b) <= _SIZE_FRAC * a for a, b in zip(*sizes, strict=True))
        return "" if is_near else f"{sizes[0]} pixels are stored, a run gives {sizes[1]}"
    for line, other in zip_longest(old.splitlines(), new.splitlines()):
        if line is None or other is None or not same_line(line, other):
            return f"{line!r} is stored, a run gives {other!r}"
    return ""


def picture_size(png: str) -> tuple[int, int]:
    """Return width and height of a PNG, in pixels."""
    width, height = struct.unpack(">II", base64.b64decode(png)[16:24])
    return width, height


def same_line(old: str, new: str) -> bool:
    """Return whether two lines have equal words, and numbers within a thousandth or a last digit.

    Sums round differently on other CPUs, and fits end elsewhere. Numbers without decimals must be the same.
    """
    if old == new:
        return True
    if _NUMBER.sub("#", old).split() != _NUMBER.sub("#", new).split():
        return False
    pairs = zip(_NUMBER.findall(old), _NUMBER.findall(new), strict=True)
    return all(_near(a, b) for a, b in pairs)


def _near(old: str, new: str) -> bool:
    a, b = (float(text.replace(",", "")) for text in (old, new))
    digits, _, exponent = old.partition("e")
    decimals = len(digits.partition(".")[2])
    last = 10.0 ** (int(exponent or 0) - decimals) if decimals else 0.0
    return abs(a - b) <= max(1.001 * last, (_NEAR_FRAC if decimals else _TINY_FRAC) * abs(a))


def store(path: Path) -> None:
    """Run a notebook and write it with its outputs."""
    import nbformat

    with tempfile.TemporaryDirectory() as folder:
        notebook = run(path, Path(folder))
    nbformat.validate(notebook)
    text = nbformat.writes(notebook)  # type: ignore[no-untyped-call]
    path.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    print(f"{path.name}: {len(text) / 1e3:.0f} KB")


def main(names: list[str]) -> None:
    """Store notebooks by name, with or without its ending, or all; say which cannot run here."""
    paths = [FOLDER / f"{name.removesuffix('.ipynb')}.ipynb" for name in names] or stored()
    for path in paths:
        if reason := missing(path):
            print(f"not stored: {reason}")
        else:
            store(path)


if __name__ == "__main__":
    main(sys.argv[1:])
