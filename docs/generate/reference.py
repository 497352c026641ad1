"""Pages written from the code: every field of architecture files, and every coefficient of the GPU model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from command_line import command_line_page
from pydantic import BaseModel

from gemm_eval.arch import (
    ChipLink,
    GpuSpec,
    Interconnect,
    LibraryPath,
    LibraryRules,
    MulticoreCalibration,
    MulticoreErrors,
    MulticoreSpec,
    Network,
    Provenance,
    Published,
)
from gemm_eval.models.gpu import COEFFICIENTS, MOE_LAYER, Calibration, Coefficient, ErrorFigures, Spread
from gemm_eval.models.gpu.attention.latent import LATENT_CONTEXT, SPLIT_LATENTS, WHOLE_LATENTS
from gemm_eval.models.gpu.attention.rows import (
    CONTEXT,
    CONTEXT_MMA,
    CONTEXT_PLAIN,
    PACKED_HEADS,
    PACKED_PLAIN,
    SINGLE_HEADS,
)
from gemm_eval.models.gpu.coefficients import LONE_OWN, QUANTIZATION, TRITON_OWN, TRTLLM_OWN
from gemm_eval.models.gpu.collective import COLLECTIVE_COEFFICIENTS
from gemm_eval.models.gpu.memory_bound import MEMORY_BOUND_COEFFICIENTS, SWITCH_COEFFICIENTS
from gemm_eval.models.gpu.triton.model import TRITON_COEFFICIENTS
from gemm_eval.models.gpu.w4a16.coefficients import W4A16_COEFFICIENTS

__all__ = ["COEFFICIENT_TABLES", "MODELS", "PAGES", "SpecField", "spec_fields"]

MODELS: Mapping[str, tuple[type[BaseModel], ...]] = {
    "Multi-core chips": (MulticoreSpec, ChipLink, LibraryRules, LibraryPath),
    "GPUs": (GpuSpec, Interconnect, Network),
    "What both have": (Published, Provenance),
    "Calibrations": (MulticoreCalibration, MulticoreErrors, Calibration, ErrorFigures, Spread),
}
"""Models of files, by the section that they stand in."""

COEFFICIENT_TABLES: Mapping[str, Sequence[Coefficient]] = {
    "GEMMs, every family": COEFFICIENTS,
    "Quantization of A": QUANTIZATION,
    "TensorRT-LLM's own kernels": TRTLLM_OWN,
    "cuBLAS's kernels of tf32 and fp32": LONE_OWN,
    "Triton's grouped kernels": TRITON_OWN,
    "Layers of experts": MOE_LAYER,
    "Our W4A16 kernels": [item.coefficient for item in W4A16_COEFFICIENTS],
    "Triton kernels, config by config": TRITON_COEFFICIENTS,
    "Attention, prompts": (*CONTEXT, *CONTEXT_MMA, *CONTEXT_PLAIN),
    "Attention, decode": (*PACKED_HEADS, *PACKED_PLAIN, *SINGLE_HEADS),
    "Attention, latents": (*LATENT_CONTEXT, *WHOLE_LATENTS, *SPLIT_LATENTS),
    "Messages between GPUs": COLLECTIVE_COEFFICIENTS,
    "Memory-bound kernels": MEMORY_BOUND_COEFFICIENTS,
    "A kernel in a step": SWITCH_COEFFICIENTS,
}
"""Coefficients by what they belong to."""

_UNITS = {
    "_tflop_per_s": "1e12 FLOP/s",
    "_flop_per_cycle": "FLOP a cycle",
    "_ops_per_cycle": "operations a cycle",
    "_slots_per_cycle": "instructions a cycle",
    "_steps_per_cycle": "steps a cycle",
    "_bytes_per_cycle": "bytes a cycle",
    "_pj_per_byte": "pJ a byte",
    "_ops_per_elem": "operations an element",
    "gb_per_s": "1e9 bytes/s",
    "_percent": "percent",
    "_cycles": "cycles",
    "_bytes": "bytes",
    "_frac": "share",
    "_ghz": "GHz",
    "_mm2": "mm2",
    "_us": "us",
    "_ns": "ns",
    "_pj": "pJ",
    "_w": "W",
}
"""Suffix of a field -> its unit; the first that fits. Names without one are counts, words or tables of words."""

_BOUNDS = {
    "pattern": "matches `{}`",
    "maxLength": "at most {} characters",
    "minItems": "at least {}",
    "minProperties": "at least {}",
}
_TYPES = {"number": "number", "integer": "integer", "string": "text", "boolean": "true or false"}
_INTRO = """\
# Architecture files

Every field that a YAML file of a chip or GPU can have, written from the pydantic models that check it
(`gemm_eval.arch`). A file says what kind of chip it is (`type`), may take another as its `base` and then gives only
what differs, and gives a number bare or with how it is known:

```yaml
base: sg2260                  # a preset, or a path relative to this file
name: my-chip
num_cores: 16
sram_bytes: {value: 4 MiB, kind: assumed, source: "twice the preset's"}
```

```python
from gemm_eval import GEMMEvaluator, load_arch

chip = load_arch("demo-8core").with_(num_cores=16)  # or load_arch("my-chip.yaml")
print(GEMMEvaluator(chip).evaluate(1, 2048, 4096, 4096).latency_us)
```

`kind` is spec, derived, measured, fitted or assumed. A number has the unit at the end of its field's name, or is given
with another one: `1.5 MiB`, `2 TB/s`, `1800 MHz`, `400 Gb/s`. Of `interconnect` a file with a `base` may give some
entries alone. Unknown fields and units, and numbers out of range, are errors that name the file and the field:
`gemm-eval arch check FILE`. Presets: `gemm-eval arch list`, `arch show NAME`.
"""
_COEFFICIENT_INTRO = """\
# Coefficients of the GPU model

What kernels lose beyond what the chip's spec says, written from the code. `c.NAME` in the
[GPU model](../models/gpu.md) is the coefficient of that name; fits stay within the ranges, and a term is absent where
its coefficient has the neutral value. Values of a GPU: `arch/calibration/<gpu>`.
"""


class SpecField(NamedTuple):
    """A line of a table."""

    name: str
    kind: str
    unit: str
    default: str
    limits: str
    description: str


def spec_fields(model: type[BaseModel]) -> list[SpecField]:
    """Return the fields of a model, in its order.

    Raises:
        LookupError: a field has no description.
    """
    schema = model.model_json_schema()
    required, found = set(schema.get("required", ())), []
    for name, entry in schema["properties"].items():
        if not entry.get("description"):
            raise LookupError(f"{model.__name__}.{name} has no description")
        shown = "required" if name in required else _default(entry.get("default"))
        limits = "; ".join(dict.fromkeys(_limits(entry)))
        description = entry["description"]
        found.append(SpecField(name, _kind(entry), _unit(name), shown, limits, description))
    return found


def _limits(entry: Mapping[str, Any]) -> list[str]:
    """Limits of a value, or of the values of a table, in words."""
    if "anyOf" in entry:
        return [limit for one in entry["anyOf"] for limit in _limits(one)]
    limits = [words.format(entry[key]) for key, words in _BOUNDS.items() if key in entry]
    low, high = entry.get("minimum"), entry.get("maximum")
    if low is not None and high is not None:
        limits.append(f"{_number(low)} to {_number(high)}")
    elif low is not None or high is not None:
        limits.append(f">= {_number(low)}" if high is None else f"<= {_number(high)}")
    if "minLength" in entry:  # of a table too, which pydantic calls an object
        limits.append("not empty")
    for inner in ("items", "additionalProperties"):
        if isinstance(entry.get(inner), dict):
            limits += _limits(entry[inner])
    return limits


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _default(value: Any) -> str:
    if value in (None, "", {}, []):
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return f"`{_number(value)}`"


def _unit(name: str) -> str:
    return next((unit for suffix, unit in _UNITS.items() if name.endswith(suffix)), "")


def _kind(entry: Mapping[str, Any]) -> str:
    """Return what a field takes, in words."""
    if "anyOf" in entry:
        return " or ".join(_kind(one) for one in entry["anyOf"] if one.get("type") != "null")
    if "$ref" in entry:
        return _named(entry["$ref"].rsplit("/", 1)[1])
    if "const" in entry:
        return f"`{entry['const']}`"
    if "enum" in entry:
        return " \\| ".join(f"`{word}`" for word in entry["enum"])
    if entry.get("type") == "array":
        if "prefixItems" in entry:
            return f"{len(entry['prefixItems'])} of {_kind(entry['prefixItems'][0])}"
        return f"list of {_kind(entry['items'])}"
    if entry.get("type") == "object":
        inner = entry.get("additionalProperties")
        key = _kind(entry["propertyNames"]) if "propertyNames" in entry else "name"
        return f"table: {key} to {_kind(inner) if isinstance(inner, dict) and inner else 'value'}"
    return _TYPES.get(entry.get("type", ""), "value")


def _named(name: str) -> str:
    """Return a model of this page as a link; types of data and kinds of sources in words."""
    if any(model.__name__ == name for models in MODELS.values() for model in models):
        return f"[{name}](#{name.lower()})"
    return {"DType": "data type", "ProvenanceKind": "kind"}[name]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\\\\|", "\\|")


def _architecture_files() -> str:
    lines = [_INTRO]
    for section, models in MODELS.items():
        lines.append(f"## {section}\n")
        for model in models:
            words = (model.__doc__ or "").split("\n\n")[0].replace("\n", " ").replace("``", "`")
            lines += [f"### {model.__name__}\n", " ".join(words.split()) + "\n"]
            lines += ["| field | takes | unit | default | limits | what it is |", "|---|---|---|---|---|---|"]
            for field in spec_fields(model):
                cells = (field.kind, field.unit, field.default, field.limits, field.description)
                lines.append(f"| `{field.name}` | " + " | ".join(map(_cell, cells)) + " |")
            lines.append("")
    return "\n".join(lines)


def _coefficients() -> str:
    lines = [_COEFFICIENT_INTRO]
    for title, items in COEFFICIENT_TABLES.items():
        lines += [f"## {title}\n", "| name | unit | range | default | neutral | what it is | default from |"]
        lines.append("|---|---|---|---|---|---|---|")
        for item in dict.fromkeys(items):
            neutral = f"as `{item.neutral.same_as}`" if item.neutral.same_as else f"{item.neutral.value:g}"
            cells = (
                f"`{item.name}`", item.unit, f"{item.low:g} to {item.high:g}", f"{item.default:g}",
                f"{neutral}: {item.neutral.why}", item.meaning, item.source,
            )  # fmt: skip
            lines.append("| " + " | ".join(map(_cell, cells)) + " |")
        lines.append("")
    return "\n".join(lines)


PAGES: Mapping[str, Callable[[], str]] = {
    "reference/command-line.md": command_line_page,
    "reference/architecture-files.md": _architecture_files,
    "reference/coefficients.md": _coefficients,
}
"""Page -> what writes it."""
