"""Our W4A16 kernels as a GPU can run them: the table of what each takes and issues, packed for the numba kernels.

The table comes with the library, one file for each NVRTC target and type of activations
(``arch/kernels/w4a16/<target>-<activation>.csv``, of e4m3 tokens in ``w4a8``; `tools/kernel_table.py` writes it from
the machine code).
"""

from __future__ import annotations

import csv
import math
import operator
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec, cluster_sms, ctas_per_sm, data_root
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidMappingError, UnsupportedError
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder, Schedule
from gemm_eval.models.gpu.candidates import CANDIDATE_DTYPE, KernelNeeds
from gemm_eval.models.gpu.families import FAMILIES
from gemm_eval.models.gpu.families.narrow_weights import (
    FP4_SCHEMES,
    FP8_ON,
    W4A16_TARGETS,
    has_w4a8_format,
    has_w4a16_format,
)
from gemm_eval.models.gpu.libraries import HYPOTHETICAL, OURS
from gemm_eval.models.gpu.sizes import SizeRule
from gemm_eval.models.gpu.w4a16.coefficients import PACKED_SETS, coefficients_of
from gemm_eval.models.gpu.w4a16.family_kernels import WGMMA_FAMILIES
from gemm_eval.words import shown
from gemm_eval.workload import GemmProblem, GemmTypes, make_types

W4A16_SIZES = SizeRule(8, 8, False)
"""K and N are multiples of eight: rows of A and C start on 16 bytes."""

_CONFIG = (
    "family", "cta_m", "cta_n", "cta_k", "cluster_m", "cluster_n", "num_warps", "num_stages", "schedule",
    "raster_order", "raster_swizzle",
)  # fmt: skip
_CONFIG_OF = operator.itemgetter(*((CANDIDATE_DTYPE.names or ()).index(name) for name in _CONFIG))
_NAMES = {family.number: name for name, family in FAMILIES.items() if family.is_ours}
_MMA_SYNC_FLOP = 2.0 * 16 * 8 * 16
_WARPS_OF_WGMMA = 4
_LEAST_WGMMA_CYCLES = 13.2
"""A wgmma with 64 x 16 weights from registers takes so long for 16 tokens or fewer: timed on an H200, two warpgroups
on an SM in a loop of nothing else."""
_BLOCK = 64


class _Entry(NamedTuple):
    """A line of the table."""

    config: KernelConfig  # K not cut unless that is compiled in
    cluster: int  # CTAs
    num_threads: int
    registers: int
    smem_bytes: int  # static and dynamic
    min_ctas: int  # CTAs of an SM that the compiler left registers for
    tensor: float  # instructions for a block of 64 x 64 weights
    instructions: float
    producer: float


def has_our_kernels(arch: GpuSpec, types: GemmTypes) -> bool:
    """Return whether W4A16 or W4A8 kernels of ours exist for this GPU and these types."""
    has_format = has_w4a16_format(types) or (arch.sm_arch in FP8_ON and has_w4a8_format(types))
    return arch.sm_arch in W4A16_TARGETS and has_format


def w4a16_types(activation: DType, mode: str, group_size: int, output: DType | None = None) -> GemmTypes:
    """Return the types of a GEMM of ours by the names that its kernels have for them.

    Args:
        activation: fp16 or bf16; fp8, of W4A8.
        output: of C and of integers' scales, fp16 or bf16; None: as the activations.
        mode: "column", "group", "group_zero", "mxfp4" or "nvfp4".
        group_size: weights along K that share a scale; 0 in mode column.
    """
    scheme, output = FP4_SCHEMES.get(mode), output or activation
    return make_types(
        input_dtype=activation, weight_dtype=DType.FP4 if scheme else DType.INT4, output_dtype=output,
        group_size=group_size or None, scale_dtype=scheme.scale_dtype if scheme else output,
        zero_dtype=DType.INT4 if mode == "group_zero" else None,
    )  # fmt: skip


def check_w4a16_types(arch: GpuSpec, types: GemmTypes) -> None:
    """Raise `UnsupportedError` where our kernels do not exist for this GPU or these types; it says what there is."""
    if not has_our_kernels(arch, types):
        group = "a column" if types.group_size is None else types.group_size
        of_scale = f" ({types.b.scale.dtype} scales)" if types.b.dtype is DType.FP4 and types.b.scale else ""
        raise UnsupportedError(
            f"library {OURS} has kernels for {', '.join(W4A16_TARGETS)}, fp16 or bf16 inputs and outputs, and int4 "
            "weights with a scale of the inputs' type for groups of 32, 64, 128 or a column (int4 zero points for "
            "groups), or fp4 weights with an e8m0 scale for groups of 32 or an fp8 one for 16; on "
            f"{', '.join(FP8_ON)} also fp8 inputs with int4 weights without zero points; "
            f"got {arch.sm_arch}, {types.a.dtype} inputs, {types.b.dtype} weights, groups of {group}{of_scale}, "
            f"{types.c} outputs; library {HYPOTHETICAL} says what a good kernel would do"
        )


def check_w4a16_family(arch: GpuSpec, family: str) -> None:
    """Raise `InvalidMappingError` for a family that is not ours, or has no kernels for this GPU."""
    if family not in _NAMES.values():
        known = ", ".join(_NAMES.values())
        raise InvalidMappingError(f"library {OURS} runs these types with {known}, got {shown(family)}", rule="family")
    sm_archs = FAMILIES[family].sm_archs
    if arch.sm_arch not in sm_archs:
        raise InvalidMappingError(
            f"{family} needs {' or '.join(sm_archs)}, {arch.name} is {arch.sm_arch}", rule="family"
        )


def kernel_target(arch: GpuSpec) -> str:
    """Return what our kernels are compiled for on a GPU that has some, such as "sm_90a"."""
    return W4A16_TARGETS[arch.sm_arch]


def check_w4a16_sizes(problem: GemmProblem) -> None:
    """Raise `UnsupportedError` for sizes that our kernels do not take."""
    if not W4A16_SIZES.takes(*problem.sizes[1:]):
        raise UnsupportedError(
            f"kernels of library {OURS} take K and N in multiples of {W4A16_SIZES.k_multiple}, got K={problem.K} "
            f"N={problem.N}: pad them; library {HYPOTHETICAL} says what a good kernel would do"
        )


@cache
def _entries(target: str, activation: DType, mode: str, group_size: int) -> tuple[_Entry, ...]:
    return tuple(entry for line in _table(target, activation)[mode, str(group_size)] for entry in _parse(line))


_COLUMNS = (
    "family", "cta_m", "cta_n", "cta_k", "cluster_m", "cluster_n", "num_warps", "num_stages", "schedule", "split_k",
    "rasters", "num_threads", "registers", "smem_bytes", "static_smem_bytes", "min_ctas", "tensor", "total", "producer",
)  # fmt: skip
_NUM_OF_CONFIG = _COLUMNS.index("num_threads")


@cache
def _table(target: str, activation: DType) -> dict[tuple[str, str], list[tuple[str, ...]]]:
    """Return the `_COLUMNS` of lines by mode and group: a reader of all types parses each line once."""
    folder = "w4a8" if activation is DType.FP8 else "w4a16"
    path = data_root() / "kernels" / folder / f"{target}-{activation}.csv"
    with path.open(newline="", encoding="utf-8") as file:
        header, *lines = csv.reader(file)
    columns = operator.itemgetter(*map(header.index, _COLUMNS))
    mode, group = header.index("mode"), header.index("group_size")
    found: dict[tuple[str, str], list[tuple[str, ...]]] = defaultdict(list)
    for line in lines:
        found[line[mode], line[group]].append(columns(line))
    return found


def _parse(line: tuple[str, ...]) -> Iterator[_Entry]:
    family, *sizes, schedule, split_k, rasters = line[:_NUM_OF_CONFIG]
    m, n, k, cluster_m, cluster_n, warps, stages, parts = map(int, (*sizes, split_k))
    num_threads, registers, smem, static_smem, min_ctas, *instructions = map(float, line[_NUM_OF_CONFIG:])
    decomposition = Decomposition.SPLIT_K if parts > 1 else Decomposition.DATA_PARALLEL
    for raster in rasters.split():  # e.g. "M1 N8"
        config = KernelConfig(
            family, m, n, k, cluster_m, cluster_n, warps, stages, Schedule[schedule.upper()], decomposition, parts,
            RasterOrder["ALONG_" + raster[0]], int(raster[1:]),
        )  # fmt: skip
        yield _Entry(
            config, cluster_m * cluster_n * parts, int(num_threads), int(registers), int(smem + static_smem),
            int(min_ctas), *instructions,
        )  # fmt: skip


def _mode_of(types: GemmTypes) -> tuple[str, int]:
    scale = types.b.scale
    if scale is None or scale.group_size is None:
        return "column", 0
    if types.b.dtype is DType.FP4:
        mode = next(mode for mode, scheme in FP4_SCHEMES.items() if scheme.group_size == scale.group_size)
        return mode, scale.group_size
    return ("group_zero" if scale.zero_dtype else "group"), scale.group_size


def build_w4a16_candidates(arch: GpuSpec, types: GemmTypes) -> npt.NDArray[np.void]:
    """Return our kernels that this GPU can run on these types, [rows] of `CANDIDATE_DTYPE`."""
    rows, sm_arch = [], arch.sm_arch
    rate = arch.tensor_flop_per_cycle[types.a.dtype]
    mma_rate = rate * FAMILIES["sm80_mma"].rate_on(sm_arch)
    scale, weight_bits = types.b.scale, float(types.b.dtype.bits)
    if scale is not None and scale.group_size is not None:
        weight_bits += scale.dtype.bits * (2 if scale.zero_dtype else 1) / scale.group_size  # zero points: 16 bits
    for entry in _entries(kernel_target(arch), types.a.dtype, *_mode_of(types)):
        held = ctas_per_sm(arch, entry.num_threads, entry.registers, entry.smem_bytes)
        if held < 1 or entry.cluster > arch.max_cluster_ctas:
            continue
        family, coefficient_set, is_wgmma, sm_archs = _FACTS[entry.config.family]
        if sm_arch not in sm_archs:
            continue
        config, cluster, expected = entry.config, entry.cluster, max(1, min(entry.min_ctas, held))
        sms = cluster_sms(arch.num_sms, cluster)
        expected_cap = sms * expected // cluster * cluster
        if not expected_cap:
            continue
        # persistent kernels are launched with as many CTAs as the registry expects to fit
        grid_cap = expected_cap if is_wgmma else sms * held
        blocks = config.cta_n / _BLOCK
        if is_wgmma:  # on 64 columns
            instructions = entry.tensor / _WARPS_OF_WGMMA
            flop = 2.0 * _BLOCK * _BLOCK * config.cta_m / instructions
            matrix = blocks * instructions * max(flop / rate, _LEAST_WGMMA_CYCLES)
        else:
            matrix = blocks * entry.tensor * _MMA_SYNC_FLOP / mma_rate
        rows.append((
            family, coefficient_set, *config[1:8], config.schedule, config.raster_order, config.raster_swizzle,
            held, expected, grid_cap, sms, expected_cap, entry.smem_bytes, entry.registers, 0, 0, 0, 0,
            config.split_k if config.split_k > 1 else 0, 0, math.log2(cluster), matrix, 0.0, 0.0, 0.0,
            types.a.dtype.bits / 8, blocks * entry.instructions, blocks * entry.tensor, blocks * entry.producer,
            config.cta_n * _BLOCK * weight_bits / 8,
        ))  # fmt: skip
    return np.array(rows, CANDIDATE_DTYPE)


_FACTS = {
    name: (
        family.number, PACKED_SETS.index(coefficients_of(name)), family.number in WGMMA_FAMILIES, family.sm_archs
    )
    for name, family in FAMILIES.items() if family.is_ours
}  # fmt: skip
"""By family: its number, its place in `PACKED_SETS`, whether it is persistent, on wgmma, and which GPUs have it."""


def list_w4a16_needs(arch: GpuSpec, types: GemmTypes) -> Iterator[KernelNeeds]:
    """Yield what each of our kernels needs, whether or not the GPU has it."""
    for entry in _entries(kernel_target(arch), types.a.dtype, *_mode_of(types)):
        yield KernelNeeds(entry.smem_bytes, entry.registers, entry.registers, entry.num_threads, entry.cluster)


def config_of_row(row: np.void, parts: int) -> KernelConfig:
    """Return the config of a row with K cut into `parts`, unless it is compiled otherwise; 0: stream-K."""
    parts = int(row["cluster_k"]) or parts
    way = Decomposition.STREAM_K if parts == 0 else Decomposition.SPLIT_K if parts > 1 else Decomposition.DATA_PARALLEL
    family, m, n, k, cluster_m, cluster_n, warps, stages, schedule, order, swizzle = _CONFIG_OF(row.tolist())
    return KernelConfig(
        _NAMES[family], m, n, k, cluster_m, cluster_n, warps, stages, Schedule(schedule), way, max(1, parts),
        RasterOrder(order), swizzle,
    )  # fmt: skip


def find_row(candidates: npt.NDArray[np.void], config: KernelConfig) -> int:
    """Return the row of a kernel among candidates, however K is cut.

    Raises:
        InvalidMappingError: the GPU has no such kernel.
    """
    whole = config._replace(decomposition=Decomposition.DATA_PARALLEL, split_k=1)
    is_like = (candidates["cta_m"] == config.cta_m) & (candidates["cta_n"] == config.cta_n)
    for place in np.flatnonzero(is_like).tolist():
        if config_of_row(candidates[place], 1) == (config if candidates[place]["cluster_k"] else whole):
            return place
    raise InvalidMappingError(
        f"there is no such kernel on this GPU for these types: {config}; `gemm-eval kernels` lists what there is",
        rule="config",
    )
