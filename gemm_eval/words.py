"""Words of errors and tables, checks of single arguments, and imports of packages that extras install."""

import difflib
import functools
import html
import importlib.util
import inspect
import math
import numbers
import operator
import reprlib
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, ParamSpec, TypeVar

from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.units import scaled_text, time_text

P = ParamSpec("P")
R = TypeVar("R")

_MAX_SHOWN_CHARS = 80
_MAX_WORD_CHARS = 64  # no name is longer, and what is longer takes difflib long
_MAX_NEAR = 4
_CUTOFF = 0.6
_SLIP_CUTOFF = 0.9
SYNONYMS = (
    ("tp", "tensor_parallel"), ("pp", "pipeline_parallel"), ("ep", "expert_parallel"), ("cp", "context_parallel"),
    ("dp", "data_parallel"), ("gpus", "num_devices", "devices"), ("batch", "batch_size", "concurrency"),
    ("prompt", "prompt_len", "isl", "seq_len"), ("output", "output_len", "osl"), ("nodes", "num_nodes"),
    ("dtype", "precision", "quantization"), ("kv_dtype", "kv_cache_dtype"), ("chunk", "chunk_tokens"),
    ("speculate", "speculative_tokens"), ("arch", "gpu", "chip"), ("recompute",), ("zero",), ("micro_batch",),
)  # fmt: skip
"""Names of one thing: an option of commands first, then arguments in Python, and options of engines."""

_SEPARATORS = "-_. /"
_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # control, format (direction, joiners), lone surrogates, separators of lines


class _Repr(reprlib.Repr):
    """`reprlib.Repr` of at most a few nested things; whatever cannot be written out is named by its type."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxlist, self.maxtuple, self.maxdict, self.maxset = 2, 6, 6, 4, 6
        self.maxstring = self.maxlong = self.maxother = _MAX_SHOWN_CHARS

    def repr_int(self, x: int, level: int) -> str:
        """Python writes out no int of more than 4,300 digits, and shorter ones in quadratic time."""
        return super().repr_int(x, level) if x.bit_length() < 256 else f"<int of {x.bit_length():,} bits>"


_repr = _Repr().repr


def shown(value: object) -> str:
    """Return a value as an error message shows it: its repr on one line of at most 80 characters."""
    return one_line(_repr(value))


def one_line(text: str, max_chars: int = _MAX_SHOWN_CHARS) -> str:
    """Return `text` on one line of at most `max_chars` characters, all of which print: no control sequences."""
    words = " ".join(text[: 4 * max_chars].split())
    safe = visible(words)
    return safe if len(safe) <= max_chars and len(text) <= 4 * max_chars else safe[: max_chars - 3] + "..."


def visible(text: str) -> str:
    r"""Return `text` with every character that acts instead of being seen written as an escape, such as ``\x1b``.

    A title could else move the cursor of a terminal, rename its window, or turn the direction of the line around it.
    Line feeds and tabs stay.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char in "\n\t" or unicodedata.category(char) not in _HIDDEN else ascii(char)[1:-1] for char in text
    )


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return ``", did you mean a or b?"`` with the names that `word` may stand for; an empty text where none is near.

    Near is, in this order: the same but for case and ``-_. /``; a synonym; the same but for a letter or two of many;
    all parts of one, as ``-_. /`` cut it, are parts of the other; one is the beginning of the other, if possible the
    word; one is part of the other; much the same letters.
    """
    if not isinstance(word, str) or not 0 < len(word) <= _MAX_WORD_CHARS:
        return ""
    cut = {name: _cut(name) for name in known}
    asked = _cut(word)
    if not asked.letters:
        return ""
    for is_near in _NEARNESS:
        near = [name for name, this in cut.items() if this.letters and is_near(this, asked)]
        if near:
            break
    else:
        letters = [this.letters for this in cut.values()]
        matches = difflib.get_close_matches(asked.letters, letters, n=_MAX_NEAR, cutoff=_CUTOFF)
        near = [name for match in dict.fromkeys(matches) for name, this in cut.items() if this.letters == match]
    return f", did you mean {' or '.join(near[:_MAX_NEAR])}?" if near else ""


def refusal(name: str, value: object, known: Iterable[str]) -> str:
    """Return the message that `name` is none of the `known` words: all of them, what was given, and what was meant."""
    words = tuple(map(str, known))
    return f"{name} must be one of {', '.join(words)}, got {shown(value)}{did_you_mean(value, words)}"


def suggests_names(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that its error on an unknown argument says which one was meant.

    >>> estimate_model("llama-3-8b", "h200-sxm", tp=2)                    # doctest: +SKIP
    TypeError: estimate_model() has no argument tp, did you mean tensor_parallel?
    """
    known = inspect.signature(function).parameters

    @functools.wraps(function)
    def run(*args: P.args, **options: P.kwargs) -> R:
        for name in options.keys() - known.keys():
            raise TypeError(f"{function.__name__}() has no argument {name}{did_you_mean(name, known)}")
        return function(*args, **options)

    return run


class _Cut(NamedTuple):
    """A word without case: its letters and digits, and the parts that separators cut it into."""

    letters: str
    parts: frozenset[str]


def _cut(word: str) -> _Cut:
    parts = "".join(" " if char in _SEPARATORS else char for char in word.casefold()).split(" ")
    return _Cut("".join(parts), frozenset(filter(None, parts)))


_SAME = [frozenset(_cut(name).letters for name in names) for names in SYNONYMS]
_NEARNESS: tuple[Callable[[_Cut, _Cut], bool], ...] = (
    lambda name, word: name.letters == word.letters,
    lambda name, word: any({name.letters, word.letters} <= group for group in _SAME),
    lambda name, word: difflib.SequenceMatcher(None, name.letters, word.letters).ratio() >= _SLIP_CUTOFF,
    lambda name, word: name.parts <= word.parts or word.parts <= name.parts,
    lambda name, word: len(word.letters) > 1 and name.letters.startswith(word.letters),
    lambda name, word: len(name.letters) > 1 and word.letters.startswith(name.letters),
    lambda name, word: (
        min(len(name.letters), len(word.letters)) > 2 and (word.letters in name.letters or name.letters in word.letters)
    ),
)
"""Ways in which a name may be near to a word, the nearest first; see `did_you_mean`."""


MAX_ROWS = 20
"""Rows of a table that a notebook shows."""

_LEFT = 'style="text-align:left"'
_CAPTION = "text-align:left;caption-side:top;color:inherit"


def html_table(caption: str, rows: Iterable[Sequence[str]], headers: Sequence[str] = ()) -> str:
    """Return a table; without headers of columns, the first cell of each row is a header."""
    lines = [_row(headers, num_heads=len(headers))] if headers else []
    lines += [_row(row, num_heads=0 if headers else 1) for row in rows]
    return f'<table><caption style="{_CAPTION}">{_escaped(caption)}</caption>{"".join(lines)}</table>'


def value_rows(values: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield a row for each single value: its name in words, and its text with a unit."""
    for name, value in values.items():
        if isinstance(value, str | bool | int | float):
            yield name.removesuffix("_us").removesuffix("_bytes").replace("_", " "), value_text(name, value)
        elif isinstance(value, tuple | list) and len(value) == 2 and name.endswith("interval_us"):
            yield name.removesuffix("_us").replace("_", " "), " to ".join(map(time_text, value))


def value_text(name: str, value: Any) -> str:
    """Return a value with the unit that its name ends with: ``12.3 ms``, ``16.40 GB``, ``85.0%``."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return one_line(str(value), 200)
    if name.endswith("_us"):
        return time_text(value)
    if name.endswith("_bytes"):
        return scaled_text("bytes", value)
    if name.endswith("_frac"):
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _row(cells: Iterable[str], num_heads: int) -> str:
    tags = ((_escaped(cell), "th" if index < num_heads else "td") for index, cell in enumerate(cells))
    return f"<tr>{''.join(f'<{tag} {_LEFT}>{text}</{tag}>' for text, tag in tags)}</tr>"


def _escaped(text: str) -> str:
    return html.escape(visible(text))


_POWER_FROM_BITS = 21  # from here on a limit reads better as a power of two


def plain_integer(value: Any) -> int | None:
    """Return the int that `value` is: Python's, numpy's, an array of no dimensions; None: it is none.

    Truth values, floats that are whole and masked arrays are none: in sizes these are mistakes.
    """
    if type(value) is int:
        return value
    if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_") or hasattr(value, "mask"):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def plain_number(value: Any) -> float | None:
    """Return `value` as a finite float, if it is a number; None: it is none, or not finite."""
    number: Any = plain_integer(value)
    if number is None and isinstance(value, numbers.Real) and not isinstance(value, numbers.Integral):
        number = value  # numpy's timedelta64 and truth values count as integral
    with suppress(OverflowError):
        if number is not None and math.isfinite(finite := float(number)):
            return finite
    return None


def as_integer(name: str, value: Any, low: int, high: int) -> int:
    """Return `value` as an int, if it is an integer of low..high."""
    number = plain_integer(value)
    if number is None or not low <= number <= high:
        is_power = high.bit_length() > _POWER_FROM_BITS and high & (high - 1) == 0
        limit = f"2**{high.bit_length() - 1}" if is_power else f"{high}"
        raise InvalidOptionError(f"{name} must be an integer in {low}..{limit}, got {shown(value)}")
    return number


def check_word(name: str, value: Any, known: Iterable[str]) -> None:
    """Check that `value` is one of the `known` words."""
    names = tuple(known)
    if not isinstance(value, str) or value not in names:
        raise InvalidOptionError(refusal(name, value, names))


def check_flag(name: str, value: Any) -> None:
    """Check that `value` is True or False, and not something that merely has a truth value."""
    if not isinstance(value, bool):
        raise InvalidOptionError(f"{name} must be True or False, got {shown(value)}")


_ALTERNATIVES = {"gpu": "or 'gemm_eval[gpu-cuda12]' where the driver is for CUDA 12"}
"""By extra: what is installed in its place on some machines."""


@contextmanager
def needs_extra(purpose: str, extra: str) -> Iterator[None]:
    """Stand around imports of packages that `extra` installs; `what` needs them.

    >>> with needs_extra("a sweep", "sweep"):  # doctest: +SKIP
    ...     import pyarrow
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or str(error)).partition(".")[0]
        raise GemmEvalError(f"{purpose} needs {package}: {install_command(extra)}") from error
    except ImportError as error:
        raise GemmEvalError(
            f"{purpose} needs a package that does not load: {install_command(extra)} ({error})"
        ) from error


def check_extra(purpose: str, extra: str, *packages: str) -> None:
    """Check that `packages` (import names) are there before `what` begins a long work; nothing is imported."""
    missing = [package for package in packages if not has_package(package)]
    if missing:
        raise GemmEvalError(f"{purpose} needs {' and '.join(missing)}: {install_command(extra)}")


def has_package(package: str) -> bool:
    """Return True if `package` (its import name) is installed; nothing is imported."""
    return importlib.util.find_spec(package) is not None


def install_command(extra: str) -> str:
    """Return the pip command of `extra`, for the end of an error's message."""
    command = f"pip install 'gemm_eval[{extra}]'"
    return f"{command}, {_ALTERNATIVES[extra]}" if extra in _ALTERNATIVES else command
