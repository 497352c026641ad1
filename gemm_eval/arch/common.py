"""Parts that specs of all kinds share, and safe YAML: plain data, bounded, no aliases."""

import enum
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from gemm_eval.dtypes import DType
from gemm_eval.errors import ArchNotFoundError, ArchValidationError
from gemm_eval.frozen import FrozenDict
from gemm_eval.storage import read_bounded
from gemm_eval.units import implausible_numbers
from gemm_eval.words import html_table, one_line, shown

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


class L2State(enum.StrEnum):
    """Content of L2. COLD: no weights, and A and C of the call before as far as they fit. WARM: all that fits."""

    COLD = "cold"
    COLD_ALL = "cold-all"
    WARM = "warm"


class ClockState(enum.StrEnum):
    """BURST: at most about 10 ms busy after idling. SUSTAINED: so long that the power limit has set the clock."""

    BURST = "burst"
    SUSTAINED = "sustained"


MEASURED_L2_STATES = (L2State.COLD, L2State.WARM)
"""States in which configs of our kernels are timed; GEMMs drawn at random are timed with nothing in L2."""


_MAX_DIM = 1 << 16
_CHANGED = "changed by with_"
_MAX_CHANGES_SHOWN = 3
_MAX_CHANGE_CHARS = 30

K = TypeVar("K")
V = TypeVar("V")
Table = Annotated[Mapping[K, V], AfterValidator(FrozenDict)]


def frozen(value: Any) -> Any:
    """Return tables and lists of any depth as what does not change and has a hash."""
    if isinstance(value, Mapping):
        return FrozenDict((key, frozen(item)) for key, item in value.items())
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value


Fields = Annotated[Mapping[str, Any], AfterValidator(frozen)]
"""Fields of a spec with their values, which are checked where they are put in place."""

Text = Annotated[str, Field(max_length=4000)]
DTypeKey = Annotated[DType, Field(strict=False)]
Positive = Annotated[float, Field(ge=1e-12, le=1e15, allow_inf_nan=False)]  # below, times overflow to inf
NonNegative = Annotated[float, Field(ge=0, le=1e15, allow_inf_nan=False)]
Frac = Annotated[float, Field(ge=1e-12, le=1, allow_inf_nan=False)]
Dim = Annotated[int, Field(ge=1, le=_MAX_DIM)]


class ProvenanceKind(enum.StrEnum):
    """Kind of source of a number."""

    SPEC = "spec"  # the maker published it
    DERIVED = "derived"  # arithmetic on published numbers, written out in `source`
    MEASURED = "measured"
    FITTED = "fitted"
    ASSUMED = "assumed"


class Frozen(BaseModel):
    """Immutable base model without extra fields, printed in one line."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False, validate_default=True)

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield the fields that `repr` and `str` show: texts shortened, words of tables plain."""
        for name, value in super().__repr_args__():
            if isinstance(value, Mapping):
                yield name, {str(key): item for key, item in value.items()}
            else:
                yield name, one_line(value) if isinstance(value, str) else value


class Provenance(Frozen):
    """Source of one number of a spec."""

    kind: Annotated[ProvenanceKind, Field(strict=False, description="how the number is known")]
    source: Annotated[Text, Field(min_length=1, description="where it stands, or the arithmetic that gives it")]


class Published(Frozen):
    """Figures that the maker publishes, which the spec has to reproduce (checked by ``gemm-eval arch check``)."""

    peak_tflop_per_s: Table[DTypeKey, Positive] = Field(default={}, description="dense peak by input type, 1e12/s")
    dram_gb_per_s: Positive | None = Field(default=None, description="DRAM bandwidth of the chip, 1e9 bytes/s")
    sram_bytes: Annotated[int, Field(ge=1)] | None = Field(default=None, description="SRAM of all cores together")
    num_sms: Annotated[int, Field(ge=1)] | None = Field(default=None, description="SMs of a GPU")
    source: Annotated[Text, Field(min_length=1, description="where the maker says so")]


def with_entry(table: Any, path: Sequence[str], value: Any, origin: str) -> Any:
    """Return a table with the entry at `path` changed; with an empty path, the value itself."""
    if not path:
        return value
    if isinstance(table, BaseModel):
        table = {name: getattr(table, name) for name in table.model_fields_set}
    if not isinstance(table, Mapping):
        raise ArchValidationError(f"{origin}: what should have {'.'.join(path)} is no table")
    return {**table, path[0]: with_entry(table.get(path[0]), path[1:], value, origin)}


def check_rules(*rules: tuple[object, str]) -> None:
    """Raise `ValueError` with the message of the first rule that is broken: (whether it is, message)."""
    for is_broken, message in rules:
        if is_broken:
            raise ValueError(message)


class BaseSpec(Frozen):
    """The part of a spec that does not depend on the kind of chip."""

    _shown: ClassVar[tuple[str, ...]] = ()
    """The fields that tell specs apart at a glance; a repr has these and what `with_` changed, not all sixty."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        description="name in answers; default: the name of the file",
    )
    title: Text = Field(default="", description="maker, product and what matters of it, on a line")
    notes: Text = Field(default="", description="modelling decisions, in words")
    published: Published | None = Field(
        default=None, description="figures of the maker that the numbers below have to reproduce"
    )
    sources: Table[str, Text] = Field(default={}, description="short name -> full reference")
    provenance: Table[str, Provenance] = Field(default={}, description="field (or field.dtype) -> kind and source")

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """Yield the fields that `repr` and `str` show."""
        yield None, self.name
        rest = type(self).model_fields.keys() - set(self._shown)
        changed = [key for key, entry in self.provenance.items() if entry.source == _CHANGED and key in rest]
        for key in (*self._shown, *changed[:_MAX_CHANGES_SHOWN]):
            value = getattr(self, key)
            yield key, value if isinstance(value, bool | int | float) else one_line(str(value), _MAX_CHANGE_CHARS)
        if len(changed) > _MAX_CHANGES_SHOWN:
            yield "num_more_changes", len(changed) - _MAX_CHANGES_SHOWN

    def _repr_html_(self) -> str:
        rows = (
            (name, one_line(str(value), 120), str(self.provenance[name].kind) if name in self.provenance else "")
            for name, value in self
            if name not in ("sources", "provenance", "published") and value not in (None, "", {})
        )
        return html_table(f"{self.name}: {self.title}", rows, ("field", "value", "kind"))

    def implausible_numbers(self) -> list[str]:
        """Return a sentence on each number that no chip is likely to have; where all are likely, on their ratio."""
        chip: Any = self
        flop_per_byte = chip.peak_tflop_per_s() * 1e3 / chip.dram_gb_per_s
        ratio = implausible_numbers([("peak_flop_per_dram_byte", flop_per_byte)])
        return list(implausible_numbers(self)) or list(ratio)

    def _check_types(self, rates: str, *tables: str) -> None:
        """Check the types that the matrix unit multiplies, and that tables by type have no others."""
        known, default = getattr(self, rates), getattr(self, "default_dtype")  # noqa: B009  of all kinds of chips
        if default not in known:
            raise ValueError(f"default_dtype {default} must have an entry in {rates}")
        for dtype, role in ((DType.INT32, "an accumulator type"), (DType.E8M0, "a type of scales")):
            if dtype in known:
                raise ValueError(f"{rates}: {dtype} is {role}, not an input type")
        for table in tables:
            for dtype in getattr(self, table):
                if dtype not in known and dtype is not DType.FP32:  # which the lanes beside the matrix unit multiply
                    raise ValueError(f"{table}: {dtype} must have an entry in {rates} too")

    def with_(self, **changes: Any) -> Self:
        """Return a copy with the given fields changed and everything checked again.

        A dotted name is an entry of a table or of a part: ``with_(**{"interconnect.gb_per_s": 900})``. A number may be
        a text with a unit, ``sram_bytes="1.5 MiB"``. A changed field's provenance becomes ``assumed``. Published
        figures and the name of a calibration are dropped, since they belong to another chip.

        Raises:
            ArchValidationError: an unknown field, or a value out of its range.
        """
        from gemm_eval.arch.loader import build_spec

        data = {field: getattr(self, field) for field in self.model_fields_set}
        for name, value in changes.items():
            top, *rest = name.split(".")
            data[top] = with_entry(data.get(top, getattr(self, top, None)), rest, value, f"{self.name}: {name}")
        changes = {name.partition(".")[0]: data[name.partition(".")[0]] for name in changes}
        if changes:
            data["published"] = changes.get("published")
            if "calibration" not in changes:
                data.pop("calibration", None)
        if "provenance" not in changes:
            data["provenance"] = {
                key: value for key, value in self.provenance.items() if key.split(".")[0] not in changes
            } | {key: Provenance(kind=ProvenanceKind.ASSUMED, source=_CHANGED) for key in changes}
        return build_spec(type(self), data, origin=f"{self.name}.with_")
