"""JSON schemas: what commands write with --json is valid by the schema of the command, and not without its fields."""

from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from tests.cli.commands import Ran

_MODEL = ("--arch", "h200-sxm", "--prompt", "256")
_SERVE = ("serve", "llama-3-8b", "--arch", "h200-sxm", "--isl", "256", "--osl", "64", "--tp", "1", "--concurrency", "4")


def _schema(*command: str) -> dict[str, Any]:
    schema: dict[str, Any] = Ran("schema", *command).json()
    jsonschema.Draft202012Validator.check_schema(schema)
    return schema


@pytest.mark.parametrize(
    "words",
    [
        ("evaluate", "--arch", "h200-sxm", "1", "16", "4096", "4096"),
        ("evaluate", "--arch", "h200-sxm", "--arch", "demo-8core", "1", "16,64", "4096", "4096"),
        ("attention", "--arch", "h200-sxm", "--kv", "1024", "--heads", "8"),
        ("attention", "--arch", "h200-sxm", "--kv", "1024,2048", "--heads", "8"),
        ("collective", "--arch", "h200-sxm", "all_reduce", "1MiB", "--ranks", "8"),
        ("model", "llama-3-8b", *_MODEL), ("model", "qwen3-30b-a3b", *_MODEL, "--batch", "1,4", "--engine", "vllm"),
        ("model", "llama-3-8b", "--arch", "demo-8core", "--prompt", "64", "--output", "8"),
        _SERVE, (*_SERVE, "--engine", "vllm", "--engine", "sglang"),
        (*_SERVE[:8], "--gpus", "2", "--tpot-ms", "50", "--tp", "1,2"),
        ("train", "llama-3-8b", "--arch", "h100-sxm", "--gpus", "8", "--batch", "8", "--seq-len", "1024"),
        ("moe", "--arch", "h200-sxm", "--tokens", "64", "--model", "qwen3-30b-a3b"),
        ("gemms", "llama-3-8b", "--arch", "h200-sxm"), ("prewarm", "llama-3-8b", "--arch", "h200-sxm"),
        ("kernels", "--arch", "h200-sxm", "64", "4096", "4096"), ("crossover", "4096", "4096", "--arch", "h200-sxm"),
        ("arch", "list"), ("arch", "show", "h200-sxm"), ("arch", "check", "demo-8core"),
    ],
    ids=lambda words: f"{words[0]} {len(words)}",
)  # fmt: skip
def test_documents_of_commands_are_as_their_schema_says(words: tuple[str, ...]) -> None:
    ran = Ran(*words, "--json")
    document, schema = ran.json(), _schema(*words[: 1 + (words[0] == "arch")])
    jsonschema.validate(document, schema)
    first = document["results"] if words[0] == "evaluate" else document
    first = first[0] if isinstance(first, list) else first
    del first[next(name for name in ("arch_name", "model_name", "arch", "archs", "model") if name in first)]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema)


def test_a_command_without_a_schema_is_refused() -> None:
    assert "command must be one of arch check, arch list" in Ran("schema", "validate", "dense").err
