"""`CollectiveProblem`: a message between the GPUs of one node."""

from __future__ import annotations

from dataclasses import dataclass

from gemm_eval.checks import plain_integer
from gemm_eval.dtypes import DType, parse_dtype
from gemm_eval.errors import InvalidProblemError
from gemm_eval.words import refusal, shown

__all__ = ["COLLECTIVES", "MAX_MESSAGE_BYTES", "MAX_RANKS", "CollectiveProblem"]

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
"""What a message can be for."""

MAX_MESSAGE_BYTES = 1 << 50
"""Largest message of a device."""

MAX_RANKS = 1 << 10
"""Most devices that exchange messages."""


_REDUCED = ("all_reduce", "reduce_scatter")
_set = object.__setattr__


@dataclass(frozen=True, slots=True)
class CollectiveProblem:
    """One collective operation, or one send, between devices that each hold equally much.

    `message_bytes` is what one device gives:

    - ``all_reduce``: the whole array that it adds; each device ends with the sum.
    - ``reduce_scatter``: the whole array that it adds; each device ends with 1/num_ranks of the sum.
    - ``all_gather``: what it contributes; each device ends with num_ranks times as much.
    - ``all_to_all``: what it sends in all, the share that it keeps (1/num_ranks) included.
    - ``send``: what one device sends to one other; num_ranks is 2.

    Attributes:
        what: one of `COLLECTIVES`.
        message_bytes: of one device, as said.
        num_ranks: devices that take part; 1: nothing is sent.
        dtype: of the elements. It matters for sums only: switches add up 16 and 32 bits, and no narrower ones.

    Raises:
        InvalidProblemError: no such operation, a size that is no positive integer or too large, or a send of many.
    """

    what: str
    message_bytes: int
    num_ranks: int
    dtype: DType = DType.BF16

    def __post_init__(self) -> None:
        if self.what not in COLLECTIVES:
            raise InvalidProblemError(refusal("what", self.what, COLLECTIVES))
        for name, limit in (("message_bytes", MAX_MESSAGE_BYTES), ("num_ranks", MAX_RANKS)):
            given = getattr(self, name)
            value = plain_integer(given)
            if value is None or not 1 <= value <= limit:
                raise InvalidProblemError(f"{name} must be an integer in 1..{limit:,}, got {shown(given)}")
            _set(self, name, value)
        if self.what == "send" and self.num_ranks > 2:
            raise InvalidProblemError(f"num_ranks of a send must be 2, or 1 for none, got {self.num_ranks}")
        _set(self, "dtype", parse_dtype(self.dtype))

    def __str__(self) -> str:
        return f"{self.what} of {self.message_bytes:,} bytes, {self.num_ranks} ranks"

    @property
    def buffer_bytes(self) -> int:
        """The larger of what a device has before and after: of an all-gather what it ends with, else the message."""
        return self.message_bytes * (self.num_ranks if self.what == "all_gather" else 1)

    @property
    def wire_bytes(self) -> float:
        """What a device sends to others at least where nothing adds up on the way, in one direction."""
        others, ranks = self.num_ranks - 1, self.num_ranks
        if self.what == "send":
            return float(self.message_bytes * others)
        passes = 2 if self.what == "all_reduce" else 1
        return passes * others * self.buffer_bytes / ranks

    @property
    def is_sum(self) -> bool:
        """Whether elements are added up."""
        return self.what in _REDUCED
