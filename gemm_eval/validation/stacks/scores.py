"""Whole steps of stacks of layers, and what they hold, predicted beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gemm_eval.arch import ArchSpec, GpuSpec
from gemm_eval.dtypes import DType, DtypeScheme
from gemm_eval.estimate import operation_costs
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.moe import Distribution, ExpertCounts
from gemm_eval.transformer import (
    AttentionWork,
    GemmWork,
    MemoryWork,
    ModelConfig,
    Operation,
    load_model,
    model_memory,
    model_operations,
    stage_config,
)
from gemm_eval.units import bytes_per_us, us_at_peak
from gemm_eval.validation.stacks.tables import StackStep, list_stack_steps

__all__ = ["StackLine", "score_stacks"]

_TYPES: Mapping[str, str | DtypeScheme] = {
    "bf16": "bf16",
    "w4a16": DtypeScheme(DType.BF16, DType.INT4, DType.BF16, 128),
}
_OURS = "gemm-eval"
_ATTENTION = "cudnn"
_OF_EXPERTS = "expert_"
_NOT_RUN = ("sampling",)  # of models, and not of these stacks, which end with logits in fp32


class StackLine(NamedTuple):
    """A step, predicted.

    Attributes:
        step: as measured.
        predicted_us: microseconds of each operation that was measured, in all layers together.
        roofline_us: microseconds of the step by the data sheet: of each operation the longer of its FLOP and its bytes.
        predicted_bytes: weights, cache and activations.
    """

    step: StackStep
    predicted_us: Mapping[str, float]
    roofline_us: float
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
    def roofline_error_frac(self) -> float:
        """Of the roofline over measured time, less 1."""
        return self.roofline_us / self.step.latency_us - 1

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
        found, roofline_us = dict.fromkeys(step.operations, 0.0), 0.0
        for operation, total_us in _costs(evaluator, config, step):
            roofline_us += _roofline_us(evaluator.arch, operation)
            found[operation.name] += total_us
        yield StackLine(step, found, roofline_us, _held(config, step))


def _costs(evaluator: GEMMEvaluator, config: ModelConfig, step: StackStep) -> Iterator[tuple[Operation, float]]:
    """All operations that take time, and how long in all their layers; those of experts by layer."""
    for cost in operation_costs(evaluator, _operations(config, step), attention_library=_ATTENTION):
        name = cost.operation.name
        if not name.startswith(_OF_EXPERTS) and name not in _NOT_RUN:
            yield cost.operation, cost.total_us
    one = stage_config(config, range(1))
    expected = {item.name: item for item in _operations(one, step)}
    for rows in step.expert_rows:
        for item in _operations(one, step, ExpertCounts(rows)):
            if isinstance(item.work, GemmWork) and item.name.startswith(_OF_EXPERTS):
                yield item, _grouped_us(evaluator, expected[item.name], item.work)
            elif item.name.startswith(_OF_EXPERTS):
                yield item, operation_costs(evaluator, [item])[0].latency_us


def _roofline_us(arch: ArchSpec, operation: Operation) -> float:
    """The longer of its FLOP at the peak of the data sheet and its bytes at the DRAM bandwidth, in all its layers."""
    assert isinstance(arch, GpuSpec)
    work = operation.work
    assert isinstance(work, GemmWork | AttentionWork | MemoryWork)
    flop, num_bytes, peak = 0, 0, 1.0
    if isinstance(work, MemoryWork):
        num_bytes = work.num_bytes
    elif isinstance(work, AttentionWork):
        flop, num_bytes = work.problem.flop, work.problem.num_bytes
        peak = arch.peak_tflop_per_s(work.problem.dtype)
    else:
        flop, num_bytes = work.problem.flop, work.problem.compulsory_bytes
        peak = arch.peak_tflop_per_s(work.problem.input_dtype)
    longer_us = max(us_at_peak(flop, peak), num_bytes / bytes_per_us(arch.dram_gb_per_s))
    return operation.num_layers * longer_us


def _grouped_us(evaluator: GEMMEvaluator, expected: Operation, seen: GemmWork) -> float:
    """The kernel is chosen before the GPU knows the rows of each group, and then has those that there are."""
    assert isinstance(expected.work, GemmWork)
    mapping = evaluator.evaluate_problem(expected.work.problem).mapping
    return evaluator.evaluate_mapping(seen.problem, mapping).latency_us + evaluator.switch_us(seen.problem.rows)


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
