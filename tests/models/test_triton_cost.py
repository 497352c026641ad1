"""The cost of Triton kernels by hand, their coefficients, and the estimate of code against that of timed kernels."""

import math

import numpy as np
import pytest

from gemm_eval import DType, GemmProblem, UnsupportedError, load_arch
from gemm_eval.arch import GpuSpec
from gemm_eval.models.gpu.correction import physics_digest
from gemm_eval.models.gpu.learned import learned_path, load_learned
from gemm_eval.models.gpu.triton import (
    TRITON,
    TRITON_VERSION,
    KernelCode,
    MainLoop,
    MmaCount,
    TritonConfig,
    estimate_code,
    pack_launches,
    triton_calibration_path,
    triton_coefficients,
    triton_costs,
    triton_times,
)
from gemm_eval.models.gpu.triton.model import TRITON_COEFFICIENTS, tensor_cycles
from gemm_eval.validation.subjects.triton import read_codes
from gemm_eval.validation.tables import measured_root

H200, A100, L40S = (load_arch(name, GpuSpec) for name in ("h200-sxm", "a100-sxm-80gb", "l40s"))
PROBLEM = GemmProblem(1, 512, 4096, 4096)
CONFIG = TritonConfig(128, 128, 64, 8, 3)
LOOP = MainLoop(
    k=64, mma=(MmaCount(64, 128, 16, 16, False, 4),), issue=104, alu=20, fma=28, convert=0, shared=0, copy=8, store=0,
    barrier=2, wait=5, branch=1, spill=0, shared_wavefronts=0, mma_wait=0,
)  # fmt: skip
CODE = KernelCode(8, 108, 98304, 0, 503, LOOP, True)
# tensor cores


def test_what_the_tensor_cores_do_not_take_never_ends() -> None:
    assert tensor_cycles(H200, [MmaCount(16, 8, 64, 4, True, 1)], 4) == (math.inf, math.inf)


# what runs at once


@pytest.mark.parametrize("code", [CODE._replace(smem_bytes=232_449), CODE._replace(registers=256)])
def test_a_kernel_that_no_sm_can_hold_takes_forever(code: KernelCode) -> None:
    assert list(triton_times(H200, PROBLEM, [CONFIG, CONFIG], [code, CODE]).latency_us == math.inf) == [True, False]


def test_scales_and_zeros_are_read_with_their_weights() -> None:
    problem = GemmProblem(1, 64, 4096, 4096, weight_dtype=DType.INT4, group_size=128, zero_dtype=DType.INT4)
    assert pack_launches(H200, problem, [CONFIG], [CODE]).b_elem_bytes[0] == (4 + (16 + 4) / 128) / 8
    column = GemmProblem(1, 64, 4096, 4096, weight_dtype=DType.INT4)
    assert pack_launches(H200, column, [CONFIG], [CODE]).b_elem_bytes[0] == (4 + 16 / 4096) / 8


# coefficients


def test_the_package_has_coefficients_for_every_gpu() -> None:
    for arch in (H200, A100, L40S):
        values, origin = triton_coefficients(arch)
        assert values.keys() == {item.name for item in TRITON_COEFFICIENTS}
        assert origin.is_calibrated == triton_calibration_path(arch.name).is_file()
    assert triton_calibration_path("l40s").parts[-3:] == ("calibration", "l40s", "triton.yaml")


def test_types_that_are_not_in_the_model_are_refused() -> None:
    for types in (
        {"input_dtype": "fp8", "group_size": 128}, {"input_dtype": "fp4"}, {"weight_dtype": "fp4", "group_size": 32},
        {"weight_dtype": "int4", "group_size": 128, "group_n": 128},
    ):  # fmt: skip
        problem = GemmProblem(1, 16, 256, 256, **types)  # type: ignore[arg-type]
        for call in (
            lambda of=problem: triton_times(H200, of, [CONFIG], [CODE]),
            lambda of=problem: estimate_code(H200, of, CONFIG),
        ):
            with pytest.raises(UnsupportedError, match="block-scaled types and fp4 are not in the Triton model"):
                call()


def test_gpus_that_triton_s_kernels_here_do_not_know_are_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"b200.*accumulate in tensor memory are not in the Triton model"):
        triton_times(load_arch("b200", GpuSpec), PROBLEM, [CONFIG], [CODE])
    with pytest.raises(UnsupportedError, match="v100: Triton does not compile for GPUs before sm_80"):
        triton_times(load_arch("v100", GpuSpec), PROBLEM, [CONFIG], [CODE])


# the estimate of code


FP8 = GemmProblem(1, 512, 4096, 4096, input_dtype=DType.FP8, output_dtype=DType.FP16)


def test_dense_wgmma_reads_no_operands_with_warps() -> None:
    assert estimate_code(H200, PROBLEM, CONFIG).loop.shared_wavefronts == 0
    assert estimate_code(A100, PROBLEM, CONFIG).loop.shared_wavefronts == 96  # (64 + 32) x 64 fp16 of 128 bytes


CODES = read_codes(measured_root("h200-sxm") / "triton" / "codes.csv")
"""Machine code of the kernels of 792 timings, as Triton and ptxas made it."""


@pytest.mark.parametrize("data_set", sorted({key.data_set for key in CODES}))
def test_the_estimate_is_near_the_code_of_kernels_that_were_timed(data_set: str) -> None:
    """Tensor work, barriers and shared memory of dense kernels are exact; weight-only kernels have more ways."""
    is_dense = not data_set.startswith("w4a16")
    dtype = next(name for name in ("bf16", "fp16", "fp8") if name in data_set)
    types = {} if is_dense else {"weight_dtype": DType.INT4, "group_size": 64 if data_set.endswith("g64") else 128}
    problem = GemmProblem(1, 512, 4096, 4096, DType(dtype), **types)
    ratios, same = [], []
    for key, code in CODES.items():
        if key.data_set == data_set and code.loop is not None:
            tile = TritonConfig(key.block_m, key.block_n, key.block_k, key.num_warps, key.num_stages)
            found, steps = estimate_code(H200, problem, tile), code.loop.k / key.block_k
            assert (found.is_compiled, found.num_warps, found.loop.k) == (False, code.num_warps, key.block_k)
            ratios.append((found.loop.issue * steps / code.loop.issue, found.registers / code.registers))
            mma = tuple(one._replace(num=one.num * steps) for one in found.loop.mma)
            counts = [getattr(found.loop, name) * steps for name in ("barrier", "mma_wait", "shared_wavefronts")]
            real = [code.loop.barrier, code.loop.mma_wait, code.loop.shared_wavefronts]
            is_like = [one == pytest.approx(other, rel=0.3) for one, other in zip(counts, real, strict=True)]
            is_small = abs(found.smem_bytes - code.smem_bytes) < 0.02 * code.smem_bytes
            same.append((mma == code.loop.mma, is_small, *is_like))
    issue, registers = np.quantile(np.abs(np.log(ratios)), 0.9, axis=0)

    assert len(same) > 80
    assert issue < math.log(1.25 if is_dense else 1.8)
    assert registers < math.log(1.5)
    assert (np.mean(same, axis=0) >= ([1.0, 0.95, 1.0, 0.97, 1.0] if is_dense else [0.9, 0.8, 0.6, 1.0, 0.7])).all()


@pytest.mark.parametrize("group", ["f16", "fp8", "f16-int4", "f16-estimated", "fp8-estimated", "f16-int4-estimated"])
def test_committed_corrections_are_better_than_the_terms(group: str) -> None:
    learned, _ = load_learned(learned_path("h200-sxm", TRITON, group))
    assert learned.is_on
    assert learned.physics == physics_digest(triton_coefficients(H200)[0], TRITON_VERSION)
    assert all(item.corrected_mape_percent < 0.6 * item.physics_mape_percent for item in learned.data)


def test_corrections_are_of_the_gpu_that_was_timed_and_of_its_like() -> None:
    configs = [CONFIG, CONFIG._replace(block_m=64, num_warps=4)]
    codes = [CODE, estimate_code(H200, PROBLEM, configs[1])]
    times = triton_times(H200, PROBLEM, configs, codes)
    assert (times.physics_us == triton_costs(H200, PROBLEM, configs, codes).latency_us).all()
    assert (times.latency_us != times.physics_us).all()
    assert (times.low_us < times.latency_us).all()
    assert (times.latency_us < times.high_us).all()
    other = triton_times(A100, PROBLEM, configs, [estimate_code(A100, PROBLEM, config) for config in configs])
    assert not other.origin.is_calibrated
    assert (other.latency_us == other.physics_us).all()
    assert (other.low_us < other.latency_us).all()
