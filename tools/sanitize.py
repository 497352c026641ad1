"""One kernel of each family and way to cut K, in three modes, and that of act-order, once: compute-sanitizer is slow.

compute-sanitizer --tool memcheck python -m tools.sanitize
compute-sanitizer --tool racecheck python -m tools.sanitize
compute-sanitizer --tool racecheck python -m tools.sanitize followed

The last compiles the kernels with RACECHECK (common.cuh): the same, but that all lanes of a warp signal where one does.
What racecheck reports without and not with it, it reports as it does not follow that one lane.
"""

import sys
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from gemm_eval.device.runtime import import_cupy, limits_of_device
from gemm_eval.kernels import (
    PackedW4,
    Sizes,
    dequantize,
    interleave_gate_up,
    legal_configs,
    pack_w4,
    registry,
    stack_w4,
    w4a8_gemm,
    w4a16_experts,
    w4a16_gemm,
    w4a16_grouped_gemm,
)
from gemm_eval.kernels.families import families, fp8_families, grouped_families
from gemm_eval.mapping import Decomposition

_ROUNDING_ERROR = 0.04  # of tokens in e4m3


def main(*, is_followed: bool) -> None:
    """Run them, and say how far each is from float64."""
    if is_followed:
        registry.compile_text = partial(_compile_followed, registry.compile_text)  # type: ignore[attr-defined]
    sizes = Sizes(5, 2056, 328)  # nothing is a multiple of a tile, and K is cut where tiles are few
    random = np.random.default_rng(0)
    weights = random.standard_normal((sizes.K, sizes.N)).astype(np.float32)
    A = random.standard_normal((sizes.M, sizes.K)).astype(np.float16)
    for mode, group_size in (("group_zero", 32), ("mxfp4", 32), ("nvfp4", 16)):
        check_mode(A, pack_w4(weights, group_size, mode))
    check_mode(A, pack_w4(weights, 128), is_fp8=True)  # with corrections of sums
    packed = pack_w4(weights, 32, "group_zero")
    expected = A.astype(np.float64) @ dequantize(packed)
    check_act_order(import_cupy().asarray(A), packed, expected)
    check_groups(import_cupy().asarray(A), packed, expected)
    check_experts()


def check_mode(A: Any, packed: PackedW4, *, is_fp8: bool = False) -> None:
    """One kernel of each family and way to cut K; `is_fp8`: on tokens that are rounded to e4m3 before."""
    cupy = import_cupy()
    expected = A.astype(np.float64) @ dequantize(packed)
    on_device, a = packed.to_gpu(), cupy.asarray(A)
    sizes = Sizes(len(A), packed.K, packed.N)
    legal = list(legal_configs(sizes, limits_of_device(0), "fp16", packed.mode, packed.group_size, is_fp8=is_fp8))
    multiply, largest_error = (w4a8_gemm, _ROUNDING_ERROR) if is_fp8 else (w4a16_gemm, 1e-3)
    for family in fp8_families() if is_fp8 else families():
        for decomposition in Decomposition:
            configs = [c for c in legal if c.family == family and c.decomposition is decomposition]
            if not configs:
                continue
            config = configs[len(configs) // 2]
            found = cupy.asnumpy(multiply(a, on_device, config=config)).astype(np.float64)
            error = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
            print(f"{error:.1e}  {packed.mode.name.lower()}  {config}", flush=True)
            assert error < largest_error, config


def check_act_order(a: Any, packed: PackedW4, expected: Any) -> None:
    """The kernel that gathers the columns of A, before the model's choice."""
    cupy = import_cupy()
    order = np.random.default_rng(1).permutation(packed.K).astype(np.int32)
    shuffled = cupy.empty_like(a)
    shuffled[:, order] = a
    found = cupy.asnumpy(w4a16_gemm(shuffled, replace(packed, permutation=order).to_gpu())).astype(np.float64)
    error = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
    print(f"{error:.1e}  act-order", flush=True)
    assert error < 1e-3, "act-order"


def check_groups(a: Any, packed: PackedW4, expected: Any) -> None:
    """A kernel of each grouped family, with K cut or not: three groups of the same weights, one of them empty."""
    cupy = import_cupy()
    stacked, offsets = stack_w4([packed] * 3).to_gpu(), cupy.array([0, 2, 2, len(a)], cupy.int32)
    for family in grouped_families().values():
        configs = list(family.configs())
        for decomposition in (Decomposition.DATA_PARALLEL, Decomposition.STREAM_K):
            config = configs[len(configs) // 3]._replace(decomposition=decomposition)
            found = cupy.asnumpy(w4a16_grouped_gemm(a, stacked, offsets, config=config)).astype(np.float64)
            error = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
            print(f"{error:.1e}  {config}", flush=True)
            assert error < 1e-3, config


def check_experts() -> None:
    """A layer of experts by each grouped family that fuses, with K cut or not: tokens to two of three experts."""
    cupy, random = import_cupy(), np.random.default_rng(2)
    hidden, inner = 520, 264
    gate, up, down = (
        random.standard_normal(shape) / 20 for shape in ((hidden, inner), (hidden, inner), (inner, hidden))
    )
    x = random.standard_normal((9, hidden)).astype(np.float16)
    ids = np.array([[0, 2], [2, 1], [0, 1]] * 3, np.int32)
    packed = [pack_w4(w.astype(np.float32), 32) for w in (interleave_gate_up(gate, up), down)]
    gate_up = (x.astype(np.float64) @ dequantize(packed[0])).reshape(len(x), -1, 2, 8)
    gate, up = gate_up[:, :, 0].reshape(len(x), inner), gate_up[:, :, 1].reshape(len(x), inner)
    expected = (gate / (1 + np.exp(-gate)) * up) @ dequantize(packed[1])  # by weights of a half each
    arrays = [cupy.asarray(array) for array in (x, ids, np.full(ids.shape, 0.5, np.float32))]
    stacked = [stack_w4([one] * 3).to_gpu() for one in packed]
    for name in ("w4a16_gemv_mma_grouped", "w4a16_sm90_grouped"):
        configs = list(grouped_families()[name].configs())
        for decomposition in (Decomposition.DATA_PARALLEL, Decomposition.STREAM_K):
            config = configs[len(configs) // 3]._replace(decomposition=decomposition)
            found = cupy.asnumpy(w4a16_experts(*arrays, *stacked, configs=(config, config))).astype(np.float64)
            error = float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
            print(f"{error:.1e}  experts  {config}", flush=True)
            assert error < 3e-3, config


def _compile_followed(compile_text: Any, text: str, entry: str, target: str, macros: dict[str, int]) -> Any:
    return compile_text(text, entry, target, macros | {"RACECHECK": 1})


if __name__ == "__main__":
    main(is_followed="followed" in sys.argv[1:])
