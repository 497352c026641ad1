"""Tiles of Triton's fused_moe: tables, their choice by release and number of tokens, and the rules without one."""

from __future__ import annotations

import csv

import pytest

from gemm_eval import GemmProblem, InvalidOptionError, UnsupportedError, load_arch
from gemm_eval.arch import GpuSpec, data_root, read_yaml
from gemm_eval.models.gpu.moe_tiles import (
    SGLANG_RELEASES,
    TritonTile,
    swaps_operands,
    triton_tile,
    triton_tile_source,
    triton_types,
)
from gemm_eval.workload import make_problem

FOLDER = data_root() / "kernels" / "moe_triton"
GPUS = sorted(path.stem for path in FOLDER.glob("*.csv"))


def _gpu(name: str) -> GpuSpec:
    arch = load_arch(name)
    assert isinstance(arch, GpuSpec)
    return arch


def test_rule_of_16_bits_changes_where_tokens_exceed_experts():
    assert triton_tile("h200-sxm", 160, 1280, "bf16", 160, 8, 1) == TritonTile(16, 32, 64, 1, 4, 3)
    assert triton_tile("h200-sxm", 160, 1280, "bf16", 161, 8, 1) == (64, 64, 32, 8, 4, 3)
    assert triton_tile("h200-sxm", 160, 1280, "bf16", 161, 8, 2) == (64, 64, 32, 8, 4, 3)


def test_rule_of_fp8_blocks_has_one_tile():
    for num_tokens in (1, 512, 16384):
        assert triton_tile("h200-sxm", 256, 512, "fp8_block", num_tokens, 8, 1) == (64, 128, 128, 32, 4, 3)


def test_rule_of_fp8_depends_on_shared_memory_since_0_5_14():
    assert triton_tile("h200-sxm", 7, 99, "fp8", 7, 2, 1) == (64, 128, 128, 1, 4, 4)
    assert triton_tile("h200-sxm", 7, 99, "fp8", 8, 2, 1) == (128, 256, 128, 32, 8, 4)
    assert triton_tile("l40s", 7, 99, "fp8", 8, 2, 1) == (64, 128, 256, 64, 4, 2)
    assert triton_tile("l40s", 7, 99, "fp8", 8, 2, 1, release="0.5.10") == (128, 256, 128, 32, 8, 4)
    assert triton_tile("h200-sxm", 7, 99, "fp8", 8, 2, 1, engine="vllm") == (64, 64, 32, 8, 4, 3)


def test_table_has_the_nearest_number_of_tokens_and_the_lower_of_two():
    of = {
        num_tokens: triton_tile("a100-sxm-80gb", 8, 3584, "16bit", num_tokens, 2, 1, release="0.5.10")
        for num_tokens in (1, 2, 3, 4, 100_000)
    }
    assert of[3] == of[2]
    with (FOLDER / "a100-sxm-80gb.csv").open(encoding="utf-8") as file:
        rows = [
            row
            for row in csv.DictReader(file)
            if (row["types"], row["num_experts"], row["inter"]) == ("16bit", "8", "3584")
        ]
    assert {row["triton"] for row in rows} == {"3.1.0"}
    assert of[1] == TritonTile(*(int(rows[0][name]) for name in TritonTile._fields))
    assert of[100_000] == TritonTile(*(int(rows[-1][name]) for name in TritonTile._fields))


def test_a_release_takes_the_table_of_its_triton_then_the_newest_that_it_has():
    assert triton_tile_source("h200-sxm", 512, 128, "bf16", release="0.5.10") == "table of Triton 3.5.1"
    assert triton_tile_source("h200-sxm", 512, 64, "bf16") == "table of Triton 3.4.0"
    assert triton_tile_source("h200-sxm", 256, 256, "fp8_block") == "table of Triton 3.1.0"
    assert triton_tile_source("h200-sxm", 128, 704, "bf16") == "table of Triton 3.6.0"
    assert triton_tile_source("h200-sxm", 128, 704, "bf16", release="0.5.10") == "rule"
    assert triton_tile_source("h200-sxm", 8, 448, "bf16") == "rule"


def test_second_gemm_has_its_own_table_where_there_is_one_but_the_first_ones_rows():
    gpu = _gpu("h200-sxm")
    assert triton_tile_source(gpu, 257, 256, "fp8_block", 2) == "table of Triton 3.5.1"
    differ = False
    for num_tokens in (1, 16, 64, 256, 1024, 4096):
        up = triton_tile(gpu, 257, 256, "fp8_block", num_tokens, 8, 1)
        down = triton_tile(gpu, 257, 256, "fp8_block", num_tokens, 8, 2)
        assert up.block_m == down.block_m
        assert triton_tile(gpu, 257, 256, "fp8_block", num_tokens, 8, 2, own_down_table=False) == up
        differ |= up != down
    assert differ


def test_names_of_types():
    def types(**words: object) -> str:
        problem = make_problem(1, 16, 4096, 4096, default_dtype=GemmProblem(1, 1, 1, 1).input_dtype, **words)
        return triton_types(problem.types)

    assert types(dtype="bf16") == types(dtype="fp16") == "16bit"
    assert types(dtype="fp8") == "fp8"
    assert types(dtype="fp8_block") == "fp8_block"
    assert types(dtype="w8a8") == "int8"
    assert types(dtype="w8a16") == "w8a16"
    for dtype in ("w4a16", "nvfp4", "tf32"):
        with pytest.raises(UnsupportedError, match="fused_moe takes"):
            types(dtype=dtype)
    assert triton_tile("b200", 8, 99, GemmProblem(1, 16, 64, 64).types, 9, 2, 1) == (64, 64, 32, 8, 4, 3)


def test_hopper_swaps_operands_of_few_rows_in_fp8():
    few, many = TritonTile(16, 128, 128, 1), TritonTile(64, 128, 128, 1)
    assert swaps_operands(_gpu("h200-sxm"), "fp8_block", few)
    assert not swaps_operands(_gpu("h200-sxm"), "fp8_block", many)
    assert not swaps_operands(_gpu("h200-sxm"), "fp8_block", TritonTile(16, 32, 128, 1))
    assert not swaps_operands(_gpu("h200-sxm"), "bf16", few)
    assert not swaps_operands(_gpu("b200"), "fp8_block", few)


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
        triton_tile("h200-sxm", 8, 8, "bf16", 1, 2, 1, release="0.4.0")
    with pytest.raises(InvalidOptionError, match="gemm must be 1"):
        triton_tile("h200-sxm", 8, 8, "bf16", 1, 2, 3)
    with pytest.raises(InvalidOptionError, match="num_tokens must be >= 1, got 0"):
        triton_tile("h200-sxm", 8, 8, "bf16", 0, 2, 1)
    with pytest.raises(InvalidOptionError, match="types must be"):
        triton_tile("h200-sxm", 8, 8, "int4", 1, 2, 1)
    with pytest.raises(UnsupportedError, match="runs on GPUs"):
        triton_tile("sg2260e", 8, 8, "bf16", 1, 2, 1)
