"""Grouped W4A16 GEMMs without a GPU: stacked weights, what the call checks and launches, and how tiles are shared."""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from gemm_eval import DType, kernels, load_arch
from gemm_eval.arch import GpuSpec, limits_of_spec
from gemm_eval.device import CompiledKernel
from gemm_eval.errors import GemmEvalError, InvalidMappingError, InvalidProblemError
from gemm_eval.kernels.families import GroupedSizes, Sizes, ceil_div, grouped_families
from gemm_eval.kernels.families.grouped import MAX_CUT_WAVES, MAX_GROUPS
from gemm_eval.kernels.plan import choose_grouped, expected_groups, rank_grouped
from gemm_eval.mapping import Decomposition, KernelConfig
from gemm_eval.models.gpu.w4a16 import shared_kernels
from tests.kernels.test_w4a16_gemm import Array, Gpu, K, N, gpu, on_gpu  # noqa: F401  the fixture

GROUPS = 4
CPU = kernels.pack_w4(np.ones((K, N), np.float32))
ARCH = load_arch("h200-sxm")
assert isinstance(ARCH, GpuSpec)
HOPPER = limits_of_spec(ARCH)
SHARING_SOURCES = "".join((kernels.SOURCES / name).read_text("utf-8") for name in ("groups.cuh", "shares.cuh"))


def configs_of(family: str) -> list[KernelConfig]:
    return list(grouped_families()[family].configs())


@pytest.fixture
def packed(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> Iterator[kernels.GroupedW4]:  # noqa: F811
    """Weights of four groups on a GPU that is played."""
    compiled = CompiledKernel(b"", "k", "sm_90a", 128, 0, 0, 0, 0, ())
    monkeypatch.setattr(kernels.plan, "compile_fitting", lambda variant, limits: (compiled, 1))
    monkeypatch.setattr(kernels.plan, "encode_tensor_map", lambda *facts: facts)
    monkeypatch.setattr(kernels.plan, "spec_of_device", lambda device: ARCH)
    monkeypatch.setattr(kernels.gemm, "_even_offsets", {})
    gpu.cupy.asarray = lambda array: Array(array.shape, array.dtype.str)
    kernels.plan.plan_on_device.cache_clear()
    arrays = (Array((GROUPS, *CPU.qweight.shape), "uint32"), Array((GROUPS, *CPU.scales.shape)))
    yield kernels.GroupedW4(*arrays, N, K, CPU.mode, CPU.group_size, CPU.activation, Array((GROUPS,), "float32"))
    kernels.plan.plan_on_device.cache_clear()


def offsets(num: int = GROUPS, **more: Any) -> Array:
    return Array((num + 1,), "int32", **more)


# ---- weights


def test_stacked_weights_are_those_of_each_group() -> None:
    random = np.random.default_rng(0)
    parts = [kernels.pack_w4(random.standard_normal((200, 72)).astype(np.float32) * scale) for scale in (1, 1e-3, 30)]
    stacked = kernels.stack_w4(parts)

    assert (len(stacked), stacked.num_groups, stacked.N, stacked.K) == (3, 3, 72, 200)
    assert stacked.nbytes == sum(part.nbytes for part in parts) + 12
    assert len({part.scale_unit for part in parts}) == 3
    for part, again in zip(parts, stacked, strict=True):
        np.testing.assert_array_equal(kernels.dequantize(again), kernels.dequantize(part))
    assert repr(stacked) == "<GroupedW4 3 groups, K=200 N=72 fp16 group 128, numpy>"
    assert stacked.blocks_and_groups == (2, 4, 2)


def test_a_group_with_wide_scales_brings_the_others_to_its_mode() -> None:
    random = np.random.default_rng(1)
    plain = random.standard_normal((256, 64)).astype(np.float32)
    wide = plain * np.logspace(0, -4, 64, dtype=np.float32)
    parts = [kernels.pack_w4(plain), kernels.pack_w4(wide)]
    stacked = kernels.stack_w4(parts)

    assert [part.mode for part in parts] == [kernels.WeightMode.GROUP, kernels.WeightMode.GROUP_ZERO]
    assert stacked.mode is kernels.WeightMode.GROUP_ZERO
    for part, again in zip(parts, stacked, strict=True):
        np.testing.assert_array_equal(kernels.dequantize(again), kernels.dequantize(part))


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "one PackedW4 at least"),
        ([CPU, kernels.pack_w4(np.ones((K, N + 8), np.float32))], "alike in N, got"),
        ([CPU, kernels.pack_w4(np.ones((K, N), np.float32), 64)], "alike in group_size"),
        ([CPU, kernels.pack_w4(np.ones((K, N), np.float32), activation="bf16")], "alike in activation"),
        ([dataclasses.replace(CPU, permutation=np.arange(K, dtype=np.int32))], "in order"),
        ([CPU, 3], "packed must be a PackedW4"),
    ],
)
def test_weights_that_do_not_go_together_are_refused(parts: list[Any], message: str) -> None:
    with pytest.raises(InvalidProblemError, match=message):
        kernels.stack_w4(parts)


def test_arrays_that_are_not_stacked_are_refused() -> None:
    whole = kernels.stack_w4([CPU, CPU])
    with pytest.raises(InvalidProblemError, match="scales"):
        dataclasses.replace(whole, scales=whole.scales[:1])
    with pytest.raises(InvalidProblemError, match="scale_units"):
        dataclasses.replace(whole, scale_units=whole.scale_units[:1])


# ---- the call


def test_one_launch_for_all_groups(gpu: Gpu, packed: kernels.GroupedW4) -> None:  # noqa: F811
    A, first_rows, bias = Array((50, K)), offsets(), Array((GROUPS, N))
    out = kernels.w4a16_grouped_gemm(A, packed, first_rows, bias)
    ((device, grid, _, arguments, smem_bytes, stream),) = gpu.launches

    assert (out.shape, device, stream.ptr) == ((50, N), 0, 77)
    assert grid[0] % HOPPER.num_sms == 0
    assert 0 < smem_bytes <= HOPPER.smem_per_cta_bytes
    numbers = {int(argument) for argument in arguments if not isinstance(argument, tuple)}
    addresses = {array.data.ptr for array in (out, first_rows, bias, packed.qweight, packed.scales, packed.scale_units)}
    assert addresses | {GROUPS, N} <= numbers
    assert gpu.cleared[0][1] >= 4  # counters of the stream, once


def test_a_batch_has_its_offsets_made_once(gpu: Gpu, packed: kernels.GroupedW4) -> None:  # noqa: F811
    A = Array((GROUPS, 3, K))
    for _ in range(2):
        assert kernels.w4a16_grouped_gemm(A, packed).shape == (GROUPS, 3, N)
    assert len(gpu.launches) == 2
    assert len(kernels.gemm._even_offsets) == 1
    assert gpu.launches[0][3][-4] == gpu.launches[1][3][-4]


def test_without_rows_nothing_is_launched(gpu: Gpu, packed: kernels.GroupedW4) -> None:  # noqa: F811
    assert kernels.w4a16_grouped_gemm(Array((0, K)), packed, offsets()).shape == (0, N)
    assert gpu.launches == []


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"offsets": None}, rf"A must be \[{GROUPS}, M, {K}\] where offsets are not given, got \[4, {K}\]"),
    ({"A": Array((3, 4, K)), "offsets": None}, "A must be"),
    ({"offsets": offsets(3)}, rf"offsets must be int32 \[{GROUPS + 1}\]"),
    ({"offsets": Array((GROUPS + 1,), "int64")}, "offsets must be int32 .* got int64"),
    ({"offsets": Array((GROUPS + 1,), "int32", strides=(2,))}, "offsets must be contiguous"),
    ({"offsets": np.zeros(GROUPS + 1, np.int32)}, "offsets must be an array on a GPU"),
    ({"offsets": offsets(device=1)}, "offsets must be on GPU 0"),
    ({"A": Array((4, K), "uint16")}, "A must be float16"),
    ({"A": Array((4, K - 8))}, "A must have shape"),
    ({"bias": Array((N,))}, rf"bias must be contiguous \[{GROUPS}, {N}\]"),
    ({"bias": Array((GROUPS, N), strides=(N + 8, 1))}, "bias must be contiguous"),
    ({"bias": Array((GROUPS, N), "float32")}, "bias must be float16"),
    ({"bias": Array((GROUPS, N), at=2)}, "bias must start at a multiple of 16"),
    ({"packed": CPU}, "packed must be a GroupedW4, as stack_w4 makes it"),
    ({"packed": kernels.stack_w4([CPU] * GROUPS)}, "packed must be on a GPU"),
    ({"config": "profile"}, "config must be a KernelConfig or 'auto'"),
    ({"config": next(kernels.legal_configs(Sizes(4, K, N), HOPPER))}, "has kernels of one GEMM, which w4a16_gemm runs"),
    ({"expected_rows": 5}, r"expected_rows must be an integer in 1\.\.4"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_bad_arguments(gpu: Gpu, packed: kernels.GroupedW4, changes: dict[str, Any], message: str) -> None:  # noqa: F811
    with pytest.raises(GemmEvalError, match=message):
        kernels.w4a16_grouped_gemm(**{"A": Array((4, K)), "packed": packed, "offsets": offsets()} | changes)
    assert gpu.launches == []


def test_an_output_that_shares_memory_is_refused(packed: kernels.GroupedW4) -> None:
    A = Array((4, K))
    out = Array((4, N))
    out.data.ptr = A.data.ptr
    with pytest.raises(InvalidProblemError, match="out must not share memory"):
        kernels.w4a16_grouped_gemm(A, packed, offsets(), out=out)


def test_what_else_is_refused(packed: kernels.GroupedW4) -> None:
    with pytest.raises(InvalidProblemError, match=f"at most {MAX_GROUPS:,} groups, got 1,025"):
        kernels.workspace_bytes(4, kernels.stack_w4([kernels.pack_w4(np.ones((8, 8), np.float32))] * (MAX_GROUPS + 1)))
    grouped = configs_of("w4a16_sm90_grouped")[0]
    with pytest.raises(InvalidMappingError, match="grouped GEMMs, which w4a16_grouped_gemm runs"):
        kernels.w4a16_gemm(Array((4, K)), on_gpu(CPU), config=grouped)


# ---- the choice


@pytest.mark.parametrize(("rows", "num_groups"), [(1, 8), (8, 128), (56, 8), (4096, 32), (1, 1), (7, 1024)])
def test_rows_fall_on_groups_at_random(rows: int, num_groups: int) -> None:
    found = expected_groups(rows, num_groups)
    random = np.random.default_rng(0).binomial(rows, 1 / num_groups, 20_000)

    assert len(found) == num_groups
    assert list(found) == sorted(found, reverse=True)
    assert sum(count == 0 for count in found) / num_groups == pytest.approx((random == 0).mean(), abs=1 / num_groups)
    assert sum(found) / num_groups == pytest.approx(rows / num_groups, rel=0.1, abs=1 / num_groups)


@pytest.mark.parametrize(
    ("rows", "num_groups", "deviation"), [(128, 8, 1.0), (960, 60, 1.0), (1 << 11, 128, 0.6), (1 << 14, 1024, 0.6)]
)
def test_some_rows_fall_on_groups_unevenly_on_many_less_so(rows: int, num_groups: int, deviation: float) -> None:
    found = np.array(expected_groups(rows, num_groups))

    assert found.sum() == rows
    assert (np.diff(found) <= 1).all()  # the most first, to rounding
    assert found.std() / found.mean() == pytest.approx(deviation, abs=0.2)  # a binomial's: 0.25 and less


def test_more_rows_take_larger_tiles_and_every_gpu_has_kernels() -> None:
    types = DType.FP16, kernels.WeightMode.GROUP, 128
    tokens, families = [], []
    for rows in (8, 512, 8192):
        sizes = GroupedSizes(rows, 4096, 14336, 8)
        config = choose_grouped(sizes, *types, rows, False, ARCH, HOPPER)
        families.append(config.family)
        assert config.decomposition is Decomposition.STREAM_K  # where it pays, as the GPU finds
        tokens.append(config.cta_m)
    assert families == ["w4a16_gemv_mma_grouped", "w4a16_sm90_grouped", "w4a16_sm90_grouped"]
    assert tokens == sorted(tokens)
    assert tokens[0] < 32 < tokens[1] < 96 <= tokens[2]
    for name in ("a100-sxm-80gb", "rtx-4090", "b200"):
        spec = load_arch(name)
        assert isinstance(spec, GpuSpec)
        (first,) = rank_grouped((500, 300, 0), 4096, 4096, *types, spec, 1)
        assert first.family == "w4a16_sm80_grouped"
        few = {config.family for config in rank_grouped((5, 3, 0), 4096, 4096, *types, spec)}
        assert few == {"w4a16_gemv_mma_grouped", "w4a16_sm80_grouped"}


def test_a_single_group_with_rows_is_asked_as_two_of_half_its_columns() -> None:
    (first,) = rank_grouped((5, 0, 0, 0), 4096, 4096, DType.FP16, kernels.WeightMode.GROUP, 128, ARCH, 1)
    assert first.family == "w4a16_gemv_mma_grouped"
    assert (
        kernels.choose(Sizes(5, 4096, 4096), DType.FP16, kernels.WeightMode.GROUP, 128, ARCH, HOPPER).family
        != first.family
    )


def test_where_one_row_is_expected_a_launch_has_two_if_there_is_room() -> None:
    types = DType.FP16, kernels.WeightMode.GROUP, 128
    one, two = (
        choose_grouped(GroupedSizes(rows, 7168, 4096, 32), *types, rows, False, ARCH, HOPPER) for rows in (1, 2)
    )
    assert choose_grouped(GroupedSizes(4, 7168, 4096, 32), *types, 1, False, ARCH, HOPPER) == two != one


# ---- families


@pytest.mark.parametrize("family", list(grouped_families()))
def test_room_for_any_groups(family: str) -> None:
    of = grouped_families()[family]
    for config in of.configs():
        variant = kernels.make_variant(config._replace(decomposition=Decomposition.STREAM_K), "fp16", "group", 128)
        launch = of.launch_groups(variant, GroupedSizes(1000, 4096, 1536, 64), 132, 1)
        tile_bytes = 4 * config.cta_m * config.cta_n
        tiles_n, most_tiles_m = ceil_div(1536, config.cta_n), 1000 // config.cta_m + 64
        cut_tiles = max(1, min(most_tiles_m, MAX_CUT_WAVES * launch.grid[0] // tiles_n)) * tiles_n
        if family == "w4a16_sm90_grouped":  # of the last waves, however many there are
            cut_tiles = min(most_tiles_m * tiles_n, MAX_CUT_WAVES * launch.grid[0])
        assert launch.workspace_bytes == launch.grid[0] * tile_bytes * of.slots_of_cta
        assert launch.num_counters == cut_tiles * of.counters_of_tile(config)
        whole = of.launch_groups(variant._replace(config=config), GroupedSizes(1000, 4096, 1536, 64), 132, 1)
        assert (whole.workspace_bytes, whole.num_counters) == (0, 0)
        assert whole.grid == launch.grid


def test_the_model_cuts_as_the_kernels_do() -> None:
    def number(name: str) -> int:
        found = re.search(rf"#define {name} (\d+)", SHARING_SOURCES)
        assert found is not None
        return int(found[1])

    assert (number("CUT_UNITS"), number("MOST_PARTS")) == (shared_kernels.CUT_UNITS, shared_kernels.MOST_PARTS)
    assert (number("CUT_WAITS"), MAX_CUT_WAVES) == (shared_kernels.CUT_WAITS, shared_kernels.MAX_CUT_WAVES)
