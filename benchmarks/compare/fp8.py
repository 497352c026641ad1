"""Engines with tokens in e4m3: our W4A8 kernels, humming-kernels' and PyTorch's fp8 GEMM, beside our W4A16 kernels.

Tokens are rounded before anything is timed, by each engine as it wants them: with a scale for each, in PyTorch for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from benchmarks.compare.engines import Engine, OurEngine, as_tensor, import_torch, short_config, why_no_torch
from benchmarks.compare.humming import HummingEngine, HummingWeights
from benchmarks.compare.operands import Gemm, Offsets, Weights
from gemm_eval.device import Call, limits_of_device
from gemm_eval.dtypes import DType
from gemm_eval.kernels import PackedW4, Sizes, choose, make_variant, quantize_tokens, spec_of_device, w4a8_gemm
from gemm_eval.kernels.families import family_of
from gemm_eval.mapping import KernelConfig
from gemm_eval.measure.w4a16 import build_all

_MAX_ERROR = 0.04  # of normal tokens that are rounded to e4m3, 0.026 of each; weights of `ScaledMmEngine` likewise
_LARGEST_E4M3 = 448.0


class OurFp8Engine(OurEngine):
    """`w4a8_gemm(tokens, packed, out=C)` by `config="auto"`, on `quantize_tokens(A, packed)`."""

    max_error: ClassVar[float | None] = _MAX_ERROR

    def describe(self) -> str:
        return f"{super().describe()}, w4a8_gemm"

    def prepare(self, gemms: Sequence[Gemm]) -> None:
        variants = []
        for gemm in gemms:
            config = _chosen(gemm)
            compiled = family_of(config).compiled(config)
            variants.append(make_variant(compiled, gemm.activation, gemm.mode, gemm.group_size))
        build_all(list(dict.fromkeys(variants)), limits_of_device(0))

    def call(self, gemm: Gemm, packed: list[PackedW4], offsets: Offsets, on_gpu: Any) -> Call:  # noqa: ARG002
        a, c = self.arrays(gemm)
        tokens = self.once(gemm, lambda: quantize_tokens(a, packed[0], self.device.stream))
        return partial(w4a8_gemm, tokens, packed[0], out=c, stream=self.device.stream)

    def config(self, gemm: Gemm) -> str:
        return short_config(_chosen(gemm))


def _chosen(gemm: Gemm) -> KernelConfig:
    sizes, types = Sizes(gemm.tokens, gemm.layer.K, gemm.layer.N), (gemm.activation, gemm.mode, gemm.group_size)
    return choose(sizes, *types, spec_of_device(0), limits_of_device(0), is_fp8=True)


class W4A16Engine(OurEngine):
    """Our kernels for 16-bit tokens, on A as it is."""

    name: ClassVar[str] = "w4a16"

    def describe(self) -> str:
        return f"{super().describe()}, w4a16_gemm"


class HummingFp8Engine(HummingEngine):
    """Its layers with `input_config` of e4m3 and a scale for each token."""

    max_error: ClassVar[float | None] = _MAX_ERROR
    input_dtype: ClassVar[str] = "float8e4m3"

    def call(self, gemm: Gemm, packed: HummingWeights, offsets: Offsets, on_gpu: Any) -> Call:
        launch = super().call(gemm, packed, offsets, on_gpu)
        assert isinstance(launch, partial)
        tokens, scales = self.once(gemm, lambda: _rounded(launch.keywords["inputs"], -1))
        return partial(launch, inputs=tokens, input_scale=scales)


class ScaledMmEngine(Engine[tuple[Any, Any]]):
    """`torch._scaled_mm` of e4m3 tokens and e4m3 weights, a scale for each matrix: cuBLAS's fp8 kernels."""

    name: ClassVar[str] = "scaled-mm"
    needs_torch: ClassVar[bool] = True
    max_error: ClassVar[float | None] = _MAX_ERROR

    @classmethod
    def why_missing(cls) -> str | None:
        return why_no_torch()

    def describe(self) -> str:
        return f"torch {import_torch().__version__}"

    def pack(self, experts: Sequence[Weights]) -> tuple[Any, Any]:
        (weights,) = experts
        return _rounded(as_tensor(weights.dense(), is_bf16=weights.activation is DType.BF16))

    def copy(self, packed: tuple[Any, Any]) -> tuple[Any, Any]:
        return packed[0].clone(), packed[1]

    def num_bytes(self, packed: tuple[Any, Any]) -> int:
        return int(packed[0].numel())

    def call(self, gemm: Gemm, packed: tuple[Any, Any], offsets: Offsets, on_gpu: Any) -> Call:  # noqa: ARG002
        torch = import_torch()
        a, c = (as_tensor(array, is_bf16=gemm.activation is DType.BF16) for array in self.arrays(gemm))
        tokens, scale = self.once(gemm, lambda: _rounded(a))
        return partial(
            torch._scaled_mm, tokens, packed[0].t(), scale_a=scale, scale_b=packed[1], out_dtype=c.dtype, out=c,
            use_fast_accum=True,
        )  # fmt: skip


def _rounded(x: Any, *dims: int) -> tuple[Any, Any]:
    """Return a tensor in e4m3 and its scale: of all, or of each row where `dims` is -1."""
    torch = import_torch()
    wide = x.float()
    scale = wide.abs().amax(*dims, keepdim=True) / _LARGEST_E4M3 if dims else wide.abs().amax() / _LARGEST_E4M3
    return (wide / scale).to(torch.float8_e4m3fn), scale.contiguous()
