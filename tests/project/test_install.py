"""Wheel and sdist hold what is needed, and work where nothing else is; packaged data are found wherever they lie."""

import csv
import importlib.util
import json
import os
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from gemm_eval import GEMMEvaluator
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


def test_data_inside_the_package_win_over_those_beside_it(package: Path) -> None:
    inside, beside = package / "_arch_data", package.parent / "arch"
    beside.mkdir()
    with pytest.raises(ArchNotFoundError, match="reinstall gemm_eval"):  # a stranger named arch is not our data
        _paths.data_root()
    for folder in (beside, inside):
        (folder / "multicore").mkdir(parents=True)
        _paths.data_root.cache_clear()
        assert _paths.data_root() == folder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both, made from the same files."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("building offline needs hatchling: pip install 'gemm_eval[dev]'")
    folder = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, check=True, capture_output=True, cwd=ROOT)
    return folder


@pytest.fixture
def wheel(built: Path) -> Path:
    (found,) = built.glob("gemm_eval-*.whl")
    return found


@pytest.fixture
def sdist(built: Path) -> Path:
    (found,) = built.glob("gemm_eval-*.tar.gz")
    return found


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


@pytest.mark.slow
def test_sdist_contents(sdist: Path) -> None:
    """All that is kept in git, tests and notebooks too; CI's script is of one workplace."""
    if not (ROOT / ".git").exists():
        pytest.skip("what is kept is known in a checkout only")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    listed = subprocess.run(["git", "ls-files", "-z"], check=True, capture_output=True, text=True, cwd=ROOT).stdout
    kept = {name for name in listed.split("\0") if name and (ROOT / name).is_file()}

    assert {name for name in kept - names if not name.startswith(".ci/")} == set()
    assert {"PKG-INFO", "pyproject.toml", "CITATION.cff", "LICENSE", "gemm_eval/py.typed"} <= names
    assert not [
        name for name in names if name.endswith((".pyc", ".nbi", ".nbc")) or name.startswith((".venv", "dist/"))
    ]


def digests(record: str) -> dict[str, str]:
    """SHA-256 by file of a RECORD, of files that a wheel brings."""
    return {
        name: digest
        for name, digest, _ in csv.reader(record.splitlines())
        if (name.startswith("gemm_eval/") and not name.endswith(".pyc"))
        or name.endswith(("/METADATA", "/entry_points.txt", "/LICENSE"))
    }


@pytest.mark.slow
def test_wheel_and_sdist_in_a_clean_environment(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    """Installed one after the other as by a user, dependencies from the package index: same files, same answers."""
    clean = tmp_path / "clean"
    venv.create(clean, with_pip=False, symlinks=True)
    (site,) = clean.glob("lib/python*/site-packages")
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(clean / "bin" / "python")]

    def run(*command: str) -> str:
        done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path, env=env)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    if subprocess.run(
        [*pip, "download", "--no-deps", "--quiet", "hatchling"], check=False, capture_output=True, cwd=tmp_path, env=env
    ).returncode:
        assert not os.environ.get("CI"), "CI has a package index"
        pytest.skip("installing into a clean environment needs a package index")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    brought = digests(zipfile.ZipFile(wheel).read(f"gemm_eval-{version}.dist-info/RECORD").decode())
    expected_us = GEMMEvaluator("demo-8core").evaluate(1, 64, 64, 64).latency_us
    program = str(clean / "bin" / "gemm-eval")
    for package in (wheel, sdist):  # pip builds a wheel from the sdist, with nothing but what `build-system` asks for
        run(*pip, "install", "--no-compile", "--quiet", str(package))
        assert digests((site / f"gemm_eval-{version}.dist-info" / "RECORD").read_text(encoding="utf-8")) == brought
        assert run(program, "--version") == f"gemm-eval {version}\n"
        document = json.loads(run(program, "evaluate", "--arch", "demo-8core", "1", "64", "64", "64", "--json"))
        assert document["results"][0]["latency_us"] == expected_us
        run(*pip, "uninstall", "--yes", "--quiet", "gemm_eval")
        assert not list(site.glob("gemm_eval*")), "what stays behind could stand in for what the next one lacks"
