"""What a comparison asks of an engine: somebody's kernels for GEMMs with 4-bit weights, on operands that all share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from gemm_eval.device import BenchDevice, Call, TimingProtocol
from gemm_eval.measure.engines.operands import DenseGemm, Operands, Weights

__all__ = ["Bound", "Engine", "with_version"]

T = TypeVar("T")


class Bound(NamedTuple):
    """One GEMM of an engine, ready to be timed.

    Attributes:
        calls: one for each copy of the weights; each enqueues the whole GEMM.
        read: returns the output of the call that ran last, [M, N] of 16-bit numbers on the GPU.
        dtype: "fp16" or "bf16", of the output.
        config: what the engine runs, in short; empty: it does not tell.
    """

    calls: Sequence[Call]
    read: Callable[[], Any]
    dtype: str
    config: str


class Engine(ABC, Generic[T]):
    """One engine. `T` is what a copy of its packed weights is.

    Attributes:
        name: for options, files and tables.
        largest_rows: most rows that it is made for; None: any.
        needs_torch: whether it runs on PyTorch's stream.

    Args:
        device: where it runs; every GEMM comes to its stream.
        operands: A and C.
        protocol: how many copies of the weights are cold.
    """

    name: ClassVar[str]
    largest_rows: ClassVar[int | None] = None
    needs_torch: ClassVar[bool] = False

    def __init__(self, device: BenchDevice, operands: Operands, protocol: TimingProtocol) -> None:
        self.device, self.operands, self.protocol = device, operands, protocol
        self.weights: Weights | None = None
        self.copies: list[T] = []

    @classmethod
    def why_missing(cls) -> str | None:
        """Say which package is missing and the command that installs it; None: the engine is there."""
        return None

    @abstractmethod
    def describe(self) -> str:
        """Name library and version."""

    def prepare(self, gemms: Sequence[DenseGemm]) -> None:
        """Compile what these GEMMs need, at once; what is not compiled here is when it is bound."""

    @abstractmethod
    def pack(self, weights: Weights) -> T:
        """Return the weights as this engine reads them."""

    @abstractmethod
    def copy(self, packed: T) -> T:
        """Return the same in other memory."""

    @abstractmethod
    def num_bytes(self, packed: T) -> int:
        """Return the bytes that a GEMM reads of it."""

    @abstractmethod
    def bind(self, gemm: DenseGemm) -> Bound:
        """Return the calls for a GEMM with the weights that were loaded last."""

    def load(self, weights: Weights) -> None:
        """Pack weights, and copy them until they are cold when their turn comes again."""
        self.unload()
        packed = self.pack(weights)
        most = self.protocol.max_calls
        count = self.protocol.num_weight_copies(self.num_bytes(packed), self.device.l2_bytes, most)
        self.copies = [packed, *(self.copy(packed) for _ in range(count - 1))]
        self.weights = weights

    def unload(self) -> None:
        """Give up the weights."""
        self.copies, self.weights = [], None


def with_version(package: str) -> str:
    """Return the name of a package with its version, where its metadata is installed."""
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:  # it runs from a folder
        return package
