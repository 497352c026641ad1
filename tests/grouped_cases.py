"""Grouped GEMMs of GPUs for tests: which libraries run which types where, how much a row more may help, and draws."""

import random
from typing import NamedTuple

from gemm_eval import GemmProblem
from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.workload import GemmTypes, RunOptions

_DEPTHS = (128, 256, 512, 768, 1024, 1536, 2048, 2880, 4096, 7168, 14336)
_COLUMNS = (128, 256, 512, 768, 1536, 2048, 2880, 4096, 5760, 7168, 28672)
_EDGES = (0, 0, 1, 2, 3, 5, 8, 16, 17, 63, 64, 65, 128)  # around tiles


class GroupedCase(NamedTuple):
    """A library that runs groups of some types on a GPU.

    Attributes:
        gpu, library, dtype: the question.
        row_helps: the largest part of its time by which a grouped GEMM may be faster with a row or a group more; see
            `tools.laws.grouped`.
    """

    gpu: str
    library: str
    dtype: str
    row_helps: float

    @property
    def arch(self) -> GpuSpec:
        """The GPU."""
        return load_arch(self.gpu, GpuSpec)

    @property
    def types(self) -> GemmTypes:
        """Data types."""
        return GemmTypes.parse(self.dtype)

    def options(self, l2: str = "cold") -> RunOptions:
        """Return options without a correction: those are of plain GEMMs."""
        return RunOptions(self.library, l2, "burst", correction=False)

    def __str__(self) -> str:
        return f"{self.gpu}-{self.library}-{self.dtype}"


CASES = (
    GroupedCase("h200-sxm", "torch", "bf16", 0.1),
    GroupedCase("h200-sxm", "triton", "bf16", 0.05),
    GroupedCase("h200-sxm", "triton", "fp8_block", 0.05),
    GroupedCase("h200-sxm", "marlin", "w4a16", 0.05),
    GroupedCase("h200-sxm", "gemm-eval", "w4a16", 0.15),  # a row more can make the kernel cut K
    GroupedCase("h200-sxm", "cublas", "bf16", 0.25),
    GroupedCase("h200-sxm", "hypothetical", "w4a16", 0.05),
    GroupedCase("h200-sxm", "trtllm", "w4a16", 0.05),
    GroupedCase("h200-sxm", "deepgemm", "fp8_block", 0.1),
    GroupedCase("a100-sxm-80gb", "triton", "bf16", 0.05),
    GroupedCase("a100-sxm-80gb", "marlin", "w4a16", 0.05),
    GroupedCase("a100-sxm-80gb", "cublas", "bf16", 0.05),
    GroupedCase("a100-sxm-80gb", "gemm-eval", "w4a16", 0.15),
    GroupedCase("l40s", "triton", "bf16", 0.05),
    GroupedCase("b200", "deepgemm", "fp8_block", 0.05),
    GroupedCase("b200", "trtllm-gen", "bf16", 0.1),
    GroupedCase("b200", "trtllm-gen", "fp8_block", 0.1),
    GroupedCase("b200", "trtllm-gen", "nvfp4", 0.1),
    GroupedCase("b200", "triton", "bf16", 0.05),
    GroupedCase("b200", "cublas", "bf16", 0.1),
)


def draw_groups(rng: random.Random, most_groups: int = 256) -> tuple[int, ...]:
    """Rows of 2 groups or more: next to tiles, heavily skewed with empty ones, or alike."""
    num = int(2.0 ** rng.uniform(1.0, most_groups.bit_length() - 1))
    kind = rng.random()
    if kind < 0.3:
        groups = [rng.choice(_EDGES) for _ in range(num)]
    elif kind < 0.7:
        log2 = rng.uniform(0.0, 10.0)
        groups = [int(2.0 ** rng.uniform(0.0, log2)) if rng.random() < 0.8 else 0 for _ in range(num)]
    else:
        most = 2 * int(2.0 ** rng.uniform(0.0, 9.0))
        groups = [rng.randint(0, most) for _ in range(num)]
    if not any(groups):
        groups[0] = 1
    return tuple(groups)


def problem_of(row_groups: tuple[int, ...], K: int, N: int, types: GemmTypes) -> GemmProblem:
    """Return a grouped GEMM of some types."""
    return GemmProblem.grouped(row_groups, K, N, **types.words)


def draw_problem(rng: random.Random, types: GemmTypes, most_groups: int = 256) -> GemmProblem:
    """A grouped GEMM of sizes that every library takes."""
    return problem_of(draw_groups(rng, most_groups), rng.choice(_DEPTHS), rng.choice(_COLUMNS), types)
