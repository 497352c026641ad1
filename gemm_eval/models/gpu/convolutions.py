"""What cuDNN's convolutions take that are no plain GEMMs. TORCH.md, "Convolutions".

Constants are fits of `arch/measured/h200-sxm/torch/kernels.csv`, as cycles and shares, which carry over to other GPUs.
"""

from __future__ import annotations

import math

from gemm_eval.arch import GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.units import FLOP_PER_MAC, cycles_per_us

_START_CYCLES, _WAVE_CYCLES = 5800.0, 7600.0
"""Of an implicit GEMM: before its first tile, and around the reduction of a tile of 128 x 128."""
_RATE_FRAC = 0.97
_STEP_BYTES, _BITS_PER_BYTE = 128, 8
_TILES = ((256, 128, 1.6, 0.95), (128, 128, 1.0, 1.0), (128, 64, 0.7, 1.2), (64, 64, 0.5, 1.5))
"""Rows and columns of C, time around the reduction, and time of a step for each FLOP, both over those of 128 x 128."""

_FEW_TILE_M, _FEW_CTAS = 128, 2
_FEW_CYCLES = {64: 630.0, 128: 1100.0}
"""Of a place of the window, by columns of a tile: a load of 16 bytes holds all channels of one place."""
_MAX_CUDA_CORE_K, _CUDA_CORE_FRAC, _CUDA_CORE_N = 64, 0.3, 64

_BUILT_WINDOWS = (1, 9, 25)
_FIRST_CYCLES, _FIRST_TAP_CYCLES, _GENERIC_TAP_CYCLES = 1.2, 0.12, 0.175
_LAST_CYCLES, _LAST_TAP_CYCLES = 3700.0, 0.046
"""Of an SM, for each output of a depthwise convolution and each place of its window."""


def implicit_gemm_us(arch: GpuSpec, M: int, N: int, window: int, channels: int, dtype: DType) -> float:
    """Return the time of a convolution on tensor cores whose channels lie side by side, in microseconds.

    Waves of tiles, each a reduction over the places of the window and 128 bytes of channels; the best tile counts.

    Args:
        arch: the GPU.
        M, N: positions of the output in all images, and filters.
        window: places of the filter.
        channels: of one position.
        dtype: of input and filters.
    """
    per_us = cycles_per_us(arch.boost_clock_ghz)
    flop_per_us = arch.peak_tflop_per_s(dtype) * 1e6 / arch.num_sms * _RATE_FRAC
    item_bytes = math.ceil(dtype.bits / _BITS_PER_BYTE)
    steps, step_elements = window * math.ceil(channels * item_bytes / _STEP_BYTES), _STEP_BYTES / item_bytes
    times = []
    for tile_m, tile_n, around, slower in _TILES:
        waves = math.ceil(math.ceil(M / tile_m) * math.ceil(N / tile_n) / arch.num_sms)
        step_us = FLOP_PER_MAC * tile_m * tile_n * step_elements / flop_per_us * slower
        times.append(waves * (around * _WAVE_CYCLES / per_us + steps * step_us))
    return arch.graph_node_us + _START_CYCLES / per_us + min(times)


def has_few_channels_on_cuda_cores(K: int) -> bool:
    """Whether cuDNN takes no tensor cores for a first layer, of K = window x channels."""
    return K <= _MAX_CUDA_CORE_K


def few_channels_us(arch: GpuSpec, M: int, N: int, K: int, window: int) -> float:
    """Return the time of a first layer, whose channels are less than 16 bytes, in microseconds.

    Args:
        arch: the GPU.
        M, K, N: of the implicit GEMM.
        window: places of the filter.
    """
    per_us = cycles_per_us(arch.boost_clock_ghz)
    if has_few_channels_on_cuda_cores(K):
        rate = FLOP_PER_MAC * arch.fp32_ops_per_cycle * arch.num_sms * per_us * _CUDA_CORE_FRAC
        columns = math.ceil(N / _CUDA_CORE_N) * _CUDA_CORE_N
        return arch.graph_node_us + FLOP_PER_MAC * M * columns * K / rate
    tile_n = min(_FEW_CYCLES) if min(_FEW_CYCLES) >= N else max(_FEW_CYCLES)
    tiles = math.ceil(M / _FEW_TILE_M) * math.ceil(N / tile_n)
    waves = max(1.0, tiles / (_FEW_CTAS * arch.num_sms))
    return arch.graph_node_us + waves * window * _FEW_CYCLES[tile_n] / per_us


def depthwise_us(arch: GpuSpec, num_outputs: int, window: int, *, is_channels_first: bool) -> float:
    """Return the time of a depthwise convolution, in microseconds.

    Args:
        arch: the GPU.
        num_outputs: elements of the result.
        window: places of the filter.
        is_channels_first: an image of one channel after the other: a kernel of PyTorch's, a thread for each output;
            else cuDNN's for channels side by side.
    """
    per_us = cycles_per_us(arch.boost_clock_ghz)
    if not is_channels_first:
        cycles = _LAST_CYCLES + num_outputs * window * _LAST_TAP_CYCLES / arch.num_sms
    elif window in _BUILT_WINDOWS:
        cycles = num_outputs * (_FIRST_CYCLES + window * _FIRST_TAP_CYCLES) / arch.num_sms
    else:
        cycles = num_outputs * window * _GENERIC_TAP_CYCLES / arch.num_sms
    return arch.graph_node_us + cycles / per_us
