"""What a Triton GEMM kernel is launched with."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["TritonConfig"]


class TritonConfig(NamedTuple):
    """A config of a Triton GEMM kernel: `triton.Config`, in this library's words.

    Attributes:
        block_m, block_n, block_k: tile of C that a program computes, and the elements of K in one step of its loop.
        num_warps: warps of a program.
        num_stages: depth of the software pipeline: how many steps' loads are under way or in shared memory.
        group_m: tiles along M that are finished before the next tiles along N: 1 is a plain raster along N.
        split_k: programs that share a tile of C.
        maxnreg: registers that a thread may have; None: as many as the compiler takes.
        num_ctas: CTAs of the cluster that runs a program.
    """

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    group_m: int = 1
    split_k: int = 1
    maxnreg: int | None = None
    num_ctas: int = 1

    def __str__(self) -> str:
        text = f"{self.block_m}x{self.block_n}x{self.block_k} (m x n x k), {self.num_warps} warps, "
        text += f"{self.num_stages} stages"
        if self.split_k > 1:
            text += f", split-K {self.split_k}"
        if self.group_m > 1:
            text += f", group of {self.group_m}"
        if self.maxnreg is not None:
            text += f", {self.maxnreg} registers"
        if self.num_ctas > 1:
            text += f", {self.num_ctas} CTAs"
        return text
