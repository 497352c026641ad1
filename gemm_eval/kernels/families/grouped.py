"""Kernels whose tokens come in groups with weights of their own: experts of a mixture, or a batch.

How many tokens a group has is in the GPU's memory alone. A launch is the same whatever it is: so many CTAs as fit at
once, each of which counts the tiles of all groups and takes its share. `DATA_PARALLEL`: a CTA has whole tiles.
`STREAM_K`: where that is faster by their number, the GPU cuts K of all tiles so that each CTA has an even share.
"""

from collections.abc import Iterator
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from gemm_eval.arch import DeviceLimits
from gemm_eval.kernels.families.base import Family, Fusion, Launch, Operands, Sizes, TensorMapOf, Variant, ceil_div
from gemm_eval.kernels.families.gemv import GemvMmaFamily
from gemm_eval.kernels.families.sm80 import Sm80Family
from gemm_eval.kernels.families.sm90 import BLOCK_K, UNIT_K, Sm90Family, sharing_warpgroups, wgmma_of_halves
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder

MAX_GROUPS = 1024
"""Of a launch: a CTA counts the tiles of so many in its shared memory."""

MAX_CUT_WAVES = 2
"""K is cut where tiles fill at most so many waves: of more, what the last leaves idle is little."""

_TABLE_BYTES = ceil_div((MAX_GROUPS + 2) * 4, 16) * 16
_ORDER_BYTES, _PLAN_BYTES = 2 * MAX_GROUPS, 32  # of groups in the order of their shares; of how tiles are cut
_PLACES_BYTES = 512  # of tiles, from the thread that finds them to those that compute
_SUM_BYTES = 4
SHARES = (24, 48, 64, 80, 104, 128, 152, 200)
"""Tokens of a tile that `w4a16_sm90_grouped` is compiled for besides all: fewer than 24 take as long, as weights are
dequantized."""
FEW_TOKENS = 48
"""Rows of A that a tile copies to shared memory if it has at most as many tokens; other tiles copy all their rows."""


def shares_of(cta_m: int) -> tuple[int, ...]:
    """Return the numbers of tokens that tiles of `cta_m` are compiled for, the most first."""
    return cta_m, *(tokens for tokens in reversed(SHARES) if tokens < cta_m)


class GroupedSizes(NamedTuple):
    """Sizes of a grouped GEMM, in elements: `M` tokens of all groups together, at most."""

    M: int
    K: int
    N: int
    num_groups: int

    @property
    def of_all(self) -> Sizes:
        """Sizes of one GEMM with all tokens."""
        return Sizes(self.M, self.K, self.N)


class Choices(NamedTuple):
    """Addresses of what `Fusion.SUMMED` adds up by (groups.cuh), and how many experts a token goes to."""

    row_tokens: int
    choice_rows: int
    weights: int
    out: int
    counters: int
    num_choices: int


class GroupedOperands(NamedTuple):
    """Operands of one GEMM (weights, scales and bias of all groups follow each other), and two more addresses.

    `offsets` are int32 [num_groups + 1], first tokens and the end of the last; `factors` float32 [num_groups];
    `choices` are of `Fusion.SUMMED`.
    """

    dense: Operands
    offsets: int
    factors: int
    choices: Choices | None = None


class GroupedFamily(Family):
    """The part of grouped kernels beyond those of one GEMM, which stand behind this class among their bases."""

    headers: ClassVar[tuple[str, ...]] = ("groups.cuh",)
    slots_of_cta: ClassVar[int]
    """Parts of tiles that a CTA leaves in the workspace at most."""
    fusions: ClassVar[tuple[Fusion, ...]] = (Fusion.NONE,)
    """Parts of a layer of experts that the kernels can do besides their GEMM."""

    def refusal(self, variant: Variant, sizes: Sizes | None, limits: DeviceLimits) -> str | None:
        if variant.fusion not in self.fusions:
            return f"it does not fuse {variant.fusion.name} into its GEMM"
        return super().refusal(variant, sizes, limits)  # type: ignore[safe-super]

    def resident_ctas(self, variant: Variant, num_sms: int, ctas_per_sm: int) -> int:  # noqa: ARG002
        """CTAs that fit the GPU at once."""
        return num_sms * ctas_per_sm

    def counters_of_tile(self, config: KernelConfig) -> int:  # noqa: ARG002
        """32-bit counters of a tile whose K is cut."""
        return 1

    def smem_bytes(self, variant: Variant) -> int:
        return super().smem_bytes(variant) + _TABLE_BYTES  # type: ignore[safe-super]

    def splits(
        self, variant: Variant, sizes: Sizes, limits: DeviceLimits,  # noqa: ARG002
    ) -> Iterator[tuple[Decomposition, int]]:  # fmt: skip
        yield Decomposition.DATA_PARALLEL, 1
        yield Decomposition.STREAM_K, 1

    def macros(self, variant: Variant) -> dict[str, int]:
        return super().macros(variant) | {"GROUPED": 1, "GROUP_TILE_M": variant.config.cta_m}  # type: ignore[safe-super]

    def launch_groups(self, variant: Variant, sizes: GroupedSizes, num_sms: int, ctas_per_sm: int) -> Launch:
        """Grid and workspace for any groups whose tokens come to `sizes.M` at most."""
        config = variant.config
        ctas = self.resident_ctas(variant, num_sms, ctas_per_sm)
        tile_bytes = config.cta_m * config.cta_n * _SUM_BYTES
        return Launch(
            grid=(ctas, 1, 1), num_threads=self.num_threads(variant), smem_bytes=self.smem_bytes(variant),
            workspace_bytes=ctas * self.slots_of_cta * tile_bytes if self._most_cut(config, sizes, ctas) else 0,
            num_counters=self._cut_tiles(config, sizes, ctas) * self.counters_of_tile(config),
        )  # fmt: skip

    def arguments_of_groups(
        self, variant: Variant, sizes: GroupedSizes, launch: Launch, operands: GroupedOperands, tensor_map: TensorMapOf
    ) -> tuple[Any, ...]:
        return (
            *self.arguments(variant, sizes.of_all, launch, operands.dense, tensor_map), np.uint64(operands.offsets),
            np.uint32(sizes.num_groups), np.uint64(operands.factors),
            np.uint32(self._most_cut(variant.config, sizes, launch.grid[0])),
            *((*map(np.uint64, operands.choices[:-1]), np.uint32(operands.choices[-1])) if operands.choices else ()),
        )  # fmt: skip

    def _cut_tiles(self, config: KernelConfig, sizes: GroupedSizes, ctas: int) -> int:
        """Return the most tiles whose K is cut."""
        return self._most_cut(config, sizes, ctas) * ceil_div(sizes.N, config.cta_n)

    def _most_cut(self, config: KernelConfig, sizes: GroupedSizes, ctas: int) -> int:
        """Return the number of tiles along M, of all groups, up to which K may be cut; 0: never."""
        if config.decomposition is not Decomposition.STREAM_K:
            return 0
        return max(1, min(_most_tiles_m(config, sizes), MAX_CUT_WAVES * ctas // ceil_div(sizes.N, config.cta_n)))


def _most_tiles_m(config: KernelConfig, sizes: GroupedSizes) -> int:
    """Return the most tiles along M that all groups can have together."""
    return sizes.M // config.cta_m + min(sizes.num_groups, sizes.M)


class Sm90GroupedFamily(GroupedFamily, Sm90Family):
    """The kernels of `Sm90Family` on groups, without clusters."""

    name = "w4a16_sm90_grouped"
    headers = ("groups.cuh", "shares.cuh", "hopper.cuh")
    wide_tokens = range(136, 153, 8)  # the warps that copy need the registers for places of tiles
    slots_of_cta = 1
    fusions = (Fusion.NONE, Fusion.GATED)

    def configs(self) -> Iterator[KernelConfig]:
        return (config for config in super().configs() if config.cluster_n == 1)

    def prelude(self, variant: Variant) -> str:
        """Return the instruction for each number of tokens that a tile may have."""
        shares = shares_of(variant.config.cta_m)
        head = "template <u32 TOKENS> DEVICE void wgmma(float (&d)[TOKENS / 2], const u32 (&a)[4], u64 b);\n"
        texts = ["template <> " + wgmma_of_halves(n, f"wgmma<{n}>") for n in shares]
        pairs = " ".join(f"f({n}, {below})" for n, below in zip(shares, (*shares[1:], 0), strict=True))
        return head + "".join(texts) + f"#define EACH_SHARE(f) {pairs}\n"

    def macros(self, variant: Variant) -> dict[str, int]:
        cta_m = variant.config.cta_m
        return super().macros(variant) | {
            "SORTED": 1, "NUM_SHARES": len(shares_of(cta_m)), "FEW_TOKENS": min(FEW_TOKENS, cta_m),
            "GROUP_TABLE_BYTES": _TABLE_BYTES, "GROUP_ORDER_BYTES": _ORDER_BYTES,
        }  # fmt: skip

    def arguments(
        self, variant: Variant, sizes: Sizes, launch: Launch, operands: Operands, tensor_map: TensorMapOf
    ) -> tuple[Any, ...]:
        """See `Family`; behind, a map of A for tiles of few tokens."""
        box, shape = (min(FEW_TOKENS, variant.config.cta_m, sizes.M), BLOCK_K), (sizes.M, sizes.K)
        map_few = tensor_map(operands.a, variant.activation, shape, operands.lda, box)
        return (*super().arguments(variant, sizes, launch, operands, tensor_map), map_few)

    def resident_ctas(self, variant: Variant, num_sms: int, ctas_per_sm: int) -> int:  # noqa: ARG002
        return self._resident_clusters(variant, num_sms)

    def counters_of_tile(self, config: KernelConfig) -> int:
        """See `GroupedFamily`: one for each warpgroup."""
        return sharing_warpgroups(config)

    def _cut_tiles(self, config: KernelConfig, sizes: GroupedSizes, ctas: int) -> int:
        """Return the most tiles whose K is cut: those of the last waves."""
        tiles = _most_tiles_m(config, sizes) * ceil_div(sizes.N, config.cta_n)
        return min(tiles, MAX_CUT_WAVES * ctas) if self._most_cut(config, sizes, ctas) else 0

    def _most_cut(self, config: KernelConfig, sizes: GroupedSizes, ctas: int) -> int:  # noqa: ARG002
        """Return 1 if K may be cut: stream-K is asked for, and the costs of all tiles together fit 32 bits."""
        units = ceil_div(sizes.N, config.cta_n) * ceil_div(sizes.K, UNIT_K)
        costs = _most_tiles_m(config, sizes) * (config.cta_m // 8 + 3) * units
        return int(config.decomposition is Decomposition.STREAM_K and costs < 1 << 32)

    def smem_bytes(self, variant: Variant) -> int:
        return Sm90Family.smem_bytes(self, variant)

    def _fixed_bytes(self, config: KernelConfig) -> int:
        return super()._fixed_bytes(config) + _PLACES_BYTES + 2 * _TABLE_BYTES + _ORDER_BYTES + _PLAN_BYTES

    def _numbers(self, config: KernelConfig, sizes: Sizes, launch: Launch, operands: Operands) -> dict[str, int]:
        """See `Sm90Family`: what depends on the tokens of each group, the kernel finds out."""
        known = super()._numbers(config, sizes, launch, operands)
        return known | {"split": 1, "share": 0, "remainder": 0, "swizzle": config.raster_swizzle}


class Sm80GroupedFamily(GroupedFamily, Sm80Family):
    """The kernels of `Sm80Family` on groups."""

    name = "w4a16_sm80_grouped"
    slots_of_cta = 2

    def configs(self) -> Iterator[KernelConfig]:
        return (config for config in super().configs() if config.raster_order is RasterOrder.ALONG_M)

    def arguments(
        self, variant: Variant, sizes: Sizes, launch: Launch, operands: Operands, tensor_map: TensorMapOf
    ) -> tuple[Any, ...]:
        """See `Family`: of cut tiles CTAs have even shares."""
        as_shares = variant._replace(config=variant.config._replace(decomposition=Decomposition.STREAM_K))
        return super().arguments(as_shares, sizes, launch, operands, tensor_map)


_FOR_SHORT_K = (8, 128, 4, 2)
"""Tokens, columns, warps and stages of a kernel of which four CTAs fit an SM: tiles of a short K then need one wave."""


class GemvMmaGroupedFamily(GroupedFamily, GemvMmaFamily):
    """The kernels of `GemvMmaFamily` on groups: the GPU cuts K of all tiles into as many parts as are done first."""

    name = "w4a16_gemv_mma_grouped"
    headers = ("groups.cuh", "streaming.cuh")
    shapes = (*GemvMmaFamily.shapes, _FOR_SHORT_K)
    team_warps = MappingProxyType({**GemvMmaFamily.team_warps, _FOR_SHORT_K: 1})
    slots_of_cta = MAX_CUT_WAVES
    fusions = (Fusion.NONE, Fusion.GATED, Fusion.SUMMED)
    max_tokens = None

    def macros(self, variant: Variant) -> dict[str, int]:
        return super().macros(variant) | {"GROUP_TABLE_AT": self.smem_bytes(variant) - _TABLE_BYTES}
