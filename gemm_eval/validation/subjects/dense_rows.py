"""Rows of dense GEMMs as the model takes them, and the kernel configs that names of cuBLAS kernels tell."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import THREADS_PER_WARP, GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.errors import InfeasibleError, UnsupportedError
from gemm_eval.jit import read_only
from gemm_eval.mapping import Decomposition, KernelConfig, RasterOrder, Schedule
from gemm_eval.models import gpu as gpu_model
from gemm_eval.models.gpu.families import QUANTIZE, default_coefficients
from gemm_eval.models.gpu.w4a16 import has_our_kernels
from gemm_eval.search import OF_GENERIC, run_in_chunks
from gemm_eval.validation.tables import Floats, Ints, Mask, Timings
from gemm_eval.workload import NO_LAYOUTS, GemmProblem

# nvjet_sm90_hsh_128x64_64x8_2x1_v_bz_coopA_splitK_TNT: tile N x M, k-step x stages, cluster N x M, raster, options
_NAME = re.compile(
    r"nvjet_sm90_[a-z]+_(?P<cta_n>\d+)x(?P<cta_m>\d+)_(?P<cta_k>\d+)x(?P<stages>\d+)"
    r"_(?P<cluster_n>\d+)x(?P<cluster_m>\d+)_(?P<raster>[vh])_(?P<options>\w+)$"
)
_COMPUTING_WARPS = 8
# cutlass_80_tensorop_i16832gemm_s8_128x64_128x3_tn_align16: tile N x M, k-step x stages, elements of one load; names
# cutlass_75_tensorop_.. have no stages: two k-steps, or parts of one, of which one is in registers
_CUTLASS = re.compile(
    r"cutlass_(?:75|80)_(?:(?:wmma_)?tensorop_\w+?gemm(?:_\w+?)??|simt_sgemm)_(?P<cta_n>\d+)x(?P<cta_m>\d+)"
    r"(?:_(?P<cta_k>\d+)x(?P<stages>\d+))?_[nt][nt]_align(?P<elements>\d+)"
)
# sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x128x8_stage3_warpsize1x2x1_ffma_aligna4_alignc4: tile M x N
_FFMA = re.compile(r"_tilesize(?P<cta_m>\d+)x(?P<cta_n>\d+)x(?P<cta_k>8)_stage(?P<stages>\d)_\w+_ffma")
_TWO_STAGES = 2
_SWIZZLES = ((6, 8), (3, 4), (2, 2), (1, 1))  # from so many columns of tiles on, so many lie side by side in the grid


def config_of_kernel(problem: GemmProblem, name: str, num_ctas: int, num_threads: int) -> KernelConfig | None:
    """Return the config that a cuBLAS kernel's name and launch tell, or None where they do not.

    The name says that K is split, but not into how many parts: that is what makes the grid of `num_ctas` come out.
    Where it does not, a persistent grid hides the number. On all 1,722 split kernels of
    arch/measured/h200-sxm/cublaslt/fp16-candidates whose grid comes out, it is the number that cuBLASLt reports.
    """
    match = _NAME.match(name)
    if match is None:
        return _config_of_cutlass(problem, name, num_ctas, num_threads)
    n, m, k, stages, cluster_n, cluster_m = map(int, match.groups()[:6])
    if k != gpu_model.step_elems(problem.types, "sm90_wgmma"):
        return None
    split = 1
    if "splitK" in match["options"]:
        split, rest = divmod(num_ctas, tiles_of_grid(problem, m, n, cluster_m, cluster_n))
        if rest or not 2 <= split <= -(-problem.K // k):
            return None
    family = "sm90_wgmma_full" if problem.accumulate else "sm90_wgmma"
    return KernelConfig(
        family, m, n, k, cluster_m, cluster_n, _COMPUTING_WARPS, stages,
        Schedule.COOPERATIVE if "coop" in match["options"] else Schedule.PINGPONG,
        Decomposition.SPLIT_K if split > 1 else Decomposition.DATA_PARALLEL, split,
        RasterOrder.ALONG_N if match["raster"] == "v" else RasterOrder.ALONG_M, 1,
    )  # fmt: skip


def _config_of_cutlass(problem: GemmProblem, name: str, num_ctas: int, num_threads: int) -> KernelConfig | None:
    is_fp32 = problem.types.a.dtype is DType.FP32
    match = _FFMA.search(name) or _CUTLASS.search(name) if is_fp32 else _CUTLASS.search(name)
    if match is None:
        return None
    n, m = int(match["cta_n"]), int(match["cta_m"])
    own = {DType.FP32: "simt", DType.TF32: "sm90_tf32"}.get(problem.types.a.dtype, "sm80_mma")
    family, tiles = own, tiles_of_grid(problem, m, n, 1, 1)
    k = gpu_model.step_elems(problem.types, family)
    load_bytes = 0 if is_fp32 else int(match["elements"]) * problem.types.a.dtype.bits // 8
    if family == "sm90_tf32":
        tiles = tiles_of_grid(
            problem, m, n, 1, next(across for least, across in _SWIZZLES if -(-problem.N // n) >= least)
        )
    if not is_fp32 and load_bytes < gpu_model.LOAD_BYTES[0]:
        narrow = "sm90_tf32_unaligned" if own == "sm90_tf32" else "mma_unaligned"
        family = narrow if load_bytes >= gpu_model.LOAD_BYTES[1] else "mma_elementwise"
        across = next(across for least, across in _SWIZZLES if -(-problem.N // n) >= least)
        tiles = tiles_of_grid(problem, m, n, 1, across)
    stages, part = _TWO_STAGES, 0
    if match["stages"] is not None and family != "mma_elementwise":
        stages, part = divmod(int(match["cta_k"]) * int(match["stages"]), k)
    split, rest = divmod(num_ctas, tiles)
    if part or rest or stages < _TWO_STAGES or not 1 <= split <= -(-problem.K // k):
        return None
    return KernelConfig(
        family, m, n, k, 1, 1, num_threads // THREADS_PER_WARP, stages, Schedule.MULTISTAGE,
        Decomposition.SPLIT_K if split > 1 else Decomposition.DATA_PARALLEL, split, RasterOrder.ALONG_M, 1,
    )  # fmt: skip


def tiles_of_grid(problem: GemmProblem, cta_m: int, cta_n: int, cluster_m: int, cluster_n: int) -> int:
    """Return the number of tiles of all of C, when the grid is rounded up to whole clusters."""
    tiles_m = -(-problem.M // (cta_m * cluster_m)) * cluster_m
    tiles_n = -(-problem.N // (cta_n * cluster_n)) * cluster_n
    return problem.G * tiles_m * tiles_n


Coefficients = Mapping[str, Mapping[str, float]]
"""Kernel family -> coefficient -> value."""

_TRACE = ("kernel", "grid_x", "grid_y", "grid_z", "block_x", "registers", "smem_bytes")


class Rows(NamedTuple):
    """Problems of a library on a GPU; rows of one kind share types, L2, clock and the bytes that they start on."""

    params: npt.NDArray[np.void]  # [kinds] of GPU_PARAMS_DTYPE
    families: tuple[str, ...]  # [kinds], kernel family of each
    candidates: npt.NDArray[np.void]  # [configs] of CANDIDATE_DTYPE, those of all kinds one after another, and known
    ranges: Ints  # [kinds, 2], first and stop of each kind's configs
    kind_of: Ints  # [rows]
    sizes: Ints  # [rows, 4] of G, M, K, N
    family_of: npt.NDArray[np.str_]  # [rows]
    quantize: Mapping[str, float]  # coefficients of the kernels that quantize A by one scale

    def select(self, mask: Mask) -> Rows:
        return self._replace(kind_of=self.kind_of[mask], sizes=self.sizes[mask], family_of=self.family_of[mask])


class KnownRows(NamedTuple):
    """Rows with what was measured of them."""

    rows: Rows
    measured_us: Floats  # [rows]
    timer_us: Floats  # [rows], of it: what the measurement added
    known: Ints  # [known], the rows whose config the name of the kernel tells
    known_configs: Ints  # [known, 2] of row of `rows.candidates`, parts of K

    def of_family(self, family: str) -> KnownRows:
        """Return the rows that the library runs with kernels of `family`."""
        mask = self.rows.family_of == family
        kept = mask[self.known]
        known = (np.cumsum(mask) - 1)[self.known[kept]]
        times = self.measured_us[mask], self.timer_us[mask]
        return KnownRows(self.rows.select(mask), *times, known, self.known_configs[kept])


def pack_problems(arch: GpuSpec, library: str, sets: Sequence[Timings]) -> Rows:
    """Pack the problems of at least one set, one set after the other; only `PROBLEM_COLUMNS` are read."""
    numbers: dict[object, int] = {}
    packed: list[gpu_model.Packed] = []
    families: list[str] = []
    kind_of, sizes = [], []
    for timings in sets:
        for problem in timings.problems():
            rules = gpu_model.library_of(timings.library_word if library == timings.library else library)
            load_bytes = gpu_model.load_bytes_of(problem, rules.padding(arch.sm_arch, problem.types))
            run = timings.l2, timings.clock, timings.quantize_from, timings.is_net, timings.library_version
            key = problem.types, load_bytes, *run
            if key not in numbers:
                numbers[key] = len(packed)
                family, kernels = _pack(arch, rules, problem, timings, load_bytes)
                families.append(family)
                packed.append(kernels)
            kind_of.append(numbers[key])
            sizes.append(problem.sizes)
    joined = gpu_model.join_packed(packed)
    return Rows(
        joined.params, tuple(families), joined.candidates, joined.ranges, np.array(kind_of, np.int64),
        np.array(sizes, np.int64).reshape(-1, 4), np.array(families, dtype=np.str_)[kind_of],
        gpu_model.coefficients_for(arch, gpu_model.TRTLLM, QUANTIZE.name)[0],
    )  # fmt: skip


def _pack(
    arch: GpuSpec, rules: gpu_model.Library, problem: GemmProblem, timings: Timings, load_bytes: int
) -> tuple[str, gpu_model.Packed]:  # fmt: skip
    """Return the kernel family that the library uses, and its kernels with default coefficients."""
    if rules.is_chosen_by_model and has_our_kernels(arch, problem.types):
        raise UnsupportedError(
            f"{timings.name} is of our W4A16 kernels, one config a row: gemm-eval validate w4a16 scores them"
        )
    family = rules.family(arch, problem.types, load_bytes=load_bytes)
    if load_bytes != gpu_model.LOAD_BYTES[0] and not rules.runs_unaligned(problem.types):
        rules.check(arch, problem.types)
        return family, gpu_model.pack_no_kernels(arch, problem.types, rules.word, l2=timings.l2, clock=timings.clock)
    quantization = gpu_model.quantization_of(problem.types, timings.quantize_from or None)
    if timings.is_net:
        quantization = quantization._replace(num_passes=0)
    return family, gpu_model.pack_kernels(
        arch, problem.types, rules.word, default_coefficients(family), l2=timings.l2, clock=timings.clock,
        is_calibrated=False, load_bytes=load_bytes, quantization=quantization,
    )  # fmt: skip


def pack_timings(arch: GpuSpec, library: str, sets: Sequence[Timings]) -> KnownRows:
    """Pack sets as `pack_problems` does, with their latencies and the configs that the kernels' names tell."""
    rows = pack_problems(arch, library, sets)
    known, configs = [], []
    launched: list[tuple[float, ...]] = []
    first = 0
    for timings in sets:
        if set(_TRACE) <= set(timings.frame.columns):
            launches = timings.frame[list(_TRACE[1:])].astype("Float64").to_numpy(dtype=np.float64, na_value=np.nan)
            rows_of_set = zip(timings.problems(), timings.frame[_TRACE[0]], launches, strict=True)
            for row, (problem, name, numbers) in enumerate(rows_of_set, first):
                if not isinstance(name, str) or not np.isfinite(numbers).all():  # not traced
                    continue
                *grid, threads, registers, smem = numbers.astype(int).tolist()
                config = config_of_kernel(problem, name, math.prod(grid), threads)
                if config is not None and config.family == rows.family_of[row]:
                    known.append(row)
                    configs.append((len(rows.candidates) + len(launched), config.split_k))
                    resources = gpu_model.launched_resources(arch, smem, registers, threads)
                    launched.append(gpu_model.candidate_row(arch, problem.types, config, resources))
        first += len(timings)
    candidates = read_only(np.concatenate([rows.candidates, np.array(launched, gpu_model.CANDIDATE_DTYPE)]))
    return KnownRows(
        rows._replace(candidates=candidates), np.concatenate([timings.measured_us for timings in sets]),
        np.concatenate([np.full(len(timings), timings.timer_us) for timings in sets]), np.array(known, np.int64),
        np.array(configs, np.int64).reshape(-1, 2),
    )  # fmt: skip


def with_families(rows: Rows, coefficients: Coefficients) -> npt.NDArray[np.void]:
    """Return coefficients for each kind of `rows`, [kinds, 1]; a family that has none has its defaults."""
    records = [
        gpu_model.pack_coefficients(
            rows.params[kind : kind + 1],
            {**rows.quantize, **(coefficients.get(family) or default_coefficients(family))},
        )
        for kind, family in enumerate(rows.families)
    ]
    return read_only(np.stack(records))


def best_configs(rows: Rows, coefficients: npt.NDArray[np.void]) -> tuple[Floats, Ints]:
    """Search the best config of each row: its latency in us, and its place as in `KnownRows.known_configs`."""
    num = len(rows.kind_of)
    latency_us, configs = np.empty(num), np.empty((num, 2), np.int64)
    given = _searched(rows, coefficients)
    run_in_chunks(lambda start, stop: OF_GENERIC.find_best_rows(*given, start, stop, latency_us, configs), num)
    _check_found(rows, configs[:, 0] >= 0)
    return latency_us, configs


def best_records(rows: Rows, coefficients: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """Search the best config of each row: its cost, [rows] of GPU_COST_DTYPE."""
    records = np.zeros(len(rows.kind_of), gpu_model.GPU_COST_DTYPE)
    given = _searched(rows, coefficients)
    out = records.view(gpu_model.KERNEL_COST_DTYPE)
    run_in_chunks(lambda start, stop: OF_GENERIC.find_best_of_range(*given, start, stop, out), len(records))
    _check_found(rows, records["active_sms"] > 0)
    return records


def _searched(rows: Rows, coefficients: npt.NDArray[np.void]) -> tuple[object, ...]:
    """Return what the searches of rows take first."""
    columns = [
        gpu_model.pack_bound_columns(rows.params[kind : kind + 1], coefficients[kind], rows.candidates[first:after])
        for kind, (first, after) in enumerate(rows.ranges.tolist())
    ]
    bounds = read_only(np.concatenate(columns, axis=1))
    return rows.params, rows.candidates, bounds, rows.ranges, coefficients, rows.kind_of, rows.sizes, NO_LAYOUTS


def _check_found(rows: Rows, is_found: Mask) -> None:
    if not is_found.all():
        G, M, K, N = rows.sizes[np.argmin(is_found)].tolist()
        raise InfeasibleError(
            f"the library has no kernel for G={G} M={M} K={K} N={N}", resource="kernels", demand=1, limit=0,
            unit="kernels", levers=(),
        )  # fmt: skip


def latencies(rows: Rows, coefficients: npt.NDArray[np.void], kind_of: Ints, sizes: Ints, configs: Ints) -> Floats:
    """Return the latency of problems at given configs of `rows`, in microseconds; arrays as in `Rows`, `KnownRows`."""
    latency_us = np.empty(len(kind_of))  # too few for threads to pay
    OF_GENERIC.evaluate_rows(
        rows.params, rows.candidates, coefficients, kind_of, sizes, NO_LAYOUTS, configs, latency_us
    )
    return latency_us


def families_of(arch: GpuSpec, timings: Timings) -> tuple[str, ...]:
    """Return the kernel families that the library of a set runs its rows with, that of most rows first."""
    names, counts = np.unique(pack_problems(arch, timings.library, [timings]).family_of, return_counts=True)
    return tuple(names[np.argsort(-counts, kind="stable")].tolist())
