"""Whole steps of stacks of layers, and what they hold, predicted beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gemm_eval.dtypes import DType, DtypeScheme
from gemm_eval.estimate import operation_costs
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.transformer import ModelConfig, load_model, model_memory, model_operations, stage_config
from gemm_eval.validation.stacks.tables import StackStep, list_stack_steps

__all__ = ["StackLine", "score_stacks"]

_TYPES: Mapping[str, str | DtypeScheme] = {
    "bf16": "bf16",
    "w4a16": DtypeScheme(DType.BF16, DType.INT4, DType.BF16, 128),
}
_OURS = "gemm-eval"
_ATTENTION = "cudnn"


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

    GEMMs of 16 bits run in cuBLAS, those of 4 bits in our kernels, attention in cuDNN, experts of 16 bits in PyTorch.

    Raises:
        InvalidOptionError: it has none.
    """
    evaluators = {"bf16": GEMMEvaluator(gpu), "w4a16": GEMMEvaluator(gpu, library=_OURS)}
    for step in list_stack_steps(gpu):
        config = stage_config(load_model(step.model), range(step.num_layers))
        found = dict.fromkeys(step.operations, 0.0)
        operations = model_operations(
            config,
            phase="prefill" if step.is_prompt else "decode",
            batch_size=step.batch,
            seq_len=step.kv_len,
            dtype=_TYPES[step.dtype],
            experts_as_layer=False,
        )
        for cost in operation_costs(evaluators[step.dtype], operations, attention_library=_ATTENTION):
            if cost.operation.name in found:
                found[cost.operation.name] += cost.total_us
        yield StackLine(step, found, _held(config, step))


def _held(config: ModelConfig, step: StackStep) -> tuple[int, int, int]:
    memory = model_memory(
        config, batch_size=step.batch, seq_len=step.kv_len, dtype=_TYPES[step.dtype],
        chunk_tokens=step.batch * step.q_len,
    )  # fmt: skip
    return memory.weight_bytes, memory.kv_cache_bytes, memory.activation_bytes
