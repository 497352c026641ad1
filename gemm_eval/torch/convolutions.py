"""Kernels that eager mode runs for a convolution. TORCH.md, "Convolutions".

The way to cuDNN is that of torch's Convolution.cpp and ConvUtils.h; engines are those of cuDNN's heuristics, seen on an
H200 and an H100 with the profiler.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from gemm_eval.dtypes import DType
from gemm_eval.models.gpu import ConvolutionKernel
from gemm_eval.torch.eager_mode import bytes_of, copied_work, far, has_channels_last, reduction_works, vector_work
from gemm_eval.torch.graph import ConvolutionWork, Work, blocks
from gemm_eval.transformer import MemoryWork

LOAD_BYTES = 16
"""Channels of a position, or filters, are filled up to a multiple of these bytes: tensor cores are fed so much."""
_MIN_LAID_OUT_MACS = 1.2e9
"""Of a window of one, channels first, whose rows start off 16 bytes: fewer are worth no change of layout."""
_IMAGE_DIM, _LAYOUT_TILE = 4, 32
_TILED_SIDES, _MIN_TILED_CHANNELS, _MIN_TILED_WIDTH = (1, 3, 5), 32, 7
_MIN_CHANNEL_IMAGES = 8  # from which cuDNN has a kernel for 16 bits, channels side by side
_LARGE_SIDE = 9  # of a depthwise window, from which cuDNN has no kernel for channels side by side
_MAX_CORE_K, _MAX_CORE_K_LAST, _MAX_CORE_M, _MAX_CORE_N = 64, 32, 1 << 14, 256
"""Of a first layer that CUDA cores take: place and channels, with channels first and last; positions and filters."""
_MAX_NARROW_N_LAST, _MAX_TILED_N_LAST = 40, 104
"""Filters of 16 bits that they take whatever the window: so few, and more than these if they are no whole tiles."""
_MIN_FFT_WINDOW = 9
_MAX_GATHERED_FILTERS, _MAX_GATHERED_CHANNELS, _MIN_GATHERED_ROWS, _FEWEST_FILTERS = 56, 56, 1 << 16, 8
"""Of fp16 that is gathered into registers where tiles would be filled up; from so few filters on whatever the rows."""
_MAX_DIRECT_CHANNELS, _MAX_POINTWISE_CHANNELS, _MAX_POINTWISE_FILTERS = 24, 80, 40
"""Of fp32 with channels last that CUDA cores take as it lies; of windows of one element with few filters, more."""
_BUNDLE = 64  # channels of small groups that a tile takes together
_MIN_ALONE_K = 500  # places and channels of a group from which groups run one after the other
_MIN_WIDE_FILTERS, _MIN_FP16_FILTERS, _NARROW_COLUMNS, _NARROW_FILTERS = 64, 56, 32, 48
"""Filters of whole tiles; those from which fp16 has kernels whose tiles have more columns than the last; of volumes
there are none."""
_MAX_LINE_FILTERS, _LINE_COLUMNS = 128, 64
"""Filters of one dimension from which cuDNN takes tiles of so many columns, as if it were an image of one row."""


class _Convolution(NamedTuple):
    """Arguments of torch's `convolution`, its result, and their sizes."""

    x: Any
    weight: Any
    bias: Any
    stride: Sequence[int]
    dilation: Sequence[int]
    is_transposed: bool
    groups: int
    out: Any
    images: int
    channels: int
    filters: int
    window: int

    def positions(self, tensor: Any) -> int:
        """Return the positions of an image of the input or output."""
        return math.prod(map(int, tensor.shape[2 - self.weight.dim() :]))

    @property
    def is_few(self) -> bool:
        """True for a first layer, whose channels are less than a load."""
        is_plain = self.window == 1 or self.is_transposed or self.groups > 1
        return not is_plain and self.channels * self.x.element_size() < LOAD_BYTES


def _kernel_of(of: _Convolution, dtype: DType, *, is_last: bool) -> ConvolutionKernel | None:
    """Return the kernel of a convolution in some type; None: it is a plain GEMM."""
    groups, window = of.groups, of.window
    channels, filters = of.channels // groups, of.filters // groups
    if of.is_transposed:  # each output is a sum over as many positions of the window as hit an input
        window = -(-window // math.prod(of.stride))
    kernel = ConvolutionKernel(
        "tensor", dtype, groups, of.images * of.positions(of.out), filters, window, channels,
        of.stride[-1] * of.x.element_size(),
    )  # fmt: skip
    if groups > 1 and channels == 1:
        if is_last and filters > 1 and of.x.element_size() < 4:  # cuDNN has none for these: a launch for each channel
            return kernel._replace(engine="cuda_cores_last")
        engine, is_wide = _depthwise_engine(of, is_last=is_last), of.x.element_size() >= 4
        if engine == "channels" and (is_wide or of.images < _MIN_CHANNEL_IMAGES):
            engine = "any_channels"
        return kernel._replace(engine=engine, side=int(max(of.x.shape[2:])))
    if filters == groups == 1 and of.is_few and dtype is not DType.FP32:
        return kernel._replace(engine="direct" if is_last else "cuda_cores")
    is_unaligned = channels * of.x.element_size() % LOAD_BYTES and dtype is not DType.FP32
    is_small = kernel.rows <= _MAX_CORE_M and filters <= _MAX_CORE_N and of.positions(of.out) > 1
    if is_unaligned and is_small and not is_last:
        return kernel._replace(engine="direct" if of.is_transposed else "cuda_cores", window=of.window)
    is_plain = groups == 1 and window == 1 and not of.is_transposed and set(of.stride) <= {1}
    if is_plain and (dtype is not DType.FP32 or of.positions(of.out) == 1):
        return None
    if dtype is DType.FP32:
        is_shifted = set(of.stride) | set(of.dilation) <= {1} and window >= _MIN_FFT_WINDOW and groups == 1
        is_shifted &= of.weight.dim() == _IMAGE_DIM
        side = max(of.x.shape[2:]) + max(of.weight.shape[2:]) - 1 if is_shifted else 0
        engine = "cuda_cores" if of.is_few and is_last else "fp32"
        return kernel._replace(engine=engine, images=of.images, side=int(side))
    if of.is_few:
        return kernel._replace(engine=_first_layer_engine(of, kernel, is_last=is_last))
    if of.weight.dim() > _IMAGE_DIM or (dtype is DType.FP16 and filters < _MIN_FP16_FILTERS):
        kernel = kernel._replace(tile_columns=_NARROW_COLUMNS)
    elif of.weight.dim() < _IMAGE_DIM and filters > _MAX_LINE_FILTERS:
        kernel = kernel._replace(tile_columns=_LINE_COLUMNS)
    if groups > 1 and channels <= _BUNDLE // 2:
        width = 1 << (max(channels, filters, LOAD_BYTES // of.x.element_size()) - 1).bit_length()
        return kernel._replace(groups=-(-groups * width // _BUNDLE), columns=max(_BUNDLE, width), channels=_BUNDLE)
    return kernel


def _forward_kernel(of: _Convolution, dtype: DType, *, is_last: bool) -> ConvolutionKernel | None:
    """Return the kernel of a convolution forward, for which cuDNN has some that gradients have not."""
    kernel = _kernel_of(of, dtype, is_last=is_last)
    if kernel is None or of.groups > 1 or of.is_transposed or of.is_few:
        return kernel
    channels, filters = of.channels, of.filters
    if dtype is DType.FP16 and kernel.engine == "tensor" and of.weight.dim() == _IMAGE_DIM:
        is_odd = filters % _NARROW_COLUMNS > 0 and filters <= (_MAX_GATHERED_FILTERS if is_last else _NARROW_FILTERS)
        is_long = kernel.rows >= _MIN_GATHERED_ROWS and channels <= _MAX_GATHERED_CHANNELS
        if filters <= _FEWEST_FILTERS or (is_odd and is_long):
            return kernel._replace(engine="few")
    is_pointwise = of.window == 1 and channels <= _MAX_POINTWISE_CHANNELS and filters <= _MAX_POINTWISE_FILTERS
    if kernel.engine == "fp32" and is_last and (channels <= _MAX_DIRECT_CHANNELS or is_pointwise):
        return kernel._replace(engine="cuda_cores", step_bytes=kernel.step_bytes * channels)
    return kernel


def _depthwise_engine(of: _Convolution, *, is_last: bool) -> str:
    """Say which kernel runs; with channels first torch hands fp16 alone to cuDNN (`use_cudnn_depthwise`)."""
    sides, is_same = set(of.weight.shape[2:]), of.filters == of.groups
    if is_last:
        is_wide = of.x.element_size() >= 4 and max(of.dilation) > 1
        return "channels" if max(sides) < _LARGE_SIDE and is_same and not is_wide else "direct"
    is_of_cudnn = str(of.x.dtype) == "torch.float16" and of.channels >= _MIN_TILED_CHANNELS
    if not is_of_cudnn or not is_same or set(of.dilation) | set(of.stride) != {1}:
        return "planes"
    is_square = len(sides) == 1 and sides <= set(_TILED_SIDES) and of.x.shape[-1] >= _MIN_TILED_WIDTH
    return "tiled_planes" if of.weight.dim() < _IMAGE_DIM or (of.weight.dim() == _IMAGE_DIM and is_square) else "planes"


def _first_layer_engine(of: _Convolution, kernel: ConvolutionKernel, *, is_last: bool) -> str:
    """Say which kernel runs: tensor cores take whole tiles of filters, or long windows of many."""
    K, item_bytes = kernel.window * kernel.channels, of.x.element_size()
    if is_last and kernel.dtype is DType.FP16:
        return "few"
    cores = "cuda_cores_last" if item_bytes < 4 else "cuda_cores"
    if is_last and of.filters * item_bytes % LOAD_BYTES:
        return cores if K <= _MAX_CORE_K_LAST else "direct" if K <= _MAX_CORE_K else "few"
    if is_last:
        is_short = K <= _MAX_CORE_K and (
            of.filters % _MIN_WIDE_FILTERS > 0 or (K > _MAX_CORE_K_LAST and kernel.rows > 2 * _MAX_CORE_M)
        )
        is_core = is_short or of.filters <= _MAX_NARROW_N_LAST
        if of.filters % _MIN_WIDE_FILTERS:
            is_core |= of.filters > _MAX_TILED_N_LAST or kernel.rows <= _MAX_CORE_M
        return cores if is_core and kernel.channels * item_bytes * 2 != LOAD_BYTES else "few"
    is_volume = of.weight.dim() > _IMAGE_DIM
    if (kernel.channels == 1 or is_volume) and kernel.rows > _MAX_CORE_M:
        return "few" if kernel.dtype is DType.FP16 else "cuda_cores"
    is_half_a_load = of.channels * item_bytes * 2 == LOAD_BYTES and K > _MAX_CORE_K_LAST
    return "cuda_cores" if is_volume or (K <= _MAX_CORE_K and not is_half_a_load) else "few"


def convolution_kernels(
    work: ConvolutionWork, x: Any, weight: Any, bias: Any, stride: Sequence[int], dilation: Sequence[int],
    is_transposed: bool, groups: int, out: Any,
) -> tuple[tuple[Work, ...], tuple[Work, ...]]:  # fmt: skip
    """Return the kernels of a convolution with channels last, and all kernels of eager mode.

    The latter are copies, changes of layout around the convolution, and the bias; arguments are those of torch's
    `convolution`, and its result.
    """
    rank = weight.dim()
    sizes = int(x.shape[0]) if x.dim() == rank else 1, int(x.shape[1 - rank]), int(out.shape[1 - rank])
    of = _Convolution(
        x, weight, bias, stride, dilation, is_transposed, groups, out, *sizes, int(weight.shape[2:].numel())
    )
    kernels = [_forward_kernel(of, work.problem.input_dtype, is_last=is_last) for is_last in (False, True)]
    is_last = rank >= _IMAGE_DIM and (has_channels_last(x) or has_channels_last(weight))
    kernel, compiled = kernels[is_last], _laid_out(of, replace(work, kernel=kernels[True]), is_last=True)
    copies = [copy for tensor in (x, weight) for copy in copied_work(tensor, is_last=is_last)]
    main = _laid_out(of, replace(work, kernel=kernel), is_last=is_last)
    if bias is None or (kernel is not None and kernel.engine == "planes"):  # torch's kernel of these adds the bias
        return compiled, (*copies, *main)
    num_bytes, name = bytes_of(out), "torch_bias_last" if is_last else "torch_bias"
    name = "torch_offsets_wide" if out.element_size() >= 4 else far(name, 2 * num_bytes)
    return compiled, (*copies, *main, blocks(name, num_bytes, num_bytes, out.numel()))


_TILED_WINDOW = 9  # of a depthwise convolution, in places, for whose weights fp32 has a kernel of its own
_INPUT_ENGINES = {"planes": "planes_inputs", "channels": "channels_inputs", "any_channels": "channels_inputs"}
_WEIGHT_ENGINES = {"planes": "planes_weights", "tiled_planes": "tiled_weights", "channels": "channels_weights"}


def gradient_kernels(
    of_input: Sequence[Any], of_weight: Sequence[Any], grad: Any, x: Any, weight: Any,
    stride: Sequence[int], dilation: Sequence[int], is_transposed: bool, groups: int, *, has_bias: bool,
) -> tuple[Work, ...]:  # fmt: skip
    """Return the kernels of eager mode for the gradients of a convolution; arguments as of `convolution_kernels`.

    `of_input` and `of_weight` have the work of each gradient, nothing where it is not wanted. The gradient of the input
    is the convolution the other way round. With channels last, operands are copied once; else for each gradient.
    """
    rank = weight.dim()
    is_last = rank >= _IMAGE_DIM and (has_channels_last(x) or has_channels_last(weight))
    sizes = int(x.shape[0]) if x.dim() == rank else 1, int(grad.shape[1 - rank]), int(x.shape[1 - rank])
    is_other = not is_transposed and max(stride) > 1
    of = _Convolution(grad, weight, None, stride, dilation, is_other, groups, x, *sizes, int(weight.shape[2:].numel()))

    def copied(*tensors: Any) -> list[MemoryWork]:
        return [copy for tensor in tensors for copy in copied_work(tensor, is_last=is_last)]

    works: list[Work] = [*copied(grad, x, weight)] if is_last else []
    engine = ""
    for work in of_input:
        kernel = _kernel_of(of, work.problem.input_dtype, is_last=is_last)
        engine = "" if kernel is None else kernel.engine
        if kernel is not None:
            kernel = kernel._replace(engine=_INPUT_ENGINES.get(engine, engine))
        works += [] if is_last else copied(grad, weight)
        works += _laid_out(of, replace(work, kernel=kernel), is_last=is_last)
    for work in of_weight:
        works += [] if is_last or engine == "planes" else copied(grad, x)
        works += _weight_kernels(of, work, x if is_transposed else grad, is_last=is_last)
    if has_bias:
        few = int(grad.shape[1 - rank]) * grad.element_size()
        works += reduction_works(grad, [dim for dim in range(grad.dim()) if dim != grad.dim() + 1 - rank],
                                 bytes_of(grad), few)  # fmt: skip
    return tuple(works)


def _weight_kernels(of: _Convolution, work: ConvolutionWork, rows_of: Any, *, is_last: bool) -> tuple[Work, ...]:
    """Return the kernels of the gradient of weights: a sum over the positions of `rows_of`, in all images."""
    grad, x, weight, dtype = of.x, of.out, of.weight, work.problem.input_dtype
    filters, channels = int(weight.shape[0]) // of.groups, int(weight.shape[1])
    kernel = ConvolutionKernel(
        "weights", dtype, of.groups, of.images * of.positions(rows_of), filters, of.window, channels,
        of.stride[-1] * grad.element_size(), images=of.images,
    )  # fmt: skip
    if of.groups > 1 and channels == 1:
        engine = _WEIGHT_ENGINES.get(_depthwise_engine(of, is_last=is_last), "direct_weights")
        is_wide = dtype in (DType.FP32, DType.TF32) and of.window != _TILED_WINDOW
        is_direct = is_last and (is_wide or filters > 1)
        return (replace(work, kernel=kernel._replace(engine="direct_weights" if is_direct else engine)),)
    if dtype is DType.FP32:
        return (replace(work, kernel=kernel._replace(engine="fp32_weights_last" if is_last else "fp32_weights")),)
    num_bytes = bytes_of(weight)
    if of.window == of.groups == 1:  # a GEMM; with channels first parts of it are summed up after
        return replace(work, padded=None), *[vector_work(2 * num_bytes, num_bytes)] * (not is_last)
    main = replace(work, kernel=kernel)
    if is_last:
        return (main,)
    layouts = [
        _layout(
            of.images, int(tensor.shape[1 - weight.dim()]), of.positions(tensor), bytes_of(tensor), bytes_of(tensor)
        )
        for tensor in (x, grad)
    ]
    return *layouts, main, _layout(filters * of.groups, channels, of.window, num_bytes, num_bytes)


def _laid_out(of: _Convolution, work: ConvolutionWork, *, is_last: bool) -> tuple[Work, ...]:
    kernel, groups = work.kernel, of.groups
    if kernel is None:
        return _plain(of, work, is_last=is_last)
    if groups > 1 and _is_one_by_one(of, kernel, is_last=is_last):
        if kernel.engine == "fp32" and not is_last:
            return (replace(work, kernel=kernel._replace(engine="cuda_cores")),)
        one = kernel._replace(groups=1, columns=of.filters // groups, channels=of.channels // groups)
        read_bytes, write_bytes = work.read_bytes // groups, work.write_bytes // groups
        problem = replace(work.problem, G=1)
        work = replace(work, kernel=one, problem=problem, read_bytes=read_bytes, write_bytes=write_bytes)
        if is_last and kernel.engine != "fp32":
            sliced = _padding(of.x, 1.0 / groups), _padding(of.out, 1.0 / groups)
            return (sliced[0], work, sliced[1]) * groups
        return _in_other_layout(of, work, is_filled=kernel.engine != "fp32", parts=groups) * groups
    if kernel.engine == "fp32" and is_last:
        return _in_other_layout(of, work, is_filled=False)
    if kernel.engine not in ("tensor", "few"):
        return (work,)
    if is_last:
        return _filled(of, work)
    if kernel.engine == "few" and kernel.dtype is DType.FP16 and of.channels == 1:
        return (work,)
    return _in_other_layout(of, work)


def _is_one_by_one(of: _Convolution, kernel: ConvolutionKernel, *, is_last: bool) -> bool:
    """Say whether groups run one after the other: in fp32, and long sums of 16 bits."""
    channels = of.channels // of.groups
    if kernel.engine == "fp32" and not of.is_transposed:
        return True
    is_pair = of.groups == 2 and channels > _BUNDLE // 2 and not is_last
    is_whole = channels.bit_count() == 1 and channels >= (_BUNDLE if is_last else 2 * _BUNDLE)
    is_whole |= channels.bit_count() == 1 and kernel.dtype is DType.FP16 and not is_last
    return (
        not of.is_transposed
        and kernel.engine == "tensor"
        and not is_whole
        and (is_pair or of.window * channels >= _MIN_ALONE_K)
    )


def _plain(of: _Convolution, work: ConvolutionWork, *, is_last: bool) -> tuple[Work, ...]:
    """Return a window of one: a GEMM, with channels first one for each image, unless that is large and unaligned."""
    positions = of.positions(of.out)
    if is_last or positions == 1:
        return (replace(work, padded=None),)
    problem = work.problem
    if positions * of.x.element_size() % LOAD_BYTES and problem.M * problem.N * problem.K >= _MIN_LAID_OUT_MACS:
        return _in_other_layout(of, work)
    problem = replace(problem, G=of.images, M=problem.N, N=positions)  # filters times channels of each, as they lie
    return (replace(work, problem=problem, padded=None),)


def _layout(images: int, channels: int, positions: int, read_bytes: int, write_bytes: int) -> MemoryWork:
    """Return cuDNN's kernel between channels first and channels last; its tiles are of 32 channels x 32 positions."""
    in_tiles = (-(-size // _LAYOUT_TILE) * _LAYOUT_TILE for size in (channels, positions))
    return blocks("cudnn_layout", read_bytes, write_bytes, images * math.prod(in_tiles))


def _padding(tensor: Any, factor: float) -> MemoryWork:
    """Return cuDNN's kernel that fills up channels or takes them out."""
    size = bytes_of(tensor)
    return blocks("cudnn_pad", size, size, int(tensor.numel() * factor))


def _filling(size: int, tensor: Any) -> float:
    """Return channels filled up to whole loads, over what there are."""
    unit = LOAD_BYTES // tensor.element_size()
    return float(-(-size // unit) * unit / size)


def _in_other_layout(
    of: _Convolution, work: ConvolutionWork, *, is_filled: bool = True, parts: int = 1
) -> tuple[Work, ...]:  # fmt: skip
    """Return one of some parts of a convolution between kernels that change the layout of operands and result."""
    channels, filters = of.channels // parts, of.filters // parts
    x_bytes, w_bytes, out_bytes = (bytes_of(tensor) // parts for tensor in (of.x, of.weight, of.out))
    factor = _filling(channels, of.x) if is_filled else 1.0
    before: list[MemoryWork] = []
    for rows, columns, positions, size in (
        (of.images, channels, of.positions(of.x), x_bytes),
        (int(of.weight.shape[0]) // parts, int(of.weight.shape[1]), of.window, w_bytes),
    ):
        if positions > 1:
            before += [vector_work(0, int(size * factor), "memset")] * (factor > 1)
            before.append(_layout(rows, columns, positions, size, int(size * factor)))
    is_bundled = of.groups > parts and (of.channels // of.groups).bit_count() > 1
    if is_filled and of.window > 1 and (_filling(of.filters // of.groups, of.weight) > 1 or is_bundled):
        before[-1] = MemoryWork("cudnn_transform", w_bytes, w_bytes, 1, 1)
    positions = of.positions(of.out)
    after = [_layout(of.images, filters, positions, out_bytes, out_bytes)] if positions > 1 else []
    return *before, work, *after


def _filled(of: _Convolution, work: ConvolutionWork) -> tuple[Work, ...]:
    """Return a convolution with channels last between kernels that fill up channels, and take filters out again."""
    more, more_filters = (_filling(size // of.groups, of.x) for size in (of.channels, of.filters))
    if of.groups > 1 and (of.channels // of.groups).bit_count() > 1:
        x, w, out = (
            blocks("cudnn_transform_all", bytes_of(tensor), bytes_of(tensor), int(tensor.numel() * factor))
            for tensor, factor in ((of.x, more), (of.weight, more), (of.out, more_filters))
        )
        return x, w, work, out
    is_gathered = work.kernel is not None and work.kernel.engine == "few" and work.kernel.dtype is DType.FP16
    if is_gathered or more == more_filters == 1:
        return (work,)
    before: list[MemoryWork] = []
    for tensor, factor in ((of.x, more), (of.weight, more * more_filters)):
        if factor > 1:
            before += [vector_work(0, int(bytes_of(tensor) * factor), "memset"), _padding(tensor, factor)]
    return *before, work, *([_padding(of.out, more_filters)] if more_filters > 1 else [])
