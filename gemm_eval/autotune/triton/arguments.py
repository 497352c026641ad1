"""Which argument of a Triton kernel is what: the GEMM that a call computes, and what a config makes of the kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidOptionError
from gemm_eval.models.gpu.triton import TritonConfig
from gemm_eval.workload import GemmProblem

__all__ = ["KernelArguments", "NumberSource", "TensorArgument", "TensorSource", "dtype_of"]

NumberSource = str | int | Callable[[Mapping[str, Any]], int]
"""Where a number comes from: the name of an argument or config value, the number, or a function of all of them."""

TensorSource = str | Callable[[Mapping[str, Any]], Any]
"""Where a tensor comes from: the name of an argument, or a function of all arguments."""

_DTYPES = {
    "float16": DType.FP16, "half": DType.FP16, "fp16": DType.FP16,
    "bfloat16": DType.BF16, "bf16": DType.BF16,
    "float32": DType.TF32, "fp32": DType.TF32, "tf32": DType.TF32,  # what tl.dot makes of fp32 unless told otherwise
    "float8_e4m3fn": DType.FP8, "float8_e5m2": DType.FP8, "fp8e4nv": DType.FP8, "fp8e5": DType.FP8, "fp8": DType.FP8,
    "int8": DType.INT8, "int32": DType.INT32,
}  # fmt: skip
_TRITON_DTYPES = {"fp8": "fp8e4nv", "tf32": "fp32"}  # Triton's names of ours, where they differ
_OPTIONAL = {"group_m": "GROUP_M", "split_k": "SPLIT_K"}  # and their default names
_IN_TUTORIAL = {
    "BLOCK_M": "BLOCK_SIZE_M", "BLOCK_N": "BLOCK_SIZE_N", "BLOCK_K": "BLOCK_SIZE_K", "GROUP_M": "GROUP_SIZE_M",
}  # fmt: skip
"""Default names -> those of Triton's tutorial "Matrix Multiplication", which are taken where a kernel has them."""
_BY_TRITON = ("num_warps", "num_stages", "num_ctas", "maxnreg")  # of every triton.Config; None is left out
_SIZES = ("G", "M", "N", "K")
_TENSORS = ("a", "b", "c")
_BLOCKS = ("block_m", "block_n", "block_k")


@dataclass(frozen=True)
class TensorArgument:
    """Stands for a tensor where there is none, as on a machine without a GPU: ranking and compiling need its type only.

    Attributes:
        dtype: ``"fp16"``, ``"fp8"``, ``"uint8"``, a `DType`, a torch dtype, or what Triton calls a type.
    """

    dtype: Any

    def __post_init__(self) -> None:
        if isinstance(self.dtype, str):
            object.__setattr__(self, "dtype", _TRITON_DTYPES.get(str(self.dtype), str(self.dtype)))

    @staticmethod
    def data_ptr() -> int:
        """Return an address that is a multiple of 16, as those of whole tensors are."""
        return 0


@dataclass(frozen=True, kw_only=True)
class KernelArguments:
    """Which argument of a kernel, or value of its configs, is what.

    Defaults are those of `examples/triton_gemm.py`, or of Triton's tutorial (``BLOCK_SIZE_M``, ``GROUP_SIZE_M``) where
    the kernel has these. A kernel without ``GROUP_M`` or ``SPLIT_K`` has no such thing.

    Attributes:
        M, N, K, G: sizes of C[G,M,N] = A[G,M,K] x B[G,K,N]: names, numbers, or functions of a mapping from all names
            (arguments and config values) to their values.
        a, b, c: the tensors, or descriptors of them, whose types are read.
        block_m, block_n, block_k: the tile of a program, and its step along K.
        group_m, split_k: None if the kernel has no such thing, whatever its names.
        num_warps, num_stages, num_ctas, maxnreg: as `triton.Config` calls them; another name if the kernel has its own.
        input_dtype: type of A as multiplied, if it is not that of the tensor; fp32 is taken for tf32.
        weight_dtype: type of B as stored; must be given (``"int4"``) where elements are packed into another type.
        output_dtype: type of C; None: that of the tensor, or the usual one where `c` is None.
        group_size: weights along K that share a scale, or -1 or None: one scale per column. Quantized weights only.
        zero_dtype: type of the zero points, if there are any.
    """

    M: NumberSource = "M"
    N: NumberSource = "N"
    K: NumberSource = "K"
    G: NumberSource = 1
    a: TensorSource | None = "a_ptr"
    b: TensorSource | None = "b_ptr"
    c: TensorSource | None = "c_ptr"
    block_m: NumberSource = "BLOCK_M"
    block_n: NumberSource = "BLOCK_N"
    block_k: NumberSource = "BLOCK_K"
    group_m: NumberSource | None = "GROUP_M"
    split_k: NumberSource | None = "SPLIT_K"
    num_warps: NumberSource = "num_warps"
    num_stages: NumberSource = "num_stages"
    num_ctas: NumberSource = "num_ctas"
    maxnreg: NumberSource | None = "maxnreg"
    input_dtype: str | None = None
    weight_dtype: str | None = None
    output_dtype: str | None = None
    group_size: NumberSource | None = None
    zero_dtype: str | None = None

    def problem(self, values: Mapping[str, Any]) -> GemmProblem:
        """Return the GEMM that a call computes.

        Args:
            values: arguments of the call, and the values of one config, by name.

        Raises:
            InvalidOptionError: a name is not among `values`, or is of no use there.
            InvalidProblemError: what they say is no GEMM.
        """
        sizes = {name: self._number(name, values) for name in _SIZES}
        a = self._dtype("input_dtype", "a", values)
        if a is None:
            raise InvalidOptionError(
                "arguments: no type of A: name its tensor in KernelArguments(a=...), or give input_dtype"
            )
        b = self._dtype("weight_dtype", "b", values)
        c = self._dtype("output_dtype", "c", values)
        if c is DType.TF32:
            c = DType.FP32
        group = None if self.group_size is None else self._number("group_size", values)
        return GemmProblem(
            **sizes, input_dtype=a, weight_dtype=b, output_dtype=c,
            group_size=None if group == -1 else group, zero_dtype=self.zero_dtype,  # type: ignore[arg-type]
        )  # fmt: skip

    def config(self, values: Mapping[str, Any]) -> TritonConfig:
        """Return a config in this library's words.

        Args:
            values: arguments of the call, and the values of the config, by name.

        Raises:
            InvalidOptionError: a name is not among `values`.
        """
        found: dict[str, Any] = {name: self._number(name, values) for name in _BLOCKS}
        for name in _OPTIONAL:
            found[name] = 1 if getattr(self, name) is None else self._number(name, values)
        for name in _BY_TRITON:
            if getattr(self, name) != name or name in values:
                found[name] = None if getattr(self, name) is None else self._number(name, values)
        found.setdefault("num_warps", 4)  # Triton's defaults
        found.setdefault("num_stages", 3)
        return TritonConfig(**found)

    def check(self, names: Iterable[str]) -> None:
        """Check that every name is one that the kernel's arguments and configs have.

        Raises:
            InvalidOptionError: one is not; the message says which there are.
        """
        known = {*names, *_BY_TRITON}
        for field in fields(self):
            source = getattr(self, field.name)
            if isinstance(source, str) and not field.name.endswith("dtype") and self._is_read(field.name):
                _find(field.name, source, dict.fromkeys(known))

    def _is_read(self, name: str) -> bool:
        dtype = dict(zip(_TENSORS, ("input_dtype", "weight_dtype", "output_dtype"), strict=True)).get(name)
        return dtype is None or getattr(self, dtype) is None

    def _number(self, name: str, values: Mapping[str, Any]) -> Any:
        source = getattr(self, name)
        if callable(source):
            return source(values)
        return _find(name, source, values) if isinstance(source, str) else source

    def _dtype(self, given: str, name: str, values: Mapping[str, Any]) -> DType | None:
        if (dtype := getattr(self, given)) is not None:
            return DType(dtype) if dtype in DType.__members__.values() else dtype  # GemmProblem refuses others
        source = getattr(self, name)
        if source is None:
            return None
        tensor = source(values) if callable(source) else _find(name, source, values)
        found = dtype_of(tensor)
        if found is None or (name != "c" and found is DType.INT32):
            what = f"{name} ({source!r})" if isinstance(source, str) else name
            raise InvalidOptionError(
                f"arguments: {what} is of type {_name_of_dtype(tensor)}, which does not say what its elements are: "
                f"give {given}, one of {', '.join(DType)}"
            )
        return found


def dtype_of(tensor: Any) -> DType | None:
    """Return the type of a tensor's elements, or None if it is none of ours.

    Args:
        tensor: of torch, CuPy or Triton, a descriptor of one (`.base`), a stand-in with `.dtype`, or a type itself.
    """
    return _DTYPES.get(_name_of_dtype(tensor))


def _name_of_dtype(tensor: Any) -> str:
    dtype = getattr(tensor, "dtype", None)
    if dtype is None:
        dtype = getattr(getattr(tensor, "base", None), "dtype", None)
    return str(tensor if dtype is None else dtype).rsplit(".", maxsplit=1)[-1]


def _find(what: str, name: str, values: Mapping[str, Any]) -> Any:
    if name in values:
        return values[name]
    if _IN_TUTORIAL.get(name) in values:
        return values[_IN_TUTORIAL[name]]
    if _OPTIONAL.get(what) == name:
        return 1
    hint = ", or None if the kernel has none" if what in _OPTIONAL else ""
    raise InvalidOptionError(
        f"arguments: {what} is {name!r}, but the kernel and its configs have {', '.join(sorted(values))}: "
        f"name the right one in KernelArguments({what}=...){hint}"
    )
