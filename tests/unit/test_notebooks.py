"""The notebooks run from top to bottom, and are committed without outputs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LIMIT_S = 300  # of a cell; all of a notebook takes well under a minute where nothing else runs
PACKAGES = ("nbformat", "nbclient", "ipykernel")


def read(path: Path) -> Any:
    nbformat = pytest.importorskip("nbformat", reason="notebooks need nbformat: pip install 'gemm_eval[dev]'")
    return nbformat.read(path, as_version=4)


def name_of(path: Path) -> str:
    return path.name


def test_there_are_notebooks() -> None:
    assert "validation.ipynb" in {path.name for path in NOTEBOOKS}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_committed_without_outputs(path: Path) -> None:
    for cell in read(path).cells:
        if cell.cell_type == "code":
            assert cell.outputs == [], f"strip the outputs: {cell.source[:60]}"
            assert cell.execution_count is None
            assert "execution" not in cell.metadata


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=name_of)
def test_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of its own: what Jupyter, IPython and matplotlib keep goes there too, whatever HOME is."""
    for package in PACKAGES:
        pytest.importorskip(package, reason=f"notebooks need {package}: pip install 'gemm_eval[dev]'")
    import nbclient

    work = tmp_path / "work"
    work.mkdir()
    for variable in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR", "MPLCONFIGDIR"):
        folder = tmp_path / variable.lower()
        folder.mkdir()
        monkeypatch.setenv(variable, str(folder))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
    notebook = read(path)
    resources = {"metadata": {"path": str(work)}}
    client = nbclient.NotebookClient(notebook, timeout=LIMIT_S, kernel_name="python3", resources=resources)
    client.execute()

    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in outputs if output.output_type == "error"]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    assert list(work.iterdir()) == []
