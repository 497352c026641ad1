"""The parser of command lines and readers of their words: numbers, ranges, sizes, row groups, mappings.

Nothing here names a class of click: typer brings its own copy of it, or not, depending on its version.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product, takewhile
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from gemm_eval.errors import InvalidMappingError, InvalidOptionError
from gemm_eval.words import SYNONYMS, did_you_mean, one_line, shown

if TYPE_CHECKING:
    from gemm_eval.mapping import KernelConfig, MulticoreMapping


SEVERAL = "Several: 1,4,16 or a range, 1..256 (doubled) or 1..256:32 (in steps). 16k is 16,384."
"""The end of the help of every option that takes several values."""

MAX_VALUES = 10_000
"""Most values of one option, and most combinations of several options."""

MAPPING_FORM = "P_G,P_M,P_N,P_K / tile_m,tile_n,tile_k / order, such as 1,4,2,1/256,512,144/mnk"
"""The form of `--mapping` for a multi-core chip, for help and errors."""

GPU_MAPPING_FORM = (
    "FAMILY / cta_m,cta_n,cta_k / cluster_m,cluster_n / warps,stages,schedule / decomposition,split_k / "
    "raster_order,raster_swizzle, such as sm90_wgmma / 128,256,64 / 2,1 / 8,4,cooperative / split_k,2 / along_m,8"
)
"""The form of `--mapping` for a GPU."""

_DOTS, _STEP = "..", ":"
_WHOLE = "whole numbers >= 1 such as 16, 1,4,16, 1..256 or 1..256:32"
_OPTIONAL = "G"  # of the sizes by name: 1 where it is not given


def integer(text: str) -> int:
    """Return the integer that `text` spells, 16384 for 16k, or `text` itself, which the library then refuses."""
    try:
        return _int(text)
    except ValueError:
        return text  # type: ignore[return-value]


def _int(text: str | int) -> int:
    """Return the integer that `text` spells; k is 1,024 of them, as in the names of context lengths."""
    digits = text.lower().removesuffix("k") if isinstance(text, str) else text
    return int(digits) << 10 if digits != text else int(text)


# Several whole numbers in one word: a list, a range that doubles, a range in steps.


def is_several(text: str) -> bool:
    """Return whether a word spells a list or a range, and not one number."""
    return "," in text or _DOTS in text


def parse_values(
    name: str, text: str, *, read: Callable[[str], int | None] | None = None, form: str = _WHOLE
) -> list[int]:
    """Read the values that a word spells, each once, in the order given.

    >>> parse_values("--batch", "1,3,8..20,100..200:50")
    [1, 3, 8, 16, 20, 100, 150, 200]

    Args:
        name: takes them, for errors, such as ``--batch``.
        text: numbers and ranges with commas between. ``A..B`` is doubled from A on, and ends with B whether that is a
            doubling or not; ``A..B:S`` goes on from A in steps of S, up to B.
        read: returns the number that a word spells, None if it spells none; default: whole numbers.
        form: what is right, for errors.
    """
    values: dict[int, None] = {}
    for part in text.split(","):
        span = _span(part.strip(), read or _whole)
        if span is None:
            where = "" if part == text else f" in {shown(text)}"
            raise InvalidOptionError(f"{name} must be {form}, got {shown(part)}{where}")
        first, last, count, make = span
        if last < first:
            raise InvalidOptionError(f"{name}: a range goes up, got {shown(part)}")
        if len(values) + count > MAX_VALUES:
            raise InvalidOptionError(f"{name} must be at most {MAX_VALUES:,} values, got more in {shown(text)}")
        values |= dict.fromkeys(make())
    return list(values)


def parse_all_values(name: str, texts: Iterable[str]) -> list[int]:
    """Read the values of an option that may be repeated, each once; see `parse_values`."""
    return list(dict.fromkeys(value for text in texts for value in parse_values(name, text)))


def check_count(num: int, name: str) -> None:
    """Refuse more than `MAX_VALUES` combinations of what was given."""
    if num > MAX_VALUES:
        raise InvalidOptionError(f"at most {MAX_VALUES:,} combinations of {name} at once, got {num:,}")


def _span(part: str, read: Callable[[str], int | None]) -> tuple[int, int, int, Callable[[], Iterable[int]]] | None:
    """Return the ends of a range, how many values it has at most, and what makes them; None: it is no range."""
    low, dots, high = part.partition(_DOTS)
    high, colon, step = high.partition(_STEP)
    first = read(low)
    last = read(high) if dots else first
    by = read(step) if colon else 1
    if first is None or last is None or by is None:
        return None
    if colon:
        return first, last, (last - first) // by + 1, lambda: range(first, last + 1, by)
    count = (last // first).bit_length() + 1
    return first, last, count, lambda: [*takewhile(lambda n: n < last, (first << at for at in range(count))), last]


def _whole(word: str) -> int | None:
    try:
        number = _int(word)
    except ValueError:
        return None
    return number if number >= 1 else None


# The sizes of a GEMM: in a row, always in the order G M K N, or by name.


@dataclass(frozen=True)
class Sizes:
    """Sizes of a GEMM as words of a command line.

    Attributes:
        order: letters of the sizes that the command takes, such as ``G M K N``.
        in_a_row: words without a name.
        by_name: words of options, by letter.
    """

    order: str
    in_a_row: Sequence[str]
    by_name: Mapping[str, str]

    @classmethod
    def of_words(cls, order: str, sizes: Sequence[str] | None, **by_name: str | None) -> Sizes:
        """Return the sizes of an order; options that are not given are None."""
        return cls(order, sizes or (), {name.upper(): text for name, text in by_name.items() if text is not None})

    def words(self) -> dict[str, str]:
        """Return the word of each size, by letter; nothing where no size is given."""
        order, letters, named = self.order, self.order.split(), self.by_name
        listed = one_line(" ".join(self.in_a_row))
        if self.in_a_row and named:
            given = " ".join(f"-{letter.lower()}" for letter in named)
            raise InvalidOptionError(f"sizes are {order} or have names, never both: got {listed} and {given}")
        if self.in_a_row:
            num = len(self.in_a_row)
            if letters == ["M", "K", "N"] and num == len("GMKN") and self.in_a_row[0] == "1":
                return dict(zip(letters, self.in_a_row[1:], strict=True))  # G M K N as other commands take them
            if num != len(letters):
                raise InvalidOptionError(f"sizes are {order}, or by name {names_of_sizes(order)}; got {num}: {listed}")
            return dict(zip(letters, self.in_a_row, strict=True))
        missing = [letter for letter in letters if letter not in named and letter != _OPTIONAL]
        if named and missing:
            names = " and ".join(f"-{letter.lower()}" for letter in missing)
            raise InvalidOptionError(f"{names} must be given, too: sizes by name are {names_of_sizes(order)}")
        return {letter: named.get(letter, "1") for letter in letters} if named else {}

    def one(self, instead: str = "") -> list[Any]:
        """Return one size for each letter, which the library checks; `instead`: what else the command takes."""
        words = self.words()
        if not words:
            raise self.missing(instead)
        return [integer(words[letter]) for letter in self.order.split()]

    def all(self) -> list[tuple[Any, ...]]:
        """Return every combination of lists and ranges, the last size changing fastest; empty where none is given."""
        words = self.words()
        values = [parse_values(letter, text) if is_several(text) else [integer(text)] for letter, text in words.items()]
        check_count(math.prod(map(len, values)), self.order)
        return list(product(*values)) if values else []

    def missing(self, instead: str = "") -> InvalidOptionError:
        """Return the error of a command that needs sizes and has none; `instead`: what else it takes."""
        return InvalidOptionError(f"sizes are missing: {self.order}, or by name {names_of_sizes(self.order)}{instead}")


def names_of_sizes(order: str) -> str:
    """Return how sizes are given by name: ``-m M -k K -n N, and -g G where it is not 1``."""
    needed = " ".join(f"-{letter.lower()} {letter}" for letter in order.split() if letter != _OPTIONAL)
    return f"{needed}, and -g G where it is not 1" if _OPTIONAL in order else needed


def parse_rows(text: str) -> tuple[int, ...]:
    """Read the rows of each group: ``"120,3,0,17"``, or shorter ``"120x64,0x8"`` for 64 groups of 120 and 8 of none."""
    from gemm_eval.workload import MAX_GROUPS

    groups: list[int] = []
    for part in text.split(","):
        rows, times, count = part.strip().partition("x")
        try:
            num_rows, num = int(rows), int(count) if times else 1
        except ValueError:
            num_rows = num = -1
        if num_rows < 0 or num < 1:
            raise InvalidOptionError(
                f"--rows must be the rows of each group, such as 120,3,0,17, or 120x64,0x8 for 64 groups of 120 and 8 "
                f"without a row, got {shown(part)} in {shown(text)}"
            )
        if len(groups) + num > MAX_GROUPS:
            raise InvalidOptionError(f"--rows must be at most {MAX_GROUPS:,} groups, got more in {shown(text)}")
        groups += [num_rows] * num
    return tuple(groups)


# Mappings.


def parse_mapping(text: str, *, is_gpu: bool = False) -> MulticoreMapping | KernelConfig:
    """Read a mapping as `format_mapping` writes it. Whether it is legal is for the library to say."""
    from gemm_eval import mapping

    words = [[word.strip() for word in part.split(",")] for part in text.split("/")]
    try:
        if not is_gpu:
            partition, tile, (order,) = words
            sizes = mapping.Partition(*map(int, partition)), mapping.Tile(*map(int, tile))
            return mapping.MulticoreMapping(*sizes, mapping.LoopOrder[order.upper()])
        (family,), cta, cluster, (num_warps, num_stages, schedule), (decomposition, split_k), (order, swizzle) = words
        cta_m, cta_n, cta_k = map(int, cta)
        cluster_m, cluster_n = map(int, cluster)
        return mapping.KernelConfig(
            family, cta_m, cta_n, cta_k, cluster_m, cluster_n, int(num_warps), int(num_stages),
            mapping.Schedule[schedule.upper()], mapping.Decomposition[decomposition.upper()], int(split_k),
            mapping.RasterOrder[order.upper()], int(swizzle),
        )  # fmt: skip
    except (ValueError, TypeError, KeyError):
        orders = ", ".join(mapping.LoopOrder.__members__).lower()
        form = GPU_MAPPING_FORM if is_gpu else f"{MAPPING_FORM}; order is one of {orders}"
        raise InvalidMappingError(f"--mapping must be {form}, got {shown(text)}", rule="form") from None


def format_mapping(mapping: MulticoreMapping | KernelConfig) -> str:
    """Write a mapping in the form that `--mapping` takes."""
    from gemm_eval.mapping import KernelConfig

    if isinstance(mapping, KernelConfig):
        c = mapping
        return (
            f"{c.family}/{c.cta_m},{c.cta_n},{c.cta_k}/{c.cluster_m},{c.cluster_n}/"
            f"{c.num_warps},{c.num_stages},{c.schedule.name.lower()}/"
            f"{c.decomposition.name.lower()},{c.split_k}/{c.raster_order.name.lower()},{c.raster_swizzle}"
        )
    partition = ",".join(map(str, mapping.partition))
    tile = ",".join(map(str, mapping.tile))
    return f"{partition}/{tile}/{mapping.loop_order.name.lower()}"


_FLAGS = {name: f"--{names[0].replace('_', '-')}" for names in SYNONYMS for name in names}
"""The option of a command for each name of an argument."""
_CHANGE = re.compile(r"\b([a-z]+(?:_[a-z]+)*)=([^\s,;]+)")
_STYLE = re.compile(r"\[(?=[a-z#/@])")  # how a style begins in rich's markup
_INSTEAD = {"--arch": "; gemm-eval evaluate, grouped, attention and model compare several side by side"}
"""The commands that do what an option given twice was meant to do."""


class Command(TyperCommand):
    """A command that refuses an option given twice, where the first value would be dropped without a word."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        _keep_brackets(self)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the words."""
        if ctx.resilient_parsing:  # a shell completes words that are not all there
            return super().parse_args(ctx, args)
        _, _, order = self.make_parser(ctx).parse_args(args=list(args))
        for param, count in Counter(order).items():
            if count > 1 and param.param_type_name == "option" and not getattr(param, "multiple", False):
                name = _name_of(param)
                instead = _INSTEAD.get(name, "")
                raise InvalidOptionError(f"{name} is given {count} times, and counts once: give it once{instead}")
        return super().parse_args(ctx, args)


class Group(TyperGroup):
    """A group of commands that says which one a mistyped name may have meant."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        _keep_brackets(self)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command that the first word names."""
        name = args[0]
        is_whole = not ctx.resilient_parsing
        if is_whole and not name.startswith("-") and self.get_command(ctx, name) is None:
            ctx.fail(f"No such command '{name}'{did_you_mean(name, self.list_commands(ctx))}")
        return super().resolve_command(ctx, args)


def _keep_brackets(command: Any) -> None:
    """Escape the brackets of help texts, such as those of ``gemm_eval[asm]``, which rich takes for styles."""
    for item in (command, *command.params):
        if getattr(item, "help", None):
            item.help = _STYLE.sub(r"\\[", item.help)


def usage_message(error: Any, words: Sequence[str]) -> str:
    """Return the message of a usage error of click's: what is wrong, what `words` may have meant, where to look."""
    ctx = getattr(error, "ctx", None)
    message = str(error.format_message()).rstrip(".")
    if type(error).__name__ == "NoSuchOption":
        # of -arch the parser names no more than -a
        word = next((word for word in words if word.startswith(error.option_name)), error.option_name).partition("=")[0]
        if word[1:2].isdigit():
            meant = "; a size is an integer >= 1"
        else:
            params = [] if ctx is None else ctx.command.get_params(ctx)
            known = [name for param in params for name in (*param.opts, *param.secondary_opts) if name.startswith("-")]
            meant = _of_siblings(ctx, word) or did_you_mean(f"--{word.lstrip('-')}", known)
        message = f"No such option: {word}{meant}"
    return f"{message}; see {getattr(ctx, 'command_path', 'gemm-eval')} --help"


def with_flags(message: str) -> str:
    """Return a message of the library whose changes that would help are options: --tp 4 for tensor_parallel=4."""
    start, would_fit, changes = message.partition("would fit with: ")
    return start + would_fit + _CHANGE.sub(lambda m: f"{_FLAGS[m[1]]} {m[2]}" if m[1] in _FLAGS else m[0], changes)


def _of_siblings(ctx: Any, option: str) -> str:
    """Say which commands beside this one in its group know an option; an empty text where none does."""
    above = getattr(ctx, "parent", None)
    if above is None or above.parent is None:  # commands of gemm-eval itself have little to do with each other
        return ""
    names = [
        name
        for name, command in above.command.commands.items()
        if any(option in (*param.opts, *param.secondary_opts) for param in command.get_params(ctx))
    ]
    return f", which is one of {above.command_path} {_listed(names)}" if names else ""


def refuse(ctx: typer.Context, mode: str, names: Collection[str]) -> None:
    """Refuse parameters of the function that have no effect in this mode of a command, where they are given."""
    if others := [param for param in ctx.command.get_params(ctx) if param.name in names and is_given(ctx, param.name)]:
        raise InvalidOptionError(f"{mode} does not go with {_listed(map(_name_of, others))}: leave it out")


def refuse_others(ctx: typer.Context, mode: str, obeyed: Collection[str]) -> None:
    """Refuse what is given and not in `obeyed`, the parameters of the function that count in this mode of a command."""
    params = ctx.command.get_params(ctx)
    if others := [param for param in params if param.name not in obeyed and is_given(ctx, param.name or "")]:
        known = [_name_of(param) for param in params if param.name in obeyed and _name_of(param) != mode]
        raise InvalidOptionError(
            f"{mode} does not go with {_listed(map(_name_of, others))}; it goes with {_listed(known)}"
        )


def is_given(ctx: typer.Context, name: str) -> bool:
    """Return whether a parameter stands on the command line, whatever its value."""
    source = ctx.get_parameter_source(name)
    # typer 0.26 says so of arguments that are not there, too, if there may be several
    return source is not None and source.name == "COMMANDLINE" and ctx.params.get(name) != ()


def _name_of(param: Any) -> str:
    if param.param_type_name == "argument":
        return str(param.metavar or param.name).strip("[].")
    return str(next((name for name in param.opts if len(name) > len("--m")), param.opts[-1]))


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
