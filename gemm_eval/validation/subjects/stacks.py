"""The exams of whole steps: timed stacks of layers, layers beside their operations, published steps of training."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
from rich.table import Table

from gemm_eval import transformer as models
from gemm_eval.arch import GpuSpec, data_root, load_arch
from gemm_eval.dtypes import DType, DtypeScheme
from gemm_eval.errors import InfeasibleError
from gemm_eval.estimate import operation_costs
from gemm_eval.evaluate import GEMMEvaluator, shared_frac, sum_interval
from gemm_eval.models.gpu import SWITCH_COEFFICIENTS, SWITCH_DEFAULTS, switch_us
from gemm_eval.moe import Distribution, ExpertCounts
from gemm_eval.training import RECOMPUTE, TrainingEstimate, estimate_training, model_flop
from gemm_eval.transformer import load_model
from gemm_eval.units import bytes_per_us, us_at_peak
from gemm_eval.validation.exam import chosen_gpus
from gemm_eval.validation.fit import Ranges, Search, held_out
from gemm_eval.validation.metrics import rows_table
from gemm_eval.validation.subjects import Report
from gemm_eval.validation.tables import Floats, Mask, measured_root

_KEYS = ["model", "num_layers", "dtype", "batch", "q_len", "kv_len"]
_TYPES: Mapping[str, str | DtypeScheme] = {
    "bf16": "bf16",
    "w4a16": DtypeScheme(DType.BF16, DType.INT4, DType.BF16, 128),
}
_OF_EXPERTS = "expert_"
_NOT_RUN = ("sampling",)  # of models, and not of these stacks, which end with logits in fp32


class StackStep(NamedTuple):
    """A measured step of the first layers of a model, whose activations are bf16.

    Attributes:
        batch, q_len, kv_len: sequences, tokens of each in this step, and positions of each in its cache.
        operations: microseconds of each operation in all layers together, in the order of the step.
        weight_bytes, cache_bytes, activation_bytes: held, the last at the peak of the step.
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
    def name(self) -> str:
        """Title such as ``llama-3-8b bf16, prompt of 512``."""
        size = f"prompt of {self.q_len:,}" if self.q_len > 1 else f"batch {self.batch} at {self.kv_len:,}"
        return f"{self.model} {self.dtype}, {size}"


def gpus_with_stacks() -> list[str]:
    """Return the GPUs that have measured stacks."""
    return sorted(path.parent.name for path in measured_root("").glob("*/stacks"))


def list_stack_steps(gpu: str) -> Iterator[StackStep]:
    """Yield the measured steps of a GPU, in the order in which they ran; InvalidOptionError: it has none."""
    chosen_gpus([gpu], gpus_with_stacks())
    folder = measured_root(gpu) / "stacks"
    memory = {tuple(row[name] for name in _KEYS): row for row in pd.read_csv(folder / "held.csv").to_dict("records")}
    for key, rows in pd.read_csv(folder / "steps.csv").groupby(_KEYS, sort=False):
        names = cast("tuple[str, int, str, int, int, int]", key)
        held = memory[names]
        times: dict[str, float] = dict(zip(rows["operation"], rows["latency_us"], strict=True))
        layers = held["expert_rows"].split(";") if isinstance(held["expert_rows"], str) else ()
        expert_rows = tuple(tuple(map(int, layer.split())) for layer in layers)
        weights, cache, activations = (int(held[f"{name}_bytes"]) for name in ("weight", "cache", "activation"))
        yield StackStep(gpu, *names, times.pop("step"), times, weights, cache, activations, expert_rows)


class Range(NamedTuple):
    """A predicted time and the ends of its 80% interval."""

    latency_us: float
    low_us: float
    high_us: float

    def plus(self, other: Range, more_us: float = 0.0) -> Range:
        """Return the range of both together, whose errors are the same, and of a time without an error."""
        return Range(*(one + two + more_us for one, two in zip(self, other, strict=True)))


_NOTHING = Range(0.0, 0.0, 0.0)


class StackLine(NamedTuple):
    """A step, predicted: each operation in all layers, the step by the data sheet, and weights, cache, activations."""

    step: StackStep
    predicted: Mapping[str, Range]
    roofline_us: float
    predicted_bytes: tuple[int, int, int]

    @property
    def errors(self) -> dict[str, float]:
        """Predicted latency of the step, and errors (predicted over measured, less 1) of it, the roofline and bytes."""
        step, latency_us = self.step, sum(each.latency_us for each in self.predicted.values())
        held_bytes = step.weight_bytes + step.cache_bytes + step.activation_bytes
        return {
            "latency_us": latency_us,
            "error_frac": latency_us / step.latency_us - 1,
            "roofline_error_frac": self.roofline_us / step.latency_us - 1,
            "memory_error_frac": sum(self.predicted_bytes) / held_bytes - 1,
        }


def score_stacks(gpu: str) -> Iterator[StackLine]:
    """Yield all measured steps of a GPU with predictions, which are fitted on no step.

    GEMMs of 16 bits run in cuBLAS, those of 4 bits in our kernels, attention in cuDNN, experts of 16 bits in
    PyTorch. Rows of experts are those that the step had.
    """
    evaluators = _evaluators(gpu)
    spec = load_arch(gpu, GpuSpec)
    for step in list_stack_steps(gpu):
        config = models.stage_config(models.load_model(step.model), range(step.num_layers))
        predicted, roofline_us = dict.fromkeys(step.operations, _NOTHING), 0.0
        for operation, total in _costs(evaluators[step.dtype], config, step):
            roofline_us += _roofline_us(spec, operation)
            predicted[operation.name] = predicted[operation.name].plus(total)
        memory = models.model_memory(
            config, batch_size=step.batch, seq_len=step.kv_len, dtype=_TYPES[step.dtype],
            chunk_tokens=step.batch * step.q_len, expert_copies=True,
        )  # fmt: skip
        num_bytes = memory.weight_bytes, memory.kv_cache_bytes, memory.activation_bytes
        yield StackLine(step, predicted, roofline_us, num_bytes)


def _evaluators(gpu: str) -> dict[str, GEMMEvaluator]:
    return {"bf16": GEMMEvaluator(gpu), "w4a16": GEMMEvaluator(gpu, library="gemm-eval")}


def _costs(
    evaluator: GEMMEvaluator, config: models.ModelConfig, step: StackStep
) -> Iterator[tuple[models.Operation, Range]]:
    """Yield all operations that take time, and how long in all their layers; those of experts by layer."""

    def operations(config: models.ModelConfig, load: str | Distribution = "uniform") -> tuple[models.Operation, ...]:
        return models.model_operations(
            config, phase="prefill" if step.q_len > 1 else "decode", batch_size=step.batch, seq_len=step.kv_len,
            dtype=_TYPES[step.dtype], experts_as_layer=False, expert_load=load,
        )  # fmt: skip

    for cost in operation_costs(evaluator, operations(config), attention_library="cudnn"):
        name = cost.operation.name
        if not name.startswith(_OF_EXPERTS) and name not in _NOT_RUN:
            yield cost.operation, Range(*cost.total)
    layer = models.stage_config(config, range(1))
    expected = {item.name: item.work for item in operations(layer)}
    for rows in step.expert_rows:
        for item in operations(layer, ExpertCounts(rows)):
            if not item.name.startswith(_OF_EXPERTS):
                continue
            if not isinstance(item.work, models.GemmWork):
                yield item, _range(operation_costs(evaluator, [item])[0])
                continue
            # the kernel is chosen before the GPU knows the rows of each group, and then has those that there are
            before = expected[item.name]
            assert isinstance(before, models.GemmWork)
            problem, mapping = item.work.problem, evaluator.evaluate_problem(before.problem).mapping
            yield item, _range(evaluator.evaluate_mapping(problem, mapping), evaluator.switch_us(problem.rows))


def _range(result: Any, more_us: float = 0.0) -> Range:
    return _NOTHING.plus(Range(result.latency_us, result.low_us, result.high_us), more_us)


def _roofline_us(arch: GpuSpec, operation: models.Operation) -> float:
    """Return the longer of its FLOP at the data sheet's peak and its bytes at DRAM bandwidth, in all its layers."""
    work = operation.work
    flop, peak = 0, 1.0
    if isinstance(work, models.MemoryWork):
        num_bytes = work.num_bytes
    elif isinstance(work, models.AttentionWork):
        flop, num_bytes, peak = work.problem.flop, work.problem.num_bytes, arch.peak_tflop_per_s(work.problem.dtype)
    else:
        assert isinstance(work, models.GemmWork)
        flop, num_bytes = work.problem.flop, work.problem.compulsory_bytes
        peak = arch.peak_tflop_per_s(work.problem.input_dtype)
    return operation.num_layers * max(us_at_peak(flop, peak), num_bytes / bytes_per_us(arch.dram_gb_per_s))


_SEARCH = Search(loss_scale=0.05, difference=1e-3, off_bounds=1e-2, evaluations=100)
_TIMED_ALONE = ("qkv_us", "o_us", "gate_up_us", "down_us", "attention_us")  # memory-bound ones: between others
_HEAD_DIM = 128
_WORDS: Mapping[str, dict[str, Any]] = {
    "bf16": {"dtype": "bf16"},
    "w4a16": {"input_dtype": "bf16", "weight_dtype": "int4", "output_dtype": "bf16", "group_size": 128},
}


class SwitchScore(NamedTuple):
    """The mean errors of layers: of their operations alone, and with what switching takes, sizes held out."""

    num_layers: int
    alone_frac: float
    held_out_frac: float
    coefficients: Mapping[str, float]
    layers: Sequence[tuple[float, Sequence[Range]]]  # measured latency, and each operation, predicted


def score_switches(gpu: str) -> SwitchScore | None:
    """Score a GPU; None: it has no such layers."""
    path = measured_root(gpu) / "switches" / "layers.csv"
    if not path.is_file():
        return None
    table = pd.read_csv(path)

    def predict(train: Mask, rows: Mask) -> dict[str, Floats]:
        return {"more": _more_us(gpu, table[rows], fit_switches(gpu, table[train]))}

    alone_us, layer_us = _alone_us(gpu, table), _column(table, "layer_us")
    switched_us = alone_us + held_out(table["hidden"].tolist(), predict)["more"]
    alone, switched = (float(np.abs(us / layer_us - 1).mean()) for us in (alone_us, switched_us))
    layers = list(zip(layer_us.tolist(), _layer_ranges(gpu, table), strict=True))
    return SwitchScore(len(table), alone, switched, fit_switches(gpu, table), layers)


def fit_switches(gpu: str, table: pd.DataFrame) -> dict[str, float]:
    """Return the coefficients, fitted on the times of layers."""
    alone_us = _alone_us(gpu, table)
    return Ranges(SWITCH_COEFFICIENTS).fit(
        lambda values: alone_us + _more_us(gpu, table, values), _column(table, "layer_us"), _SEARCH, SWITCH_DEFAULTS
    )


def _more_us(gpu: str, table: pd.DataFrame, values: Mapping[str, float]) -> Floats:
    return len(_TIMED_ALONE) * switch_us(load_arch(gpu, GpuSpec), _column(table, "batch"), values)


def _alone_us(gpu: str, table: pd.DataFrame) -> Floats:
    evaluator = GEMMEvaluator(gpu)
    memory = [sum(each.latency_us for each in _memory_ranges(evaluator, row)) for row in table.itertuples()]
    return np.array(memory) + sum(_column(table, name) for name in _TIMED_ALONE)


def _memory_ranges(evaluator: GEMMEvaluator, row: Any) -> list[Range]:
    """Return the ranges of the memory-bound kernels of a layer: both norms together, positions, the activation."""
    predict, width = evaluator.evaluate_memory_bound, _width(row)
    turned, wide, hidden = 2 * row.batch * width, 2 * row.batch * row.inner, 4 * row.batch * row.hidden
    norm = _range(predict(hidden, hidden, row.hidden, row.batch, "add_rms_norm"))
    turn = predict(turned, turned, width, row.batch, "rotary_kv_write")
    act = predict(2 * wide, wide, row.inner, row.batch, "act_mul")
    return [norm.plus(norm), _range(turn), _range(act)]


def _width(row: Any) -> int:
    return int((row.heads + 2 * row.kv_heads) * _HEAD_DIM)


def _layer_ranges(gpu: str, table: pd.DataFrame) -> Iterator[list[Range]]:
    """Yield the ranges of the operations of each layer, predicted as users have them."""
    evaluators, rows = _evaluators(gpu), cast("Iterator[Any]", table.itertuples())
    for row in rows:
        evaluator, inner = evaluators[row.dtype], row.heads * _HEAD_DIM
        sizes = (row.hidden, _width(row)), (inner, row.hidden), (row.hidden, 2 * row.inner), (row.inner, row.hidden)
        gemms = [evaluator.evaluate(1, row.batch, K, N, **_WORDS[row.dtype]) for K, N in sizes]
        attention = evaluator.evaluate_attention(
            batch=row.batch, q_len=1, kv_len=row.context, num_heads=row.heads, num_kv_heads=row.kv_heads,
            head_dim=_HEAD_DIM, dtype="bf16", library="cudnn",
        )  # fmt: skip
        more_us = evaluator.switch_us(row.batch)
        yield [*(_range(result, more_us) for result in (*gemms, attention)), *_memory_ranges(evaluator, row)]


def _column(table: pd.DataFrame, name: str) -> Floats:
    return cast("Floats", table[name].to_numpy(np.float64))


def validate(names: Sequence[str] | None, operations: bool) -> Report:
    """Score stacks; parameters are the options of the command."""
    scored = {name: list(score_stacks(name)) for name in names or gpus_with_stacks()}
    switches = {name: switch for name in scored if (switch := score_switches(name)) is not None}

    def document() -> dict[str, Any]:
        lines = {
            name: [line._asdict() | {"step": line.step._asdict()} | line.errors for line in of_gpu]
            for name, of_gpu in scored.items()
        }
        return {"gpus": lines, "switches": {name: switch._asdict() for name, switch in switches.items()}}

    def parts() -> Iterator[Table | str]:
        yield (
            "whole steps in CUDA graphs; nothing is fitted on them. Errors of gemm_eval, of the roofline of the data "
            "sheet, and of bytes that weights, cache and activations take"
        )
        for name, lines in scored.items():
            yield _steps(lines, f"{name}, stacks of {lines[0].step.num_layers} layers")
            sizes = ([abs(line.errors[f"{kind}error_frac"]) for line in lines] for kind in ("", "roofline_", "memory_"))
            errors = (f"{sum(of) / len(of):.1%} in the mean, {max(of):.1%} at most" for of in sizes)
            yield "{} steps: gemm_eval {}; roofline {}; memory {}".format(len(lines), *errors)
            sums = [(line.step.latency_us, tuple(line.predicted.values())) for line in lines]
            layers = switches[name].layers if name in switches else ()
            texts = (_say_inside(*each) for each in (("steps", sums), ("layers", layers), ("both", [*sums, *layers])))
            yield f"inside their 80% intervals (share of the variance that 80% need): {', '.join(filter(None, texts))}"
            if (switch := switches.get(name)) is not None:
                yield (
                    f"{switch.num_layers} layers of a decode step beside their operations alone: these add up to "
                    f"{switch.alone_frac:.1%} off, with what switching takes {switch.held_out_frac:.1%}, sizes held out"
                )
            for line in lines if operations else ():
                yield ""
                yield _operations_of(line)

    return Report(document, parts)


def _say_inside(word: str, sums: Sequence[tuple[float, Sequence[Range]]]) -> str:
    if not sums:
        return ""
    inside = sum(low_us <= us <= high_us for us, parts in sums for low_us, high_us in [sum_interval(parts)])
    return f"{word} {inside} of {len(sums)} ({shared_frac(sums):.2f})"


def _steps(lines: Sequence[StackLine], title: str) -> Table:
    columns = {"step": "", "measured us": ",.0f", "predicted": ",.0f", "error": "+.1%", "roofline": "+.0%",
               "memory": "+.1%"}  # fmt: skip
    return rows_table(
        columns, ((line.step.name, line.step.latency_us, *line.errors.values()) for line in lines), title, 1
    )


def _operations_of(line: StackLine) -> Table:
    columns = {"operation": "", "measured us": ",.1f", "predicted": ",.1f", "error": "+.1%", "of the step": "+.2%"}
    rows = []
    for name, measured_us in line.step.operations.items():
        us = line.predicted[name].latency_us
        rows.append((name, measured_us, us, us / measured_us - 1, (us - measured_us) / line.step.latency_us))
    return rows_table(columns, rows, line.step.name, 1)


# Training: steps that others published (arch/published/training.csv); nothing is fitted on them.

_DEGREES = ("tensor", "pipeline", "context", "expert")
_SIZES = ("num_devices", "global_batch", "micro_batch", "seq_len", "zero", "num_chunks")
_OPTION_WORDS = ("dtype", "schedule", "recompute", "dispatcher", "attention_library")
_S_PER_HOUR = 3600
_FLOP_PER_TFLOP = 1e12


class PublishedRun(NamedTuple):
    """A published training run; `tokens_per_s` is of one device."""

    name: str
    model: str
    arch: GpuSpec
    options: Mapping[str, Any]
    tokens_per_s: float
    source: str
    note: str


@cache
def published_runs() -> tuple[PublishedRun, ...]:
    """Return the published runs, in the order of their file."""
    text = (data_root() / "published" / "training.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(line for line in text.splitlines() if not line.startswith("#"))
    return tuple(_read(row) for row in rows)


def _read(row: Mapping[str, str]) -> PublishedRun:
    arch = load_arch(row["arch"], GpuSpec)
    if row["link_gb_per_s"]:
        assert arch.interconnect is not None
        arch = arch.with_(interconnect=arch.interconnect.model_copy(update={"gb_per_s": float(row["link_gb_per_s"])}))
    options: dict[str, Any] = {name: int(row[name]) for name in _SIZES}
    options |= {f"{name}_parallel": int(row[name]) for name in _DEGREES}
    options |= {name: row[name] for name in _OPTION_WORDS if row[name]}
    options["mtp_layers"] = int(row["mtp_layers"] or 0)
    options["overlap"] = {group: float(share) for group, share in (word.split("=") for word in row["overlap"].split())}
    if row["tokens_per_s"]:
        rate = float(row["tokens_per_s"])
    elif row["tflop_per_s"]:
        flop = model_flop(load_model(row["model"]), options["seq_len"], is_full=True) / options["seq_len"]
        rate = float(row["tflop_per_s"]) * _FLOP_PER_TFLOP / flop
    else:
        rate = float(row["num_tokens"]) / (float(row["gpu_hours"]) * _S_PER_HOUR)
    return PublishedRun(row["name"], row["model"], arch, options, rate, row["source"], row["note"])


def score_training() -> Iterator[tuple[PublishedRun, TrainingEstimate]]:
    """Yield all published runs with estimates: of the recomputation that the source gives, else the least that fits."""
    for run in published_runs():
        given = run.options.get("recompute")
        for recompute in RECOMPUTE if given is None else (given,):
            options = {**run.options, "recompute": recompute, "ignore_memory": recompute in (given, RECOMPUTE[-1])}
            with suppress(InfeasibleError):
                yield run, estimate_training(run.model, run.arch, **options)
                break


def _record(run: PublishedRun, estimate: TrainingEstimate) -> dict[str, Any]:
    """Return what was published beside the estimate; MFU by our definition, errors of tokens a second as of MFU."""
    ratio = estimate.tokens_per_s_per_device / run.tokens_per_s
    return {
        "name": run.name, "model": run.model, "arch": run.arch.name, "source": run.source, "note": run.note,
        "layout": str(estimate.layout), "dtype": estimate.options["dtype"],
        "recompute": estimate.options["recompute"], "tokens_per_s": run.tokens_per_s,
        "predicted_tokens_per_s": estimate.tokens_per_s_per_device,
        "mfu_frac": estimate.mfu_frac * run.tokens_per_s / estimate.tokens_per_s_per_device,
        "predicted_mfu_frac": estimate.mfu_frac, "error_frac": ratio - 1,
        "is_inside": estimate.low_us <= estimate.latency_us * ratio <= estimate.high_us,
    }  # fmt: skip


_RUN_COLUMNS = {
    "name": ("run", ""), "layout": ("layout", ""), "recompute": ("recompute", ""), "tokens_per_s": ("tokens/s", ",.0f"),
    "predicted_tokens_per_s": ("predicted", ",.0f"), "mfu_frac": ("MFU", ".1%"),
    "predicted_mfu_frac": ("predicted MFU", ".1%"), "error_frac": ("error", "+.0%"),
}  # fmt: skip


def validate_training() -> Report:
    """Score the published runs."""
    scored = list(score_training())
    records = [_record(run, estimate) for run, estimate in scored]
    median = statistics.median(abs(record["error_frac"]) for record in records)
    num_inside = sum(record["is_inside"] for record in records)

    def parts() -> Iterator[Any]:
        yield "published training runs; nothing is fitted on them. MFU by our definition, masked pairs being no work"
        rows = []
        for record, (_, estimate) in zip(records, scored, strict=True):
            largest = sorted(estimate.breakdown.items(), key=lambda term: -term[1])[:3]
            why = ", ".join(f"{name} {us / estimate.latency_us:.0%}" for name, us in largest)
            rows.append((*(record[name] for name in _RUN_COLUMNS), why))
        yield rows_table(dict(_RUN_COLUMNS.values()) | {"why": ""}, rows, "of one device", 3)
        yield f"{len(records)} runs: median error {median:.1%}; {num_inside} inside their 80% interval"
        for record in records:
            if record["name"].endswith("h800"):
                yield f"GPU hours of {record['name']}: {1 / (1 + record['error_frac']) - 1:+.1%}"

    return Report(lambda: {"median_error_frac": median, "num_inside": num_inside, "runs": records}, parts)
