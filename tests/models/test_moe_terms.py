"""Layers of experts on a GPU: times around their GEMMs by hand, whose kernels run them, and Triton's tiles."""

import csv

import pytest

from gemm_eval import GemmProblem, InvalidOptionError, UnsupportedError
from gemm_eval.arch import GpuSpec, data_root, load_arch, read_yaml
from gemm_eval.models.gpu import (
    LayerShape,
    default_layer_library,
    layer_libraries,
    layer_terms,
    library_of,
    padded_sizes,
)
from gemm_eval.models.gpu.coefficients import MOE_LAYER
from gemm_eval.models.gpu.families import FAMILIES
from gemm_eval.models.gpu.moe_tiles import SGLANG_RELEASES, TritonTile, triton_tile, triton_types
from gemm_eval.units import bytes_per_us
from gemm_eval.workload import LAYER_TERMS, GemmTypes, MoeWork, make_problem

# ---- terms and kernels -----------------------------------------------------------------------------------------------


H200, A100, B200, L40S, RTX = (
    load_arch(name, GpuSpec) for name in ("h200-sxm", "a100-sxm-80gb", "b200", "l40s", "rtx-pro-6000-server")
)
BF16, FP8_BLOCK = GemmTypes.parse("bf16"), GemmTypes.parse("fp8_block")
NONE = {item.name: item.neutral.value for item in MOE_LAYER}
WORK = MoeWork(
    num_tokens=1000, hidden=4096, inter=768, num_experts=128, num_local_experts=16, topk=8, local_rows=1100,
    num_active=15, most_rows=130, gated=True, types=BF16,
)  # fmt: skip


def terms(work: MoeWork = WORK, **coefficients: float) -> dict[str, float]:
    found = layer_terms(H200, NONE | coefficients, work)
    assert list(found) == list(LAYER_TERMS)
    return {name: float(value) for name, value in found.items()}


def moved_us(num_bytes: float, share: float, dram_share: float = 1.0) -> float:
    l2_us = num_bytes / (share * bytes_per_us(H200.l2_gb_per_s))
    missed = 1.0 / (1.0 + (0.7 * H200.l2_bytes / num_bytes) ** 2)
    dram_us = missed * num_bytes / (dram_share * bytes_per_us(H200.dram_gb_per_s))
    return (l2_us**4 + dram_us**4) ** 0.25


def test_without_coefficients_only_bytes_take_time() -> None:
    small = WORK._replace(num_tokens=1, local_rows=1, num_active=1, most_rows=1)
    assert sum(terms(small).values()) < 0.005
    assert terms()["routing_us"] == 0.0


@pytest.mark.parametrize(
    ("name", "value", "term", "expected_us"),
    [
        ("moe_fixed_us", 7.5, "routing_us", 7.5),
        ("moe_token_ns", 2.0, "routing_us", 2.0),
        ("moe_token_expert_ps", 10.0, "routing_us", 1000 * 128 * 10.0 / 1e6),
        ("moe_expert_ns", 50.0, "permute_us", 16 * 0.05),
        ("moe_active_ns", 50.0, "permute_us", 15 * 0.05),
        ("moe_row_ns", 3.0, "permute_us", 1100 * 0.003),
        ("moe_most_row_ns", 20.0, "activation_us", 130 * 0.02),
        ("moe_any_row_us", 0.5, "activation_us", 0.5 * 8000 * 6 / (16 * 132)),
        ("moe_grouped_router_ns", 20.0, "routing_us", 0.0),
    ],
)
def test_counts_take_their_time(name: str, value: float, term: str, expected_us: float) -> None:
    before, after = terms(), terms(**{name: value})
    assert after[term] - before[term] == pytest.approx(expected_us, rel=1e-9, abs=1e-12)
    assert {key: us for key, us in after.items() if key != term} == {
        key: us for key, us in before.items() if key != term
    }


def test_routers_of_groups_take_longer() -> None:
    grouped = WORK._replace(has_grouped_router=True)
    assert terms(grouped, moe_grouped_router_ns=20.0)["routing_us"] == pytest.approx(20.0)


def test_the_largest_of_few_experts_is_walked_by_half_as_many_ctas() -> None:
    def activation_us(num_local_experts: int) -> float:
        work = WORK._replace(num_local_experts=num_local_experts)
        return terms(work, moe_most_row_ns=20.0)["activation_us"] - terms(work)["activation_us"]

    assert activation_us(4) == pytest.approx(2.6)
    assert activation_us(3) == pytest.approx(5.2)


def test_bytes_by_hand() -> None:
    found = terms(moe_token_frac=0.5, moe_activation_frac=0.4, moe_finalize_frac=0.3, moe_dram_frac=0.9)
    token_bytes = 1000 * 4096 * 2
    assert found["quantize_us"] == 0.0
    assert found["permute_us"] == pytest.approx(moved_us(2 * token_bytes, 0.5, 0.9))
    assert found["activation_us"] == pytest.approx(
        moved_us(1100 * 768 * 3 * 2, 0.4, 0.9)
    )  # gate and up, and what follows
    assert found["finalize_us"] == pytest.approx(moved_us(1100 * 4096 * 2 + token_bytes, 0.3, 0.9))


def test_what_is_not_done_takes_no_time() -> None:
    plain = {"moe_token_frac": 0.5, "moe_activation_frac": 0.4, "moe_finalize_frac": 0.3}
    one = terms(WORK._replace(topk=1), **plain)
    assert one["finalize_us"] == 0.0  # GEMM 2 writes the tokens
    up_alone = terms(WORK._replace(gated=False), **plain)
    assert up_alone["activation_us"] == pytest.approx(moved_us(1100 * 768 * 2 * 2, 0.4))
    narrow = terms(WORK._replace(types=FP8_BLOCK), **plain)
    assert narrow["quantize_us"] == pytest.approx(terms(**plain)["permute_us"])
    assert narrow["permute_us"] == 0.0


def test_a_step_that_a_gemm_contains_takes_no_time() -> None:
    found = layer_terms(H200, {name: value for name, value in NONE.items() if name != "moe_token_frac"}, WORK)
    assert found["permute_us"] == 0.0
    assert "moe_token_frac" not in FAMILIES["triton_moe"].defaults  # which gathers rows
    assert "moe_activation_frac" not in FAMILIES["gen_moe"].defaults  # which computes it before it stores


# whose kernels, and which tiles


@pytest.mark.parametrize(
    ("arch", "dtype", "library"),
    [
        (H200, "bf16", "triton"), (H200, "fp8_block", "triton"), (H200, "w4a16", "marlin"), (A100, "bf16", "triton"),
        (A100, "w4a16", "marlin"), (B200, "bf16", "trtllm-gen"), (B200, "fp8_block", "deepgemm"),
        (B200, "nvfp4", "trtllm-gen"), (B200, "w4a16_mxfp4", "trtllm-gen"),
        (H200, "w4a16_mxfp4", "marlin"), (A100, "w4a16_mxfp4", "marlin"), (L40S, "w4a16_mxfp4", "marlin"),
        (RTX, "w4a16_mxfp4", "marlin"), (B200, "w4a16", "marlin"), (A100, "w8a16", "marlin"),
        (H200, "fp8", "cutlass"), (L40S, "fp8", "cutlass"), (RTX, "nvfp4", "cutlass"), (H200, "nvfp4", None),
    ],
)  # fmt: skip
def test_serving_engines_have_their_kernels(arch: GpuSpec, dtype: str, library: str | None) -> None:
    assert default_layer_library(arch, GemmTypes.parse(dtype)) == library


def shape(num_tokens: int, num_local_experts: int = 128, inter: int = 768, topk: int = 8) -> LayerShape:
    return LayerShape(num_tokens, 2048, inter, num_local_experts, topk)


def test_tritons_tiles_are_of_its_tables_or_its_rule() -> None:
    odd = 776  # no table
    few = layer_libraries(A100, "triton", BF16, shape(128, inter=odd))
    many = layer_libraries(A100, "triton", BF16, shape(129, inter=odd))
    assert few == ("triton/16x32x64w4s3",) * 2
    assert many == ("triton/64x64x32w4s3",) * 2
    assert layer_libraries(H200, "triton", FP8_BLOCK, shape(5, inter=odd)) == ("triton/64x128x128w4s3",) * 2
    of_table = layer_libraries(H200, "triton", BF16, shape(512))
    assert of_table != many
    for name in (*few, *many, *of_table):
        assert library_of(name).name == "triton"


@pytest.mark.parametrize(("num_tokens", "rows"), [(1, 16), (16, 16), (64, 16), (65, 128), (4096, 128)])
def test_tritons_tiles_for_mxfp4_go_by_rows_of_an_expert(num_tokens: int, rows: int) -> None:
    types = GemmTypes.parse("w4a16_mxfp4")
    assert layer_libraries(H200, "triton", types, shape(num_tokens)) == (f"triton/{rows}x128",) * 2


@pytest.mark.parametrize(("num_tokens", "rows"), [(1, 8), (128, 8), (129, 16), (256, 16), (1024, 64), (4096, 128)])
def test_trtllm_gens_tiles_are_powers_of_two_above_the_mean(num_tokens: int, rows: int) -> None:
    assert layer_libraries(B200, "trtllm-gen", BF16, shape(num_tokens)) == (f"trtllm-gen/{rows}x128",) * 2


@pytest.mark.parametrize(("dtype", "rows"), [("nvfp4", 256), ("bf16", 128), ("fp8_block", 128), ("w4a16_mxfp4", 64)])
def test_trtllm_gens_tiles_end_where_its_ladder_does(dtype: str, rows: int) -> None:
    types = GemmTypes.parse(dtype)
    assert layer_libraries(B200, "trtllm-gen", types, shape(1 << 14)) == (f"trtllm-gen/{rows}x128",) * 2


@pytest.mark.parametrize(("num_tokens", "rows"), [(1, 8), (115, 8), (116, 16), (230, 16), (300, 32), (5000, 64)])
def test_marlins_tiles_are_filled_to_nine_tenths(num_tokens: int, rows: int) -> None:
    w4a16 = GemmTypes.parse("w4a16")
    first, second = layer_libraries(H200, "marlin", w4a16, shape(num_tokens))
    size = f"{rows}x128x128" if rows <= 16 else f"{rows}x256x64"
    assert (first, second) == (f"marlin/{size}",) * 2


def test_weights_are_padded_where_they_are() -> None:
    assert [padded_sizes("trtllm-gen", BF16, 100, inter)[1] for inter in (1, 128, 192, 1536)] == [128, 128, 256, 1536]
    assert padded_sizes("triton", BF16, 100, 192) == (100, 192)
    mxfp4, int4 = GemmTypes.parse("w4a16_mxfp4"), GemmTypes.parse("w4a16")
    assert padded_sizes("trtllm-gen", mxfp4, 2880, 360) == (3072, 512)
    assert padded_sizes("marlin", mxfp4, 2880, 360) == (3072, 384)
    assert padded_sizes("triton", mxfp4, 2880, 360) == (2880, 384)
    assert padded_sizes("marlin", int4, 2880, 360) == (2880, 360)


def test_only_grouped_kernels_have_layers() -> None:
    in_gemms = {"moe_token_frac", "moe_activation_frac", "moe_finalize_frac"}
    layer = {item.name for item in MOE_LAYER} - in_gemms
    with_layers = {name for name, family in FAMILIES.items() if layer <= set(family.defaults)}
    assert with_layers == {
        name for name, family in FAMILIES.items() if family.for_types is not None and name != "sm90_grouped"
    }


# ---- tiles of Triton's fused_moe -------------------------------------------------------------------------------------


FOLDER = data_root() / "kernels" / "moe_triton"
GPUS = sorted(path.stem for path in FOLDER.glob("*.csv"))
BF16_TYPES = {"default_dtype": GemmProblem(1, 1, 1, 1).input_dtype}


def tile(gpu: str, num_experts: int, inter: int, dtype: str, num_tokens: int, release: str = "0.5.14") -> TritonTile:
    types = make_problem(1, 16, 4096, 4096, dtype=dtype, **BF16_TYPES).types
    return triton_tile(load_arch(gpu, GpuSpec), num_experts, inter, types, num_tokens, release=release)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("h200-sxm", 160, 1280, "bf16", 160), (16, 32, 64, 1, 4, 3)),  # the rule changes where tokens exceed experts
        (("h200-sxm", 160, 1280, "bf16", 161), (64, 64, 32, 8, 4, 3)),
        *((("h200-sxm", 255, 512, "fp8_block", num), (64, 128, 128, 32, 4, 3)) for num in (1, 512, 16384)),
        (("h200-sxm", 7, 99, "fp8", 7), (64, 128, 128, 1, 4, 4)),
        (("h200-sxm", 7, 99, "fp8", 8), (128, 256, 128, 32, 8, 4)),
        (("l40s", 7, 99, "fp8", 8), (64, 128, 256, 64, 4, 2)),  # shared memory counts since 0.5.14
        (("l40s", 7, 99, "fp8", 8, "0.5.10"), (128, 256, 128, 32, 8, 4)),
        (("b200", 8, 99, "bf16", 9), (64, 64, 32, 8, 4, 3)),
    ],
)
def test_rule_without_a_table(asked, expected):
    assert tile(*asked) == expected


def lines_of(gpu: str, *key: str) -> dict[str, list[TritonTile]]:
    """The tiles of a table of GEMM 1, by the version of Triton."""
    tables: dict[str, list[TritonTile]] = {}
    with (FOLDER / f"{gpu}.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if (row["types"], row["num_experts"], row["inter"], row["gemm"]) == (*key, "1"):
                tables.setdefault(row["triton"], []).append(
                    TritonTile(*(int(row[name]) for name in TritonTile._fields))
                )
    return tables


def test_table_has_the_nearest_number_of_tokens_and_the_lower_of_two():
    of = {num: tile("a100-sxm-80gb", 8, 3584, "bf16", num, "0.5.10") for num in (1, 2, 3, 4, 100_000)}
    assert of[3] == of[2]
    tables = lines_of("a100-sxm-80gb", "16bit", "8", "3584")
    assert tables.keys() == {"3.1.0"}
    assert (of[1], of[100_000]) == (tables["3.1.0"][0], tables["3.1.0"][-1])


@pytest.mark.parametrize(
    ("asked", "version"),
    [
        (("512", "128", "bf16", "0.5.10"), "3.5.1"), (("512", "64", "bf16", "0.5.14"), "3.4.0"),
        (("256", "256", "fp8_block", "0.5.14"), "3.1.0"), (("128", "704", "bf16", "0.5.14"), "3.6.0"),
    ],
)  # fmt: skip
def test_a_release_takes_the_table_of_its_triton_then_the_newest_that_it_has(asked, version):
    experts, inter, dtype, release = asked
    lines = lines_of("h200-sxm", "16bit" if dtype == "bf16" else dtype, experts, inter)[version]
    assert tile("h200-sxm", int(experts), int(inter), dtype, 1, release) == lines[0]
    assert tile("h200-sxm", int(experts), int(inter), dtype, 100_000, release) == lines[-1]


def test_a_table_that_is_younger_than_a_release_is_not_its():
    assert tile("h200-sxm", 128, 704, "bf16", 128, "0.5.10") == (16, 32, 64, 1, 4, 3)


def test_names_of_types():
    def types(**words: object) -> str:
        return triton_types(make_problem(1, 16, 4096, 4096, **BF16_TYPES, **words).types)

    assert types(dtype="bf16") == types(dtype="fp16") == "16bit"
    assert types(dtype="fp8") == "fp8"
    assert types(dtype="fp8_block") == "fp8_block"
    assert types(dtype="w8a8") == "int8"
    assert types(dtype="w8a16") == "w8a16"
    for dtype in ("w4a16", "nvfp4", "tf32"):
        with pytest.raises(UnsupportedError, match="fused_moe takes"):
            types(dtype=dtype)


@pytest.mark.parametrize("gpu", GPUS)
def test_tables_hold_together(gpu):
    known = {version for versions in SGLANG_RELEASES.values() for version in versions}
    assert isinstance(load_arch(gpu), GpuSpec)
    with (FOLDER / f"{gpu}.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    keys = [
        tuple(row[name] for name in ("types", "num_experts", "inter", "gemm", "triton", "num_tokens")) for row in rows
    ]
    assert len(set(keys)) == len(keys)
    for row in rows:
        assert row["triton"] in known
        assert row["since"] in SGLANG_RELEASES
        assert int(row["block_m"]) in (16, 32, 64, 128, 256)
        assert int(row["block_n"]) in (16, 32, 64, 128, 256)
        assert int(row["block_k"]) in (32, 64, 128, 256)
        assert int(row["num_warps"]) in (2, 4, 8, 16)
        assert 1 <= int(row["num_stages"]) <= 8


def test_meta_names_every_table():
    assert sorted(read_yaml(FOLDER / "meta.yaml")["devices"]) == GPUS


def test_what_cannot_be_is_refused():
    with pytest.raises(InvalidOptionError, match="release must be one of"):
        tile("h200-sxm", 8, 8, "bf16", 1, "0.4.0")
