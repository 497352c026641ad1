"""`W4Linear`, a linear layer of torch with packed 4-bit weights, in the place of `torch.nn.Linear`.

from gemm_eval.kernels.linear import W4Linear  # needs the extra `torch`
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy

from gemm_eval.device import import_cupy
from gemm_eval.dtypes import DType, parse_dtype
from gemm_eval.errors import InvalidProblemError
from gemm_eval.kernels import layout
from gemm_eval.kernels.checkpoint_tensors import PackedLayer
from gemm_eval.kernels.checkpoints import from_awq, from_gptq
from gemm_eval.kernels.families import WeightMode
from gemm_eval.kernels.fp4 import pack_mxfp4, pack_nvfp4
from gemm_eval.kernels.linear_op import (
    ACTIVATION_OF,
    ACTIVATION_OF_SCALES,
    TORCH_TYPE_OF,
    packed_shapes,
    scales_type,
    w4a16_linear,
)
from gemm_eval.kernels.weights import PackedW4, check_packed, pack_w4
from gemm_eval.words import check_flag, needs_extra, shown

with needs_extra("W4Linear", "torch"):
    import torch

__all__ = ["W4Linear", "replace_linears"]

_FLOATS = ("scales", "bias")
_KINDS = [(mode, group_size) for mode in WeightMode for group_size in mode.group_sizes]
"""Modes with their group sizes: packed scales of each have another shape or type."""
_TYPE_OF_BYTES = {1: "int8", 2: "int16", 4: "int32"}

_DEVICES = ("cpu", "cuda")  # torch knows no autocast of the device "meta"


class W4Linear(torch.nn.Module):
    """y[..., N] = x[..., K] W[K, N] + bias[N], W in 4 bits; K is `in_features`, N `out_features`.

    x has the type that the weights were packed for, fp16 or bf16. On a GPU `w4a16_gemm` runs, by the config that the
    cost model chooses; on a CPU weights are dequantized at every call. Weights have no gradient, x has one.

    With activation "fp8" x, of 16 bits all the same, is rounded to e4m3 with a scale for each token, and `w4a8_gemm`
    runs (Hopper); `is_fp8` says so, and may be set at any time. It is no part of the state_dict.

    torch.compile takes it whole (one operator with a fake kernel). CUDA graphs: run it once with the shape before the
    capture. Casts of a module (`half()`, `to(torch.bfloat16)`) leave it as it is.

    Keys of the state_dict: `qweight` int32, `scales` (bytes of the fp4 modes are uint8 for fp16 and int8 for bf16),
    `scale_unit` fp32 [1], and maybe `permutation` int32 and `bias`. One that is loaded decides on mode, group size and
    act-order.

    Args:
        in_features, out_features: multiples of 8.
        bias: whether there is one.
        mode: "column", "group", "group_zero", "mxfp4" or "nvfp4".
        group_size: 32, 64 or 128; None: 128, all K in mode "column", or what the mode has.
        activation: "fp16" or "bf16", the type of x and y; "fp8": x is fp16 and rounded to e4m3.
        act_order: whether rows of W were sorted by group.
        device: of the buffers.

    Raises:
        InvalidOptionError: `mode` or `group_size`.
        InvalidProblemError: sizes or a type that no kernel takes.
    """

    qweight: torch.Tensor
    scales: torch.Tensor
    permutation: torch.Tensor | None
    bias: torch.Tensor | None

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, mode: WeightMode | str = "group",
        group_size: int | None = None, activation: DType | str = "fp16", act_order: bool = False, device: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        check_flag("bias", bias)
        check_flag("act_order", act_order)
        layout.check_sizes(in_features, out_features)
        self.in_features, self.out_features = in_features, out_features
        self.mode = layout.parse_mode(mode)
        self.group_size = layout.parse_group_size(group_size, self.mode)
        self.scale_unit = 1.0
        self.is_fp8 = _is_fp8(activation)
        words, scales = packed_shapes(out_features, in_features, self.mode, self.group_size)
        sixteen_bits = DType.FP16 if self.is_fp8 else layout.parse_activation(activation)
        dtype = TORCH_TYPE_OF[sixteen_bits]
        order = torch.arange(in_features, dtype=torch.int32, device=device) if act_order else None
        self.register_buffer("qweight", torch.zeros(words, dtype=torch.int32, device=device))
        self.register_buffer("scales", torch.zeros(scales, dtype=scales_type(self.mode, sixteen_bits), device=device))
        self.register_buffer("permutation", order)
        self.register_buffer("bias", torch.zeros(out_features, dtype=dtype, device=device) if bias else None)

    # ---- from what there is ----------------------------------------------------------------------------------------

    @classmethod
    def from_packed(
        cls, packed: PackedW4, bias: Any = None, *, activation: DType | str | None = None
    ) -> W4Linear:  # fmt: skip
        """Return a layer of packed weights, copied; `bias` [N]: floats, or bits of bf16 as in `PackedLayer`.

        `activation` "fp8": x, of the type that the weights were packed for, is rounded to e4m3.

        Raises:
            InvalidProblemError: `packed` is no `PackedW4`, it was packed for another `activation`, or the bias has
                another shape or type.
        """
        check_packed(packed)
        is_fp8 = _is_fp8(activation)
        if activation is not None and not is_fp8 and layout.parse_activation(activation) is not packed.activation:
            raise InvalidProblemError(f"activation must be fp8 or {packed.activation}, as packed, got {activation}")
        layer = cls(
            packed.K, packed.N, bias is not None, mode=packed.mode, group_size=packed.group_size or None,
            activation=packed.activation, device="meta",
        )  # fmt: skip
        layer.scale_unit, layer.is_fp8 = packed.scale_unit, is_fp8
        layer.qweight = _tensor(packed.qweight, torch.int32)
        layer.scales = _tensor(packed.scales, scales_type(packed.mode, packed.activation))
        layer.permutation = None if packed.permutation is None else _tensor(packed.permutation, torch.int32)
        if bias is not None:
            layer.bias = _bias(bias, packed).to(layer.qweight.device)
        return layer

    @classmethod
    def from_linear(
        cls, linear: torch.nn.Linear, group_size: int | None = None, mode: WeightMode | str = "group",
        activation: DType | str | None = None,
    ) -> W4Linear:  # fmt: skip
        """Quantize a linear layer, to the nearest of 16 values of each group (`quantize_w4`).

        Args:
            linear: a `torch.nn.Linear`, on a CPU or GPU.
            group_size, mode: as for `pack_w4`.
            activation: "fp16" or "bf16"; None: the type of its weights; "fp8": likewise, and x is rounded to e4m3.

        Raises:
            InvalidOptionError: `mode` or `group_size`.
            InvalidProblemError: no linear layer, sizes that no kernel takes, weights of another type and no
                `activation`, or weights that are not finite.
        """
        if not isinstance(linear, torch.nn.Linear):
            raise InvalidProblemError(f"linear must be a torch.nn.Linear, got {type(linear).__name__}")
        weight, is_fp8 = linear.weight, _is_fp8(activation)
        sixteen_bits = ACTIVATION_OF.get(weight.dtype) if activation is None or is_fp8 else activation
        if sixteen_bits is None:
            raise InvalidProblemError(f"weights are {weight.dtype}: say in which activation, fp16 or bf16, to run")
        packed = pack_w4(_array(weight.t()), group_size, mode, activation=sixteen_bits)
        return cls.from_packed(packed, linear.bias, activation=DType.FP8 if is_fp8 else None)

    @classmethod
    def _of_tensors(
        cls, pack: Callable[..., Any], tensors: Iterable[Any], bias: Any, activation: DType | str | None, **options: Any
    ) -> W4Linear:
        """Return a layer of a checkpoint's tensors, which `pack` of `gemm_eval.kernels` packs."""
        packed = pack(*map(_bits, tensors), activation=activation, **options)
        if isinstance(packed, tuple):
            raise InvalidProblemError(
                f"a linear layer has the weights of one matrix, got those of {len(packed)} experts"
            )
        return cls.from_packed(packed, bias)

    @classmethod
    def from_awq(
        cls, qweight: Any, qzeros: Any, scales: Any, group_size: int | None = 128, *, bias: Any = None,
        activation: DType | str | None = None,
    ) -> W4Linear:  # fmt: skip
        """Return a layer of an AWQ checkpoint; see `kernels.from_awq`. `activation` None: type of the scales."""
        known = _activation_of(scales, activation)
        return cls._of_tensors(from_awq, (qweight, qzeros, scales), bias, known, group_size=group_size)

    @classmethod
    def from_gptq(
        cls, qweight: Any, qzeros: Any, scales: Any, g_idx: Any = None, group_size: int | None = 128, *,
        bias: Any = None, activation: DType | str | None = None, **options: Any,
    ) -> W4Linear:  # fmt: skip
        """Return a layer of a GPTQ checkpoint; see `kernels.from_gptq`. `activation` None: type of the scales."""
        known, tensors = _activation_of(scales, activation), (qweight, qzeros, scales, g_idx)
        return cls._of_tensors(from_gptq, tensors, bias, known, group_size=group_size, **options)

    @classmethod
    def from_mxfp4(cls, blocks: Any, scales: Any, *, bias: Any = None, activation: DType | str = "bf16") -> W4Linear:
        """Return a layer of MXFP4 weights of one matrix; see `kernels.pack_mxfp4`."""
        return cls._of_tensors(pack_mxfp4, (blocks, scales), bias, activation)

    @classmethod
    def from_nvfp4(
        cls, weight: Any, scales: Any, tensor_scale: Any = None, *, global_scale: Any = None, bias: Any = None,
        activation: DType | str = "bf16",
    ) -> W4Linear:  # fmt: skip
        """Return a layer of NVFP4 weights of one matrix; see `kernels.pack_nvfp4`."""
        tensors = weight, scales, tensor_scale
        return cls._of_tensors(pack_nvfp4, tensors, bias, activation, global_scale=_bits(global_scale))

    @property
    def activation(self) -> DType:
        """Type of x and y that the weights were packed for."""
        return ACTIVATION_OF_SCALES[self.scales.dtype]

    def to_packed(self) -> PackedLayer:
        """Return the weights and the bias as other functions take them, in the memory of the layer."""
        of_scales, of_bias = (layout.scales_dtype(mode, self.activation) for mode in (self.mode, WeightMode.COLUMN))
        permutation = None if self.permutation is None else _shared(self.permutation, "int32")
        packed = PackedW4(
            _shared(self.qweight, "uint32"), _shared(self.scales, of_scales), self.out_features, self.in_features,
            self.mode, self.group_size, self.activation, self.scale_unit, permutation,
        )  # fmt: skip
        return PackedLayer(packed, None if self.bias is None else _shared(self.bias, of_bias))

    # ---- as a module -----------------------------------------------------------------------------------------------

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Multiply; under autocast x is cast to the type of the weights, as `torch.nn.Linear` does.

        Raises:
            InvalidProblemError: x has another type, or another last dimension than `in_features`.
        """
        if x.device.type in _DEVICES and torch.is_autocast_enabled(x.device.type):
            x = x.to(TORCH_TYPE_OF[self.activation])
        return w4a16_linear(
            x, self.qweight, self.scales, self.permutation, self.bias,
            self.out_features, self.in_features, int(self.mode), self.group_size, self.scale_unit, self.is_fp8,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """Return the text in the brackets of the layer's repr."""
        group = f", group_size={self.group_size}" if self.group_size else ""
        order = "" if self.permutation is None else ", act_order=True"
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}, "
            f"mode={self.mode.name.lower()}{group}, activation={self.activation}{' as fp8' * self.is_fp8}{order}"
        )

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Any:
        """Move, and never cast: packed zero points are numbers that another type would round to others."""
        result = {name: self._buffers[name] for name in _FLOATS}
        held = {name: x.dtype for name, x in result.items() if x is not None and x.is_floating_point()}
        for name in held:
            self._buffers[name] = self._buffers[name].view(torch.int16)
        try:
            return super()._apply(fn, recurse)
        finally:
            for name, dtype in held.items():
                self._buffers[name] = self._buffers[name].view(dtype)

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}scale_unit"] = torch.tensor([self.scale_unit], dtype=torch.float32)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, metadata: Any, strict: bool,
        missing_keys: list[str], unexpected_keys: list[str], error_msgs: list[str],
    ) -> None:  # fmt: skip
        unit = state_dict.pop(f"{prefix}scale_unit", None)  # of the loader's own copy; it is no buffer
        scales, order = (state_dict.get(f"{prefix}{name}") for name in ("scales", "permutation"))
        refusal = None if scales is None else self._prepare(scales, order, unit)
        if refusal is not None:
            error_msgs.append(f"{prefix}{refusal}")
            return
        if unit is None:
            missing_keys.append(f"{prefix}scale_unit")
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing_keys, unexpected_keys, error_msgs)

    def _prepare(self, scales: torch.Tensor, order: torch.Tensor | None, unit: torch.Tensor | None) -> str | None:
        """Make the buffers those of a state that comes, or return why that cannot be."""
        if ACTIVATION_OF_SCALES.get(scales.dtype) is not self.activation:
            known = " or ".join(str(dtype) for dtype, of in ACTIVATION_OF_SCALES.items() if of is self.activation)
            return f"scales must be {known}, got {scales.dtype}: packed for another type"
        if order is not None and not _is_permutation(order, self.in_features):
            return f"permutation must be int32 with each of 0..{self.in_features - 1} once"
        for mode, group_size in _KINDS:
            shape = packed_shapes(self.out_features, self.in_features, mode, group_size)[1]
            if (tuple(scales.shape), scales.dtype) == (shape, scales_type(mode, self.activation)):
                self.mode, self.group_size = mode, group_size
                self.scales = self.scales.new_zeros(shape, dtype=scales.dtype)
        if unit is not None and not _is_unit(unit, self.mode):
            what = "positive number" if self.mode is WeightMode.NVFP4 else "power of 2"
            return f"scale_unit must be fp32 with one {what}"
        device = self.qweight.device
        self.permutation = None if order is None else torch.zeros(self.in_features, dtype=torch.int32, device=device)
        if unit is not None and not unit.is_meta:
            self.scale_unit = float(unit)
        return None


def replace_linears(
    model: torch.nn.Module, layers: Iterable[tuple[str, PackedLayer]], *, activation: DType | str | None = None
) -> int:  # fmt: skip
    """Put a `W4Linear` in the place of each linear layer that is named, on its device; return how many.

    Args:
        model: changed in place.
        layers: by the names that the model has for them, as `load_packed` and `pack_checkpoint` yield.
        activation: as for `W4Linear.from_packed`.

    Raises:
        InvalidProblemError: the model has no such layer, or one of other sizes; those before it are replaced.
    """
    count = 0
    for name, (packed, bias) in layers:
        above, _, own = name.rpartition(".")
        try:
            parent = model.get_submodule(above)
            old = parent.get_submodule(own)
        except AttributeError:
            raise InvalidProblemError(f"the model has no layer {shown(name)}") from None
        sizes = getattr(old, "in_features", None), getattr(old, "out_features", None)
        if sizes != (packed.K, packed.N):
            raise InvalidProblemError(
                f"layer {shown(name)} must have in_features and out_features {packed.K} and {packed.N}, as the packed "
                f"one has, got {sizes[0]} and {sizes[1]} ({type(old).__name__})"
            )
        new = W4Linear.from_packed(packed, bias, activation=activation)
        device = next((tensor.device for tensor in old.parameters()), torch.device("meta"))
        setattr(parent, own, new if device.type == "meta" else new.to(device))
        count += 1
    return count


def _is_fp8(activation: DType | str | None) -> bool:
    return activation is not None and parse_dtype(activation, what="activation") is DType.FP8


def _activation_of(scales: Any, activation: DType | str | None) -> DType:
    if activation is not None:
        return layout.parse_activation(activation)
    name = str(getattr(scales, "dtype", None)).removeprefix("torch.")
    known = {str(dtype).removeprefix("torch."): result for dtype, result in ACTIVATION_OF.items()}
    if name not in known:
        raise InvalidProblemError(f"scales are {name}: say in which activation, fp16 or bf16, to run")
    return known[name]


def _bits(x: Any) -> Any:
    """Return a tensor as an array, 8-bit floats as their bits; anything else as it is."""
    if not isinstance(x, torch.Tensor):
        return x
    return _array(x.view(torch.uint8) if x.element_size() == 1 else x)


def _array(x: torch.Tensor) -> Any:
    """Return a tensor as an array of numpy or CuPy, which have no bf16: that comes as fp32."""
    plain = x.detach()
    plain = (plain.float() if plain.dtype is torch.bfloat16 else plain).contiguous()
    return import_cupy().from_dlpack(plain) if plain.is_cuda else plain.numpy()


def _bias(given: Any, packed: PackedW4) -> torch.Tensor:
    dtype = TORCH_TYPE_OF[packed.activation]
    if isinstance(given, torch.Tensor):
        if tuple(given.shape) != (packed.N,):
            raise InvalidProblemError(f"bias must be of shape [{packed.N}], got {list(given.shape)}")
        return given.detach().to(dtype, copy=True)
    array = layout.as_array(given, "bias")
    stored = layout.encode(array, packed.activation) if array.dtype.kind == "f" else array
    layout.check_array("bias", stored, layout.scales_dtype(WeightMode.COLUMN, packed.activation), (packed.N,))
    return _tensor(stored, dtype)


def _shared(tensor: torch.Tensor, dtype: str) -> Any:
    """Return the memory of a tensor as an array of another type of the same size."""
    bits = tensor.detach().view(getattr(torch, _TYPE_OF_BYTES[tensor.element_size()]))
    return (import_cupy().from_dlpack(bits) if bits.is_cuda else bits.numpy()).view(dtype)


def _tensor(array: Any, dtype: torch.dtype) -> torch.Tensor:
    """Return a copy of an array, as a tensor of a type of the same size."""
    bits = array.view(_TYPE_OF_BYTES[array.dtype.itemsize])
    copied = torch.from_numpy(bits.copy()) if isinstance(bits, numpy.ndarray) else torch.from_dlpack(bits.copy())
    return copied.view(dtype)


def _is_permutation(order: torch.Tensor, length: int) -> bool:
    if order.dtype is not torch.int32 or tuple(order.shape) != (length,):
        return False
    return order.is_meta or bool((order.sort().values == torch.arange(length, device=order.device)).all())


def _is_unit(unit: torch.Tensor, mode: WeightMode) -> bool:
    if unit.dtype is not torch.float32 or tuple(unit.shape) != (1,):
        return False
    if unit.is_meta:
        return True
    number = float(unit)
    return 0 < number < math.inf and (mode is WeightMode.NVFP4 or math.frexp(number)[0] == 0.5)
