"""Packing of a GPU, the data types of a problem and the coefficients of a library into one record for the kernels."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gemm_eval.arch import GpuSpec
from gemm_eval.models.gpu.coefficients import COEFFICIENTS
from gemm_eval.models.gpu.cost_kernels import ALL_COLD, COLD, WARM
from gemm_eval.models.gpu.libraries import LIBRARIES
from gemm_eval.models.gpu.menu import MENU_DTYPE, build_menu
from gemm_eval.models.gpu.w4a16.coefficients import NUM_W4A16_COEFFICIENTS, W4A16_COEFFICIENTS, W4A16_FAMILIES
from gemm_eval.models.gpu.w4a16.menu import build_w4a16_menu
from gemm_eval.units import bytes_per_us, cycles_per_us
from gemm_eval.workload import GemmProblem

__all__ = [
    "GPU_PARAMS_DTYPE",
    "L2_STATES",
    "SM_L2_BYTES_PER_CYCLE",
    "menu_of",
    "pack_gpu_params",
    "pack_no_kernels",
    "pack_w4a16_coefficients",
    "pack_w4a16_params",
    "unaligned_params",
    "w4a16_coefficients",
    "with_coefficients",
]

_INTS = (
    "num_sms",
    "group_size",
    "l2_state",
    "min_split_steps",
    "is_split_full",
    "max_split_parts",
    "has_stream_k",
    "is_calibrated",
    "has_kernels",
    "menu",
    "unaligned",
    "w4a16",
)
_FLOATS = (
    "a_elem_bytes", "b_elem_bytes", "c_elem_bytes", "scale_bytes_per_group",
    "cycles_per_us", "tensor_cycles_per_us", "sustained_cycles_per_us", "launch_us", "load_latency_cycles",
    "smem_bytes_per_cycle", "dram_peak_bytes_per_us", "dram_spec_bytes_per_us", "l2_peak_bytes_per_us", "l2_bytes",
    # of spec and coefficient
    "dram_bytes_per_us", "dram_write_bytes_per_us", "l2_bytes_per_us", "l2_hold_bytes", "sm_l2_bytes_per_cycle",
)  # fmt: skip
GPU_PARAMS_DTYPE = np.dtype(
    [(name, np.int64) for name in _INTS]
    + [(name, np.float64) for name in _FLOATS]
    + [(f"c_{item.name}", np.float64) for item in COEFFICIENTS]
)
"""One record per (GPU, data types, library, L2 and clock state). `menu` is the number of a table of `menu_of`,
`unaligned` that of a record of `unaligned_params`; `has_kernels` is 0 where the library has none, on whatever GPU;
fields `c_*` are the coefficients of a kernel family. Where our own W4A16 kernels run, `w4a16` is the number of their
coefficients (`w4a16_coefficients`) and `menu` that of a table of `W4A16_MENU_DTYPE`; else `w4a16` is -1."""

L2_STATES = {"cold": COLD, "cold-all": ALL_COLD, "warm": WARM}
"""What L2 holds when a kernel starts, as users say it, and as records do; MODEL.md, "Bytes"."""

SM_L2_BYTES_PER_CYCLE = 64.0
"""What an SM can take in from L2 (NVIDIA, "Dissecting the Ampere GPU architecture", GTC 2021: 64 B/clk/SM)."""


class _Numbered:
    """Arrays by number, so that a record can name one; equal arrays have one number. Dict steps alone, so no lock."""

    def __init__(self) -> None:
        self._arrays: dict[int, npt.NDArray[Any]] = {}
        self._numbers: dict[tuple[np.dtype[Any], bytes], int] = {}
        self._next = itertools.count()

    def number_of(self, array: npt.NDArray[Any]) -> int:
        key = array.dtype, array.tobytes()  # empty menus of two kinds differ by type alone
        number = self._numbers.get(key)
        if number is None:
            fresh = next(self._next)
            self._arrays[fresh] = array  # before anybody can learn the number
            number = self._numbers.setdefault(key, fresh)
        return number

    def __getitem__(self, number: int) -> npt.NDArray[Any]:
        return self._arrays[number]


_menus = _Numbered()
_unaligned = _Numbered()
_w4a16 = _Numbered()


def menu_of(number: int) -> npt.NDArray[np.void]:
    """Return a table of kernels by the number that a params record holds; valid in the process that made it."""
    return _menus[number]


def unaligned_params(params: npt.NDArray[np.void]) -> npt.NDArray[np.void]:
    """Return the records [num] for sizes whose rows do not start on 16 bytes, of records [num] for the others."""
    found = np.concatenate([_unaligned[number] for number in params["unaligned"].tolist()])
    found.setflags(write=False)  # as packed records are: numba compiles for both kinds otherwise
    return found


def w4a16_coefficients(params: npt.NDArray[np.void]) -> npt.NDArray[np.float64]:
    """Return the coefficients of our W4A16 families, [num, families, coefficients], of records that have them."""
    return np.stack([_w4a16[number] for number in params["w4a16"].tolist()])


def pack_w4a16_params(
    arch: GpuSpec,
    types: GemmProblem,
    substitute: npt.NDArray[np.void],
    coefficients: Mapping[str, Mapping[str, float]],
    *,
    is_calibrated: bool,
) -> npt.NDArray[np.void]:
    """Return the record [1] of our W4A16 kernels; `substitute` is that for sizes which they do not take.

    Args:
        arch: a GPU that has such kernels (`has_w4a16_kernels`).
        types: data types; sizes do not matter.
        substitute: record of hypothetical kernels for rows that do not start on 16 bytes, or of none at all.
        coefficients: by family.
        is_calibrated: whether those of all families were fitted on this GPU.
    """
    params = substitute.copy()
    params["unaligned"] = _unaligned.number_of(substitute)
    params["menu"] = _menus.number_of(build_w4a16_menu(arch, types))
    params["w4a16"] = _w4a16.number_of(pack_w4a16_coefficients(coefficients))
    params["has_kernels"] = 1
    if types.zero_dtype is not None and types.scale_dtype is not None:  # packed, a zero point is as wide as a scale
        params["scale_bytes_per_group"] = 2 * types.scale_dtype.bits / 8
    params["is_calibrated"] = is_calibrated
    params.setflags(write=False)
    return params


def pack_w4a16_coefficients(coefficients: Mapping[str, Mapping[str, float]]) -> npt.NDArray[np.float64]:
    """Return coefficients by family as [families, coefficients]; 0 where a family has no such one."""
    packed = np.zeros((len(W4A16_FAMILIES), NUM_W4A16_COEFFICIENTS))
    for place, family in enumerate(W4A16_FAMILIES):
        for at, item in enumerate(W4A16_COEFFICIENTS):
            packed[place, at] = coefficients[family].get(item.coefficient.name, 0.0)
    return packed


def pack_gpu_params(
    arch: GpuSpec,
    problem: GemmProblem,
    library: str,
    coefficients: Mapping[str, float],
    *,
    l2: str,
    clock: str,
    is_calibrated: bool,
    unaligned: npt.NDArray[np.void] | None = None,
) -> npt.NDArray[np.void]:
    """Return a read-only array [1] of `GPU_PARAMS_DTYPE`. Only the data types of `problem` matter, not its sizes.

    `unaligned` is the record for sizes whose rows do not start on 16 bytes; None makes that record itself.

    Raises:
        UnsupportedError: GPU, types and library do not go together.
    """
    rules = LIBRARIES[library]
    rules.check(arch, problem)
    split = rules.split_rule(arch, problem, is_unaligned=unaligned is None)
    params = _pack_chip(arch, problem, l2, clock)
    values: dict[str, int] = {
        "min_split_steps": split.min_steps,
        "is_split_full": split.is_full,
        "max_split_parts": split.max_parts,
        "has_stream_k": rules.has_stream_k,
        "is_calibrated": is_calibrated,
        "has_kernels": 1,
        "menu": _menus.number_of(build_menu(arch, problem, library, is_unaligned=unaligned is None)),
        "unaligned": -1 if unaligned is None else _unaligned.number_of(unaligned),
    }
    for name, value in values.items():
        params[name] = value
    if rules.is_chosen_by_model:
        coefficients = {**coefficients, "choice_loss": 0.0}
    return with_coefficients(params, coefficients)


def pack_no_kernels(arch: GpuSpec, problem: GemmProblem, *, l2: str, clock: str) -> npt.NDArray[np.void]:
    """Return a record as `pack_gpu_params` does, of a library without a kernel."""
    params = _pack_chip(arch, problem, l2, clock)
    params["menu"] = _menus.number_of(np.empty(0, MENU_DTYPE))
    return with_coefficients(params, {item.name: item.default for item in COEFFICIENTS})


def _pack_chip(arch: GpuSpec, problem: GemmProblem, l2: str, clock: str) -> npt.NDArray[np.void]:
    """Fill in what GPU, data types and states decide."""
    assert problem.weight_dtype is not None
    assert problem.output_dtype is not None
    scale_bits = 0
    if problem.scale_dtype is not None:
        scale_bits = problem.scale_dtype.bits + (problem.zero_dtype.bits if problem.zero_dtype else 0)
    clock_ghz = arch.tensor_clock_ghz(problem.input_dtype, "burst" if clock == "burst" else "sustained")
    cycles = cycles_per_us(arch.max_clock_ghz)
    values: dict[str, float] = {
        "num_sms": arch.num_sms,
        "group_size": problem.group_size or 0,
        "l2_state": L2_STATES[l2],
        "unaligned": -1,
        "w4a16": -1,
        "a_elem_bytes": problem.input_dtype.bits / 8,
        "b_elem_bytes": problem.weight_dtype.bits / 8,
        "c_elem_bytes": problem.output_dtype.bits / 8,
        "scale_bytes_per_group": scale_bits / 8,
        "cycles_per_us": cycles,
        "tensor_cycles_per_us": cycles_per_us(clock_ghz),
        "sustained_cycles_per_us": cycles_per_us(arch.tensor_clock_ghz(problem.input_dtype, "sustained")),
        "launch_us": arch.graph_node_us,
        "load_latency_cycles": arch.dram_latency_ns * cycles / 1e3,
        "smem_bytes_per_cycle": arch.smem_bytes_per_cycle,
        "dram_peak_bytes_per_us": bytes_per_us(arch.dram_achievable_gb_per_s),
        "dram_spec_bytes_per_us": bytes_per_us(arch.dram_gb_per_s),
        "l2_peak_bytes_per_us": bytes_per_us(arch.l2_gb_per_s),
        "l2_bytes": arch.l2_bytes,
    }
    params = np.zeros(1, GPU_PARAMS_DTYPE)
    for name, value in values.items():
        params[name] = value
    return params


def with_coefficients(params: npt.NDArray[np.void], coefficients: Mapping[str, float]) -> npt.NDArray[np.void]:
    """Return a read-only copy of a params record with other coefficients."""
    params = params.copy()
    for item in COEFFICIENTS:
        params[f"c_{item.name}"] = coefficients[item.name]
    # a share that was fitted on one chip may be too much for another, whose efficiency is higher
    params["dram_bytes_per_us"] = np.minimum(
        params["dram_peak_bytes_per_us"] * params["c_dram_frac"], params["dram_spec_bytes_per_us"]
    )
    params["dram_write_bytes_per_us"] = params["dram_peak_bytes_per_us"]
    params["l2_bytes_per_us"] = params["l2_peak_bytes_per_us"] * params["c_l2_frac"]
    params["l2_hold_bytes"] = params["l2_bytes"] * params["c_l2_hold_frac"]
    params["sm_l2_bytes_per_cycle"] = SM_L2_BYTES_PER_CYCLE * params["c_sm_l2_frac"]
    params.setflags(write=False)
    return params
