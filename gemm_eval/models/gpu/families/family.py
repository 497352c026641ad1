"""Facts of a kernel family."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from gemm_eval.arch import SM_ARCHS, ladder_of
from gemm_eval.dtypes import DType
from gemm_eval.mapping import Schedule
from gemm_eval.models.gpu.coefficients import COEFFICIENTS, Coefficient
from gemm_eval.workload import MAX_DIM, GemmTypes

MAX_STAGES = 16
"""Most buffers of a ring, of families that do not say less."""

MIN_STREAM_STEPS = 8
"""Of a CTA of stream-K: as of a part of a split K, where a library weighs it."""

LINE_BYTES = 128
"""Of shared memory under the 128-byte swizzle: what kernels take of a row of A or B in one k-step."""


class TileChoice(NamedTuple):
    """A tile that a library has kernels for."""

    family: str
    cta_m: int
    cta_n: int
    num_warps: int
    schedule: Schedule
    clusters: tuple[tuple[int, int], ...]  # (cluster_m, cluster_n)
    step_bytes: int = 0  # of a row in one k-step; 0: as the family has it
    num_stages: int = 0  # 0: whatever fits best
    is_along_k: bool = False  # for A and B of which K runs along memory alone


SINGLE = ((1, 1),)
PAIRS = ((1, 1), (1, 2), (2, 1))
"""Clusters of one CTA, and of up to two."""

BLACKWELL_SIDES = (16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)
BLACKWELL_SIZES = tuple(dict.fromkeys([(128, n) for n in BLACKWELL_SIDES] + [(m, 128) for m in BLACKWELL_SIDES]))
"""Tiles of DeepGEMM on data-center Blackwell: 128 rows of either operand."""


def fixed_tiles(
    family: str, sizes: Iterable[tuple[int, int]], warps: int, schedule: Schedule,
    clusters: tuple[tuple[int, int], ...] = SINGLE, **more: Any,
) -> Callable[..., Iterator[TileChoice]]:  # fmt: skip
    """Return what yields the same tiles on every GPU and for every type."""

    def tiles(*_: object) -> Iterator[TileChoice]:
        return (TileChoice(family, m, n, warps, schedule, clusters, **more) for m, n in sizes)

    return tiles


def since(sm_arch: str) -> tuple[str, ...]:
    """Return this generation of NVIDIA's SMs and all later ones: those of an instruction that none took out."""
    return SM_ARCHS[SM_ARCHS.index(sm_arch) :]


def any_rows(_: int) -> int:
    """Return the most rows of a family whose tiles are for whatever sizes."""
    return MAX_DIM


def one_cta(_: int) -> int:
    """Return the CTAs an SM of a family whose stream-K has one."""
    return 1


def no_tiles(*_: object) -> Iterable[TileChoice]:
    """Return no tiles: of a family whose tiles come from elsewhere, or that has none for such types."""
    return ()


@dataclass(frozen=True, kw_only=True)
class Family:
    """A kind of kernel: which hardware it needs, how its CTAs are built, and the tiles that libraries have of it.

    Attributes:
        mma_m, mma_n_step: rows of its instruction; its columns are a multiple of the other.
        is_compiled: whether a compiler wrote its main loop (Triton): it reads operands and multiplies in turn, and does
            not load rows beyond a group.
        rate_frac: share of the chip's tensor rate that its instruction reaches, by `sm_arch`; see `rate_on`.
        block_scaled: input type of the block-scaled GEMMs that it is for, and nothing else; None: others.
        min_rows, most_rows: fewest and most rows of C for which libraries use its tiles.
        stream_ctas: rows of a tile -> most CTAs of an SM among which stream-K spreads the work.
        for_types: of a family of grouped kernels, the types that they are for; None: it is of plain GEMMs.
        plain_types: likewise, of one of plain GEMMs that a library lists (`plain_families`).
        tile_cost: sm_arch -> cost of a tile outside its main loop over that on the generation that was timed, where its
            kernels differ.
        fills_across_groups: whether the ring of a grouped kernel holds tiles of the next group's matrix ahead, too.
        along_m_cost: cycles of an instruction where A lies along M over those where it lies along K.
        carries_from: sm_arch -> generations whose coefficients carry over to it better than those of nearer ones.
        dense_tiles: (sm_arch, input type) -> tiles for dense GEMMs.
        weight_only_tiles: (columns of weights, rows of tokens that a library has) -> tiles for narrower weights.
    """

    name: str  # as in `KernelConfig`
    number: int  # of it in records; never given to another
    sm_archs: tuple[str, ...]  # generations of SMs that run it
    schedules: tuple[Schedule, ...]  # how its warps share the work
    mma_m: int
    mma_n_step: int
    num_warps: tuple[int, ...]  # that compute
    max_registers: int  # of a computing thread
    operands: Literal["smem", "registers", "lanes", "vector"]  # where the instruction reads A and B from
    coefficients: tuple[Coefficient, ...] = COEFFICIENTS  # what its kernels lose, with its defaults
    own_of: tuple[str, ...] = ()  # those on which vendors' libraries run it; elsewhere they run `sm80_mma`
    other_dtypes: tuple[DType, ...] = ()  # input types for which they do not, even there
    has_clusters: bool = False  # whether its CTAs can share loads by multicast
    has_cp_async: bool = True  # whether its loads bypass registers where the chip can do that
    is_warp_specialized: bool = False  # whether warps of their own load; such a kernel is persistent and fills its SM
    is_compiled: bool = False
    has_tensor_memory: bool = False  # whether accumulators lie in tensor memory where the chip has that
    rate_frac: Mapping[str, float] = field(default_factory=dict)
    is_ours: bool = False  # its configs are the kernels of `gemm_eval.kernels`, from a table; see `models.gpu.w4a16`
    is_quantization: bool = False  # it computes no GEMM: its kernels quantize A before one
    block_scaled: DType | None = None
    max_rows: Callable[[int], int] = any_rows  # rows of a tile -> most rows of C for which libraries use it
    min_rows: int = 1
    most_rows: int = MAX_DIM
    step_bytes: int = LINE_BYTES  # of a row of A or B in one k-step
    more_step_bytes: tuple[int, ...] = ()  # others that tiles of it have
    least_step_bytes: int = 0  # longer k-steps run only a K of whole ones; 0: any K
    min_stream_steps: int = MIN_STREAM_STEPS  # fewest k-steps of a CTA of stream-K
    stream_ctas: Callable[[int], int] = one_cta
    max_stages: int = MAX_STAGES  # most buffers of its ring
    for_types: Callable[[GemmTypes], bool] | None = None
    plain_types: Callable[[GemmTypes], bool] | None = None
    tile_cost: Mapping[str, float] = field(default_factory=dict)
    fills_across_groups: bool = False
    along_m_cost: float = 1.0
    carries_from: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dense_tiles: Callable[[str, DType], Iterable[TileChoice]] = no_tiles
    weight_only_tiles: Callable[[tuple[int, ...], tuple[int, ...]], Iterable[TileChoice]] = no_tiles

    @property
    def defaults(self) -> dict[str, float]:
        """Coefficients before any fit."""
        return {item.name: item.default for item in self.coefficients}

    def rate_on(self, sm_arch: str) -> float:
        """Share of the chip's tensor rate that its instruction reaches.

        A generation that `rate_frac` does not name is as the last before it that it names; 1 without any.
        """
        ladder = ladder_of(sm_arch)
        known = [self.rate_frac[name] for name in ladder[: ladder.index(sm_arch) + 1] if name in self.rate_frac]
        return known[-1] if known else 1.0
