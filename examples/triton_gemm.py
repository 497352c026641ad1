"""A GEMM in Triton for fp16, bf16 and fp8: C[M,N] = A[M,K] x B[N,K]^T, both operands with K contiguous.

Tiles go over M in bands of GROUP_M, so that a wave shares panels of A and B in L2. With SPLIT_K > 1 the parts of a tile
write fp32 partial sums to a workspace, and the part that arrives last adds them, always in the same order: the result
does not depend on who that is.

    from triton_gemm import gemm  # on a machine with a GPU and PyTorch
    C = gemm(A, W)  # A[M,K], W[N,K]; tunes at the first call of each shape, on a fifth of the 62 configs
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from gemm_eval.autotune.triton import autotune

KEY = ["M", "N", "K"]
MAX_SPLIT_K = 8
_MAX_TILES = 1 << 22


@triton.jit
def tile_of(tile, tiles_m, tiles_n, GROUP_M: tl.constexpr):
    """Return the tile's place: bands of GROUP_M tiles along M are finished one after the other, column by column."""
    band = GROUP_M * tiles_n
    first_m = (tile // band) * GROUP_M
    rows = min(tiles_m - first_m, GROUP_M)
    return first_m + (tile % band) % rows, (tile % band) // rows


@triton.jit
def store_tile(acc, c_ptr, part_ptr, count_ptr, offs_m, offs_n, M, N, stride_cm, tile, part, SPLIT_K: tl.constexpr):
    """Store a tile of sums [m, n]; of SPLIT_K parts, the last to arrive adds all and stores."""
    inside = (offs_m < M)[:, None] & (offs_n < N)[None, :]
    c_at = c_ptr + offs_m.to(tl.int64)[:, None] * stride_cm + offs_n[None, :]
    if SPLIT_K == 1:
        tl.store(c_at, acc.to(c_ptr.dtype.element_ty), mask=inside)
    else:
        part_elems = M.to(tl.int64) * N
        part_at = part_ptr + offs_m.to(tl.int64)[:, None] * N + offs_n[None, :]
        tl.store(part_at + part * part_elems, acc, mask=inside)
        tl.debug_barrier()  # all threads have stored before one of them says so
        arrived = tl.atomic_add(count_ptr + tile, 1, sem="acq_rel")
        if arrived == SPLIT_K - 1:
            total = tl.load(part_at, mask=inside, cache_modifier=".cg")
            for other in range(1, SPLIT_K):
                total += tl.load(part_at + other * part_elems, mask=inside, cache_modifier=".cg")
            tl.store(c_at, total.to(c_ptr.dtype.element_ty), mask=inside)
            tl.store(count_ptr + tile, 0)  # as it was found


@triton.heuristics({"EVEN_K": lambda args: args["K"] % args["BLOCK_K"] == 0})
@triton.jit(do_not_specialize=["M"])  # the number of tokens varies: one binary serves all
def gemm_kernel(
    a_ptr, b_ptr, c_ptr, part_ptr, count_ptr, M, N, K, stride_am, stride_bn, stride_cm,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
    SPLIT_K: tl.constexpr, EVEN_K: tl.constexpr,
):  # fmt: skip
    """C[M,N] = A[M,K] x B[N,K]^T; a program computes one part of one tile."""
    tile, part = tl.program_id(0), tl.program_id(1)
    tile_m, tile_n = tile_of(tile, tl.cdiv(M, BLOCK_M), tl.cdiv(N, BLOCK_N), GROUP_M)
    offs_m = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    steps = tl.cdiv(K, BLOCK_K)
    part_steps = tl.cdiv(steps, SPLIT_K)
    first = part * part_steps
    last = min(first + part_steps, steps)
    # tokens are often fewer than BLOCK_M: rows outside are not read, for repeating one would make all SMs wait for it
    inside_m = (offs_m < M)[:, None]
    a_rows = a_ptr + offs_m.to(tl.int64)[:, None] * stride_am
    b_rows = b_ptr + (offs_n % N).to(tl.int64)[None, :] * stride_bn  # columns outside begin anew and are not stored
    a_at = a_rows + (first * BLOCK_K + offs_k)[None, :]
    b_at = b_rows + (first * BLOCK_K + offs_k)[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(first, last):
        if EVEN_K:
            a = tl.load(a_at, mask=inside_m, other=0.0)
            b = tl.load(b_at)
        else:
            left = K - step * BLOCK_K
            a = tl.load(a_at, mask=inside_m & (offs_k[None, :] < left), other=0.0)
            b = tl.load(b_at, mask=offs_k[:, None] < left, other=0.0)
        acc = tl.dot(a, b, acc)
        a_at += BLOCK_K
        b_at += BLOCK_K
    store_tile(acc, c_ptr, part_ptr, count_ptr, offs_m, offs_n, M, N, stride_cm, tile, part, SPLIT_K)


_TILES = (  # BLOCK_M, BLOCK_N, BLOCK_K, num_warps, num_stages, values of SPLIT_K
    (128, 256, 64, 8, (3, 4), (1, 2)),
    (256, 128, 64, 8, (3, 4), (1,)),
    (128, 128, 64, 8, (3, 4), (1, 2)),
    (128, 128, 64, 4, (3, 4), (1, 4)),
    (128, 128, 128, 8, (2, 3), (1,)),
    (256, 64, 64, 8, (3, 4), (1,)),
    (64, 256, 64, 4, (3, 4), (1, 2)),
    (128, 64, 64, 4, (3, 4), (1, 4)),
    (64, 128, 64, 4, (3, 4), (1, 4)),
    (64, 128, 128, 4, (3, 4), (1, 4)),
    (64, 64, 64, 4, (3, 5), (1, 4)),
    (64, 64, 128, 4, (3, 4), (1, 4)),
    (64, 32, 128, 4, (3, 5), (1, 4)),
    (32, 64, 128, 4, (3, 5), (1, 4)),
    (16, 64, 128, 4, (3, 5), (1, 4)),
    (16, 32, 256, 4, (3, 4), (1, 4)),
    (16, 128, 128, 4, (3, 5), (1, 8)),
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


_tuned = autotune(CONFIGS, KEY)(gemm_kernel)
_kept: dict[Any, Any] = {}


def workspaces(M: int, N: int, device: Any) -> tuple[Any, Any]:
    """Memory that all launches of a device share: fp32 sums of the parts of K, and counters, which each leaves at 0."""
    import torch

    sums, counts = _kept.get(device, (None, None))
    if sums is None or sums.numel() < MAX_SPLIT_K * M * N:
        _kept.pop(device, None)
        sums = torch.empty(MAX_SPLIT_K * M * N, dtype=torch.float32, device=device)
        if counts is None:
            counts = torch.zeros(_MAX_TILES, dtype=torch.int32, device=device)
        _kept[device] = sums, counts
    return sums, counts


def gemm(a: Any, w: Any) -> Any:
    """Return a[M,K] x w[N,K]^T as [M,N]; fp16, bf16, or fp8 with a result in fp16. K is contiguous in both."""
    import torch

    (M, K), N = a.shape, w.shape[0]
    c = torch.empty(M, N, dtype=torch.float16 if a.element_size() == 1 else a.dtype, device=a.device)
    _tuned[grid](a, w, c, *workspaces(M, N, a.device), M, N, K, a.stride(0), w.stride(0), c.stride(0))
    return c
