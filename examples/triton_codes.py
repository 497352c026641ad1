"""Compiles every kernel of the pool without a GPU and writes what its machine code says, as a table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import triton
import yaml
from triton_pool import DATA_SETS, DataSet, config_pool, kernel_of, kernel_sources

from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.autotune.asm import kernel_code, score_cubins
from gemm_eval.autotune.triton import TensorArgument
from gemm_eval.autotune.triton.compile import CompiledConfig, compile_many_offline
from gemm_eval.models.gpu.triton import KernelCode
from gemm_eval.validation import KernelKey, write_codes

_ARCH = "h200-sxm"
_SPLIT_K = 4  # the code of all that cut K is alike
_SIZE = 8192  # a multiple of all steps and of 16, as all sizes that are timed are, or nearly


def compile_pool(data: DataSet, num: int | None = None) -> dict[KernelKey, KernelCode]:
    """Return what the machine code of the pool's kernels of a data set says; `num`: of the first so many only."""
    configs = {_key_of(data, config): _representative(config) for config in config_pool(data)}
    configs = dict(list(configs.items())[:num])
    compiled = compile_many_offline(
        kernel_of(data), list(configs.values()), _arguments(data), load_arch(_ARCH, GpuSpec),
        num_threads=os.cpu_count() or 1,
    )  # fmt: skip
    kernels: dict[KernelKey, CompiledConfig] = {}
    for key, found in zip(configs, compiled, strict=True):
        if isinstance(found, CompiledConfig):
            kernels[key] = found
        else:
            print(f"{key} was not compiled: {found}", flush=True)
    cards = score_cubins([kernel.cubin for kernel in kernels.values()])
    return {
        key: kernel_code(
            card, block_m=key.block_m, block_n=key.block_n, block_k=key.block_k, num_warps=key.num_warps,
            smem_bytes=kernel.smem_bytes,
        )
        for (key, kernel), card in zip(kernels.items(), cards, strict=True)
    }  # fmt: skip


def write_pool(folder: Path, names: list[str]) -> None:
    """Write codes.csv, of the data sets named, and codes.meta.yaml."""
    codes: dict[KernelKey, KernelCode] = {}
    for data in DATA_SETS:
        if data.name in names:
            found = compile_pool(data)
            print(f"{data.name}: {len(found)} kernels", flush=True)
            codes |= found
    folder.mkdir(parents=True, exist_ok=True)
    write_codes(folder / "codes.csv", codes)
    text = yaml.safe_dump(codes_meta(len(codes)), sort_keys=False, width=120)
    (folder / "codes.meta.yaml").write_text(text, encoding="utf-8")


def codes_meta(num_rows: int) -> dict[str, Any]:
    """Return what the meta file says."""
    return {
        "what": "main loops of Triton's kernels as their machine code says, one row a kernel; no timings",
        "has_no_timings": True,
        "gpu": {"name": "NVIDIA H200", "is_needed": False},
        "kernels": f"rows with is_split were compiled with SPLIT_K {_SPLIT_K}, all with GROUP_M 8 and K a multiple of "
        "BLOCK_K",
        "sources": kernel_sources(),
        "triton": triton.__version__,
        "columns": "gemm_eval/validation/subjects/triton.py; counts are of a warp and a turn of the main loop",
        "command": "python examples/measure_triton.py --codes --out FOLDER",
        "num_rows": num_rows,
    }


def _key_of(data: DataSet, config: triton.Config) -> KernelKey:
    m, n, k, split = (int(config.kwargs[name]) for name in ("BLOCK_M", "BLOCK_N", "BLOCK_K", "SPLIT_K"))
    return KernelKey(data.name, m, n, k, config.num_warps, config.num_stages, split > 1)


def _representative(config: triton.Config) -> triton.Config:
    split = _SPLIT_K if config.kwargs["SPLIT_K"] > 1 else 1
    meta = config.kwargs | {"GROUP_M": 8, "SPLIT_K": split}
    return triton.Config(meta, num_warps=config.num_warps, num_stages=config.num_stages)


def _arguments(data: DataSet) -> dict[str, Any]:
    """Of a launch, by name; tensors as their types."""
    inputs = TensorArgument(data.dtype)
    output = TensorArgument("fp16" if data.dtype == "fp8" else data.dtype)
    values: dict[str, Any] = {
        "a_ptr": inputs, "c_ptr": output, "part_ptr": TensorArgument("fp32"), "count_ptr": TensorArgument("int32"),
        "M": _SIZE, "N": _SIZE, "K": _SIZE, "stride_am": _SIZE, "stride_cm": _SIZE,
    }  # fmt: skip
    if data.group_size:
        weights = {"w_ptr": TensorArgument("uint8"), "scale_ptr": inputs, "stride_wn": _SIZE // 2}
        return values | weights | {"GROUP_SIZE": data.group_size}
    return values | {"b_ptr": inputs, "stride_bn": _SIZE}
