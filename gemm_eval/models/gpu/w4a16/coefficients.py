"""The coefficients of the W4A16 families: what these kernels do that neither a spec sheet nor their machine code says.

Each belongs to some of the families; all carry over to other GPUs as those of `models.gpu.coefficients` do. Names that
both lists have mean the same in both. MODEL.md has the formulas.
"""

from typing import NamedTuple

from gemm_eval.models.gpu.coefficients import FREE, NO_LIMIT, Coefficient, Neutral

GEMV, GEMV_MMA, SM80, SM90, SM90_CLUSTER = W4A16_FAMILIES = (
    "w4a16_gemv", "w4a16_gemv_mma", "w4a16_sm80", "w4a16_sm90", "w4a16_sm90_cluster",
)  # fmt: skip
"""The families of one GEMM and 16-bit tokens that have coefficients of their own, as `gemm_eval.kernels` names them."""

GEMV_MMA_GROUPED, SM90_GROUPED = W4A16_GROUPED_FAMILIES = "w4a16_gemv_mma_grouped", "w4a16_sm90_grouped"
"""Families of grouped kernels with coefficients of their own. The third, `w4a16_sm80_grouped`, was never timed and has
those of `w4a16_sm80`."""

W4A16_SETS = (*W4A16_FAMILIES, *W4A16_GROUPED_FAMILIES)
"""Families of coefficients for tokens in 16 bits."""

(SM90_FP8,) = W4A8_FAMILIES = ("w4a8_sm90",)
"""Families of coefficients for tokens in e4m3."""

PACKED_SETS = (*W4A16_SETS, *W4A8_FAMILIES)
"""All families of coefficients, in the order of packed arrays."""

_OF_ONE_GEMM = (*W4A16_FAMILIES, *W4A8_FAMILIES)
_STREAMING = (GEMV, GEMV_MMA)
_MULTISTAGE = (GEMV_MMA, SM80)
_WGMMA = (SM90, SM90_CLUSTER, SM90_FP8)
_ON_STREAM_K = (SM90, SM90_FP8)
_TILED = (SM80, *_WGMMA)
_THROUGH_L2 = (SM80, *_ON_STREAM_K)  # parts of K

_ONE_SLOT = Neutral(1.0, "an instruction takes one slot")
_AS_COOPERATIVE = Neutral(0.0, "as for cooperating warpgroups", "issue")
_AS_ALONE = Neutral(0.0, "two CTAs of an SM hide nothing more", "issue")
_ACHIEVABLE = Neutral(1.0, "the achievable bandwidth of the spec")
_AT_PEAK = Neutral(1.0, "the tensor rate of the spec")
_ALL_KEPT = Neutral(NO_LIMIT.value, "L2 keeps all that is read again")


class FamilyCoefficient(NamedTuple):
    """A coefficient, and the families that have it: those that `defaults` names."""

    coefficient: Coefficient
    defaults: dict[str, float]


def _item(
    name: str, unit: str, low: float, high: float, families: tuple[str, ...], default: float, neutral: Neutral,
    meaning: str, *, is_of_groups: bool = True, **of: float,
) -> FamilyCoefficient:  # fmt: skip
    if is_of_groups:  # grouped kernels have what their form has
        families += tuple(name for name in W4A16_GROUPED_FAMILIES if name.removesuffix("_grouped") in families)
    names = {family: family.partition("_")[2].removesuffix("_cluster").removesuffix("_grouped") for family in families}
    defaults = {family: of.get(name, default) for family, name in names.items()}
    return FamilyCoefficient(Coefficient(name, unit, low, high, default, neutral, meaning), defaults)


W4A16_COEFFICIENTS: tuple[FamilyCoefficient, ...] = (
    _item(
        "kernel_us", "us", 0.0, 5.0, _WGMMA, 1.0, FREE,
        "barriers, tensor maps, first and last instructions of a kernel",
    ),
    _item("ramp_us", "us", 0.0, 4.0, (GEMV,), 0.5, FREE, "queue of the first loads when all SMs start at once"),
    _item("cta_cycles", "cycles", 0.0, 6000.0, _MULTISTAGE, 1500.0, FREE, "start and end of a CTA", sm80=3000.0),
    _item("cta_launch_cycles", "cycles", 0.0, 2000.0, (GEMV_MMA,), 500.0, FREE, "to start one more CTA on an SM"),
    _item(
        "issue", "1", 0.2, 4.0, _OF_ONE_GEMM, 1.1, _ONE_SLOT, "slots that a scheduler spends on an instruction",
        gemv_mma=0.7, sm90=2.0,
    ),
    _item(
        "pingpong_issue", "1", 0.8, 5.0, (SM90,), 2.6, _AS_COOPERATIVE,
        "as issue, of a lone warpgroup, which waits for itself",
    ),
    _item("shared_issue", "1", 0.5, 4.0, _WGMMA, 1.65, _AS_ALONE, "as issue, of two CTAs of an SM, which hide waits"),
    _item(
        "three_issue", "1", 0.2, 4.0, _WGMMA, 1.3, _AS_COOPERATIVE,
        "as issue, of three cooperating warpgroups, which hide more of each other's waits",
    ),
    _item(
        "wgmma_frac", "1", 0.8, 1.0, _WGMMA, 0.91, _AT_PEAK,
        "share of the tensor rate that wgmma reaches with weights from registers",
    ),
    _item(
        "stage_cycles", "cycles", 0.0, 120.0, _WGMMA, 20.0, FREE,
        "of a stage of the ring: its barrier, between instructions of the tensor core",
    ),
    _item(
        "producer_cycles", "cycles", 2.0, 15.0, _WGMMA, 6.4, FREE,
        "of an instruction of the thread that copies, which has nothing to hide its latency",
    ),
    _item(
        "serial_cycles", "cycles", 0.0, 8.0, (GEMV, GEMV_MMA, SM80), 1.6, FREE,
        "of an instruction of a warp by itself",
    ),
    _item("step_cycles", "cycles", 0.0, 1500.0, _STREAMING, 350.0, FREE, "waits of a step of a warp by itself"),
    _item(
        "sm_l2_frac", "1", 0.2, 3.0, (GEMV_MMA, *_WGMMA), 0.8, NO_LIMIT, "share of 64 B a cycle that an SM takes in",
        gemv_mma=0.8,
    ),
    _item(
        "dram_frac", "1", 0.75, 1.1, (GEMV_MMA,), 1.0, _ACHIEVABLE,
        "share of the achievable DRAM bandwidth in a main loop",
    ),
    _item(
        "l2_frac", "1", 0.2, 3.0, (GEMV_MMA, *_THROUGH_L2, *W4A16_GROUPED_FAMILIES), 1.2, NO_LIMIT,
        "share of the L2 bandwidth of hits", is_of_groups=False, sm90_grouped=1.0,
    ),
    _item(
        "l2_hold_frac", "1", 0.02, 2.0, (*_STREAMING, *_ON_STREAM_K), 0.4, _ALL_KEPT,
        "share of L2 that keeps what will be read again", is_of_groups=False,
    ),
    _item(
        "line_waste", "1", 0.0, 8.0, (GEMV_MMA, *_WGMMA), 2.0, FREE,
        "more time for tokens whose rows start off 128 bytes",
    ),
    _item("store_exposed_frac", "1", 0.0, 1.5, _WGMMA, 0.6, FREE, "part of the time of storing C that nothing hides"),
    _item(
        "epilogue_bytes_per_cycle", "B/cycle", 4.0, 300.0, _TILED, 20.0, NO_LIMIT,
        "C of one SM, from sums through shared memory to L2", sm90=30.0,
    ),
    _item(
        "sums_bytes_per_cycle", "B/cycle", 4.0, 400.0, _STREAMING, 32.0, NO_LIMIT,
        "sums of all warps of an SM to shared memory",
    ),
    _item(
        "team_sum_cycles", "cycles", 0.0, 400.0, _STREAMING, 40.0, FREE, "to add one warp's sums of a round of columns",
    ),
    _item(
        "offset_frac", "1", 0.0, 0.3, _ON_STREAM_K, 0.03, FREE,
        "longer main loop of CTAs at different places of K, which ask L2 for lines that no other wants",
        is_of_groups=False,
    ),
    _item(
        "cut_us", "us", 0.0, 4.0, _OF_ONE_GEMM, 1.0, FREE,
        "fences and counting of a part of K, or barriers of the cluster", sm80=1.6,
    ),
    _item(
        "part_write_bytes_per_cycle", "B/cycle", 2.0, 100.0, _TILED, 14.0, NO_LIMIT,
        "sums of a part of one SM, to the workspace or to the SMs of its cluster", sm80=8.0,
    ),
    _item(
        "part_read_bytes_per_cycle", "B/cycle", 1.0, 400.0, (*_STREAMING, *_THROUGH_L2), 90.0, NO_LIMIT,
        "sums of all parts, to the SM that adds them", sm80=28.0, gemv_mma=36.0, gemv=6.0,
    ),
    _item(
        "part_cycles", "cycles", 0.0, 1500.0, (GEMV_MMA, *_ON_STREAM_K), 350.0, FREE,
        "round trip for the sums of a part",
    ),
    _item(
        "moving_power", "1", 0.0, 4.0, _WGMMA, 0.5, FREE,
        "power of an SM that takes in 64 B a cycle, as a share of that of its tensor cores",
    ),
    _item(
        "outside_rows_per_cycle", "1/cycle", 1.0, 80.0, _WGMMA, 9.0, NO_LIMIT, "rows outside the matrix that TMA fills",
        is_of_groups=False,
    ),
    _item(
        "groups_us", "us", 0.0, 6.0, W4A16_GROUPED_FAMILIES, 2.5, FREE,
        "to count the tiles of all groups before anything is copied",
    ),
    _item(
        "group_tile_cycles", "cycles", 0.0, 4000.0, W4A16_GROUPED_FAMILIES, 900.0, FREE,
        "to find the group of a tile, and to begin anew",
    ),
    _item(
        "group_load_cycles", "cycles", 0.0, 3000.0, (GEMV_MMA_GROUPED,), 400.0, FREE,
        "longer waits of a step, shared by the blocks that are on their way to a team",
    ),
)  # fmt: skip
"""All coefficients of these families, in the order in which they are fitted and written."""


def coefficients_of(family: str) -> str:
    """Return the family whose coefficients a family of ours has: its own, but for `w4a16_sm80_grouped`."""
    return family if family in W4A16_SETS else family.removesuffix("_grouped")


def w4a16_coefficients_of(family: str) -> tuple[Coefficient, ...]:
    """Return the coefficients that a family has, with its defaults; `FAMILIES` has them for all others to read."""
    return tuple(
        item.coefficient._replace(default=item.defaults[family])
        for item in W4A16_COEFFICIENTS
        if family in item.defaults
    )
