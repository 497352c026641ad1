"""A pass over memory that leaves L2 full of lines which nobody wants, and which need not be written back."""

from __future__ import annotations

from functools import partial

import numpy

from gemm_eval.device import runtime
from gemm_eval.device.nvrtc import CompiledKernel, compile_text
from gemm_eval.device.timing import Call

__all__ = ["compile_filler", "fill_call"]

_THREADS = 512
_CTAS_PER_SM = 4
_LOAD_BYTES = 16
_ENTRY = "gemm_eval_fill_l2"
# Reading leaves lines behind that need not be written back in the time of the next kernel.
_TEXT = f"""
extern "C" __global__ void {_ENTRY}(const uint4* data, long long count, unsigned* never) {{
  unsigned sum = 0;
  long long step = gridDim.x * (long long)blockDim.x;
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += step) {{
    uint4 v = data[i];
    sum += v.x ^ v.y ^ v.z ^ v.w;
  }}
  if (sum == 0x9e3779b9u) *never = sum;  // keeps the loads alive
}}
"""


def compile_filler(compute_capability: tuple[int, int]) -> CompiledKernel:
    """Compile the kernel that reads memory (data, number of 16 bytes, address that is never written)."""
    major, minor = compute_capability
    return compile_text(_TEXT, _ENTRY, f"sm_{major}{minor}", {})


def fill_call(
    compiled: CompiledKernel, address: int, num_bytes: int, *, device: int, num_sms: int, stream: int
) -> Call:
    """Return a call that reads memory once.

    Args:
        compiled: what `compile_filler` returned.
        address, num_bytes: of the memory, about twice the L2.
        device, num_sms: number of the current GPU, and its SMs.
        stream: handle of the stream that it is queued on.
    """
    handle = runtime.StreamHandle(stream)
    function = runtime.load_function(compiled, device, 0, handle.ptr)
    arguments = numpy.uint64(address), numpy.int64(num_bytes // _LOAD_BYTES), numpy.uint64(address)
    return partial(function, (_CTAS_PER_SM * num_sms, 1, 1), (_THREADS, 1, 1), arguments, 0, handle)
