"""Weights of grouped W4A16 GEMMs: packed matrices of one shape, one for each group, behind each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from types import ModuleType

import numpy

from gemm_eval.device import import_cupy
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidProblemError
from gemm_eval.kernels import layout
from gemm_eval.kernels.families import WeightMode, ceil_div
from gemm_eval.kernels.layout import MIDDLE, Array, module_of
from gemm_eval.kernels.weights import PackedW4, check_packed

_SAME = ("N", "K", "mode", "group_size", "activation")


@dataclass(frozen=True, eq=False)
class GroupedW4:
    """Weights of `num_groups` groups, as `w4a16_grouped_gemm` reads them: the arrays of `PackedW4`, stacked.

    Attributes:
        qweight: uint32 [num_groups, NB, KB, 4, 32, 4].
        scales: [num_groups, ...], each as `PackedW4.scales`.
        scale_units: float32 [num_groups].
        N, K, mode, group_size, activation: of each, as in `PackedW4`.

    Raises:
        InvalidOptionError: as `PackedW4`.
        InvalidProblemError: as `PackedW4`, or arrays that are not stacked so.
    """

    qweight: Array
    scales: Array
    scale_units: Array
    N: int
    K: int
    mode: WeightMode
    group_size: int
    activation: DType

    def __post_init__(self) -> None:
        object.__setattr__(self, "mode", layout.parse_mode(self.mode))
        object.__setattr__(self, "activation", layout.parse_activation(self.activation))
        object.__setattr__(self, "group_size", layout.parse_group_size(self.group_size, self.mode))
        layout.check_sizes(self.K, self.N)
        if not self.num_groups:
            raise InvalidProblemError("qweight must have one group at least")
        num_blocks, num_k_blocks, num_rows = self.blocks_and_groups
        of_scales = layout.scales_shape(self.mode, num_blocks, num_rows)
        scale_type = layout.scales_dtype(self.mode, self.activation)
        layout.check_array("qweight", self.qweight, "uint32", (self.num_groups, num_blocks, num_k_blocks, 4, 32, 4))
        layout.check_array("scales", self.scales, scale_type, (self.num_groups, *of_scales))
        layout.check_array("scale_units", self.scale_units, "float32", (self.num_groups,))
        if any(module_of(array) is not module_of(self.qweight) for array in (self.scales, self.scale_units)):
            raise InvalidProblemError("arrays must lie all on the CPU or all on a GPU")

    def __repr__(self) -> str:
        what = f"{self.activation} {self.mode.name.lower()} {self.group_size}"
        where = module_of(self.qweight).__name__
        return f"<GroupedW4 {self.num_groups} groups, K={self.K} N={self.N} {what}, {where}>"

    def __len__(self) -> int:
        return self.num_groups

    def __getitem__(self, group: int) -> PackedW4:
        """The weights of one group; they share memory with these."""
        unit = float(self.scale_units[group])
        sizes = self.N, self.K, self.mode, self.group_size, self.activation
        return PackedW4(self.qweight[group], self.scales[group], *sizes, unit)

    def __iter__(self) -> Iterator[PackedW4]:
        return (self[group] for group in range(self.num_groups))

    @property
    def num_groups(self) -> int:
        """Number of matrices."""
        return int(self.qweight.shape[0])

    @property
    def nbytes(self) -> int:
        """Memory of all arrays, in bytes."""
        return int(self.qweight.nbytes) + int(self.scales.nbytes) + int(self.scale_units.nbytes)

    @property
    def blocks_and_groups(self) -> tuple[int, int, int]:
        """NB, KB and GB of each matrix (KERNELS.md)."""
        num_k_blocks = layout.k_blocks(self.K)
        num_rows = layout.scale_rows(self.mode, num_k_blocks, self.group_size)
        return ceil_div(self.N, layout.BLOCK_COLUMNS), num_k_blocks, num_rows

    def to_gpu(self) -> GroupedW4:
        """The same weights on CuPy's current device.

        Raises:
            GemmEvalError: there is no CuPy, or no GPU.
        """
        return self._moved(import_cupy())

    def to_cpu(self) -> GroupedW4:
        """The same weights in numpy arrays."""
        return self._moved(numpy)

    def _moved(self, xp: ModuleType) -> GroupedW4:
        names = ("qweight", "scales", "scale_units")
        return replace(self, **{name: layout.as_array(getattr(self, name), name, xp) for name in names})


def stack_w4(weights: Iterable[PackedW4]) -> GroupedW4:
    """Stack packed weights for a grouped GEMM: one matrix a group, all of one shape and kind.

    Matrices of mode GROUP are packed anew in mode GROUP_ZERO, which says the same, where others among them are in that
    mode: `pack_w4` takes it for scales that differ widely.

    Args:
        weights: of the groups in their order, all on the CPU or all on one GPU.

    Raises:
        InvalidProblemError: none at all, weights that differ in shape or kind, or weights with act-order.
    """
    parts = list(weights)
    for part in parts:
        check_packed(part)
    if not parts:
        raise InvalidProblemError("weights must be one PackedW4 at least, got none")
    if any(part.permutation is not None for part in parts):
        raise InvalidProblemError("weights of groups must be in order: grouped kernels gather no columns of A")
    if {part.mode for part in parts} == {WeightMode.GROUP, WeightMode.GROUP_ZERO}:
        parts = [_with_zeros(part) for part in parts]
    for part in parts:
        differ = [name for name in _SAME if getattr(part, name) != getattr(parts[0], name)]
        if differ or module_of(part.qweight) is not module_of(parts[0].qweight):
            what = ", ".join(differ) or "where they lie"
            raise InvalidProblemError(f"weights of groups must be alike in {what}, got {parts[0]} and {part}")
    xp = module_of(parts[0].qweight)
    units = xp.asarray([part.scale_unit for part in parts], dtype=xp.float32)
    qweight, scales = (xp.stack([getattr(part, name) for part in parts]) for name in ("qweight", "scales"))
    return GroupedW4(qweight, scales, units, *(getattr(parts[0], name) for name in _SAME))


def _with_zeros(packed: PackedW4) -> PackedW4:
    """The same weights in mode GROUP_ZERO."""
    if packed.mode is WeightMode.GROUP_ZERO:
        return packed
    xp = module_of(packed.scales)
    scales, _ = layout.unpack_scales(packed.scales, packed.mode, packed.activation)
    scales = scales * scales.dtype.type(packed.scale_unit)
    zeros = xp.full(scales.shape, MIDDLE, dtype=xp.uint8)
    stored = layout.pack_scales(scales, zeros, WeightMode.GROUP_ZERO, packed.activation)
    return replace(packed, scales=stored, mode=WeightMode.GROUP_ZERO, scale_unit=1.0)
