"""Tokens in e4m3: activations, each token rounded by a scale of its own, in the order of k that W4A8 kernels read.

The kernel that rounds is in quantize.cu; tables of kernels do not depend on it.
"""

import math
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy

from gemm_eval.device import Rows, compile_text, runtime
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidProblemError
from gemm_eval.kernels.call import GATHER_ALIGNMENT_BYTES
from gemm_eval.kernels.families import ceil_div
from gemm_eval.kernels.families.sm90_fp8 import TOKEN_K, correction_bytes
from gemm_eval.kernels.layout import e4m3_values, module_of

_ENTRY = "gemm_eval_quantize"
_THREADS, _CTAS_PER_SM = 256, 8
_SCALE_BYTES = 4
_PLACES = numpy.array([2 * (byte // 4) + byte % 4 // 2 + 8 * (byte % 2) for byte in range(16)])
"""The k that each of 16 bytes is of: packed words have k, k + 8, k + 1 and k + 9 of a column in a row."""
_SIGN = 0x80


class QuantizedTokens(NamedTuple):
    """Activations in e4m3 with a scale for each token, as `quantize_tokens` returns them.

    Attributes:
        data: uint8: of each token K bytes, padded with 0 to a multiple of 128, with the sign turned where k % 16 >= 8;
            then the corrections of all tokens (KERNELS.md), and their scales, float32.
        shape: of the activations, [..., M, K].
    """

    data: Any
    shape: tuple[int, ...]

    @property
    def num_rows(self) -> int:
        """M: all dimensions but the last."""
        return math.prod(self.shape[:-1])

    def rows_for(self, K: int, device: int) -> Rows:
        """Return the rows of bytes, for weights with `K` rows on a GPU."""
        if self.shape[-1] != K or self.data.device.id != device:
            raise InvalidProblemError(
                f"A must have {K} columns on GPU {device}, as the weights have rows, got {self.shape[-1]} on GPU "
                f"{self.data.device.id}"
            )
        return Rows(self.data.data.ptr, self.num_rows, K, padded_k(K))


def padded_k(K: int) -> int:
    """Bytes of a token."""
    return ceil_div(K, TOKEN_K) * TOKEN_K


def quantized_bytes(M: int, K: int) -> int:
    """Memory of quantized tokens [M, K] and their scales, rounded up so that what follows is aligned."""
    of_token = padded_k(K) + correction_bytes(K) + _SCALE_BYTES
    return ceil_div(M * of_token, GATHER_ALIGNMENT_BYTES) * GATHER_ALIGNMENT_BYTES


def quantize_rows(a: Rows, activation: DType, permutation: int, out: int, device: int, stream: int) -> Rows:
    """Queue the quantization of rows on the current GPU, and return the rows of bytes.

    `permutation` (0: none) and `out` are addresses at multiples of 16 bytes, of int32 [K] and of `quantized_bytes`.
    """
    limits, width = runtime.limits_of_device(device), padded_k(a.num_columns)
    macros = {"THREADS": _THREADS, "ACT_BF16": int(activation is DType.BF16)}
    compiled = compile_text(_text(), _ENTRY, f"sm_{limits.compute_capability[0]}0", macros)
    corrections = out + a.num_rows * width
    scales = corrections + a.num_rows * correction_bytes(a.num_columns)
    arguments = (
        *map(numpy.uint64, (a.address, permutation, out, corrections, scales)), numpy.int32(a.num_rows),
        numpy.int32(a.num_columns), numpy.int64(a.stride),
    )  # fmt: skip
    function = runtime.load_function(compiled, device, 0, stream)
    grid = (min(a.num_rows, _CTAS_PER_SM * limits.num_sms), 1, 1)
    function(grid, (_THREADS, 1, 1), arguments, 0, runtime.StreamHandle(stream))
    return Rows(out, a.num_rows, a.num_columns, width)


@cache
def _text() -> str:
    return Path(__file__).with_name("quantize.cu").read_text("utf-8")


def dequantize_tokens(tokens: QuantizedTokens) -> Any:
    """Return what quantized tokens mean, float64 [M, K], exactly; columns are in the order of the weights' rows."""
    xp = module_of(tokens.data)
    M, K = tokens.num_rows, tokens.shape[-1]
    num_bytes = M * padded_k(K)
    stored = tokens.data[:num_bytes]
    values = e4m3_values(stored & (_SIGN - 1)) * xp.where(stored & _SIGN, -1.0, 1.0)
    in_order = xp.empty((num_bytes // 16, 16))
    in_order[:, _PLACES] = values.reshape(-1, 16)
    in_order[:, 8:] *= -1.0
    at = num_bytes + M * correction_bytes(K)
    scales = tokens.data[at : at + M * _SCALE_BYTES].view(xp.float32)
    return in_order.reshape(M, -1)[:, :K] * scales[:, None].astype(xp.float64)
