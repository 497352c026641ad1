"""Which kernel a GEMM takes when the caller names none: a rough estimate of each, by a few fixed numbers.

The numbers are of an H200, read off a few dozen of its timings; other GPUs are taken to be alike but for their SMs.
That will do to choose, and to decide what is worth timing; predictions are the business of `gemm_eval.models.gpu`.
"""

from __future__ import annotations

from collections.abc import Iterable

from gemm_eval.dtypes import DType
from gemm_eval.errors import UnsupportedError
from gemm_eval.kernels._family import DeviceLimits, Sizes, WeightMode, ceil_div
from gemm_eval.kernels._registry import legal_configs
from gemm_eval.mapping import Decomposition, KernelConfig, Schedule

__all__ = ["choose", "rank"]

_BLOCK = 64  # columns, and k, of a packed block
_BLOCK_BYTES = 2_048
_CYCLES_PER_US = 1_750.0
_BYTES_PER_US = 4.1e6  # of DRAM, whole chip
_L2_BYTES_PER_US = 1.1e7  # to all SMs
_STREAMING_L2_BYTES_PER_US = 6.0e6
_START_US = 3.0  # launch, first loads, last stores
_L2_BYTES_PER_US_OF_SM = 5.0e4
_REDUCTION_US = 1.5  # parts of a tile: write, count, read
_SHORT_STEP_FRAC = 0.06  # what steps of 64 k cost more, where the tile leaves room for 128
_L2_BYTES = 3.0e7  # of A, that stay in L2 beside all else
_STREAM_FRAC, _STREAM_FRAC_OF_LARGE = 0.14, 0.3  # what stream-K costs over an even share
_CLUSTER_FRAC = {(1, 1): 0.0, (1, 2): 0.01, (2, 1): 0.04, (2, 2): 0.14}
_SHARING_FRAC = 0.03  # what clusters save where much is loaded again

_MACS_PER_CYCLE = 2_048  # wgmma, of an SM
_MMA_SYNC_FRAC = {"w4a16_sm80": 0.62, "w4a16_gemv_mma": 0.36}  # of that
_LEAST_TOKENS = 8
_DEQUANTIZE_CYCLES = {"w4a16_sm90": 180.0, "w4a16_sm80": 170.0, "w4a16_gemv_mma": 60.0}  # of a block, on an SM
_VECTOR_CYCLES, _VECTOR_TOKEN_CYCLES = 120.0, 64.0  # of a block, and for each token of it: CUDA cores
_NARROW_FRAC = 0.28  # what a strip of half the columns costs more to stream
_TURNS_FRAC = 0.15  # dequantization while the other warpgroup has no turn
_OVERLAP_FRAC = 0.4  # of the shorter of dequantization and wgmma that hides behind the other
_LEAST_FLIGHT_BYTES = 36_000  # of an SM, to keep DRAM busy
_STEP_US = 0.05  # of a streaming kernel: what loading does not hide
_WARPS_OF_SM, _SMEM_BYTES = 16, 232_448  # of streaming kernels


def rank(configs: Iterable[KernelConfig], sizes: Sizes, limits: DeviceLimits) -> list[KernelConfig]:
    """Return configs by how fast they promise to be for a GEMM (elements), best first; ties keep their order."""
    return sorted(configs, key=lambda config: _estimate_us(config, sizes, limits.num_sms))


def choose(
    sizes: Sizes, activation: DType | str, mode: WeightMode | str, group_size: int | None, limits: DeviceLimits
) -> KernelConfig:
    """Return the kernel that promises to be the fastest for a GEMM, with how K is cut.

    Args:
        sizes: of the GEMM, in elements.
        activation, mode, group_size: as in `legal_configs`.
        limits: of the GPU.

    Raises:
        InvalidInputError: activations, mode or group size that W4A16 kernels do not have.
        UnsupportedError: no kernel can run it on this GPU.
    """
    ranked = rank(legal_configs(sizes, limits, activation, mode, group_size), sizes, limits)
    if not ranked:
        raise UnsupportedError(
            f"no W4A16 kernel can run M={sizes.M}, K={sizes.K}, N={sizes.N} on a GPU of compute capability "
            f"{'.'.join(map(str, limits.compute_capability))}; list_kernels says why"
        )
    return ranked[0]


def _estimate_us(config: KernelConfig, sizes: Sizes, num_sms: int) -> float:
    tiles = ceil_div(sizes.M, config.cta_m) * ceil_div(sizes.N, config.cta_n)
    ctas = tiles * config.split_k
    weight_bytes = ceil_div(sizes.N, _BLOCK) * ceil_div(sizes.K, _BLOCK) * _BLOCK_BYTES
    blocks_of_tile = config.cta_n / _BLOCK * ceil_div(sizes.K, _BLOCK)
    is_split = config.decomposition is not Decomposition.DATA_PARALLEL
    is_streaming = config.family.startswith("w4a16_gemv")
    waves, busy = float(ceil_div(ctas, num_sms)), min(1.0, ctas / num_sms)
    at_once = _ctas_of_sm(config)
    if is_streaming:  # CTAs share an SM; where they do not fit all at once, the rest waits for a second round
        rounds = ceil_div(ctas, at_once * num_sms)
        waves = max(1.0, ctas / num_sms) if rounds == 1 else float(rounds * at_once)
    if config.decomposition is Decomposition.STREAM_K:
        waves, busy = tiles / num_sms, 1.0
        # CTAs are at different places of K: less of A is in L2 when it is wanted
        is_large = tiles > num_sms and 2 * sizes.M * sizes.K > _L2_BYTES
        waves *= 1.0 + (_STREAM_FRAC_OF_LARGE if is_large else _STREAM_FRAC)
    compute_us = waves * blocks_of_tile / config.split_k * _block_cycles(config) / _CYCLES_PER_US
    if config.cta_k < 128 and config.cta_m <= 128:
        compute_us *= 1.0 + _SHORT_STEP_FRAC
    bandwidth_frac = min(1.0, busy * 1.3)
    if is_streaming:
        in_flight = config.cta_n * config.cta_k // 2 * config.num_stages
        resident = min(ctas / num_sms, at_once)
        bandwidth_frac = min(bandwidth_frac, resident * in_flight / _LEAST_FLIGHT_BYTES)
    memory_us = weight_bytes * ceil_div(sizes.M, config.cta_m * 8) / (_BYTES_PER_US * bandwidth_frac)
    tokens = min(config.cta_m, sizes.M) if is_streaming else config.cta_m
    loaded = ctas * (config.cta_n * 0.5 + tokens * 2.0) * sizes.K / config.split_k
    l2_us = loaded / (_STREAMING_L2_BYTES_PER_US if is_streaming else _L2_BYTES_PER_US)
    longest = max(compute_us, memory_us, l2_us)
    rest = compute_us + memory_us + l2_us - longest
    reduction_us = 0.0
    if is_split:  # the last CTA of a tile adds all parts by itself
        parts = config.split_k if config.split_k > 1 else 1.0 + max(1.0, num_sms / tiles)
        tile_bytes = 4.0 * config.cta_m * config.cta_n
        reduction_us = _REDUCTION_US + (1.0 + parts) * tile_bytes / _L2_BYTES_PER_US_OF_SM
    shared = _CLUSTER_FRAC[config.cluster_m, config.cluster_n] - (
        _SHARING_FRAC if 2 * sizes.M * sizes.K > _L2_BYTES else 0.0
    )
    clusters_us = shared * longest if config.cluster_m * config.cluster_n > 1 else 0.0
    stages_us = 0.02 * max(0, 4 - config.num_stages) * longest
    steps_us = _STEP_US * sizes.K / (config.split_k * config.cta_k) if is_streaming else 0.0
    return _START_US + longest + 0.1 * rest + reduction_us + clusters_us + stages_us + steps_us


def _ctas_of_sm(config: KernelConfig) -> int:
    """CTAs of a streaming kernel that an SM holds, by warps and by the ring in shared memory."""
    warps = _WARPS_OF_SM if config.cta_m <= 16 else _WARPS_OF_SM // 2
    ring = config.num_stages * config.cta_k // _BLOCK * (34 * config.cta_n + 128 * config.cta_m)
    return max(1, min(warps // config.num_warps, _SMEM_BYTES // ring))


def _block_cycles(config: KernelConfig) -> float:
    """Cycles of an SM for a block of 64 columns x 64 k and a tile of tokens, whether they are there or not."""
    if config.schedule is Schedule.VECTOR:
        return _VECTOR_CYCLES + _VECTOR_TOKEN_CYCLES * config.cta_m
    tensor = max(config.cta_m, _LEAST_TOKENS) * _BLOCK * _BLOCK / _MACS_PER_CYCLE
    dequantize = _DEQUANTIZE_CYCLES[config.family]
    if config.schedule is Schedule.MULTISTAGE:
        dequantize *= 1.0 + _NARROW_FRAC * max(0.0, _BLOCK / config.cta_n - 1.0)
        return tensor / _MMA_SYNC_FRAC[config.family] + dequantize
    if config.schedule is Schedule.PINGPONG:
        dequantize *= 1.0 + _TURNS_FRAC
    shorter, longer = sorted((tensor, dequantize))
    return longer + (1.0 - _OVERLAP_FRAC) * shorter
