"""Finding, inheriting, validating and checking architecture specs."""

import os
import re
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, overload

import numpy as np
from pydantic import BaseModel, ValidationError

from gemm_eval.arch.common import read_yaml
from gemm_eval.arch.gpu import ALIASES, GpuSpec, gpu_slug
from gemm_eval.arch.multicore import MulticoreSpec, with_calibration
from gemm_eval.arch.paths import data_root, preset_files
from gemm_eval.errors import ArchNotFoundError, ArchValidationError
from gemm_eval.units import UnitError, in_unit_of, unit_of
from gemm_eval.words import did_you_mean, one_line, refusal, shown

ArchSpec = MulticoreSpec | GpuSpec
"""A chip of either kind."""

_KINDS: dict[str, type[MulticoreSpec] | type[GpuSpec]] = {"multicore": MulticoreSpec, "gpu": GpuSpec}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MAX_BASES = 8
_MAX_PROBLEMS = 6  # a file of the wrong kind has dozens
_MAX_DEPTH = 4  # of tables in tables
_ENTRY_KEYS = {"value", "kind", "source"}

SpecT = TypeVar("SpecT", bound=BaseModel)
ArchT = TypeVar("ArchT", bound=MulticoreSpec | GpuSpec)


def list_archs() -> tuple[str, ...]:
    """Return the names of the architectures that come with the library, of all kinds, sorted."""
    return tuple(sorted(preset_files(*_KINDS)))


@overload
def load_arch(name_or_path: str | os.PathLike[str], *, calibrated: bool = ...) -> ArchSpec: ...
@overload
def load_arch(name_or_path: str | os.PathLike[str], expect: type[ArchT], *, calibrated: bool = ...) -> ArchT: ...
def load_arch(name_or_path: str | os.PathLike[str], expect: type[Any] | None = None, *, calibrated: bool = True) -> Any:
    """Load an architecture by preset name (``"sg2260e"``) or from a YAML file (``"my/chip.yaml"``).

    A file may say ``base: other`` and give only what differs; other is a preset's name, a path relative to the file, or
    a generation of SMs, ``_sm90.yaml``. A number is given bare, or as ``{value: 8, kind: spec, source: where}``; kind
    is spec, derived, measured, fitted or assumed.

    Args:
        name_or_path: A preset's name, or the path of a YAML file.
        expect: The class that the caller can use, `MulticoreSpec` or `GpuSpec`; by default either.
        calibrated: Take numbers that were fitted on timings of a multi-core preset; False: what its YAML says.

    Raises:
        ArchNotFoundError: no such preset or file.
        ArchValidationError: malformed, unsafe or inconsistent content, or not the kind that `expect` says; the message
            names file and field.

    Warns:
        UserWarning: a number of a file of your own is one that no chip is likely to have, such as a clock of 1,200 GHz.
    """
    path = _resolve(name_or_path)
    data = _read_with_bases(path, (), calibrated)
    data.setdefault("name", path.stem)
    kind = data.get("type", "multicore")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ArchValidationError(f"{refusal('type', kind, _KINDS)} ({path}: type)")
    model = _KINDS[kind]
    if expect is not None and model is not expect:
        wanted = next((name for name, known in _KINDS.items() if known is expect), shown(expect))
        raise ArchValidationError(f"type must be {wanted} here, got {kind} ({path}: type)")
    spec = build_spec(model, data, origin=str(path))
    if data_root() not in path.parents:
        for sentence in spec.implausible_numbers():
            warnings.warn(f"{path}: {sentence}", stacklevel=2)
    return spec


_TEXTS = {"sources", "provenance"}


def build_spec(model: type[SpecT], data: Mapping[str, Any], *, origin: str) -> SpecT:
    """Validate `data` as `model`, turning pydantic's errors into one readable `ArchValidationError`."""
    try:
        return model.model_validate(
            {key: value if key in _TEXTS else _plain(value, key) for key, value in data.items()}
        )
    except UnitError as error:
        raise ArchValidationError(f"{error} ({origin})") from None
    except ValidationError as error:
        problems = error.errors(include_url=False)
        lines = [_describe(dict(item), model, origin) for item in problems[:_MAX_PROBLEMS]]
        more = [f"and {len(problems) - _MAX_PROBLEMS} more problems"] if len(problems) > _MAX_PROBLEMS else []
        raise ArchValidationError("; ".join(lines + more)) from None


def _plain(value: Any, field: str, depth: int = 0) -> Any:
    """Turn numpy scalars and texts with a unit into Python numbers; the models themselves are strict."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping) and depth < _MAX_DEPTH:  # deeper ones, endless ones too, the models refuse
        # entries of a table by type have the unit of the table
        return {
            key: _plain(item, key if isinstance(key, str) and unit_of(key) else field, depth + 1)
            for key, item in value.items()
        }
    return in_unit_of(field, value)


def _resolve(name_or_path: str | os.PathLike[str], relative_to: Path | None = None) -> Path:
    if not isinstance(name_or_path, str | os.PathLike):
        raise ArchNotFoundError(f"an arch is given by name or path, got {shown(name_or_path)}")
    text = os.fspath(name_or_path)
    if not isinstance(text, str) or "\0" in text:
        raise ArchNotFoundError(f"no arch of the name {shown(text)}")
    is_path = isinstance(name_or_path, os.PathLike) or text.endswith((".yaml", ".yml")) or os.sep in text
    if is_path:
        path = Path(text)
        if relative_to is None or path.is_absolute():
            return path
        generation = data_root() / "gpu" / text  # such as _sm90.yaml, the base of presets
        is_generation = text.startswith("_") and os.sep not in text and not (relative_to / path).exists()
        return generation if is_generation else relative_to / path
    presets = preset_files(*_KINDS)
    if _NAME.fullmatch(text) and text in presets:
        return presets[text]
    if (alias := ALIASES.get(text, "")) in presets:
        return presets[alias]
    of_driver = gpu_slug(text)
    meant = of_driver if of_driver in presets else text
    hint = did_you_mean(meant, sorted(presets)) or f"; known: {', '.join(sorted(presets))}"
    raise ArchNotFoundError(f"no arch of the name {shown(text)}{hint} (a file is given by its path, ending in .yaml)")


def _read_with_bases(path: Path, seen: tuple[Path, ...], calibrated: bool) -> dict[str, Any]:
    content = read_yaml(path)
    resolved = path.resolve()  # quick, now that the path is known to be one
    if resolved in seen:
        raise ArchValidationError(f"base: goes round in a circle at {path} ({seen[-1]}: base)")
    if len(seen) >= _MAX_BASES:
        raise ArchValidationError(f"more than {_MAX_BASES} levels of base ({path}: base)")
    own = split_provenance(content, str(path))
    if calibrated and path.parent == data_root() / "multicore":
        own = with_calibration(own, path.stem)
    base = own.pop("base", None)
    if base is None:
        return own
    if not isinstance(base, str):
        raise ArchValidationError(f"base must be a preset name or a path, got {shown(base)} ({path}: base)")
    data = _read_with_bases(_resolve(base, relative_to=path.parent), (*seen, resolved), calibrated)
    data.pop("name", None)  # a child's name is its own
    data.pop("published", None)  # published figures, and timings, speak of the base chip
    data.pop("calibration", None)
    given = {key for key, value in own.items() if not _is_partial(key, value, data)}
    given |= {f"{_PARTIAL}.{key}" for key in own[_PARTIAL]} if _PARTIAL in own.keys() - given else set()
    inherited = {
        key: value for key, value in data.pop("provenance", {}).items() if given.isdisjoint((key.split(".")[0], key))
    }
    sources = data.get("sources", {})
    merged = data | own
    if _PARTIAL in own.keys() - given:
        merged[_PARTIAL] = data[_PARTIAL] | own[_PARTIAL]
    merged["provenance"] = inherited | own["provenance"]
    cited = repr((merged["provenance"], merged.get("published"), merged.get("notes")))
    if not isinstance(own.get("sources", {}), dict):
        raise ArchValidationError(
            f"sources must be a table of references, got {shown(own['sources'])} ({path}: sources)"
        )
    kept = {key: text for key, text in sources.items() if key in cited}  # the base may cite more than the child does
    merged["sources"] = kept | own.get("sources", {})
    return merged


_PARTIAL = "interconnect"
"""The table of which a file with a base may give some entries alone."""


def _is_partial(key: str, value: Any, base: Mapping[str, Any]) -> bool:
    return key == _PARTIAL and isinstance(value, dict) and isinstance(base.get(key), dict)


def split_provenance(raw: Mapping[str, Any], origin: str) -> dict[str, Any]:
    """Turn ``field: {value, kind, source}`` into plain fields and a provenance table.

    Raises:
        ArchValidationError: an entry has other keys; `origin` names the file in the message.
    """
    data: dict[str, Any] = {}
    provenance: dict[str, Any] = {}

    def plain(key: str, value: Any) -> Any:
        if not (isinstance(value, dict) and "value" in value):
            return value
        if set(value) != _ENTRY_KEYS:
            raise ArchValidationError(
                f"{one_line(key)} takes exactly value, kind and source, got {shown(list(value))} ({origin})"
            )
        provenance[key] = {"kind": value["kind"], "source": value["source"]}
        return value["value"]

    def plain_table(key: str, value: Any) -> Any:
        if isinstance(value, dict) and "value" not in value:
            return {inner: plain_table(f"{key}.{inner}", item) for inner, item in value.items()}
        return plain(key, value)

    for key, value in raw.items():
        data[key] = (plain if key in ("published", "sources", "provenance") else plain_table)(key, value)
    if "provenance" in data:
        raise ArchValidationError(f"provenance is written beside each number, not apart ({origin}: provenance)")
    data["provenance"] = provenance
    return data


_RANGE_WORDS = {"greater_than": ("gt", ">"), "greater_than_equal": ("ge", ">="), "less_than": ("lt", "<"),
                "less_than_equal": ("le", "<=")}  # fmt: skip


def _describe(item: dict[str, Any], model: type[BaseModel], origin: str) -> str:
    field = one_line(".".join(str(part) for part in item["loc"] if part != "[key]"))
    context = item.get("ctx", {})
    kind = item["type"]
    if kind == "extra_forbidden":
        return f"{field} is not a field{did_you_mean(field, model.model_fields)} ({origin}: {field})"
    if kind == "missing":
        return f"{field} must be given ({origin}: {field})"
    if kind == "value_error":
        return f"{context['error']} ({origin})"
    if kind in _RANGE_WORDS:
        key, sign = _RANGE_WORDS[kind]
        rule = f"must be {sign} {context[key]}"
    else:
        message: str = item["msg"]
        _, should, rest = message.partition(" should ")
        rule = f"must {rest}" if should else message
    return f"{field} {rule}, got {shown(item['input'])} ({origin}: {field})"


PUBLISHED_TOLERANCE_FRAC = 0.01
"""How far a figure of a spec may be from the published one: makers round their headlines to two or three digits."""

_NOTE = "note: "


class CheckFinding(NamedTuple):
    """One thing that a check looked at."""

    field: str
    ok: bool
    message: str

    @property
    def is_note(self) -> bool:
        """True for a remark, which is neither right nor wrong; a note is always `ok`."""
        return self.message.startswith(_NOTE)


def check_arch(arch: ArchSpec) -> list[CheckFinding]:
    """Check that a spec reproduces its published figures within 1%; note odd numbers, and those without a source.

    A spec that does not hold together never gets this far: `load_arch` refuses it.

    Returns:
        Findings on published figures first, then notes. The spec is sound when all of them are `ok`.
    """
    notes = (CheckFinding(text.split()[0], True, f"{_NOTE}{text}") for text in arch.implausible_numbers())
    return [*_compare_with_published(arch), *notes, *_note_unsourced_numbers(arch)]


def _compare_with_published(arch: ArchSpec) -> Iterator[CheckFinding]:
    published = arch.published
    if published is None:
        yield CheckFinding("published", True, f"{_NOTE}no published figures to compare with")
        return
    table = "tensor_flop_per_cycle" if isinstance(arch, GpuSpec) else "cube_steps_per_cycle"
    for dtype, peak in published.peak_tflop_per_s.items():
        field = f"peak_tflop_per_s.{dtype}"
        if dtype in getattr(arch, table):
            yield _compare(field, arch.peak_tflop_per_s(dtype), peak, "TFLOP/s")
        else:
            yield CheckFinding(field, False, f"{peak:,} TFLOP/s published, but {table} has no {dtype}")
    if published.dram_gb_per_s is not None:
        yield _compare("dram_gb_per_s", arch.dram_gb_per_s, published.dram_gb_per_s, "GB/s")
    if isinstance(arch, GpuSpec):
        num_cores, sram_bytes, cores = arch.num_sms, arch.smem_per_sm_bytes, "SMs"
    else:
        num_cores, sram_bytes, cores = arch.num_cores, arch.sram_bytes, "cores"
    if published.num_sms is not None:
        is_same = cores == "SMs" and num_cores == published.num_sms
        yield CheckFinding("num_sms", is_same, f"{num_cores:,} {cores}, published {published.num_sms:,} SMs")
    if published.sram_bytes is not None:
        yield _compare("sram_bytes", num_cores * sram_bytes, published.sram_bytes, f"bytes in all {cores}")


def _compare(field: str, derived: float, published: float, unit: str) -> CheckFinding:
    is_close = abs(derived - published) <= PUBLISHED_TOLERANCE_FRAC * published
    difference = f"{derived / published - 1.0:+.2%}"
    allowed = "" if is_close else f", more than {PUBLISHED_TOLERANCE_FRAC:.0%} apart"
    return CheckFinding(field, is_close, f"{derived:,.10g} {unit}, published {published:,.10g} ({difference}{allowed})")


def _note_unsourced_numbers(arch: ArchSpec) -> Iterator[CheckFinding]:
    for field in type(arch).model_fields:
        if field not in arch.model_fields_set or field in arch.provenance:  # a default is the library's, not the file's
            continue
        for name, entry in _entries(field, getattr(arch, field)):
            if isinstance(entry, int | float) and not isinstance(entry, bool) and name not in arch.provenance:
                yield CheckFinding(name, True, f"{_NOTE}{entry:,} has no kind and source")


def _entries(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        yield path, value
        return
    for key, item in value.items():
        yield from _entries(f"{path}.{key}", item)
