"""What the shape rules share: one step of inference on one device, and the shapes it is made of."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from gemm_eval.errors import InvalidOptionError
from gemm_eval.moe import Distribution
from gemm_eval.workload import RowGroups

__all__ = ["Operand", "Shape", "Step", "split"]

_MAX_DIVISORS_SHOWN = 12


class Operand(enum.Enum):
    """What B of a GEMM is, which decides its data type."""

    WEIGHT = "weight"
    EXPERT = "expert"
    ROUTER = "router"
    LM_HEAD = "lm_head"
    ACTIVATION = "activation"


class Shape(NamedTuple):
    """A GEMM before it has data types, C[G,M,N] = A[G,M,K] x B[G,K,N], run once in each of `num_layers` layers.

    `num_held` counts the matrices B that the device holds, where they are more than the G at work: idle experts.
    `row_groups`: rows of each of G groups, where they differ; M is then the most.
    """

    name: str
    G: int
    M: int
    K: int
    N: int
    num_layers: int
    operand: Operand = Operand.WEIGHT
    num_held: int | None = None
    row_groups: RowGroups | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One forward pass of one tensor-parallel group: `num_seqs` sequences, `new_tokens` tokens of each.

    `context` counts the positions that the last new token attends to, itself included. `expands_cache`: latents of
    cached positions are expanded too, where they are not absorbed.
    """

    model: str
    num_seqs: int
    new_tokens: int
    context: int
    tensor_parallel: int
    expert_parallel: int
    expert_imbalance: float
    expert_load: str | Distribution
    expert_seed: int
    absorb_mla: bool
    lm_head_all_tokens: bool
    expands_cache: bool = False

    @property
    def tokens(self) -> int:
        """Rows of every GEMM on all tokens."""
        return self.num_seqs * self.new_tokens

    def tensor_split(self, size: int, what: str) -> int:
        """Return `size` over the tensor-parallel degree; see `split`."""
        return split(size, self.tensor_parallel, "tensor_parallel", f"{what} of {self.model}")


def split(size: int, degree: int, option: str, what: str) -> int:
    """Return ``size // degree``.

    Raises:
        InvalidOptionError: `degree` does not divide `size`; the message names `option`, `what` and good degrees.
    """
    if size % degree == 0:
        return size // degree
    good = [d for d in range(1, min(size, 1024) + 1) if size % d == 0]
    shown = ", ".join(map(str, good[:_MAX_DIVISORS_SHOWN])) + (", ..." if len(good) > _MAX_DIVISORS_SHOWN else "")
    raise InvalidOptionError(f"{option} must divide {what} = {size}, got {degree}; possible: {shown}")
