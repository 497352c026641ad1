"""Fields that follow from others: expressions, ``2 * num_cores + sqrt(area)``, what they may name, and their order.

Python's own parser reads the text of an expression, which is short; of its tree only the nodes below are taken, and
become functions of numbers. There is no text, attribute, index or loop in them, so nothing is ever reached or built but
numbers that a float can hold: whole numbers are exact below that, and what would be larger is refused before it is
computed.
"""

import ast
import math
import operator
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.sweep.fields import check_value
from gemm_eval.words import shown

_MAX_CHARS = 1000
_MAX_DEPTH = 100  # of operations inside each other; a sum of so many terms is as deep
_LARGEST = sys.float_info.max
_MAX_BITS = sys.float_info.max_exp
_MAX_DIGITS = 400  # that `round` is asked for: more than a float has on either side of its point

Number = int | float
_Function = Callable[["Names"], Number]


class Names:
    """The values of an expression's names, from `known`; those that are no numbers have none here."""

    def __init__(self, known: Any) -> None:
        self._known = known

    def __getitem__(self, name: str) -> Number:
        top, _, key = name.partition(".")
        value = self._known[top]
        if key and isinstance(value, Mapping):
            value = value.get(key)
        if not isinstance(value, int | float):
            raise TypeError(f"{name} is no number here")
        return _bounded(value)


@dataclass(frozen=True)
class Expression:
    """An expression that has been read: the names that it uses, and a function of these."""

    names: frozenset[str]  # "mac_pj.fp16" for an entry of a table
    function: _Function

    def __call__(self, known: Any) -> Number:
        """Return its value; those of its names, ``known["num_cores"]``, are asked for as they are needed."""
        return self.function(Names(known))


@lru_cache(maxsize=1024)
def parse_expression(text: str) -> Expression:
    """Read an expression."""
    if len(text) > _MAX_CHARS:
        raise InvalidOptionError(f"an expression has {_MAX_CHARS} characters at most, got {len(text):,}")
    try:
        with warnings.catch_warnings(action="ignore"):  # of what is refused below, such as escapes in strings
            tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:  # the last two: the parser's own bounds
        raise InvalidOptionError(f"{shown(text)} is no expression: {error}") from None
    compiler = _Compiler(text)
    function = compiler.of(tree.body, 0)
    return Expression(frozenset(compiler.names), function)


class _Compiler:
    """Turns the nodes of one expression into functions."""

    def __init__(self, text: str) -> None:
        self._text = text
        self.names: set[str] = set()

    def of(self, node: ast.expr, depth: int) -> _Function:
        """Return the function that a node stands for."""
        if depth > _MAX_DEPTH:
            raise self._refused(f"is nested deeper than {_MAX_DEPTH} levels")

        def below(child: ast.expr) -> _Function:
            return self.of(child, depth + 1)

        match node:
            case ast.Constant(value=bool() | int() | float() as value):
                try:
                    _bounded(value)
                except OverflowError as error:
                    raise self._refused(f"has an invalid number in it: {error}") from None
                return lambda _: value
            case ast.Name(id=name):
                return self._name(name)
            case ast.Attribute(value=ast.Name(id=top), attr=key):
                return self._name(f"{top}.{key}")
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
                return _call(_UNARY[type(op)], [below(operand)])
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
                return _call(_BINARY[type(op)], [below(left), below(right)])
            case ast.BoolOp(op=op, values=values):
                return _join([below(value) for value in values], is_all=isinstance(op, ast.And))
            case ast.Compare(left=left, ops=ops, comparators=others) if all(type(op) in _SIGNS for op in ops):
                return _compare([_SIGNS[type(op)] for op in ops], [below(one) for one in (left, *others)])
            case ast.IfExp(test=test, body=body, orelse=orelse):
                is_true, then, otherwise = below(test), below(body), below(orelse)
                return lambda names: then(names) if is_true(names) else otherwise(names)
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                if name not in _FUNCTIONS:
                    known = ", ".join(_FUNCTIONS)
                    raise self._refused(f"names {shown(name)}, which does not exist; functions are {known}")
                function, least, most = _FUNCTIONS[name]
                if not least <= (num := len(arguments)) <= most:
                    takes = f"{least}" + f" to {most}" * (most > least)
                    raise self._refused(f"gives {name} {num} arguments; it takes {takes}")
                return _call(function, [below(one) for one in arguments])
        raise self._refused(f"has {type(node).__name__} in it, and {_ALLOWED}")

    def _name(self, name: str) -> _Function:
        self.names.add(name)
        return lambda names: names[name]

    def _refused(self, why: str) -> InvalidOptionError:
        return InvalidOptionError(f"{shown(self._text)} {why}")


def _call(function: Callable[..., Number], arguments: list[_Function]) -> _Function:
    return lambda names: _bounded(function(*[argument(names) for argument in arguments]))


def _join(operands: list[_Function], *, is_all: bool) -> _Function:
    def join(names: Names) -> Number:
        value: Number = is_all
        for operand in operands:
            value = operand(names)
            if bool(value) != is_all:
                break
        return value

    return join


def _compare(signs: list[Callable[[Any, Any], bool]], operands: list[_Function]) -> _Function:
    def compare(names: Names) -> Number:
        left = operands[0](names)
        for sign, operand in zip(signs, operands[1:], strict=True):
            right = operand(names)
            if not sign(left, right):
                return False
            left = right
        return True

    return compare


def _bounded(value: Number) -> Number:
    if not -_LARGEST <= value <= _LARGEST:  # nan too
        raise OverflowError("a value must be finite, and in -1.8e308..1.8e308")
    return value


def _power(base: Number, exponent: Number) -> Number:
    # bits of the result at least: an exponent of nine digits would compute for hours
    if isinstance(base, int) and isinstance(exponent, int) and (abs(base).bit_length() - 1) * exponent > _MAX_BITS:
        raise OverflowError(f"{base:.6g} ** {exponent:.6g} is beyond 1.8e308")
    power: Number | complex = base**exponent
    if isinstance(power, complex):
        raise ValueError(f"{base:.6g} ** {exponent:.6g} is no real number")
    return power


def _shift_left(value: int, num_bits: int) -> int:
    if num_bits > _MAX_BITS:
        raise OverflowError(f"a shift is by {_MAX_BITS} bits at most, got {num_bits:.6g}")
    return value << num_bits


def _round(value: Number, num_digits: int | None = None) -> Number:
    if num_digits is not None and abs(num_digits) > _MAX_DIGITS:
        raise OverflowError(f"round takes {_MAX_DIGITS} digits at most, got {num_digits:.6g}")
    return round(value, num_digits)


_UNARY: dict[type[ast.unaryop], Callable[[Any], Number]] = {
    ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Not: operator.not_,
}  # fmt: skip
_BINARY: dict[type[ast.operator], Callable[[Any, Any], Number]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: _power, ast.LShift: _shift_left,
    ast.RShift: operator.rshift, ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
}  # fmt: skip
_SIGNS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge, ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}  # fmt: skip
_FUNCTIONS: dict[str, tuple[Callable[..., Number], int, int]] = {  # with how many arguments each takes
    "min": (min, 2, _MAX_CHARS), "max": (max, 2, _MAX_CHARS), "abs": (abs, 1, 1), "round": (_round, 1, 2),
    "ceil": (math.ceil, 1, 1), "floor": (math.floor, 1, 1), "sqrt": (math.sqrt, 1, 1), "log2": (math.log2, 1, 1),
    "log": (math.log, 1, 2), "exp": (math.exp, 1, 1), "int": (int, 1, 1), "float": (float, 1, 1),
}  # fmt: skip
_ALLOWED = (
    "expressions are of numbers: names, + - * / // % ** << >> & | ^, comparisons, and, or, not, "
    f"x if y else z, and {', '.join(_FUNCTIONS)}; a Python function can do more"
)


_MISTAKES = (NameError, AttributeError, ImportError, RecursionError)  # of who wrote the function, whatever the point


class NoValueError(GemmEvalError):
    """A dependent field has no value at this point: say, it divides by something that is 0 here."""


class _DefinitionError(InvalidOptionError, AttributeError):
    """Fields are defined so that no point has a value. An AttributeError, so that ``getattr(a, name, None)`` works."""


class Known:
    """The values of a point by name, as attributes; those that follow from others are found when they are asked for."""

    def __init__(self, values: Mapping[str, Any], dependent: Mapping[str, Callable[[Any], Any] | str]) -> None:
        self._values = dict(values)
        self._dependent = dependent
        self._asked: list[str] = []  # which wait for which

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # of Python's own protocols
            raise AttributeError(name)
        return self[name]

    def __getitem__(self, name: str) -> Any:
        """Return a value."""
        for entry in self._dependent:  # a table asked for as a whole
            if entry.startswith(f"{name}.") and entry not in self._asked and entry not in self._values:
                self._find(entry)
        if name in self._values:
            return self._values[name]
        if name in self._dependent:
            return self._find(name)
        by = f"{self._asked[-1]}: " if self._asked else ""
        raise _DefinitionError(f"{by}no field or variable of the name {shown(name)}")

    def _find(self, name: str) -> Any:
        if name in self._asked:
            raise _DefinitionError(f"fields follow from each other in a circle: {' <- '.join([*self._asked, name])}")
        self._asked.append(name)
        try:
            of = self._dependent[name]
            value = parse_expression(of)(self) if isinstance(of, str) else of(self)
            value = value.item() if isinstance(value, np.generic) else value
            check_value(value)
        except (_DefinitionError, NoValueError):
            raise
        except _MISTAKES as error:
            raise _DefinitionError(f"{name}: {type(error).__name__}: {error}") from error
        except Exception as error:  # a user's function may raise anything where it has no value
            raise NoValueError(f"{name}: {type(error).__name__}: {error}") from error
        finally:
            self._asked.pop()
        self.set(name, value)
        return value

    def set(self, name: str, value: Any) -> None:
        """Take a value, one of a table (a dotted name) too."""
        self._values[name] = value
        top, _, key = name.partition(".")
        if key and isinstance(self._values.get(top), Mapping):
            self._values[top] = {**self._values[top], key: value}


def check_expression(name: str, text: str, known: Iterable[str], example: Mapping[str, Any]) -> None:
    """Check what can be checked of an expression before there is a point.

    `known` are names that it may use. A text or a table among the values of `example`, the base arch, is one at every
    point.
    """
    try:
        expression = parse_expression(text)
    except InvalidOptionError as error:
        raise InvalidOptionError(f"{name}: {error}") from None
    known = set(known)
    for used in sorted(expression.names):
        top, _, key = used.partition(".")
        if top not in known:
            raise InvalidOptionError(
                f"{name}: {shown(text)} names {shown(top)}, which does not exist; names are fields and variables"
            )
        value = example.get(top)
        if isinstance(value, str) or (value is not None and isinstance(value, Mapping) != bool(key)):
            what = "use a Python function" if isinstance(value, str) else "an entry of a table is named mac_pj.fp16"
            raise InvalidOptionError(f"{name}: {shown(text)} names {shown(used)}, which is no number; {what}")
    if not expression.names:
        try:
            expression({})
        except (ArithmeticError, ValueError, TypeError) as error:
            raise InvalidOptionError(f"{name}: {shown(text)} has no value: {error}") from None
