"""Safe YAML reading: plain data only, bounded size, no aliases, no duplicate keys, YAML 1.2 floats."""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Any

import yaml

from gemm_eval.errors import ArchNotFoundError, ArchValidationError

__all__ = ["read_yaml"]

_MAX_FILE_BYTES = 1 << 20
_MAX_DEPTH = 32


class _Loader(yaml.SafeLoader):
    """`yaml.SafeLoader` that refuses what a spec never needs and an attacker might use."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.events.AliasEvent):
            raise yaml.constructor.ConstructorError(None, None, "aliases are not allowed", None)
        if getattr(event, "tag", None) is not None:
            raise yaml.constructor.ConstructorError(None, None, f"tags ({event.tag}) are not allowed", event.start_mark)
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            raise yaml.constructor.ConstructorError(None, None, f"nested deeper than {_MAX_DEPTH} levels", None)
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "keys must be plain names", key_node.start_mark)
            if key_node.value == "<<":
                raise yaml.constructor.ConstructorError(None, None, "merge keys are not allowed", key_node.start_mark)
            if key_node.value in seen:
                message = f"{key_node.value!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, message, key_node.start_mark)
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


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
        ArchNotFoundError: the file is missing or unreadable.
        ArchValidationError: it is too large, no UTF-8 text, no YAML, hostile, or its top level is no mapping.
    """
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a pipe or device might never end
            raise ArchNotFoundError(f"cannot read {path}: not a file")
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ArchNotFoundError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:  # a path that the file system cannot spell
        raise ArchNotFoundError(f"cannot read {str(path)!r}: {error}") from error
    if len(raw) > _MAX_FILE_BYTES:
        raise ArchValidationError(f"{path}: larger than {_MAX_FILE_BYTES:,} bytes, which no spec needs")
    try:
        data = yaml.load(raw.decode("utf-8"), Loader=_Loader)  # a SafeLoader
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise ArchValidationError(f"{path}: not a readable YAML spec: {error}") from error
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise ArchValidationError(f"{path}: the top level must be a mapping of field names")
    return data
