"""Data types of a model's GEMMs: as asked for, or as its checkpoint stores them; names of weights in checkpoints."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, TypedDict

from gemm_eval.arch import ArchSpec, GpuSpec
from gemm_eval.dtypes import DType, DtypeScheme, parse_dtype, parse_scheme
from gemm_eval.errors import InvalidOptionError
from gemm_eval.transformer.config import ModelConfig
from gemm_eval.transformer.parts import WeightFormat, output_of_narrow
from gemm_eval.transformer.shapes import Operand, Shape, Step, layer_shapes
from gemm_eval.workload import GemmTypes, make_types

# Engines run some projections as one GEMM; checkpoints have them apart, or under several names.
_ATTENTION = "self_attn"
_FFNS = ("mlp", "feed_forward", "block_sparse_moe")
_SHARED = ("shared_experts", "shared_expert")
_ATTENTION_PARTS = {
    "qkv_proj": (("q_proj", "qkv_proj"), ("k_proj", "qkv_proj"), ("v_proj", "qkv_proj")), "q_proj": (("q_proj",),),
    "q_a_proj": (("q_a_proj",),), "q_b_proj": (("q_b_proj",),), "kv_a_proj": (("kv_a_proj_with_mqa",),),
    "kv_b_proj": (("kv_b_proj",),), "o_proj": (("o_proj",),),
}  # fmt: skip
_GATE, _UP, _DOWN = ("gate_proj", "gate_up_proj", "w1"), ("up_proj", "gate_up_proj", "w3"), ("down_proj", "w2")
_FFN_PARTS = {"gate_up": (_GATE, _UP), "up": (_UP,), "down": (_DOWN,)}
_EXPERT = "experts.0"
_ROUTERS, _SHARED_GATE = ("gate", "router"), ("shared_expert_gate",)
_PREFIXES = ("model.layers", "language_model.model.layers", "model.language_model.layers")
_HEADS = ("lm_head", "language_model.lm_head")


@lru_cache(maxsize=256)
def _parts_of(gemm: str) -> tuple[tuple[str, ...], ...]:
    """The modules of a GEMM within a layer, each under all of its names."""
    if gemm in _ATTENTION_PARTS:
        return tuple(tuple(f"{_ATTENTION}.{name}" for name in names) for names in _ATTENTION_PARTS[gemm])
    if gemm == "router":
        return (tuple(f"{ffn}.{name}" for ffn in _FFNS for name in _ROUTERS),)
    if gemm == "shared_gate":
        return (tuple(f"{ffn}.{name}" for ffn in _FFNS for name in _SHARED_GATE),)
    kind, _, part = gemm.removesuffix("_proj").partition("_") if gemm.startswith(("expert_", "shared_")) else (
        "", "", gemm.removesuffix("_proj")
    )  # fmt: skip
    inner = {"expert": (f"{_EXPERT}.",), "shared": tuple(f"{name}." for name in _SHARED), "": ("",)}[kind]
    return tuple(
        tuple(f"{ffn}.{within}{name}" for ffn in _FFNS for within in inner for name in names)
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
    if gemm in _ATTENTION_PARTS:
        return tuple(range(config.num_layers))
    return config.dense_layers if gemm.endswith("_proj") else config.moe_layers


@lru_cache(maxsize=256)
def _gemms_of(config: ModelConfig) -> frozenset[str]:
    return frozenset(shape.name for shape in layer_shapes(config, Step.of_whole(config.name)))


_DEFAULT = "fp16"  # of models that do not say their type

_ABSORBED = ("q_absorb", "v_absorb")

_KEPT_BITS = 16  # what checkpoints keep has at least so many


class ModelTypes(TypedDict):
    """Two arguments of `transformer_gemms`."""

    dtype: str | None
    dense_dtype: str


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


class WeightTypes(ABC):
    """The types of every GEMM of a model, as they were asked for or as its checkpoint has them."""

    def __init__(self, kept: DType) -> None:
        """`kept` is the type of embeddings, norms, activations, scores and values of attention."""
        self.kept = kept

    @abstractmethod
    def of(self, shape: Shape) -> tuple[StoredTypes, ...]:
        """Return the types of a GEMM: several where layers differ, the quantized ones first."""


class _OwnTypes(WeightTypes):
    """Types that a caller names for all GEMMs of a kind."""

    def __init__(self, types_of: dict[Operand, DtypeScheme | DType]) -> None:
        self._types_of = {
            operand: make_types(input_dtype=types) if isinstance(types, DType) else make_types(**types._asdict())
            for operand, types in types_of.items()
        }
        super().__init__(self._types_of[Operand.ACTIVATION].a.dtype)

    def of(self, shape: Shape) -> tuple[StoredTypes, ...]:
        """Return the types of a GEMM, the same in all layers. Absorbed projections are kept, as engines do."""
        operand = Operand.ACTIVATION if shape.name in _ABSORBED else shape.operand
        return (StoredTypes(shape.num_layers, self._types_of[operand]),)


class _CheckpointTypes(WeightTypes):
    """Types that a model's `quantization` says; what it does not name is kept."""

    def __init__(self, config: ModelConfig, kept: DType, experts: GemmTypes | None) -> None:
        super().__init__(kept)
        self._config, self._experts = config, experts
        self._kept_types = make_types(input_dtype=kept)

    def of(self, shape: Shape) -> tuple[StoredTypes, ...]:
        """Return the types of a GEMM by how its weights are stored. Absorbed projections are kept, as engines do."""
        if shape.operand is Operand.ACTIVATION:
            return (StoredTypes(shape.num_layers, self._kept_types),)
        if shape.operand is Operand.EXPERT and self._experts is not None:
            return (StoredTypes(shape.num_layers, self._experts),)
        counts: dict[WeightFormat | None, int] = {}
        for form in self._formats(shape):
            counts[form] = counts.get(form, 0) + 1
        return tuple(
            StoredTypes(num, self._kept_types if form is None else form.types(self.kept), form)
            for form, num in sorted(counts.items(), key=lambda item: item[0] is None)
        )

    def _formats(self, shape: Shape) -> Iterator[WeightFormat | None]:
        quantization = self._config.quantization
        assert quantization is not None
        layers = gemm_layers(self._config, shape.name)
        if not layers:  # the LM head, and what is no GEMM of a checkpoint: absorbed projections
            yield from (quantization.format_of(shape.name) for _ in range(shape.num_layers))
        for layer in layers:
            yield quantization.format_of(shape.name, layer)


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
        experts = None if expert_dtype is None else make_types(**_dequantized(_scheme_of(expert_dtype), kept)._asdict())
        return _CheckpointTypes(config, kept, experts)
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
    types_of = _operand_types(dtype, dense_dtype, expert_dtype)
    for operand, is_quantized in ((Operand.LM_HEAD, quantize_lm_head), (Operand.ROUTER, quantize_router)):
        if is_quantized:
            types_of[operand] = types_of[Operand.WEIGHT]
    return _OwnTypes(types_of)


def _operand_types(
    dtype: str | DtypeScheme, dense_dtype: str | None, expert_dtype: str | DtypeScheme | None = None
) -> dict[Operand, DtypeScheme | DType]:
    """The types of GEMMs by what their B is."""
    scheme, dense = _weight_and_dense_types(dtype, dense_dtype)
    kept = (Operand.ROUTER, Operand.LM_HEAD, Operand.ACTIVATION)
    experts = scheme if expert_dtype is None else _scheme_of(expert_dtype)
    return {
        Operand.WEIGHT: _dequantized(scheme, dense),
        Operand.EXPERT: _dequantized(experts, dense),
        **dict.fromkeys(kept, dense),
    }


def _dequantized(scheme: DtypeScheme, activation: DType) -> DtypeScheme:
    """Return the types of a GEMM whose output has the type of activations, where its inputs are narrower."""
    is_narrow = scheme.input_dtype.bits < min(activation.bits, _KEPT_BITS)
    return scheme._replace(output_dtype=output_of_narrow(activation)) if is_narrow else scheme


def _scheme_of(dtype: str | DtypeScheme) -> DtypeScheme:
    return dtype if isinstance(dtype, DtypeScheme) else parse_scheme(dtype)


def _weight_and_dense_types(dtype: str | DtypeScheme, dense_dtype: str | None) -> tuple[DtypeScheme, DType]:
    """Return the types of quantized weights, and that of what is kept."""
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


def _format_on(arch: ArchSpec, form: WeightFormat) -> WeightFormat | None:
    """Return the format that an arch runs weights in; None: in the type of activations."""
    types = form.types(DType.BF16)
    if isinstance(arch, GpuSpec):
        is_taken = form.input_dtype is None or form.input_dtype in arch.tensor_flop_per_cycle
        return form if is_taken else form.model_copy(update={"input_dtype": None})
    has_own_input = form.input_dtype is None or form.input_dtype in arch.cube_steps_per_cycle
    can_expand = arch.dequant != "none"
    can_run = can_expand if types.is_weight_quantized else not types.is_block_scaled
    if can_run and has_own_input:
        return form
    return None if not can_expand else form.model_copy(update={"input_dtype": None, "group_n": None})


def types_on(
    arch: ArchSpec, dtype: str | None, dense_dtype: str | None = None, config: ModelConfig | None = None
) -> ModelTypes:
    """Return the types that a model has on an arch, for `transformer_gemms`.

    Args:
        arch: what it runs on.
        dtype: None: as the model's file says, if `config` is given and says it; else the default type of the arch.
        dense_dtype: None: as `transformer_gemms` has it, or fp16 in place of bf16 where the arch has no bf16.
        config: the model.

    Raises:
        InvalidProblemError: no such type.
    """
    known = arch.tensor_flop_per_cycle if isinstance(arch, GpuSpec) else arch.cube_steps_per_cycle
    weights = str(arch.default_dtype) if dtype is None else dtype
    if dtype is None and config is not None:
        if config.quantization is not None:
            kept = parse_dtype(dense_dtype or config.dtype or DType.BF16, what="dense_dtype")
            if dense_dtype is None and kept not in known and DType.FP16 in known:
                kept = DType.FP16
            return {"dtype": None, "dense_dtype": str(kept)}
        if config.dtype in known:
            weights = str(config.dtype)
    scheme, dense = _weight_and_dense_types(weights, dense_dtype)
    is_widened = dense_dtype is None and dense != scheme.input_dtype
    if is_widened and dense not in known and DType.FP16 in known:
        dense = DType.FP16
    return {"dtype": weights, "dense_dtype": str(dense)}
