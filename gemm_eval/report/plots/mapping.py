"""A mapping as a picture: which core or wave computes what of C."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gemm_eval.errors import InvalidInputError, UnsupportedError
from gemm_eval.evaluate import GEMMResult
from gemm_eval.mapping import KernelConfig
from gemm_eval.report.plots.mapping_gpu import draw_waves
from gemm_eval.report.plots.mapping_multicore import draw_partition
from gemm_eval.words import shown

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_mapping"]


def plot_mapping(result: GEMMResult) -> Figure:
    """Draw the mapping of a result.

    A multi-core chip: C, cut into the blocks of the cores, edge blocks true to size, and which cores stay idle (the
    model does not number cores; here G is outermost, then M, N and K). Beside it the block of core 0: A, B and C cut
    into tiles, the first of each filled, with arrows along the first steps of the loops; below it what the tiles take
    of one core's SRAM, buffers included, in the same colours. Where K is split, the cores of a block each sum one part
    of K over all of it; the stripes in the block are the shares that each of them finishes in the reduction. Where
    blocks are too small for numbers, those of whole rows of blocks stand on the right.

    A GPU: C, cut into the tiles of the CTAs, coloured by the wave in which they run under the kernel's raster (clusters
    stay together, the parts of a split K follow each other), the last wave standing out. Beside it how many CTAs each
    wave has, of those that the GPU can hold; below it the shared memory of one SM.

    Batch elements lie below each other. What is too fine to be seen is cut off, and the title says so; where
    blocks are too small for numbers, those of whole rows of blocks stand on the right.

    Raises:
        GemmEvalError: matplotlib is not installed.
        InvalidInputError: not a `GEMMResult`.
        UnsupportedError: groups of the problem differ.
    """
    if not isinstance(result, GEMMResult):
        raise InvalidInputError(f"result must be a GEMMResult, got {shown(result)}")
    if not isinstance(result.mapping, KernelConfig):
        return draw_partition(result)
    if result.problem.is_grouped:
        raise UnsupportedError(
            f"the waves of {result.problem} cannot be drawn: its groups differ; draw a group alone, or plot_breakdown"
        )
    return draw_waves(result)
