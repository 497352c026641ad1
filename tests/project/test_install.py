"""The wheel holds what the library needs and nothing else; packaged data are found wherever they lie."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from gemm_eval.arch import paths as _paths
from gemm_eval.errors import ArchNotFoundError

ROOT = Path(__file__).resolve().parents[2]
PRESETS = sorted(
    path.relative_to(ROOT / "arch").as_posix()
    for kind in ("gpu", "multicore")
    for path in (ROOT / "arch" / kind).glob("*.yaml")
)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installation in a folder of its own: only the place of the resolver's file matters."""
    folder = tmp_path / "site" / "gemm_eval"
    (folder / "arch").mkdir(parents=True)
    monkeypatch.setattr(_paths, "__file__", str(folder / "arch" / "_paths.py"))
    _paths.data_root.cache_clear()
    yield folder  # type: ignore[misc]
    _paths.data_root.cache_clear()


def test_checkout_reads_the_folder_beside_the_package() -> None:
    assert _paths.data_root() == ROOT / "arch"
    assert PRESETS


def test_data_inside_the_package_win(package: Path) -> None:
    inside, beside = package / "_arch_data", package.parent / "arch"
    for folder in (inside, beside):
        (folder / "multicore").mkdir(parents=True)

    assert _paths.data_root() == inside


def test_data_beside_the_package_are_found(package: Path) -> None:
    (package.parent / "arch" / "multicore").mkdir(parents=True)

    assert _paths.data_root() == package.parent / "arch"


def test_a_stranger_named_arch_is_not_our_data(package: Path) -> None:
    (package.parent / "arch").mkdir()
    with pytest.raises(ArchNotFoundError, match="reinstall gemm_eval"):
        _paths.data_root()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for needed in ("hatchling", "pip"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"building a wheel offline needs {needed}")
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-w",
        str(folder),
        str(ROOT),
    ]
    subprocess.run(command, check=True, capture_output=True, cwd=folder)
    (built,) = folder.glob("gemm_eval-*.whl")
    return built


@pytest.mark.slow
def test_wheel_contents(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    folders = ("gemm_eval/_arch_data/multicore/", "gemm_eval/_arch_data/gpu/")
    data = [name.removeprefix("gemm_eval/_arch_data/") for name in names if name.startswith(folders)]

    assert sorted(data) == PRESETS
    assert {"gemm_eval/py.typed", "gemm_eval/models/multicore/MODEL.md", "gemm_eval/__init__.py"} <= set(names)
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"gemm_eval"}
    assert not [name for name in names if "tests" in name.split("/") or name.endswith((".pyc", ".nbi", ".nbc"))]
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "gemm_eval").rglob("*.py")}
    assert {name for name in names if name.endswith(".py")} == modules
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "gemm_eval" / "kernels" / "cuda").iterdir()}
    assert sources
    assert sources <= set(names)


@pytest.mark.slow
def test_wheel_works_by_itself(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    code = (
        "import gemm_eval as g; print(g.__file__, len(g.list_archs()), g.load_arch('sg2260e').num_cores);"
        "from gemm_eval.arch import data_root; print(data_root())"
    )
    env = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=tmp_path, env=env
    )

    file, num, cores, data = done.stdout.split()
    assert Path(file).is_relative_to(tmp_path)
    assert Path(data).name == "_arch_data"
    assert (int(num), int(cores)) == (len([name for name in PRESETS if "/_" not in name]), 4)
