"""Files that say something of the project: to a package index, to pip, to who cites it, to pytest."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools import durations

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CITATION: dict[str, Any] = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))


def classified(prefix: str) -> list[str]:
    """What classifiers that begin with `prefix` say after it."""
    return [line.removeprefix(prefix) for line in PROJECT["classifiers"] if line.startswith(prefix)]


def test_classifiers_are_known() -> None:
    known = pytest.importorskip("trove_classifiers", reason="hatchling brings it: pip install 'gemm_eval[dev]'")
    listed = PROJECT["classifiers"]

    assert set(listed) <= known.classifiers
    assert not set(listed) & known.deprecated_classifiers.keys()
    assert listed == sorted(set(listed))


def test_pythons_begin_with_the_lowest_one() -> None:
    minors = [int(minor) for minor in classified("Programming Language :: Python :: 3.")]

    assert PROJECT["requires-python"] == f">=3.{minors[0]}"
    assert minors == list(range(minors[0], minors[-1] + 1))


def test_every_cuda_has_an_extra() -> None:
    extras = PROJECT["optional-dependencies"]
    cudas = {re.match(r"cupy-cuda(\d+)x\[ctk\]", extras[extra][-1])[1] for extra in ("gpu", "gpu-cuda12")}  # type: ignore[index]

    assert cudas == set(classified("Environment :: GPU :: NVIDIA CUDA :: "))


def test_citation_repeats_the_project() -> None:
    same = ("version", "license", "keywords", "authors")
    assert {key: CITATION[key] for key in same} == {key: PROJECT[key] for key in same}
    assert CITATION["abstract"] == PROJECT["description"]
    assert CITATION["title"].partition(":")[0] == PROJECT["name"]


def test_citation_has_what_its_format_asks_for() -> None:
    """Citation File Format 1.2.0: required keys, and none that it does not know among those we would write."""
    assert CITATION["cff-version"] == "1.2.0"
    assert CITATION["type"] == "software"
    assert CITATION["message"]
    assert CITATION["authors"]
    known = {"abstract", "authors", "cff-version", "date-released", "doi", "identifiers", "keywords", "license"}
    known |= {"message", "repository-code", "title", "type", "url", "version"}
    assert CITATION.keys() <= known


def test_tests_that_are_listed_as_slow_are_there() -> None:
    for name in durations.slow_names():
        path, _, test = name.partition("::")
        assert (ROOT / path).exists(), name
        assert not test or f"def {test.partition('[')[0]}(" in (ROOT / path).read_text(encoding="utf-8"), name
