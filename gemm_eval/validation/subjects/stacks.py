"""The exam of whole steps: stacks of layers that were timed, predicted as they are; layers beside their operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, cast

import numpy as np
import pandas as pd

from gemm_eval.arch import ArchSpec, GpuSpec, load_arch
from gemm_eval.dtypes import DType, DtypeScheme
from gemm_eval.errors import InvalidOptionError
from gemm_eval.estimate import operation_costs
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.models.gpu import SWITCH_COEFFICIENTS, SWITCH_DEFAULTS, switch_us
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
from gemm_eval.validation.fit import Ranges, Search, fit_logs
from gemm_eval.validation.tables import measured_root
from gemm_eval.validation.timings import Floats
from gemm_eval.words import refusal

_FOLDER, _WHOLE = "stacks", "step"


class StackStep(NamedTuple):
    """A measured step.

    Attributes:
        gpu: arch name.
        model, num_layers: preset, and how many of its layers there were.
        dtype: ``bf16`` or ``w4a16``, of the weights; activations are bf16.
        batch, q_len, kv_len: sequences, tokens of each in this step, and positions of each in its cache.
        latency_us: of the step.
        operations: microseconds of each operation in all layers together, by name, in the order of the step.
        weight_bytes, cache_bytes, activation_bytes: what was held, the last at the peak of the step.
        expert_rows: rows of each expert, of each layer; empty: it has none.
    """

    gpu: str
    model: str
    num_layers: int
    dtype: str
    batch: int
    q_len: int
    kv_len: int
    latency_us: float
    operations: dict[str, float]
    weight_bytes: int
    cache_bytes: int
    activation_bytes: int
    expert_rows: tuple[tuple[int, ...], ...] = ()

    @property
    def is_prompt(self) -> bool:
        """Whether it is a prompt; else one token for each sequence."""
        return self.q_len > 1

    @property
    def name(self) -> str:
        """As in ``llama-3-8b bf16, prompt of 512``."""
        what = f"prompt of {self.q_len:,}" if self.is_prompt else f"batch {self.batch} at {self.kv_len:,}"
        return f"{self.model} {self.dtype}, {what}"


_KEYS = ["model", "num_layers", "dtype", "batch", "q_len", "kv_len"]


def gpus_with_stacks() -> list[str]:
    """Return the GPUs that have measured stacks."""
    return sorted(path.parent.name for path in measured_root("").glob(f"*/{_FOLDER}"))


def list_stack_steps(gpu: str) -> Iterator[StackStep]:
    """Yield the measured steps of a GPU, in the order in which they ran.

    Raises:
        InvalidOptionError: it has none.
    """
    if gpu not in gpus_with_stacks():
        raise InvalidOptionError(refusal("gpu", gpu, gpus_with_stacks()))
    folder = measured_root(gpu) / _FOLDER
    memory = {tuple(row[name] for name in _KEYS): row for row in pd.read_csv(folder / "held.csv").to_dict("records")}
    for key, rows in pd.read_csv(folder / "steps.csv").groupby(_KEYS, sort=False):
        model, num_layers, dtype, batch, q_len, kv_len = cast("tuple[str, int, str, int, int, int]", key)
        held = memory[tuple(key)]
        times: dict[str, float] = dict(zip(rows["operation"], rows["latency_us"], strict=True))
        yield StackStep(
            gpu, model, num_layers, dtype, batch, q_len, kv_len, times.pop(_WHOLE), times, int(held["weight_bytes"]),
            int(held["cache_bytes"]), int(held["activation_bytes"]),
            _expert_rows(held["expert_rows"]),
        )  # fmt: skip


def _expert_rows(text: object) -> tuple[tuple[int, ...], ...]:
    if not isinstance(text, str):
        return ()
    return tuple(tuple(map(int, layer.split())) for layer in text.split(";"))


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
    """Return the longer of its FLOP at the data sheet's peak and its bytes at DRAM bandwidth, in all its layers."""
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
    """Return the time of the kernel that is chosen before the GPU knows the rows of each group."""
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


_SEARCH = Search(loss_scale=0.05, difference=1e-3, off_bounds=1e-2, evaluations=100)
_TIMED_ALONE = ("qkv_us", "o_us", "gate_up_us", "down_us", "attention_us")  # memory-bound ones: between others
_NUM_NORMS = 2


class SwitchScore(NamedTuple):
    """How far off layers are, in the mean.

    Attributes:
        num_layers: that were timed.
        alone_frac: their operations by themselves, added up, memory-bound ones as predicted.
        held_out_frac: and what switching takes, each size of layer by a fit on the others.
        coefficients: fitted on all.
    """

    num_layers: int
    alone_frac: float
    held_out_frac: float
    coefficients: Mapping[str, float]


def read_switches(gpu: str) -> pd.DataFrame | None:
    """Return the table of a GPU; None: there is none."""
    path = measured_root(gpu) / "switches" / "layers.csv"
    return pd.read_csv(path) if path.is_file() else None


def score_switches(gpu: str) -> SwitchScore | None:
    """Score a GPU; None: it has no such layers."""
    table = read_switches(gpu)
    if table is None:
        return None
    alone_us, layer_us = _alone_us(gpu, table), _column(table, "layer_us")
    held_us = np.empty(len(table))
    for hidden in np.unique(_column(table, "hidden")):
        held = _column(table, "hidden") == hidden
        held_us[held] = _more_us(gpu, table[held], fit_switches(gpu, table[~held]))
    return SwitchScore(
        len(table),
        float(np.abs(alone_us / layer_us - 1).mean()),
        float(np.abs((alone_us + held_us) / layer_us - 1).mean()),
        fit_switches(gpu, table),
    )


def fit_switches(gpu: str, table: pd.DataFrame) -> dict[str, float]:
    """Return the coefficients, fitted on the times of layers."""
    ranges = Ranges(SWITCH_COEFFICIENTS)
    alone_us = _alone_us(gpu, table)
    start = ranges.shares(SWITCH_DEFAULTS, _SEARCH.off_bounds)

    def predict(values: dict[str, float]) -> Floats:
        return alone_us + _more_us(gpu, table, values)

    return ranges.values(fit_logs(ranges, predict, _column(table, "layer_us"), start, _SEARCH))


def _more_us(gpu: str, table: pd.DataFrame, c: Mapping[str, float]) -> Floats:
    found: Floats = len(_TIMED_ALONE) * switch_us(load_arch(gpu, GpuSpec), _column(table, "batch"), c)
    return found


def _alone_us(gpu: str, table: pd.DataFrame) -> Floats:
    evaluator = GEMMEvaluator(gpu)

    def memory_us(row: Mapping[str, int]) -> float:
        batch, hidden, inner = row["batch"], row["hidden"], row["inner"]
        width = (row["heads"] + 2 * row["kv_heads"]) * 128
        turned, wide = 2 * batch * width, 2 * batch * inner
        norm = evaluator.evaluate_memory_bound(4 * batch * hidden, 4 * batch * hidden, hidden, batch, "add_rms_norm")
        turn = evaluator.evaluate_memory_bound(turned, turned, width, batch, "rotary_kv_write")
        act = evaluator.evaluate_memory_bound(2 * wide, wide, inner, batch, "act_mul")
        return _NUM_NORMS * norm.latency_us + turn.latency_us + act.latency_us

    memory = [memory_us(cast("dict[str, int]", row)) for row in table.to_dict("records")]
    return np.array(memory) + sum(_column(table, name) for name in _TIMED_ALONE)


def _column(table: pd.DataFrame, name: str) -> Floats:
    return cast("Floats", table[name].to_numpy(np.float64))
