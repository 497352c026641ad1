"""`Quantization`: which GEMMs of a model have quantized weights, in which layers, and how they are stored."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidProblemError
from gemm_eval.transformer.layers import LayerSet, parse_layers
from gemm_eval.transformer.parts import Frozen
from gemm_eval.workload import GemmTypes, make_types

__all__ = ["GEMM_NAMES", "Quantization", "QuantizedPart", "WeightFormat", "output_of_narrow"]

GEMM_NAMES = (
    "qkv_proj", "q_proj", "q_a_proj", "q_b_proj", "kv_a_proj", "kv_b_proj", "o_proj", "gate_up_proj", "up_proj",
    "down_proj", "router", "expert_gate_up", "expert_up", "expert_down", "shared_gate_up", "shared_up", "shared_down",
    "shared_gate", "lm_head",
)  # fmt: skip
"""The GEMMs with weights, by the names that `transformer_gemms` gives them."""

_WRITTEN_BITS = 16
_BITS_OF_INDEX = 32
_BITS_OF_TENSOR_SCALE = 32
_AnyDType = Annotated[DType, Field(strict=False)]
_Group = Annotated[int, Field(ge=1, le=1 << 24)]


class WeightFormat(Frozen):
    """How the weights of a GEMM are stored, and what they are multiplied in.

    The fields that a `GemmProblem` has too mean the same. The others are stored, but no traffic worth counting.
    """

    weight_dtype: _AnyDType
    input_dtype: _AnyDType | None = Field(default=None, description="None: activations stay in the model's type")
    group_size: _Group | None = None
    group_n: _Group | None = None
    scale_dtype: _AnyDType | None = None
    zero_dtype: _AnyDType | None = None
    column_scale_dtype: _AnyDType | None = Field(
        default=None, description="of one scale for each column, applied to C; None: there are none"
    )
    num_tensor_scales: Annotated[int, Field(ge=0, le=8)] = Field(
        default=0, description="fp32 scales of a whole matrix and of its inputs"
    )
    has_group_index: bool = Field(
        default=False, description="an int32 for each row of K says its group (GPTQ desc_act)"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            self.types(DType.BF16)
        except InvalidProblemError as error:
            raise ValueError(str(error)) from None
        return self

    def types(self, activation: DType) -> GemmTypes:
        """Return the types of a GEMM in a model of this type, which C has too."""
        return _types(self, activation)

    def stored_bits(self, N: int, K: int, activation: DType) -> int:
        """Bits of a matrix of N columns of K, with all that is stored beside it."""
        bits = self.types(activation).b.total_bits(N, K)
        if self.column_scale_dtype is not None:
            bits += N * self.column_scale_dtype.bits
        return bits + self.num_tensor_scales * _BITS_OF_TENSOR_SCALE + self.has_group_index * K * _BITS_OF_INDEX


def output_of_narrow(activation: DType) -> DType:
    """Return the type that a GEMM with narrower inputs writes in a model whose activations are of type `activation`.

    Engines apply the scales in the epilogue, so that no accumulator (int32 of int8 inputs) is written: vLLM's
    `cutlass_scaled_mm` writes fp16 or bf16.
    """
    return activation if activation.bits <= _WRITTEN_BITS else DType.BF16


@lru_cache(maxsize=1024)
def _types(form: WeightFormat, activation: DType) -> GemmTypes:
    fields: dict[str, Any] = {
        "input_dtype": form.input_dtype or activation, "weight_dtype": form.weight_dtype,
        "group_size": form.group_size, "scale_dtype": form.scale_dtype, "zero_dtype": form.zero_dtype,
        "group_n": form.group_n,
    }  # fmt: skip
    if form.input_dtype is not None and form.input_dtype.bits < activation.bits:
        fields["output_dtype"] = output_of_narrow(activation)
    return make_types(**fields)


class QuantizedPart(Frozen):
    """Some GEMMs whose weights are quantized alike."""

    gemms: Annotated[tuple[str, ...], Field(strict=False, min_length=1, max_length=len(GEMM_NAMES))]
    layers: LayerSet | None = Field(default=None, description="in which layers; None: in all that have them")
    format: WeightFormat

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in self.gemms:
            if name not in GEMM_NAMES:
                raise ValueError(f"quantization.parts.gemms must be of {', '.join(GEMM_NAMES)}, got {name!r}")
        return self


class Quantization(Frozen):
    """What a checkpoint stores in fewer bits than its model's type.

    Attributes:
        method: who quantized, in the words of Hugging Face configs: awq, gptq, fp8, mxfp4, ...
        parts: GEMMs with quantized weights; of those that are in several, the first holds. All others are kept.
        kv_cache_dtype: type that the checkpoint has scales of the KV cache for; None: the model's type.
    """

    method: Annotated[str, Field(min_length=1, max_length=64)]
    parts: Annotated[tuple[QuantizedPart, ...], Field(strict=False, max_length=256)] = ()
    kv_cache_dtype: _AnyDType | None = None

    def format_of(self, gemm: str, layer: int | None = None) -> WeightFormat | None:
        """Return how a GEMM's weights are stored in a layer (None: outside of layers); None: they are kept."""
        for part in self.parts:
            if gemm in part.gemms and (layer is None or part.layers is None or layer in _layer_set(part.layers)):
                return part.format
        return None


@lru_cache(maxsize=4096)
def _layer_set(text: str) -> frozenset[int]:
    return frozenset(parse_layers(text))
