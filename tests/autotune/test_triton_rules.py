"""Rules reject Triton configs before they are compiled, for a reason with numbers; compiled kernels bear them out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_eval import GemmProblem, load_arch
from gemm_eval.arch import GpuSpec
from gemm_eval.autotune.triton import TensorArgument, is_small, reject_configs
from gemm_eval.autotune.triton.arguments import SMALL_SHARE, reject_alone, shared_bytes_bounds, work_us
from gemm_eval.models.gpu.triton import TritonConfig
from tests.autotune.fake_triton import FakeConfig

H200 = load_arch("h200-sxm")
A100 = load_arch("a100-sxm-80gb")
assert isinstance(H200, GpuSpec)
assert isinstance(A100, GpuSpec)
FP16 = GemmProblem(1, 4096, 4096, 4096)
FP8 = GemmProblem(1, 4096, 4096, 4096, input_dtype="fp8", output_dtype="bf16")
W4A16 = GemmProblem(1, 4096, 4096, 4096, weight_dtype="int4", group_size=128)
GOOD = TritonConfig(128, 128, 64, 8, 3)


def reject(config: TritonConfig, problem: GemmProblem = FP16, arch: GpuSpec = H200) -> Any:
    return reject_configs(arch, problem, [config])[0]


@pytest.mark.parametrize("problem", [FP16, FP8, W4A16])
def test_a_sound_config_stands(problem: GemmProblem) -> None:
    assert reject(GOOD, problem) is None


@pytest.mark.parametrize(
    ("changes", "rule", "numbers", "can_run"),
    [
        ({"block_m": 96}, "blocks", "block M 96", False),
        ({"block_k": 8}, "k_step", "block K 8 is no multiple of 16", False),
        ({"num_warps": 3}, "launch", "3 warps", False),
        ({"num_warps": 64}, "launch", "64 warps.* at most 32", False),
        ({"num_stages": 0}, "launch", "0 stages", False),
        ({"num_ctas": 32}, "launch", "32 CTAs.*at most 8", False),
        ({"split_k": 0}, "launch", "split-K 0", False),
        ({"block_m": 16, "block_n": 32}, "mma_shape", "512 elements of C for 8 warps.* 1024", True),
        ({"block_m": 256, "block_n": 256}, "registers", "256 accumulators .* are 282 registers, there are 255", True),
        ({"num_warps": 4, "maxnreg": 152}, "registers", "are 154 registers, there are 152", True),
        ({"block_m": 256, "block_n": 256, "num_warps": 16}, "registers", "there are 128", True),
        ({"block_k": 256}, "shared_memory", "at least 262,144 bytes .* in 3 stages, a CTA has 232,448", False),
        ({"split_k": 65}, "split_k", "split-K 65 of 64 steps", True),
    ],
)
def test_each_rule_says_demand_and_limit(changes: dict[str, int], rule: str, numbers: str, can_run: bool) -> None:
    found = reject(GOOD._replace(**changes))

    assert (found.rule, found.can_run) == (rule, can_run)
    assert re.search(numbers, found.reason), found.reason
    assert "\n" not in found.reason


def test_limits_are_not_crossed_by_one() -> None:
    assert reject(GOOD._replace(num_warps=4, maxnreg=154)) is None
    assert reject(GOOD._replace(split_k=64)) is None
    assert reject(GOOD._replace(block_m=16, block_n=64)) is None
    assert reject(GOOD._replace(block_k=128, num_stages=4)) is None  # 3 x 64 KiB of 227 KiB


def test_eight_bit_types_need_k_of_32() -> None:
    assert reject(GOOD._replace(block_k=16)) is None
    assert reject(GOOD._replace(block_k=16), FP8).rule == "k_step"
    assert reject(GOOD._replace(block_k=16), W4A16) is None


def test_shared_memory_is_that_of_the_gpu() -> None:
    config = GOOD._replace(block_k=128, num_stages=4)  # 196,608 bytes at least

    assert reject(config, arch=H200) is None
    assert reject(config, arch=A100).rule == "shared_memory"
    assert reject(config, FP8, load_arch("l40s")) is None  # type: ignore[arg-type]
    assert reject(config, W4A16, A100) is None  # only A is sure to be there


def test_accumulators_in_tensor_memory_take_no_registers() -> None:
    b200 = load_arch("b200")
    assert isinstance(b200, GpuSpec)

    assert reject(TritonConfig(128, 256, 64, 4, 3), arch=b200) is None
    assert reject(TritonConfig(128, 256, 64, 4, 3), arch=H200).rule == "registers"


def test_a_tile_far_beyond_the_problem_falls_if_a_smaller_one_stands() -> None:
    problem = GemmProblem(1, 20, 4096, 4096)
    large, medium, small = (TritonConfig(size, 64, 64, 4, 3) for size in (128, 64, 32))

    found = reject_configs(A100, problem, [large, medium, small])
    assert [no and no.rule for no in found] == ["oversized", "oversized", None]
    assert "block M 128 for M = 20: 32 does" in found[0].reason  # type: ignore[union-attr]
    assert reject_configs(A100, problem, [large, medium]) == (None, None)
    # 64 rows are one wgmma: not known to be waste
    assert [no and no.rule for no in reject_configs(H200, problem, [large, medium, small])] == ["oversized", None, None]


def test_a_witness_that_falls_itself_counts_for_nothing() -> None:
    problem = GemmProblem(1, 16, 4096, 4096)
    broken = TritonConfig(16, 64, 8, 4, 3)

    assert reject_configs(A100, problem, [TritonConfig(128, 64, 64, 4, 3), broken])[0] is None


def test_stages_beyond_the_steps_are_for_the_model_to_judge() -> None:
    """The code of another depth is another one, and may be the faster."""
    problem = GemmProblem(1, 4096, 192, 4096)  # 3 steps
    configs = [GOOD._replace(num_stages=stages) for stages in (5, 3)]

    assert reject_configs(H200, problem, configs) == (None, None)


CONFIGS = st.builds(
    TritonConfig, *(st.sampled_from([8, 16, 32, 48, 64, 128, 256]),) * 3, st.sampled_from([1, 2, 4, 8, 16, 32]),
    st.integers(0, 7), split_k=st.integers(1, 16),
)  # fmt: skip
PROBLEMS = st.builds(
    GemmProblem, st.just(1), *(st.integers(1, 10_000),) * 3,
    input_dtype=st.sampled_from(["fp16", "bf16", "fp8", "int8"]),
)  # fmt: skip


@given(PROBLEMS, st.lists(CONFIGS, min_size=1, max_size=12))
def test_comparing_never_rejects_all(problem: GemmProblem, configs: list[TritonConfig]) -> None:
    alone = [reject_alone(H200, problem, config) is not None for config in configs]
    found = reject_configs(H200, problem, configs)

    assert all(no is not None for no, broken in zip(found, alone, strict=True) if broken)
    assert any(no is None for no in found) == (not all(alone))


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (GemmProblem(1, 16, 128, 128), True),
        (GemmProblem(1, 256, 256, 256), False),
        (GemmProblem(1, 1, 128, 512), True),
        (GemmProblem(1, 16, 4096, 64), False),  # a long way along K
        (GemmProblem(1, 16, 128, 65536), False),  # 16 MiB of weights
        (GemmProblem(64, 128, 128, 128), False),
        (GemmProblem(1, 16, 128, 128, weight_dtype="int4", group_size=128), True),
        (GemmProblem(1, 16, 256, 256, weight_dtype="int4", group_size=128), False),
        (GemmProblem(1, 1, 2048, 1024, weight_dtype="int4", group_size=128), False),  # unpacking 1 MiB takes its time
        (GemmProblem(1, 4096, 4096, 4096), False),
    ],
)
def test_small_is_what_a_launch_costs(problem: GemmProblem, expected: bool) -> None:
    assert is_small(problem, H200) is expected
    assert (work_us(problem, H200) <= SMALL_SHARE * H200.graph_node_us) is expected


def test_types_that_the_gpu_lacks_are_never_small() -> None:
    assert not is_small(GemmProblem(1, 16, 64, 64, input_dtype="fp8", output_dtype="bf16"), A100)


@pytest.mark.parametrize(
    ("arch", "dtype", "size", "stages"),
    [
        ("a100-sxm-80gb", "fp16", 64, 3), ("a100-sxm-80gb", "bf16", 64, 1), ("h200-sxm", "fp16", 64, 3),
        ("h200-sxm", "bf16", 32, 4), ("h200-sxm", "fp8", 128, 3),
    ],
)  # fmt: skip
def test_shared_memory_of_compiled_kernels_lies_within_the_bounds(
    arch: str,
    dtype: str,
    size: int,
    stages: int,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("triton")
    from gemm_eval.autotune.triton import compile_offline
    from tests.autotune.triton_kernels import matmul

    spec = load_arch(arch)
    assert isinstance(spec, GpuSpec)
    cache = Path(tmp_path_factory.getbasetemp()) / "triton"
    monkeypatch.setenv("TRITON_CACHE_DIR", str(cache))
    config = FakeConfig({"BLOCK_M": size, "BLOCK_N": 64, "BLOCK_K": 32, "GROUP_M": 1, "SPLIT_K": 1}, 4, stages)
    call = {**dict.fromkeys(("a_ptr", "b_ptr", "c_ptr"), TensorArgument(dtype))} | dict.fromkeys(
        ("M", "N", "K", "stride_am", "stride_bn", "stride_cm"), 1024
    )

    real = compile_offline(matmul, config, {**call, "c_ptr": TensorArgument("fp16")}, arch=spec).smem_bytes
    problem = GemmProblem(1, 1024, 1024, 1024, input_dtype=dtype, output_dtype="fp16")
    least, most = shared_bytes_bounds(problem, TritonConfig(size, 64, 32, 4, stages))

    assert least <= real <= most
