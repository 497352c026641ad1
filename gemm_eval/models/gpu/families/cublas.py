"""Families of kernels that cuBLAS runs: vector products, mma.sync, wgmma, tcgen05, and Volta's HMMA."""

from collections.abc import Iterator
from dataclasses import replace

from gemm_eval.dtypes import DType
from gemm_eval.mapping import Schedule
from gemm_eval.models.gpu.coefficients import LONE_OWN, with_defaults, with_ranges
from gemm_eval.models.gpu.families.family import PAIRS, SINGLE, Family, TileChoice, no_tiles, since


def _tiles() -> Iterator[TileChoice]:
    for m in (1, 2, 4, 8):
        for n in (8, 16, 32):
            yield TileChoice("gemv", m, n, 4, Schedule.VECTOR, SINGLE)


def single_row_tiles() -> Iterator[TileChoice]:
    """Kernels of cuBLAS for one row of 16-bit types (gemv)."""
    for n in (1, 2, 4, 8, 16, 32):
        yield TileChoice("gemv", 1, n, 4, Schedule.VECTOR, SINGLE)


VECTOR_FAMILY = Family(
    name="gemv",
    number=4,
    sm_archs=since("sm_70"),
    schedules=(Schedule.VECTOR,),
    mma_m=1,
    mma_n_step=1,
    num_warps=(4,),
    max_registers=255,
    operands="vector",
    max_rows=lambda cta_m: cta_m,  # K is split over threads, tokens are not tiled
    weight_only_tiles=lambda *_: _tiles(),
)


_PAIRS = ((1, 2), (2, 1), (1, 4), (2, 4))
_PP, _COOP = Schedule.PINGPONG, Schedule.COOPERATIVE
_PINGPONG_ACCUMULATORS = 176 * 128  # a warpgroup holds a whole tile
_COOP_ACCUMULATORS = 176 * 256
_FEW_COLUMNS = ((64, 8), (64, 16), (64, 24), (64, 32), (64, 48))
_LONG_CLUSTERS = ((1, 1), (1, 2), (2, 1), (1, 4), (4, 1))
_MOST_OF_LONG = 64 * 128  # elements of the largest tile that cuBLAS often runs in a cluster of four (arch/measured)


def wgmma_tiles(family: str) -> Iterator[TileChoice]:
    """Tiles of cuBLAS's Hopper kernels, read from the names of 5,163 kernels that it proposes (arch/measured).

    Weights (N) lie on the instruction's 64 rows for few tokens, tokens (M) else; the other side is any multiple of 8.
    Tiles of up to `_MOST_OF_LONG` elements run in clusters of up to four, larger ones of up to two.
    """
    for n in (64, 128, 192, 256, 384, 512):
        for m in (8, 16, 24, 32, 48, 64, 80, 96):
            if m * n <= _COOP_ACCUMULATORS:
                yield _wgmma_tile(family, m, n, is_cooperative=m * n > _PINGPONG_ACCUMULATORS)
    for m, n in (
        *_FEW_COLUMNS, (64, 40), (64, 56), (64, 80), (64, 96), (64, 112), (64, 144), (64, 168), (64, 176), (128, 80),
        (128, 96), (128, 112), (128, 128), (128, 144), (128, 168), (128, 176), (160, 128), (136, 128), (112, 128),
    ):  # fmt: skip
        yield _wgmma_tile(family, m, n, is_cooperative=False)
    for m, n in (
        (128, 192), (192, 128), (256, 128), (128, 256), (192, 192), (128, 320), (160, 256), (192, 208), (64, 320),
        (64, 448), (136, 256),
    ):  # fmt: skip
        yield _wgmma_tile(family, m, n, is_cooperative=True)


def _wgmma_tile(family: str, m: int, n: int, *, is_cooperative: bool) -> TileChoice:
    clusters = _LONG_CLUSTERS if m * n <= _MOST_OF_LONG else PAIRS
    return TileChoice(family, m, n, 8, _COOP if is_cooperative else _PP, clusters)


def weight_only_tiles(family: str, columns: tuple[int, ...], rows: tuple[int, ...]) -> Iterator[TileChoice]:
    """Tiles of weight-only kernels on Hopper: weights on the instruction's 64 rows, tokens on its columns."""
    for n in columns:
        for m in rows:
            if m * n <= _PINGPONG_ACCUMULATORS and n == 64:
                yield TileChoice(family, m, n, 8, _PP, _PAIRS)
            elif m * n <= _COOP_ACCUMULATORS and n > 64:
                yield TileChoice(family, m, n, 8, _COOP, _PAIRS)


WGMMA = Family(
    name="sm90_wgmma",
    number=0,
    sm_archs=("sm_90",),
    own_of=("sm_90",),
    other_dtypes=(
        DType.INT8,
        DType.TF32,
    ),  # cuBLAS 13.1 takes mma.sync for it (kernel names in arch/measured/h200-sxm/cublaslt)
    schedules=(_PP, _COOP),
    mma_m=64,
    mma_n_step=8,
    num_warps=(8,),
    max_registers=232,  # setmaxnreg gives computing warpgroups up to 240 a thread
    operands="smem",
    has_clusters=True,
    is_warp_specialized=True,
    coefficients=with_defaults(l2_frac=1.4, store_exposed_frac=0.0),
    dense_tiles=lambda *_: wgmma_tiles("sm90_wgmma"),
    weight_only_tiles=lambda columns, rows: weight_only_tiles("sm90_wgmma", columns, rows),
)


# cuBLAS 13.1's one kernel for int8 where N is no multiple of 16 ("sm90_xmma_gemm_i8i32" in arch/measured): its tile is
# computed in full, whatever M and N are, and its int32 sums leave the SM slowly
INT8_ODD_COLUMNS = replace(
    WGMMA, name="sm90_int8", number=77, own_of=(), other_dtypes=(), weight_only_tiles=no_tiles,
    coefficients=with_defaults(
        kernel_us=1.0, coop_tile_cycles=1000.0, epilogue_bytes_per_cycle=16.0, l2_frac=1.4, store_exposed_frac=0.0
    ),
    dense_tiles=lambda *_: iter((TileChoice("sm90_int8", 256, 128, 8, _COOP, ((1, 2),)),)),
)  # fmt: skip


_MOST_SUMS_TWICE = 160 * 128  # of a tile whose sums lie in registers twice


def _full_tiles(*_: object) -> Iterator[TileChoice]:
    """Tiles of cuBLAS's fp8 kernels that add in fp32 (nvjet's "algo2", arch/measured/h100-sxm/torch)."""
    for choice in wgmma_tiles("sm90_wgmma_full"):
        size = choice.cta_m * choice.cta_n
        if size <= _MOST_SUMS_TWICE and (choice.cta_m, choice.cta_n) not in _FEW_COLUMNS:
            schedule = _COOP if size > _MOST_SUMS_TWICE // 2 else choice.schedule
            yield choice._replace(schedule=schedule, clusters=_PAIRS)


WGMMA_FULL = replace(
    WGMMA, name="sm90_wgmma_full", number=74, own_of=(), dense_tiles=_full_tiles, weight_only_tiles=no_tiles
)


_MS = Schedule.MULTISTAGE


def _ampere_tiles(family: str) -> Iterator[TileChoice]:
    """Tiles that mma.sync kernels of CUTLASS and cuBLAS commonly have: assumed, no list of cuBLAS's is published."""
    for m, n, warps in (
        (16, 64, 4), (16, 128, 4), (16, 256, 4), (32, 64, 4), (32, 128, 4), (32, 256, 4), (64, 32, 4), (64, 64, 4),
        (64, 128, 4), (64, 256, 4), (96, 128, 4), (96, 256, 8), (128, 32, 4), (128, 64, 4), (128, 96, 4), (128, 128, 4),
        (128, 128, 8), (128, 160, 8), (128, 192, 8), (128, 256, 8), (160, 128, 8), (192, 128, 8), (256, 64, 4),
        (256, 96, 8), (256, 128, 8),
    ):  # fmt: skip
        yield TileChoice(family, m, n, warps, _MS, SINGLE)


def _cublas_tiles(family: str) -> Iterator[TileChoice]:
    """Tiles of cuBLAS: edges of 64, 128 and 256, and 32 tokens. Of several lists this one explains its times best.

    On an A100 (arch/measured/a100-sxm-80gb) 160 tokens take what 256 do, which tiles of 96, 160 and 192 deny.
    """
    for m, n, warps in (
        (32, 64, 4), (64, 64, 4), (64, 128, 4), (128, 64, 4), (128, 128, 4), (128, 128, 8), (256, 64, 4), (64, 256, 4),
        (256, 128, 8), (128, 256, 8),
    ):  # fmt: skip
        yield TileChoice(family, m, n, warps, _MS, SINGLE)


def _int8_on_hopper_tiles() -> Iterator[TileChoice]:
    """Tiles of the kernels that cuBLAS 13.1 takes for int8 on Hopper (names in arch/measured/h200-sxm/cublaslt)."""
    for m, n, warps in ((64, 64, 4), (64, 128, 4), (128, 128, 4), (256, 128, 8), (128, 256, 8)):
        yield TileChoice("sm80_mma", m, n, warps, _MS, SINGLE)


def _dense_tiles(sm_arch: str, input_dtype: DType) -> Iterator[TileChoice]:
    if input_dtype is DType.INT8 and sm_arch == "sm_90":
        yield from _int8_on_hopper_tiles()
        return
    if input_dtype.bits == 16:
        yield from single_row_tiles()
    yield from _cublas_tiles("sm80_mma")


def _few_row_tiles(most: int) -> Iterator[TileChoice]:
    """Tiles of cuBLAS's kernels "gemv", of one token, and "gemmSN_TN", of a few (names in arch/measured)."""
    for m in (1, 2, 4, 8, 16):
        if m <= most:
            yield TileChoice("gemv", m, 8, 4, Schedule.VECTOR, SINGLE)


def _unaligned_tiles(_: str, input_dtype: DType) -> Iterator[TileChoice]:
    """Tiles of cuBLAS's kernels "cutlass_80 .. align2", of int8 "align4" (names in arch/measured/h200-sxm)."""
    for m, n, warps in (
        (16, 16, 1), (32, 32, 4), (64, 64, 4), (64, 128, 4), (128, 64, 4), (64, 256, 4), (128, 128, 4), (128, 256, 8),
        (256, 128, 8),
    ):  # fmt: skip
        yield TileChoice("mma_unaligned", m, n, warps, _MS, SINGLE)
    if input_dtype in (DType.FP16, DType.BF16):
        yield from _few_row_tiles(1)


def _tf32_unaligned_tiles(*_: object) -> Iterator[TileChoice]:
    """Tiles of cuBLAS's kernels "s1688gemm .. align1" and "sm80_xmma" for tf32 (names in arch/measured/h100-sxm)."""
    for m, n, warps in (
        (32, 32, 4), (64, 64, 4), (64, 128, 4), (128, 64, 4), (64, 256, 4), (128, 128, 4), (128, 256, 8), (256, 128, 8),
    ):  # fmt: skip
        yield TileChoice("sm90_tf32_unaligned", m, n, warps, _MS, SINGLE)
    yield from single_row_tiles()
    yield from (tile._replace(is_along_k=True) for tile in _few_row_tiles(16))


def _elementwise_tiles(_: str, input_dtype: DType) -> Iterator[TileChoice]:
    """Tiles of cuBLAS's kernels "cutlass_75 .. align1", small ones in fp16 alone (names in arch/measured/h200-sxm)."""
    for m, n, warps in ((16, 16, 1), (32, 32, 4), (64, 64, 4), (128, 128, 4), (128, 256, 8)):
        if m >= 64 or input_dtype is not DType.BF16:
            yield TileChoice("mma_elementwise", m, n, warps, _MS, SINGLE)
    if input_dtype in (DType.FP16, DType.BF16):
        yield from _few_row_tiles(16 if input_dtype is DType.BF16 else 1)


# as cuBLAS's int8 kernels of this kind on an H200 (arch/measured/h200-sxm/cublaslt), whose tiles and stages their names
# tell, rounded; ldmatrix and mma share the issue slots, so they reach less of the peak
_DEFAULTS = {
    "matrix_frac": 0.92, "step_cycles": 230.0, "tile_cycles": 400.0, "kernel_us": 0.9, "dram_frac": 0.93,
    "epilogue_bytes_per_cycle": 24.0,
}  # fmt: skip

MMA_SYNC = Family(
    name="sm80_mma",
    number=1,
    sm_archs=since("sm_80"),
    schedules=(_MS,),
    mma_m=16,
    mma_n_step=8,
    num_warps=(4, 8),
    max_registers=255,
    operands="registers",
    # on Hopper mma.sync reaches 0.62 of the rate of wgmma: 0.629 in the mean of Luo et al. 2024 ("Benchmarking and
    # Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking"), a little less in fits of our int8 timings,
    # with a matrix_frac of 1 on top; half of that on data-center Blackwell is assumed, as its tcgen05 rate is twice
    # Hopper's; RTX Blackwell has no other instruction
    rate_frac={"sm_90": 0.62, "sm_100": 0.31, "sm_120": 1.0},
    coefficients=with_defaults(**_DEFAULTS),
    dense_tiles=_dense_tiles,
    weight_only_tiles=lambda *_: _ampere_tiles("sm80_mma"),
)
# fp8 of cuBLASLt on Ada and RTX Blackwell: kernels of their own, which lose less at a k-step and more at the end of a
# split K. One set of coefficients with 16 bits' costs an L40S and an RTX PRO 6000 1 to 2 points (arch/measured)
MMA_FP8 = replace(
    MMA_SYNC, name="sm89_mma_fp8", number=30, sm_archs=since("sm_89"), own_of=("sm_89", "sm_120"),
    other_dtypes=tuple(dtype for dtype in DType if dtype is not DType.FP8),
    dense_tiles=lambda *_: _cublas_tiles("sm89_mma_fp8"), weight_only_tiles=lambda *_: _ampere_tiles("sm89_mma_fp8"),
)  # fmt: skip


def _tf32_on_hopper_tiles(*_: object) -> Iterator[TileChoice]:
    """Tiles of the kernels that cuBLAS 13.1 takes for tf32 on Hopper (names in arch/measured/h100-sxm/torch)."""
    for m, n, warps in (
        (64, 64, 4), (128, 64, 4), (64, 128, 4), (128, 128, 4), (256, 64, 4), (64, 256, 4), (256, 128, 8),
        (128, 256, 8),
    ):  # fmt: skip
        yield TileChoice("sm90_tf32", m, n, warps, _MS, SINGLE)
    for m, n in ((64, 64), (64, 128), (128, 64), (128, 128), (64, 256), (256, 64), (128, 256), (256, 128)):
        yield TileChoice(TF32_WGMMA.name, m, n, 8, _COOP, _TF32_CLUSTERS)
    yield from single_row_tiles()


_TF32_CLUSTERS = ((1, 1), (1, 2), (2, 1), (1, 4), (4, 1), (2, 2))
TF32_WGMMA = replace(
    WGMMA, name="sm90_tf32_wgmma", number=78, own_of=(), other_dtypes=(), dense_tiles=no_tiles,
    weight_only_tiles=no_tiles, along_m_cost=2.0,
)  # fmt: skip
TF32_HOPPER = replace(
    MMA_SYNC, name="sm90_tf32", number=75, sm_archs=("sm_90",), own_of=("sm_90",),
    other_dtypes=tuple(dtype for dtype in DType if dtype is not DType.TF32),
    coefficients=with_ranges(  # rows outside cost nothing: no tile is for few rows, so that more rows would be faster
        with_defaults(
            **_DEFAULTS | {"matrix_frac": 0.98, "step_cycles": 200.0, "tile_cycles": 50.0, "coop_tile_cycles": 1500.0},
            l2_frac=1.4, sm_l2_frac=1.3, store_exposed_frac=0.05, reduce_us=1.2, reduce_frac=0.2, vector_kernel_us=0.6,
        ) + LONE_OWN,
        outside_rows_per_cycle=(50.0, 1e9, 1e9),
    ),
    dense_tiles=_tf32_on_hopper_tiles, weight_only_tiles=no_tiles,
)  # fmt: skip


# tiles of cuBLAS 12.1's fp32 kernels ("volta_sgemm_128x64_tn", columns first) by generation of SMs, with their warps:
# where K runs along memory, and in other layouts (names in NeuSight's timings, https://github.com/sitar-lab/NeuSight)
_SGEMM_TILES = {
    "sm_70": (((128, 128, 8), (64, 128, 4), (32, 128, 8)), ((64, 64, 2), (128, 32, 8))),
    "sm_75": (((128, 128, 8),), ((64, 128, 4), (32, 128, 8), (64, 64, 2))),
    "sm_80": (((64, 128, 4), (128, 32, 8), (32, 128, 8), (32, 32, 4)), ((128, 128, 8),)),
}
_FFMA_TILES = (
    (3, ((32, 32, 2), (32, 64, 2), (64, 32, 2), (32, 128, 2), (128, 32, 4), (64, 64, 4), (128, 64, 4), (64, 128, 4),
         (128, 128, 4), (256, 64, 4), (64, 256, 4))),
    (4, ((128, 128, 4), (256, 128, 8), (128, 256, 8))),
    (5, ((32, 128, 4), (64, 64, 4), (64, 128, 4), (128, 64, 4))),
)  # fmt: skip


def _simt_tiles(sm_arch: str, _: DType) -> Iterator[TileChoice]:
    """Tiles of cuBLAS's fp32 kernels on CUDA cores: `_SGEMM_TILES`, or those of cuBLAS 13 on Hopper.

    The latter are "ffma" and "simt_sgemm" in names of arch/measured/h100-sxm/torch, by stages.
    """
    along_k, others = _SGEMM_TILES.get(sm_arch, ((), ()))
    for m, n, warps in (*along_k, *others):
        yield TileChoice("simt", m, n, warps, _MS, SINGLE, is_along_k=(m, n, warps) in along_k)
    for stages, sizes in () if others else _FFMA_TILES:
        for m, n, warps in sizes:
            yield TileChoice("simt", m, n, warps, _MS, SINGLE, num_stages=stages)
    yield from single_row_tiles()
    yield from (tile._replace(is_along_k=True) for tile in _few_row_tiles(16))  # "gemmSN_TN"


SIMT = replace(  # a k-step is 8 elements, each fetched by itself where rows start on 4 bytes
    MMA_SYNC, name="simt", number=76, sm_archs=since("sm_70"), own_of=(), num_warps=(2, 4, 8), mma_m=8, rate_frac={},
    operands="lanes", step_bytes=32, max_stages=5, dense_tiles=_simt_tiles, weight_only_tiles=no_tiles,
    carries_from=dict.fromkeys(("sm_86", "sm_89", "sm_120"), ("sm_90",)),  # whose tiles of cuBLAS 13 these have too
    coefficients=with_defaults(
        kernel_us=0.5, step_cycles=420.0, tile_cycles=100.0, epilogue_bytes_per_cycle=24.0, dram_frac=0.93,
        sm_l2_frac=0.7, line_waste=0.0, reduce_us=2.5, reduce_frac=0.8, vector_kernel_us=0.4, vector_step_cycles=100.0,
        vector_frac=0.3,
    ) + LONE_OWN[1:],
)  # fmt: skip


UNALIGNED = replace(  # rows start on 4 or 8 bytes, and so many bytes are one load
    MMA_SYNC,
    name="mma_unaligned",
    number=3,
    sm_archs=since("sm_70"),
    num_warps=(1, 4, 8),
    coefficients=with_defaults(
        **_DEFAULTS | {"step_cycles": 400.0, "epilogue_bytes_per_cycle": 18.0, "dram_frac": 0.75}, line_waste=0.0,
        unaligned_frac=0.21, reduce_us=2.5, reduce_frac=1.0, vector_step_cycles=65.0, vector_frac=1.0,
    ),
    dense_tiles=_unaligned_tiles,
    weight_only_tiles=no_tiles,
)  # fmt: skip
TF32_UNALIGNED = replace(
    UNALIGNED, name="sm90_tf32_unaligned", number=79, sm_archs=("sm_90",),
    coefficients=with_defaults(
        **_DEFAULTS | {"step_cycles": 400.0, "epilogue_bytes_per_cycle": 18.0, "dram_frac": 0.85}, line_waste=0.1,
        unaligned_frac=0.3, reduce_us=3.0, reduce_frac=1.0, vector_step_cycles=200.0, vector_frac=0.1,
    ) + LONE_OWN,
    dense_tiles=_tf32_unaligned_tiles,
)  # fmt: skip
ELEMENTWISE = replace(  # other rows: too little for cp.async, so each element goes through a register
    UNALIGNED,
    name="mma_elementwise",
    number=20,
    has_cp_async=False,
    coefficients=with_defaults(
        **_DEFAULTS | {"epilogue_bytes_per_cycle": 7.0, "dram_frac": 0.75}, line_waste=0.0, unaligned_frac=0.26,
        line_conflict=0.27, reduce_us=1.7, reduce_frac=1.1, vector_step_cycles=280.0, vector_frac=0.05,
    ),
    dense_tiles=_elementwise_tiles,
)  # fmt: skip


_FAMILY = "sm70_mma"


def _volta_tiles(*_: object) -> Iterator[TileChoice]:
    """Tiles that CUTLASS and cuBLAS commonly have for these ("volta_s884", "turing_s1688"): assumed, none is listed."""
    for m, n, warps in (
        (16, 64, 4), (16, 128, 4), (32, 64, 4), (32, 128, 4), (64, 32, 4), (64, 64, 4), (64, 96, 4), (64, 128, 4),
        (64, 128, 8), (64, 256, 8), (96, 64, 4), (96, 128, 4), (96, 128, 8), (128, 32, 4), (128, 64, 4), (128, 64, 8),
        (128, 96, 8), (128, 128, 4), (128, 128, 8), (128, 192, 8), (128, 256, 8), (192, 128, 8), (256, 64, 8),
        (256, 128, 8),
    ):  # fmt: skip
        yield TileChoice(_FAMILY, m, n, warps, MMA_SYNC.schedules[0], SINGLE)


# assumed: those of mma.sync on later chips, but a k-step waits for its stores to shared memory and for a barrier, which
# cp.async spares
MMA_VOLTA = replace(
    MMA_SYNC,
    name=_FAMILY,
    number=9,
    sm_archs=("sm_70", "sm_75"),
    own_of=("sm_70", "sm_75"),
    rate_frac={},
    coefficients=with_defaults(
        matrix_frac=0.85, step_cycles=300.0, tile_cycles=500.0, kernel_us=1.1, dram_frac=0.93,
        epilogue_bytes_per_cycle=24.0,
    ),
    dense_tiles=_volta_tiles,
    weight_only_tiles=_volta_tiles,
)  # fmt: skip


_TCGEN05_PAIRS = ((1, 1), (1, 2), (2, 1), (1, 4), (2, 2), (2, 4))
# tensor memory holds 128 x 512 sums (PTX ISA, tcgen05): of two tiles, so that one is stored while the next is computed
_MAX_SUMS = 128 * 256
_LONG = (128, 256)
_SHORT = (8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 192, 224, 256)
_OF_64_ROWS = (8, 16, 32, 64, 96, 128, 192, 256)


def _tcgen05_tiles(*_: object) -> Iterator[TileChoice]:
    """Tiles of one CTA; two of them that multiply together are a cluster of two.

    No list of cuBLAS's is published: these are what the instruction takes, 64 or 128 rows of either operand, in steps
    of which fewer explain its times on a B200 less well (arch/measured/b200).
    """
    sizes = [(m, n) for long in _LONG for short in _SHORT for m, n in ((short, long), (long, short))]
    sizes += [(m, n) for short in _OF_64_ROWS for m, n in ((64, short), (short, 64))]
    for m, n in dict.fromkeys(sizes):
        if m * n <= _MAX_SUMS:
            yield TileChoice("sm100_tcgen05", m, n, 8, Schedule.PINGPONG, _TCGEN05_PAIRS)


TCGEN05 = Family(
    name="sm100_tcgen05",
    number=2,
    sm_archs=("sm_100", "sm_103"),
    own_of=("sm_100", "sm_103"),
    schedules=(Schedule.PINGPONG, Schedule.COOPERATIVE),
    mma_m=128,
    mma_n_step=8,
    num_warps=(8,),
    max_registers=255,
    operands="smem",
    has_clusters=True,
    is_warp_specialized=True,
    has_tensor_memory=True,
    # slow fill was seen on Hopper only
    coefficients=with_defaults(kernel_us=1.0, outside_rows_per_cycle=50.0, l2_frac=1.4, store_exposed_frac=0.0),
    dense_tiles=_tcgen05_tiles,
    weight_only_tiles=lambda columns, rows: weight_only_tiles("sm100_tcgen05", columns, rows),
)
