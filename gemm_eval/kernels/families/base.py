"""Families of W4A16 kernels: their configs, the macros that each is compiled with, and their launches."""

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple

from gemm_eval.arch import DeviceLimits
from gemm_eval.dtypes import DType
from gemm_eval.mapping import Decomposition, KernelConfig

MMA_SYNC_TARGETS: Mapping[tuple[int, int], str] = MappingProxyType(
    {(8, 0): "sm_80", (8, 9): "sm_89", (9, 0): "sm_90a", (10, 0): "sm_100", (12, 0): "sm_120"}
)
"""Of families that need cp.async, ldmatrix and mma.sync, as every GPU since A100 has them. Machine code runs on its own
compute capability and on later minor ones of the same major one (NVIDIA, Blackwell Compatibility Guide): that of sm_100
on B300 (10.3) too, that of sm_120 on GB10 (12.1)."""

TARGETS_THAT_RAN = frozenset({"sm_90a"})
"""Targets whose kernels have run on a GPU, and been checked and timed there. The others are compiled and their machine
code counted, no more."""


_ROW_K = 64  # that a row of scales is for in the fp4 modes


class WeightMode(enum.IntEnum):
    """The meaning of a weight's 4 bits, and the numbers that are stored beside them; see KERNELS.md."""

    COLUMN = 0
    GROUP = 1
    GROUP_ZERO = 2
    MXFP4 = 3
    NVFP4 = 4

    @property
    def is_fp4(self) -> bool:
        """True if weights are e2m1 numbers, not integers."""
        return self >= WeightMode.MXFP4

    @property
    def group_sizes(self) -> tuple[int, ...]:
        """Weights along K that may share a scale; 0: all of them."""
        return _GROUP_SIZES[self]

    @property
    def param_bytes(self) -> int:
        """Scale and zero point of a column and group, in bytes; of mode COLUMN none that a main loop reads."""
        return _PARAM_BYTES[self]

    def row_k(self, group_size: int) -> int:
        """Weights along K that a row of the packed scales is for: a group's, or fp4 groups' of a block."""
        return _ROW_K if self.is_fp4 else group_size


_GROUP_SIZES = {
    WeightMode.COLUMN: (0,), WeightMode.GROUP: (32, 64, 128), WeightMode.GROUP_ZERO: (32, 64, 128),
    WeightMode.MXFP4: (32,), WeightMode.NVFP4: (16,),
}  # fmt: skip
_PARAM_BYTES = {
    WeightMode.COLUMN: 0, WeightMode.GROUP: 2, WeightMode.GROUP_ZERO: 4, WeightMode.MXFP4: 1, WeightMode.NVFP4: 1,
}  # fmt: skip


class Fusion(enum.IntEnum):
    """The part of a layer of experts that a grouped kernel does besides its GEMM (groups.cuh)."""

    NONE = 0
    GATED = 1
    SUMMED = 2


class Sizes(NamedTuple):
    """Sizes of one GEMM, in elements: C[M,N] = A[M,K] x W[K,N]."""

    M: int
    K: int
    N: int


class Variant(NamedTuple):
    """The parameters that a kernel is compiled for; `group_size` is of `mode.group_sizes`, 0 in mode COLUMN."""

    config: KernelConfig
    activation: DType
    mode: WeightMode
    group_size: int
    fusion: Fusion = Fusion.NONE

    def macros(self) -> dict[str, int]:
        """Macros that common.cuh reads, and groups.cuh where something is fused."""
        row_k = self.mode.row_k(self.group_size)
        macros = {"ACT_BF16": int(self.activation is DType.BF16), "MODE": int(self.mode), "GROUP": row_k}
        return macros | ({"FUSION": int(self.fusion)} if self.fusion else {})

    def scale_bytes(self, columns: int, k: int) -> int:
        """Scales and zero points of `columns` columns and `k` of K, in bytes: those of whole groups."""
        if self.mode is WeightMode.COLUMN:
            return 0
        return ceil_div(k, self.group_size) * columns * self.mode.param_bytes


class Launch(NamedTuple):
    """The launch of a kernel for certain sizes.

    Attributes:
        smem_bytes: dynamic shared memory of a CTA.
        workspace_bytes: partial sums of a split K; 0: none.
        num_counters: 32-bit counters that are 0 before the launch, and again after it.
    """

    grid: tuple[int, int, int]
    num_threads: int
    smem_bytes: int
    workspace_bytes: int
    num_counters: int


class Operands(NamedTuple):
    """Device addresses, and what else a launch needs.

    Attributes:
        lda: elements of A from row to row.
        bias: 0: none.
        workspace, counters: as `Launch` asks for, 0 if it does not.
        num_column_blocks, num_k_blocks, num_groups: NB, KB and GB of the packed weights (KERNELS.md).
    """

    a: int
    lda: int
    qweight: int
    scales: int
    bias: int
    c: int
    workspace: int
    counters: int
    alpha: float
    num_column_blocks: int
    num_k_blocks: int
    num_groups: int


TensorMapOf = Callable[[int, DType, tuple[int, int], int, tuple[int, int]], Any]
"""Encodes a tensor map of a 16-bit matrix, as an argument for a launch: (address, type, (rows, columns), elements from
row to row, (rows, columns) of a box), with 128-byte swizzle: a box has at most 64 columns."""


class Family(ABC):
    """A family of kernels, from one CUDA source.

    Attributes:
        name: as in `KernelConfig.family`.
        source: file in the folder cuda.
        headers: files of that folder that stand before it, after common.cuh, in this order.
        entry: name of the kernel.
        targets: NVRTC targets by compute capability (major, minor): of those with the major of the GPU and a minor that
            it has or exceeds, the highest minor wins.
        limited_by: why there are no other targets, for refusals; empty: nothing newer refuses.
    """

    name: ClassVar[str]
    source: ClassVar[str]
    headers: ClassVar[tuple[str, ...]] = ()
    entry: ClassVar[str]
    targets: ClassVar[Mapping[tuple[int, int], str]]
    limited_by: ClassVar[str] = ""

    @abstractmethod
    def configs(self) -> Iterator[KernelConfig]:
        """All kernels that exist, each once, with K not split unless it is compiled so."""

    def compiled(self, config: KernelConfig) -> KernelConfig:
        """Return the kernel that a config runs, as `configs` has it: how K is cut is an argument of its launch."""
        return config._replace(decomposition=Decomposition.DATA_PARALLEL, split_k=1)

    @abstractmethod
    def splits(self, variant: Variant, sizes: Sizes, limits: DeviceLimits) -> Iterator[tuple[Decomposition, int]]:
        """Ways to cut K that make sense for these sizes, the one of `compiled` among them."""

    @abstractmethod
    def refusal(self, variant: Variant, sizes: Sizes | None, limits: DeviceLimits) -> str | None:
        """Why this kernel cannot run (for any sizes where `sizes` is None), or None."""

    @abstractmethod
    def macros(self, variant: Variant) -> dict[str, int]:
        """Macros besides those of `Variant.macros`."""

    def prelude(self, variant: Variant) -> str:  # noqa: ARG002
        """CUDA text that stands between the headers and the source."""
        return ""

    @abstractmethod
    def smem_bytes(self, variant: Variant) -> int:
        """Dynamic shared memory of a CTA, in bytes."""

    @abstractmethod
    def num_threads(self, variant: Variant) -> int:
        """Threads of a CTA."""

    @abstractmethod
    def launch(self, variant: Variant, sizes: Sizes, num_sms: int, ctas_per_sm: int) -> Launch:
        """Grid and workspace; `ctas_per_sm` is how many CTAs an SM holds at once."""

    @abstractmethod
    def arguments(
        self, variant: Variant, sizes: Sizes, launch: Launch, operands: Operands, tensor_map: TensorMapOf
    ) -> tuple[Any, ...]:
        """Arguments of the kernel, as CuPy takes them (numpy scalars, addresses as numpy.uint64)."""


def ceil_div(a: int, b: int) -> int:
    """Return a / b, rounded up."""
    return -(-a // b)
