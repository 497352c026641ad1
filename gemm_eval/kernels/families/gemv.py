"""Kernels for few tokens: what those on CUDA cores and on tensor cores have in common, and the family on CUDA cores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from gemm_eval.arch import THREADS_PER_WARP, DeviceLimits
from gemm_eval.kernels.families.base import (
    MMA_SYNC_TARGETS,
    Family,
    Launch,
    MainLoop,
    Operands,
    Sizes,
    TensorMapOf,
    Variant,
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
        """Yield the whole K, and cuts that give up to 4 CTAs an SM, or fill the GPU up to 4 times.

        Of all cuts with the same number of steps for the busiest team only the coarsest is worth a try.
        """
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
        if config.family != self.name:
            return f"{config.family} is another family than {self.name}"
        shape = (config.cta_m, config.cta_n, config.num_warps, config.num_stages)
        if shape not in self.shapes or config.cta_k * self.team_warps.get(shape, 1) != BLOCK_K * config.num_warps:
            return "no such config"
        if variant.group_size not in variant.mode.group_sizes:
            return f"no groups of {variant.group_size} in mode {variant.mode.name}"
        if limits.compute_capability < (8, 0):
            return "needs compute capability 8.0"
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

    def warps_of_team(self, variant: Variant) -> int:
        return team_warps_of(variant)

    def num_threads(self, variant: Variant) -> int:
        return THREADS_PER_WARP * variant.config.num_warps

    def launch(self, variant: Variant, sizes: Sizes, num_sms: int, ctas_per_sm: int) -> Launch:  # noqa: ARG002
        """A CTA for each tile of C and each part of K."""
        config = variant.config
        tiles, split = _tiles(variant, sizes), config.split_k
        return Launch(
            (ceil_div(sizes.N, config.cta_n), split, ceil_div(sizes.M, config.cta_m)), self.num_threads(variant),
            self.smem_bytes(variant), tiles * split * config.cta_m * config.cta_n * 4 if split > 1 else 0,
            tiles if split > 1 else 0,
        )  # fmt: skip

    def arguments(
        self,
        variant: Variant,
        sizes: Sizes,
        launch: Launch,  # noqa: ARG002
        operands: Operands,
        tensor_map: TensorMapOf,  # noqa: ARG002
    ) -> tuple[Any, ...]:
        blocks, longer = divmod(ceil_div(sizes.K, BLOCK_K), variant.config.split_k)
        addresses = (
            operands.a, operands.qweight, operands.scales, operands.bias, operands.c, operands.workspace,
            operands.counters,
        )  # fmt: skip
        integers = (
            sizes.M,
            sizes.N,
            sizes.K,
            operands.lda,
            operands.num_column_blocks,
            operands.num_k_blocks,
            operands.num_groups,
            blocks,  # of each part of K
            longer,  # parts that have one more
        )
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

    def main_loop(self, variant: Variant) -> MainLoop:
        """It goes around the ring; a token's 64 k come by two LDSM."""
        config = variant.config
        blocks = Fraction(config.cta_n, BLOCK_COLUMNS) * config.num_stages
        return MainLoop(blocks, team_warps_of(variant), "LDSM", config.num_stages * config.cta_m * 2)

    def resident_threads(self, variant: Variant) -> int:
        return 256 if variant.config.cta_m == 8 else 512


def team_warps_of(variant: Variant) -> int:
    """Warps of a team."""
    return BLOCK_K * variant.config.num_warps // variant.config.cta_k


def _tiles(variant: Variant, sizes: Sizes) -> int:
    return ceil_div(sizes.N, variant.config.cta_n) * ceil_div(sizes.M, variant.config.cta_m)
