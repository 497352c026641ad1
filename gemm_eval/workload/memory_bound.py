"""What is known of kernels whose time is that of their bytes by their names: how serving engines write them."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ENGINES", "TORCH", "MemoryKernel", "has_cta_for_each_row", "memory_kernel"]

ENGINES = "engines"
"""Kernels that are written for serving engines: 16 bytes a load."""

TORCH = "torch"
"""Kernels of PyTorch's eager mode."""


class MemoryKernel(NamedTuple):
    """How a kernel goes over its rows.

    Attributes:
        trips: to memory and back that a row takes one after the other, where it is alone: loads, and sums of a CTA.
        loads: the same, of a thread that handles 16 bytes of each tensor, where all SMs are full.
        row_threads: of a row; 0: one for every 16 bytes of it.
        is_dealt: elements are dealt to all SMs; else each row is one CTA's.
        element_trips, element_loads: trips and loads for each element of a thread, on top.
        library: whose, `ENGINES` or `TORCH`.
    """

    trips: float = 1.0
    loads: float = 1.0
    row_threads: int = 0
    is_dealt: bool = False
    element_trips: float = 0.0
    element_loads: float = 0.0
    library: str = ENGINES


def _of_torch(
    trips: float,
    loads: float,
    row_threads: int,
    per_element: tuple[float, float] = (0.0, 0.0),
    *,
    is_dealt: bool = True,
) -> MemoryKernel:
    return MemoryKernel(trips, loads, row_threads, is_dealt, *per_element, library=TORCH)


_NORM = MemoryKernel(trips=1.5, loads=2)  # the sum of a row comes between; weights come while a residual does
_POSITIONS = MemoryKernel(trips=2, loads=1.2)  # queries and keys have angles to wait for, values have not
_KERNELS = {
    "act": MemoryKernel(),
    "act_mul": MemoryKernel(),
    "rms_norm": _NORM,
    "layer_norm": _NORM,
    "add_rms_norm": _NORM,
    "add_layer_norm": _NORM,
    "rotary_kv_write": _POSITIONS,
    "rotary": _POSITIONS,
    "qk_norm": MemoryKernel(trips=2.5, loads=0.8),  # heads of a row one after the other, by some 256 threads
    "kv_write": MemoryKernel(),
    "gather": MemoryKernel(loads=2),  # the place of a row, then the row
    "permute": MemoryKernel(loads=5),  # a row is stored at the places of all choices
    "weighted_sum": MemoryKernel(trips=2, loads=2),
    "top_k": MemoryKernel(trips=7, loads=5, row_threads=32),  # a warp picks one choice after the other
    "cast": MemoryKernel(trips=4, loads=2.5, is_dealt=True),  # PyTorch's: elements one by one, as types differ
    "sort": MemoryKernel(trips=6, loads=5, row_threads=2),  # counts, places in a CTA, places of CTAs, stores
    # PyTorch's, by what runs (torch/eager_mode.py); rows of 1,024 elements where they do not matter
    "torch_vector": _of_torch(0, 0.5, 128),  # 16 bytes a thread, of one type and order; rows of 2,048 bytes
    "torch_gelu": _of_torch(0.2, 1, 128),  # likewise, and an error function
    "torch_cast": _of_torch(2, 1.2, 256),  # four elements a thread, one by one, as types differ
    "torch_offsets": _of_torch(1.4, 1, 256),  # likewise, with divisions to find each: broadcasts and strides
    "torch_offsets_wide": _of_torch(0.6, 0.6, 512),  # of 4 bytes: two elements a thread
    "torch_scattered": _of_torch(1.8, 2.7, 256),  # likewise, neighbours far apart in memory
    "torch_roll": _of_torch(0.8, 0.43, 1024),
    "torch_cat": _of_torch(2.8, 1.8, 256),  # of tensors with gaps
    "torch_layer_norm": _of_torch(1.6, 0.86, 128, (0.17, 0.16), is_dealt=False),
    "torch_rms_norm": _of_torch(1.2, 0.44, 128, (0.1, 0.08), is_dealt=False),
    "torch_softmax": _of_torch(0.6, 0.32, 32, (0.08, 0.13)),  # a warp, its row in registers
    "torch_softmax_cta": _of_torch(0.5, 0, 1024, (1.5, 0.37), is_dealt=False),
    "torch_sum": _of_torch(1.4, 0.66, 32, (0.06, 0.065)),  # a warp for each row
    "torch_sum_cta": _of_torch(1.4, 0.66, 512, (0.06, 0.065)),
    "torch_moments": _of_torch(2.2, 1.65, 512, (0.27, 0.13), is_dealt=False),
    "torch_batch_norm": _of_torch(0.5, 0.97, 32, (0.6, 0.04)),
    "torch_batch_norm_last": _of_torch(2.8, 0.43, 256),  # channels side by side
    "torch_max_pool": _of_torch(5.7, 1.8, 1024),
    "torch_avg_pool": _of_torch(4.2, 1.14, 1024),
    "torch_bilinear": _of_torch(1, 0, 32, (0.3, 0.05)),  # a thread for a position in all images and channels
    "inductor_rows": _of_torch(1, 0, 32, (0, 0.07)),  # what torch.compile makes of a norm, a softmax, sums of rows
    "cudnn_layout": _of_torch(0.42, 0.61, 256),  # channels first to channels last and back, by tiles of 32 x 32
}
_OTHER = MemoryKernel(trips=3, is_dealt=True)


def memory_kernel(what: str) -> MemoryKernel:
    """Return how a kernel of this name goes over its rows; of another name, that its elements are dealt."""
    return _KERNELS.get(what, _OTHER)


def has_cta_for_each_row(what: str) -> bool:
    """Whether serving engines have one CTA for each row (token) in it; others deal elements to all SMs."""
    return not memory_kernel(what).is_dealt
