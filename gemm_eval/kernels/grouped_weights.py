"""Weights of grouped W4A16 GEMMs: packed matrices of one shape, one for each group, behind each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from gemm_eval.errors import InvalidProblemError
from gemm_eval.kernels import layout
from gemm_eval.kernels.families import WeightMode
from gemm_eval.kernels.layout import MIDDLE, Array, module_of
from gemm_eval.kernels.weights import PackedArrays, PackedW4, check_packed

_SAME = ("N", "K", "mode", "group_size", "activation")


@dataclass(frozen=True, eq=False, repr=False)
class GroupedW4(PackedArrays):
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

    scale_units: Array
    _names: ClassVar[tuple[str, ...]] = ("qweight", "scales", "scale_units")

    def __post_init__(self) -> None:
        if not self.num_groups:
            raise InvalidProblemError("qweight must have one group at least")
        self._check(self.num_groups)
        layout.check_array("scale_units", self.scale_units, "float32", (self.num_groups,))

    def __repr__(self) -> str:
        return f"<GroupedW4 {self.num_groups} groups, {self._text()}>"

    def __len__(self) -> int:
        return self.num_groups

    def __getitem__(self, group: int) -> PackedW4:
        """Return the weights of one group; they share memory with these."""
        unit = float(self.scale_units[group])
        sizes = self.N, self.K, self.mode, self.group_size, self.activation
        return PackedW4(self.qweight[group], self.scales[group], *sizes, unit)

    def __iter__(self) -> Iterator[PackedW4]:
        return (self[group] for group in range(self.num_groups))

    @property
    def num_groups(self) -> int:
        """Number of matrices."""
        return int(self.qweight.shape[0])


def stack_w4(weights: Iterable[PackedW4]) -> GroupedW4:
    """Stack packed weights for a grouped GEMM: one matrix a group, all of one shape and kind, on the CPU or one GPU.

    Matrices of mode GROUP are packed anew in mode GROUP_ZERO, which says the same, where others among them are in that
    mode: `pack_w4` takes it for scales that differ widely.

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
    return GroupedW4(qweight, scales, **{name: getattr(parts[0], name) for name in _SAME}, scale_units=units)


def _with_zeros(packed: PackedW4) -> PackedW4:
    """Return the same weights in mode GROUP_ZERO."""
    if packed.mode is WeightMode.GROUP_ZERO:
        return packed
    xp = module_of(packed.scales)
    scales, _ = layout.unpack_scales(packed.scales, packed.mode, packed.activation)
    scales = scales * scales.dtype.type(packed.scale_unit)
    zeros = xp.full(scales.shape, MIDDLE, dtype=xp.uint8)
    stored = layout.pack_scales(scales, zeros, WeightMode.GROUP_ZERO, packed.activation)
    return replace(packed, scales=stored, mode=WeightMode.GROUP_ZERO, scale_unit=1.0)
