"""The W4A16 families: our own kernels, from a table of their machine code. The terms stand in MODEL.md beside this."""

from typing import TYPE_CHECKING

from gemm_eval.lazy import lazy_names

if TYPE_CHECKING:
    from gemm_eval.models.gpu.w4a16.candidates import (
        W4A16_SIZES,
        check_w4a16_family,
        check_w4a16_sizes,
        config_of_row,
        find_row,
        has_our_kernels,
        kernel_target,
        list_w4a16_needs,
        w4a16_types,
    )
    from gemm_eval.models.gpu.w4a16.coefficients import (
        W4A8_FAMILIES,
        W4A16_FAMILIES,
        W4A16_GROUPED_FAMILIES,
        W4A16_SETS,
        coefficients_of,
    )
    from gemm_eval.models.gpu.w4a16.family_kernels import GROUPED_FAMILIES, SM90_CLUSTER
    from gemm_eval.models.gpu.w4a16.shared_kernels import MAX_SPLITS, splits_of_row

__all__ = [
    "GROUPED_FAMILIES", "MAX_SPLITS", "SM90_CLUSTER", "W4A8_FAMILIES", "W4A16_FAMILIES", "W4A16_GROUPED_FAMILIES",
    "W4A16_SETS", "W4A16_SIZES", "check_w4a16_family", "check_w4a16_sizes", "coefficients_of", "config_of_row",
    "find_row", "has_our_kernels", "kernel_target", "list_w4a16_needs", "splits_of_row",
    "w4a16_types",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)
