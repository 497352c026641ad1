"""The model of kernels that Triton makes: software-pipelined loops of cp.async and wgmma or mma.sync."""

from gemm_eval.models.gpu.triton.code import KernelCode, MainLoop, MmaCount
from gemm_eval.models.gpu.triton.config import TritonConfig

__all__ = ["KernelCode", "MainLoop", "MmaCount", "TritonConfig"]
