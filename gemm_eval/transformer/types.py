"""Which data types a model's GEMMs have: those of quantized weights, and that of what checkpoints keep."""

from __future__ import annotations

from typing import TypedDict

from gemm_eval.arch import ArchSpec, GpuSpec
from gemm_eval.dtypes import DType, DtypeScheme, parse_dtype, parse_scheme
from gemm_eval.transformer.shapes import Operand

__all__ = ["ModelTypes", "operand_types", "types_on"]

_KEPT_BITS = 16  # what checkpoints keep has at least so many


class ModelTypes(TypedDict):
    """Two arguments of `transformer_gemms`."""

    dtype: str
    dense_dtype: str


def operand_types(
    dtype: str | DtypeScheme, dense_dtype: str | None, expert_dtype: str | DtypeScheme | None = None
) -> dict[Operand, DtypeScheme | DType]:
    """Return the types of GEMMs by what their B is, as `transformer_gemms` documents them.

    Raises:
        InvalidProblemError: no such type.
    """
    scheme, dense = _weight_and_dense_types(dtype, dense_dtype)
    kept = (Operand.ROUTER, Operand.LM_HEAD, Operand.ACTIVATION)
    experts = scheme if expert_dtype is None else _scheme_of(expert_dtype)
    return {Operand.WEIGHT: scheme, Operand.EXPERT: experts, **dict.fromkeys(kept, dense)}


def _scheme_of(dtype: str | DtypeScheme) -> DtypeScheme:
    return dtype if isinstance(dtype, DtypeScheme) else parse_scheme(dtype)


def _weight_and_dense_types(dtype: str | DtypeScheme, dense_dtype: str | None) -> tuple[DtypeScheme, DType]:
    """Return the types of quantized weights, and that of what is kept."""
    scheme = _scheme_of(dtype)
    dense = parse_dtype(scheme.input_dtype if dense_dtype is None else dense_dtype, what="dense_dtype")
    return scheme, dense if dense_dtype is not None or dense.bits >= _KEPT_BITS else DType.BF16


def types_on(arch: ArchSpec, dtype: str | None, dense_dtype: str | None = None) -> ModelTypes:
    """Return the types that a model has on an arch, for `transformer_gemms`.

    Args:
        arch: what it runs on.
        dtype: None: the default type of the arch.
        dense_dtype: None: as `transformer_gemms` has it, or fp16 in place of bf16 where the arch has no bf16.

    Raises:
        InvalidProblemError: no such type.
    """
    weights = str(arch.default_dtype) if dtype is None else dtype
    scheme, dense = _weight_and_dense_types(weights, dense_dtype)
    known = arch.tensor_flop_per_cycle if isinstance(arch, GpuSpec) else arch.cube_steps_per_cycle
    is_widened = dense_dtype is None and dense != scheme.input_dtype
    if is_widened and dense not in known and DType.FP16 in known:
        dense = DType.FP16
    return {"dtype": weights, "dense_dtype": str(dense)}
