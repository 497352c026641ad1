"""The kernels of cuda/sm80.cu: cp.async, ldmatrix and mma.sync, for A100 and everything since."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from gemm_eval.arch import THREADS_PER_WARP, DeviceLimits
from gemm_eval.kernels.families.base import (
    MMA_SYNC_TARGETS,
    Family,
    Launch,
    Operands,
    Sizes,
    TensorMapOf,
    Variant,
    ceil_div,
)
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder, Schedule

_BLOCK = 64  # columns and k of a packed block
UNIT_K = 128
"""K is cut in multiples of this."""
MAX_SPLIT = 32
MAX_WAVES_OF_SPLIT = 4
"""Grids of more waves gain nothing from a split K: the last wave is a small part of the whole."""

# (tokens, columns, k of a step), warps, stages
_TILES = (
    ((8, 64, 128), 4, 4), ((8, 128, 128), 4, 4), ((8, 256, 128), 8, 3), ((8, 256, 128), 4, 3), ((16, 64, 128), 4, 4),
    ((16, 128, 128), 4, 4), ((16, 128, 128), 8, 4), ((16, 128, 64), 4, 5), ((16, 256, 64), 4, 4),
    ((16, 256, 128), 4, 3), ((16, 256, 128), 8, 3), ((32, 64, 128), 4, 4), ((32, 128, 128), 4, 3),
    ((32, 128, 128), 8, 4), ((32, 256, 64), 4, 4), ((32, 256, 128), 8, 3), ((64, 64, 64), 4, 4), ((64, 64, 128), 4, 3),
    ((64, 128, 64), 4, 4), ((64, 128, 128), 4, 3), ((64, 256, 64), 4, 4), ((64, 256, 64), 8, 4), ((128, 64, 64), 4, 4),
    ((128, 128, 64), 4, 3), ((128, 128, 64), 4, 4), ((128, 128, 64), 8, 4), ((128, 256, 64), 8, 3),
    ((128, 256, 64), 8, 4), ((256, 64, 64), 4, 4), ((256, 128, 64), 8, 3), ((256, 128, 64), 8, 4),
)  # fmt: skip
_RASTERS = ((RasterOrder.ALONG_M, 1),)
_RASTERS_OF_LARGE_TILES = ((RasterOrder.ALONG_M, 1), (RasterOrder.ALONG_N, 8))


class WarpLayout(NamedTuple):
    """The part of a tile that one warp computes; `slices` warps have the same part, each a share of a step's k."""

    tokens: int
    columns: int
    slices: int

    @classmethod
    def of(cls, config: KernelConfig) -> WarpLayout:
        """Return the layout that follows from a config.

        A warp starts with 64 columns and up to 64 tokens. While the CTA has more warps than that makes, its part is
        halved: first along k, if a step has 128 and the tile at most 64 tokens; then 64 tokens to 32; then 64 columns.
        """
        tokens, columns, slices = min(config.cta_m, 64), 64, 1
        missing = config.num_warps / ((config.cta_m // tokens) * (config.cta_n // columns))
        if missing > 1 and config.cta_k == 128 and config.cta_m <= 64:
            slices, missing = 2, missing / 2
        if missing > 1 and tokens == 64:
            tokens, missing = 32, missing / 2
        if missing > 1:
            columns = 32
        return cls(tokens, columns, slices)


class Sm80Family(Family):
    """Ring of shared memory filled by cp.async; weights become 16-bit in registers; mma.sync.m16n8k16."""

    name = "w4a16_sm80"
    source = "sm80.cu"
    entry = "w4a16_sm80"
    targets = MMA_SYNC_TARGETS

    def configs(self) -> Iterator[KernelConfig]:
        for (m, n, k), warps, stages in _TILES:
            for order, swizzle in _RASTERS_OF_LARGE_TILES if m * n >= 128 * 128 else _RASTERS:
                yield KernelConfig(
                    family=self.name, cta_m=m, cta_n=n, cta_k=k, cluster_m=1, cluster_n=1, num_warps=warps,
                    num_stages=stages, schedule=Schedule.MULTISTAGE, decomposition=Decomposition.DATA_PARALLEL,
                    split_k=1, raster_order=order, raster_swizzle=swizzle,
                )  # fmt: skip

    def splits(self, variant: Variant, sizes: Sizes, limits: DeviceLimits) -> Iterator[tuple[Decomposition, int]]:
        """Not split; split-K that fills one or two waves, with as many CTAs on an SM as may fit; stream-K."""
        yield Decomposition.DATA_PARALLEL, 1
        tiles, units = _tiles(variant.config, sizes), _units_of_tile(sizes)
        ctas_per_sm = self._max_ctas_per_sm(variant, limits)
        if units == 1 or tiles > MAX_WAVES_OF_SPLIT * ctas_per_sm * limits.num_sms:
            return
        waves = sorted({1, max(1, ctas_per_sm // 2), ctas_per_sm, 2 * ctas_per_sm})  # in CTAs of an SM
        parts = {min(per_sm * limits.num_sms // tiles, units, MAX_SPLIT) for per_sm in waves}
        yield from ((Decomposition.SPLIT_K, part) for part in sorted(parts) if part > 1)
        yield Decomposition.STREAM_K, 1

    def refusal(self, variant: Variant, sizes: Sizes | None, limits: DeviceLimits) -> str | None:
        config = variant.config
        smem, threads = self.smem_bytes(variant), self.num_threads(variant)
        if smem > limits.smem_per_cta_bytes:
            return (
                f"{config.num_stages} stages take {smem} bytes of shared memory, a CTA has {limits.smem_per_cta_bytes}"
            )
        if threads * _MIN_REGISTERS > limits.registers_per_sm or threads > limits.max_threads_per_sm:
            return f"an SM cannot hold {threads} threads of this kernel"
        if sizes is None:
            return None
        if sizes.N % 8 or sizes.K % 8:
            return f"rows of 16-byte chunks: N and K must be multiples of 8, got N = {sizes.N}, K = {sizes.K}"
        units = _units_of_tile(sizes)
        if config.split_k > units:
            return f"K = {sizes.K} has {units} units of {UNIT_K}, too few for {config.split_k} parts"
        if _tiles(config, sizes) * max(units, config.split_k) >= 2**31:
            return "more units of work than 31 bits count"
        return None

    def macros(self, variant: Variant) -> dict[str, int]:
        config, layout = variant.config, WarpLayout.of(variant.config)
        return {
            "TILE_M": config.cta_m, "TILE_N": config.cta_n, "TILE_K": config.cta_k, "WARP_M": layout.tokens,
            "WARP_N": layout.columns, "WARPS_K": layout.slices, "STAGES": config.num_stages,
            "MIN_CTAS": _min_ctas(config),
        }  # fmt: skip

    def smem_bytes(self, variant: Variant) -> int:
        config = variant.config
        tokens, weights = config.cta_m * config.cta_k * 2, config.cta_n * config.cta_k // 2
        return config.num_stages * (tokens + weights + variant.scale_bytes(config.cta_n, config.cta_k))

    def num_threads(self, variant: Variant) -> int:
        return THREADS_PER_WARP * variant.config.num_warps

    def launch(self, variant: Variant, sizes: Sizes, num_sms: int, ctas_per_sm: int) -> Launch:
        config = variant.config
        tiles, units = _tiles(config, sizes), _units_of_tile(sizes)
        tile_bytes = config.cta_m * config.cta_n * 4
        if config.decomposition is Decomposition.STREAM_K:
            ctas = min(num_sms * ctas_per_sm, tiles * units)  # every CTA has a unit
            slots = 0 if tiles % ctas == 0 else 2 * ctas  # whole tiles only: none is cut
        else:
            ctas = tiles * config.split_k
            slots = 0 if config.split_k == 1 else ctas
        return Launch(
            grid=(ctas, 1, 1), num_threads=self.num_threads(variant), smem_bytes=self.smem_bytes(variant),
            workspace_bytes=slots * tile_bytes, num_counters=tiles if slots else 0,
        )  # fmt: skip

    def arguments(
        self, variant: Variant, sizes: Sizes, launch: Launch, operands: Operands, tensor_map: TensorMapOf,  # noqa: ARG002
    ) -> tuple[Any, ...]:  # fmt: skip
        config = variant.config
        return (
            np.uint64(operands.a), np.int32(operands.lda), np.uint64(operands.qweight), np.uint64(operands.scales),
            np.uint64(operands.bias), np.uint64(operands.c), np.uint64(operands.workspace),
            np.uint64(operands.counters), np.float32(operands.alpha), np.int32(sizes.M), np.int32(sizes.N),
            np.int32(sizes.K), np.int32(operands.num_column_blocks), np.int32(operands.num_k_blocks),
            np.int32(operands.num_groups), np.uint32(_units_of_tile(sizes)),
            np.uint32(0 if config.decomposition is Decomposition.STREAM_K else config.split_k),
            np.uint32(config.raster_order is RasterOrder.ALONG_N), np.uint32(config.raster_swizzle),
        )  # fmt: skip

    def _max_ctas_per_sm(self, variant: Variant, limits: DeviceLimits) -> int:
        """CTAs that an SM holds at most, if the compiler takes all registers it may."""
        of_smem = limits.smem_per_sm_bytes // (self.smem_bytes(variant) + limits.smem_reserved_bytes)
        of_threads = limits.max_threads_per_sm // self.num_threads(variant)
        return max(1, min(of_smem, _min_ctas(variant.config), of_threads, limits.max_ctas_per_sm))


_MIN_REGISTERS = 80
"""Of a thread: no kernel of the family needs fewer."""


def _min_ctas(config: KernelConfig) -> int:
    """CTAs of an SM that the compiler must leave registers for: what sums, weights and tokens of a warp allow."""
    layout = WarpLayout.of(config)
    sums = layout.tokens * layout.columns // 32
    warps = 8 if sums >= 128 else 12 if sums == 64 else 16
    return warps // config.num_warps


def _tiles(config: KernelConfig, sizes: Sizes) -> int:
    return ceil_div(sizes.M, config.cta_m) * ceil_div(sizes.N, config.cta_n)


def _units_of_tile(sizes: Sizes) -> int:
    return ceil_div(sizes.K, UNIT_K)
