"""Whole steps of stacks of layers, and what they hold, predicted beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gemm_eval.dtypes import DType, DtypeScheme
from gemm_eval.estimate import operation_costs
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.moe import Distribution, ExpertCounts
from gemm_eval.transformer import (
    GemmOperation,
    ModelConfig,
    Operation,
    load_model,
    model_memory,
    model_operations,
    stage_config,
)
from gemm_eval.validation.stacks.tables import StackStep, list_stack_steps

__all__ = ["StackLine", "score_stacks"]

_TYPES: Mapping[str, str | DtypeScheme] = {
    "bf16": "bf16",
    "w4a16": DtypeScheme(DType.BF16, DType.INT4, DType.BF16, 128),
}
_OURS = "gemm-eval"
_ATTENTION = "cudnn"
_OF_EXPERTS = "expert_"


class StackLine(NamedTuple):
    """A step, predicted.

    Attributes:
        step: as measured.
        predicted_us: microseconds of each operation that was measured, in all layers together.
        predicted_bytes: weights, cache and activations.
    """

    step: StackStep
    predicted_us: Mapping[str, float]
    predicted_bytes: tuple[int, int, int]

    @property
    def latency_us(self) -> float:
        """Of the step, as predicted."""
        return sum(self.predicted_us.values())

    @property
    def error_frac(self) -> float:
        """Predicted over measured time, less 1."""
        return self.latency_us / self.step.latency_us - 1

    @property
    def memory_error_frac(self) -> float:
        """Predicted over measured bytes, all together, less 1."""
        step = self.step
        return sum(self.predicted_bytes) / (step.weight_bytes + step.cache_bytes + step.activation_bytes) - 1


def score_stacks(gpu: str) -> Iterator[StackLine]:
    """Yield all measured steps of a GPU with predictions, which are fitted on no step.

    GEMMs of 16 bits run in cuBLAS, those of 4 bits in our kernels, attention in cuDNN, experts of 16 bits in
    PyTorch. Rows of experts are those that the step had.

    Raises:
        InvalidOptionError: it has none.
    """
    evaluators = {"bf16": GEMMEvaluator(gpu), "w4a16": GEMMEvaluator(gpu, library=_OURS)}
    for step in list_stack_steps(gpu):
        evaluator, config = evaluators[step.dtype], stage_config(load_model(step.model), range(step.num_layers))
        found = dict.fromkeys(step.operations, 0.0)
        for name, total_us in _costs(evaluator, config, step):
            if name in found:
                found[name] += total_us
        yield StackLine(step, found, _held(config, step))


def _costs(evaluator: GEMMEvaluator, config: ModelConfig, step: StackStep) -> Iterator[tuple[str, float]]:
    """Names and times of all operations; those of experts by layer."""
    for cost in operation_costs(evaluator, _operations(config, step), attention_library=_ATTENTION):
        if not cost.operation.name.startswith(_OF_EXPERTS):
            yield cost.operation.name, cost.total_us
    one = stage_config(config, range(1))
    expected = {item.name: item for item in _operations(one, step)}
    for rows in step.expert_rows:
        for item in _operations(one, step, ExpertCounts(rows)):
            if isinstance(item, GemmOperation) and item.name.startswith(_OF_EXPERTS):
                yield item.name, _grouped_us(evaluator, expected[item.name], item)
            elif item.name.startswith(_OF_EXPERTS):
                yield item.name, operation_costs(evaluator, [item])[0].latency_us


def _grouped_us(evaluator: GEMMEvaluator, expected: Operation, seen: GemmOperation) -> float:
    """The kernel is chosen before the GPU knows the rows of each group, and then has those that there are."""
    assert isinstance(expected, GemmOperation)
    return evaluator.evaluate_mapping(seen.problem, evaluator.evaluate_problem(expected.problem).mapping).latency_us


def _operations(
    config: ModelConfig, step: StackStep, expert_load: str | Distribution = "uniform"
) -> tuple[Operation, ...]:
    return model_operations(
        config,
        phase="prefill" if step.is_prompt else "decode",
        batch_size=step.batch,
        seq_len=step.kv_len,
        dtype=_TYPES[step.dtype],
        experts_as_layer=False,
        expert_load=expert_load,
    )


def _held(config: ModelConfig, step: StackStep) -> tuple[int, int, int]:
    memory = model_memory(
        config, batch_size=step.batch, seq_len=step.kv_len, dtype=_TYPES[step.dtype],
        chunk_tokens=step.batch * step.q_len, expert_copies=True,
    )  # fmt: skip
    return memory.weight_bytes, memory.kv_cache_bytes, memory.activation_bytes
