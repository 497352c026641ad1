"""W4A16 GEMM on NVIDIA GPUs: C = alpha * A x W + bias with weights of 4 bits. KERNELS.md describes the packed weights.

Importing this package is cheap and needs no GPU. CuPy is imported, and a kernel compiled, when one is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gemm_eval.arch.limits import DeviceLimits, limits_of_spec
    from gemm_eval.kernels._family import Sizes, Variant, WeightMode
    from gemm_eval.kernels._registry import KernelEntry, Occupancy, legal_configs, list_kernels
    from gemm_eval.kernels.checkpoints import from_awq, from_gptq
    from gemm_eval.kernels.gemm import occupancy, w4a16_gemm, workspace_bytes
    from gemm_eval.kernels.weights import PackedW4, QuantizedW4, dequantize, pack_w4, quantize_w4, unpack_w4

__all__ = [
    "DeviceLimits",
    "KernelEntry",
    "Occupancy",
    "PackedW4",
    "QuantizedW4",
    "Sizes",
    "Variant",
    "WeightMode",
    "dequantize",
    "from_awq",
    "from_gptq",
    "legal_configs",
    "limits_of_spec",
    "list_kernels",
    "occupancy",
    "pack_w4",
    "quantize_w4",
    "unpack_w4",
    "w4a16_gemm",
    "workspace_bytes",
]

_ROOMS = {
    "gemm_eval.arch.limits": ("DeviceLimits", "limits_of_spec"),
    "._family": ("Sizes", "Variant", "WeightMode"),
    "._registry": ("KernelEntry", "Occupancy", "legal_configs", "list_kernels"),
    ".checkpoints": ("from_awq", "from_gptq"),
    ".gemm": ("occupancy", "w4a16_gemm", "workspace_bytes"),
    ".weights": ("PackedW4", "QuantizedW4", "dequantize", "pack_w4", "quantize_w4", "unpack_w4"),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _ROOM_OF:
        value = getattr(import_module(_ROOM_OF[name], __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'gemm_eval.kernels' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
