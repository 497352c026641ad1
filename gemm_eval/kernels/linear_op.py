"""The torch operator `gemm_eval::w4a16_linear`: x W + bias, in eager mode, under torch.compile and in CUDA graphs.

On a GPU it is `w4a16_gemm`, or `w4a8_gemm` where tokens are rounded to e4m3. On a CPU it dequantizes and multiplies in
fp32: a reference, not a fast path. Its gradient with respect to x and bias multiplies with dequantized weights; weights
themselves have none.
"""

from functools import lru_cache
from typing import Any

import numpy

from gemm_eval.device import import_cupy
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidProblemError
from gemm_eval.kernels import layout
from gemm_eval.kernels.families import WeightMode, ceil_div
from gemm_eval.kernels.gemm import w4a8_gemm, w4a16_gemm, workspace_bytes
from gemm_eval.kernels.weights import PackedW4
from gemm_eval.words import needs_extra

with needs_extra("W4Linear", "torch"):
    import torch

TORCH_TYPE_OF = {DType.FP16: torch.float16, DType.BF16: torch.bfloat16}
ACTIVATION_OF = {dtype: activation for activation, dtype in TORCH_TYPE_OF.items()}
_BYTE_TYPE_OF = {DType.FP16: torch.uint8, DType.BF16: torch.int8}
ACTIVATION_OF_SCALES = ACTIVATION_OF | {dtype: activation for activation, dtype in _BYTE_TYPE_OF.items()}
"""Which activations packed scales are for. Bytes of the fp4 modes differ by it, and so does their type."""

_NAME = "gemm_eval::w4a16_linear"
_ALIGNMENT_BYTES = 16
_ROW_MULTIPLE = 8
_MAX_STRIDE = (1 << 31) - 1
_LARGEST_E4M3, _LEAST_SCALED = 448.0, 1e-30  # as in quantize.cu
_KNOWN_WEIGHTS = 1 << 16


@lru_cache(maxsize=_KNOWN_WEIGHTS)
def packed_shapes(N: int, K: int, mode: int, group_size: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of the packed words and of the packed scales of weights [K, N]; `group_size` is 0 in mode COLUMN."""
    num_column_blocks, num_k_blocks = ceil_div(N, layout.BLOCK_COLUMNS), layout.k_blocks(K)
    rows = layout.scale_rows(WeightMode(mode), num_k_blocks, group_size)
    return (num_column_blocks, num_k_blocks, 4, 32, 4), layout.scales_shape(WeightMode(mode), num_column_blocks, rows)


def scales_type(mode: WeightMode, activation: DType) -> torch.dtype:
    """Type of packed scales: that of the activations, or bytes in the fp4 modes."""
    return _BYTE_TYPE_OF[activation] if mode.is_fp4 else TORCH_TYPE_OF[activation]


def dequantize_tensors(
    qweight: torch.Tensor, scales: torch.Tensor, permutation: torch.Tensor | None, N: int, K: int, mode: int,
    group_size: int, scale_unit: float,
) -> torch.Tensor:  # fmt: skip
    """Return the weights [K, N] that packed tensors mean, in fp32: `kernels.dequantize` in torch's operations."""
    known = WeightMode(mode)
    if known.is_fp4:
        values, result = _fp4_values(qweight, scales, known)
    else:
        integers = _unpacked(qweight)
        result, zeros = _unpacked_scales(scales, known)
        values = integers - zeros.repeat_interleave(group_size or len(integers), 0)
    weights = (result.repeat_interleave(group_size or len(values), 0) * values * scale_unit)[:K, :N]
    if permutation is None:
        return weights
    return torch.empty_like(weights).index_copy(0, permutation.long(), weights)


def _unpacked(words: torch.Tensor) -> torch.Tensor:
    """int32 [NB, KB, 4, 32, 4] to fp32 [64 KB, 64 NB]; see `layout.unpack_words`."""
    num_n, num_k = words.shape[:2]
    moved = words.reshape(num_n, num_k, 4, 8, 4, 4).permute(1, 5, 4, 0, 2, 3)  # kb, j, t, nb, w, g
    of_k = []
    for r in range(2):
        halves = [[(moved >> (16 * p + 8 * r + 4 * h)) & 15 for h in range(2)] for p in range(2)]
        of_k.append(torch.stack([torch.stack(both, -2) for both in halves], 3))  # kb, j, t, p, nb, w, h, g
    return torch.stack(of_k, 2).reshape(num_k * layout.BLOCK_K, num_n * layout.BLOCK_COLUMNS).float()


def _unpacked_scales(stored: torch.Tensor, mode: WeightMode) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales and zero points, fp32 [GB, 64 NB]; see `layout.unpack_scales`."""
    values = stored.float()
    if mode is WeightMode.COLUMN:
        return values.reshape(1, -1), torch.full_like(values, layout.MIDDLE).reshape(1, -1)
    pairs = values.reshape(*values.shape[:2], layout.BLOCK_COLUMNS // 2, -1)
    scales = _from_pairs(pairs[..., :2])
    if mode is WeightMode.GROUP:
        return scales, torch.full_like(scales, layout.MIDDLE)
    biases = torch.tensor(layout.BIASES[ACTIVATION_OF[stored.dtype]], dtype=torch.float32, device=stored.device)
    return scales, _from_pairs(-pairs[..., 2:] - biases)


def _fp4_values(words: torch.Tensor, stored: torch.Tensor, mode: WeightMode) -> tuple[torch.Tensor, torch.Tensor]:
    """Values of codes [64 KB, 64 NB] and of scales [groups, 64 NB], fp32; see `layout`."""
    activation = ACTIVATION_OF_SCALES[stored.dtype]
    natural = torch.zeros_like(words)
    for by, bits in layout.MOVES[activation].items():
        moved = words >> by if by >= 0 else words << -by
        natural |= moved & (bits - (1 << 32) if bits >> 31 else bits)
    codes = torch.tensor(layout.E2M1_VALUES, device=words.device)[_unpacked(natural).long()]
    of_byte = layout.stored_values(numpy.arange(256, dtype=numpy.uint8), mode, activation).astype(numpy.float32)
    values = torch.from_numpy(of_byte).to(stored.device)[stored.view(torch.uint8).long()]
    num_n, num_k, pairs, of_pair = values.shape
    in_order = values.reshape(num_n, num_k, pairs, of_pair // 2, 2).transpose(2, 3)
    return codes, _from_pairs(in_order.reshape(num_n, -1, pairs, 2))


def _from_pairs(pairs: torch.Tensor) -> torch.Tensor:
    num_n, num_groups = pairs.shape[:2]
    split = pairs.reshape(num_n, num_groups, 4, 8, 2)
    return split.permute(1, 0, 2, 4, 3).reshape(num_groups, num_n * layout.BLOCK_COLUMNS)


def _check(
    x: torch.Tensor, qweight: torch.Tensor, scales: torch.Tensor, permutation: torch.Tensor | None,
    bias: torch.Tensor | None, N: int, K: int, mode: int, group_size: int, scale_unit: float, is_fp8: bool = False,
) -> None:  # fmt: skip
    if is_fp8 and mode not in (WeightMode.COLUMN, WeightMode.GROUP):
        raise InvalidProblemError(f"tokens in fp8 need weights of mode column or group, got {WeightMode(mode).name}")
    if not scale_unit > 0:
        raise InvalidProblemError(f"scale_unit must be a positive number, got {scale_unit}")
    activation = ACTIVATION_OF_SCALES.get(scales.dtype)
    dtype = scales.dtype if activation is None else TORCH_TYPE_OF[activation]
    if x.dtype != dtype or activation is None:
        raise InvalidProblemError(
            f"x must be {dtype}, the type that the weights were packed for, got {x.dtype}; cast it, or pack the "
            "weights for its type (activation)"
        )
    if x.ndim < 1 or x.shape[-1] != K:
        raise InvalidProblemError(f"x must have shape [..., {K}], got {list(x.shape)}")
    words, of_scales = packed_shapes(N, K, mode, group_size)
    _check_tensor("qweight", qweight, torch.int32, words, x)
    _check_tensor("scales", scales, scales_type(WeightMode(mode), activation), of_scales, x)
    if permutation is not None:
        _check_tensor("permutation", permutation, torch.int32, (K,), x)
    if bias is not None:
        _check_tensor("bias", bias, dtype, (N,), x)


def _check_tensor(what: str, tensor: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...], x: torch.Tensor) -> None:
    if tensor.dtype != dtype or tensor.shape != shape:
        raise InvalidProblemError(f"{what} must be {dtype} {list(shape)}, got {tensor.dtype} {list(tensor.shape)}")
    if tensor.device != x.device:
        raise InvalidProblemError(f"x must be on {tensor.device}, where the layer's {what} is, got {x.device}")


def _fake(x: torch.Tensor, *operands: Any) -> torch.Tensor:
    _check(x, *operands)
    N = operands[4]
    return x.new_empty((*x.shape[:-1], N))


def _on_cpu(
    x: torch.Tensor, qweight: torch.Tensor, scales: torch.Tensor, permutation: torch.Tensor | None,
    bias: torch.Tensor | None, N: int, K: int, mode: int, group_size: int, scale_unit: float, is_fp8: bool = False,
) -> torch.Tensor:  # fmt: skip
    facts = N, K, mode, group_size, scale_unit
    _check(x, qweight, scales, permutation, bias, *facts, is_fp8)
    result = (rounded_tokens(x) if is_fp8 else x.float()) @ dequantize_tensors(qweight, scales, permutation, *facts)
    return (result if bias is None else result + bias.float()).to(x.dtype)


def rounded_tokens(x: torch.Tensor) -> torch.Tensor:
    """Return x, fp32, with each row rounded to e4m3 by a scale of its own, as `quantize_tokens` does."""
    wide = x.float()
    scale = wide.abs().amax(-1, keepdim=True).clamp_min(_LEAST_SCALED) / _LARGEST_E4M3
    return (wide / scale).to(torch.float8_e4m3fn).float() * scale


def _on_gpu(
    x: torch.Tensor, qweight: torch.Tensor, scales: torch.Tensor, permutation: torch.Tensor | None,
    bias: torch.Tensor | None, N: int, K: int, mode: int, group_size: int, scale_unit: float, is_fp8: bool = False,
) -> torch.Tensor:  # fmt: skip
    _check(x, qweight, scales, permutation, bias, N, K, mode, group_size, scale_unit, is_fp8)
    out = x.new_empty((*x.shape[:-1], N))
    if not out.numel():
        return out
    rows = _readable(x.reshape(-1, K))
    with torch.cuda.device(x.device):
        addresses = [0 if tensor is None else _address(tensor) for tensor in (qweight, scales, permutation)]
        packed = _packed_at(*addresses, N, K, mode, group_size, scale_unit, scales.dtype, _device_of(x))
        workspace = None
        # Memory of a graph has to be torch's own; so is that of gathered or rounded activations, which may be large.
        if permutation is not None or is_fp8 or torch.cuda.is_current_stream_capturing():
            num_bytes = workspace_bytes(rows.shape[0], packed, is_fp8=is_fp8)
            workspace = torch.empty(num_bytes, dtype=torch.uint8, device=x.device) if num_bytes else None
        stream = torch.cuda.current_stream(x.device).cuda_stream
        multiply = w4a8_gemm if is_fp8 else w4a16_gemm
        multiply(rows, packed, bias, out=out.view(-1, N), stream=stream, workspace=workspace)
    return out


def _readable(rows: torch.Tensor) -> torch.Tensor:
    """Rows as kernels read them: contiguous, each at a multiple of 16 bytes; a copy if they lie otherwise."""
    step = rows.stride(0) if len(rows) > 1 else rows.shape[1]
    is_readable = rows.stride(1) == 1 and rows.shape[1] <= step <= _MAX_STRIDE and step % _ROW_MULTIPLE == 0
    if is_readable and rows.data_ptr() % _ALIGNMENT_BYTES == 0:
        return rows
    return rows.clone(memory_format=torch.contiguous_format)


def _device_of(x: torch.Tensor) -> int:
    return int(x.device.index)


def _address(tensor: torch.Tensor) -> int:
    if not tensor.is_contiguous():
        raise InvalidProblemError("packed tensors must be contiguous: kernels are given their addresses only")
    return int(tensor.data_ptr())


@lru_cache(maxsize=_KNOWN_WEIGHTS)
def _packed_at(
    qweight: int, scales: int, permutation: int, N: int, K: int, mode: int, group_size: int, scale_unit: float,
    dtype: Any, device: int,
) -> PackedW4:  # fmt: skip
    """Packed weights at these addresses, which hold no memory: right for whatever tensors of these sizes lie there."""
    cupy = import_cupy()

    def array(address: int, shape: tuple[int, ...], kind: str) -> Any:
        num_bytes = cupy.dtype(kind).itemsize
        for size in shape:
            num_bytes *= size
        memory = cupy.cuda.UnownedMemory(address, num_bytes, None, device)
        return cupy.ndarray(shape, kind, cupy.cuda.MemoryPointer(memory, 0))

    words, of_scales = packed_shapes(N, K, mode, group_size)
    activation = ACTIVATION_OF_SCALES[dtype]
    return PackedW4(
        array(qweight, words, "uint32"),
        array(scales, of_scales, layout.scales_dtype(WeightMode(mode), activation)),
        N, K, WeightMode(mode), group_size, activation, scale_unit,
        array(permutation, (K,), "int32") if permutation else None,
    )  # fmt: skip


def _save(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:  # noqa: ARG001  torch names them
    _, qweight, scales, permutation, _, *facts = inputs
    ctx.save_for_backward(qweight, scales, permutation)
    ctx.facts = facts


def _gradient(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    of_x = of_bias = None
    if ctx.needs_input_grad[0]:
        weights = dequantize_tensors(*ctx.saved_tensors, *ctx.facts[:5])  # rounding of tokens counts as none
        of_x = gradient @ weights.to(gradient.dtype).t()
    if ctx.needs_input_grad[4]:
        of_bias = gradient.reshape(-1, gradient.shape[-1]).sum(0)
    return of_x, None, None, None, of_bias, None, None, None, None, None, None


_library = torch.library.Library("gemm_eval", "DEF")
_library.define(
    "w4a16_linear(Tensor x, Tensor qweight, Tensor scales, Tensor? permutation, Tensor? bias, "
    "int N, int K, int mode, int group_size, float scale_unit, bool is_fp8=False) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.impl("w4a16_linear", _on_cpu, "CPU")
_library.impl("w4a16_linear", _on_gpu, "CUDA")
torch.library.register_fake(_NAME, _fake, lib=_library)
torch.library.register_autograd(_NAME, _gradient, setup_context=_save, lib=_library)

w4a16_linear = torch.ops.gemm_eval.w4a16_linear.default
"""The operator; its tensors are as `W4Linear` holds them."""
