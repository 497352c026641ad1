"""Files of specs: where packaged data lie, and safe YAML: plain data, bounded size, no aliases, YAML 1.2 floats."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from gemm_eval.errors import ArchNotFoundError, ArchValidationError
from gemm_eval.storage import read_bounded
from gemm_eval.words import one_line, shown


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


_MAX_FILE_BYTES = 1 << 20
_MAX_DEPTH = 32
_MAX_EVENTS = 50_000  # keys, values, ends of lists: a megabyte of short ones would take seconds
_MAX_MESSAGE_CHARS = 300

# libyaml is ten times as fast, and part of every wheel of PyYAML.
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):  # type: ignore[misc]
    """A safe loader that refuses what a spec never needs and an attacker might use; `_check_events` comes before."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise _refusal("keys must be plain names", key_node.start_mark)
            if key_node.value == "<<":
                raise _refusal("merge keys are not allowed", key_node.start_mark)
            if key_node.value in seen:
                raise _refusal(f"{shown(key_node.value)} is given twice", key_node.start_mark)
            seen.add(key_node.value)
        mapping: dict[Any, Any] = super().construct_mapping(node, deep)
        return mapping


# The core schema of YAML 1.2. PyYAML follows 1.1, where 1e9 is a string, "no" a bool, 010 is 8 and 1:30 is 90, and a
# long row of such digits takes minutes. Numbers that are longer stay strings, which no field takes.
_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"~|null|Null|NULL|", "~nN\0"),
    ("int", r"[-+]?(?:0|[1-9][0-9_]{0,40})|0x[0-9a-fA-F]{1,16}", "-+0123456789"),
    ("float", r"[-+]?(?:[0-9][0-9_]{0,40}(?:\.[0-9_]{0,40})?|\.[0-9_]{1,40})(?:[eE][-+]?[0-9]{1,4})?", "-+.0123456789"),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+."),
):
    _firsts = ["" if char == "\0" else char for char in _first]
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _firsts)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read one YAML file whose top level is a mapping.

    Raises:
        ArchNotFoundError: the file is missing, unreadable or no regular file.
        ArchValidationError: it is larger than 1 MiB or 50,000 keys and values, nested deeper than 32 levels, no UTF-8
            text, no YAML, hostile, or its top level is no mapping.
    """
    raw = read_bounded(path, _MAX_FILE_BYTES, "spec", unreadable=ArchNotFoundError, too_large=ArchValidationError)
    try:
        text = raw.decode("utf-8")
        _check_events(text)
        data = yaml.load(text, Loader=_Loader)  # a safe loader
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        message = one_line(str(error), _MAX_MESSAGE_CHARS)
        raise ArchValidationError(f"{path}: not a readable YAML spec: {message}") from error
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise ArchValidationError(f"{path}: the top level must be a mapping of field names")
    return data


def read_value(text: str) -> Any:
    """Return the number, truth value, list or table that a text spells as YAML; what spells none stays a text."""
    try:
        _check_events(text)
        return yaml.load(text, Loader=_Loader)  # a safe loader
    except (yaml.YAMLError, ValueError, OverflowError):
        return text


def _check_events(text: str) -> None:
    """Refuse what is too deep or too long, aliases and tags, before anything is built of them."""
    depth = 0
    events: Iterator[Any] = yaml.parse(text, Loader=_Loader)
    for number, event in enumerate(events):
        if number > _MAX_EVENTS:
            raise _refusal(f"more than {_MAX_EVENTS:,} keys and values", event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            raise _refusal("aliases are not allowed", event.start_mark)
        if getattr(event, "tag", None) is not None:
            raise _refusal(f"tags ({shown(event.tag)}) are not allowed", event.start_mark)
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise _refusal(f"nested deeper than {_MAX_DEPTH} levels", event.start_mark)


def _refusal(problem: str, mark: Any) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, mark)
