"""Times of the parts of a model in training, priced once each, and of the stages that layouts make of them."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from gemm_eval.arch import GFX_ARCHS, GpuSpec
from gemm_eval.errors import UnsupportedError
from gemm_eval.estimate import Price, Prices
from gemm_eval.evaluate import GEMMEvaluator, sum_interval
from gemm_eval.models.gpu.attention import library_of_gradients
from gemm_eval.training.schedule import StageTimes, stage_chunks
from gemm_eval.transformer import (
    EMBEDDING,
    GROUPS,
    HEAD,
    MTP_HEAD,
    SEND,
    AttentionWork,
    Layout,
    MemoryWork,
    ModelConfig,
    Operation,
    TrainingPart,
    num_joined,
    training_parts,
)
from gemm_eval.workload import CollectiveProblem

RECOMPUTE = ("none", "selective", "full")
"""What the backward pass computes again.

``none``: only scores, in fused attention; ``selective``: norms, activations and MLA's up-projections too; ``full``: the
forward pass of each layer, of which the input alone is kept.
"""

MAIN_GRADIENT_BYTES = 4


class Optimizer(NamedTuple):
    """Bytes of a parameter that an optimizer keeps: of the main parameter, and of its moments."""

    main_bytes: int
    moment_bytes: int

    @property
    def state_bytes(self) -> int:
        """All of them."""
        return self.main_bytes + self.moment_bytes


OPTIMIZERS = {"adamw": Optimizer(4, 8), "adamw-bf16": Optimizer(4, 4), "sgd": Optimizer(4, 4)}
"""Optimizers with main parameters in fp32: AdamW with moments in fp32 or bf16 (DeepSeek-V3), SGD with momentum."""


@dataclass(frozen=True, slots=True)
class TrainingMemory:
    """Bytes of the device that holds most, in a pipeline stage counted from 0.

    Attributes:
        weight_bytes: in the type of activations; with narrow GEMMs the copies that they read, too.
        gradient_bytes: main gradients, fp32.
        main_bytes, moment_bytes: the optimizer's parameters in fp32, and its moments.
        activation_bytes: kept for backward passes, of all microbatches in flight, and what is computed again at once.
    """

    weight_bytes: int
    gradient_bytes: int
    main_bytes: int
    moment_bytes: int
    activation_bytes: int
    stage: int = 0

    @property
    def total_bytes(self) -> int:
        """All together."""
        return self.weight_bytes + self.gradient_bytes + self.main_bytes + self.moment_bytes + self.activation_bytes

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self) | {"total_bytes": self.total_bytes}


def sharded(num_params: int, num_expert_params: int, layout: Layout, is_sharded: bool) -> int:
    """Return how many parameters of a stage a device has something of, divided by data parallelism if `is_sharded`."""
    if not is_sharded:
        return num_params + num_expert_params
    return -(-num_params // (layout.data * layout.context)) + -(-num_expert_params // layout.num_expert_replicas)


def stage_memory(
    parts: Sequence[tuple[TrainingPart, float]], layout: Layout, *, in_flight: float, elem_bytes: int, zero: int,
    recompute: str, optimizer: Optimizer, num_copies: int = 1, stage: int = 0,
) -> TrainingMemory:  # fmt: skip
    """Return the memory of a stage made of some parts, each with how many of it there are.

    Args:
        in_flight: microbatches whose activations it keeps.
        elem_bytes: of a weight, and of an activation.
        zero: ZeRO's stage: 1 divides optimizer states over data-parallel devices, 2 gradients, 3 weights too.
        num_copies: of the weights and gradients: 2 with DualPipe.
    """
    num_params = math.ceil(sum(count * part.num_params for part, count in parts))
    num_experts = math.ceil(sum(count * part.num_expert_params for part, count in parts))
    copies = sum(count * part.copy_bytes for part, count in parts)
    num_held = sharded(num_params, num_experts, layout, zero >= 3)
    weight_bytes = num_held * elem_bytes + round(copies * num_held / max(1, num_params + num_experts))
    if zero >= 3:  # of what is divided, weights of a layer at work and of the next one
        largest = max((part for part, _ in parts), key=lambda part: part.num_params + part.num_expert_params)
        divided = (
            (largest.num_params, num_params, layout.data * layout.context),
            (largest.num_expert_params, num_experts, layout.num_expert_replicas),
        )
        weight_bytes += elem_bytes * sum(min(2 * num, whole) for num, whole, ranks in divided if ranks > 1)
    saved, again = 0.0, 0
    for part, count in parts:
        if recompute == "full" and part.layers:
            saved += count * part.input_bytes * in_flight
            again = max(again, part.saved_bytes)
        else:
            held = 1.0 if part.name in (HEAD, MTP_HEAD) else in_flight  # whose backward pass follows at once
            saved += count * (part.selective_bytes if recompute == "selective" else part.saved_bytes) * held
    num_states = sharded(num_params, num_experts, layout, zero >= 1)
    return TrainingMemory(
        weight_bytes=num_copies * weight_bytes,
        gradient_bytes=num_copies * MAIN_GRADIENT_BYTES * sharded(num_params, num_experts, layout, zero >= 2),
        main_bytes=num_states * optimizer.main_bytes, moment_bytes=num_states * optimizer.moment_bytes,
        activation_bytes=round(saved) + again, stage=stage,
    )  # fmt: skip


KINDS = ("gemm", "attention", "memory")
"""Kinds of operations that compute."""

_PARAMETER_DTYPE_BYTES = 2  # as they are gathered

DISPATCHERS = ("once", "alltoall")
"""Ways of tokens to experts in other nodes: once to each node (DeepEP, HybridEP), or each copy by itself (NCCL)."""

EXPERT_SMS = 20
"""SMs that messages to experts take from computation beside them (DeepSeek-V3, section 3.2.2; DeepEP's default).

Layers with experts in DualPipe's pairs do without them all of the time, as the ratio is set by hand (section 3.2.1).
"""


def default_overlap(layout: Layout, num_layers: int, schedule: str) -> dict[str, float]:
    """Return the share of each group's messages that runs beside computation, if there is enough of it.

    tp: messages go in as many pieces as there are devices, of which one has nothing to run beside (Wang et al. 2023,
    https://doi.org/10.1145/3567955.3567959; Megatron-LM's ``--tp-comm-overlap``). cp: keys and values of the next
    device come while those of the last are at work (ring attention, https://arxiv.org/abs/2310.01889). dp: gradients
    and parameters go layer by layer, of which the last and the first one wait (MegaScale,
    https://arxiv.org/abs/2402.15627, section 3.2). pp: messages of virtual stages run beside other microbatches
    (Megatron-LM's ``--overlap-p2p-communication``), those of 1F1B do not. ep: nothing, but all within DualPipe's
    pairs of passes (DeepSeek-V3, https://arxiv.org/abs/2412.19437, section 3.2.1).
    """
    return {
        "tp": 1.0 - 1.0 / layout.tensor, "cp": 1.0, "ep": float(schedule == "dualpipe"),
        "pp": float(schedule in ("interleaved", "dualpipe")), "dp": 1.0 - 1.0 / max(1, num_layers),
    }  # fmt: skip


class Pass(NamedTuple):
    """Time of a pass over a part: computation, and messages of each of `GROUPS`, in us."""

    compute_us: float
    messages_us: tuple[float, ...]

    def exposed_us(self, overlap: Mapping[str, float], taken: Mapping[str, float]) -> tuple[float, ...]:
        """Return the time that each group's messages add: those that computation does not hide, and what they slow it.

        `taken` is the share of the device that hidden messages of a group take from computation.
        """
        result, left_us = [], self.compute_us
        for name, us in zip(GROUPS, self.messages_us, strict=True):
            hidden_us = min(overlap[name] * us, left_us)
            left_us -= hidden_us
            result.append(us - hidden_us * (1.0 - taken.get(name, 0.0)))
        return tuple(result)


@dataclass(frozen=True, slots=True)
class PartTimes:
    """Times of a part: its passes, what selective recomputation adds, and all computation by kind, in us."""

    part: TrainingPart
    forward: Pass
    dgrad: Pass
    wgrad: Pass
    selective_us: float
    us_by_kind: tuple[float, ...]


def ranks_per_node(size: int, stride: int, node: int) -> int:
    """Return how many devices of a group share a node: of `size` devices, each `stride` from the next."""
    at_most = max(1, min(size, node // stride))
    return next(num for num in range(at_most, 0, -1) if size % num == 0)


class StepPrices:
    """Prices of training on one arch: each distinct operation, part and message is priced once.

    Attention runs the kernels that PyTorch takes for gradients, collectives NCCL's; on AMD's GPUs aiter's and RCCL's.
    """

    def __init__(
        self, evaluator: GEMMEvaluator, config: ModelConfig, seq_len: int, types: Mapping[str, Any], *,
        attention_library: str | None = None, dispatcher: str = DISPATCHERS[0], mtp_layers: int = 0,
    ) -> None:  # fmt: skip
        arch = evaluator.arch
        attention, collectives = attention_library, None
        if isinstance(arch, GpuSpec):
            is_amd = arch.sm_arch in GFX_ARCHS
            attention = attention_library or (None if is_amd else library_of_gradients(arch))
            collectives = "rccl" if is_amd else "nccl"
        self._prices = Prices(evaluator, attention_library=attention, collective_library=collectives)
        self._collectives = {} if collectives is None else {"collective": collectives}
        self._pads_values = attention == "flash"  # https://github.com/NVIDIA/TransformerEngine/pull/2629
        self.taken = {"ep": EXPERT_SMS / arch.num_sms if isinstance(arch, GpuSpec) else 0.0}
        self._sends_copies, self._mtp_layers = dispatcher == "alltoall", mtp_layers
        self._others = Prices(evaluator)
        self.node = num_joined(arch)
        self.config, self.seq_len, self.types = config, seq_len, types
        self.parts = lru_cache(maxsize=None)(self._parts)
        self.times = lru_cache(maxsize=None)(self._times)
        self.spread = lru_cache(maxsize=None)(self._spread)
        self.message_us = lru_cache(maxsize=None)(self._message_us)

    def find(self, keys: Iterable[tuple[Layout, int]]) -> None:
        """Price the parts of many layouts with their microbatches, all work of a kind in one batch."""
        distinct = dict.fromkeys((layout.tensor, layout.context, layout.expert, size) for layout, size in keys)
        parts = [part for key in distinct for part in self.parts(*key)]
        works = {op.work: op.kind for part in parts for op in part.operations}
        self._prices.find(work for work, kind in works.items() if kind not in ("collective", "attention"))

    def price(self, work: Any) -> Price:
        """Return the price of work; attention that a library does not have is that of serving engines."""
        if self._pads_values and isinstance(work, AttentionWork) and not work.problem.is_latent:
            work = replace(work, problem=replace(work.problem, v_head_dim=work.problem.head_dim))
        try:
            return self._prices[work]
        except UnsupportedError:
            if not isinstance(work, AttentionWork):
                raise
            return self._others[work]

    def _parts(self, tp: int, cp: int, ep: int, micro_batch: int) -> tuple[TrainingPart, ...]:
        return training_parts(
            self.config, batch_size=micro_batch, seq_len=self.seq_len, tensor_parallel=tp, context_parallel=cp,
            expert_parallel=ep, node_devices=self.node if self.node > 1 else None, mtp_layers=self._mtp_layers,
            sorts_copies=self._sends_copies, **self.types,
        )  # fmt: skip

    def _message_us(
        self, collective: str, num_bytes: int, ranks: int, stride: int, network_bytes: int | None = None
    ) -> float:
        """Return the time of a collective of devices that are `stride` apart; 0: there are no others."""
        if ranks == 1 or num_bytes == 0 or stride == 0:
            return 0.0
        per_node = ranks_per_node(ranks, stride, self.node)
        if self.node == 1 or per_node == ranks:
            return self.price(CollectiveProblem(collective, num_bytes, ranks)).latency_us
        problem = CollectiveProblem(collective, num_bytes, ranks, ranks_per_node=per_node, network_bytes=network_bytes)
        return self.price(problem).latency_us

    def _pass(self, operations: Sequence[Operation], tp: int, stride: int) -> Pass:
        strides = {"tp": 1, "cp": tp, "ep": 1, "pp": stride}
        compute_us, messages_us = 0.0, dict.fromkeys(GROUPS, 0.0)
        for operation in operations:
            work = operation.work
            if isinstance(work, CollectiveProblem):
                group = operation.name[:2]
                leaving = None if self._sends_copies else work.network_bytes
                us = self.message_us(work.what, work.message_bytes, work.num_ranks, strides[group], leaving)
                messages_us[group] += operation.num_layers * us
            else:
                compute_us += operation.num_layers * self.price(work).latency_us
        return Pass(compute_us, tuple(messages_us.values()))

    def _times(self, tp: int, cp: int, ep: int, micro_batch: int, stride: int) -> tuple[PartTimes, ...]:
        """Return the times of all parts; `stride` is from a pipeline stage to the next one, 0: there is none."""
        result = []
        for part in self.parts(tp, cp, ep, micro_batch):
            by_kind = dict.fromkeys(KINDS, 0.0)
            for op in part.operations:
                if op.kind in by_kind:
                    by_kind[op.kind] += op.num_layers * self.price(op.work).latency_us
            forward, dgrad, wgrad = (self._pass(each, tp, stride) for each in (part.forward, part.dgrad, part.wgrad))
            selective_us = sum(self.price(op.work).latency_us * op.num_layers for op in part.recomputed)
            result.append(PartTimes(part, forward, dgrad, wgrad, selective_us, tuple(by_kind.values())))
        return tuple(result)

    def _spread(
        self, tp: int, cp: int, ep: int, micro_batch: int
    ) -> tuple[float, float, dict[str, float], dict[str, str]]:
        """Return the ends of the 80% interval of all computation of the model, over its time; shares by source; and the
        libraries of GEMMs, attention and collectives, on a GPU."""
        ends, by_source = [], Counter[str]()
        libraries: dict[str, dict[str, None]] = {}
        for part in self.parts(tp, cp, ep, micro_batch):
            for op in part.operations:
                if op.kind != "collective":
                    price, count = self.price(op.work), op.num_layers * max(1, len(part.layers))
                    ends.append(tuple(us * count for us in price.interval))
                    by_source[price.source] += price.latency_us * count  # type: ignore[assignment]
                    if price.library and op.kind != "memory":
                        libraries.setdefault(op.kind, {})[price.library] = None
        total_us = sum(us for us, *_ in ends)
        low_us, high_us = sum_interval(ends)  # type: ignore[arg-type]
        shares = {source: us / total_us for source, us in by_source.most_common()}
        names = {kind: " + ".join(used) for kind, used in libraries.items()} | self._collectives
        return low_us / total_us, high_us / total_us, shares, names

    def optimizer_us(self, num_params: int, num_gradients: int, optimizer: Optimizer, copy_bytes: int) -> float:
        """Return the time of an optimizer's step: states read and written, the norm of gradients, gradients set to 0.

        `num_params` are those that it updates here, `num_gradients` those of main gradients; narrow copies of weights
        are written once a step.
        """
        reads = num_params * (2 * MAIN_GRADIENT_BYTES + optimizer.state_bytes) + copy_bytes
        writes = num_params * (optimizer.state_bytes + _PARAMETER_DTYPE_BYTES) + copy_bytes
        works = [MemoryWork("optimizer", reads, writes), MemoryWork("zero", 0, num_gradients * MAIN_GRADIENT_BYTES)]
        return sum(self.price(work).latency_us for work in works)


def stage_parts(
    parts: Sequence[TrainingPart], num_layers: int, num_stages: int, num_chunks: int
) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Return what each stage is made of: indices of parts, each with how often it is there.

    With multi-token prediction heads are dealt as if they were layers, so that the last stage has fewer of them, as in
    Megatron Bridge's recipe of DeepSeek-V3 (``Et*4|(t*4|)*14tmL``).
    """
    return _stage_parts(tuple((part.name, part.layers) for part in parts), num_layers, num_stages, num_chunks)


@lru_cache(maxsize=4096)
def _stage_parts(
    parts: tuple[tuple[str, tuple[int, ...]], ...], num_layers: int, num_stages: int, num_chunks: int
) -> tuple[tuple[tuple[int, int], ...], ...]:
    kind_of = {layer: index for index, (_, layers) in enumerate(parts) for layer in layers}
    index_of = {name: index for index, (name, _) in enumerate(parts)}
    num_further = len(kind_of) - num_layers
    num_slots = num_layers + (2 * num_further + 1 if num_further else 0)
    result = []
    for stage, runs in enumerate(stage_chunks(num_slots, num_stages, num_chunks)):
        counts = Counter(kind_of[layer] for run in runs for layer in run if layer in kind_of)
        counts[index_of[EMBEDDING]] += stage == 0
        if stage == num_stages - 1:
            counts[index_of[HEAD]] += 1
            counts[index_of.get(MTP_HEAD, 0)] += num_further
        counts[index_of[SEND]] += num_chunks * (num_stages > 1)
        result.append(tuple((index, count) for index, count in sorted(counts.items()) if count))
    return tuple(result)


class Stage(NamedTuple):
    """A pipeline stage of a layout: its parts with their counts, and times of a microbatch in us.

    `us_by_kind`: computation by kind, ``recompute``, and exposed messages by group, of passes one after the other, and
    `pair_us_by_kind` side by side (DualPipe). `data_overlap` is the share of data-parallel messages that runs beside
    computation, `hidden_data_us` what does in a microbatch (ZeRO 3).
    """

    parts: tuple[tuple[PartTimes, int], ...]
    times: StageTimes
    us_by_kind: dict[str, float]
    pair_us_by_kind: dict[str, float]
    data_overlap: float
    hidden_data_us: float = 0.0

    @property
    def messages_us(self) -> float:
        """Return the time of a microbatch's exposed messages."""
        return sum(self.us_by_kind[group] for group in (*GROUPS, "dp"))

    @property
    def num_params(self) -> tuple[int, int]:
        """Return its parameters without routed experts, and of routed experts, on one device."""
        parts = [(times.part, count) for times, count in self.parts]
        return sum(n * part.num_params for part, n in parts), sum(n * part.num_expert_params for part, n in parts)


def stages_of(
    prices: StepPrices, layout: Layout, micro_batch: int, schedule: str, num_chunks: int, recompute: str,
    overlap: Mapping[str, float], zero: int,
) -> Iterator[Stage]:  # fmt: skip
    """Yield the stages of a layout; see `gemm_eval.training.estimate_training` for the options."""
    stride = layout.num_devices // layout.pipeline if layout.pipeline > 1 else 0
    times = prices.times(layout.tensor, layout.context, layout.expert, micro_batch, stride)
    parts = [each.part for each in times]
    for counts in stage_parts(parts, prices.config.num_layers, layout.pipeline, num_chunks):
        num_layers = sum(count for index, count in counts if parts[index].layers)
        share = default_overlap(layout, num_layers, schedule) | dict(overlap)
        of_stage, is_paired = tuple((times[index], count) for index, count in counts), schedule == "dualpipe"
        yield _stage(prices, of_stage, layout, recompute, share, zero, is_paired)


def _stage(
    prices: StepPrices, parts: tuple[tuple[PartTimes, int], ...], layout: Layout, recompute: str,
    overlap: Mapping[str, float], zero: int, is_paired: bool,
) -> Stage:  # fmt: skip
    us_by_kind = dict.fromkeys((*KINDS, "recompute", *GROUPS, "dp"), 0.0)
    for times, count in parts:
        for kind, us in zip(KINDS, times.us_by_kind, strict=True):
            us_by_kind[kind] += count * us
    passes = _passes(parts)
    alone = {**overlap, "ep": 0.0, "pp": 0.0} if is_paired else overlap
    exposed = [each.exposed_us(alone, prices.taken) for each in passes]
    us_by_kind |= {group: sum(us) for group, *us in zip(GROUPS, *exposed, strict=True)}
    forward_us, dgrad_us, wgrad_us = (each.compute_us + sum(us) for each, us in zip(passes, exposed, strict=True))
    if recompute == "selective":
        us_by_kind["recompute"] = sum(count * times.selective_us for times, count in parts)
    elif recompute == "full":
        again = _sum((times.forward, count) for times, count in parts if times.part.layers)
        us_by_kind["recompute"] = again.compute_us + sum(again.exposed_us(alone, prices.taken))
    dgrad_us += us_by_kind["recompute"]
    pair, taken = us_by_kind, prices.taken["ep"]
    if is_paired:
        beside_us = sum(n * sum(of.us_by_kind) for of, n in parts if of.forward.messages_us[GROUPS.index("ep")])
        pair = _side_by_side(us_by_kind, overlap, beside_us * taken / (1.0 - taken))
    stage = Stage(parts, StageTimes(forward_us, dgrad_us, wgrad_us), us_by_kind, pair, overlap["dp"])
    if zero < 3:
        return stage
    # weights are gathered for both passes, and gradients scattered, in every microbatch
    gather_us, scatter_us = (data_us(prices, layout, *stage.num_params, word) for word in ("gather", "scatter"))
    backward_us = passes[1].compute_us + passes[2].compute_us
    before_us = _exposed_us(gather_us, passes[0].compute_us, overlap["dp"])
    behind_us = _exposed_us(gather_us + scatter_us, backward_us, overlap["dp"])
    us_by_kind["dp"] = pair["dp"] = before_us + behind_us
    return stage._replace(
        times=StageTimes(forward_us + before_us, dgrad_us + behind_us, wgrad_us),
        hidden_data_us=2 * gather_us + scatter_us - before_us - behind_us,
    )


def _side_by_side(us_by_kind: dict[str, float], overlap: Mapping[str, float], slower_us: float) -> dict[str, float]:
    """Return the terms of a forward and a backward pass of DualPipe side by side, of those of the passes alone.

    Computation takes `slower_us` longer beside messages. Where all takes longer, one pass runs after the other.
    """
    result = dict(us_by_kind)
    room_us = sum(us_by_kind[name] for name in (*KINDS, "recompute"))
    for group, more_us in (("ep", slower_us * (overlap["ep"] > 0)), ("pp", 0.0)):
        hidden_us = us_by_kind[group] - _exposed_us(us_by_kind[group], room_us + more_us, overlap[group])
        room_us -= hidden_us
        result[group] += more_us - hidden_us
    return min(us_by_kind, result, key=lambda terms: sum(terms.values()))


def _passes(parts: Sequence[tuple[PartTimes, int]]) -> list[Pass]:
    return [_sum((getattr(times, name), count) for times, count in parts) for name in ("forward", "dgrad", "wgrad")]


def unknown_us(prices: StepPrices, stage: Stage, given: Mapping[str, float]) -> tuple[float, float]:
    """Return how much less a stage takes with all messages beside computation, and how much more with none.

    Groups whose share is given keep it. Messages of data parallelism are not among these.
    """
    passes = _passes(stage.parts)
    exposed_us = [
        sum(sum(each.exposed_us({**dict.fromkeys(GROUPS, share), **given}, prices.taken)) for each in passes)
        for share in (1.0, 0.0)
    ]
    now_us = sum(stage.us_by_kind[group] for group in GROUPS)
    return now_us - exposed_us[0], exposed_us[1] - now_us


def _sum(passes: Iterable[tuple[Pass, int]]) -> Pass:
    compute_us, messages_us = 0.0, [0.0] * len(GROUPS)
    for each, count in passes:
        compute_us += count * each.compute_us
        messages_us = [total + count * us for total, us in zip(messages_us, each.messages_us, strict=True)]
    return Pass(compute_us, tuple(messages_us))


def _exposed_us(messages_us: float, compute_us: float, share: float) -> float:
    return messages_us - min(share * messages_us, compute_us)


def data_us(prices: StepPrices, layout: Layout, num_params: int, num_expert_params: int, word: str) -> float:
    """Return the time of a stage's messages to ``gather`` its weights, or to ``scatter`` or ``sum`` its gradients."""
    total_us = 0.0
    replicas = layout.num_expert_replicas
    dense = num_params, layout.data * layout.context, layout.tensor
    experts = num_expert_params, replicas, layout.num_devices // layout.pipeline // replicas
    for num, ranks, stride in (dense, experts):
        if word == "gather":
            total_us += prices.message_us("all_gather", -(-num // ranks) * _PARAMETER_DTYPE_BYTES, ranks, stride)
        else:
            name = "reduce_scatter" if word == "scatter" else "all_reduce"
            total_us += prices.message_us(name, num * MAIN_GRADIENT_BYTES, ranks, stride)
    return total_us


def update_us(
    prices: StepPrices, stage: Stage, layout: Layout, optimizer: Optimizer, zero: int
) -> tuple[float, float, float]:
    """Return times after the passes in us: exposed gradients and weights, the optimizer's step, and hidden messages.

    Gradients go beside the backward pass of the last microbatch, weights beside the forward pass of the first one.
    """
    num, experts = stage.num_params
    exposed_us = messages_us = 0.0
    if zero < 3:
        forward_us, backward_us = stage.times.forward_us, stage.times.dgrad_us + stage.times.wgrad_us
        gradients_us = data_us(prices, layout, num, experts, "scatter" if zero else "sum")
        weights_us = data_us(prices, layout, num, experts, "gather") if zero else 0.0
        messages_us = gradients_us + weights_us
        exposed_us = _exposed_us(gradients_us, backward_us, stage.data_overlap)
        exposed_us += _exposed_us(weights_us, forward_us, stage.data_overlap)
    copies = sum(count * times.part.copy_bytes for times, count in stage.parts)
    here, gradients = (sharded(num, experts, layout, zero >= least) for least in (1, 2))
    return exposed_us, prices.optimizer_us(here, gradients, optimizer, copies), messages_us - exposed_us
