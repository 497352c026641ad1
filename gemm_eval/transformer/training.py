"""`training_parts`: the operations of a microbatch of training on one device, forward and backward, part by part.

The parts are the embedding, one layer of each kind, and the head with its loss; a pipeline stage is made of some of
them. They are what Megatron-LM runs: sequence parallelism within a tensor-parallel group (all-gathers and
reduce-scatters in place of all-reduces, norms on each device's share of the tokens; Korthikanti et al. 2022,
https://arxiv.org/abs/2205.05198), fused attention, main gradients in fp32, context parallelism with balanced causal
chunks, and experts that take all of their tokens.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from gemm_eval.dtypes import DtypeScheme
from gemm_eval.errors import InvalidOptionError
from gemm_eval.moe import Distribution
from gemm_eval.transformer.config import LayerKind, ModelConfig, layer_kinds, stage_config
from gemm_eval.transformer.gemms import MAIN_GRADIENT, WeightTypes, gradients, make_step, weight_types
from gemm_eval.transformer.memory import local_weights
from gemm_eval.transformer.operations import AttentionWork, Fusions, GemmWork, MemoryWork, Operation, StepPart
from gemm_eval.transformer.parts import Moe
from gemm_eval.transformer.shapes import UNIFORM, Operand, Shape, Step, lm_head_shape
from gemm_eval.words import as_integer
from gemm_eval.workload import MAX_DIM, MAX_RANKS, CollectiveProblem, GemmTypes

GROUPS = ("tp", "cp", "ep", "pp")
"""Groups of devices that exchange messages within a microbatch; names of collectives begin with one of these."""

EMBEDDING = "embedding"
"""Name of the part before the layers."""
HEAD = "head"
"""Name of the part after the layers: norm, LM head and loss."""
SEND = "send"
"""Name of the part that sends to the next pipeline stage."""
_MTP = "mtp"
MTP_HEAD = "mtp head"
"""Name of the part after the layers of multi-token prediction: their head and loss."""

_FUSIONS = Fusions(residual_norm=False, quantization=False)
_FP32_BYTES = 4
_BITS_PER_BYTE = 8
_SENT_GROUP = 128
_BIAS_PASSES = 3  # of experts' biases in Megatron-LM: scaled by a token's share, added, and experts joined again
_LOSS_SUMS = 3  # maximum, sum of exponentials and logit of the target, of each token
_NORMS = frozenset({"rms_norm", "layer_norm", "qk_norm"})
_OF_TOKEN_SHARE = frozenset({"rms_norm", "layer_norm", "add", "gather"})  # in the sequence-parallel region
_ACTIVATIONS = frozenset({"act", "act_mul", "mul"})
_RECOMPUTED = _NORMS | _ACTIVATIONS  # scores of attention are never kept
_UP_PROJECTIONS = frozenset({"q_b_proj", "kv_b_proj", "rotary", "keys_concat"})  # of MLA, from latents to Q, K and V
_LINEAR = frozenset({"rotary", "permute", "concat", "add"})  # their gradient needs no input
_WITHOUT_GRADIENT = frozenset({"sort", "quantize"})
_ROW_PARALLEL = ("o_proj", "down_proj", "expert_down", "shared_down")
_RECOMPUTED_INPUTS = (  # of GEMMs: results of the norm or activation before
    "qkv_proj", "q_proj", "q_a_proj", "q_b_proj", "gate_up_proj", "up_proj", "router", "lm_head", "down_proj",
    "expert_down", "shared_down",
)  # fmt: skip
_SHARED_INPUT = frozenset({"kv_a_proj", "shared_gate_up", "shared_up", "shared_gate"})  # another GEMM keeps it


class TrainingPart(NamedTuple):
    """Operations of one part of a model for one microbatch on one device.

    Attributes:
        name: of the kind of layers, or one of `EMBEDDING`, `HEAD`, `SEND`, `MTP_HEAD` and ``"mtp"``.
        layers: layers of this kind, counted from 0; empty outside of layers.
        forward: the forward pass.
        dgrad: the backward pass, without what only weights need.
        wgrad: weight gradients: GEMMs, the reads of what they add to, and inputs gathered again.
        saved_bytes: activations that a device keeps for the backward pass.
        selective_bytes: the same, without results of `recomputed`.
        input_bytes: the input of a layer, which alone is kept with full recomputation.
        num_params, num_expert_params: parameters of a device, without routed experts and of routed experts.
        copy_bytes: narrow copies of weights that GEMMs read, with their transposes.
    """

    name: str
    layers: tuple[int, ...]
    forward: tuple[Operation, ...]
    dgrad: tuple[Operation, ...]
    wgrad: tuple[Operation, ...]
    saved_bytes: int
    selective_bytes: int
    input_bytes: int
    num_params: int = 0
    num_expert_params: int = 0
    copy_bytes: int = 0

    @property
    def operations(self) -> tuple[Operation, ...]:
        """All of them."""
        return self.forward + self.dgrad + self.wgrad

    @property
    def recomputed(self) -> tuple[Operation, ...]:
        """Operations that selective recomputation runs again: norms, activations, and MLA's up-projections."""
        up = _UP_PROJECTIONS if any(op.name == "kv_b_proj" for op in self.forward) else frozenset()
        return tuple(
            op for op in self.forward
            if op.name in up or (isinstance(op.work, MemoryWork) and op.work.what in _RECOMPUTED)
        )  # fmt: skip


def training_parts(
    config: ModelConfig, *, batch_size: int, seq_len: int, tensor_parallel: int = 1, context_parallel: int = 1,
    expert_parallel: int = 1, dtype: str | DtypeScheme | None = None, dense_dtype: str | None = None,
    expert_load: str | Distribution = UNIFORM, node_devices: int | None = None, mtp_layers: int = 0,
    sorts_copies: bool = False,
) -> tuple[TrainingPart, ...]:  # fmt: skip
    """Return the parts of a model for a microbatch of `batch_size` sequences: embedding, kinds of layers, head, send.

    Arguments not named here, and errors, are those of `transformer_gemms`. Layers run once in each part.

    Args:
        context_parallel: devices that each sequence is divided over, in two chunks a device, so that all have equally
            many pairs of queries and keys.
        node_devices: devices of a node, as for `model_operations`; None: all.
        mtp_layers: layers that predict further tokens, two parts before the last (DeepSeek-V3, section 2.2).
        sorts_copies: the receiver sorts copies of tokens by expert (Megatron-LM's ``alltoall``); False: it makes them.
    """
    cp = as_integer("context_parallel", context_parallel, 1, MAX_DIM)
    if as_integer("seq_len", seq_len, 1, MAX_DIM) % (2 * cp if cp > 1 else 1):
        raise InvalidOptionError(f"context_parallel divides seq_len in {2 * cp} chunks, got {seq_len} tokens")
    step = make_step(
        config, "train", batch_size, seq_len // cp, tensor_parallel, expert_parallel, expert_load=expert_load
    )
    if config.moe is None and step.expert_parallel > 1:
        raise InvalidOptionError(f"expert_parallel is for models with experts: {config.name} has none")

    def part_of(alone: ModelConfig, inner: Step, kind: LayerKind | None) -> _PartOfTraining:
        types = weight_types(alone, dtype, dense_dtype)
        nodes = MAX_RANKS if node_devices is None else node_devices
        return _PartOfTraining(alone, inner, types, kind, cp, nodes, sorts_copies)

    outside = part_of(config, step, None)
    parts, further = [outside.finish(EMBEDDING, outside.embedding())], []
    for kind in layer_kinds(config):
        alone = stage_config(config, kind.layers[:1])
        inner = step if alone.moe is not None else replace(step, expert_parallel=1)
        layer = part_of(alone, inner, kind)
        forward = layer.layer(is_start=False, experts_as_layer=False)
        parts.append(layer.finish(kind.name, forward, kind.layers))
        if mtp_layers and config.num_layers - 1 in kind.layers:
            numbers = tuple(range(config.num_layers, config.num_layers + mtp_layers))
            further.append(layer.finish(_MTP, layer.further_token(), numbers))
    head, send = outside.finish(HEAD, outside.head()), outside.finish(SEND, outside.next_stage())
    if further:
        further.append(head._replace(name=MTP_HEAD, num_params=0, copy_bytes=0))  # its weights are the head's
    return (*parts, head, *further, send)


class _PartOfTraining(StepPart):
    """A part of a model in training: what differs from inference in the forward pass, and all of the backward pass."""

    def __init__(
        self, config: ModelConfig, step: Step, types: WeightTypes, kind: LayerKind | None, context_parallel: int,
        node_devices: int, sorts_copies: bool,
    ) -> None:  # fmt: skip
        super().__init__(config, step, types, types.kept, _FUSIONS, node_devices, kind)
        self.sorts_copies = sorts_copies and step.expert_parallel > step.tensor_parallel
        self.context_parallel = context_parallel
        self.token_share = -(-step.tokens // step.tensor_parallel)
        self.hidden_bytes = self.token_share * config.hidden_size * self.elem_bytes

    def _memory(self, name: str, what: str, width: int, *, rows: int | None = None, **more: Any) -> Operation:
        if rows is None and what in _OF_TOKEN_SHARE and width == self.config.hidden_size:
            rows = self.token_share
        return super()._memory(name, what, width, rows=rows, **more)

    def _gemms(self, shape: Shape, name: str | None = None, *, is_quantized: bool = False) -> Iterator[Operation]:
        for operation in super()._gemms(shape, name, is_quantized=is_quantized):
            work = operation.work
            assert isinstance(work, GemmWork)
            if work.quantize_from is not None:
                yield self._quantization(operation)
            yield replace(operation, work=GemmWork(work.problem))

    def _quantization(self, operation: Operation) -> Operation:
        """Return the kernels that write A of a GEMM as it is read, and once more transposed, for the weight gradient.

        On chips that read any layout the second copy has its scales along the other dimension. The scale of a tensor
        takes a read of its own (Transformer Engine's Float8CurrentScaling).
        """
        problem = operation.problem
        elems, written = problem.rows * problem.K, problem.types.a.total_bits(problem.rows, problem.K)
        reads = elems * self.elem_bytes * (1 if problem.types.is_block_scaled else 2)
        work = MemoryWork("quantize", reads, 2 * written // _BITS_PER_BYTE, problem.rows, problem.K)
        return self._operation(f"{operation.name}_quantize", work, operation.num_layers)

    def _all_reduce(self, name: str) -> Iterator[Operation]:
        """Yield the all-gather before tensor-parallel GEMMs, and the reduce-scatter behind them."""
        ranks, moe = self.step.tensor_parallel, self.config.moe
        of_experts = name == "ffn_all_reduce" and moe is not None and self.step.expert_parallel > ranks
        if ranks == 1 or (of_experts and moe is not None and not moe.num_shared_experts):
            return
        base = name.removesuffix("_all_reduce")
        if base != EMBEDDING:
            yield self._collective(f"tp_{base}_all_gather", "all_gather", self.hidden_bytes, ranks)
        yield self._collective(f"tp_{base}_reduce_scatter", "reduce_scatter", ranks * self.hidden_bytes, ranks)

    def _collective(self, name: str, collective: str, num_bytes: int, ranks: int) -> Operation:
        return self._operation(name, CollectiveProblem(collective, num_bytes, ranks))

    def _sent_bytes(self, types: GemmTypes) -> int:
        """Return 16 bits, as Megatron-LM sends tokens; DeepSeek-V3 sends its blocks of 128 in 8 (section 3.3.3)."""
        return super()._sent_bytes(types) if types.group_size == _SENT_GROUP else self.elem_bytes

    def _all_to_all(self, name: str, moe: Any, elem_bytes: int) -> Operation:
        return replace(super()._all_to_all(name, moe, elem_bytes), name=f"ep_{name}")

    def _routed(self, moe: Moe, up: Shape, down: Shape) -> Iterator[Operation]:
        rows, hidden = sum(up.row_groups) if up.row_groups is not None else up.G * up.M, self.config.hidden_size
        for operation in super()._routed(moe, up, down):
            yield operation
            if moe.expert_bias and operation.name == "expert_down":
                yield self._memory("expert_bias", "bias", hidden, reads=_BIAS_PASSES, writes=_BIAS_PASSES, rows=rows)
            if self.sorts_copies and operation.name in ("permute", "expert_down"):
                yield self._memory(f"{operation.name}_sort", "concat", hidden, rows=rows)

    def further_token(self) -> Iterator[Operation]:
        """Yield multi-token prediction: norms of the hidden state and the next token, their projection, a layer."""
        hidden, step = self.config.hidden_size, self.step
        yield from self.embedding()
        for name in ("mtp_hidden_norm", "mtp_token_norm"):
            yield from self._norms(name, adds=False)
        yield self._memory("mtp_concat", "concat", 2 * hidden, rows=self.token_share)
        columns = -(-hidden // step.tensor_parallel)  # in the type of the head, as DeepSeek-V3's is published
        yield from self._gemms(Shape("mtp_proj", 1, step.tokens, 2 * hidden, columns, 1, Operand.LM_HEAD))
        yield from self.layer(is_start=False, experts_as_layer=False)

    def _positions(self, *, queries: int, keys: int, cached: int) -> Iterator[Operation]:  # noqa: ARG002
        if queries:
            yield self._memory("rotary", "rotary", queries + keys)

    def head(self) -> Iterator[Operation]:
        """Yield the last norm, the LM head of all tokens, and the softmax and cross entropy of their logits in fp32."""
        yield self._memory("final_residual", "add", self.config.hidden_size, reads=2)
        yield from self._norms("final_norm", adds=False)
        head, ranks = lm_head_shape(self.config, self.step), self.step.tensor_parallel
        if ranks > 1:
            yield self._collective("tp_head_all_gather", "all_gather", self.hidden_bytes, ranks)
        yield from self._gemms(head)
        wide = _FP32_BYTES / self.elem_bytes
        yield self._memory("loss", "softmax", head.N, reads=1 + wide, writes=2 * wide, rows=head.M)
        if ranks > 1:
            yield self._collective("tp_loss_all_reduce", "all_reduce", _LOSS_SUMS * _FP32_BYTES * head.M, ranks)

    def next_stage(self) -> Iterator[Operation]:
        yield self._collective("pp_send", "send", self.hidden_bytes, 2)

    def _divided(self, operations: Iterator[Operation]) -> Iterator[Operation]:
        """Yield a forward pass with attention as context parallelism divides it.

        A device has chunks i and 2*cp - 1 - i of 2*cp: it attends to its own tokens causally, and for each of the
        other devices all of its queries attend to one of the two chunks, or half of them to both.
        """
        for operation in operations:
            yield operation
            work = operation.work
            if self.context_parallel == 1 or not isinstance(work, AttentionWork):
                continue
            local = work.problem
            if local.window is None:
                other = replace(local, kv_len=-(-local.kv_len // 2), causal=False)
                yield replace(
                    operation, name="attention_others", work=AttentionWork(other),
                    num_layers=operation.num_layers * (self.context_parallel - 1),
                )  # fmt: skip
            yield self._collective("cp_keys_values", "all_gather", local.kv_bytes, self.context_parallel)

    def finish(self, name: str, forward: Iterator[Operation], layers: tuple[int, ...] = ()) -> TrainingPart:
        operations = tuple(self._divided(forward))
        dgrad: list[Operation] = []
        wgrad: list[Operation] = []
        for operation in reversed(operations):
            for is_of_weights, gradient in self._backward(operation):
                (wgrad if is_of_weights else dgrad).append(gradient)
        saved = {op.name: self._saved_bytes(op) for op in operations if op.name not in _SHARED_INPUT}
        again = sum(saved.get(gemm, 0) for gemm in _RECOMPUTED_INPUTS)
        total = sum(saved.values())
        if "kv_b_proj" in saved:  # selective recomputation has Q, K and V of MLA from its latents
            again += saved["attention"]
        return TrainingPart(
            name, layers, operations, tuple(dgrad), tuple(wgrad), total, total - again, self.hidden_bytes,
            *self._weights(name),
        )  # fmt: skip

    def _weights(self, name: str) -> tuple[int, int, int]:
        """Return parameters without routed experts, those of routed experts, and bytes of narrow copies of weights."""
        if name == SEND:
            return 0, 0, 0
        outside = {
            EMBEDDING: {"embedding", "positions"},
            HEAD: {"lm_head"} if not self.config.tied_embeddings else {"embedding"},
        }.get(name)
        ends = outside is not None
        of_part = local_weights(self.config, self.step, self.types, has_embedding=ends, has_head=ends)
        weights = [weight for weight in of_part if outside is None or weight.name in outside]
        hidden = self.config.hidden_size
        norm = hidden * (1 if self.config.norm == "rms" else 2)
        more = {HEAD: norm, _MTP: 2 * norm + 2 * hidden * hidden // self.step.tensor_parallel}.get(name, 0)
        experts = sum(weight.num_elems for weight in weights if weight.name.startswith("expert_"))
        narrow = sum(w.num_bytes for w in weights if w.num_bytes * _BITS_PER_BYTE < w.num_elems * self.types.kept.bits)
        return more + sum(weight.num_elems for weight in weights) - experts, experts, 2 * narrow

    def _backward(self, operation: Operation) -> Iterator[tuple[bool, Operation]]:
        """Yield the backward pass of an operation, each with whether it is for weight gradients alone."""
        work, name = operation.work, operation.name

        def named(suffix: str, new: Any) -> Operation:
            return replace(operation, name=f"{name}_{suffix}", work=new)

        if isinstance(work, GemmWork):
            dgrad, wgrad = gradients(work.problem)
            narrow = dgrad.input_dtype.bits < self.types.kept.bits
            if narrow:
                yield False, replace(self._quantization(named("dgrad", GemmWork(dgrad))), num_layers=1)
            yield False, named("dgrad", GemmWork(dgrad))
            yield True, named("wgrad", GemmWork(wgrad))
            elems = wgrad.rows * wgrad.N
            size = elems * MAIN_GRADIENT.bits // _BITS_PER_BYTE
            yield True, named("main_grad", MemoryWork("accumulate", size, 0, wgrad.rows, wgrad.N))
        elif isinstance(work, AttentionWork):
            yield False, named("backward", AttentionWork(replace(work.problem, backward=True)))
        elif isinstance(work, CollectiveProblem):
            yield from self._conjugate(operation, work)
        elif isinstance(work, MemoryWork) and work.what == "gather":
            yield True, named("backward", self._embedding_gradient())
        elif isinstance(work, MemoryWork) and work.what == "softmax":
            reads = work.write_bytes // 2
            yield False, named("backward", replace(work, read_bytes=reads, write_bytes=reads // 2))
        elif isinstance(work, MemoryWork) and work.what not in _WITHOUT_GRADIENT:
            kept = 0 if work.what in _LINEAR else work.read_bytes
            reads, writes = work.write_bytes + kept, work.read_bytes
            if work.what == "add":  # both terms have one gradient; where they fork, two are added
                reads, writes = work.read_bytes, work.write_bytes
            yield False, named("backward", replace(work, read_bytes=reads, write_bytes=writes))

    def _conjugate(self, operation: Operation, work: CollectiveProblem) -> Iterator[tuple[bool, Operation]]:
        """Yield the collectives of the backward pass; inputs of weight gradients are gathered again."""

        def named(suffix: str, collective: str, num_bytes: int) -> Operation:
            new = replace(work, what=collective, message_bytes=num_bytes)
            return replace(operation, name=f"{operation.name}_{suffix}", work=new)

        size, ranks = work.message_bytes, work.num_ranks
        if work.what == "all_gather":
            yield False, named("backward", "reduce_scatter", size * ranks)
            yield operation.name.startswith("tp_"), named("again", "all_gather", size)
        elif work.what == "reduce_scatter":
            yield False, named("backward", "all_gather", size // ranks)
        elif work.what != "all_reduce":
            yield False, named("backward", work.what, size)

    def _embedding_gradient(self) -> MemoryWork:
        """Return the gradient of the embedding: all of its rows, written and then added to the main gradient."""
        rows, hidden = lm_head_shape(self.config, self.step).N, self.config.hidden_size
        own, main = rows * hidden * self.elem_bytes, rows * hidden * MAIN_GRADIENT.bits // _BITS_PER_BYTE
        return MemoryWork("scatter", own + main + self.hidden_bytes, own + main, rows, hidden)

    def _saved_bytes(self, operation: Operation) -> int:
        """Return what an operation keeps for its gradient: inputs of GEMMs, norms and activations, Q, K, V, logits."""
        work = operation.work
        if isinstance(work, GemmWork):
            problem = work.problem
            num_bytes = problem.types.a.total_bits(problem.rows, problem.K) // _BITS_PER_BYTE
            is_gathered = self.config.hidden_size == problem.K and operation.name not in _ROW_PARALLEL
            of_device = operation.name.startswith("expert_")  # rows that were sent here
            return num_bytes // (self.step.tensor_parallel if is_gathered and not of_device else 1)
        if isinstance(work, AttentionWork):
            if operation.name == "attention_others":
                return 0
            rows = work.problem.batch * work.problem.q_len * work.problem.num_heads
            return work.problem.q_bytes + work.problem.kv_bytes + rows * _FP32_BYTES
        if isinstance(work, MemoryWork) and work.what in _RECOMPUTED:
            return work.read_bytes
        return work.write_bytes // 2 if isinstance(work, MemoryWork) and work.what == "softmax" else 0
