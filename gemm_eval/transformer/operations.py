"""`model_operations`: all operations of one step of inference on one device, in the order in which engines run them.

Kinds of work are plain data, which `gemm_eval.estimate` prices. GEMMs are those that `transformer_gemms` lists.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from gemm_eval.dtypes import DType, DtypeScheme
from gemm_eval.errors import InvalidOptionError
from gemm_eval.moe import Distribution, MoeLayer
from gemm_eval.transformer.config import LayerKind, ModelConfig, layer_kinds, stage_config, stage_layers
from gemm_eval.transformer.gemms import WeightTypes, kv_type, layer_gemms, make_step, weight_types
from gemm_eval.transformer.parts import GroupedAttention, Indexer, LatentAttention, LinearAttention, Moe
from gemm_eval.transformer.shapes import EXPECTED, UNIFORM, Shape, Step, layer_shapes, lm_head_shape, local_kv_heads
from gemm_eval.words import as_integer, check_flag, check_word, shown, suggests_names
from gemm_eval.workload import AttentionProblem, CollectiveProblem, GemmProblem, GemmTypes, MixerProblem, Operand


@dataclass(frozen=True, slots=True)
class GemmWork:
    """A GEMM on the matrix units.

    Attributes:
        quantize_from: type of activations, where the GEMM reads narrower ones; None: it reads them as they are.
        is_quantized: the kernel before writes A as narrow as the GEMM reads it; else a kernel of its own quantizes it.
        note: an assumption about it; empty: none.
        has_bias: the kernel adds a vector to each row of the result.
    """

    problem: GemmProblem
    quantize_from: DType | None = None
    is_quantized: bool = False
    note: str = ""
    has_bias: bool = False


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """Scores, softmax and values of all heads of one device, or their gradients (`AttentionProblem.backward`).

    Where attention stays within chunks of positions, each chunk is a sequence. `mask_bytes` are those of a mask or bias
    that is read, `is_mask_of_keys` where it is the same for all queries; `note` is an assumption about it.
    """

    problem: AttentionProblem
    mask_bytes: int = 0
    note: str = ""
    is_mask_of_keys: bool = False


@dataclass(frozen=True, slots=True)
class MixerWork:
    """A kernel of linear or sparse attention."""

    problem: MixerProblem


@dataclass(frozen=True, slots=True)
class MemoryWork:
    """A kernel whose time is that of its bytes: a norm, positions, an activation, a copy.

    Attributes:
        what: the kernel: ``"add_rms_norm"``, ``"rotary_kv_write"``, ...; see `GEMMEvaluator.evaluate_memory_bound`.
        read_bytes, write_bytes: bytes of one run, each tensor once, without weights of norms.
        rows, width: rows that it works on, and elements of one in one tensor; 0: elements are dealt to all SMs.
    """

    what: str
    read_bytes: int
    write_bytes: int
    rows: int = 0
    width: int = 0

    @property
    def num_bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.write_bytes


Work = GemmWork | AttentionWork | MixerWork | MemoryWork | MoeLayer | CollectiveProblem
"""Work of an operation; a `MoeLayer` is its routed experts alone: shared experts are GEMMs of their own."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of a step, ``"o_proj"``, which runs once in each of `num_layers` layers.

    `layer_kind` is the kind of layers it is in (`LayerKind`); empty: outside of layers.
    """

    name: str
    layer_kind: str
    num_layers: int
    work: Work

    @property
    def kind(self) -> str:
        """``"gemm"``, ``"attention"``, ``"memory"``, ``"moe"`` or ``"collective"``."""
        return _KINDS[type(self.work)]

    @property
    def problem(self) -> Any:
        """The problem of its work; memory-bound operations and layers of experts have none."""
        return self.work.problem  # type: ignore[union-attr]


_KINDS: dict[type, str] = {
    GemmWork: "gemm", AttentionWork: "attention", MixerWork: "attention", MemoryWork: "memory", MoeLayer: "moe",
    CollectiveProblem: "collective",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fusions:
    """Operations that run as one kernel. All are on by default, as serving engines have them.

    Attributes:
        residual_norm: a residual is added in the norm that follows.
        qkv: queries, keys and values are one GEMM, as are the projections into the latents of MLA.
        gate_up: gate and up projection are one GEMM.
        gated_activation: the activation of the gate and its product with up are one pass.
        rotary_kv_write: positions are turned where keys and values are written to the cache.
        quantization: where GEMMs read fewer bits than activations have, the kernel before writes them, with scales: a
            norm or an activation, and the attention kernel where one static scale holds for the tensor (fp8 without
            blocks). Off: a kernel of its own before each such GEMM. Sources: vLLM, `PassConfig.fuse_norm_quant`,
            `fuse_act_quant` and `fuse_attn_quant` (https://docs.vllm.ai/en/stable/design/fusions/); the last is off
            by default there, and on in TensorRT-LLM (`--use_fp8_context_fmha`).
    """

    residual_norm: bool = True
    qkv: bool = True
    gate_up: bool = True
    gated_activation: bool = True
    rotary_kv_write: bool = True
    quantization: bool = True

    def __post_init__(self) -> None:
        for name in self.__slots__:
            check_flag(name, getattr(self, name))


_BITS_PER_BYTE = 8
_FP32_BYTES = 4
_TOKEN_BYTES = 8
LOW_LATENCY_TOKENS = 256
"""Most tokens of a device that go to experts of other nodes one copy each, by DeepEP's low-latency kernels.

Source: docs/legacy.md of https://github.com/deepseek-ai/DeepEP, which recommends them below that.
"""

_MAX_NODE_DEVICES = 1 << 20
_CHOICE_BYTES = 8  # an expert's number and its weight, for each that a token takes
_POST_ATTENTION, _POST_FFN = 3, 4  # norms of a layer from which on it has one there too
_INPUTS = ("qkv_proj", "q_proj", "q_a_proj", "kv_a_proj", "linear_in_proj")  # GEMMs that read the norm before attention


@suggests_names
def model_operations(
    config: ModelConfig, *, phase: Literal["prefill", "decode"], batch_size: int, seq_len: int,
    new_tokens: int | None = None, num_decodes: int = 0, decode_len: int = 1, tensor_parallel: int = 1,
    expert_parallel: int = 1, pipeline_parallel: int = 1, stage: int = 0, dtype: str | DtypeScheme | None = None,
    dense_dtype: str | None = None, expert_dtype: str | DtypeScheme | None = None, kv_dtype: str | None = None,
    absorb_mla: bool | None = None, expert_load: str | Distribution = UNIFORM, experts_as_layer: bool = True,
    fusions: Fusions | None = None, node_devices: int | None = None,
) -> tuple[Operation, ...]:  # fmt: skip
    """Return the operations of one step on one device: embedding, layers by kind, norm, LM head, sampling.

    Layers of one kind stand together, at the place of the first of them; each operation says in how many layers it
    runs. Arguments not named here, and errors, are those of `transformer_gemms`.

    Args:
        num_decodes, decode_len: sequences that are decoded in the same step beside a chunk of prefill (a mixed step of
            continuous batching), and the positions that the new token of each attends to.
        pipeline_parallel, stage: stages, and which of them: the first has the embedding, the last norm and LM head;
            all others send what they computed to the next.
        kv_dtype: type of the KV cache, as for `model_memory`.
        experts_as_layer: routed experts as one `MoeLayer`; False: as grouped GEMMs, with what is around them.
        fusions: which operations run as one kernel; None: all that engines fuse.
        node_devices: devices of a node, which lie side by side: more than `LOW_LATENCY_TOKENS` go to experts once for
            each other node, and stages send to other nodes. None: one node has all.
    """
    check_flag("experts_as_layer", experts_as_layer)
    fused = Fusions() if fusions is None else fusions
    if not isinstance(fused, Fusions):
        raise InvalidOptionError(f"fusions must be Fusions, got {shown(fusions)}")
    check_word("phase", phase, ("prefill", "decode"))
    step = make_step(
        config, phase, batch_size, seq_len, tensor_parallel, expert_parallel, expert_load=expert_load,
        absorb_mla=absorb_mla, new_tokens=new_tokens, num_decodes=num_decodes, decode_len=decode_len,
    )  # fmt: skip
    if config.moe is None and step.expert_parallel > 1:
        raise InvalidOptionError(f"expert_parallel is for models with experts: {config.name} has none")
    stages = stage_layers(config.num_layers, pipeline_parallel)
    index = as_integer("stage", stage, 0, len(stages) - 1)
    part = stage_config(config, stages[index])
    types = weight_types(part, dtype, dense_dtype, expert_dtype)
    kv = kv_type(part, types, dtype, kv_dtype)

    nodes = (
        _MAX_NODE_DEVICES if node_devices is None else as_integer("node_devices", node_devices, 1, _MAX_NODE_DEVICES)
    )
    outside = StepPart(part, step, types, kv, fused, nodes)
    operations = list(outside.embedding()) if index == 0 else []
    for kind in layer_kinds(part):
        alone = stage_config(part, kind.layers)
        inner = step if alone.moe is not None else replace(step, expert_parallel=1)
        layers = StepPart(alone, inner, weight_types(alone, dtype, dense_dtype, expert_dtype), kv, fused, nodes, kind)
        operations += layers.layer(is_start=index == 0 and 0 in kind.layers, experts_as_layer=experts_as_layer)
    operations += outside.head() if index == len(stages) - 1 else outside.send(index, len(stages))
    return tuple(operations)


def sends_to_other_node(stage: int, num_stages: int, devices: int, node_devices: int) -> bool:
    """Say whether the stage after one of `devices` devices is in another node: a node holds whole stages, or a part."""
    stages_per_node = max(1, node_devices // devices)
    return num_stages * devices > node_devices and (stage + 1) % stages_per_node == 0


class StepPart:
    """Layers of one kind in one step of inference on one device; without a `kind` what is outside of layers.

    `config` is a model of these layers alone. `elem_bytes` are those of an element of an activation.
    """

    def __init__(
        self, config: ModelConfig, step: Step, types: WeightTypes, kv_dtype: DType, fusions: Fusions,
        node_devices: int, kind: LayerKind | None = None,
    ) -> None:  # fmt: skip
        self.config, self.step, self.types, self.kv_dtype, self.fusions = config, step, types, kv_dtype, fusions
        self.node_devices = node_devices
        self.layer_kind = "" if kind is None else kind.name
        self.num_layers = 1 if kind is None else config.num_layers
        self.has_rope = kind is not None and kind.has_rope
        self.elem_bytes = types.kept.bits // _BITS_PER_BYTE

    def _operation(self, name: str, work: Work, num_layers: int = 0) -> Operation:
        return Operation(name, self.layer_kind, num_layers or self.num_layers, work)

    def _gemms(self, shape: Shape, name: str | None = None, *, is_quantized: bool = False) -> Iterator[Operation]:
        """Yield a GEMM for each way of storing weights; `is_quantized`: the kernel before writes A as narrow."""
        kept = self.types.kept
        for gemm in layer_gemms(shape if name is None else shape._replace(name=name), self.types, shape.name):
            is_narrow = gemm.problem.input_dtype.bits < kept.bits
            work = GemmWork(gemm.problem, kept if is_narrow else None, is_narrow and is_quantized)
            yield self._operation(gemm.name, work, gemm.num_layers)

    def _narrow_input(self, *shapes: Shape) -> Operand | None:
        """Return A of GEMMs that read one tensor, if all read the same type, narrower than activations; else None."""
        if not self.fusions.quantization:
            return None
        inputs = {stored.types.a for shape in shapes for stored in self.types.of(shape)}
        if len(inputs) != 1:
            return None
        (operand,) = inputs
        return operand if operand.dtype.bits < self.types.kept.bits else None

    def _written(self, operand: Operand | None, rows: int, width: int) -> float:
        """Return the share of the bytes of activations that `rows` of `width` take as A of a GEMM; None: all of it."""
        return 1.0 if operand is None else operand.total_bits(rows, width) / (rows * width * self.types.kept.bits)

    def _memory(
        self, name: str, what: str, width: int, *, reads: float = 1, writes: float = 1, rows: int | None = None,
        num_layers: int = 0,
    ) -> Operation:  # fmt: skip
        """Return an operation on `rows` rows of `width` elements (default: one a token), read and written so often."""
        num = self.step.tokens if rows is None else rows
        read_bytes, write_bytes = (round(num * times * width * self.elem_bytes) for times in (reads, writes))
        return self._operation(name, MemoryWork(what, read_bytes, write_bytes, num, width), num_layers)

    def _norms(
        self, name: str, *, adds: bool, starts: bool = False, operand: Operand | None = None
    ) -> Iterator[Operation]:
        """Yield a norm, after a residual if it `adds` (but in a first layer); `operand`: A of the GEMM behind."""
        hidden = self.config.hidden_size
        written = self._written(operand, self.step.tokens, hidden)
        what = "rms_norm" if self.config.norm == "rms" else "layer_norm"
        num = self.num_layers
        if starts or not adds:
            yield self._memory(name, what, hidden, writes=written, num_layers=1 if adds else num)
            num -= 1 if adds else num
        if num and self.fusions.residual_norm:
            yield self._memory(name, f"add_{what}", hidden, reads=2, writes=1 + written, num_layers=num)
        elif num:
            yield self._memory(f"{name}_residual", "add", hidden, reads=2, num_layers=num)
            yield self._memory(name, what, hidden, writes=written, num_layers=num)

    def _all_reduce(self, name: str) -> Iterator[Operation]:
        """Yield the sum of the hidden state over a tensor-parallel group."""
        ranks = self.step.tensor_parallel
        if ranks > 1:
            size = self.step.tokens * self.config.hidden_size * self.elem_bytes
            yield self._operation(name, CollectiveProblem("all_reduce", size, ranks))

    def embedding(self) -> Iterator[Operation]:
        """Yield rows of the embedding; each device of a group has some of the vocabulary, so that they are added up."""
        hidden = self.config.hidden_size
        ids = _TOKEN_BYTES / self.elem_bytes / hidden
        yield self._memory("embedding", "gather", hidden, reads=1 + (self.config.num_positions > 0) + ids)
        yield from self._all_reduce("embedding_all_reduce")

    def head(self) -> Iterator[Operation]:
        """Yield the last residual and norm, the LM head of the tokens that are sampled, and sampling in fp32."""
        yield from self._norms("final_norm", adds=True)
        head = lm_head_shape(self.config, self.step)
        yield from self._gemms(head)
        ranks, vocab = self.step.tensor_parallel, self.config.vocab_size
        if ranks > 1:
            size = head.M * head.N * self.elem_bytes
            yield self._operation("logits_all_gather", CollectiveProblem("all_gather", size, ranks))
        wide, token = _FP32_BYTES / self.elem_bytes, _TOKEN_BYTES / self.elem_bytes / vocab
        yield self._memory("logits_cast", "cast", vocab, writes=wide, rows=head.M)
        yield self._memory("sampling", "sample", vocab, reads=wide, writes=token, rows=head.M)

    def send(self, stage: int, num_stages: int) -> Iterator[Operation]:
        """Yield the hidden state for the next stage, and the residual where the next norm adds it."""
        tensors = 1 + self.fusions.residual_norm
        size = tensors * self.step.tokens * self.config.hidden_size * self.elem_bytes
        devices = max(self.step.tensor_parallel, self.step.expert_parallel)
        is_far = sends_to_other_node(stage, num_stages, devices, self.node_devices)
        yield self._operation("stage_send", CollectiveProblem("send", size, 2, ranks_per_node=1 if is_far else None))

    # ---- a layer ---------------------------------------------------------------------------------------------------

    def layer(self, *, is_start: bool, experts_as_layer: bool) -> Iterator[Operation]:
        """Yield the operations of a layer. `is_start`: one is the model's first, which has no residual to add yet."""
        config, shapes = self.config, {shape.name: shape for shape in layer_shapes(self.config, self.step)}
        num_norms, moe = config.norms_per_layer, config.moe
        gated, down = shapes.get("gate_up_proj"), shapes.get("down_proj")
        up = gated or shapes.get("up_proj")
        inputs = [shapes[name] for name in _INPUTS if name in shapes]
        if num_norms == 1 and up is not None:
            inputs.append(up)
        has_shared_norm = num_norms == 1 and moe is not None  # which the router reads as it is
        operand = None if has_shared_norm else self._narrow_input(*inputs)
        yield from self._norms("input_norm", adds=True, starts=is_start, operand=operand)
        yield from self._attention(shapes, is_quantized=operand is not None)
        yield from self._all_reduce("attention_all_reduce")
        if num_norms >= _POST_ATTENTION:
            yield from self._norms("post_attention_norm", adds=False)
        if moe is None and up is None:
            return
        if num_norms > 1:
            operand = None if up is None else self._narrow_input(up)  # a router reads what is not quantized
            yield from self._norms("ffn_norm", adds=True, operand=operand)
        if moe is not None:
            yield from self._experts(moe, shapes, as_layer=experts_as_layer)
        else:
            assert up is not None
            assert down is not None
            yield from self._network(up, down, "ffn_activation", is_quantized=operand is not None)
            yield from self._all_reduce("ffn_all_reduce")
        if num_norms >= _POST_FFN:
            yield from self._norms("post_ffn_norm", adds=False)

    def _network(self, up: Shape, down: Shape, activation: str, *, is_quantized: bool = False) -> Iterator[Operation]:
        """Yield up (with gate), the activation and down; `is_quantized`: the norm before writes narrow input."""
        is_gated = "gate_up" in up.name
        if is_gated and not self.fusions.gate_up:
            half = up._replace(N=up.N // 2)
            yield from self._gemms(half, up.name.replace("gate_up", "gate"), is_quantized=is_quantized)
            yield from self._gemms(half, up.name.replace("gate_up", "up"), is_quantized=is_quantized)
        else:
            yield from self._gemms(up, is_quantized=is_quantized)
        operand = self._narrow_input(down)
        yield from self._activation(activation, down.K, is_gated=is_gated, operand=operand)
        yield from self._gemms(down, is_quantized=operand is not None)

    def _activation(
        self, name: str, width: int, *, is_gated: bool, rows: int | None = None, operand: Operand | None = None
    ) -> Iterator[Operation]:
        """Yield the activation of `width` channels, times up where there is a gate; `operand` is that of `_norms`."""
        written = self._written(operand, self.step.tokens if rows is None else rows, width)
        if is_gated and self.fusions.gated_activation:
            yield self._memory(name, "act_mul", width, reads=2, writes=written, rows=rows)
            return
        yield self._memory(name, "act", width, writes=1 if is_gated else written, rows=rows)
        if is_gated:
            yield self._memory(f"{name}_product", "mul", width, reads=2, writes=written, rows=rows)

    def _experts(self, moe: Moe, shapes: dict[str, Shape], *, as_layer: bool) -> Iterator[Operation]:
        """Yield router, messages, routed experts and shared experts.

        Beyond a tensor-parallel group (`expert_parallel` above `tensor_parallel`) tokens go to their experts and back,
        one copy for each expert that a token takes; many tokens go once to each other node, where the copies are made.
        Within one, each device has all tokens, and the sums are reduced.
        """
        yield from self._gemms(shapes["router"])
        word = "gate_up" if moe.is_gated else "up"
        up = shapes[f"expert_{word}"]
        is_spread = self.step.expert_parallel > self.step.tensor_parallel
        if is_spread:
            yield self._all_to_all("dispatch", moe, self._sent_bytes(self.types.of(up)[0].types))
        if as_layer:
            step, load = self.step, self.step.expert_load
            for stored in self.types.of(up):
                layer = MoeLayer(
                    step.tokens * max(1, step.expert_parallel // step.tensor_parallel), self.config.hidden_size,
                    moe.intermediate_size, moe.num_experts, moe.experts_per_token,
                    tp=max(1, step.tensor_parallel // step.expert_parallel), ep=step.expert_parallel,
                    distribution="balanced" if load == EXPECTED else load, gated=moe.is_gated,
                    dtype=stored.types,
                )  # fmt: skip
                yield self._operation("experts", layer, stored.num_layers)
        else:
            yield from self._routed(moe, up, shapes["expert_down"])
        if is_spread:
            yield self._all_to_all("combine", moe, self.elem_bytes)
        if moe.num_shared_experts:
            yield from self._network(shapes[f"shared_{word}"], shapes["shared_down"], "shared_activation")
            if moe.shared_gate:
                yield from self._gemms(shapes["shared_gate"])
            yield self._memory("shared_add", "add", self.config.hidden_size, reads=2)
        yield from self._all_reduce("ffn_all_reduce")

    def _sent_bytes(self, types: GemmTypes) -> int:
        """Return the bytes of an element that goes to an expert: it goes as it is multiplied."""
        return max(1, types.a.dtype.bits // _BITS_PER_BYTE)

    def _all_to_all(self, name: str, moe: Moe, elem_bytes: int) -> Operation:
        """Return the copies of a device's tokens; its tensor-parallel group has them all, and each sends its share."""
        copies = -(-self.step.tokens * moe.experts_per_token // self.step.tensor_parallel)
        size, ranks = copies * self.config.hidden_size * elem_bytes, self.step.expert_parallel
        num_nodes = -(-ranks // self.node_devices)
        if num_nodes == 1:
            return self._operation(name, CollectiveProblem("all_to_all", size, ranks))
        is_short = self.step.tokens <= LOW_LATENCY_TOKENS * self.step.tensor_parallel
        sent = moe.experts_per_token if is_short else moe.nodes_of_token(num_nodes)  # copies of a token
        leaving = math.ceil(size * sent / moe.experts_per_token * (num_nodes - 1) / num_nodes)
        return self._operation(name, CollectiveProblem("all_to_all", size, ranks, network_bytes=leaving))

    def _routed(self, moe: Moe, up: Shape, down: Shape) -> Iterator[Operation]:
        tokens, hidden, experts = self.step.tokens, self.config.hidden_size, moe.num_experts
        rows = sum(up.row_groups) if up.row_groups is not None else up.G * up.M
        wide, choices = _FP32_BYTES / self.elem_bytes, moe.experts_per_token * _CHOICE_BYTES
        yield self._memory("routing", "top_k", experts, reads=wide, writes=choices / experts / self.elem_bytes)
        yield self._memory("expert_sort", "sort", moe.experts_per_token, reads=2, writes=2)
        yield self._memory("permute", "permute", hidden, writes=rows / tokens)
        yield from self._gemms(up)
        yield from self._activation("expert_activation", down.K, is_gated=moe.is_gated, rows=rows)
        yield from self._gemms(down)
        yield self._memory("finalize", "weighted_sum", hidden, reads=rows / tokens)

    def _attention(self, shapes: dict[str, Shape], *, is_quantized: bool) -> Iterator[Operation]:
        """Yield attention with its projections; `is_quantized`: the norm before writes narrow input."""
        attention = self.config.attention
        if self.config.linear is not None:
            yield from self._linear(self.config.linear, shapes, is_quantized)
            return
        if isinstance(attention, GroupedAttention):
            yield from self._grouped(attention, shapes["qkv_proj"], is_quantized)
        else:
            yield from self._latent(attention, shapes, is_quantized)
        # attention writes fp8 by one known scale: scales of blocks and tokens need the values of several heads
        operand = self._narrow_input(shapes["o_proj"])
        has_static_scale = operand is not None and operand.dtype is DType.FP8 and operand.scale is None
        yield from self._gemms(shapes["o_proj"], is_quantized=has_static_scale)

    def _grouped(self, attention: GroupedAttention, qkv: Shape, is_quantized: bool) -> Iterator[Operation]:
        step, size = self.step, attention.head_dim
        heads = step.tensor_split(attention.num_heads, "num_heads")
        kv_heads = local_kv_heads(attention.num_kv_heads, step)
        if self.fusions.qkv:
            yield from self._gemms(qkv, is_quantized=is_quantized)
        else:
            for name, num in (("q_proj", (1 + attention.has_gate) * heads), ("k_proj", kv_heads), ("v_proj", kv_heads)):
                yield from self._gemms(qkv._replace(N=num * size), name, is_quantized=is_quantized)
        if attention.qk_norm or (attention.qk_l2_norm and self.has_rope):
            yield self._memory("qk_norm", "qk_norm", (heads + kv_heads) * size)
        turning = (size if attention.rotary_dim is None else attention.rotary_dim) * self.has_rope
        yield from self._positions(queries=heads * turning, keys=kv_heads * turning, cached=2 * kv_heads * size)
        window, is_chunk = attention.window_size, attention.window_is_chunk
        chunk = window if is_chunk else None
        pieces = [piece for seqs, new, context, _ in step.calls for piece in _pieces(seqs, new, context, chunk)]
        for sizes in pieces:
            problem = AttentionProblem(
                *sizes, heads, kv_heads, size, self.types.kept, self.kv_dtype, window=None if is_chunk else window,
                has_sinks=attention.sinks,
            )  # fmt: skip
            yield self._operation("attention", AttentionWork(problem))
        if attention.has_gate:
            yield self._memory("attention_gate", "act_mul", heads * size, reads=2)

    def _linear(self, linear: LinearAttention, shapes: dict[str, Shape], is_quantized: bool) -> Iterator[Operation]:
        """Yield linear attention: projections, a convolution, the scan of prompts or update by one token, a norm."""
        step = self.step
        yield from self._gemms(shapes["linear_in_proj"], is_quantized=is_quantized)
        for name in ("linear_gates_proj", "linear_low_rank_a", "linear_low_rank_b"):
            if name in shapes:
                yield from self._gemms(shapes[name], is_quantized=is_quantized and name != "linear_low_rank_b")
        heads = step.tensor_split(linear.num_heads, "linear.num_heads")
        sizes: dict[str, Any] = {
            "num_heads": heads, "key_heads": local_kv_heads(linear.key_heads, step),
            "key_dim": linear.key_dim, "value_dim": linear.value_dim, "conv_width": linear.conv_width,
        }  # fmt: skip
        for num_seqs, new_tokens, *_ in step.calls:
            for part in ("conv_update", "update") if new_tokens == 1 else ("conv", "scan"):
                problem = MixerProblem(f"{linear.kind}_{part}", num_seqs, new_tokens, **sizes)
                yield self._operation(f"linear_{part}", MixerWork(problem))
        parts = sizes["key_heads"] if linear.kind == "mamba2" else heads  # each with a norm of its own
        size = heads // parts * linear.value_dim
        yield self._memory("linear_norm", "rms_norm", size, reads=2, rows=step.tokens * parts)
        yield from self._gemms(shapes["linear_o_proj"])

    def _positions(self, *, queries: int, keys: int, cached: int) -> Iterator[Operation]:
        """Yield what turns queries in place and writes keys, turned, to the cache; sizes are elements of a token."""
        narrowed = self.kv_dtype.bits / self.types.kept.bits
        if self.fusions.rotary_kv_write or not queries:
            what = "rotary_kv_write" if queries else "kv_write"
            width = queries + cached
            yield self._memory(what, what, width, writes=(queries + cached * narrowed) / width)
            return
        yield self._memory("rotary", "rotary", queries + keys)
        yield self._memory("kv_write", "kv_write", cached, writes=narrowed)

    def _latent(self, attention: LatentAttention, shapes: dict[str, Shape], is_quantized: bool) -> Iterator[Operation]:
        step, latent, rope = self.step, attention.kv_lora_rank, attention.qk_rope_head_dim
        heads = step.tensor_split(attention.num_heads, "num_heads")
        rank = attention.q_lora_rank
        q_a, kv_a = shapes["q_proj" if rank is None else "q_a_proj"], shapes["kv_a_proj"]
        if rank is not None and self.fusions.qkv and self.types.of(q_a) == self.types.of(kv_a):
            yield from self._gemms(q_a._replace(N=q_a.N + kv_a.N), "qkv_a_proj", is_quantized=is_quantized)
        else:
            yield from self._gemms(q_a, is_quantized=is_quantized)
            yield from self._gemms(kv_a, is_quantized=is_quantized)
        if rank is not None:
            q_b = shapes["q_b_proj"]
            operand = self._narrow_input(q_b)
            yield self._memory("q_a_norm", "rms_norm", rank, writes=self._written(operand, step.tokens, rank))
            yield from self._gemms(q_b, is_quantized=operand is not None)
        yield self._memory("kv_a_norm", "rms_norm", latent)
        cached, turning = latent + rope, rope * self.has_rope
        yield from self._positions(queries=heads * turning, keys=turning, cached=cached)
        kept = self.types.kept
        if attention.indexer is not None:
            yield from self._sparse(attention, attention.indexer, shapes, heads)
            return
        for seqs, new, context, is_absorbed in step.calls:
            if is_absorbed:
                yield from self._gemms(shapes["q_absorb"])
                key, value, kv_heads, cache = cached, latent, 1, self.kv_dtype
            else:
                expanded = shapes["kv_b_proj"]
                yield from self._gemms(expanded)
                key, value, kv_heads, cache = attention.qk_nope_head_dim + rope, attention.v_head_dim, heads, kept
                # the part with positions, which all heads share, is copied beside each head's own
                yield self._memory("keys_concat", "concat", heads * key, rows=expanded.M)
            problem = AttentionProblem(
                seqs, new, context, heads, kv_heads, key, kept, cache, value, is_latent=is_absorbed
            )
            yield self._operation("attention", AttentionWork(problem))
            if is_absorbed:
                yield from self._gemms(shapes["v_absorb"])

    def _sparse(
        self, attention: LatentAttention, indexer: Indexer, shapes: dict[str, Shape], heads: int
    ) -> Iterator[Operation]:
        """Yield the indexer, which every device has whole, the choice of keys, and attention to their latents."""
        latent, key, size = (
            attention.kv_lora_rank,
            attention.kv_lora_rank + attention.qk_rope_head_dim,
            indexer.head_dim,
        )
        for name in ("index_q_proj", "index_k_proj", "index_weights_proj"):
            yield from self._gemms(shapes[name])
        # positions, and fp8 with scales, of the queries and of the key, which goes to a cache of its own
        yield self._memory("index_quantize", "rotary_kv_write", (indexer.num_heads + 1) * size, writes=0.5)
        yield from self._gemms(shapes["q_absorb"])
        index: dict[str, Any] = {"num_heads": indexer.num_heads, "key_dim": size}
        for num_seqs, new_tokens, context, _ in self.step.calls:
            call = {"batch": num_seqs, "q_len": new_tokens, "kv_len": context}
            is_single = new_tokens == 1
            problem = MixerProblem("index_scores_paged" if is_single else "index_scores", **call, **index)
            yield self._operation("index_scores", MixerWork(problem))
            if context > indexer.top_k:
                problem = MixerProblem("index_top_k", **call, num_heads=1, key_dim=1, value_dim=indexer.top_k)
                yield self._operation("index_top_k", MixerWork(problem))
            if is_single:  # kernels of decode, on the chosen latents
                keys = min(context, indexer.top_k)
                own = AttentionProblem(
                    num_seqs, 1, keys, heads, 1, key, self.types.kept, self.kv_dtype, latent, is_latent=True
                )
                yield self._operation("attention", AttentionWork(own))
            else:
                problem = MixerProblem("sparse_mla", **call, num_heads=heads, key_dim=key, value_dim=latent)
                yield self._operation("attention", MixerWork(problem))
        yield from self._gemms(shapes["v_absorb"])


def _pieces(num_seqs: int, new_tokens: int, context: int, chunk: int | None) -> Sequence[tuple[int, int, int]]:
    """Return (batch, queries, keys) of calls of attention: in chunks of the first, the whole and the last one."""
    if chunk is None:
        return [(num_seqs, new_tokens, context)]
    filled = (context - new_tokens) % chunk
    first = min(new_tokens, chunk - filled) if filled else 0
    num_whole, last = divmod(new_tokens - first, chunk)
    pieces = (
        (num_seqs, first, filled + first), (num_seqs * num_whole, num_whole and chunk, chunk), (num_seqs, last, last),
    )  # fmt: skip
    return [piece for piece in pieces if piece[1]]
