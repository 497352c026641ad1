"""All exceptions that this library raises on purpose.

The tree::

    GemmEvalError
    ├── InvalidInputError (also a ValueError)
    │   ├── InvalidProblemError     a GEMM that cannot be: sizes, data types, quantization
    │   ├── InvalidMappingError     a mapping that breaks a rule; `.rule` names it
    │   └── InvalidOptionError      an option of a call that is out of range
    ├── ArchError
    │   ├── ArchNotFoundError       no such preset or file (also a LookupError)
    │   └── ArchValidationError     a spec that does not hold together (also a ValueError)
    ├── ModelConfigError            a transformer config that is missing or does not hold together (also a ValueError)
    ├── StorageError                a folder that cannot be written: a full disk, no permission, others at work in it
    ├── UnsupportedError            a valid GEMM that this arch has no way to run
    └── InfeasibleError             no mapping fits: demand, limit, gap, unit, levers
"""

from typing import Any

__all__ = [
    "ArchError", "ArchNotFoundError", "ArchValidationError", "GemmEvalError", "InfeasibleError", "InvalidInputError",
    "InvalidMappingError", "InvalidOptionError", "InvalidProblemError", "ModelConfigError", "StorageError",
    "UnsupportedError",
]  # fmt: skip


class GemmEvalError(Exception):
    """The root: `except GemmEvalError` catches everything that this library raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class InvalidInputError(GemmEvalError, ValueError):
    """An input cannot be used; the message says what was given and what is allowed."""


class InvalidProblemError(InvalidInputError):
    """A GEMM with impossible sizes, data types or quantization."""


class InvalidMappingError(InvalidInputError):
    """A mapping that breaks a rule of the arch or the problem.

    Attributes:
        rule: short name of the broken rule, e.g. ``"sram"`` or ``"tile_m_multiple"``.
    """

    def __init__(self, message: str, *, rule: str) -> None:
        super().__init__(message)
        self.rule = rule


class InvalidOptionError(InvalidInputError):
    """An option outside its range."""


class ArchError(GemmEvalError):
    """Something is wrong with an architecture spec."""


class ArchNotFoundError(ArchError, LookupError):
    """No preset or file of that name."""


class ArchValidationError(ArchError, ValueError):
    """A spec that is malformed or contradicts itself; the message names file and field."""


class ModelConfigError(GemmEvalError, ValueError):
    """A transformer config that cannot be found or read, is malformed or contradicts itself; it names file and key."""


class StorageError(GemmEvalError):
    """A folder that cannot be written: the disk is full, a permission is missing, or others are at work in it."""


class UnsupportedError(GemmEvalError):
    """A valid GEMM that this arch has no way to run, such as a data type that its matrix unit lacks."""


class InfeasibleError(GemmEvalError):
    """No mapping fits the arch.

    Attributes:
        resource: what is short, e.g. ``"sram"``.
        demand, limit, gap: what the smallest mapping needs, what there is, and the difference, in `unit`.
        unit: unit of the three numbers, e.g. ``"bytes"``.
        levers: what would make it fit, most direct first.
    """

    def __init__(self, message: str, *, resource: str, demand: int, limit: int, unit: str, levers: tuple[str, ...]):
        self.resource = resource
        self.demand = demand
        self.limit = limit
        self.gap = demand - limit
        self.unit = unit
        self.levers = levers
        text = f"{message}: demand {demand:,} {unit}, limit {limit:,} {unit}, gap {self.gap:,} {unit}"
        super().__init__(text + ("; would fit with: " + "; ".join(levers) if levers else ""))


def _rebuild(kind: type[GemmEvalError], args: tuple[Any, ...], state: dict[str, Any]) -> GemmEvalError:
    """Make an error anew in another process: unpickling would call `kind` without its keyword arguments."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error
