"""Our kernels for 4-bit weights and e4m3 tokens, each config by itself; tokens are quantized before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval.device import Rows
from gemm_eval.dtypes import DType
from gemm_eval.kernels import QuantizedTokens, dequantize_tokens, padded_k, quantize_rows, quantized_bytes
from gemm_eval.measure.shapes import KernelItem
from gemm_eval.measure.w4a16 import W4A16Runner


class W4A8Runner(W4A16Runner):
    """Our kernels for 4-bit weights with e4m3 tokens; C has the type that is asked for, fp16 or bf16."""

    kernel = "w4a8"
    is_fp8 = True

    def __init__(self, dtype: str) -> None:
        super().__init__(dtype)
        self.input_dtype = str(DType.FP8)
        self._quantized: tuple[int, int] | None = None

    def allocate(self, shapes: Sequence[KernelItem], pool_bytes: int) -> None:
        """See `Runner`: beside activations, room for those of any shape quantized."""
        super().allocate(shapes, pool_bytes)
        self.buffers["T"] = self.empty_bytes(max(quantized_bytes(max(s.M, 40), max(s.K, 512)) for s in shapes))
        self._quantized = None

    def _tokens_of(self, item: KernelItem) -> tuple[int, int]:
        to, row = self.buffers["T"].data.ptr, padded_k(item.K)
        if self._quantized != (item.M, item.K):
            a = Rows(self.buffers["A"].data.ptr, item.M, item.K, item.K)
            quantize_rows(a, self.activation, 0, to, 0, self.stream.ptr)
            self._quantized = item.M, item.K
        return to, row

    def _inputs_of(self, item: KernelItem, rows: Any) -> npt.NDArray[np.float64]:
        """See `W4A16Runner`: what their bytes mean."""
        self.synchronize()
        tokens = QuantizedTokens(self.cupy.asnumpy(self.buffers["T"]), (item.M, item.K))
        chosen = self.cupy.asnumpy(rows) if not isinstance(rows, slice) else rows
        return np.asarray(dequantize_tokens(tokens)[chosen])

    def describe(self) -> Mapping[str, Any]:  # type: ignore[override]
        description = super().describe()
        return description | {
            "data": f"{description['data']}; A rounded to e4m3 with a scale for each row, before it is timed"
        }
