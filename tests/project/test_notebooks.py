"""The notebooks are stored with their outputs, and a run from top to bottom in a clean kernel gives them again.

Each runs once: ``pytest tests/project/test_notebooks.py --durations=0`` prints how long it takes. After a change that
is meant to change outputs, `make notebooks` stores them anew.
"""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gemm_eval.cli.app import app
from tools import notebooks

NOTEBOOKS = notebooks.stored()
OF_A_MACHINE = re.compile(r"(?<![\w.])/(?:home|root|tmp|usr|var|work|Users)/|[A-Z]:\\|\b0x[0-9a-f]{6,}|\x1b")
"""What no text of an output has: paths of a machine, addresses of objects, codes of terminals."""
NO_COMMAND = ("make", "pip", "python")  # of blocks, tested elsewhere


def name_of(path: Path) -> str:
    return path.name


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def document(path: Path) -> dict[str, Any]:
    """A notebook as the plain JSON that it is: what is checked in it needs no package."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def commands() -> list[tuple[str, str]]:
    """Lines that a shell runs, with the notebook: of `!` in cells, and of `sh` blocks in texts."""
    found = []
    for path in NOTEBOOKS:
        for cell in document(path)["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] == "code":
                lines = re.findall(r"^\s*!(.+)$", source, flags=re.MULTILINE)
            else:
                blocks = re.findall(r"^```sh\n(.*?)^```", source, flags=re.DOTALL | re.MULTILINE)
                lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
            found += [(path.stem, line) for line in lines if line]
    return found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_stored_with_outputs(path: Path) -> None:
    """As the command leaves them: every cell ran, in order, and what is kept says nothing of a machine or a time."""
    again = "store it anew: make notebooks NOTEBOOKS=" + path.stem
    notebook = document(path)
    assert notebook["metadata"] == {"kernelspec": notebooks.KERNEL, "language_info": {"name": "python"}}, again
    assert [cell["id"] for cell in notebook["cells"]] == [f"cell-{n:02}" for n in range(len(notebook["cells"]))], again
    cells = code_cells(notebook)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), again
    assert all(cell["metadata"] in ({}, {"tags": [notebooks.TIMING]}) for cell in notebook["cells"]), again
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert any("image/png" in output.get("data", {}) for output in outputs), again
    for output in outputs:
        assert output["output_type"] != "error"
        assert output.get("name") != "stderr", output["text"]
        assert output.get("metadata", {}) == {}, again
        for kind, text in {"text": output.get("text", ""), **output.get("data", {})}.items():
            if kind != "image/png":
                assert not OF_A_MACHINE.search("".join(text)), f"{kind}: {OF_A_MACHINE.search(''.join(text))}"
    assert path.stat().st_size <= notebooks.MAX_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_runs(path: Path, tmp_path: Path) -> None:
    """And gives what is stored, up to timings, and leaves no file behind."""
    if reason := notebooks.missing(path):
        pytest.skip(reason)
    kept, ran = notebooks.read(path), notebooks.run(path, tmp_path)
    outputs = [output for cell in ran.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert list((tmp_path / "work").iterdir()) == []
    assert not (found := notebooks.differences(kept, ran)), "\n".join([*found, "meant? make notebooks"])


def test_shell_commands_are_ours() -> None:
    found = commands()
    assert any(line.startswith("gemm-eval ") for _, line in found)
    assert all(line.split()[0] in ("gemm-eval", *NO_COMMAND) for _, line in found)


@pytest.mark.parametrize(("name", "line"), [one for one in commands() if one[1].startswith("gemm-eval ")])
def test_shell_commands_run(name: str, line: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A cell goes on after a command that failed: only here it shows."""
    monkeypatch.chdir(tmp_path)
    ran = CliRunner().invoke(app, shlex.split(line, comments=True)[1:])
    assert ran.exit_code == 0, f"{name}: {ran.output}"
    assert ran.output


def png(width: int, height: int) -> str:
    import base64
    import io

    image = pytest.importorskip("PIL.Image", reason="pictures need Pillow: pip install 'gemm_eval[plot]'")
    written = io.BytesIO()
    image.new("RGB", (width, height)).save(written, "PNG")
    return base64.b64encode(written.getvalue()).decode()
