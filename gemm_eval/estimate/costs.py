"""What each operation of a step takes: every kind has a model of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.moe import moe_layers
from gemm_eval.transformer import (
    AttentionOperation,
    CollectiveOperation,
    GemmOperation,
    MemoryOperation,
    MoeOperation,
    Operation,
)

__all__ = ["IN_ATTENTION", "OperationCost", "operation_costs"]

IN_ATTENTION = "in attention"
"""The bound of an operation that the attention of its layer contains: it takes no time of its own."""

_QUANTIZATION = ("quantize_us", "cast_us")  # terms of the kernels before a GEMM

_POSITIONS = frozenset({"rotary_kv_write", "rotary", "kv_write"})


class OperationCost(NamedTuple):
    """What an operation of a step takes on one device.

    Attributes:
        operation: what it is, and in how many layers it runs.
        latency_us: of one run, between other kernels.
        bound: what limits it, in the word of its model.
        how: kernel of attention, or algorithm of a message; empty: nothing to say.
    """

    operation: Operation
    latency_us: float
    bound: str
    how: str = ""

    @property
    def total_us(self) -> float:
        """Of all layers that have it."""
        return self.latency_us * self.operation.num_layers

    @property
    def detail(self) -> str:
        """Its sizes, in words."""
        of, how = self.operation, f", {self.how}" if self.how else ""
        if isinstance(of, GemmOperation | AttentionOperation):
            return f"{of.problem}{how}"
        if isinstance(of, MoeOperation):
            return str(of.layer)
        if isinstance(of, CollectiveOperation):
            return f"{of.what} of {of.message_bytes:,} bytes, {of.num_ranks} ranks{how}"
        assert isinstance(of, MemoryOperation)
        return f"{of.what}, {of.rows:,} x {of.width:,}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        of = self.operation
        return {
            "name": of.name, "kind": of.kind, "layer_kind": of.layer_kind, "num_layers": of.num_layers,
            "latency_us": self.latency_us, "total_us": self.total_us, "bound": self.bound, "detail": self.detail,
        }  # fmt: skip


def operation_costs(
    evaluator: GEMMEvaluator, operations: Sequence[Operation], *, fused: bool | None = None,
    attention_library: str | None = None, collective_library: str | None = None, expert_library: str | None = None,
    interconnect: str | None = None,
) -> tuple[OperationCost, ...]:  # fmt: skip
    """Return what each operation takes, in their order.

    GEMMs are priced with the evaluator's own options; attention and experts all in one go. GEMMs and attention take
    `GEMMEvaluator.switch_us` more than by themselves.

    Args:
        evaluator: of the arch.
        operations: of one step on one device.
        fused, attention_library: attention; see `GEMMEvaluator.evaluate_attention`.
        collective_library, interconnect: messages; see `GEMMEvaluator.evaluate_collective`.
        expert_library: whose kernels run experts; None: what serving engines take.

    Raises:
        UnsupportedError: the arch cannot run a type, or has no link for a message.
        InfeasibleError: no mapping fits.
    """
    attention = _attention(evaluator, operations, fused, attention_library)
    experts = _experts(evaluator, operations, expert_library)
    with_positions = {kind for kind, _ in attention.values() if kind is not None}
    found = []
    for place, operation in enumerate(operations):
        if isinstance(operation, GemmOperation):
            cost = _gemm(evaluator, operation)
        elif isinstance(operation, AttentionOperation):
            cost = attention[place][1]
        elif isinstance(operation, MoeOperation):
            cost = experts[place]
        elif isinstance(operation, CollectiveOperation):
            cost = _collective(evaluator, operation, collective_library, interconnect)
        else:
            assert isinstance(operation, MemoryOperation)
            cost = _memory(evaluator, operation, operation.layer_kind in with_positions)
        found.append(cost)
    return tuple(found)


def _gemm(evaluator: GEMMEvaluator, operation: GemmOperation) -> OperationCost:
    """Return the cost of a GEMM. Multi-core chips have no model of the kernel that quantizes A.

    Where the kernel before writes A as the GEMM reads it, that is the GEMM alone. Some types were timed behind the
    kernel that quantizes A only, so that the correction is of both: then the terms of that kernel are taken off.
    """
    problem, switch_us = operation.problem, evaluator.switch_us(operation.problem.rows)
    is_narrow = operation.quantize_from is not None and evaluator.arch.type == "gpu"
    behind = evaluator.evaluate_problem(problem, quantize_from=str(operation.quantize_from)) if is_narrow else None
    if behind is not None and not operation.is_quantized:
        return OperationCost(operation, behind.latency_us + switch_us, behind.bound)
    alone = evaluator.evaluate_problem(problem)
    latency_us = alone.latency_us
    if behind is not None and behind.source == "corrected" != alone.source:
        latency_us = behind.latency_us - sum(behind.breakdown.get(term, 0.0) for term in _QUANTIZATION)
    return OperationCost(operation, latency_us + switch_us, alone.bound)


def _attention(
    evaluator: GEMMEvaluator, operations: Sequence[Operation], fused: bool | None, library: str | None
) -> Mapping[int, tuple[str | None, OperationCost]]:
    """By place: the kind of layers whose positions are in it, if they are, and the cost."""
    some = {place: item for place, item in enumerate(operations) if isinstance(item, AttentionOperation)}
    results = evaluator.evaluate_attention_problems(
        [item.problem for item in some.values()], fused=fused, library=library
    )
    return {
        place: (
            item.layer_kind if result.has_positions else None,
            OperationCost(
                item,
                result.latency_us + evaluator.switch_us(item.problem.batch * item.problem.q_len),
                result.bound,
                result.kernel,
            ),
        )
        for (place, item), result in zip(some.items(), results, strict=True)
    }


def _experts(
    evaluator: GEMMEvaluator, operations: Sequence[Operation], library: str | None
) -> Mapping[int, OperationCost]:
    some = {place: item for place, item in enumerate(operations) if isinstance(item, MoeOperation)}
    if not some:
        return {}
    results = moe_layers(evaluator, [item.layer for item in some.values()], library=library, progress=False)
    return {
        place: OperationCost(item, result.latency_us, result.bound)
        for (place, item), result in zip(some.items(), results, strict=True)
    }


def _collective(
    evaluator: GEMMEvaluator, operation: CollectiveOperation, library: str | None, interconnect: str | None
) -> OperationCost:
    result = evaluator.evaluate_collective(
        operation.what, operation.message_bytes, operation.num_ranks, library=library, interconnect=interconnect
    )
    return OperationCost(operation, result.latency_us, "link", result.algorithm)


def _memory(evaluator: GEMMEvaluator, operation: MemoryOperation, is_in_attention: bool) -> OperationCost:
    if is_in_attention and operation.what in _POSITIONS:
        return OperationCost(operation, 0.0, IN_ATTENTION)
    result = evaluator.evaluate_memory_bound(
        operation.read_bytes, operation.write_bytes, operation.width, operation.rows, operation.what
    )
    terms = result.breakdown
    return OperationCost(
        operation, result.latency_us, "dram" if terms["bytes_us"] > 0.5 * result.latency_us else "launch"
    )
