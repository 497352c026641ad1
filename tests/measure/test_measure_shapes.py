"""Which GEMMs are measured: sets, groups of experts, and those that a seed draws."""

from pathlib import Path
from typing import Any

import pytest

from gemm_eval import measure
from gemm_eval.device import TimingProtocol
from gemm_eval.errors import InvalidOptionError
from gemm_eval.measure import Campaign, DrawnShape, draw_shapes, read_timings
from gemm_eval.measure.data_set import cutlass_tile
from gemm_eval.measure.runner import KernelLaunch, parse_trace, place_copies
from gemm_eval.measure.shapes import rough_latency_us
from gemm_eval.workload import MAX_GROUPS
from tests.cli.commands import Ran
from tests.measure.fake_runner import FakeRunner

# ---- measure shapes --------------------------------------------------------------------------------------------------


# ---- dense GEMMs -----------------------------------------------------------------------------------------------------


SETS = [
    ("model-zoo", "fp16"), ("model-zoo-few", "bf16"), ("batched", "fp16"), ("model-zoo", "fp8"),
    ("model-zoo", "int8"),
]  # fmt: skip


def test_fp16_has_points_enough_of_sixty_pairs() -> None:
    shapes = measure.list_shapes("model-zoo", "fp16")

    assert len(shapes) >= 1500
    assert len({(shape.N, shape.K) for shape in shapes}) >= 60
    assert {1, 17, 127, 129, 257, 1025, 16384} <= {shape.M for shape in shapes}


@pytest.mark.parametrize(("shape_set", "dtype"), SETS)
def test_shapes_are_distinct_and_within_limits(shape_set: str, dtype: str) -> None:
    shapes = measure.list_shapes(shape_set, dtype)

    assert len(shapes) >= 150
    assert len(set(shapes)) == len(shapes)
    assert max(shape.flop for shape in shapes) <= 2 * 16384**3
    assert max(2 * shape.G * shape.K * shape.N for shape in shapes) < 2_200_000_000


@pytest.mark.parametrize(
    ("words", "code", "parts"),
    [
        ("--set batched", 0, ["GEMMs (G M K N), about"]),
        ("--kernel grouped --dtype bf16 --set grouped-smoke", 0, ["GEMMs (G M K N)"]),
        (
            "--kernel w4a16 --set w4a16-smoke --top 15 --random 10", 0,
            ["1 1 4096 4096 group 128 25", "2 GEMMs", "50 kernels to time"],
        ),
        ("--top 5", 2, ["--top and --random need --kernel w4a16 or w4a8, got --kernel cublas"]),
        ("--kernel w4a16 --top 0", 2, ["--top must be >= 1 and --random >= 0, got 0 and 0"]),
        ("--kernel w4a16 --set model-zoo", 2, ["--set must be one of w4a16"]),
    ],
)  # fmt: skip
def test_the_command_lists_without_a_gpu_and_refuses(words: str, code: int, parts: list[str]) -> None:
    ran = Ran("measure", "--out", ".", *words.split(), "--list", columns=200)
    assert ran.code == code
    assert all(part in ran.out + ran.err for part in parts), ran.out + ran.err


# ---- grouped GEMMs ---------------------------------------------------------------------------------------------------


ALL = measure.list_grouped_shapes("grouped")
SHAPE = measure.GroupedShape(4, 30, 512, 256, (30, 0, 1, 0), "some", 2, 16, 4, 2, 1, 1, "uniform", 7)
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


def test_what_is_listed_is_distinct_and_can_be():
    assert len(set(ALL)) == len(ALL)
    for shape in ALL:
        assert (len(shape.row_groups), max(shape.row_groups)) == (shape.G, shape.M)
        assert shape.G <= MAX_GROUPS
        assert shape.K % 8 == shape.N % 8 == 0  # rows start on 16 bytes
        assert 2 * shape.G * shape.K * shape.N < 8 << 30
        assert rough_latency_us(shape) < 12_000


def test_it_is_always_the_same():
    assert measure.list_grouped_shapes("grouped") == ALL
    repeated = measure.list_grouped_shapes("grouped-repeat")
    assert len(repeated) >= 30
    assert {shape._replace(take=0) for shape in repeated} <= set(ALL)
    assert {shape.take for shape in repeated} == {1}
    with pytest.raises(InvalidOptionError, match="grouped, grouped-repeat, grouped-smoke, got 'all'"):
        measure.list_grouped_shapes("all")


def test_equal_groups_are_batches_too():
    batches = measure.list_shapes("experts", "bf16")
    equal = {
        measure.GemmShape(*shape[:4]) for shape in ALL if min(shape.row_groups) == shape.M and shape.model != "none"
    }

    assert len(batches) >= 150
    assert set(batches) <= equal
    assert measure.list_shapes("experts", "fp8") == []


def test_copies_are_as_many_as_make_what_is_read_cold():
    protocol, l2_bytes = measure.TimingProtocol(), FakeRunner.l2_bytes
    runner = FakeRunner(pool_bytes=4 << 30)
    one_of_four = SHAPE._replace(K=4096, N=4096, row_groups=(30, 0, 0, 0))
    weight_bytes = runner.weight_bytes(one_of_four)
    offsets = place_copies(weight_bytes, 4 << 30, l2_bytes, protocol, read_bytes=weight_bytes // 4)

    assert len(offsets) * weight_bytes // 4 > protocol.cold_bytes
    assert measure.measure_shape(runner, one_of_four, protocol).num_weight_copies == len(offsets)


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


# ---- traces ----------------------------------------------------------------------------------------------------------


def kernel(ts: float, name: str, grid: tuple[int, int, int], dur: float = 1.0) -> dict[str, Any]:
    args = {"grid": list(grid), "block": [384, 1, 1], "registers per thread": 168, "shared memory": 213_000}
    return {"ph": "X", "cat": "kernel", "name": name, "ts": ts, "dur": dur, "args": args}


EVENTS = [
    {"ph": "M", "name": "process_name"},
    kernel(0.0, "stray", (1, 1, 1)),
    kernel(5.0, "splitKreduce_kernel", (64, 1, 1), dur=2.0),
    kernel(1.0, "gemm_eval_marker", (1, 1, 1)),
    kernel(2.0, "nvjet_hsh_64x8", (132, 1, 2), dur=3.0),
    {"ph": "X", "cat": "gpu_memset", "name": "Memset (Device)", "ts": 4.5, "dur": 0.5, "args": {}},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": 2.5, "dur": 9.0, "args": {}},
    kernel(8.0, "gemm_eval_marker", (3, 1, 1)),
    kernel(9.0, "nvjet_hsh_128x256", (132, 1, 1)),
    kernel(11.0, "gemm_eval_marker", (4, 1, 1)),
]


def test_calls_are_told_apart() -> None:
    """The second call's marker is lost, and with it only that call; the last has no kernel."""
    assert parse_trace(EVENTS) == {
        0: KernelLaunch("nvjet_hsh_64x8", 2, 132, 1, 2, 384, 168, 213_000),
        2: KernelLaunch("nvjet_hsh_128x256", 1, 132, 1, 1, 384, 168, 213_000),
    }
    assert parse_trace([]) == {}


# ---- measure drawn ---------------------------------------------------------------------------------------------------


def test_a_seed_and_a_type_draw_the_same_gemms() -> None:
    drawn = draw_shapes(200, 1, "bf16")
    assert drawn == draw_shapes(200, 1, "bf16")
    assert len(set(drawn)) == 200
    assert not set(drawn) & {shape._replace(seed=1) for shape in draw_shapes(200, 2, "bf16")}
    assert {shape[:4] for shape in drawn} != {shape[:4] for shape in draw_shapes(200, 1, "fp16")}


def test_a_data_set_has_layouts_and_seeds(tmp_path: Path) -> None:
    shapes = draw_shapes(5, 7, "fp16")
    protocol = TimingProtocol.quick(l2="cold-all", num_short_replays=1, num_replays=1, idle_s=0.0)
    for _ in range(2):  # the second goes on with the work file of the first
        path = Campaign(FakeRunner(), protocol, tmp_path, "drawn", print, with_trace=False).run(shapes)
    table = read_timings(path)
    rows = table[["G", "M", "K", "N", "layout", "seed"]].itertuples(index=False, name=None)
    assert {DrawnShape(*row) for row in rows} == set(shapes)
    assert set(table["l2"]) == {"cold-all"}
    assert table["accumulate"].isna().all()


def test_the_command_lists_what_it_would_draw() -> None:
    printed = Ran("measure", "gpu", "--draw", "4", "--seed", "2", "--dtype", "tf32", "--out", "x", "--list")
    assert printed.out.splitlines()[0].split()[4] in ("tn", "nn", "nt")
    for words, text in (
        (("--kernel", "cublas", "--draw", "4"), "--draw needs --kernel torch"),
        (("--seed", "4"), "--seed"),
        (("--l2", "cold-all"), "--l2 cold-all needs --draw"),
    ):
        refused = Ran("measure", "gpu", "--out", "x", "--list", *words)
        assert refused.code == 2
        assert text in refused.err
