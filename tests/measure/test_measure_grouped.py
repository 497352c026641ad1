"""Grouped GEMMs: which are measured, how they are kept, and what a kernel's name tells; without a GPU."""

from __future__ import annotations

import pytest

from gemm_eval.errors import InvalidOptionError
from gemm_eval.measure import (
    GemmShape,
    GroupedShape,
    TimingProtocol,
    estimate_seconds,
    list_grouped_shapes,
    list_shapes,
    measure_shape,
)
from gemm_eval.measure.data_set import cutlass_tile
from gemm_eval.measure.runner import place_copies
from gemm_eval.measure.shapes import rough_latency_us, rows_of
from gemm_eval.workload import MAX_GROUPS, GemmProblem
from tests.measure.fake_runner import FakeRunner

pytest.importorskip("pyarrow")
ALL = list_grouped_shapes("grouped")
SHAPE = GroupedShape(4, 30, 512, 256, (30, 0, 1, 0), "some", 2, 16, 4, 2, 1, 1, "uniform", 7)
NAME = (
    "void cutlass::device_kernel<at::cuda::detail::enable<cutlass::gemm::kernel::GemmUniversal<"
    "cutlass::gemm::GroupProblemShape<cute::tuple<int, int, int> >, cutlass::gemm::collective::CollectiveMma<"
    "cutlass::gemm::MainloopSm90ArrayTmaGmmaWarpSpecialized<4, cute::tuple<cute::C<2>, cute::C<1>, cute::C<1> >, "
    "cutlass::gemm::KernelPtrArrayTmaWarpSpecializedPingpong>, cute::tuple<cute::C<64>, cute::C<128>, cute::C<128> >, "
    "cutlass::bfloat16_t, ...>>>>(Params)"
)
# as nvcc writes it, which no demangler takes; of the second the middle is left out
MANGLED = (
    "_ZN7cutlass13device_kernelIN2at4cuda6detail25enable_3x_kernel_for_sm9xINS_4gemm6kernel13GemmUniversalINS5_"
    "17GroupProblemShapeIN4cute5tupleIJiiiEEEEENS5_10collective13CollectiveMmaINS5_39MainloopSm90ArrayTmaGmmaWarp"
    "SpecializedILi4ENSA_IJNS9_1CILi2EEENSG_ILi1EEESI_EEENS5_40KernelPtrArrayTmaWarpSpecializedPingpongEEENSA_IJNSG_"
    "ILi64EEENSG_ILi128EEESN_EEENS_10bfloat16_tEPNSA_IJlSI_NSG_ILi0EEEEEESP_SS_NS9_8TiledMMAINS9_8MMA_AtomIJ"
)
MANGLED_LARGE = (
    "MainloopSm90ArrayTmaGmmaWarpSpecializedILi4ENSA_IJNS9_1CILi2EEENSG_ILi1EEESI_EEENS5_43KernelPtrArrayTmaWarp"
    "SpecializedCooperativeEEENSA_IJNSG_ILi128EEENSG_ILi256EEENSG_ILi64EEEEEENS_10bfloat16_tEPNSA_IJlSI_NSG_ILi0EEEEEE"
    "SQ_ST_NS9_8TiledMMAI"
)


def test_the_set_is_large_and_varied():
    layers = [shape for shape in ALL if shape.model != "none"]

    assert len(layers) >= 900
    assert len({shape.model for shape in layers}) >= 12
    assert {shape.gemm for shape in layers} == {1, 2}
    assert {shape.num_tokens for shape in layers} >= {8, 128, 2048, 16384}
    assert {"balanced", "power_law_1.01", "power_law_1.2", "uniform", "sparse"} <= {s.distribution for s in layers}
    assert estimate_seconds(ALL, TimingProtocol()) < 200


def test_what_is_listed_is_distinct_and_can_be():
    assert len(set(ALL)) == len(ALL)
    for shape in ALL:
        assert (len(shape.row_groups), max(shape.row_groups)) == (shape.G, shape.M)
        assert shape.G <= MAX_GROUPS
        assert shape.K % 8 == shape.N % 8 == 0  # rows start on 16 bytes
        assert 2 * shape.G * shape.K * shape.N < 8 << 30
        assert rough_latency_us(shape) < 12_000


def test_rows_are_those_of_the_most_loaded_rank():
    for shape in ALL:
        if shape.ep == 1 and shape.distribution != "floor":
            assert shape.rows == shape.num_tokens * shape.topk
        elif shape.distribution.startswith("power_law"):
            assert shape.rows >= shape.num_tokens * shape.topk // shape.ep


def test_both_gemms_of_a_layer_have_the_same_rows():
    of: dict[tuple[object, ...], set[tuple[int, ...]]] = {}
    for shape in ALL:
        key = (shape.model, shape.tp, shape.ep, shape.num_tokens, shape.distribution, shape.seed)
        if shape.distribution != "floor":
            of.setdefault(key, set()).add(shape.row_groups)
    assert {len(groups) for groups in of.values()} == {1}


def test_it_is_always_the_same():
    assert list_grouped_shapes("grouped") == ALL
    repeated = list_grouped_shapes("grouped-repeat")
    assert len(repeated) >= 30
    assert {shape._replace(take=0) for shape in repeated} <= set(ALL)
    assert {shape.take for shape in repeated} == {1}
    with pytest.raises(InvalidOptionError, match="grouped, grouped-repeat, grouped-smoke, got 'all'"):
        list_grouped_shapes("all")


def test_equal_groups_are_batches_too():
    batches = list_shapes("experts", "bf16")
    equal = {GemmShape(*shape[:4]) for shape in ALL if min(shape.row_groups) == shape.M and shape.model != "none"}

    assert len(batches) >= 150
    assert set(batches) <= equal
    assert list_shapes("experts", "fp8") == []


def test_sizes_count_rows_and_weights_that_are_read():
    assert (SHAPE.rows, SHAPE.num_active, rows_of(SHAPE)) == (31, 2, 31)
    assert SHAPE.flop == GemmProblem.grouped(SHAPE.row_groups, SHAPE.K, SHAPE.N).flop
    assert rows_of(GemmShape(3, 5, 7, 9)) == 5


def test_copies_are_as_many_as_make_what_is_read_cold():
    protocol, l2_bytes = TimingProtocol(), FakeRunner.l2_bytes
    runner = FakeRunner(pool_bytes=4 << 30)
    one_of_four = SHAPE._replace(K=4096, N=4096, row_groups=(30, 0, 0, 0))
    weight_bytes = runner.weight_bytes(one_of_four)
    offsets = place_copies(weight_bytes, 4 << 30, l2_bytes, protocol, read_bytes=weight_bytes // 4)

    assert len(offsets) * weight_bytes // 4 > protocol.cold_bytes
    assert measure_shape(runner, one_of_four, protocol).num_weight_copies == len(offsets)


def test_the_name_of_a_kernel_tells_its_tile():
    assert cutlass_tile(NAME) == {
        "cta_m": 64, "cta_n": 128, "cta_k": 128, "cluster_m": 2, "cluster_n": 1, "num_stages": 4,
        "schedule": "pingpong",
    }  # fmt: skip
    spelt = NAME.replace("C<", "C<(int)").replace("Pingpong", "Cooperative").replace("> >", ">>")
    assert cutlass_tile(spelt)["schedule"] == "cooperative"
    assert cutlass_tile("nvjet_hsh_64x8") == {}
    assert cutlass_tile(MANGLED) == cutlass_tile(NAME)
    large = cutlass_tile(MANGLED_LARGE)
    assert [large[name] for name in ("cta_m", "cta_n", "cta_k", "schedule")] == [128, 256, 64, "cooperative"]
    first = MANGLED.replace("SN_EEENS_10bf", "SM_EEENS_10bf")
    assert cutlass_tile(first)["cta_k"] == 64
