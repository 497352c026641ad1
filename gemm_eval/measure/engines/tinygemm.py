"""PyTorch's int4 GEMM, "tinygemm": `torch._weight_int4pack_mm`."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, NamedTuple

from gemm_eval.device import BenchDevice, TimingProtocol
from gemm_eval.dtypes import DType
from gemm_eval.errors import UnsupportedError
from gemm_eval.extras import install_command
from gemm_eval.measure.engines.base import Bound, Engine
from gemm_eval.measure.engines.operands import DenseGemm, Operands, Weights
from gemm_eval.measure.engines.torch_tensors import as_tensor, import_torch, why_no_torch

__all__ = ["TinygemmEngine"]

_INNER_K_TILES = 8
_K_MULTIPLE, _N_MULTIPLE = 16 * _INNER_K_TILES, 8


class _Packed(NamedTuple):
    """Words of 4-bit weights, and scale and zero point of each group: bf16 [G, N, 2]."""

    words: Any
    scales_and_zeros: Any


class TinygemmEngine(Engine[_Packed]):
    """Made for a few rows; takes bf16 only, so fp16 activations are converted, untimed."""

    name: ClassVar[str] = "tinygemm"
    largest_rows: ClassVar[int | None] = 64
    needs_torch: ClassVar[bool] = True

    def __init__(self, device: BenchDevice, operands: Operands, protocol: TimingProtocol) -> None:
        super().__init__(device, operands, protocol)
        self._torch = import_torch()
        self._result: Any = None

    @classmethod
    def why_missing(cls) -> str | None:
        """See `Engine`."""
        if (reason := why_no_torch()) is not None:
            return reason
        if not hasattr(import_torch(), "_weight_int4pack_mm"):
            return f"this PyTorch has no int4 GEMM: {install_command('torch')}"
        return None

    def describe(self) -> str:
        """See `Engine`."""
        return f"torch._weight_int4pack_mm of torch {self._torch.__version__}, bf16"

    def pack(self, weights: Weights) -> _Packed:
        """See `Engine`.

        Raises:
            UnsupportedError: sizes that it does not take.
        """
        if weights.K % _K_MULTIPLE or weights.N % _N_MULTIPLE:
            raise UnsupportedError(
                f"{self.name} takes K that is a multiple of {_K_MULTIPLE} and N of {_N_MULTIPLE}, got K={weights.K}, "
                f"N={weights.N}"
            )
        torch = self._torch
        integers = as_tensor(weights.integers)
        pairs = (integers[:, ::2] << 4) | integers[:, 1::2]
        scales = as_tensor(weights.scales).to(torch.bfloat16).T
        both = torch.stack([scales, torch.zeros_like(scales)], dim=2).contiguous()
        return _Packed(torch._convert_weight_to_int4pack(pairs.contiguous(), _INNER_K_TILES), both)

    def copy(self, packed: _Packed) -> _Packed:
        """See `Engine`."""
        return _Packed(*(tensor.clone() for tensor in packed))

    def num_bytes(self, packed: _Packed) -> int:
        """See `Engine`."""
        return sum(tensor.numel() * tensor.element_size() for tensor in packed)

    def bind(self, gemm: DenseGemm) -> Bound:
        """See `Engine`."""
        inputs = as_tensor(self.operands.inputs(gemm.M, gemm.K), is_bf16=gemm.activation is DType.BF16).to(
            self._torch.bfloat16
        )
        calls = [partial(self._run, inputs, packed, gemm.group_size) for packed in self.copies]
        return Bound(calls, self._read, "bf16", "")

    def _run(self, inputs: Any, packed: _Packed, group_size: int) -> None:
        self._result = self._torch._weight_int4pack_mm(inputs, packed.words, group_size, packed.scales_and_zeros)

    def _read(self) -> Any:
        return self.device.cupy.asarray(self._result.view(self._torch.int16)).view("uint16")
