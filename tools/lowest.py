"""Print the lowest versions that pyproject.toml promises to work with, as constraints for pip.

python tools/lowest.py > lowest.txt && pip install -c lowest.txt -e ".[sweep]"
"""

import re
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"
_BOUND = re.compile(r"(?P<name>[\w.-]+)(\[[\w,]+\])?>=(?P<version>[\w.]+)(;.*)?")


def requirements() -> dict[str, list[str]]:
    """Requirements by extra; those of the core are under ``""``."""
    project: dict[str, Any] = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    return {"": project["dependencies"]} | extras


def lower_bounds() -> dict[str, set[str]]:
    """Lower bounds by package; one each, or the project contradicts itself. What `dev` pins has none."""
    lines = list(chain.from_iterable(requirements().values()))
    bounds: dict[str, set[str]] = {}
    for found in filter(None, map(_BOUND.fullmatch, lines)):
        if not any(line.startswith(f"{found['name']}==") for line in lines):
            bounds.setdefault(found["name"], set()).add(found["version"])
    return bounds


if __name__ == "__main__":
    for name, versions in lower_bounds().items():
        print(*(f"{name}=={version}" for version in versions), sep="\n")
