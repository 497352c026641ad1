"""Linear layers of quantization packages, seen for what they are by their class and public attributes.

None of the packages is imported: bitsandbytes (`Linear4bit`, `Linear8bitLt`), AutoAWQ and GPTQ layers,
compressed-tensors (`quantization_scheme` of a linear layer) and torchao (a linear layer whose weight is a tensor class
of its own).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from gemm_eval.dtypes import DType
from gemm_eval.torch.graph import DEALT, Work, dealt
from gemm_eval.torch.operators import type_of
from gemm_eval.transformer import GemmWork
from gemm_eval.workload import GemmProblem

_UNPACKED_ROWS = 1  # up to here bitsandbytes multiplies 4-bit weights as they are; from there on it unpacks them first
_GPTQ_CLASSES = ("QuantLinear", "ExllamaQuantLinear", "ExllamaV2QuantLinear", "MarlinQuantLinear", "TorchQuantLinear",
                 "TritonV2QuantLinear")  # fmt: skip
_TORCHAO_BITS = {"Int4": 4, "UInt4": 4, "Int8": 8, "Float8": 8}


@dataclass(frozen=True, slots=True)
class QuantizedLinear:
    """A linear layer with narrow weights, of a scheme in a word or two: ``"awq"``, ``"bitsandbytes nf4"``.

    `weight` and `zero` are types of weights as stored and of zero points; `group_size` weights along K share a scale
    (None: a column), and `group_n` columns do (None: one). `activation` is the narrow type that x is quantized to at
    every call. `is_unpacked`: weights are written out in the type of x before a dense GEMM, from the second row on.
    """

    scheme: str
    K: int
    N: int
    weight: DType
    group_size: int | None = None
    zero: DType | None = None
    group_n: int | None = None
    activation: DType | None = None
    is_unpacked: bool = False

    def works(self, rows: int, dtype: DType, is_backward: bool = False) -> tuple[Work, ...]:
        """Return what a call on `rows` rows of x in `dtype` is; backward, the gradient of x: weights have none."""
        if not rows:
            return ()
        if is_backward or (self.is_unpacked and rows > _UNPACKED_ROWS):
            packed, wide = self.K * self.N * self.weight.half_bits // 16, self.K * self.N * dtype.half_bits // 16
            K, N = (self.N, self.K) if is_backward else (self.K, self.N)
            return dealt(DEALT, packed, wide, wide), GemmWork(GemmProblem(1, rows, K, N, dtype, dtype, dtype))
        x_bytes, y_elements = rows * self.K * dtype.half_bits // 16, rows * self.N
        if self.activation is None:
            problem = GemmProblem(
                1, rows, self.K, self.N, dtype, self.weight, dtype, group_size=self.group_size, zero_dtype=self.zero,
                group_n=self.group_n,
            )  # fmt: skip
            return (GemmWork(problem),)
        narrow = rows * self.K * self.activation.half_bits // 16
        quantize = dealt(DEALT, x_bytes, narrow, x_bytes)
        if self.weight is self.activation is DType.INT8:
            problem = GemmProblem(1, rows, self.K, self.N, DType.INT8, DType.INT8, DType.INT32)
            out_bytes = y_elements * dtype.half_bits // 16
            return quantize, GemmWork(problem), dealt(DEALT, 4 * y_elements, out_bytes, 2 * y_elements)
        problem = GemmProblem(
            1, rows, self.K, self.N, self.activation, self.weight, dtype, group_size=self.group_size,
            group_n=self.group_n if self.group_size else None,
        )  # fmt: skip
        return quantize, GemmWork(problem)

    def wide(self, dtype: DType | None) -> DType:
        """Type that x is multiplied in: these packages cast what is not of 16 bits."""
        return dtype if dtype in (DType.FP16, DType.BF16) else DType.BF16

    def stand_in(self, recorder: Any) -> Callable[..., Any]:
        """Return a `forward` that writes down what this layer is, and returns a result of its shape."""
        from gemm_eval.torch.functions import stand_in

        def forward(x: Any, *_: Any, **__: Any) -> Any:
            works = partial(self.works, math.prod(x.shape[:-1]), self.wide(type_of(x.dtype, True)))
            shape = (*x.shape[:-1], self.N)
            return stand_in(recorder, f"linear ({self.scheme})", works, (x,), [(shape, None)], x.dtype)

        return forward


def quantized_linears(module: Any) -> dict[str, QuantizedLinear]:
    """Return the quantized linear layers of a module by their paths."""
    result = ((path, quantized_linear(layer)) for path, layer in module.named_modules())
    return {path: linear for path, linear in result if linear is not None}


def quantized_linear(layer: Any) -> QuantizedLinear | None:
    """Return what a layer is; None: no quantized linear layer that is known."""
    name = type(layer).__name__
    if name in ("WQLinear_GEMM", "WQLinear_GEMV", "WQLinear_GEMVFast", "WQLinear_Marlin", "WQLinear_Exllama"):
        return _packed(layer, "awq", layer.w_bit, layer.group_size, has_zeros=True)
    if name in _GPTQ_CLASSES and hasattr(layer, "bits") and hasattr(layer, "group_size"):
        return _packed(layer, "gptq", layer.bits, layer.group_size, has_zeros=not getattr(layer, "sym", False))
    if name in ("Linear4bit", "LinearNF4", "LinearFP4"):  # blocks of the flattened weight share a scale, so along K too
        state = getattr(layer.weight, "quant_state", None) or getattr(layer, "quant_state", None)
        of = layer.weight if state is None else state
        kind = getattr(of, "quant_type", getattr(layer.weight, "quant_type", "nf4"))
        block = int(getattr(of, "blocksize", 64))
        return QuantizedLinear(f"bitsandbytes {kind}", *_sizes(layer), DType.INT4, block, is_unpacked=True)
    if name == "Linear8bitLt":
        return QuantizedLinear(
            "bitsandbytes int8", layer.in_features, layer.out_features, DType.INT8, activation=DType.INT8
        )
    if hasattr(layer, "quantization_scheme") and hasattr(layer.quantization_scheme, "weights"):
        return _compressed(layer)
    weight = getattr(layer, "weight", None)
    is_torchao = name == "Linear" and type(weight).__module__.partition(".")[0] == "torchao"
    return _torchao(weight) if is_torchao else None


def _sizes(layer: Any) -> tuple[int, int]:
    K = layer.in_features if hasattr(layer, "in_features") else layer.infeatures
    N = layer.out_features if hasattr(layer, "out_features") else layer.outfeatures
    return int(K), int(N)


def _group(size: Any) -> int | None:
    return int(size) if size is not None and int(size) > 0 else None


def _packed(layer: Any, scheme: str, bits: int, group_size: Any, *, has_zeros: bool) -> QuantizedLinear | None:
    weight = {4: DType.INT4, 8: DType.INT8}.get(int(bits))
    if weight is None:
        return None
    return QuantizedLinear(scheme, *_sizes(layer), weight, _group(group_size), DType.INT4 if has_zeros else None)


def _compressed(layer: Any) -> QuantizedLinear | None:
    """compressed-tensors: what its scheme says of weights and input activations, run as vLLM runs it."""
    weights, inputs = layer.quantization_scheme.weights, layer.quantization_scheme.input_activations
    weight = _narrow(weights)
    if weight is None:
        return None
    strategy = _word(weights.strategy)
    group = _group(weights.group_size) if "group" in strategy else None
    group_n = None
    if strategy == "block":
        group_n, group = (int(size) for size in weights.block_structure)
    zero = None if weights.symmetric else DType.INT4
    activation = None if inputs is None else _narrow(inputs)
    words = f"compressed-tensors w{weights.num_bits}a{16 if inputs is None else inputs.num_bits}"
    return QuantizedLinear(words, *_sizes(layer), weight, group, zero, group_n, activation)


def _narrow(args: Any) -> DType | None:
    known = {("int", 4): DType.INT4, ("int", 8): DType.INT8, ("float", 8): DType.FP8, ("float", 4): DType.FP4}
    return known.get((_word(args.type), int(args.num_bits)))


def _word(value: Any) -> str:
    return str(getattr(value, "value", value))


def _torchao(weight: Any) -> QuantizedLinear | None:
    """torchao: `block_size`, the type of the stored values, and whether activations are quantized at every call."""
    inner, activation = weight, None
    if hasattr(weight, "original_weight_tensor"):  # LinearActivationQuantizedTensor
        inner = weight.original_weight_tensor
        activation = DType.INT8 if "int8" in str(getattr(weight, "input_quant_func", "")) else DType.FP8
    name = type(inner).__name__
    stored = _stored_type(inner, name)
    if stored is None:
        return None
    if getattr(inner, "act_quant_kwargs", None) is not None:
        activation = stored if stored is not DType.INT4 else DType.INT8
    if "float8" in str(getattr(inner, "activation_dtype", "")):
        activation = DType.FP8
    N, K = (int(size) for size in weight.shape)
    block = getattr(inner, "block_size", None)
    last = int(block[-1]) if block else K
    group = last if 0 < last < K else None
    group_n = int(block[0]) if block and group and 1 < int(block[0]) < N else None
    domain = _word(getattr(inner, "zero_point_domain", "none")).lower()
    has_zeros = getattr(inner, "zero_point", None) is not None or domain not in ("none", "zeropointdomain.none")
    zero = DType.INT4 if has_zeros and stored is DType.INT4 else None
    return QuantizedLinear(f"torchao {name}", K, N, stored, group, zero, group_n, activation)


def _stored_type(inner: Any, name: str) -> DType | None:
    if name.startswith("Intx"):
        return {"int4": DType.INT4, "int8": DType.INT8}.get(str(inner.target_dtype).rpartition(".")[2])
    bits = next((bits for word, bits in _TORCHAO_BITS.items() if name.startswith(word)), None)
    if bits is not None:
        return DType.INT4 if bits == 4 else DType.FP8 if name.startswith("Float8") else DType.INT8
    if name == "AffineQuantizedTensor":
        low, high = getattr(inner, "quant_min", None), getattr(inner, "quant_max", None)
        if low is not None and high is not None and int(high) - int(low) == 15:
            return DType.INT4
        plain = str(getattr(inner.tensor_impl, "dtype", ""))
        return DType.FP8 if "float8" in plain else DType.INT8
    return None
