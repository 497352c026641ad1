"""Safe YAML reading: plain data only, bounded size, no aliases, no duplicate keys, YAML 1.2 floats."""

from __future__ import annotations

import re
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
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.constructor.ConstructorError(None, None, "aliases are not allowed", None)
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
            if key_node.value in seen:
                message = f"{key_node.value!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, message, key_node.start_mark)
            seen.add(key_node.value)
        return super().construct_mapping(node, deep)


# PyYAML follows YAML 1.1, where 1e9 is a string; users (and YAML 1.2) mean a number.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)[eE][-+]?[0-9]+$"),
    list("-+0123456789."),
)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read one YAML file whose top level is a mapping.

    Raises:
        ArchNotFoundError: the file is missing or unreadable.
        ArchValidationError: it is too large, no UTF-8 text, no YAML, hostile, or its top level is no mapping.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ArchNotFoundError(f"cannot read {path}: {error.strerror or error}") from error
    if len(raw) > _MAX_FILE_BYTES:
        raise ArchValidationError(f"{path}: larger than {_MAX_FILE_BYTES:,} bytes, which no spec needs")
    try:
        data = yaml.load(raw.decode("utf-8"), Loader=_Loader)  # a SafeLoader
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        raise ArchValidationError(f"{path}: not a readable YAML spec: {error}") from error
    if not isinstance(data, dict) or not all(isinstance(key, str) for key in data):
        raise ArchValidationError(f"{path}: the top level must be a mapping of field names")
    return data
