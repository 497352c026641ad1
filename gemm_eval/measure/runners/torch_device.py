"""What runners of PyTorch's GEMMs share: its stream, and its way to capture a graph."""

from __future__ import annotations

from typing import Any

from gemm_eval.device import BenchDevice, Call, import_cupy
from gemm_eval.errors import GemmEvalError
from gemm_eval.extras import install_command

__all__ = ["TorchDevice"]


class TorchDevice(BenchDevice):
    """Device 0 and a stream that PyTorch and CuPy share.

    Attributes:
        torch: the module.

    Raises:
        GemmEvalError: there is no PyTorch, no CuPy, or no GPU.
    """

    kernel = ""

    def __init__(self) -> None:
        try:
            import torch
        except ImportError:
            what = f"--kernel {self.kernel}" if self.kernel else "this"
            raise GemmEvalError(f"{what} needs PyTorch with CUDA: {install_command('torch')}") from None
        cupy = import_cupy()
        self.torch: Any = torch
        self._torch_stream = torch.cuda.Stream()
        torch.cuda.set_stream(self._torch_stream)
        super().__init__(cupy.cuda.ExternalStream(self._torch_stream.cuda_stream))

    def capture(self, enqueue: Call) -> Call:
        """See `Runner`."""
        graph = self.torch.cuda.CUDAGraph()
        self.torch.cuda.synchronize()
        graph.capture_begin(capture_error_mode="relaxed")
        try:
            enqueue()
        finally:
            graph.capture_end()

        def launch() -> None:
            graph.replay()

        return launch

    def free_unused(self) -> None:
        """See `BenchDevice`."""
        super().free_unused()
        self.torch.cuda.empty_cache()
