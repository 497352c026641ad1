"""The kernel libraries: which families, types and sizes each has kernels for, and how it splits K."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from gemm_eval.arch import GFX_ARCHS, SM_ARCHS, GpuSpec, cluster_sms, data_root, list_archs, load_arch
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidOptionError, UnsupportedError
from gemm_eval.models.gpu.cost_kernels import NARROW_BYTES, ROW_BYTES
from gemm_eval.models.gpu.families import FAMILIES, MFMA, MFMA_EXPERTS, MFMA_NARROW, Family, TileChoice, family_for
from gemm_eval.models.gpu.families.narrow_weights import has_w4a16_format
from gemm_eval.models.gpu.sizes import NO_PADDING, Padding, padding_to
from gemm_eval.words import refusal
from gemm_eval.workload import LAYOUTS, GemmTypes

OURS = "gemm-eval"
"""The library of our own W4A16 kernels (`gemm_eval.kernels`)."""

HYPOTHETICAL = "hypothetical"
"""The library of good weight-only kernels that no vendor has: what they would do."""

TRTLLM = "trtllm"
"""TensorRT-LLM: its own kernels, and those of others that it runs."""

AUTO = "auto"
"""No library: what `default_library` says; where that is this word, our kernels if they run a GEMM, else hypothetical
ones, and the answer names which."""


ENGINES = ("vllm", "sglang")
"""Serving engines, which run kernels of several libraries: `models.gpu.engines` says which."""

_PAD_BYTES = {DType.FP8: ROW_BYTES, DType.INT8: NARROW_BYTES}
"""Bytes to which rows of dense GEMMs are padded, as cuBLAS has no kernels for others.

fp8: cublasLtMatmul wants 16 bytes ("Narrow Precision Data Types Usage", https://docs.nvidia.com/cuda/cublas); cuBLASLt
13.1 on an H200 proposes no algorithm where rows of A and B, or of a bf16 C, start on 8, 4 or 1. int8: leading
dimensions are multiples of 4 (same manual, cublasGemmEx); such rows on an H200 take 1.4 to 2.2 times as long as padded
ones (arch/measured/h200-sxm/cublaslt), both with mma.sync.
"""

_MORE_PAD_BYTES = {(sm_arch, DType.INT8): ROW_BYTES for sm_arch in FAMILIES["sm100_tcgen05"].own_of}
"""The same by SM generation: where aligned rows have tcgen05, kernels with mma.sync would take 5 times as long.

No timings show that any library runs them, and A comes out of a quantization that writes padded rows at no cost.
"""


_WHOLE_COLUMNS = {("sm_90", DType.INT8): 16}
"""Columns of which N is a multiple for cuBLAS's kernels of a type: others take `INT8_ODD_COLUMNS` (arch/measured)."""


class SplitRule(NamedTuple):
    """Rule by which a library splits K."""

    min_steps: int  # a part has at least so many k-steps
    is_full: bool  # it does not weigh the numbers of parts: it takes the most that fit the GPU at once
    max_parts: int = 1 << 20  # never more parts
    is_even: bool = False  # all parts have equally many k-steps
    is_lone: bool = False  # it leaves the K of batches whole
    is_short: bool = False  # it leaves the K of persistent kernels whole


_FREE_SPLIT = SplitRule(8, is_full=False)
_NO_SPLIT = SplitRule(1, is_full=False, max_parts=1)
_AMD_SPLITS = {
    "mfma": SplitRule(4, is_full=False, max_parts=8),
    "mfma_fp8": SplitRule(4, is_full=False, max_parts=4),
    "mfma_fp8_block": SplitRule(4, is_full=False, max_parts=8),
    "mfma_mxfp8": SplitRule(4, is_full=False, max_parts=8),
}
"""How kernels of AMD's libraries split K, by their names (arch/measured/mi355x/aiter); others do not."""


Tiles = frozenset[tuple[int, int]]
_CK_TILES = Tiles(((16, 64), (16, 128), (32, 64), (32, 128), (64, 64), (64, 128), (64, 256), (128, 128)))
_OF_SPLITS = "-split"
_AITER_TILES = {
    (version + splits, "mfma_fp8_block"): _CK_TILES.union(more)
    for splits in ("", _OF_SPLITS)
    for version, more in {
        "ck": (), "ck-tile": ((192, 256),), "preshuffled": ((48, 128), (80, 128), (96, 128), (192, 256)),
    }.items()
}  # fmt: skip
"""Kernels that aiter's tuner chose among for block-scaled fp8, by their names: CK's on weights as they are, until May
2026 on an MI300X; CK-Tile's beside them; CK's and assembly on weights that are shuffled when a model is loaded. Only
versions with `_OF_SPLITS` split K, as the tuner does if it is told to."""


@dataclass(frozen=True)
class Library:
    """A kernel library as a user meets it.

    Attributes:
        name: as in `library=`.
        split_rules: kernel family -> how it splits K; families that are not named follow `_FREE_SPLIT`.
        has_stream_k: it has stream-K kernels.
        is_dense, is_weight_only: which problems it takes.
        has_unaligned: it has kernels for rows that do not start on 16 bytes; see `runs_unaligned`.
        pads_weights: narrower weights whose rows do not start on 16 bytes are padded, once, when they are packed.
        is_chosen_by_model: whoever runs its kernels asks this model which, so nothing is lost by the choice.
        weight_only_tiles: columns of weights, and rows of tokens, that its Hopper kernels have as tiles.
        weight_only_inputs: input types of its weight-only kernels.
        has_block_scaled: it has kernels of families of their own for block-scaled types.
        weight_only_family: what it runs narrower weights with, on the GPUs that the family runs on; others have
            vendors' kernels for them.
        dense_families: input type -> family for dense GEMMs of it, likewise; for these it need not be `is_dense`.
        few_row_families: input type -> family for single dense GEMMs of few rows (its `most_rows`), likewise; those of
            more, and batches, it leaves to cuBLAS.
        grouped_families: what it runs grouped GEMMs with, where each takes the GPU and the types: nothing else, then.
        tile: the one of its tiles that runs, as `tile_names` has it; empty: the best of all.
        plain_families: what it runs single GEMMs and batches with, the first that takes the GPU and the types: nothing
            else, then.
        inputs: input types that it takes; none: whatever its families take.
        default_of: generations of another maker's GPUs, the only ones that it runs on, where it is the default.
        versions: those that timings tell apart, oldest first; ``trtllm-1.0.0rc3`` is what that TensorRT-LLM comes with.
        version: the one that runs, of `versions`; empty: none is named.
        version_tiles: version and family -> rows and columns of its tiles; others have all.
    """

    name: str
    split_rules: Mapping[str, SplitRule]
    has_stream_k: bool
    is_dense: bool
    is_weight_only: bool
    weight_only_tiles: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())
    weight_only_inputs: tuple[DType, ...] = (DType.FP16, DType.BF16)
    has_unaligned: bool = True
    pads_weights: bool = False
    has_block_scaled: bool = False
    weight_only_family: str = ""
    dense_families: Mapping[DType, str] = field(default_factory=dict)
    few_row_families: Mapping[DType, str] = field(default_factory=dict)
    is_chosen_by_model: bool = False
    grouped_families: tuple[str, ...] = ()
    plain_families: tuple[str, ...] = ()
    inputs: tuple[DType, ...] = ()
    tile: str = ""
    default_of: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    version: str = ""
    version_tiles: Mapping[tuple[str, str], Tiles] = field(default_factory=dict)

    @property
    def has_plain_timings(self) -> bool:
        """True if timings of single GEMMs, each by the library's own choice, can tell its coefficients."""
        return not (self.is_chosen_by_model or self.grouped_families)

    def check(self, arch: GpuSpec, types: GemmTypes) -> None:
        """Raise `UnsupportedError` where the library has no kernels for these types on this GPU."""
        if arch.sm_arch not in (self.default_of or SM_ARCHS):
            makers = ", ".join(self.default_of) or "NVIDIA"
            raise UnsupportedError(f"library {self.name} is for {makers} GPUs, and {arch.name} is {arch.sm_arch}")
        if not arch.multiplies(types.a.dtype):
            known = ", ".join(arch.tensor_flop_per_cycle)
            raise UnsupportedError(
                f"{arch.name} cannot multiply {types.a.dtype} (its tensor cores take {known}): tensor_flop_per_cycle"
            )
        self.check_layout(arch, types)
        if self.grouped_families or self.plain_families:
            self._listed_family(arch, types)
            return
        if types.is_weight_quantized and not self.is_weight_only:
            raise UnsupportedError(
                f"{self.name} has no kernels for {types.b.dtype} weights and {types.a.dtype} inputs; "
                f"weight-only kernels: library {', '.join(x.name for x in LIBRARIES.values() if x.is_weight_only)}"
            )
        if not types.is_weight_quantized and not self._runs_dense(arch, types):
            own = [of.get(types.a.dtype, "") for of in (self.dense_families, self.few_row_families)]
            where = [sm for name in own if name for sm in FAMILIES[name].sm_archs]
            raise UnsupportedError(
                f"{self.name} runs {types.a.dtype} on {', '.join(where)} alone, and {arch.name} is {arch.sm_arch}; "
                "use library cublas"
                if where
                else f"{self.name} has weight-only{' and block-scaled' * self.has_block_scaled} kernels; for dense "
                "GEMMs use library cublas"
            )
        if types.is_weight_quantized and types.a.dtype not in self.weight_only_inputs:
            *first, last = self.weight_only_inputs
            raise UnsupportedError(
                f"weight-only kernels of {self.name} take {', '.join(first)} or {last} inputs, got {types.a.dtype}"
            )

    def check_layout(self, arch: GpuSpec, types: GemmTypes) -> None:
        """Raise `UnsupportedError` where its kernels take one layout: of packed weights and block scales all do.

        So do those of 8 bits before data-center Blackwell, whose instructions want K along memory ("cublasLtMatmul",
        https://docs.nvidia.com/cuda/cublas).
        """
        is_wide = types.a.dtype.bits >= 16 or arch.sm_arch in FAMILIES["sm100_tcgen05"].own_of
        takes_others = is_wide and not (types.is_weight_quantized or types.is_block_scaled)
        if types.layout != LAYOUTS[0] and not takes_others:
            raise UnsupportedError(
                f"{self.name} runs {types.inputs} on {arch.name} in layout {LAYOUTS[0]} alone, got {types.layout}"
            )

    def few_row_family(self, arch: GpuSpec, types: GemmTypes) -> Family | None:
        """Return what it runs single dense GEMMs of few rows with, where that is not what it runs others with."""
        family = FAMILIES.get(self.few_row_families.get(types.a.dtype, ""))
        is_plain = not (types.is_block_scaled or types.is_weight_quantized)
        return family if family is not None and is_plain and arch.sm_arch in family.sm_archs else None

    def of_rows(self, arch: GpuSpec, types: GemmTypes, G: int, M: int) -> Library:
        """Return the library whose kernels run a GEMM of so many rows: its own, or cuBLAS's."""
        family = self.few_row_family(arch, types)
        return self if family is None or (G == 1 and family.most_rows >= M) else LIBRARIES["cublas"]

    def padding(self, sm_arch: str, types: GemmTypes) -> Padding:
        """Return the padding of K and N before its kernels run GEMMs of these types: `_PAD_BYTES`, packed weights.

        A framework stores weights with padded rows once, lets the kernel that quantizes tokens write padded rows, and
        leaves out columns of C beyond N: none of that takes time.
        """
        is_few = types.a.dtype in self.few_row_families and not types.is_block_scaled  # as cuBLAS's, for more rows
        is_packed = self.pads_weights and types.is_weight_quantized
        if not (is_few or is_packed or self.runs_unaligned(types)):
            return NO_PADDING
        narrow = _MORE_PAD_BYTES.get((sm_arch, types.a.dtype), _PAD_BYTES.get(types.a.dtype))
        num_bytes = ROW_BYTES if types.is_weight_quantized else narrow
        padding = padding_to(types, num_bytes) if num_bytes else NO_PADDING
        return padding._replace(whole_columns=_WHOLE_COLUMNS.get((sm_arch, types.a.dtype), 1))

    def _runs_dense(self, arch: GpuSpec, types: GemmTypes) -> bool:
        own = self.dense_families.get(types.a.dtype)
        has_own = own is not None and not types.is_block_scaled and arch.sm_arch in FAMILIES[own].sm_archs
        has_own = has_own or self.few_row_family(arch, types) is not None
        return self.is_dense or has_own or (types.is_block_scaled and self.has_block_scaled)

    def runs_unaligned(self, types: GemmTypes) -> bool:
        """Return True if it has kernels of these types for rows that do not start on 16 bytes.

        Those of block-scaled types and of fp4 load 16 bytes at a time and nothing less, as cuBLAS's do ("Narrow
        Precision Data Types Usage", https://docs.nvidia.com/cuda/cublas); AMD's buffer loads are cut off at an end.
        """
        loads_whole = (types.is_block_scaled or types.a.dtype is DType.FP4) and not self.plain_families
        return self.has_unaligned and not loads_whole

    @property
    def word(self) -> str:
        """The library as a user names it, in its version where one is named."""
        return f"{self.name}/{self.version}" if self.version else self.name

    @property
    def has_own_kernels(self) -> bool:
        """True if its version has other kernels than the library without a version."""
        return any(version == self.version for version, _ in self.version_tiles)

    def family(self, arch: GpuSpec, types: GemmTypes, *, load_bytes: int = ROW_BYTES) -> str:
        """Return the kernel family that the library uses for these types, where rows start on so many bytes."""
        return self._family(arch, types, load_bytes=load_bytes).name

    def takes(self, types: GemmTypes) -> bool:
        """Return True if its kernels are for inputs of these types."""
        return not self.inputs or types.a.dtype in self.inputs

    def _listed_family(self, arch: GpuSpec, types: GemmTypes) -> Family:
        listed = self.grouped_families or self.plain_families if self.takes(types) else ()
        families = [FAMILIES[name] for name in listed]
        found = next((family for family in families if arch.sm_arch in family.sm_archs and _takes(family, types)), None)
        if found is None:
            where = sorted({sm for family in families if _takes(family, types) for sm in family.sm_archs})
            if not where:
                change = ": give the weights the type of A" if types.is_weight_quantized else ""
                raise UnsupportedError(f"library {self.name} has no kernels for {types.inputs}{change}")
            names = ", ".join(where)
            raise UnsupportedError(
                f"library {self.name} runs {types.inputs} only on {names}, and {arch.name} is {arch.sm_arch}"
            )
        return found

    def _family(self, arch: GpuSpec, types: GemmTypes, *, load_bytes: int) -> Family:
        if self.grouped_families or self.plain_families:
            return self._listed_family(arch, types)
        if load_bytes == ROW_BYTES and (few := self.few_row_family(arch, types)) is not None:
            return few
        own = self.weight_only_family if types.is_weight_quantized else self.dense_families.get(types.a.dtype, "")
        if own and load_bytes == ROW_BYTES and arch.sm_arch in FAMILIES[own].sm_archs:
            return FAMILIES[own]
        is_block_scaled = types.is_block_scaled and self.has_block_scaled
        return family_for(
            arch.sm_arch, types.a.dtype, load_bytes=load_bytes, is_block_scaled=is_block_scaled,
            is_full=types.accumulate is not None,
        )  # fmt: skip

    def split_rule(self, arch: GpuSpec, types: GemmTypes, *, load_bytes: int) -> SplitRule:
        """Return how the library's kernels for these types split K; cuBLAS's int8 kernels on Hopper do not."""
        family = self.family(arch, types, load_bytes=load_bytes)
        if types.a.dtype is DType.INT8 and arch.sm_arch == "sm_90":
            return _NO_SPLIT
        is_whole = (self.version, family) in self.version_tiles and not self.version.endswith(_OF_SPLITS)
        if is_whole or FAMILIES[family].block_scaled is not None:  # nothing in their times grows slower than K
            return _NO_SPLIT
        return self.split_rules.get(family, _FREE_SPLIT)

    def never_splits(self, family: str) -> bool:
        """Return True if kernels of a family take all of K at once, on every GPU."""
        return self.split_rules.get(family, _FREE_SPLIT).max_parts == 1

    def tiles(self, arch: GpuSpec, types: GemmTypes, *, load_bytes: int) -> Iterator[TileChoice]:
        """Tiles that the library has for this GPU and these types; those of our own kernels stand in a table."""
        self.check(arch, types)
        if self.name == OURS:
            return
        family = self._family(arch, types, load_bytes=load_bytes)
        if self.grouped_families:
            yield from self._of_tile(family.dense_tiles(arch.sm_arch, types.a.dtype), arch, types)
        elif types.is_weight_quantized:
            if family.name != self.weight_only_family:
                yield from FAMILIES["gemv"].weight_only_tiles(*self.weight_only_tiles)
            yield from family.weight_only_tiles(*self.weight_only_tiles)
        else:
            tiles = self.version_tiles.get((self.version, family.name))
            choices = family.dense_tiles(arch.sm_arch, types.a.dtype)
            has_k_apart = types.is_a_along_m or types.is_b_along_n
            for item in choices:
                if (tiles is None or (item.cta_m, item.cta_n) in tiles) and not (item.is_along_k and has_k_apart):
                    yield item

    def _of_tile(self, choices: Iterable[TileChoice], arch: GpuSpec, types: GemmTypes) -> Iterator[TileChoice]:
        """Yield those that the library is to run: all, or those of `tile`.

        Raises:
            UnsupportedError: it has no such tile for these types on this GPU.
        """
        if not self.tile:
            yield from choices
            return
        known = list(choices)
        found = [choice for choice in known if self.tile in tile_names(choice, types)]
        if not found:
            names = ", ".join(dict.fromkeys(tile_names(choice, types)[-1] for choice in known))
            raise UnsupportedError(
                f"library {self.name} has no tile {self.tile} for {types.inputs} on {arch.name}; it has {names}"
            )
        yield from found


def _takes(family: Family, types: GemmTypes) -> bool:
    takes = family.for_types or family.plain_types
    return takes is not None and takes(types)


def tile_names(choice: TileChoice, types: GemmTypes) -> tuple[str, ...]:
    """Return what a tile is called in ``library/tile``: rows x columns, with its k-step, and with all that is known."""
    step_bytes = choice.step_bytes or FAMILIES[choice.family].step_bytes
    short = f"{choice.cta_m}x{choice.cta_n}"
    long = f"{short}x{8 * step_bytes // types.a.dtype.bits}"
    stages = f"s{choice.num_stages}" if choice.num_stages else ""
    return short, long, f"{long}w{choice.num_warps}{stages}"


def _grouped(name: str, *families: str, has_stream_k: bool = False, has_unaligned: bool = False) -> Library:
    """Return a library of grouped kernels."""
    return Library(
        name, dict.fromkeys(families, _NO_SPLIT), has_stream_k=has_stream_k, is_dense=True, is_weight_only=True,
        has_unaligned=has_unaligned, grouped_families=families,
    )  # fmt: skip


def _of_amd(
    name: str, sm_archs: tuple[str, ...], inputs: tuple[DType, ...], *families: str,
    version_tiles: Mapping[tuple[str, str], Tiles] = {},
) -> Library:  # fmt: skip
    return Library(
        name, dict.fromkeys(families, _NO_SPLIT) | _AMD_SPLITS, has_stream_k=False, is_dense=True, is_weight_only=False,
        plain_families=families, inputs=inputs, default_of=sm_archs,
        versions=tuple(dict.fromkeys(version for version, _ in version_tiles)), version_tiles=version_tiles,
    )  # fmt: skip


LIBRARIES: dict[str, Library] = {
    library.name: library
    for library in (
        # All 1,690 proposals that could split K (parts of more than 20 k-steps, all parts on the GPU at once) do, 93%
        # into the most parts that this leaves; stream-K is never proposed (arch/measured/h200-sxm/cublaslt). On
        # other GPUs its times show parts of few steps; with mma.sync no more than 32, or 8 of fp8 (arch/measured: A100,
        # L40S, RTX PRO 6000, B200). None of 912 batches has a split K (arch/measured/h100-sxm/torch).
        Library(
            "cublas",
            {
                "sm90_wgmma": SplitRule(21, is_full=True, is_lone=True),
                "sm90_wgmma_full": SplitRule(21, is_full=True, is_lone=True),
                "sm90_tf32": SplitRule(4, is_full=False, is_lone=True, is_short=True),
                "simt": SplitRule(8, is_full=False, is_lone=True),
                "sm80_mma": SplitRule(4, is_full=False, max_parts=32, is_lone=True),
                "sm89_mma_fp8": SplitRule(4, is_full=False, max_parts=8, is_lone=True),
                "sm90_tf32_unaligned": SplitRule(1, is_full=False, is_lone=True),
                "mma_unaligned": SplitRule(1, is_full=False, is_lone=True),
                "mma_elementwise": SplitRule(1, is_full=False, is_lone=True),
                "sm100_tcgen05": SplitRule(4, is_full=False, is_lone=True),
                "sm70_mma": SplitRule(8, is_full=False, is_lone=True),
            },
            has_stream_k=False, is_dense=True, is_weight_only=False,
            versions=("trtllm-1.0.0rc3", "trtllm-1.0.0", "13.1", "trtllm-1.3.0rc20"),
        ),
        # our kernels, whose configs stand in a table (`models.gpu.w4a16`)
        Library(
            OURS, {}, has_stream_k=False, is_dense=False, is_weight_only=True, has_unaligned=False,
            weight_only_inputs=(DType.FP16, DType.BF16, DType.FP8), is_chosen_by_model=True,
        ),
        # what nobody has written, or not for these types, sizes or GPUs: mixed-input kernels as CUTLASS could have them
        Library(
            HYPOTHETICAL, {}, has_stream_k=True, is_dense=False, is_weight_only=True,
            weight_only_tiles=((64, 128, 256), (8, 16, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)),
            weight_only_inputs=(DType.FP16, DType.BF16, DType.FP8), is_chosen_by_model=True,
        ),
        # tiles assumed: those of CUTLASS's mixed-input kernels; K in at most four parts, which is what its times of few
        # columns and long K show (arch/measured/h200-sxm/aiconfigurator)
        Library(
            TRTLLM,
            {
                "sm90_wgmma": SplitRule(8, is_full=False, max_parts=4),
                "sm80_weight_only": SplitRule(1, is_full=False, max_parts=7, is_even=True),
                "sm80_int8": _NO_SPLIT,
            },
            has_stream_k=False, is_dense=False,
            is_weight_only=True, weight_only_tiles=((64, 128), (16, 32, 64, 128, 256)), has_unaligned=False,
            pads_weights=True, has_block_scaled=True, weight_only_family="sm80_weight_only",
            dense_families={DType.INT8: "sm80_int8"}, few_row_families={DType.FP8: "fp8_gemv"},
        ),
        # AMD: the fastest kernel that aiter's tuner found, of CK, CK-Tile, assembly, FlyDSL and Triton
        _of_amd(
            "aiter", GFX_ARCHS[1:], (DType.FP8, DType.FP4, DType.INT8), *(of.name for of in MFMA_NARROW),
            version_tiles=_AITER_TILES,
        ),
        # for 16 bits the same tuner's choice among hipBLASLt's kernels and others, which win two rows in three
        _of_amd("hipblaslt", GFX_ARCHS, (DType.BF16, DType.FP16, DType.FP32, DType.TF32, DType.INT8), MFMA.name),
        replace(
            _grouped("aiter-moe", *(of.name for of in MFMA_EXPERTS), has_unaligned=True), default_of=GFX_ARCHS[1:]
        ),
        # grouped GEMMs: one launch for all experts of a layer, and nothing splits K
        _grouped("torch", "sm90_grouped"),
        _grouped("triton", "triton_moe", "triton_moe_fp8", "triton_moe_mxfp4", has_unaligned=True),
        _grouped("marlin", "marlin_moe", has_stream_k=True),
        _grouped("trtllm-gen", "gen_moe", "gen_moe_fp8", "gen_moe_fp4", "gen_moe_mxfp4"),
        _grouped("deepgemm", "sm90_deepgemm_moe", "sm100_deepgemm_moe"),
        _grouped(
            "cutlass", "cutlass_moe_sm80", "cutlass_moe_sm89_fp8", "cutlass_moe_sm90", "cutlass_moe_sm90_fp8",
            "cutlass_moe_sm90_fp8_block", "cutlass_moe_sm100", "cutlass_moe_sm100_fp8", "cutlass_moe_sm100_fp4",
            "cutlass_moe_sm120_fp8_block", "cutlass_moe_sm120_fp4",
        ),
    )
}  # fmt: skip
"""Kernel libraries by name."""


@lru_cache(maxsize=1024)
def library_of(name: str) -> Library:
    """Return a library by its name, with one of its tiles alone, in a version, or as that of an engine.

    Tiles and versions are named as in ``"triton/64x64x32"``, ``"cublas/13.1"`` and ``"aiter/preshuffled"``.

    Raises:
        InvalidOptionError: there is none of this name, or no such version, or it has no tiles to choose from.
    """
    base, slash, tile = name.partition("/")
    if base in ENGINES and tile in LIBRARIES:
        return LIBRARIES[tile]
    if base not in LIBRARIES:
        raise InvalidOptionError(refusal("library", name, (*LIBRARIES, *ENGINES, AUTO)))
    found = LIBRARIES[base]
    if not slash:
        return found
    if found.versions:
        if tile not in found.versions:
            raise InvalidOptionError(refusal(f"version of library {base}", tile, found.versions))
        return replace(found, version=tile)
    if not found.grouped_families or not tile:
        known = ", ".join(item.name for item in LIBRARIES.values() if item.grouped_families)
        raise InvalidOptionError(f"library {name}: a tile can be named of {known} alone, as in triton/64x64x32")
    return replace(found, tile=tile)


def check_plain_library(library: str) -> None:
    """Raise where a library is asked for a GEMM that is no grouped one, and only its grouped kernels are known.

    Raises:
        InvalidOptionError: there is none of this name.
        UnsupportedError: the library is known by its grouped kernels alone.
    """
    if library not in (AUTO, *ENGINES) and library_of(library).grouped_families:
        plain = ", ".join(name for name, of in LIBRARIES.items() if not of.grouped_families)
        raise UnsupportedError(
            f"of library {library} only grouped kernels are known, those of experts (evaluate_grouped); for single "
            f"GEMMs and batches use library {plain}"
        )


def default_library(arch: GpuSpec, types: GemmTypes) -> str:
    """Return whose kernels run single GEMMs and batches where no library is named.

    cuBLAS's run dense types, TensorRT-LLM's block-scaled types, and those dense types of which it has kernels of its
    own for few rows: no engine is known to run cuBLAS's. 4-bit weights in the formats of checkpoints run on our kernels
    (`AUTO`) where these ran and were timed on a GPU of that generation of SMs, and on TensorRT-LLM's elsewhere, which
    has kernels for all generations (its `fpA_intB_gemm_template.h`: for sm_70 in 2023 alone; sm_120 runs those of
    sm_80). Other narrow weights are `AUTO`: sizes decide too. GPUs of other makers have a library that says so
    (`default_of`).
    """
    if arch.sm_arch not in SM_ARCHS:
        names = [name for name, of in LIBRARIES.items() if arch.sm_arch in of.default_of and not of.grouped_families]
        return next((name for name in names if LIBRARIES[name].takes(types)), names[-1])
    if types.is_weight_quantized:
        has_run_ours = arch.sm_arch in _generations_of_ours(data_root() / "calibration")
        return TRTLLM if has_w4a16_format(types) and not has_run_ours else AUTO
    has_own = types.is_block_scaled or LIBRARIES[TRTLLM].few_row_family(arch, types) is not None
    return TRTLLM if has_own else "cublas"


@cache
def _generations_of_ours(root: Path) -> frozenset[str]:
    """Return the generations of SMs on whose GPUs our kernels were timed, by the calibrations in a folder."""
    timed = {path.parent.name for path in root.glob(f"*/{OURS}-*.yaml")}
    return frozenset(load_arch(name, GpuSpec).sm_arch for name in timed.intersection(list_archs()))


_OF_OLD_SMS = {
    "sm_70": "TensorRT-LLM had such kernels in 2023, with one scale a column",
    "sm_75": "TensorRT-LLM's have one scale a column",
}
"""What sets TensorRT-LLM's weight-only kernels for old SMs apart; vLLM's for groups of weights there have no model."""


def say_default(arch: GpuSpec, types: GemmTypes, library: str) -> str:
    """Return a sentence on why a library is the default for 4-bit weights; empty: it is not."""
    if not has_w4a16_format(types):
        return ""
    default = default_library(arch, types)
    if library == OURS and default == AUTO:
        return f"{OURS} is the default on {arch.sm_arch}, where its kernels ran and were timed."
    if library != default:
        return ""
    is_timed = arch.sm_arch in FAMILIES[LIBRARIES[TRTLLM].weight_only_family].sm_archs
    notes = (
        f"{TRTLLM} is the default here: engines run its kernels, and those of {OURS} never ran on {arch.sm_arch}",
        _OF_OLD_SMS.get(arch.sm_arch, ""),
        "the timings are an A100's, with TensorRT-LLM 1.0" if is_timed else "they have no timings here",
        "fp4 weights, which engines run with Marlin's kernels, are taken to be as fast as int4"
        * (types.b.dtype is DType.FP4),
    )
    return "; ".join(filter(None, notes)) + "."


_ENGINES_ON_BLACKWELL = ("deepgemm", "trtllm-gen")
_ENGINES = ("marlin", "triton", "cutlass")


def engine_libraries(arch: GpuSpec, types: GemmTypes) -> tuple[str, ...]:
    """Return whose grouped kernels serving engines try on a GPU, in their order.

    TensorRT-LLM's and DeepGEMM's on datacenter Blackwell, but for int4 weights, for which vLLM takes them only where
    it is told to. Else those of vLLM and SGLang: Marlin's for weights narrower than 16 bits, Triton's for the rest.
    For mxfp4 vLLM has Marlin's before Triton's (fused_moe/oracle/mxfp4.py in 2026; with Triton's gpt-oss-120b took 35%
    longer on Hopper, vllm-project/vllm#27523), and SGLang has them on sm_120 (sgl-project/sglang#28231). On another
    maker's GPUs its own.
    """
    if arch.sm_arch not in SM_ARCHS:
        return tuple(name for name, of in LIBRARIES.items() if of.grouped_families and arch.sm_arch in of.default_of)
    is_data_center_blackwell = arch.sm_arch in ("sm_100", "sm_103") and types.b.dtype is not DType.INT4
    return (*(_ENGINES_ON_BLACKWELL if is_data_center_blackwell else ()), *_ENGINES)


def first_library(names: Iterable[str], arch: GpuSpec, types: GemmTypes) -> str | None:
    """Return the first of some libraries that has kernels for these types on this GPU."""
    for name in names:
        try:
            LIBRARIES[name].check(arch, types)
        except UnsupportedError:
            continue
        return name
    return None


def default_grouped_library(arch: GpuSpec, types: GemmTypes) -> str:
    """Return the library whose kernels run groups of rows: the first with such kernels on this GPU.

    PyTorch's where it has CUTLASS kernels, else those of `engine_libraries`; a GPU or a type that none of them runs has
    the library of plain GEMMs, as its kernels would do it in one launch.
    """
    if found := first_library(("torch", *engine_libraries(arch, types)), arch, types):
        return found
    plain = default_library(arch, types)
    return HYPOTHETICAL if plain == AUTO else plain


def library_of_family(library: str, family: str) -> str:
    """Return the library that a kernel family is of, of those that an answer by `library` can come from."""
    if library != AUTO:
        return library
    return OURS if FAMILIES[family].is_ours else HYPOTHETICAL


def cluster_grid_sms(arch: GpuSpec, cluster_ctas: int) -> int:
    """SMs that whole clusters of this size fill."""
    return cluster_sms(arch.num_sms, cluster_ctas) // cluster_ctas * cluster_ctas
