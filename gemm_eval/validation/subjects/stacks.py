"""The exam of whole steps: stacks of layers that were timed, predicted as they are; layers beside their operations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
from rich.table import Table

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
from gemm_eval.validation.subjects import Report
from gemm_eval.validation.subjects.reports import text_table
from gemm_eval.validation.tables import measured_root
from gemm_eval.validation.timings import Floats
from gemm_eval.words import refusal

_FOLDER, _WHOLE = "stacks", "step"
_KEYS = ["model", "num_layers", "dtype", "batch", "q_len", "kv_len"]
_BYTES = ["weight_bytes", "cache_bytes", "activation_bytes"]
_TYPES: Mapping[str, str | DtypeScheme] = {
    "bf16": "bf16",
    "w4a16": DtypeScheme(DType.BF16, DType.INT4, DType.BF16, 128),
}
_OURS, _ATTENTION = "gemm-eval", "cudnn"
_OF_EXPERTS = "expert_"
_NOT_RUN = ("sampling",)  # of models, and not of these stacks, which end with logits in fp32


class StackStep(NamedTuple):
    """A measured step of the first layers of a model, whose activations are bf16.

    Attributes:
        batch, q_len, kv_len: sequences, tokens of each in this step, and positions of each in its cache.
        operations: microseconds of each operation in all layers together, in the order of the step.
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
        names = cast("tuple[str, int, str, int, int, int]", key)
        held = memory[names]
        times: dict[str, float] = dict(zip(rows["operation"], rows["latency_us"], strict=True))
        layers = held["expert_rows"].split(";") if isinstance(held["expert_rows"], str) else ()
        expert_rows = tuple(tuple(map(int, layer.split())) for layer in layers)
        weights, cache, activations = (int(held[name]) for name in _BYTES)
        yield StackStep(gpu, *names, times.pop(_WHOLE), times, weights, cache, activations, expert_rows)


class StackLine(NamedTuple):
    """A step, predicted: each operation in all layers, the step by the data sheet, and weights, cache, activations."""

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

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        derived = ("latency_us", "error_frac", "roofline_error_frac", "memory_error_frac")
        return self._asdict() | {"step": self.step._asdict()} | {name: getattr(self, name) for name in derived}


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
        predicted_us, roofline_us = dict.fromkeys(step.operations, 0.0), 0.0
        for operation, total_us in _costs(evaluator, config, step):
            roofline_us += _roofline_us(evaluator.arch, operation)
            predicted_us[operation.name] += total_us
        memory = model_memory(
            config, batch_size=step.batch, seq_len=step.kv_len, dtype=_TYPES[step.dtype],
            chunk_tokens=step.batch * step.q_len, expert_copies=True,
        )  # fmt: skip
        num_bytes = memory.weight_bytes, memory.kv_cache_bytes, memory.activation_bytes
        yield StackLine(step, predicted_us, roofline_us, num_bytes)


def _costs(evaluator: GEMMEvaluator, config: ModelConfig, step: StackStep) -> Iterator[tuple[Operation, float]]:
    """Yield all operations that take time, and how long in all their layers; those of experts by layer."""

    def operations(config: ModelConfig, expert_load: str | Distribution = "uniform") -> tuple[Operation, ...]:
        return model_operations(
            config, phase="prefill" if step.is_prompt else "decode", batch_size=step.batch, seq_len=step.kv_len,
            dtype=_TYPES[step.dtype], experts_as_layer=False, expert_load=expert_load,
        )  # fmt: skip

    for cost in operation_costs(evaluator, operations(config), attention_library=_ATTENTION):
        name = cost.operation.name
        if not name.startswith(_OF_EXPERTS) and name not in _NOT_RUN:
            yield cost.operation, cost.total_us
    layer = stage_config(config, range(1))
    expected = {item.name: item.work for item in operations(layer)}
    for rows in step.expert_rows:
        for item in operations(layer, ExpertCounts(rows)):
            if not item.name.startswith(_OF_EXPERTS):
                continue
            if not isinstance(item.work, GemmWork):
                yield item, operation_costs(evaluator, [item])[0].latency_us
                continue
            # the kernel is chosen before the GPU knows the rows of each group, and then has those that there are
            before = expected[item.name]
            assert isinstance(before, GemmWork)
            problem, mapping = item.work.problem, evaluator.evaluate_problem(before.problem).mapping
            yield item, evaluator.evaluate_mapping(problem, mapping).latency_us + evaluator.switch_us(problem.rows)


def _roofline_us(arch: ArchSpec, operation: Operation) -> float:
    """Return the longer of its FLOP at the data sheet's peak and its bytes at DRAM bandwidth, in all its layers."""
    assert isinstance(arch, GpuSpec)
    work = operation.work
    flop, peak = 0, 1.0
    if isinstance(work, MemoryWork):
        num_bytes = work.num_bytes
    elif isinstance(work, AttentionWork):
        flop, num_bytes, peak = work.problem.flop, work.problem.num_bytes, arch.peak_tflop_per_s(work.problem.dtype)
    else:
        assert isinstance(work, GemmWork)
        flop, num_bytes = work.problem.flop, work.problem.compulsory_bytes
        peak = arch.peak_tflop_per_s(work.problem.input_dtype)
    return operation.num_layers * max(us_at_peak(flop, peak), num_bytes / bytes_per_us(arch.dram_gb_per_s))


_SEARCH = Search(loss_scale=0.05, difference=1e-3, off_bounds=1e-2, evaluations=100)
_TIMED_ALONE = ("qkv_us", "o_us", "gate_up_us", "down_us", "attention_us")  # memory-bound ones: between others
_NUM_NORMS = 2


class SwitchScore(NamedTuple):
    """The mean errors of layers: of their operations alone, and with what switching takes, sizes held out."""

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
    alone_us, layer_us, hidden = _alone_us(gpu, table), _column(table, "layer_us"), _column(table, "hidden")
    held_us = np.empty(len(table))
    for width in np.unique(hidden):
        held = hidden == width
        held_us[held] = _more_us(gpu, table[held], fit_switches(gpu, table[~held]))
    alone, held_out = (float(np.abs(us / layer_us - 1).mean()) for us in (alone_us, alone_us + held_us))
    return SwitchScore(len(table), alone, held_out, fit_switches(gpu, table))


def fit_switches(gpu: str, table: pd.DataFrame) -> dict[str, float]:
    """Return the coefficients, fitted on the times of layers."""
    ranges, alone_us = Ranges(SWITCH_COEFFICIENTS), _alone_us(gpu, table)

    def predict(values: dict[str, float]) -> Floats:
        return alone_us + _more_us(gpu, table, values)

    start = ranges.shares(SWITCH_DEFAULTS, _SEARCH.off_bounds)
    return ranges.values(fit_logs(ranges, predict, _column(table, "layer_us"), start, _SEARCH))


def _more_us(gpu: str, table: pd.DataFrame, values: Mapping[str, float]) -> Floats:
    more_us: Floats = len(_TIMED_ALONE) * switch_us(load_arch(gpu, GpuSpec), _column(table, "batch"), values)
    return more_us


def _alone_us(gpu: str, table: pd.DataFrame) -> Floats:
    predict = GEMMEvaluator(gpu).evaluate_memory_bound

    def memory_us(row: Mapping[str, int]) -> float:
        batch, hidden, inner = row["batch"], row["hidden"], row["inner"]
        width = (row["heads"] + 2 * row["kv_heads"]) * 128
        turned, wide = 2 * batch * width, 2 * batch * inner
        norm = predict(4 * batch * hidden, 4 * batch * hidden, hidden, batch, "add_rms_norm")
        turn = predict(turned, turned, width, batch, "rotary_kv_write")
        act = predict(2 * wide, wide, inner, batch, "act_mul")
        return _NUM_NORMS * norm.latency_us + turn.latency_us + act.latency_us

    memory = [memory_us(cast("dict[str, int]", row)) for row in table.to_dict("records")]
    return np.array(memory) + sum(_column(table, name) for name in _TIMED_ALONE)


def _column(table: pd.DataFrame, name: str) -> Floats:
    return cast("Floats", table[name].to_numpy(np.float64))


def validate(names: Sequence[str] | None, operations: bool) -> Report:
    """Score stacks; parameters are the options of the command."""
    scored = {name: list(score_stacks(name)) for name in names or gpus_with_stacks()}
    switches = {name: switch for name in scored if (switch := score_switches(name)) is not None}

    def document() -> dict[str, Any]:
        return {
            "gpus": {name: [line.to_dict() for line in lines] for name, lines in scored.items()},
            "switches": {name: switch._asdict() for name, switch in switches.items()},
        }

    def parts() -> Iterator[Table | str]:
        yield (
            "whole steps in CUDA graphs; nothing is fitted on them. Errors of gemm_eval, of the roofline of the data "
            "sheet, and of bytes that weights, cache and activations take"
        )
        for name, lines in scored.items():
            yield _steps(lines, f"{name}, stacks of {lines[0].step.num_layers} layers")
            sizes = (
                _sizes([getattr(line, f"{kind}error_frac") for line in lines]) for kind in ("", "roofline_", "memory_")
            )
            yield "{} steps: gemm_eval {}; roofline {}; memory {}".format(len(lines), *sizes)
            if (switch := switches.get(name)) is not None:
                yield (
                    f"{switch.num_layers} layers of a decode step beside their operations alone: these add up to "
                    f"{switch.alone_frac:.1%} off, with what switching takes {switch.held_out_frac:.1%}, sizes held out"
                )
            for line in lines if operations else ():
                yield ""
                yield _operations_of(line)

    return Report(document, parts)


def _sizes(errors: Sequence[float]) -> str:
    sizes = [abs(error) for error in errors]
    return f"{sum(sizes) / len(sizes):.1%} in the mean, {max(sizes):.1%} at most"


def _steps(lines: Sequence[StackLine], title: str) -> Table:
    table = text_table(("step", "measured us", "predicted", "error", "roofline", "memory"), title)
    for line in lines:
        table.add_row(
            line.step.name, f"{line.step.latency_us:,.0f}", f"{line.latency_us:,.0f}", f"{line.error_frac:+.1%}",
            f"{line.roofline_error_frac:+.0%}", f"{line.memory_error_frac:+.1%}",
        )  # fmt: skip
    return table


def _operations_of(line: StackLine) -> Table:
    table = text_table(("operation", "measured us", "predicted", "error", "of the step"), line.step.name)
    for name, measured_us in line.step.operations.items():
        predicted_us = line.predicted_us[name]
        table.add_row(
            name, f"{measured_us:,.1f}", f"{predicted_us:,.1f}", f"{predicted_us / measured_us - 1:+.1%}",
            f"{(predicted_us - measured_us) / line.step.latency_us:+.2%}",
        )  # fmt: skip
    return table
