"""A W4A16 GEMM in Triton: C[M,N] = A[M,K] x dequantize(W)[N,K]^T, W of 4 bits in groups with a scale each.

Weights are packed once, whatever the config: byte j of a run of 64 bytes holds k = j of 128 k in its low four bits and
k = 64 + j in its high ones. So a byte's halves belong to two products with k contiguous in each, and no config has to
shuffle weights between threads. The product is computed as C^T = W x A^T, because the tensor cores of Hopper take their
first operand from registers, where the weights are unpacked; the second one, A, is read from shared memory.

    from triton_w4a16_gemm import pack_weights, w4a16_gemm  # on a machine with a GPU and PyTorch
    C = w4a16_gemm(A, pack_weights(q), scales)  # A[M,K], q[N,K] of 0 to 15, scales[K/group,N]; W = (q - 8) * scale
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton_gemm import store_tile, tile_of, workspaces

from gemm_eval.autotune.triton import KernelArguments, autotune

KEY = ["M", "N", "K"]
ARGUMENTS = KernelArguments(b="w_ptr", weight_dtype="int4", group_size="GROUP_SIZE")


@triton.jit
def unpack_fp16(packed):
    """Four bytes to eight fp16, exactly q - 8: 0x6400 is 1024, and below it stand the mantissa's ten bits."""
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 even, odd, bias, sixteenth, high_bias;
        mov.b32 bias, 0x64086408;
        mov.b32 sixteenth, 0x2c002c00;
        mov.b32 high_bias, 0xd480d480;
        prmt.b32 even, $4, 0, 0x4140;
        prmt.b32 odd, $4, 0, 0x4342;
        lop3.b32 $0, even, 0x000f000f, 0x64006400, 0xea;
        lop3.b32 $1, odd, 0x000f000f, 0x64006400, 0xea;
        lop3.b32 $2, even, 0x00f000f0, 0x64006400, 0xea;
        lop3.b32 $3, odd, 0x00f000f0, 0x64006400, 0xea;
        sub.f16x2 $0, $0, bias;
        sub.f16x2 $1, $1, bias;
        fma.rn.f16x2 $2, $2, sixteenth, high_bias;
        fma.rn.f16x2 $3, $3, sixteenth, high_bias;
        }""",
        "=&r,=&r,=&r,=&r,r",
        [packed],
        dtype=(tl.float16, tl.float16),
        is_pure=True,
        pack=4,
    )


@triton.jit
def unpack_bf16(packed):
    """Four bytes to eight bf16, exactly q - 8: 0x4300 is 128, and below it stand the mantissa's seven bits."""
    return tl.inline_asm_elementwise(
        """{
        .reg .b32 even, odd, one, bias;
        mov.b32 one, 0x3f803f80;
        mov.b32 bias, 0xc308c308;
        prmt.b32 even, $4, 0, 0x4140;
        prmt.b32 odd, $4, 0, 0x4342;
        lop3.b32 $0, even, 0x000f000f, 0x43004300, 0xea;
        lop3.b32 $1, odd, 0x000f000f, 0x43004300, 0xea;
        shr.u32 even, even, 4;
        shr.u32 odd, odd, 4;
        lop3.b32 $2, even, 0x000f000f, 0x43004300, 0xea;
        lop3.b32 $3, odd, 0x000f000f, 0x43004300, 0xea;
        fma.rn.bf16x2 $0, $0, one, bias;
        fma.rn.bf16x2 $1, $1, one, bias;
        fma.rn.bf16x2 $2, $2, one, bias;
        fma.rn.bf16x2 $3, $3, one, bias;
        }""",
        "=&r,=&r,=&r,=&r,r",
        [packed],
        dtype=(tl.bfloat16, tl.bfloat16),
        is_pure=True,
        pack=4,
    )


@triton.jit
def finished(acc):
    """Return the same sums, once the product that makes them is done.

    A wgmma that is still under way reads its first operand from registers, which Triton would let the next step's
    weights overwrite. No instruction, but a use that is neither a product nor the loop's end makes it wait.
    """
    return tl.inline_asm_elementwise("", "=f,0", [acc], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit(do_not_specialize=["M"])  # as in triton_gemm
def w4a16_kernel(
    a_ptr, w_ptr, scale_ptr, c_ptr, part_ptr, count_ptr, M, N, K, stride_am, stride_wn, stride_cm,
    GROUP_SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
):  # fmt: skip
    """C[M,N] = A[M,K] x W[N,K]^T; W [N, K/2] bytes, scales [K/GROUP_SIZE, N]; K a multiple of 128, BLOCK_K <= 128."""
    tile, part = tl.program_id(0), tl.program_id(1)
    tile_m, tile_n = tile_of(tile, tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    offs_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    HALF: tl.constexpr = BLOCK_K // 2
    offs_half = tl.arange(0, HALF)
    steps = K // BLOCK_K
    part_steps = tl.cdiv(steps, SPLIT_K)
    first = part * part_steps
    last = min(first + part_steps, steps)
    inside_n = offs_n % N  # outside: as in triton_gemm
    inside_m = (offs_m < M)[None, :]
    a_rows = a_ptr + offs_m.to(tl.int64)[None, :] * stride_am
    w_rows = w_ptr + inside_n.to(tl.int64)[:, None] * stride_wn
    acc = tl.zeros((BLOCK_N, BLOCK_M), tl.float32)
    for step in range(first, last):
        byte = step * HALF
        low_k = tl.multiple_of(byte // 64 * 128 + byte % 64, HALF)
        packed = tl.load(w_rows + (byte + offs_half)[None, :])
        a_low = tl.load(a_rows + (low_k + offs_half)[:, None], mask=inside_m, other=0.0)
        a_high = tl.load(a_rows + (low_k + 64 + offs_half)[:, None], mask=inside_m, other=0.0)
        scale_low = tl.load(scale_ptr + (low_k // GROUP_SIZE) * N + inside_n)
        scale_high = scale_low
        if GROUP_SIZE < 128:
            scale_high = tl.load(scale_ptr + ((low_k + 64) // GROUP_SIZE) * N + inside_n)
        if a_ptr.dtype.element_ty == tl.bfloat16:
            w_low, w_high = unpack_bf16(packed)
        else:
            w_low, w_high = unpack_fp16(packed)
        acc = tl.dot(w_low * scale_low[:, None], a_low, acc)
        acc = finished(tl.dot(w_high * scale_high[:, None], a_high, acc))
    acc = tl.trans(acc)
    store_tile(acc, c_ptr, part_ptr, count_ptr, offs_m, offs_n, M, N, stride_cm, tile, part, SPLIT_K)


_TILES = (  # BLOCK_M, BLOCK_N, BLOCK_K, num_warps, num_stages, values of SPLIT_K
    (16, 64, 128, 4, (3, 5), (1, 4, 8)),
    (16, 128, 128, 4, (3, 5), (1, 4, 8)),
    (16, 128, 128, 8, (3, 5), (1, 4)),
    (16, 64, 64, 4, (4, 6), (1, 4)),
    (32, 64, 128, 4, (3, 5), (1, 4)),
    (32, 128, 128, 4, (3, 5), (1, 4)),
    (32, 128, 128, 8, (3, 4), (1, 4)),
    (64, 64, 128, 4, (3, 4), (1, 4)),
    (64, 128, 128, 4, (3, 4), (1, 4)),
    (64, 128, 128, 8, (3, 4), (1, 4)),
    (64, 128, 64, 4, (4, 5), (1,)),
    (128, 64, 128, 4, (3, 4), (1, 4)),
    (128, 128, 128, 4, (3,), (1, 2)),
    (128, 128, 128, 8, (3, 4), (1, 2)),
    (128, 128, 64, 8, (4, 5), (1,)),
    (128, 256, 64, 8, (3, 4), (1,)),
    (128, 256, 128, 8, (2, 3), (1,)),
    (256, 128, 64, 8, (3, 4), (1,)),
    (256, 128, 128, 8, (2,), (1,)),
)
CONFIGS = [
    triton.Config(
        {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP_M": 8, "SPLIT_K": split}, num_warps=warps, num_stages=stages
    )
    for m, n, k, warps, all_stages, splits in _TILES
    for stages in all_stages
    for split in splits
]


def grid(meta: dict[str, Any]) -> tuple[int, int]:
    """Programs: tiles of C, parts of K."""
    return triton.cdiv(meta["M"], meta["BLOCK_M"]) * triton.cdiv(meta["N"], meta["BLOCK_N"]), int(meta["SPLIT_K"])


_tuned = autotune(CONFIGS, KEY, arguments=ARGUMENTS)(w4a16_kernel)


def pack_weights(q: Any) -> Any:
    """Return q [N, K] of 0 to 15, uint8, as [N, K/2] bytes; K a multiple of 128."""
    N, K = q.shape
    runs = q.view(N, K // 128, 2, 64)
    return (runs[:, :, 0] | (runs[:, :, 1] << 4)).reshape(N, K // 2)


def w4a16_gemm(a: Any, packed: Any, scales: Any) -> Any:
    """Return a[M,K] x W[N,K]^T as [M,N], of the type of a: fp16 or bf16, as the scales [K/group, N] are.

    `packed` is what `pack_weights` returns; groups are 64 or a multiple of 128 along K.
    """
    import torch

    (M, K), N = a.shape, packed.shape[0]
    c = torch.empty(M, N, dtype=a.dtype, device=a.device)
    strides = a.stride(0), packed.stride(0), c.stride(0)
    group_size = K // scales.shape[0]
    _tuned[grid](a, packed, scales, c, *workspaces(M, N, a.device), M, N, K, *strides, GROUP_SIZE=group_size)
    return c
