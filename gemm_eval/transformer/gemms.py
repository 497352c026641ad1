"""`transformer_gemms`: the GEMMs of one forward pass on one device, in types as asked for, or of a checkpoint.

The GEMMs of their gradients are here too.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any, Literal, NamedTuple

from gemm_eval.arch import ArchSpec, GpuSpec
from gemm_eval.dtypes import DType, DtypeScheme, parse_dtype, parse_scheme
from gemm_eval.errors import InvalidOptionError
from gemm_eval.moe import Distribution
from gemm_eval.transformer.config import ModelConfig
from gemm_eval.transformer.parts import LatentAttention, WeightFormat, output_of_narrow
from gemm_eval.transformer.shapes import UNIFORM, Operand, Shape, Step, check_expert_load, layer_shapes, lm_head_shape
from gemm_eval.words import as_integer, check_flag, check_word, plain_number, shown, suggests_names
from gemm_eval.workload import LAYOUTS, MAX_DIM, MAX_MACS, GemmProblem, GemmTypes, make_types, problem_of

# Engines run some projections as one GEMM; checkpoints have them apart, or under several names.
_FFNS = ("mlp", "feed_forward", "block_sparse_moe")
_INNER = {"": ("",), "expert": ("experts.0.",), "shared": ("shared_experts.", "shared_expert.")}
_MIXER_PARTS = {
    **{f"{name}_proj": ((f"self_attn.{name}_proj",),) for name in ("q", "q_a", "q_b", "kv_b", "o")},
    "qkv_proj": tuple((f"self_attn.{name}_proj", "self_attn.qkv_proj") for name in "qkv"),
    "kv_a_proj": (("self_attn.kv_a_proj_with_mqa",),),
    "index_q_proj": (("self_attn.indexer.wq_b",),), "index_k_proj": (("self_attn.indexer.wk",),),
    "index_weights_proj": (("self_attn.indexer.weights_proj",),),
    "linear_in_proj": (("linear_attn.in_proj_qkvz", "self_attn.q_proj"),),
    "linear_gates_proj": (("linear_attn.in_proj_ba", "self_attn.b_proj"),),
    "linear_low_rank_a": (("self_attn.f_a_proj",), ("self_attn.g_a_proj",)),
    "linear_low_rank_b": (("self_attn.f_b_proj",), ("self_attn.g_b_proj",)),
    "linear_o_proj": (("linear_attn.out_proj", "self_attn.o_proj"),),
}  # fmt: skip
_UP = ("up_proj", "gate_up_proj", "w3")
_FFN_PARTS = {
    "gate_up": (("gate_proj", "gate_up_proj", "w1"), _UP), "up": (_UP,), "down": (("down_proj", "w2"),),
    "router": (("gate", "router"),), "shared_gate": (("shared_expert_gate",),),
}  # fmt: skip
_PREFIXES = ("model.layers", "language_model.model.layers", "model.language_model.layers")
_HEADS = ("lm_head", "language_model.lm_head")


@lru_cache(maxsize=256)
def _parts_of(gemm: str) -> tuple[tuple[str, ...], ...]:
    """Return the modules of a GEMM within a layer, each under all of its names."""
    if gemm in _MIXER_PARTS:
        return _MIXER_PARTS[gemm]
    part, kind = gemm.removesuffix("_proj"), ""
    if part not in _FFN_PARTS:
        kind, _, part = part.partition("_")
    return tuple(
        tuple(f"{ffn}.{within}{name}" for ffn in _FFNS for within in _INNER[kind] for name in names)
        for names in _FFN_PARTS[part]
    )


def module_names(gemm: str, layer: int | None) -> Iterator[tuple[str, ...]]:
    """Yield the modules of a GEMM in a layer (None: outside of layers), each under all names it may have.

    Experts are alike: the first stands for all.
    """
    if layer is None:
        yield _HEADS
        return
    for names in _parts_of(gemm):
        yield tuple(f"{prefix}.{layer}.{name}" for prefix in _PREFIXES for name in names)


def gemm_layers(config: ModelConfig, gemm: str) -> tuple[int, ...]:
    """Return the layers that have a GEMM of this name; none for the LM head, and for what the model has not."""
    if gemm not in _gemms_of(config):
        return ()
    if gemm.startswith("linear_"):
        return config.linear_layers
    if gemm in _MIXER_PARTS:
        linear = set(config.linear_layers)
        return tuple(layer for layer in range(config.num_layers) if layer not in linear)
    return config.dense_layers if gemm.endswith("_proj") else config.moe_layers


@lru_cache(maxsize=256)
def _gemms_of(config: ModelConfig) -> frozenset[str]:
    return frozenset(shape.name for shape in layer_shapes(config, Step.of_whole(config.name)))


_DEFAULT = "fp16"  # of models that do not say their type
_ABSORBED = ("q_absorb", "v_absorb")
_KEPT_BITS = 16  # what checkpoints keep has at least so many


class StoredTypes(NamedTuple):
    """The types of a GEMM in some of the layers that have it.

    `form` is how a checkpoint stores the weights; None: as `types` say.
    """

    num_layers: int
    types: GemmTypes
    form: WeightFormat | None = None

    def stored_bits(self, N: int, K: int, kept: DType) -> int:
        """Bits of one matrix of N columns of K, in a model whose other tensors are of type `kept`."""
        return self.types.b.total_bits(N, K) if self.form is None else self.form.stored_bits(N, K, kept)


class WeightTypes:
    """The types of every GEMM of a model.

    `kept` is the type of embeddings, norms, activations, scores and values of attention; `types_of` has the types by
    what B is, as a caller named them. What it lacks is as the quantization of `config` says.
    """

    def __init__(self, kept: DType, types_of: Mapping[Operand, GemmTypes], config: ModelConfig | None = None) -> None:
        self.kept, self._types_of, self._config = kept, types_of, config

    def of(self, shape: Shape) -> tuple[StoredTypes, ...]:
        """Return the types of a GEMM: several where layers differ, the quantized ones first.

        Absorbed projections are kept, as engines do.
        """
        operand = Operand.ACTIVATION if shape.name in _ABSORBED else shape.operand
        if operand in self._types_of:
            return (StoredTypes(shape.num_layers, self._types_of[operand]),)
        assert self._config is not None
        kept_types = self._types_of[Operand.ACTIVATION]
        return tuple(
            StoredTypes(num, kept_types if form is None else form.types(self.kept), form)
            for form, num in _form_counts(self._config, shape.name, shape.num_layers)
        )


@lru_cache(maxsize=4096)
def _form_counts(config: ModelConfig, gemm: str, num_layers: int) -> tuple[tuple[WeightFormat | None, int], ...]:
    """Return how many layers store the weights of a GEMM in each form, quantized ones first."""
    assert config.quantization is not None
    layers = gemm_layers(config, gemm) or (None,) * num_layers  # the LM head is outside of them
    counts = Counter(config.quantization.format_of(gemm, layer) for layer in layers)
    return tuple(sorted(counts.items(), key=lambda item: item[0] is None))


def weight_types(
    config: ModelConfig, dtype: str | DtypeScheme | None, dense_dtype: str | None,
    expert_dtype: str | DtypeScheme | None = None, *, quantize_lm_head: bool = False, quantize_router: bool = False,
) -> WeightTypes:  # fmt: skip
    """Return the types of a model's GEMMs, as `transformer_gemms` documents them."""
    if dtype is None and config.quantization is not None:
        for name, flag in (("quantize_lm_head", quantize_lm_head), ("quantize_router", quantize_router)):
            if flag:
                raise InvalidOptionError(f"{name} is for a dtype of your own: {config.name} says what is quantized")
        kept = parse_dtype(dense_dtype or config.dtype or DType.BF16, what="dense_dtype")
        types_of = {Operand.ACTIVATION: make_types(input_dtype=kept)}
        if expert_dtype is not None:
            types_of[Operand.EXPERT] = _widened(_scheme_of(expert_dtype), kept)
        return WeightTypes(kept, types_of, config)
    options = (
        str(config.dtype or _DEFAULT) if dtype is None else dtype, dense_dtype, expert_dtype, quantize_lm_head,
        quantize_router,
    )  # fmt: skip
    try:
        return _own_types(*options)
    except TypeError:  # a type without a hash is none that is known
        return _own_types.__wrapped__(*options)


@lru_cache(maxsize=256)
def _own_types(
    dtype: str | DtypeScheme, dense_dtype: str | None, expert_dtype: str | DtypeScheme | None, quantize_lm_head: bool,
    quantize_router: bool,
) -> WeightTypes:  # fmt: skip
    scheme, dense = _weight_and_dense_types(dtype, dense_dtype)
    weights, kept = _widened(scheme, dense), make_types(input_dtype=dense)
    return WeightTypes(dense, {
        Operand.WEIGHT: weights,
        Operand.EXPERT: weights if expert_dtype is None else _widened(_scheme_of(expert_dtype), dense),
        Operand.LM_HEAD: weights if quantize_lm_head else kept,
        Operand.ROUTER: weights if quantize_router else kept,
        Operand.ACTIVATION: kept,
    })  # fmt: skip


def _widened(scheme: DtypeScheme, activation: DType) -> GemmTypes:
    """Return the types of a GEMM whose output has the type of activations, where its inputs are narrower."""
    is_narrow = scheme.input_dtype.bits < min(activation.bits, _KEPT_BITS)
    return make_types(**(scheme._replace(output_dtype=output_of_narrow(activation)) if is_narrow else scheme)._asdict())


def kv_type(config: ModelConfig, types: WeightTypes, dtype: str | DtypeScheme | None, kv_dtype: str | None) -> DType:
    """Return the type of the KV cache: as asked for, as the checkpoint has scales for, or that of what is kept."""
    stored = config.quantization.kv_cache_dtype if dtype is None and config.quantization is not None else None
    return parse_dtype(kv_dtype or stored or types.kept, what="kv_dtype")


def _scheme_of(dtype: str | DtypeScheme) -> DtypeScheme:
    return dtype if isinstance(dtype, DtypeScheme) else parse_scheme(dtype)


def _weight_and_dense_types(dtype: str | DtypeScheme, dense_dtype: str | None) -> tuple[DtypeScheme, DType]:
    scheme = _scheme_of(dtype)
    dense = parse_dtype(scheme.input_dtype if dense_dtype is None else dense_dtype, what="dense_dtype")
    return scheme, dense if dense_dtype is not None or dense.bits >= _KEPT_BITS else DType.BF16


def model_on(arch: ArchSpec, config: ModelConfig) -> ModelConfig:
    """Return a model as an arch runs its checkpoint.

    Where the arch does not multiply the inputs of a format (fp8 on an A100, fp4 on an H200, block-scaled types on
    multi-core chips), engines keep the weights as they are stored and expand them to the type of activations, as the
    Marlin kernels of vLLM do. Multi-core chips do so with scales for each column, and keep weights in the type of
    activations where nothing of them dequantizes.
    """
    quantization = config.quantization
    if quantization is None:
        return config
    parts = []
    for part in quantization.parts:
        form = _format_on(arch, part.format)
        if form is not None:
            parts.append(part if form is part.format else part.model_copy(update={"format": form}))
    if tuple(parts) == quantization.parts:
        return config
    return config.model_copy(update={"quantization": quantization.model_copy(update={"parts": tuple(parts)})})


def _types_known_to(arch: ArchSpec) -> Mapping[DType, float]:
    return arch.tensor_flop_per_cycle if isinstance(arch, GpuSpec) else arch.cube_steps_per_cycle


def _format_on(arch: ArchSpec, form: WeightFormat) -> WeightFormat | None:
    """Return the format that an arch runs weights in; None: in the type of activations."""
    has_own_input = form.input_dtype is None or form.input_dtype in _types_known_to(arch)
    if isinstance(arch, GpuSpec):
        return form if has_own_input else form.model_copy(update={"input_dtype": None})
    types, can_expand = form.types(DType.BF16), arch.dequant != "none"
    can_run = can_expand if types.is_weight_quantized else not types.is_block_scaled
    if can_run and has_own_input:
        return form
    return None if not can_expand else form.model_copy(update={"input_dtype": None, "group_n": None})


def types_on(
    arch: ArchSpec, dtype: str | None, dense_dtype: str | None = None, config: ModelConfig | None = None
) -> dict[str, Any]:
    """Return the types that a model has on an arch: `dtype` and `dense_dtype` of `transformer_gemms`.

    `dtype` None: as the model's file says, if `config` is given and says it; else the default type of the arch.
    `dense_dtype` None: as `transformer_gemms` has it, or fp16 in place of bf16 where the arch has no bf16.

    Raises:
        InvalidProblemError: no such type.
    """
    known = _types_known_to(arch)
    weights = str(arch.default_dtype) if dtype is None else dtype
    is_stored = dtype is None and config is not None and config.quantization is not None
    if is_stored:
        assert config is not None
        dense = parse_dtype(dense_dtype or config.dtype or DType.BF16, what="dense_dtype")
        is_widened = dense_dtype is None
    else:
        if dtype is None and config is not None and config.dtype in known:
            weights = str(config.dtype)
        scheme, dense = _weight_and_dense_types(weights, dense_dtype)
        is_widened = dense_dtype is None and dense != scheme.input_dtype
    if is_widened and dense not in known and DType.FP16 in known:
        dense = DType.FP16
    return {"dtype": None if is_stored else weights, "dense_dtype": str(dense)}


PHASES = ("prefill", "decode", "train")
"""The forward passes of inference, and a microbatch of training, forward and backward."""


@dataclass(frozen=True, slots=True)
class LayerGemm:
    """A kind of GEMM in a model, ``"qkv_proj"``, and the layers that have it: 1 for the LM head.

    `is_weight` says whether B is a weight; else both operands are activations.
    """

    name: str
    problem: GemmProblem
    num_layers: int
    is_weight: bool

    def __repr__(self) -> str:
        return f"<LayerGemm {self.name}: {self.problem}, 1 in each of {self.num_layers} layers>"

    @property
    def total_count(self) -> int:
        """Number of runs in one pass."""
        return self.num_layers


@suggests_names
def transformer_gemms(
    config: ModelConfig, *, phase: Literal["prefill", "decode", "train"], batch_size: int, seq_len: int,
    tensor_parallel: int = 1, expert_parallel: int = 1, dtype: str | DtypeScheme | None = None,
    dense_dtype: str | None = None, quantize_lm_head: bool = False, quantize_router: bool = False,
    expert_imbalance: float = 1.0, absorb_mla: bool | None = None, expert_dtype: str | DtypeScheme | None = None,
    expert_load: str | Distribution = UNIFORM, new_tokens: int | None = None,
) -> tuple[LayerGemm, ...]:  # fmt: skip
    """Return the GEMMs of one pass on one device, in the order they run, as G, M, K, N.

    Training runs a microbatch of `batch_size` whole sequences, each GEMM followed by its gradients, ``_dgrad`` and
    ``_wgrad`` (`gradients`); the LM head sees all tokens. Prefill runs `seq_len` new tokens of
    each of `batch_size` sequences; decode runs one new token of each, which attends to `seq_len` positions, itself
    included. `new_tokens` says how many of the `seq_len` positions are new where
    it is another number: in prefill a chunk whose predecessors are in the cache, in decode k tokens that are guessed
    and verified at once (speculative decoding), each of which the LM head sees.

    MODELS.md, "GEMMs of a forward pass", says how attention, MLA, experts and parallel degrees become GEMMs.

    Args:
        dtype: None: as the model's file says; else a shorthand (``"bf16"``, ``"fp8_block"``, ``"w4a16"``) or a
            `DtypeScheme` for the projections of attention, the feed-forward networks and the experts.
        dense_dtype: of scores and values of attention, routers and the LM head; None: the input type of `dtype`, or
            bf16 where that has fewer than 16 bits. `quantize_lm_head`, `quantize_router` give these `dtype` too.
        expert_dtype: of routed experts; None: `dtype`.
        expert_load: rows of each expert: ``"uniform"``, as routing at random gives in expectation; ``"expected"``: as
            many for all that are active; or a distribution of `gemm_eval.moe`, as a word or a value.
        expert_imbalance: above 1 (busiest over mean load): all experts are charged as the busiest, which is a bound.
        absorb_mla: fold `kv_b_proj` into query and output; None: in decode only.

    Raises:
        InvalidOptionError: an option is out of range, or a degree does not divide what it splits.
        InvalidProblemError: `dtype` is unknown, or a GEMM would be too large.
    """
    check_flag("quantize_lm_head", quantize_lm_head)
    check_flag("quantize_router", quantize_router)
    step = make_step(
        config, phase, batch_size, seq_len, tensor_parallel, expert_parallel, expert_imbalance=expert_imbalance,
        expert_load=expert_load, absorb_mla=absorb_mla, new_tokens=new_tokens,
    )  # fmt: skip
    types = weight_types(
        config, dtype, dense_dtype, expert_dtype, quantize_lm_head=quantize_lm_head, quantize_router=quantize_router
    )
    shapes = (*layer_shapes(config, step), lm_head_shape(config, step))
    gemms = tuple(gemm for shape in shapes for gemm in layer_gemms(shape, types))
    return gemms if phase != "train" else tuple(each for gemm in gemms for each in with_gradients(gemm))


def with_gradients(gemm: LayerGemm) -> tuple[LayerGemm, ...]:
    """Return a GEMM and those of its gradients, named after it."""
    problems = gradients(gemm.problem, is_weight=gemm.is_weight)._asdict().items()
    return (gemm, *(replace(gemm, name=f"{gemm.name}_{word}", problem=problem) for word, problem in problems))


def make_step(
    config: ModelConfig, phase: str, batch_size: int, seq_len: int, tensor_parallel: int, expert_parallel: int, *,
    expert_imbalance: float = 1.0, expert_load: Any = UNIFORM, absorb_mla: bool | None = None,
    new_tokens: int | None = None, num_decodes: int = 0, decode_len: int = 1,
) -> Step:  # fmt: skip
    """Check the options of `transformer_gemms` and `model_operations` that sizes depend on."""
    check_word("phase", phase, PHASES)
    is_prefill = phase != "decode"  # of all positions at once
    if phase == "train" and new_tokens not in (None, seq_len):
        raise InvalidOptionError(f"new_tokens is of inference: training runs whole sequences, got {shown(new_tokens)}")
    absorbs = not is_prefill if absorb_mla is None else absorb_mla
    check_flag("absorb_mla", absorbs)
    if not isinstance(config, ModelConfig):
        raise InvalidOptionError(f"config must be a ModelConfig, as load_model returns one, got {shown(config)}")
    if isinstance(config.attention, LatentAttention) and config.attention.indexer is not None:
        absorbs = True  # each query attends to latents of its own
    context = as_integer("seq_len", seq_len, 1, MAX_DIM)
    imbalance = plain_number(expert_imbalance)
    if imbalance is None or imbalance < 1:
        raise InvalidOptionError(f"expert_imbalance must be a finite number >= 1, got {shown(expert_imbalance)}")
    usual = context if is_prefill else 1
    new = usual if new_tokens is None else as_integer("new_tokens", new_tokens, 1, context)
    return Step(
        model=config.name, num_seqs=as_integer("batch_size", batch_size, 1, MAX_DIM), new_tokens=new, context=context,
        tensor_parallel=as_integer("tensor_parallel", tensor_parallel, 1, MAX_DIM),
        expert_parallel=as_integer("expert_parallel", expert_parallel, 1, MAX_DIM), expert_imbalance=imbalance,
        expert_load=check_expert_load(expert_load, imbalance),
        absorb_mla=absorbs, lm_head_all_tokens=phase != "prefill", expands_cache=is_prefill and new < context,
        num_decodes=as_integer("num_decodes", num_decodes, 0, MAX_DIM),
        decode_context=as_integer("decode_len", decode_len, 1, MAX_DIM),
    )  # fmt: skip


def layer_gemms(shape: Shape, types: WeightTypes, stored_as: str | None = None) -> tuple[LayerGemm, ...]:
    """Return the GEMMs of a shape: one, or one for each way in which layers store its weights.

    `stored_as` is the GEMM whose types it has, where it is a part of another.
    """
    result: list[LayerGemm] = []
    sizes = shape.G, shape.M, shape.K, shape.N
    fits = shape.row_groups is None and max(sizes) <= MAX_DIM and prod(sizes) <= MAX_MACS
    for stored in types.of(shape if stored_as is None else shape._replace(name=stored_as)):
        name = f"{shape.name}_{stored.types.b.dtype}" if result else shape.name
        if fits:
            problem = problem_of(stored.types, *sizes)
        else:
            words: Any = stored.types.words
            problem = GemmProblem(*sizes, row_groups=shape.row_groups, **words)  # which checks and may refuse it
        result.append(LayerGemm(name, problem, stored.num_layers, shape.operand is not Operand.ACTIVATION))
    return tuple(result)


MAIN_GRADIENT = DType.FP32
"""The type in which weight gradients are added up over microbatches (Megatron-LM: `main_grad`)."""

_LINEAR, _DGRAD, _WGRAD = LAYOUTS[:3]
_WIDE_BITS = 16


class Gradients(NamedTuple):
    """The GEMMs of the gradients of both operands of a GEMM: of the data (dgrad) and of the weight (wgrad).

    Of Y[M,N] = X[M,K] x W[K,N] they are dX[M,K] = dY[M,N] x W^T and dW[N,K] = dY^T[N,M] x X. In 16 bits and wider,
    cuBLAS reads all operands where the forward pass left them: dgrad is ``nn``, wgrad is ``nt``. Narrower operands have
    their reduction along memory (``tn``) in all three: kernels that quantize a tensor also write it transposed, as
    Transformer Engine does (https://docs.nvidia.com/deeplearning/transformer-engine/user-guide/examples/fp8_primer.html).
    Weight gradients are added up in fp32 main gradients (Megatron-LM's gradient accumulation fusion).
    """

    dgrad: GemmProblem
    wgrad: GemmProblem


@lru_cache(maxsize=1024)
def gradient_types(types: GemmTypes, *, is_weight: bool = True) -> tuple[GemmTypes, GemmTypes]:
    """Return the types of dgrad and wgrad. Gradients of activations have the type of the forward result.

    fp8 with a scale for each tensor adds up its gradients in full precision (Transformer Engine's split accumulator).
    Scales of blocks go along the reduction of each GEMM; those of wgrad are of one row in both operands, as in
    DeepSeek-V3 (https://arxiv.org/abs/2412.19437, section 3.3.2).

    Raises:
        InvalidOptionError: the weights are stored in fewer bits than they are multiplied in.
    """
    if types.is_weight_quantized:
        raise InvalidOptionError(
            f"{types.inputs} has no gradients: train in a type that both operands have, as bf16, fp8 or fp8_block"
        )
    words: dict[str, Any] = dict(types.words)
    is_wide = types.a.dtype.bits >= _WIDE_BITS
    if not is_wide and not types.is_block_scaled and types.a.dtype is DType.FP8:
        words["accumulate"] = "full"
    to_data = words | {"layout": _DGRAD if is_wide else _LINEAR}
    to_weight = words | {"layout": _WGRAD if is_wide else _LINEAR}
    if types.is_block_scaled:
        to_weight["group_n"] = 1
    if is_weight:
        to_weight["output_dtype"] = MAIN_GRADIENT
    return make_types(**to_data), make_types(**to_weight)


def gradients(problem: GemmProblem, *, is_weight: bool = True) -> Gradients:
    """Return the GEMMs of both gradients of a GEMM; `is_weight` says whether B is a weight.

    The groups of wgrad differ in their reduction: it is a batch, each as long as the mean group since only
    the sum of long reductions matters.
    """
    to_data, to_weight = gradient_types(problem.types, is_weight=is_weight)
    G, M, K, N = problem.sizes
    num_tokens = M if problem.row_groups is None else max(1, round(problem.rows / G))
    dgrad = problem_of(to_data, G, M, N, K, problem.row_groups)
    return Gradients(dgrad, problem_of(to_weight, G, N, num_tokens, K))
