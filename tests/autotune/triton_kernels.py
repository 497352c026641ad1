"""A small GEMM in Triton, to be compiled in tests; import it only where Triton is."""

import triton
import triton.language as tl


@triton.jit
def matmul(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_bn, stride_cm,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
):  # fmt: skip
    """C[M,N] = A[M,K] x B[N,K]^T; M, N and K multiples of the tile, SPLIT_K and GROUP_M unused."""
    tl.static_assert(BLOCK_M <= 128, "BLOCK_M too large for this kernel")
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_k = tl.arange(0, BLOCK_K)
    a_at = a_ptr + offs_m[:, None] * stride_am + offs_k[None, :]
    b_at = b_ptr + offs_n[None, :] * stride_bn + offs_k[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for _ in range(0, K, BLOCK_K):
        acc = tl.dot(tl.load(a_at), tl.load(b_at), acc)
        a_at += BLOCK_K
        b_at += BLOCK_K
    tl.store(c_ptr + offs_m[:, None] * stride_cm + offs_n[None, :], acc.to(c_ptr.dtype.element_ty))


@triton.heuristics({"GROUP_M": lambda args: 8 if args["M"] > 64 else 1})
@triton.jit
def matmul_with_heuristics(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_bn, stride_cm,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """As `matmul`, with a value that a heuristic sets."""
    tl.store(c_ptr + tl.arange(0, BLOCK_M), tl.load(a_ptr + tl.arange(0, BLOCK_M)) * GROUP_M)


@triton.jit
def matmul_of_the_tutorial(
    a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_bn, stride_cm,
    BLOCK_SIZE_M: tl.constexpr, BLOCK_SIZE_N: tl.constexpr, BLOCK_SIZE_K: tl.constexpr, GROUP_SIZE_M: tl.constexpr,
):  # fmt: skip
    """As `matmul`, with the names of Triton's tutorial."""
    matmul(
        a_ptr, b_ptr, c_ptr, M, N, K, stride_am, stride_bn, stride_cm,
        BLOCK_SIZE_M, BLOCK_SIZE_N, BLOCK_SIZE_K, GROUP_SIZE_M, 1,
    )  # fmt: skip
