"""Operands, reference results and checks of the Triton kernels in this folder; needs PyTorch and a GPU."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from triton_gemm import gemm_kernel, workspaces
from triton_w4a16_gemm import pack_weights, w4a16_kernel

TORCH_DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn}
_ZERO_POINT = 8


class Operands(NamedTuple):
    """What a kernel is launched with, and what its result must be.

    Attributes:
        kernel: the kernel, before it is tuned.
        args: its positional arguments.
        meta: its arguments by name that no config sets.
        c: [M, N], the result.
        a, b: [M, K] and [N, K], what is multiplied, dequantized.
    """

    kernel: Any
    args: tuple[Any, ...]
    meta: dict[str, Any]
    c: torch.Tensor
    a: torch.Tensor
    b: torch.Tensor

    def reference(self) -> torch.Tensor:
        """[M, N], in float64."""
        return self.a.double() @ self.b.double().t()

    @property
    def named(self) -> dict[str, Any]:
        """The positional arguments by name."""
        return dict(zip(self.kernel.arg_names, self.args, strict=False))


def make_operands(M: int, N: int, K: int, dtype: str, *, group_size: int = 0, seed: int = 0) -> Operands:
    """Random operands of a GEMM; with a `group_size`, weights are 4 bits wide and scaled by group.

    `dtype`: fp16, bf16 or fp8 (E4M3, result in fp16), of the activations where weights are 4 bits wide.
    """
    generator = torch.Generator("cuda").manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.float16, generator=generator)

    torch_dtype = TORCH_DTYPES[dtype]
    a = normal(M, K).to(torch_dtype)
    c = torch.full((M, N), float("nan"), device="cuda", dtype=torch.float16 if dtype == "fp8" else torch_dtype)
    parts, counts = workspaces(M, N, c.device)
    if not group_size:
        b = (normal(N, K) * K**-0.5).to(torch_dtype)
        return Operands(gemm_kernel, (a, b, c, parts, counts, M, N, K, K, K, N), {}, c, a, b)
    q = torch.randint(0, 16, (N, K), device="cuda", dtype=torch.uint8, generator=generator)
    scales = ((0.5 + torch.rand(K // group_size, N, device="cuda", generator=generator)) * 0.2 * K**-0.5).to(
        torch_dtype
    )
    packed = pack_weights(q)
    b = (q.to(torch_dtype) - _ZERO_POINT) * scales.t().repeat_interleave(group_size, dim=1)
    args = (a, packed, scales, c, parts, counts, M, N, K, K, K // 2, N)
    return Operands(w4a16_kernel, args, {"GROUP_SIZE": group_size}, c, a, b)


def relative_error(c: torch.Tensor, reference: torch.Tensor) -> float:
    """|c - reference| / |reference|; NaN where an element was not written."""
    return float((c.double() - reference).norm() / reference.norm())
