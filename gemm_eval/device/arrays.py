"""Arrays of any library on a GPU, as address, shape and strides; rules that operands keep; and their TMA descriptors.

CuPy arrays are read directly, torch tensors by their own methods (torch offers bf16 by no array interface), others
through ``__cuda_array_interface__`` or, failing that, DLPack. numpy has no bf16: an array of uint16 counts as bits of
bf16, as do the types named "bfloat16" of ml_dtypes. Names and values of TMA descriptors are those of cuda.h.
"""

import ctypes
import math
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy

from gemm_eval.device.runtime import import_cupy, wait_for_stream
from gemm_eval.dtypes import DType
from gemm_eval.errors import GemmEvalError, InvalidProblemError
from gemm_eval.words import shown

_ALIGNMENT_BYTES = 16
_ROW_MULTIPLE = 8
_BYTES_PER_ELEM = 2
_DTYPES = {
    "float16": DType.FP16, "torch.float16": DType.FP16, "bfloat16": DType.BF16, "torch.bfloat16": DType.BF16,
    "uint16": DType.BF16,
}  # fmt: skip
_ACCEPTED = {DType.FP16: "float16", DType.BF16: "bfloat16, or its bits in uint16"}


class DeviceArray(NamedTuple):
    """An array on a GPU: address of its first element, sizes and strides in elements (None: C-contiguous).

    `dtype` is the name of its type, such as "float16" or "torch.bfloat16", `itemsize` the bytes of an element.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: str
    itemsize: int
    device: int


class Rows(NamedTuple):
    """A matrix whose rows are contiguous: `num_rows` x `num_columns`, `stride` elements from row to row."""

    address: int
    num_rows: int
    num_columns: int
    stride: int

    @property
    def num_bytes(self) -> int:
        """From the first byte to behind the last."""
        return ((self.num_rows - 1) * self.stride + self.num_columns) * _BYTES_PER_ELEM


def as_device_array(x: Any, what: str, stream: int) -> DeviceArray:
    """Return where `x` lies on a GPU; nothing is copied. `stream` waits for what wrote `x` where `x` names a stream.

    `x` is a CuPy array, a torch tensor, or anything with ``__cuda_array_interface__`` or DLPack; `what` is its name in
    messages, and `stream` the handle of the stream that will use it.
    """
    cupy = import_cupy()
    if isinstance(x, cupy.ndarray):
        return _from_cupy(x)
    if hasattr(x, "data_ptr") and hasattr(x, "stride"):
        if x.device.type != "cuda":
            raise InvalidProblemError(f"{what} must be on a GPU, got a tensor on {x.device}")
        return DeviceArray(
            x.data_ptr(), tuple(x.shape), tuple(x.stride()), str(x.dtype), x.element_size(), x.device.index
        )
    if hasattr(x, "__cuda_array_interface__"):
        return _from_interface(x.__cuda_array_interface__, what, stream)
    if hasattr(x, "__dlpack__") and not isinstance(x, numpy.ndarray):
        try:
            wait_for_stream(stream, cupy.cuda.get_current_stream().ptr)  # from_dlpack lets that one wait for x
            return _from_cupy(cupy.from_dlpack(x))
        except Exception as error:  # each library refuses in its own way
            raise InvalidProblemError(f"{what} must be on a GPU and of a type that CuPy knows: {error}") from None
    raise InvalidProblemError(
        f"{what} must be an array on a GPU (CuPy, torch, __cuda_array_interface__ or DLPack), got {type(x).__name__}"
    )


@cache
def _name(dtype: numpy.dtype[Any]) -> str:
    """Return a type's name, which numpy puts together anew each time, in microseconds."""
    return dtype.name


def _from_cupy(x: Any) -> DeviceArray:
    itemsize = x.itemsize
    strides = None if x.flags.c_contiguous else tuple(stride // itemsize for stride in x.strides)
    return DeviceArray(x.data.ptr, x.shape, strides, _name(x.dtype), itemsize, x.device.id)


def _from_interface(interface: dict[str, Any], what: str, stream: int) -> DeviceArray:
    if interface.get("mask") is not None:
        raise InvalidProblemError(f"{what} must not be masked")
    dtype = numpy.dtype(interface["typestr"])
    if not dtype.isnative:
        raise InvalidProblemError(f"{what} must be little-endian, got {shown(interface['typestr'])}")
    if interface.get("stream"):
        wait_for_stream(stream, interface["stream"])
    address, strides = interface["data"][0], interface.get("strides")
    if strides is not None and any(stride % dtype.itemsize for stride in strides):
        raise InvalidProblemError(f"{what} must have strides of whole elements, got {strides} bytes")
    steps = None if strides is None else tuple(stride // dtype.itemsize for stride in strides)
    device = import_cupy().cuda.runtime.pointerGetAttributes(address).device if address else 0
    return DeviceArray(address, tuple(interface["shape"]), steps, dtype.name, dtype.itemsize, device)


def check_dtype(array: DeviceArray, what: str, dtype: DType, why: str) -> None:
    """Check that an array holds elements of a type, fp16 or bf16; `why` says in the message where that comes from."""
    if _DTYPES.get(array.dtype) is not dtype:
        raise InvalidProblemError(f"{what} must be {_ACCEPTED[dtype]}, {why}, got {array.dtype}")


def as_rows(array: DeviceArray, what: str, num_columns: int) -> Rows:
    """Return an array as a matrix: all dimensions but the last, which has `num_columns` elements, are rows."""
    shape = array.shape
    if len(shape) < 2 or shape[-1] != num_columns:
        raise InvalidProblemError(f"{what} must have shape [..., rows, {num_columns}], got {list(shape)}")
    num_rows = math.prod(shape[:-1])
    if num_rows < 1:
        raise InvalidProblemError(f"{what} must have at least one row, got shape {list(shape)}")
    stride = num_columns if array.strides is None else _row_stride(array, array.strides, what)
    _check_alignment(array, what)
    return Rows(array.address, num_rows, num_columns, stride)


def check_vector(array: DeviceArray, what: str, length: int) -> None:
    """Check that an array is [length], contiguous and aligned."""
    if array.shape != (length,) or (array.strides is not None and array.strides != (1,) and length > 1):
        raise InvalidProblemError(
            f"{what} must be contiguous with shape [{length}], got shape {list(array.shape)}, "
            f"strides {array.strides} elements"
        )
    _check_alignment(array, what)


def _row_stride(array: DeviceArray, strides: tuple[int, ...], what: str) -> int:
    """Return elements from row to row; rows of all leading dimensions must follow each other at one distance."""
    shape = array.shape
    if strides[-1] != 1:
        raise InvalidProblemError(f"{what} must have contiguous rows, got strides {strides} elements")
    stride, distance = shape[-1], 0
    for size, step in zip(reversed(shape[:-1]), reversed(strides[:-1]), strict=True):
        if size == 1:
            continue
        if distance == 0:
            stride = distance = step
        elif step != distance:
            raise InvalidProblemError(
                f"{what} must have rows at one distance from each other, got shape {list(shape)}, "
                f"strides {strides} elements; make it contiguous"
            )
        distance *= size
    if stride < shape[-1] or stride % _ROW_MULTIPLE:
        raise InvalidProblemError(
            f"{what} must have rows that do not overlap and start at multiples of {_ROW_MULTIPLE} elements, "
            f"got {stride} elements from row to row of {shape[-1]}"
        )
    return stride


def _check_alignment(array: DeviceArray, what: str) -> None:
    if array.address % _ALIGNMENT_BYTES:
        raise InvalidProblemError(
            f"{what} must start at a multiple of {_ALIGNMENT_BYTES} bytes, got address {array.address:#x}"
        )


def overlaps(first: tuple[int, int], second: tuple[int, int]) -> bool:
    """Return whether two (address, bytes) share memory."""
    return first[0] < second[0] + second[1] and second[0] < first[0] + first[1]


_MAP_BYTES, _MAP_ALIGNMENT_BYTES = 128, 64
_DATA_TYPE = {DType.FP16: 6, DType.BF16: 9}
_BOX_ROWS_MAX, _BOX_COLUMNS_MAX = 256, 64
_INTERLEAVE_NONE, _SWIZZLE_128B, _L2_PROMOTION_256B, _FILL_ZERO = 0, 3, 3, 0


@cache
def _encoder() -> Any:
    last_error: OSError | None = None
    for name in ("libcuda.so.1", "nvcuda.dll"):
        try:
            return ctypes.CDLL(name).cuTensorMapEncodeTiled
        except OSError as error:
            last_error = last_error or error
        except AttributeError:
            raise GemmEvalError("tensor maps need an NVIDIA driver for CUDA 12 or later") from None
    raise GemmEvalError(f"tensor maps need the NVIDIA driver: {last_error}")


@lru_cache(maxsize=1024)
def encode_tensor_map(
    address: int, dtype: DType, shape: tuple[int, int], row_stride: int, box: tuple[int, int]
) -> numpy.void:
    """Encode a row-major matrix of 16-bit elements for TMA, as an argument for a launch.

    `row_stride` is in elements, a multiple of 8; `box` is (rows, columns) of one copy, at most 256 and 64. Boxes are
    swizzled by 128 bytes; what of them lies outside of the matrix is read as 0 and not written.
    """
    if not (1 <= box[0] <= _BOX_ROWS_MAX and 1 <= box[1] <= _BOX_COLUMNS_MAX):
        raise InvalidProblemError(f"box must be 1..{_BOX_ROWS_MAX} x 1..{_BOX_COLUMNS_MAX} elements, got {box}")
    storage = (ctypes.c_uint8 * (_MAP_BYTES + _MAP_ALIGNMENT_BYTES))()
    aligned = -(-ctypes.addressof(storage) // _MAP_ALIGNMENT_BYTES) * _MAP_ALIGNMENT_BYTES
    u64, u32 = ctypes.c_uint64, ctypes.c_uint32
    result = _encoder()(
        ctypes.c_void_p(aligned), _DATA_TYPE[dtype], u32(2), ctypes.c_void_p(address), (u64 * 2)(shape[1], shape[0]),
        (u64 * 1)(row_stride * _BYTES_PER_ELEM), (u32 * 2)(box[1], box[0]), (u32 * 2)(1, 1),
        _INTERLEAVE_NONE, _SWIZZLE_128B, _L2_PROMOTION_256B, _FILL_ZERO,
    )  # fmt: skip
    if result:
        raise InvalidProblemError(
            f"the driver refuses a tensor map (CUresult {result}): address {address:#x}, {shape[0]} x {shape[1]} "
            f"{dtype}, {row_stride} elements from row to row, box {box[0]} x {box[1]}"
        )
    encoded: numpy.void = numpy.frombuffer(ctypes.string_at(aligned, _MAP_BYTES), dtype=f"V{_MAP_BYTES}")[0]
    return encoded
