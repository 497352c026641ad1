"""The Hopper family: bulk copies, wgmma with the dequantized weights from registers, warp specialization."""

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from gemm_eval.arch import DeviceLimits, cluster_sms
from gemm_eval.dtypes import DType
from gemm_eval.kernels.families.base import Family, Launch, Operands, Sizes, TensorMapOf, Variant, WeightMode, ceil_div
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder, Schedule

_ROWS, BLOCK_K, _BLOCK_BYTES = 64, 64, 2048  # columns and k of a packed block, and its bytes
UNIT_K = 128  # K is cut in multiples of it
_WARPS_OF_WARPGROUP = 4
_DIRECT_STORE_TOKENS = 16  # up to here results go to C without shared memory
_MAX_ACCUMULATORS = {2: 256, 3: 176}  # tokens x 64-column blocks of a warpgroup, by how many compute
_WIDE_TOKENS = range(136, 169, 8)
"""Of tiles of 256 columns beyond that, where the warps that copy make do with fewer registers: one wave of them holds
what others cut K for."""
_ALIGN = 1024  # of the ring, for 128-byte swizzle
_MAX_SMEM = 227 * 1024  # of a CTA on Hopper
_SM_SMEM, _RESERVED_SMEM = 228 * 1024, 1024
_TURN_BYTES = 32  # turns of the warpgroups
_SUM_BYTES = 4
_MAX_STAGES = 12

_TOKENS = (*range(8, 129, 8), *range(144, 257, 16))
"""Tokens of a tile: any multiple of 8, but past 128 steps of 8 save less than they cost to choose among."""
_DEEP_STEP_TOKENS = 160  # from here on a stage holds 64 k: 128 leave room for two stages
_CLUSTERS = ((1, 1), (1, 2))  # two CTAs share tokens; to share weights gained nothing where it was timed
_CLUSTER_TOKENS = 64  # fewer are not worth sharing
_CLUSTER_K_TOKENS = (*range(16, 65, 8), *range(80, 129, 16), *range(160, 257, 32))
_CLUSTER_PARTS = {2: (2, 3, 4, 6, 8), 3: (2, 3, 4)}
"""CTAs that share K in a cluster, by computing warpgroups."""
_TOKEN_GROUP = 8  # columns of wgmma
_LEAST_BOX_TOKENS = 48  # of a tile that is larger: each box of C takes its time
_SHARES = (
    (Schedule.COOPERATIVE, 2, 1), (Schedule.COOPERATIVE, 2, 2), (Schedule.COOPERATIVE, 3, 1), (Schedule.PINGPONG, 2, 1),
)  # fmt: skip
"""Schedule, computing warpgroups, and blocks of 64 columns of each."""


class Sm90Family(Family):
    """wgmma kernels. `cta_m` is a tile of tokens, 8..256; `cta_n` of columns.

    COOPERATIVE: two or three computing warpgroups share a tile, 64 or 128 columns each (`num_warps` is theirs).
    PINGPONG: two, and each has a tile of 64 columns. `cta_k` is what a stage of the ring holds. Two CTAs share an SM
    where the tile is small and the ring leaves room.
    """

    name = "w4a16_sm90"
    source = "sm90.cu"
    headers: ClassVar[tuple[str, ...]] = ("hopper.cuh",)
    entry = "w4a16_sm90"
    targets = {(9, 0): "sm_90a"}  # noqa: RUF012  constant
    limited_by = "wgmma is Hopper's alone, Blackwell has no such instruction"
    wide_tokens: ClassVar[Sequence[int]] = _WIDE_TOKENS

    def configs(self) -> Iterator[KernelConfig]:
        for cta_m in _TOKENS:
            for schedule, consumers, blocks in _SHARES:
                if cta_m * blocks <= _MAX_ACCUMULATORS[consumers]:
                    yield from self._of_tile(schedule, consumers, cta_m, blocks)
        for cta_m in self.wide_tokens:
            yield from self._of_tile(Schedule.COOPERATIVE, 2, cta_m, 2)

    def _of_tile(self, schedule: Schedule, consumers: int, cta_m: int, blocks: int) -> Iterator[KernelConfig]:
        cta_n = _ROWS * blocks * (consumers if schedule is Schedule.COOPERATIVE else 1)
        is_deep = cta_m >= _DEEP_STEP_TOKENS or cta_m * blocks > _MAX_ACCUMULATORS[consumers]
        cta_k = 64 if is_deep else 128
        for cluster_m, cluster_n in _CLUSTERS if cta_m >= _CLUSTER_TOKENS and cta_m % 16 == 0 else _CLUSTERS[:1]:
            alone = KernelConfig(
                self.name, cta_m, cta_n, cta_k, cluster_m, cluster_n, _WARPS_OF_WARPGROUP * consumers, 0, schedule,
                Decomposition.DATA_PARALLEL, 1, RasterOrder.ALONG_M, 8,
            )  # fmt: skip
            budgets = [_MAX_SMEM]
            if _is_small(alone):
                budgets.append(_SM_SMEM // 2 - _RESERVED_SMEM)
            # the deepest ring for the scales of any mode: a config is the same kernel whatever the mode
            fixed = self._fixed_bytes(alone)
            stage = _stage_bytes(alone, WeightMode.GROUP_ZERO, 32) + 16
            for stages in sorted({min((budget - fixed) // stage, _MAX_STAGES) for budget in budgets}):
                if stages >= 2:
                    yield alone._replace(num_stages=stages)

    def splits(self, variant: Variant, sizes: Sizes, limits: DeviceLimits) -> Iterator[tuple[Decomposition, int]]:
        yield Decomposition.DATA_PARALLEL, 1
        config = variant.config
        units = ceil_div(sizes.K, UNIT_K)
        tiles = _num_tiles(config, sizes)
        slots = self._resident_clusters(variant, limits.num_sms)
        for parts in (2, 3, 4, 6, 8, 12, 16):
            if parts <= units and tiles * parts <= 2 * slots:
                yield Decomposition.SPLIT_K, parts
        if tiles % slots and units > 1:
            yield Decomposition.STREAM_K, 1

    def refusal(self, variant: Variant, sizes: Sizes | None, limits: DeviceLimits) -> str | None:
        config = variant.config
        if (smem := self.smem_bytes(variant)) > limits.smem_per_cta_bytes:
            return f"needs {smem:,} bytes of shared memory, a CTA has {limits.smem_per_cta_bytes:,}"
        ctas = config.cluster_m * config.cluster_n
        if cluster_sms(limits.num_sms, ctas) * self._ctas_per_sm(variant) < ctas:
            return f"a cluster of {ctas} CTAs finds no room on the {limits.num_sms} SMs of the GPU"
        if sizes is None:
            return None
        if config.cluster_m > 1 and ceil_div(sizes.M, config.cta_m) < config.cluster_m:
            return f"cluster_m {config.cluster_m} needs more than {config.cta_m} tokens, there are {sizes.M}"
        if config.cluster_n > 1 and ceil_div(sizes.N, config.cta_n) < config.cluster_n:
            return f"cluster_n {config.cluster_n} needs more than {config.cta_n} columns, there are {sizes.N}"
        if _num_tiles(config, sizes) * max(ceil_div(sizes.K, UNIT_K), config.split_k) >= 1 << 31:
            return "too many tiles: the kernel counts parts and units of them in 32 bits"
        if config.decomposition is Decomposition.SPLIT_K and config.split_k > ceil_div(sizes.K, UNIT_K):
            return f"K = {sizes.K} has {ceil_div(sizes.K, UNIT_K)} units of {UNIT_K}, fewer than split_k"
        return None

    def macros(self, variant: Variant) -> dict[str, int]:
        config, is_cluster = variant.config, variant.config.family == Sm90ClusterFamily.name
        return {
            "CTA_M": config.cta_m, "CONSUMERS": _consumers(config), "MB": _blocks(config),
            "COOPERATIVE": int(config.schedule is Schedule.COOPERATIVE), "STAGES": config.num_stages,
            "STEP_BLOCKS": config.cta_k // BLOCK_K, "CLUSTER_M": config.cluster_m, "CLUSTER_N": config.cluster_n,
            "CLUSTER_K": config.split_k if is_cluster else 1, "EPILOGUE_TOKENS": _epilogue_tokens(config),
            "CTAS_PER_SM": self._ctas_per_sm(variant),
        }  # fmt: skip

    def prelude(self, variant: Variant) -> str:
        """Return the instruction for this many tokens; its operands cannot be written once for all."""
        return wgmma_of_halves(variant.config.cta_m)

    def smem_bytes(self, variant: Variant) -> int:
        config = variant.config
        stage = _stage_bytes(config, variant.mode, variant.group_size) + 16  # and two barriers
        return self._fixed_bytes(config) + config.num_stages * stage

    def _fixed_bytes(self, config: KernelConfig) -> int:
        """Shared memory beside the ring."""
        epilogue = _consumers(config) * _epilogue_tokens(config) * 128 if _stores_by_tma(config) else 0
        return _ALIGN + epilogue + _TURN_BYTES

    def num_threads(self, variant: Variant) -> int:
        """See `Family`: a warpgroup that copies, and those that compute."""
        return 128 * (1 + _consumers(variant.config))

    def _ctas_per_sm(self, variant: Variant) -> int:
        config = variant.config
        return 2 if _is_small(config) and 2 * (self.smem_bytes(variant) + _RESERVED_SMEM) <= _SM_SMEM else 1

    def _resident_clusters(self, variant: Variant, num_sms: int) -> int:
        ctas = variant.config.cluster_m * variant.config.cluster_n
        return max(1, cluster_sms(num_sms, ctas) * self._ctas_per_sm(variant) // ctas)

    def launch(self, variant: Variant, sizes: Sizes, num_sms: int, ctas_per_sm: int) -> Launch:  # noqa: ARG002
        """See `Family`. The grid is persistent: no more CTAs than fit at once."""
        config = variant.config
        ctas = config.cluster_m * config.cluster_n
        tiles, resident = _num_tiles(config, sizes), self._resident_clusters(variant, num_sms)
        tile_bytes = 4 * config.cta_m * config.cta_n
        if config.decomposition is Decomposition.STREAM_K:
            clusters = min(resident, tiles * ceil_div(sizes.K, UNIT_K))
            slots = clusters
        else:
            clusters = min(resident, tiles * config.split_k)
            slots = tiles * (config.split_k - 1)
        return Launch(
            (clusters * ctas, 1, 1), self.num_threads(variant), self.smem_bytes(variant), slots * ctas * tile_bytes,
            tiles * ctas * sharing_warpgroups(config) if slots else 0,
        )  # fmt: skip

    def arguments(
        self, variant: Variant, sizes: Sizes, launch: Launch, operands: Operands, tensor_map: TensorMapOf
    ) -> tuple[Any, ...]:
        config = variant.config
        # rows outside A are slow to fill: a tile that is larger than A copies only what there is
        box_rows = min(config.cta_m // config.cluster_n, sizes.M)
        map_a = tensor_map(operands.a, variant.activation, (sizes.M, sizes.K), operands.lda, (box_rows, BLOCK_K))
        map_c = map_a
        if _stores_by_tma(config):
            rows = min(_epilogue_tokens(config), sizes.M)
            map_c = tensor_map(operands.c, variant.activation, (sizes.M, sizes.N), sizes.N, (rows, _ROWS))
        numbers = *self._numbers(config, sizes, launch, operands).values(), box_rows
        addresses = (
            operands.qweight, operands.scales, operands.bias, operands.c, operands.workspace, operands.counters,
        )  # fmt: skip
        return (map_a, map_c, *map(np.uint64, addresses), np.float32(operands.alpha), *map(np.uint32, numbers))

    def _numbers(self, config: KernelConfig, sizes: Sizes, launch: Launch, operands: Operands) -> dict[str, int]:
        """Sizes and how the work is cut, in the order in which the kernel takes them."""
        tiles_m, tiles_n = _tiles(config, sizes)
        clusters = launch.grid[0] // (config.cluster_m * config.cluster_n)
        share, remainder = divmod(tiles_m * tiles_n * (operands.num_k_blocks // 2), clusters)
        return {
            "M": sizes.M, "N": sizes.N, "num_column_blocks": operands.num_column_blocks,
            "num_k_blocks": operands.num_k_blocks, "num_groups": operands.num_groups, "tiles_m": tiles_m,
            "tiles_n": tiles_n, "split": 0 if config.decomposition is Decomposition.STREAM_K else config.split_k,
            "share": share, "remainder": remainder, "swizzle": min(config.raster_swizzle, tiles_m),
        }  # fmt: skip


class Sm90ClusterFamily(Sm90Family):
    """The cooperative kernels of `Sm90Family` with K cut among the CTAs of a cluster (`split_k`), a tile each.

    They send each other their sums through shared memory, so that parts cost neither a round trip to L2 nor a
    workspace, and each adds up its share of the tokens. All CTAs must find room at once.
    """

    name = "w4a16_sm90_cluster"

    def configs(self) -> Iterator[KernelConfig]:
        for cta_m in _CLUSTER_K_TOKENS:
            for consumers, limit in _MAX_ACCUMULATORS.items():
                for alone in self._of_tile(Schedule.COOPERATIVE, consumers, cta_m, 1) if cta_m <= limit else ():
                    for parts in _CLUSTER_PARTS[consumers] if alone.cluster_n == 1 else ():
                        config = alone._replace(decomposition=Decomposition.SPLIT_K, split_k=parts)
                        if _exchange_bytes(config) <= config.num_stages * _stage_bytes(config, WeightMode.COLUMN, 0):
                            yield config

    def compiled(self, config: KernelConfig) -> KernelConfig:
        """See `Family`: the parts are CTAs of a cluster, and compiled in."""
        return config

    def splits(
        self, variant: Variant, sizes: Sizes, limits: DeviceLimits,  # noqa: ARG002
    ) -> Iterator[tuple[Decomposition, int]]:  # fmt: skip
        yield Decomposition.SPLIT_K, variant.config.split_k

    def refusal(self, variant: Variant, sizes: Sizes | None, limits: DeviceLimits) -> str | None:
        result = super().refusal(variant, sizes, limits)
        parts = variant.config.split_k
        room = cluster_sms(limits.num_sms, parts) * self._ctas_per_sm(variant)
        if result is None and room < parts:
            return f"a cluster of {parts} CTAs finds no room on the {limits.num_sms} SMs of the GPU"
        if result is None and sizes is not None and (ctas := _num_tiles(variant.config, sizes) * parts) > room:
            return f"has {ctas:,} CTAs, the GPU holds {room:,} in clusters of {parts} at once"
        return result

    def launch(self, variant: Variant, sizes: Sizes, num_sms: int, ctas_per_sm: int) -> Launch:  # noqa: ARG002
        ctas = _num_tiles(variant.config, sizes) * variant.config.split_k
        return Launch((ctas, 1, 1), self.num_threads(variant), self.smem_bytes(variant), 0, 0)


def wgmma_of_halves(n: int, name: str = "wgmma") -> str:
    """Return `wgmma_text` for 16-bit operands and `n` tokens."""
    return wgmma_text(name, f'm64n{n}k16.f32." MMA_TYPE "." MMA_TYPE "', n // 2, "1, 1, 1, 0")


def wgmma_text(name: str, types: str, sums: int, flags: str) -> str:
    """Return a function that issues wgmma with weights from registers: name(sums, a, descriptor)."""
    d = ", ".join(f"%{i}" for i in range(sums))
    a = ", ".join(f"%{sums + i}" for i in range(4))
    outputs = ", ".join(f'"+f"(d[{i}])' for i in range(sums))
    inputs = ", ".join(f'"r"(a[{i}])' for i in range(4))
    return (
        f"DEVICE void {name}(float (&d)[{sums}], const u32 (&a)[4], u64 b) {{\n"
        f'  asm volatile("wgmma.mma_async.sync.aligned.{types}"\n'
        f'      " {{{d}}}, {{{a}}}, %{sums + 4}, {flags};"\n'
        f'      : {outputs}\n      : {inputs}, "l"(b));\n}}\n'
    )


def sharing_warpgroups(config: KernelConfig) -> int:
    """Warpgroups that compute a tile together."""
    return _consumers(config) if config.schedule is Schedule.COOPERATIVE else 1


def _exchange_bytes(config: KernelConfig) -> int:
    """Return sums of all parts for a CTA's share of the tokens, which take the place of the ring."""
    shares = ceil_div(config.cta_m // _TOKEN_GROUP, config.split_k)
    return config.split_k * shares * _TOKEN_GROUP * config.cta_n * _SUM_BYTES


def _consumers(config: KernelConfig) -> int:
    """Warpgroups that compute."""
    return config.num_warps // _WARPS_OF_WARPGROUP


def _blocks(config: KernelConfig) -> int:
    """Blocks of 64 columns of a warpgroup."""
    return config.cta_n // _ROWS // sharing_warpgroups(config)


def _is_small(config: KernelConfig) -> bool:
    """Say whether two CTAs of an SM have registers enough."""
    is_cooperative = config.schedule is Schedule.COOPERATIVE
    return _consumers(config) == 2 and _blocks(config) == 1 and config.cta_m <= (24 if is_cooperative else 16)


def _epilogue_tokens(config: KernelConfig) -> int:
    """Tokens of C that go through shared memory at once: a part of the tile, or a half and what is left."""
    whole = next(n for n in range(128, 0, -8) if config.cta_m % n == 0)
    is_large = whole >= min(_LEAST_BOX_TOKENS, config.cta_m)
    return whole if is_large else ceil_div(config.cta_m, 2 * _TOKEN_GROUP) * _TOKEN_GROUP


def _stores_by_tma(config: KernelConfig) -> bool:
    return config.cta_m > _DIRECT_STORE_TOKENS and config.family != Sm90ClusterFamily.name


def _stage_bytes(config: KernelConfig, mode: WeightMode, group_size: int) -> int:
    blocks_k, blocks_n = config.cta_k // BLOCK_K, config.cta_n // _ROWS
    groups = 0 if mode is WeightMode.COLUMN else max(1, config.cta_k // group_size)
    tokens = config.cta_m * config.cta_k * DType.FP16.bits // 8
    return tokens + blocks_n * (blocks_k * _BLOCK_BYTES + groups * _ROWS * mode.param_bytes)


def _tiles(config: KernelConfig, sizes: Sizes) -> tuple[int, int]:
    return (ceil_div(sizes.M, config.cta_m * config.cluster_m), ceil_div(sizes.N, config.cta_n * config.cluster_n))


def _num_tiles(config: KernelConfig, sizes: Sizes) -> int:
    tiles_m, tiles_n = _tiles(config, sizes)
    return tiles_m * tiles_n
