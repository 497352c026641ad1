"""Kernels for few tokens: what they have in common, the family on CUDA cores, and the one on tensor cores.

Weights of the latter wait in shared memory in the order of operand registers.
"""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from gemm_eval.arch import THREADS_PER_WARP, DeviceLimits
from gemm_eval.dtypes import DType
from gemm_eval.kernels.families.base import (
    MMA_SYNC_TARGETS,
    Family,
    Launch,
    Operands,
    Sizes,
    TensorMapOf,
    Variant,
    WeightMode,
    ceil_div,
)
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder, Schedule

BLOCK_K = BLOCK_COLUMNS = 64  # weights along K of a block, and its columns (KERNELS.md)
MAX_SPLITS = 5  # besides the whole K


class StreamingFamily(Family):
    """Weights are read once, past L1, by the warp that needs them; the warps of a CTA cut K among them.

    Fields of a `KernelConfig`: a CTA computes `cta_m` tokens x `cta_n` columns. Its `num_warps` warps are teams of
    `team_warps` (mostly 1), which share the columns; each team takes every `teams`-th block of 64 k, so a step of the
    CTA is `cta_k` = 64 teams; `num_stages` blocks are on their way to a team, as 16 bytes per lane of each 16 columns.
    Split K cuts at blocks; the last CTA adds up.

    Rows of A start at multiples of 16 bytes (so does A, and `lda` is a multiple of 8).

    Attributes:
        schedule: of all configs.
        shapes: (cta_m, cta_n, num_warps, num_stages) of all configs.
        team_warps: of shapes whose teams are more than a warp.
        max_tokens: of a GEMM; None: any number.
    """

    targets: ClassVar[Mapping[tuple[int, int], str]] = MMA_SYNC_TARGETS
    headers: ClassVar[tuple[str, ...]] = ("streaming.cuh",)
    schedule: ClassVar[Schedule]
    shapes: ClassVar[tuple[tuple[int, int, int, int], ...]]
    team_warps: ClassVar[Mapping[tuple[int, int, int, int], int]] = MappingProxyType({})
    max_tokens: ClassVar[int | None] = 64

    def configs(self) -> Iterator[KernelConfig]:
        for shape in self.shapes:
            cta_m, cta_n, num_warps, num_stages = shape
            yield KernelConfig(
                self.name, cta_m, cta_n, BLOCK_K * (num_warps // self.team_warps.get(shape, 1)), 1, 1, num_warps,
                num_stages, self.schedule, Decomposition.DATA_PARALLEL, 1, RasterOrder.ALONG_N, 1,
            )  # fmt: skip

    def splits(self, variant: Variant, sizes: Sizes, limits: DeviceLimits) -> Iterator[tuple[Decomposition, int]]:
        """Yield the whole K, and the coarsest cuts that give up to 4 CTAs an SM, or fill the GPU up to 4 times."""
        yield Decomposition.DATA_PARALLEL, 1
        teams = variant.config.cta_k // BLOCK_K
        blocks, tiles = ceil_div(sizes.K, BLOCK_K), _tiles(variant, sizes)
        resident = self._resident(variant, limits)
        result: set[int] = set()
        for ctas in sorted({limits.num_sms * n * r for n in (1, 2, 3, 4) for r in (1, resident)}):
            split = min(ctas // tiles, blocks // teams)
            if split > 1:
                steps = ceil_div(ceil_div(blocks, split), teams)
                result.add(ceil_div(blocks, steps * teams))
        several = sorted(result - {1})
        if len(several) > MAX_SPLITS:  # first, last and evenly between
            several = [several[i * (len(several) - 1) // (MAX_SPLITS - 1)] for i in range(MAX_SPLITS)]
        for split in several:
            yield Decomposition.SPLIT_K, split

    def refusal(self, variant: Variant, sizes: Sizes | None, limits: DeviceLimits) -> str | None:
        config = variant.config
        if self.smem_bytes(variant) > limits.smem_per_cta_bytes:
            return f"needs {self.smem_bytes(variant)} bytes of shared memory a CTA"
        if self.num_threads(variant) > limits.max_threads_per_sm:
            return f"needs {self.num_threads(variant)} threads an SM"
        if sizes is None:
            return None
        if self.max_tokens is not None and self.max_tokens < sizes.M:
            return f"more than {self.max_tokens} tokens: every {config.cta_m} would read all weights again"
        if sizes.K % 8 or sizes.N % 8:
            return "K and N must be multiples of 8"
        if config.split_k > ceil_div(sizes.K, BLOCK_K):
            return f"K has less than {config.split_k} blocks of {BLOCK_K}"
        return None

    def macros(self, variant: Variant) -> dict[str, int]:
        config = variant.config
        return {
            "CTA_M": config.cta_m, "CTA_N": config.cta_n, "WARPS": config.num_warps, "WARPS_N": team_warps_of(variant),
            "STAGES": config.num_stages, "MIN_CTAS": self.min_ctas(variant),
        }  # fmt: skip

    def min_ctas(self, variant: Variant) -> int:
        """CTAs of an SM that the registers must suffice for."""
        return max(1, self.resident_threads(variant) // self.num_threads(variant))

    def resident_threads(self, variant: Variant) -> int:  # noqa: ARG002
        """Threads of an SM that the registers must suffice for: 512 may have 128 each."""
        return 512

    def smem_bytes(self, variant: Variant) -> int:
        """Dynamic shared memory of a CTA: rings of all teams, or later their sums."""
        config = variant.config
        sums = config.cta_m * (config.cta_n + 4) * 4
        return config.cta_k // BLOCK_K * max(self.ring_bytes(variant), sums)

    def ring_bytes(self, variant: Variant) -> int:
        """Shared memory of a team's ring: tokens and scales."""
        config = variant.config
        return config.num_stages * (config.cta_m * BLOCK_K * 2 + variant.scale_bytes(config.cta_n, BLOCK_K))

    def num_threads(self, variant: Variant) -> int:
        return THREADS_PER_WARP * variant.config.num_warps

    def launch(self, variant: Variant, sizes: Sizes, num_sms: int, ctas_per_sm: int) -> Launch:  # noqa: ARG002
        """Return a CTA for each tile of C and each part of K."""
        config = variant.config
        tiles, split = _tiles(variant, sizes), config.split_k
        return Launch(
            (ceil_div(sizes.N, config.cta_n), split, ceil_div(sizes.M, config.cta_m)), self.num_threads(variant),
            self.smem_bytes(variant), tiles * split * config.cta_m * config.cta_n * 4 if split > 1 else 0,
            tiles if split > 1 else 0,
        )  # fmt: skip

    def arguments(
        self, variant: Variant, sizes: Sizes, launch: Launch, operands: Operands, tensor_map: TensorMapOf,  # noqa: ARG002
    ) -> tuple[Any, ...]:  # fmt: skip
        blocks, longer = divmod(ceil_div(sizes.K, BLOCK_K), variant.config.split_k)
        addresses = (
            operands.a, operands.qweight, operands.scales, operands.bias, operands.c, operands.workspace,
            operands.counters,
        )  # fmt: skip
        integers = (  # the last: blocks of each part of K, and parts that have one more
            sizes.M, sizes.N, sizes.K, operands.lda, operands.num_column_blocks, operands.num_k_blocks,
            operands.num_groups, blocks, longer,
        )  # fmt: skip
        return (*map(np.uint64, addresses), np.float32(operands.alpha), *map(np.int32, integers))

    def _resident(self, variant: Variant, limits: DeviceLimits) -> int:
        """CTAs that an SM can be expected to hold."""
        of_smem = limits.smem_per_sm_bytes // (self.smem_bytes(variant) + limits.smem_reserved_bytes)
        of_threads = limits.max_threads_per_sm // self.num_threads(variant)
        return max(1, min(self.min_ctas(variant), of_smem, of_threads, limits.max_ctas_per_sm))


class GemvFamily(StreamingFamily):
    """CUDA cores and fp32 arithmetic: for one or two tokens."""

    name: ClassVar[str] = "w4a16_gemv"
    source: ClassVar[str] = "gemv.cu"
    entry: ClassVar[str] = "w4a16_gemv"
    schedule: ClassVar[Schedule] = Schedule.VECTOR
    shapes: ClassVar[tuple[tuple[int, int, int, int], ...]] = (
        *((m, 16, w, 4) for m in (1, 2, 4, 8) for w in (8, 16) if m * w <= 64),
        *((m, 32, w, 2) for m in (1, 2, 4, 8) for w in (8, 16) if m * w <= 64),
        *((m, 32, w, 4) for m in (1, 2) for w in (8, 16)), *((m, 64, w, 2) for m in (1, 2) for w in (4, 8)),
        (1, 64, 8, 1), (1, 64, 16, 1), (1, 128, 4, 1),
    )  # fmt: skip

    def macros(self, variant: Variant) -> dict[str, int]:
        """Scaling the sums of a group costs 2 operations per token, column and group, scaling weights 1 per weight."""
        return {**super().macros(variant), "SCALE_SUMS": int(variant.config.cta_m <= 2)}

    def resident_threads(self, variant: Variant) -> int:
        return 256 if variant.config.cta_m == 8 else 512


def team_warps_of(variant: Variant) -> int:
    """Warps of a team."""
    return BLOCK_K * variant.config.num_warps // variant.config.cta_k


def _tiles(variant: Variant, sizes: Sizes) -> int:
    return ceil_div(sizes.N, variant.config.cta_n) * ceil_div(sizes.M, variant.config.cta_m)


_SMEM_PER_SM, _SMEM_RESERVED = 228 << 10, 1 << 10  # of the largest SM, for the register allocator

# Warps of an SM that the registers suffice for, by (cta_m, columns of a warp): groups of 64 or more and fp4, those with
# zero points, groups of 32 integers (0: too few registers).
_WARPS = {
    (8, 16): (32, 32, 28), (8, 32): (32, 32, 32), (8, 64): (24, 24, 24), (8, 128): (16, 16, 16), (16, 16): (28, 28, 20),
    (16, 32): (20, 20, 20), (16, 64): (16, 12, 12), (16, 128): (12, 8, 8), (24, 32): (16, 12, 12), (24, 64): (12, 8, 8),
    (24, 128): (8, 8, 0), (32, 32): (12, 12, 8), (32, 64): (8, 8, 0),
}  # fmt: skip

_SHAPES: Mapping[int, tuple[tuple[int, int, int, int], ...]] = {  # by cta_m: (cta_n, num_warps, num_stages, team)
    8: (
        (16, 8, 8, 1), (16, 16, 4, 1), (32, 4, 6, 1), (32, 8, 4, 1), (32, 8, 8, 1), (32, 16, 2, 1), (32, 16, 4, 1),
        (64, 4, 4, 1), (64, 4, 6, 1), (64, 8, 3, 1), (64, 8, 4, 1), (64, 16, 2, 1), (64, 16, 4, 1), (128, 4, 3, 1),
        (128, 4, 4, 1), (128, 8, 2, 1), (128, 8, 4, 2),
    ),
    16: (
        (16, 8, 8, 1), (16, 16, 4, 1), (32, 4, 6, 1), (32, 8, 3, 1), (32, 8, 4, 1), (32, 16, 4, 1), (64, 4, 4, 1),
        (64, 4, 6, 1), (64, 8, 3, 1), (64, 8, 4, 1), (64, 8, 6, 2), (128, 4, 3, 1), (128, 4, 4, 1), (128, 8, 3, 2),
        (128, 8, 4, 2), (256, 8, 4, 4),
    ),
    24: ((32, 8, 4, 1), (64, 4, 3, 1), (64, 8, 4, 1), (128, 4, 3, 1), (128, 4, 4, 2), (128, 8, 6, 4), (256, 8, 6, 4)),
    32: (
        (32, 8, 4, 1), (64, 4, 3, 1), (64, 4, 4, 1), (64, 4, 6, 2), (64, 8, 4, 1), (128, 4, 4, 2), (128, 4, 6, 2),
        (128, 8, 6, 4), (256, 8, 4, 4), (256, 8, 6, 4),
    ),
}  # fmt: skip


class GemvMmaFamily(StreamingFamily):
    """`mma.sync.m16n8k16` with 16 columns of W as rows and tokens as columns: for up to 32 tokens at once.

    A slot of a team's ring holds the weights, tokens and scales of a block; `num_stages` slots.
    """

    name: ClassVar[str] = "w4a16_gemv_mma"
    source: ClassVar[str] = "gemv_mma.cu"
    entry: ClassVar[str] = "w4a16_gemv_mma"
    schedule: ClassVar[Schedule] = Schedule.MULTISTAGE
    shapes: ClassVar[tuple[tuple[int, int, int, int], ...]] = tuple(
        (m, *shape[:3]) for m, shapes in _SHAPES.items() for shape in shapes
    )
    team_warps: ClassVar[Mapping[tuple[int, int, int, int], int]] = MappingProxyType(
        {(m, *shape[:3]): shape[3] for m, shapes in _SHAPES.items() for shape in shapes}
    )

    def refusal(self, variant: Variant, sizes: Sizes | None, limits: DeviceLimits) -> str | None:
        reason = super().refusal(variant, sizes, limits)
        return reason or ("too few registers" if _warps(variant) < variant.config.num_warps else None)

    def macros(self, variant: Variant) -> dict[str, int]:
        """Read the integers as subnormal fp16 numbers: the fewest instructions."""
        return {**super().macros(variant), "SUBNORMAL": int(variant.activation is DType.FP16)}

    def ring_bytes(self, variant: Variant) -> int:
        """Shared memory of a team's ring, in multiples of 128 bytes."""
        config = variant.config
        weights = config.num_stages * config.cta_n * BLOCK_K // 2
        return 128 * ceil_div(super().ring_bytes(variant) + weights, 128)

    def resident_threads(self, variant: Variant) -> int:
        """Threads of an SM that the registers must suffice for: no more than shared memory lets in."""
        of_smem = _SMEM_PER_SM // (self.smem_bytes(variant) + _SMEM_RESERVED)
        return min(of_smem * self.num_threads(variant), THREADS_PER_WARP * _warps(variant))


def _warps(variant: Variant) -> int:
    config = variant.config
    zero_or_less = 2 if variant.group_size == 32 else int(variant.mode is WeightMode.GROUP_ZERO)
    case = 0 if variant.mode.is_fp4 else zero_or_less
    return _WARPS[config.cta_m, config.cta_n // team_warps_of(variant)][case]
