"""`estimate_training`: time of a training step, tokens a second, MFU and memory; `find_training_layouts`: the best."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from gemm_eval.arch import ArchSpec, GpuSpec
from gemm_eval.dtypes import parse_dtype, parse_scheme
from gemm_eval.errors import InfeasibleError, InvalidOptionError, UnsupportedError
from gemm_eval.estimate import evaluator_of
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.frozen import FrozenDict
from gemm_eval.training import step as steps
from gemm_eval.training.result import BREAKDOWN, HOST_FRAC, StageStep, TrainingEstimate, layers_flop, model_flop
from gemm_eval.training.schedule import SCHEDULES, check_dualpipe, num_in_flight, schedule_us
from gemm_eval.transformer import (
    GROUPS,
    MEMORY_FRAC,
    Layout,
    ModelConfig,
    legal_layouts,
    load_model,
    memory_limit,
    num_joined,
    types_on,
)
from gemm_eval.units import us_at_peak
from gemm_eval.words import as_integer, check_flag, check_word, plain_number, shown, suggests_names
from gemm_eval.workload import MAX_DIM

_MAX_CHUNKS = 64
_MAX_ZERO = 3
_ROUNDING = 1e-9  # of sums of the same terms in another order


@dataclass(frozen=True, slots=True)
class Plan:
    """Options of a step besides its layout, by the names of `estimate_training`."""

    micro_batch: int = 1
    zero: int = 1
    recompute: str = "none"
    schedule: str = "1f1b"
    num_chunks: int = 1

    def check(self) -> None:
        """Raise `InvalidOptionError` where an option is out of its range."""
        as_integer("micro_batch", self.micro_batch, 1, MAX_DIM)
        as_integer("zero", self.zero, 0, _MAX_ZERO)
        as_integer("num_chunks", self.num_chunks, 1, _MAX_CHUNKS)
        check_word("recompute", self.recompute, steps.RECOMPUTE)
        check_word("schedule", self.schedule, SCHEDULES)

    def check_layout(self, layout: Layout, config: ModelConfig, num_microbatches: int) -> None:
        """Raise `InvalidOptionError` where the schedule does not go with the layout."""
        pp, chunks = layout.pipeline, self.num_chunks
        if self.schedule == "dualpipe":
            check_dualpipe(pp, num_microbatches)
        if chunks > 1 and self.schedule != "interleaved":
            raise InvalidOptionError(f"num_chunks is of the interleaved schedule, got {chunks} with {self.schedule}")
        at_most = config.num_layers + 2 * (pp > 1)  # embedding and head may be alone
        if pp * chunks > at_most:
            raise InvalidOptionError(
                f"pipeline_parallel x num_chunks must be at most {at_most}, layers, embedding and head, got "
                f"{pp} x {chunks}"
            )
        if chunks > 1 and (num_microbatches % pp or pp == 1):
            raise InvalidOptionError(
                f"the interleaved schedule takes multiples of pipeline_parallel = {pp} (at least 2) microbatches, got "
                f"{num_microbatches}"
            )


@suggests_names
def estimate_training(
    model: ModelConfig | str | os.PathLike[str], arch: ArchSpec | GEMMEvaluator | str | os.PathLike[str], *,
    global_batch: int, seq_len: int, tensor_parallel: int = 1, pipeline_parallel: int = 1, context_parallel: int = 1,
    expert_parallel: int = 1, data_parallel: int | None = None, num_devices: int | None = None, micro_batch: int = 1,
    zero: int = 1, recompute: str = "none", schedule: str = "1f1b", num_chunks: int = 1, dtype: str = "bf16",
    optimizer: str = "adamw", overlap: Mapping[str, float] | None = None, expert_load: str = "balanced",
    dispatcher: str = steps.DISPATCHERS[0], attention_library: str | None = None, mtp_layers: int = 0,
    memory_frac: float = MEMORY_FRAC, ignore_memory: bool = False,
) -> TrainingEstimate:  # fmt: skip
    """Return the time, MFU and memory of a training step of a model on many devices.

    >>> estimate_training("llama-3-8b", "h100-sxm", global_batch=128, seq_len=8192, num_devices=8)     # doctest: +SKIP

    A step is what Megatron-LM runs: microbatches through the pipeline, GEMMs with both of their gradients, main
    gradients in fp32, sequence parallelism in each tensor-parallel group, then gradients and weights between
    data-parallel devices and the optimizer. GPUs have the clock of minutes of load, unless `arch` is an evaluator. Data
    loading, checkpoints, stragglers and restarts are not in it.

    Args:
        global_batch: sequences of a step.
        seq_len: tokens of each.
        tensor_parallel, pipeline_parallel, context_parallel, expert_parallel: degrees; experts are spread over the
            tensor-, context- and data-parallel devices of a stage.
        data_parallel, num_devices: either; the other follows. Neither: 1.
        micro_batch: sequences that a pipeline works on at once.
        zero: 0 to 3: nothing, optimizer states, gradients, weights are divided over data-parallel devices.
        recompute: ``"none"``, ``"selective"`` (norms, activations, MLA's up-projections) or ``"full"`` (whole layers).
        schedule: ``"1f1b"``, ``"interleaved"``, ``"zero-bubble"`` or ``"dualpipe"``.
        num_chunks: virtual stages of each device, of the interleaved schedule.
        dtype: of GEMMs of layers: ``"bf16"``, ``"fp8"`` (a scale for each tensor), ``"fp8_block"``, ``"mxfp8"``, ...;
            embeddings, routers, attention and the LM head stay in 16 bits.
        optimizer: ``"adamw"``, ``"adamw-bf16"`` (moments in bf16) or ``"sgd"`` (with momentum).
        overlap: shares of messages that run beside computation, by group: tp, cp, ep, pp, dp; None, or a group that is
            missing: `gemm_eval.training.step.default_overlap`.
        expert_load: rows of each expert; see `transformer_gemms`.
        dispatcher: how tokens go to experts on other nodes: ``"once"`` to each node (DeepEP, HybridEP), or
            ``"alltoall"``, each copy by itself (NCCL).
        attention_library: whose attention kernels GPUs run: ``"cudnn"`` or ``"flash"`` (FlashAttention-2); None: those
            that PyTorch takes.
        mtp_layers: layers that predict further tokens, with a head each (multi-token prediction; DeepSeek-V3: 1).
        memory_frac: share of the DRAM that may be used; the rest is the runtime's.
        ignore_memory: go on where it does not fit.

    Raises:
        InfeasibleError: it does not fit; the error names each change that would do, with its figure.
        InvalidOptionError, InvalidProblemError: an option out of its range, or not for this model.
        UnsupportedError: the arch cannot run a type, or says nothing of what joins that many devices.
    """
    check_flag("ignore_memory", ignore_memory)
    degrees = {
        "tensor_parallel": tensor_parallel, "pipeline_parallel": pipeline_parallel,
        "context_parallel": context_parallel, "expert_parallel": expert_parallel,
    }  # fmt: skip
    tp, pp, cp, ep = (as_integer(name, value, 1, MAX_DIM) for name, value in degrees.items())
    layout = Layout(tp, pp, cp, ep, _data_parallel(tp * pp * cp, data_parallel, num_devices))
    plan = Plan(micro_batch, zero, recompute, schedule, num_chunks)
    training = _Training(
        arch, model, global_batch, seq_len, dtype, optimizer, overlap, expert_load, dispatcher, attention_library,
        mtp_layers, memory_frac,
    )  # fmt: skip
    plan.check()
    training.check(layout, plan)
    if not ignore_memory:
        training.check_memory(layout, plan)
    return training.estimate(layout, plan)


@suggests_names
def find_training_layouts(
    model: ModelConfig | str | os.PathLike[str], arch: ArchSpec | GEMMEvaluator | str | os.PathLike[str], *,
    num_devices: int, global_batch: int, seq_len: int, tensor: Iterable[int] | None = None,
    pipeline: Iterable[int] | None = None, context: Iterable[int] | None = None, expert: Iterable[int] | None = None,
    data: Iterable[int] | None = None, micro_batches: Sequence[int] = (1, 2, 4), zeros: Sequence[int] = (1,),
    recomputes: Sequence[str] = steps.RECOMPUTE, schedules: Sequence[str] = ("1f1b", "interleaved"),
    max_chunks: int = 8, max_context: int = 1, dtype: str = "bf16", optimizer: str = "adamw",
    overlap: Mapping[str, float] | None = None, expert_load: str = "balanced", dispatcher: str = steps.DISPATCHERS[0],
    attention_library: str | None = None, mtp_layers: int = 0, memory_frac: float = MEMORY_FRAC,
    ignore_memory: bool = False,
) -> list[TrainingEstimate]:  # fmt: skip
    """Return a step on each legal layout of a number of devices that fits, the fastest first.

    >>> find_training_layouts(                                          # doctest: +SKIP
    ...     "llama-3-8b", "h100-sxm", num_devices=8, global_batch=128, seq_len=8192
    ... )[0]

    Args:
        num_devices: devices of all layouts.
        tensor, pipeline, context, expert, data: degrees to which the search is limited; None: all that are legal.
        micro_batches, zeros, recomputes, schedules: values that are tried of these options of `estimate_training`.
        max_chunks: most virtual stages of a device; powers of two are tried.
        max_context: largest context-parallel degree.
        ignore_memory: also those that do not fit.

    Other arguments and errors are those of `estimate_training`; layouts whose devices nothing joins are left out.

    Raises:
        InvalidOptionError: no layout is legal; the error says what the last one lacks.
        InfeasibleError: none fits; the error has what would help the one that holds least.
    """
    training = _Training(
        arch, model, global_batch, seq_len, dtype, optimizer, overlap, expert_load, dispatcher, attention_library,
        mtp_layers, memory_frac,
    )  # fmt: skip
    layouts = legal_layouts(
        training.config, num_devices, max_tensor=num_joined(training.arch), max_context=max_context, tensor=tensor,
        pipeline=pipeline, context=context, expert=expert, data=data,
    )  # fmt: skip
    legal, refused = [], InvalidOptionError(f"{training.config.name} has no such layout on {num_devices} devices")
    for layout in layouts:
        for plan in _plans(layout, micro_batches, zeros, recomputes, schedules, max_chunks):
            plan.check()
            try:
                training.check(layout, plan)
                legal.append((layout, plan))
            except InvalidOptionError as error:
                refused = error
    if not legal:
        raise refused
    points = [point for point in legal if ignore_memory or training.fits(*point)]
    if not points:
        training.check_memory(*min(legal, key=lambda point: training.memory(*point).total_bytes))  # raises
    training.prices.find((layout, plan.micro_batch) for layout, plan in points)
    estimates = []
    for layout, plan in points:
        with suppress(UnsupportedError):  # nothing joins its devices
            estimates.append(training.estimate(layout, plan))
    if not estimates:
        training.estimate(*points[0])  # raises
    return sorted(estimates, key=lambda estimate: estimate.latency_us)


def _data_parallel(num_others: int, data_parallel: int | None, num_devices: int | None) -> int:
    if num_devices is None:
        return 1 if data_parallel is None else as_integer("data_parallel", data_parallel, 1, MAX_DIM)
    num = as_integer("num_devices", num_devices, 1, MAX_DIM)
    if num % num_others or data_parallel not in (None, num // num_others):
        raise InvalidOptionError(
            f"num_devices must be a multiple of tensor_parallel x pipeline_parallel x context_parallel = {num_others}, "
            f"of which the rest is data_parallel, got {num} and {shown(data_parallel)}"
        )
    return num // num_others


def _plans(
    layout: Layout, micro_batches: Iterable[int], zeros: Iterable[int], recomputes: Iterable[str],
    schedules: Iterable[str], max_chunks: int,
) -> Iterator[Plan]:  # fmt: skip
    runs = [("1f1b", 1)]
    if layout.pipeline > 1:
        chunks = [1 << power for power in range(1, max_chunks.bit_length()) if 1 << power <= max_chunks]
        runs = [(name, num) for name in schedules for num in (chunks if name == "interleaved" else [1])]
    for micro_batch, zero, recompute, (schedule, num) in product(micro_batches, zeros, recomputes, runs):
        yield Plan(micro_batch, zero, recompute, schedule, num)


class _Training:
    """Training of a model on one arch: what all layouts share, and the answer on each."""

    def __init__(
        self, arch: Any, model: Any, global_batch: int, seq_len: int, dtype: str, optimizer: str,
        overlap: Mapping[str, float] | None, expert_load: Any, dispatcher: str, attention_library: str | None,
        mtp_layers: int, memory_frac: float,
    ) -> None:  # fmt: skip
        evaluator = evaluator_of(arch)
        if evaluator is not arch and isinstance(evaluator.arch, GpuSpec):
            evaluator = evaluator.preferring(clock="sustained")  # of minutes of load
        self.arch = evaluator.arch
        self.config = model if isinstance(model, ModelConfig) else load_model(model)
        self.global_batch = as_integer("global_batch", global_batch, 1, MAX_DIM)
        self.seq_len = as_integer("seq_len", seq_len, 1, MAX_DIM)
        check_word("optimizer", optimizer, steps.OPTIMIZERS)
        self.optimizer = steps.OPTIMIZERS[optimizer]
        check_word("dispatcher", dispatcher, steps.DISPATCHERS)
        self.overlap = _check_overlap(overlap)
        self.limit_bytes = memory_limit(self.arch, memory_frac)
        types = types_on(self.arch, dtype, None, self.config)
        self.options = {
            "dtype": dtype, "optimizer": optimizer, "expert_load": str(expert_load), "dispatcher": dispatcher,
            "attention_library": attention_library, "mtp_layers": as_integer("mtp_layers", mtp_layers, 0, MAX_DIM),
            "memory_frac": memory_frac, "overlap": None if overlap is None else FrozenDict(self.overlap),
        }  # fmt: skip
        self.elem_bytes = parse_dtype(types["dense_dtype"]).bits // 8
        try:
            self.peak = self.arch.peak_tflop_per_s(parse_scheme(dtype).input_dtype)
        except KeyError as error:
            raise UnsupportedError(
                f"{self.arch.name} does not multiply {error.args[0]}, the inputs of dtype {dtype}; use "
                f"{self.arch.default_dtype}"
            ) from error
        self.prices = steps.StepPrices(
            evaluator, self.config, self.seq_len, types | {"expert_load": expert_load}, dispatcher=dispatcher,
            attention_library=attention_library, mtp_layers=mtp_layers,
        )  # fmt: skip

    def num_microbatches(self, layout: Layout, plan: Plan) -> int:
        return self.global_batch // (layout.data * plan.micro_batch)

    def check(self, layout: Layout, plan: Plan) -> None:
        size = layout.data * plan.micro_batch
        if self.global_batch % size:
            raise InvalidOptionError(
                f"global_batch must be a multiple of data_parallel x micro_batch = {layout.data} x {plan.micro_batch}, "
                f"got {self.global_batch}"
            )
        on_stage = layout.tensor * layout.context * layout.data
        if on_stage % max(layout.expert, layout.tensor):
            raise InvalidOptionError(
                f"expert_parallel must divide the {on_stage} devices of a pipeline stage, got {layout.expert}"
            )
        plan.check_layout(layout, self.config, self.num_microbatches(layout, plan))

    def memory(self, layout: Layout, plan: Plan) -> steps.TrainingMemory:
        parts = self.prices.parts(layout.tensor, layout.context, layout.expert, plan.micro_batch)
        num, memories = self.num_microbatches(layout, plan), []
        stages = steps.stage_parts(parts, self.config.num_layers, layout.pipeline, plan.num_chunks)
        for stage, counts in enumerate(stages):
            in_flight = num_in_flight(stage, layout.pipeline, num, plan.schedule, plan.num_chunks)
            copies = 1 + (plan.schedule == "dualpipe")  # a device holds two stages, as far from either end
            held = counts if copies == 1 else (*counts, *stages[-1 - stage])
            memories.append(steps.stage_memory(
                [(parts[index], count / copies) for index, count in held], layout, in_flight=in_flight,
                elem_bytes=self.elem_bytes, zero=plan.zero, recompute=plan.recompute, optimizer=self.optimizer,
                num_copies=copies, stage=stage,
            ))  # fmt: skip
        return max(memories, key=lambda memory: memory.total_bytes)

    def fits(self, layout: Layout, plan: Plan) -> bool:
        return self.limit_bytes is None or self.memory(layout, plan).total_bytes <= self.limit_bytes

    def check_memory(self, layout: Layout, plan: Plan) -> None:
        if self.fits(layout, plan):
            return
        memory, levers = self.memory(layout, plan), []
        for text, other, changed in _changes(layout, plan):
            with suppress(InvalidOptionError):
                self.check(other, changed)
                total = self.memory(other, changed).total_bytes
                if total <= (self.limit_bytes or 0):
                    levers.append(f"{text} ({total / 1e9:,.1f} GB a device)")
        raise InfeasibleError(
            f"training {self.config.name} does not fit into {self.options['memory_frac']:g} of the DRAM of a device "
            f"({self.arch.name}; memory_frac), with weights of {memory.weight_bytes:,}, gradients of "
            f"{memory.gradient_bytes:,}, optimizer states of {memory.main_bytes + memory.moment_bytes:,} and "
            f"activations of {memory.activation_bytes:,} bytes",
            resource="dram", demand=memory.total_bytes, limit=self.limit_bytes or 0, unit="bytes",
            levers=tuple(levers),
        )  # fmt: skip

    def estimate(self, layout: Layout, plan: Plan) -> TrainingEstimate:
        prices, num = self.prices, self.num_microbatches(layout, plan)
        stages = list(steps.stages_of(
            prices, layout, plan.micro_batch, plan.schedule, plan.num_chunks, plan.recompute, self.overlap, plan.zero
        ))  # fmt: skip
        times, pairs_us = zip(*((stage.times, sum(stage.pair_us_by_kind.values())) for stage in stages), strict=True)
        passes_us = schedule_us(times, num, plan.schedule, plan.num_chunks, pairs_us)
        updates = [steps.update_us(prices, stage, layout, self.optimizer, plan.zero) for stage in stages]
        data_us, optimizer_us, hidden_us = max(updates, key=lambda us: us[0] + us[1])
        # in DualPipe a device has half of the microbatches of two stages, and p + 1 whose passes run alone
        is_paired = plan.schedule == "dualpipe"
        alone = len(stages) + 1 if is_paired else num
        devices = [(stage, stages[-1 - index]) if is_paired else (stage,) for index, stage in enumerate(stages)]
        slowest = max(devices, key=lambda both: sum(sum(stage.pair_us_by_kind.values()) for stage in both))
        terms = dict.fromkeys(slowest[0].us_by_kind, 0.0)
        for of in slowest:
            for name, us in of.us_by_kind.items():
                terms[name] += (alone * us + (num - alone) * of.pair_us_by_kind[name]) / len(slowest)
        busy_us = min(passes_us, sum(terms.values()))  # these counts are means of devices
        terms = {name: us * busy_us / sum(terms.values()) for name, us in terms.items()}
        terms["dp"] += data_us
        bubble_us = passes_us - busy_us
        terms |= {"bubble": bubble_us if bubble_us > _ROUNDING * passes_us else 0.0, "optimizer": optimizer_us}
        latency_us = passes_us + data_us + optimizer_us
        low, high, shares, libraries = prices.spread(layout.tensor, layout.context, layout.expert, plan.micro_batch)
        unknown = [steps.unknown_us(prices, stage, self.overlap) for stage in slowest]
        less_us, more_us = (alone * sum(us) / len(slowest) for us in zip(*unknown, strict=True))
        if is_paired and "ep" not in self.overlap:
            more_us += num * sum(of.times.total_us for of in slowest) / len(slowest) - busy_us
        if "dp" not in self.overlap:
            less_us += terms["dp"]
            more_us += num * slowest[0].hidden_data_us + hidden_us
        peak_us = us_at_peak(self.global_batch, self.peak) / layout.num_devices  # of 1 FLOP a sequence
        flop = model_flop(self.config, self.seq_len)
        again = 1 / 3 if plan.recompute == "full" else 0.0
        return TrainingEstimate(
            self.config.name, self.arch.name, layout, layout.num_devices, self.global_batch, plan.micro_batch, num,
            self.seq_len, latency_us, (latency_us - less_us) * low, (latency_us + more_us) * high * (1.0 + HOST_FRAC),
            FrozenDict({name: terms[name] for name in BREAKDOWN}),
            tuple(StageStep(*of.times, of.messages_us, *us[:2]) for of, us in zip(stages, updates, strict=True)),
            flop * peak_us / latency_us, model_flop(self.config, self.seq_len, is_full=True) * peak_us / latency_us,
            (flop + again * layers_flop(self.config, self.seq_len)) * peak_us / latency_us,
            self.memory(layout, plan), self.limit_bytes, FrozenDict(shares), FrozenDict(libraries),
            FrozenDict(self.options | asdict(plan)),
        )  # fmt: skip


def _changes(layout: Layout, plan: Plan) -> Iterator[tuple[str, Layout, Plan]]:
    for name in steps.RECOMPUTE[steps.RECOMPUTE.index(plan.recompute) + 1 :]:
        yield f"recompute={name}", layout, replace(plan, recompute=name)
    for zero in range(plan.zero + 1, _MAX_ZERO + 1):
        yield f"zero={zero}", layout, replace(plan, zero=zero)
    if plan.micro_batch > 1:
        yield "micro_batch=1", layout, replace(plan, micro_batch=1)
    for name, word in (("tensor", "tensor_parallel"), ("pipeline", "pipeline_parallel"), ("expert", "expert_parallel")):
        for factor in (2, 4, 8):
            degree = factor * getattr(layout, name)
            yield f"{word}={degree}", layout._replace(**{name: degree}), plan


def _check_overlap(overlap: Mapping[str, float] | None) -> dict[str, float]:
    result = {}
    for name, share in (overlap or {}).items():
        check_word("overlap", name, (*GROUPS, "dp"))
        number = plain_number(share)
        if number is None or not 0 <= number <= 1:
            raise InvalidOptionError(f"overlap of {name} must be in 0..1, got {shown(share)}")
        result[name] = number
    return result
