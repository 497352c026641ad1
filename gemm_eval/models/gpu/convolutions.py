"""Kernels that cuDNN and torch have for convolutions on GPUs. TORCH.md, "Convolutions"."""

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from gemm_eval.arch import GpuSpec
from gemm_eval.dtypes import DType
from gemm_eval.units import FLOP_PER_MAC, cycles_per_us


class ConvolutionKernel(NamedTuple):
    """A convolution forward, or a gradient, as the implicit GEMM that a kernel goes over.

    `engine` is one of `_CYCLES_OF`; it goes over `groups` one by one, with `rows` positions of the output in all
    images, `columns` filters and `channels` of a group, and `window` positions of a filter. `step_bytes` lie between
    neighbouring windows of an image, `tile_columns` are the most of a tile on tensor cores. An FFT takes `images`
    whose larger `side`, with its margin, is so long; 0: there is none. Of direct engines `side` is without a margin.
    """

    engine: str
    dtype: DType
    groups: int
    rows: int
    columns: int
    window: int
    channels: int
    step_bytes: int = 0
    tile_columns: int = 256
    images: int = 0
    side: int = 0


_TILES = ((256, 128), (256, 64), (256, 32), (128, 128), (128, 64), (128, 32), (64, 192), (64, 128), (64, 64))
"""Rows and columns of a tile on tensor cores."""
_CHUNK_BYTES, _STEP_BYTES, _BITS_PER_BYTE = 16, 64, 8  # of one load, and of the channels of a step
_START_CYCLES = 5970.0
_A_CYCLES, _B_CYCLES, _C_CYCLES = 0.32, 0.24, 1.94
"""Of an SM, for 16 bytes: of windows that it gathers, of filters, and of the result that it writes."""
_ALONE_FRAC, _SHARING_SMS_FRAC = 0.6, 0.5
"""Least share of these two where few SMs have a tile, and the share of SMs from which on L2 gives each no more."""
_ODD_GATHER, _LINE_BYTES = 0.57, 128
"""Extra time of windows whose channels share no factor with a line of memory, as a share."""
_RATE_FRAC, _NARROW_RATE_FRAC, _NARROW_COLUMNS = 0.99, 0.83, 32
"""Share of the tensor rate; the same of kernels of the generation before, and the most columns they run for."""

_FEW_TILE_M, _FEW_CTAS = 128, 2
_FEW_CYCLES = {64: 630.0, 128: 1100.0}
"""Of a place of the window, by columns of a tile: a load of 16 bytes holds all channels of one place."""
_FEW_ALONE_CYCLES, _MAX_SWIZZLE = 570.0, 4
"""Least cycles of such a kernel; columns of tiles that CUTLASS takes together, filled up to so many."""

_FEW_TILE_N, _MAX_STEPS, _STEP_CHANNELS, _RGB = 32, 75, 8, 3
_FEW_STORE_CYCLES, _FEW_STEP_CYCLES, _FEW_LONE_CYCLES, _WHOLE_STEP_CYCLES = 1000.0, 125.0, 50.0, 112.0
_FEWEST_COLUMNS, _NARROW_STEP_CYCLES = 8, 75.0
"""fp16 that gathers into registers: columns of a tile, longest window of three channels, channels of a step; cycles of
a store, and of a step: of three channels, of one, of more, and where columns are so few that a tile is half as wide."""
_FIRST_WINDOW, _FIRST_COLUMNS, _FIRST_WINDOW_CYCLES = 49, (32, 64), 16.0
"""The window with an fp16 kernel of its own, in positions, its filters, and cycles of a row and 32 filters."""

_CORE_TILE = 32
_CORE_START_CYCLES, _CORE_TILE_CYCLES, _CORE_K_CYCLES, _CORE_ALONE_CYCLES = 4200.0, 590.0, 17.4, 124.0
"""Before the first tile; of an SM for each tile, and for each place and channel of it; of a CTA alone for these."""
_LAST_TILE_CYCLES, _LAST_K_CYCLES = 900.0, 21.6
"""Likewise for 16 bits with channels last: 16 first layers alone on an H200."""
_SECTOR_BYTES, _SECTOR_FACTOR, _FP32_SECTOR_FACTOR = 32, 1.9, 2.1
"""Neighbouring windows this far apart share no sector, so that CUDA cores load the sectors one by one."""

_FP32_TILES, _FP32_CHANNELS = ((256, 64, 185.0, 12_000.0), (128, 32, 72.0, 1_000.0)), 4
"""Rows and columns of a tile of FMA on CUDA cores, and its cycles for each place and channel, of which it takes four at
once, and for its result: 215 convolutions of drawn modules on an H100."""
_FP32_START_CYCLES = 1800.0
_FP32_SMALL_TILE, _FP32_SMALL_CYCLES, _FP32_ALONE_CYCLES = 32, 99.0, 59.0  # likewise, of an SM that is full, or alone
_MIN_SMALL_WINDOW = 9
"""Elements of a window from which cuDNN takes tiles smaller than the first; where those are few it always may."""
_FFT_SIDES, _MIN_FFT_MACS = (16, 32, 64), 2e8  # fewer products are not worth its kernels
_FFT_MACS, _FFT_BYTES = 4, 8  # of a complex product, and of a complex number
_FFT_MACS_PER_CYCLE, _FFT_BYTES_PER_CYCLE = 52.0, 6.4
"""Of an SM: of the products, and of frequencies that are written and read; of the largest side twice."""

_DIRECT_OUTPUTS, _DIRECT_CYCLES = 1024, 0.26
_CHANNEL_CYCLES, _ROW_CYCLES = 0.45, 2.5e-6
"""Outputs of a CTA that has an SM for itself, and cycles for each product; of one channel, whose threads each read
filters of their own, and more for each byte of the rows of all channels that a window covers."""

_SUM_BYTES, _MIN_STEPS, _WIDE_STEP_FACTOR, _FEW_STEP_FACTOR, _WEIGHT_LOAD_FACTOR = 4, 130, 1.54, 1.95, 1.46
"""Gradients of weights on tensor cores: bytes of a sum of parts, least steps of a part, and how much longer steps of
tf32, of few channels, and all loads take."""
_FP32_WEIGHT_CYCLES, _FP32_LAST_WEIGHT_CYCLES, _FP32_WINDOW_WEIGHT_CYCLES = 50.0, 26.0, 24.0
_FP32_WEIGHT_ROWS, _FP32_CTA_CYCLES, _FP32_ALONE_ROW_CYCLES = 512, 1200.0, 150.0
"""Gradients of weights in fp32: cycles of a tile of 32 x 32 for each row, for windows of one element with channels
first and last, and of more; rows of an image that a CTA takes, its cycles beside them, and those of a row for a CTA
alone. Fitted on 40 convolutions of drawn modules on an H200."""
_WEIGHT_START_CYCLES = 3470.0
_GATHERED_WEIGHT_CYCLES = 3000.0
"""Of a step of 32 x 32 in fp16 whose windows fit a tile and are gathered into registers: 7 kernels on an H200."""
_WEIGHT_STEP_ROWS, _LONG_WEIGHT_START_CYCLES, _MIN_LONG_STEPS = 64, 7000.0, 500
_WEIGHT_TILES = {(64, 64): 275.0, (128, 64): 370.0, (64, 128): 340.0, (128, 128): 715.0}
"""Of 16 bits and more channels: rows of a step, cycles beside them, least steps of a part, and cycles of a step by
filters and channels of a tile. Fitted on 121 kernels alone on an H200."""
_WINOGRAD_WINDOW, _WINOGRAD_CYCLES, _STRIDED_BYTES, _LAST_WINOGRAD_CHANNELS = 9, 9.0, 8, 112
"""Window, in places, whose products cuDNN has in Winograd's form, unless it is strided; with channels last of so many.
"""
_PLANES_CTA_CYCLES, _PLANES_ROW_CYCLES, _PLANES_ALONE_CYCLES = 350.0, 0.4, 1.3
_WARP_ROW_CYCLES, _MOST_WARPS = 31.0, 64
_TILED_WEIGHT_CYCLES, _TILED_ALONE_CYCLES, _LAST_WEIGHT_CYCLES = 0.86, 1.36, 0.055
_LAST_ALONE_ROW_CYCLES, _HALF_BITS = 2.0, 16
"""Cycles of gradients of depthwise weights, by engine: a CTA for each weight (for the CTA, for each row, for a row
where CTAs are few); a warp for each weight (for a row; warps that an SM runs at once); tiles in shared memory (for each
row, and where channels are few); channels side by side (for each product; for a row of wide types). Fitted on 225
convolutions of 28 drawn modules with gradients on an H200."""

_BUILT_WINDOWS = (1, 9, 25)
_FIRST_CYCLES, _FIRST_TAP_CYCLES, _GENERIC_CYCLES, _GENERIC_ROW_CYCLES, _GENERIC_TAP_CYCLES = 1.2, 0.12, 1.9, 0.25, 0.09
_LAST_TAP_CYCLES, _LONG_TAP_CYCLES, _LAST_SHORT, _TILED_CYCLES = 0.047, 0.034, 9, 0.8
"""Of an SM, for each output of a depthwise convolution, and each place (and row) of its window."""
_PLANES_START_CYCLES, _INPUT_FACTORS, _LONG_INPUT_FACTOR = 1400.0, {9: 1.7}, 1.25
"""Before the first output; how much longer the gradient of the input takes, by window."""
_LAST_START_CYCLES, _LAST_ALONE_CYCLES, _FIRST_ALONE_CYCLES = 3700.0, 420.0, 200.0
"""Before the first output, and of a thread alone for each place of the window."""
_ANY_START_CYCLES, _ANY_TAP_CYCLES, _ANY_ALONE_CYCLES, _ANY_BUILT, _ANY_LONG_FACTOR = 1800.0, 0.07, 200.0, 25, 1.37
_INPUT_TAP_CYCLES, _LONG_INPUT_TAP_CYCLES = {1: 0.089, 9: 0.089, 25: 0.068}, 0.095
"""Likewise of channels side by side: in fewer images than cuDNN has the first kernel for, and of the gradient of the
input. Longer windows take more. Fitted on 130 convolutions of drawn modules on an H200."""


def _tensor(arch: GpuSpec, of: ConvolutionKernel) -> float:
    """Return waves of tiles, each a sum over places of the window and 64 bytes of channels; the best tile counts."""
    item_bytes = math.ceil(of.dtype.bits / _BITS_PER_BYTE)
    chunk = _STEP_BYTES if of.channels * item_bytes <= _STEP_BYTES else _LINE_BYTES
    steps = of.window * math.ceil(of.channels * item_bytes / chunk) * chunk // _STEP_BYTES
    step_elements = _STEP_BYTES // item_bytes
    flop_per_cycle = arch.peak_tflop_per_s(of.dtype) * 1e6 / cycles_per_us(arch.boost_clock_ghz) / arch.num_sms
    times = []
    odd = 1.0 - math.gcd(of.channels * item_bytes, _LINE_BYTES) / _LINE_BYTES
    gather = _A_CYCLES * (1.0 + _ODD_GATHER * odd)
    is_narrow = of.columns <= _NARROW_COLUMNS or of.channels * item_bytes < _STEP_BYTES
    rate = flop_per_cycle * (_NARROW_RATE_FRAC if is_narrow else _RATE_FRAC)
    for tile_m, tile_n in (tile for tile in _TILES if tile[1] <= of.tile_columns):
        tiles = of.groups * math.ceil(of.rows / tile_m) * math.ceil(of.columns / tile_n)
        sharing = min(1.0, max(_ALONE_FRAC, tiles / arch.num_sms / _SHARING_SMS_FRAC))
        load = (gather * tile_m + _B_CYCLES * tile_n) * (_STEP_BYTES // _CHUNK_BYTES) * sharing
        multiply = FLOP_PER_MAC * tile_m * tile_n * step_elements / rate
        store = _C_CYCLES * tile_m * tile_n * item_bytes / _CHUNK_BYTES
        times.append(math.ceil(tiles / arch.num_sms) * (store + steps * max(load, multiply)))
    return _START_CYCLES + min(times)


def _few_channels(arch: GpuSpec, of: ConvolutionKernel) -> float:
    """Return the cycles of a first layer on tensor cores, whose channels are filled up to 16 bytes."""
    if of.dtype is DType.FP16 and of.window == _FIRST_WINDOW and of.columns in _FIRST_COLUMNS:
        return of.rows * math.ceil(of.columns / _FEW_TILE_N) * _FIRST_WINDOW_CYCLES / arch.num_sms
    if of.dtype is DType.FP16 and (of.window <= _MAX_STEPS or of.channels != _RGB):
        tiles = math.ceil(of.rows / _FEW_TILE_M) * math.ceil(of.columns / _FEW_TILE_N)
        step = _FEW_LONE_CYCLES if of.channels == 1 else _FEW_STEP_CYCLES if of.channels <= _RGB else _WHOLE_STEP_CYCLES
        step = min(step, _NARROW_STEP_CYCLES) if of.columns <= _FEWEST_COLUMNS else step
        steps = of.window * math.ceil(of.channels / _STEP_CHANNELS)
        return math.ceil(tiles / arch.num_sms) * (_FEW_STORE_CYCLES + steps * step)
    tile_n = min(_FEW_CYCLES) if min(_FEW_CYCLES) >= of.columns else max(_FEW_CYCLES)
    tiles = math.ceil(of.rows / _FEW_TILE_M) * math.ceil(of.columns / tile_n)
    cycles = max(_FEW_ALONE_CYCLES, math.ceil(tiles / arch.num_sms) / _FEW_CTAS * _FEW_CYCLES[tile_n])
    num_columns = math.ceil(of.columns / tile_n)
    together = num_columns if num_columns < 3 else _MAX_SWIZZLE
    if tiles / num_columns * math.ceil(num_columns / together) * together > arch.num_sms:
        cycles = max(cycles, _FEW_CYCLES[tile_n])
    waves = math.ceil(tiles / arch.num_sms)
    store = _C_CYCLES * _FEW_TILE_M * tile_n * math.ceil(of.dtype.bits / _BITS_PER_BYTE) / _CHUNK_BYTES
    return of.window * cycles + waves * store


def _cuda_cores(arch: GpuSpec, of: ConvolutionKernel) -> float:
    tiles = of.groups * math.ceil(of.rows / _CORE_TILE) * math.ceil(of.columns / _CORE_TILE)
    K = of.window * of.channels
    is_last = of.engine == "cuda_cores_last"
    tile_cycles, k_cycles = (_LAST_TILE_CYCLES, _LAST_K_CYCLES) if is_last else (_CORE_TILE_CYCLES, _CORE_K_CYCLES)
    k_cycles *= _SECTOR_FACTOR if of.step_bytes >= _SECTOR_BYTES else 1.0
    busy = tiles / arch.num_sms * (tile_cycles + K * k_cycles)
    return _CORE_START_CYCLES + max(busy, K * _CORE_ALONE_CYCLES)


def _fp32(arch: GpuSpec, of: ConvolutionKernel) -> float:
    """Return FMA of CUDA cores, channels first: products with windows, or of frequencies where those are faster."""
    K: float = of.window * math.ceil(of.channels / _FP32_CHANNELS) * _FP32_CHANNELS
    K *= _FP32_SECTOR_FACTOR if of.step_bytes >= _SECTOR_BYTES else 1.0
    tile_m, tile_n, *_ = _FP32_TILES[0]
    has_few_tiles = of.groups * math.ceil(of.rows / tile_m) * math.ceil(of.columns / tile_n) < arch.num_sms
    is_small = of.window >= _MIN_SMALL_WINDOW or has_few_tiles
    cycles = min(
        math.ceil(of.groups * math.ceil(of.rows / tile_m) * math.ceil(of.columns / tile_n) / arch.num_sms)
        * (K * k_cycles + tile_cycles)
        for tile_m, tile_n, k_cycles, tile_cycles in (_FP32_TILES if is_small else _FP32_TILES[:1])
    )
    if is_small:
        tiles = of.groups * math.prod(math.ceil(size / _FP32_SMALL_TILE) for size in (of.rows, of.columns))
        cycles = min(cycles, K * max(_FP32_ALONE_CYCLES, tiles / arch.num_sms * _FP32_SMALL_CYCLES))
    side = next((side for side in _FFT_SIDES if 0 < of.side <= side), 0)
    if side and of.rows * of.columns * of.window * of.channels >= _MIN_FFT_MACS:
        frequencies, images = side * (side // 2 + 1), of.images
        macs = _FFT_MACS * frequencies * images * of.channels * of.columns
        planes = images * (of.channels + of.columns) + of.channels * of.columns
        num_bytes = planes * frequencies * _FFT_BYTES * (2 if side == _FFT_SIDES[-1] else 1)
        by_fft = (macs / _FFT_MACS_PER_CYCLE + num_bytes / _FFT_BYTES_PER_CYCLE) / arch.num_sms
        cycles = min(cycles, by_fft)
    return _FP32_START_CYCLES + cycles


def _direct(arch: GpuSpec, of: ConvolutionKernel) -> float:
    """Return the cycles of threads that each take some outputs and keep no operand for others."""
    waves = math.ceil(of.groups * of.rows * of.columns / (_DIRECT_OUTPUTS * arch.num_sms))
    products = waves * _DIRECT_OUTPUTS * of.window * of.channels
    if of.groups == 1 or not of.side:
        return products * _DIRECT_CYCLES
    side = math.isqrt(of.window)
    inside = max(0.0, 1.0 - (side**2 - 1) / (4 * side * of.side)) ** 2  # places of the window that are in the image
    rows_bytes = side * of.side * of.groups * math.ceil(of.dtype.bits / _BITS_PER_BYTE)
    return products * inside * (_CHANNEL_CYCLES + _ROW_CYCLES * rows_bytes)


def _planes(arch: GpuSpec, of: ConvolutionKernel) -> float:
    is_built = of.window in _BUILT_WINDOWS
    side = math.isqrt(of.window)
    generic = _GENERIC_CYCLES + _GENERIC_ROW_CYCLES * (side if side**2 == of.window else 1)
    once, tap = (_FIRST_CYCLES, _FIRST_TAP_CYCLES) if is_built else (generic, _GENERIC_TAP_CYCLES)
    busy = of.groups * of.rows * of.columns * (once + of.window * tap) / arch.num_sms
    if of.engine == "planes_inputs":
        busy *= _INPUT_FACTORS.get(of.window, 1.0 if of.window <= max(_BUILT_WINDOWS) else _LONG_INPUT_FACTOR)
    return _PLANES_START_CYCLES + (busy if is_built else max(busy, of.window * _FIRST_ALONE_CYCLES))


def _channels(arch: GpuSpec, of: ConvolutionKernel) -> float:
    tap_cycles = _LAST_TAP_CYCLES if of.window <= _LAST_SHORT else _LONG_TAP_CYCLES
    busy = of.groups * of.rows * of.columns * of.window * tap_cycles / arch.num_sms
    return _LAST_START_CYCLES + max(busy, of.window * _LAST_ALONE_CYCLES)


def _any_channels(arch: GpuSpec, of: ConvolutionKernel) -> float:
    busy = of.groups * of.rows * of.columns * _ANY_TAP_CYCLES / arch.num_sms
    factor = _ANY_LONG_FACTOR if of.window > _ANY_BUILT else 1.0
    return _ANY_START_CYCLES + of.window * factor * max(busy, _ANY_ALONE_CYCLES)


def _channel_inputs(arch: GpuSpec, of: ConvolutionKernel) -> float:
    taps = of.groups * of.rows * of.columns * of.window / arch.num_sms
    return _ANY_START_CYCLES + taps * _INPUT_TAP_CYCLES.get(of.window, _LONG_INPUT_TAP_CYCLES)


def _weights(arch: GpuSpec, of: ConvolutionKernel) -> float:
    """Return the gradient of weights on tensor cores.

    CTAs of one wave divide the rows, which are summed up; unless those are few, each goes over all for its tile.
    """
    item_bytes = math.ceil(of.dtype.bits / _BITS_PER_BYTE)
    if item_bytes < _SUM_BYTES and of.channels * item_bytes >= _STEP_BYTES:
        steps, times = math.ceil(of.rows / _WEIGHT_STEP_ROWS), []
        for (tile_m, tile_n), step_cycles in _WEIGHT_TILES.items():
            tiles = of.groups * of.window * math.ceil(of.columns / tile_m) * math.ceil(of.channels / tile_n)
            parts = max(1, min(arch.num_sms // tiles, steps // _MIN_LONG_STEPS))
            times.append(math.ceil(tiles * parts / arch.num_sms) * math.ceil(steps / parts) * step_cycles)
        return _LONG_WEIGHT_START_CYCLES + min(times)
    step_elements = _STEP_BYTES // item_bytes
    flop_per_cycle = arch.peak_tflop_per_s(of.dtype) * 1e6 / cycles_per_us(arch.boost_clock_ghz) / arch.num_sms
    factor = _WIDE_STEP_FACTOR if item_bytes >= _SUM_BYTES else 1.0
    windows, columns = of.window, of.channels
    if of.channels * item_bytes < _STEP_BYTES:  # a tile takes several places of the window
        unit = _CHUNK_BYTES // item_bytes
        windows, columns, factor = 1, of.window * math.ceil(of.channels / unit) * unit, _FEW_STEP_FACTOR
    times, steps = [], math.ceil(of.rows / step_elements)
    for tile_m, tile_n in _TILES:
        tiles = of.groups * windows * math.ceil(of.columns / tile_m) * math.ceil(columns / tile_n)
        parts = max(1, min(arch.num_sms // tiles, steps // _MIN_STEPS))
        load = (_A_CYCLES * tile_m + _B_CYCLES * tile_n) * (_STEP_BYTES // _CHUNK_BYTES) * _WEIGHT_LOAD_FACTOR
        multiply = FLOP_PER_MAC * tile_m * tile_n * step_elements / (flop_per_cycle * _RATE_FRAC)
        store = _C_CYCLES * tile_m * tile_n * (_SUM_BYTES if parts > 1 else item_bytes) / _CHUNK_BYTES
        waves = math.ceil(tiles * parts / arch.num_sms)
        times.append(waves * (store + math.ceil(steps / parts) * max(load, multiply) * factor))
    cycles = _WEIGHT_START_CYCLES + min(times)
    if of.dtype is DType.FP16 and of.channels < _STEP_CHANNELS and of.window * of.channels <= _CORE_TILE:
        steps = math.ceil(of.columns / _CORE_TILE) * math.ceil(of.rows / _WEIGHT_STEP_ROWS)
        cycles = max(cycles, steps * _GATHERED_WEIGHT_CYCLES / arch.num_sms)
    return cycles


def _fp32_weights(arch: GpuSpec, of: ConvolutionKernel) -> float:
    tiles = of.groups * math.ceil(of.columns / _CORE_TILE) * math.ceil(of.window * of.channels / _CORE_TILE)
    is_last = of.engine == "fp32_weights_last"
    row_cycles = _FP32_WINDOW_WEIGHT_CYCLES
    if of.window == 1:
        row_cycles = _FP32_LAST_WEIGHT_CYCLES if is_last else _FP32_WEIGHT_CYCLES
    is_winograd = of.window == _WINOGRAD_WINDOW and of.step_bytes < _STRIDED_BYTES
    if is_winograd and min(of.columns, of.channels) >= (_LAST_WINOGRAD_CHANNELS if is_last else _CORE_TILE):
        return _FP32_START_CYCLES + tiles * of.rows * _WINOGRAD_CYCLES / arch.num_sms
    rows = of.rows / of.images
    ctas = tiles * of.images * math.ceil(rows / _FP32_WEIGHT_ROWS)
    busy = (tiles * of.rows * row_cycles + ctas * _FP32_CTA_CYCLES) / arch.num_sms
    return _FP32_START_CYCLES + max(busy, min(rows, _FP32_WEIGHT_ROWS) * _FP32_ALONE_ROW_CYCLES)


def _depthwise_weights(arch: GpuSpec, of: ConvolutionKernel) -> float:
    """Return the cycles of a sum over rows for each element of depthwise weights: by CTAs, warps, or channels."""
    elements = of.groups * of.columns * of.window * of.channels / arch.num_sms
    if of.engine == "direct_weights":
        return _WARP_ROW_CYCLES * of.rows * max(1.0, elements / _MOST_WARPS)
    if of.engine == "tiled_weights":
        return of.rows * max(_TILED_ALONE_CYCLES, elements / of.window * _TILED_WEIGHT_CYCLES)
    if of.engine == "planes_weights":
        busy = elements * (_PLANES_CTA_CYCLES + of.rows * _PLANES_ROW_CYCLES)
        return max(busy, of.rows * _PLANES_ALONE_CYCLES)
    alone = _LAST_ALONE_ROW_CYCLES if of.dtype.bits > _HALF_BITS else 0.0
    return _LAST_START_CYCLES + of.rows * max(alone, elements * _LAST_WEIGHT_CYCLES)


_CYCLES_OF: Mapping[str, Callable[[GpuSpec, ConvolutionKernel], float]] = {
    "tensor": _tensor, "few": _few_channels, "cuda_cores": _cuda_cores, "cuda_cores_last": _cuda_cores,
    "fp32": _fp32, "direct": _direct, "planes": _planes, "planes_inputs": _planes, "channels": _channels,
    "any_channels": _any_channels,
    "tiled_planes": lambda arch, of: of.groups * of.rows * of.columns * _TILED_CYCLES / arch.num_sms,
    "weights": _weights, "fp32_weights": _fp32_weights, "fp32_weights_last": _fp32_weights,
    "channels_inputs": _channel_inputs,
    **dict.fromkeys(("planes_weights", "direct_weights", "channels_weights", "tiled_weights"), _depthwise_weights),
}  # fmt: skip
"""Cycles of each engine: tensor cores (channels side by side; of a first layer), CUDA cores in tiles of the implicit
GEMM (any order; channels first in fp32), or output by output; depthwise ones by planes (torch's; cuDNN's in shared
memory) or by channels side by side."""


def convolution_us(arch: GpuSpec, of: ConvolutionKernel) -> float:
    """Return the time of a kernel in microseconds, apart from that of its bytes.

    CUDA cores have a launch for each group; those overlap, so that all start once.
    """
    launches = of.groups if of.engine.startswith("cuda_cores") else 1
    return launches * arch.graph_node_us + _CYCLES_OF[of.engine](arch, of) / cycles_per_us(arch.boost_clock_ghz)
