"""Kernel families, and the kernel libraries: which tiles they have and how they split K."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from gemm_eval.arch import GpuSpec
from gemm_eval.arch.limits import cluster_sms
from gemm_eval.dtypes import DType
from gemm_eval.errors import UnsupportedError
from gemm_eval.mapping import Schedule
from gemm_eval.workload import GemmProblem

__all__ = [
    "AUTO",
    "FAMILIES",
    "HYPOTHETICAL",
    "LIBRARIES",
    "OURS",
    "Family",
    "Library",
    "SplitRule",
    "TileChoice",
    "cluster_grid_sms",
    "default_library",
    "library_of_family",
]


@dataclass(frozen=True)
class Family:
    """A kind of kernel: which hardware it needs and how its CTAs are built."""

    name: str
    number: int
    sm_archs: tuple[str, ...]
    schedules: tuple[Schedule, ...]
    mma_m: int
    mma_n_step: int
    num_warps: tuple[int, ...]
    max_registers: int
    operands: Literal["smem", "registers", "vector"]
    has_clusters: bool
    is_warp_specialized: bool
    rate_frac: Mapping[str, float] = field(default_factory=dict)  # of the chip's tensor rate, by sm_arch
    is_ours: bool = False  # its configs are the kernels of `gemm_eval.kernels`, from a table; see `models.gpu.w4a16`


FAMILIES: dict[str, Family] = {
    family.name: family
    for family in (
        # setmaxnreg gives computing warpgroups up to 240 registers a thread
        Family(
            "sm90_wgmma", 0, ("sm_90",), (Schedule.PINGPONG, Schedule.COOPERATIVE), 64, 8, (8,), 232, "smem",
            has_clusters=True, is_warp_specialized=True,
        ),
        # on Hopper mma.sync reaches 0.62 of the rate of wgmma (Luo et al. 2024; fits of our int8 timings agree, with a
        # matrix_frac of 1 on top); half of that on Blackwell is assumed, as its tcgen05 rate is twice Hopper's
        Family(
            "sm80_mma", 1, ("sm_80", "sm_89", "sm_90", "sm_100"), (Schedule.MULTISTAGE,), 16, 8, (4, 8), 255,
            "registers", has_clusters=False, is_warp_specialized=False, rate_frac={"sm_90": 0.62, "sm_100": 0.31},
        ),
        # rows that do not start on 16 bytes go through registers, a few bytes a load (kernels "align1", "align2")
        Family(
            "mma_unaligned", 3, ("sm_80", "sm_89", "sm_90", "sm_100"), (Schedule.MULTISTAGE,), 16, 8, (4, 8), 255,
            "registers", has_clusters=False, is_warp_specialized=False, rate_frac={"sm_90": 0.62, "sm_100": 0.31},
        ),
        # every thread multiplies on its own; K is split over the threads of a CTA
        Family(
            "gemv", 4, ("sm_80", "sm_89", "sm_90", "sm_100"), (Schedule.VECTOR,), 1, 1, (4,), 255, "vector",
            has_clusters=False, is_warp_specialized=False,
        ),
        # our own kernels for 4-bit weights (kernels/KERNELS.md)
        Family(
            "w4a16_gemv", 5, ("sm_80", "sm_89", "sm_90"), (Schedule.VECTOR,), 1, 1, (4, 8, 16), 255, "vector",
            has_clusters=False, is_warp_specialized=False, is_ours=True,
        ),
        Family(
            "w4a16_gemv_mma", 6, ("sm_80", "sm_89", "sm_90"), (Schedule.MULTISTAGE,), 16, 8, (4, 8, 16), 255,
            "registers", has_clusters=False, is_warp_specialized=False, is_ours=True,
        ),
        Family(
            "w4a16_sm80", 7, ("sm_80", "sm_89", "sm_90"), (Schedule.MULTISTAGE,), 16, 8, (4, 8), 255, "registers",
            has_clusters=False, is_warp_specialized=False, is_ours=True,
        ),
        Family(
            "w4a16_sm90", 8, ("sm_90",), (Schedule.PINGPONG, Schedule.COOPERATIVE), 64, 8, (8,), 216, "registers",
            has_clusters=True, is_warp_specialized=True, is_ours=True,
        ),
        Family(
            "sm100_tcgen05", 2, ("sm_100",), (Schedule.PINGPONG, Schedule.COOPERATIVE), 128, 8, (8,), 255, "smem",
            has_clusters=True, is_warp_specialized=True,
        ),
    )
}  # fmt: skip
"""Kernel families by name."""


class TileChoice(NamedTuple):
    """A tile that a library has kernels for."""

    family: str
    cta_m: int
    cta_n: int
    num_warps: int
    schedule: Schedule
    clusters: tuple[tuple[int, int], ...]  # (cluster_m, cluster_n)


_PAIRS = ((1, 2), (2, 1), (1, 4), (2, 4))
_SINGLE = ((1, 1),)
_PP, _COOP, _MS = Schedule.PINGPONG, Schedule.COOPERATIVE, Schedule.MULTISTAGE


def _hopper_tiles(family: str) -> Iterator[TileChoice]:
    """Tiles of cuBLAS's Hopper kernels, read from the names of 5,163 kernels that it proposes (arch/measured).

    Weights (N) lie on the instruction's 64 rows for few tokens, tokens (M) else; the other side is any multiple of 8.
    """
    for n in (64, 128, 192, 256, 384, 512):
        for m in (8, 16, 24, 32, 48, 64, 80, 96):
            if m * n <= _PINGPONG_ACCUMULATORS:
                yield TileChoice(family, m, n, 8, _PP, _PAIRS)
            elif m * n <= _COOP_ACCUMULATORS:
                yield TileChoice(family, m, n, 8, _COOP, _PAIRS)
    for m, n in (
        (64, 40), (64, 56), (64, 80), (64, 96), (64, 112), (64, 144), (64, 168), (64, 176), (128, 80), (128, 96),
        (128, 112), (128, 128), (128, 144), (128, 168), (128, 176), (160, 128), (136, 128), (112, 128),
    ):  # fmt: skip
        yield TileChoice(family, m, n, 8, _PP, _PAIRS)
    for m, n in (
        (128, 192), (192, 128), (256, 128), (128, 256), (192, 192), (128, 320), (160, 256), (192, 208), (64, 320),
        (64, 448), (136, 256),
    ):  # fmt: skip
        yield TileChoice(family, m, n, 8, _COOP, _PAIRS)


_PINGPONG_ACCUMULATORS = 176 * 128  # a warpgroup holds a whole tile
_COOP_ACCUMULATORS = 176 * 256


def _ampere_tiles(family: str) -> Iterator[TileChoice]:
    """Tiles that mma.sync kernels of CUTLASS and cuBLAS commonly have: assumed, no list of cuBLAS's is published."""
    for m, n, warps in (
        (16, 64, 4), (16, 128, 4), (16, 256, 4), (32, 64, 4), (32, 128, 4), (32, 256, 4), (64, 32, 4), (64, 64, 4),
        (64, 128, 4), (64, 256, 4), (96, 128, 4), (96, 256, 8), (128, 32, 4), (128, 64, 4), (128, 96, 4), (128, 128, 4),
        (128, 128, 8), (128, 160, 8), (128, 192, 8), (128, 256, 8), (160, 128, 8), (192, 128, 8), (256, 64, 4),
        (256, 96, 8), (256, 128, 8),
    ):  # fmt: skip
        yield TileChoice(family, m, n, warps, _MS, _SINGLE)


class SplitRule(NamedTuple):
    """How a library splits K.

    Attributes:
        min_steps: a part has at least so many k-steps.
        is_full: it does not weigh the numbers of parts: it takes the most that fit the GPU at once.
        max_parts: never more parts.
    """

    min_steps: int
    is_full: bool
    max_parts: int = 1 << 20


_FREE_SPLIT = SplitRule(8, is_full=False)
_NO_SPLIT = SplitRule(1, is_full=False, max_parts=1)


def _small_tiles(family: str) -> Iterator[TileChoice]:
    """Tiles of cuBLAS's kernels "wmma" for rows that do not start on 16 bytes (names in arch/measured)."""
    for m, n in ((16, 16), (16, 32), (32, 32)):
        yield TileChoice(family, m, n, 4, _MS, _SINGLE)


def _weight_only_tiles(family: str, columns: tuple[int, ...], rows: tuple[int, ...]) -> Iterator[TileChoice]:
    """Tiles of weight-only kernels on Hopper: weights on the instruction's 64 rows, tokens on its columns."""
    for n in columns:
        for m in rows:
            if m * n <= _PINGPONG_ACCUMULATORS and n == 64:
                yield TileChoice(family, m, n, 8, _PP, _PAIRS)
            elif m * n <= _COOP_ACCUMULATORS and n > 64:
                yield TileChoice(family, m, n, 8, _COOP, _PAIRS)


def _vector_tiles() -> Iterator[TileChoice]:
    for m in (1, 2, 4, 8):
        for n in (8, 16, 32):
            yield TileChoice("gemv", m, n, 4, Schedule.VECTOR, _SINGLE)


def _int8_on_hopper_tiles() -> Iterator[TileChoice]:
    """Tiles of the kernels that cuBLAS 13.1 takes for int8 on Hopper (names in arch/measured/h200-sxm/cublaslt)."""
    for m, n, warps in ((64, 64, 4), (64, 128, 4), (128, 128, 4), (256, 128, 8), (128, 256, 8)):
        yield TileChoice("sm80_mma", m, n, warps, _MS, _SINGLE)


@dataclass(frozen=True)
class Library:
    """A kernel library as a user meets it.

    Attributes:
        name: as in `library=`.
        split_rules: kernel family -> how it splits K; families that are not named follow `_FREE_SPLIT`.
        has_stream_k: it has stream-K kernels.
        is_dense, is_weight_only: which problems it takes.
        has_unaligned: it has kernels for rows that do not start on 16 bytes.
        is_chosen_by_model: whoever runs its kernels asks this model which, so nothing is lost by the choice.
        weight_only_tiles: columns of weights, and rows of tokens, that its Hopper kernels have as tiles.
    """

    name: str
    split_rules: Mapping[str, SplitRule]
    has_stream_k: bool
    is_dense: bool
    is_weight_only: bool
    weight_only_tiles: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    has_unaligned: bool = True
    is_chosen_by_model: bool = False

    def check(self, arch: GpuSpec, problem: GemmProblem) -> None:
        """Raise `UnsupportedError` where the library has no kernels for these types on this GPU."""
        if problem.input_dtype not in arch.tensor_flop_per_cycle:
            known = ", ".join(arch.tensor_flop_per_cycle)
            raise UnsupportedError(
                f"{arch.name} cannot multiply {problem.input_dtype} (its tensor cores take {known}): "
                "tensor_flop_per_cycle"
            )
        if problem.is_weight_quantized and not self.is_weight_only:
            raise UnsupportedError(
                f"{self.name} has no kernels for {problem.weight_dtype} weights and {problem.input_dtype} inputs; "
                f"weight-only kernels: library {', '.join(x.name for x in LIBRARIES.values() if x.is_weight_only)}"
            )
        if not problem.is_weight_quantized and not self.is_dense:
            raise UnsupportedError(f"{self.name} has weight-only kernels; for dense GEMMs use library cublas")
        if problem.is_weight_quantized and problem.input_dtype not in (DType.FP16, DType.BF16):
            raise UnsupportedError(
                f"weight-only kernels of {self.name} take fp16 or bf16 inputs, got {problem.input_dtype}"
            )

    def family(self, arch: GpuSpec, problem: GemmProblem, *, is_unaligned: bool = False) -> str:
        """The kernel family that the library uses for these types; TMA needs rows that start on 16 bytes.

        For int8, cuBLAS 13.1 takes mma.sync kernels on Hopper too (kernel names in arch/measured/h200-sxm/cublaslt).
        """
        own = _OWN_FAMILY.get(arch.sm_arch, "sm80_mma")
        if is_unaligned:
            return "mma_unaligned"
        return "sm80_mma" if problem.input_dtype is DType.INT8 and arch.sm_arch == "sm_90" else own

    def split_rule(self, arch: GpuSpec, problem: GemmProblem, *, is_unaligned: bool) -> SplitRule:
        """How the library's kernels for these types split K; cuBLAS's int8 kernels on Hopper do not."""
        family = self.family(arch, problem, is_unaligned=is_unaligned)
        if family == "sm80_mma" and arch.sm_arch == "sm_90":
            return _NO_SPLIT
        return self.split_rules.get(family, _FREE_SPLIT)

    def tiles(self, arch: GpuSpec, problem: GemmProblem, *, is_unaligned: bool) -> Iterator[TileChoice]:
        """Tiles that the library has for this GPU and these types; those of our own kernels stand in a table."""
        self.check(arch, problem)
        if self.name == OURS:
            return
        family = self.family(arch, problem, is_unaligned=is_unaligned)
        if problem.is_weight_quantized:
            yield from _vector_tiles()
            if family in _OWN_FAMILY.values():
                yield from _weight_only_tiles(family, *self.weight_only_tiles)
            else:
                yield from _ampere_tiles(family)
        elif family.endswith(("wgmma", "tcgen05")):
            yield from _hopper_tiles(family)
        elif problem.input_dtype is DType.INT8 and arch.sm_arch == "sm_90" and not is_unaligned:
            yield from _int8_on_hopper_tiles()
        else:
            yield from _ampere_tiles(family)
            if is_unaligned:
                yield from _small_tiles(family)


OURS = "gemm-eval"
"""The library of our own W4A16 kernels (`gemm_eval.kernels`)."""

HYPOTHETICAL = "hypothetical"
"""The library of weight-only kernels that nobody has written: what a good one would do."""

AUTO = "auto"
"""No library: our own weight-only kernels where they run a GEMM, else the hypothetical ones, which the answer names."""

_OWN_FAMILY = {"sm_90": "sm90_wgmma", "sm_100": "sm100_tcgen05"}

LIBRARIES: dict[str, Library] = {
    library.name: library
    for library in (
        # All 1,690 proposals that could split K (parts of more than 20 k-steps, all parts on the GPU at once) do, 93%
        # into the most parts that this leaves; stream-K is never proposed (arch/measured/h200-sxm/cublaslt).
        Library(
            "cublas", {"sm90_wgmma": SplitRule(21, is_full=True)}, has_stream_k=False, is_dense=True,
            is_weight_only=False,
        ),
        # our kernels, whose configs stand in a table (`models.gpu.w4a16`)
        Library(
            OURS, {}, has_stream_k=False, is_dense=False, is_weight_only=True, has_unaligned=False,
            is_chosen_by_model=True,
        ),
        # what nobody has written, or not for these types, sizes or GPUs: mixed-input kernels as CUTLASS could have them
        Library(
            HYPOTHETICAL, {}, has_stream_k=True, is_dense=False, is_weight_only=True,
            weight_only_tiles=((64, 128, 256), (8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)),
            is_chosen_by_model=True,
        ),
        # tiles assumed: those of CUTLASS's mixed-input kernels; K in at most four parts, which is what its times of few
        # columns and long K show (arch/measured/h200-sxm/aiconfigurator)
        Library(
            "trtllm", {"sm90_wgmma": SplitRule(8, is_full=False, max_parts=4)}, has_stream_k=False, is_dense=False,
            is_weight_only=True, weight_only_tiles=((64, 128), (16, 32, 64, 128, 256)), has_unaligned=False,
        ),
    )
}  # fmt: skip
"""Kernel libraries by name."""


def default_library(problem: GemmProblem) -> str:
    """cuBLAS for dense GEMMs; for quantized weights `AUTO`, as sizes decide too."""
    return AUTO if problem.is_weight_quantized else "cublas"


def library_of_family(library: str, family: str) -> str:
    """Return the library that a kernel family is of, of those that an answer by `library` can come from."""
    if library != AUTO:
        return library
    return OURS if FAMILIES[family].is_ours else HYPOTHETICAL


def cluster_grid_sms(arch: GpuSpec, cluster_ctas: int) -> int:
    """SMs that whole clusters of this size fill."""
    return cluster_sms(arch.num_sms, cluster_ctas) // cluster_ctas * cluster_ctas
