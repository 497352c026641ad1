"""Tiles of Triton's fused_moe: tables, their choice by release and number of tokens, and the rule without one."""

from __future__ import annotations

import csv

import pytest

from gemm_eval import GemmProblem, InvalidOptionError, UnsupportedError, load_arch
from gemm_eval.arch import GpuSpec, data_root, read_yaml
from gemm_eval.models.gpu.moe_tiles import SGLANG_RELEASES, TritonTile, triton_tile, triton_types
from gemm_eval.workload import make_problem

FOLDER = data_root() / "kernels" / "moe_triton"
GPUS = sorted(path.stem for path in FOLDER.glob("*.csv"))
BF16 = {"default_dtype": GemmProblem(1, 1, 1, 1).input_dtype}


def tile(gpu: str, num_experts: int, inter: int, dtype: str, num_tokens: int, release: str = "0.5.14") -> TritonTile:
    types = make_problem(1, 16, 4096, 4096, dtype=dtype, **BF16).types
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
        (("512", "128", "bf16", "0.5.10"), "3.5.1"),
        (("512", "64", "bf16", "0.5.14"), "3.4.0"),
        (("256", "256", "fp8_block", "0.5.14"), "3.1.0"),
        (("128", "704", "bf16", "0.5.14"), "3.6.0"),
    ],
)
def test_a_release_takes_the_table_of_its_triton_then_the_newest_that_it_has(asked, version):
    experts, inter, dtype, release = asked
    lines = lines_of("h200-sxm", "16bit" if dtype == "bf16" else dtype, experts, inter)[version]
    assert tile("h200-sxm", int(experts), int(inter), dtype, 1, release) == lines[0]
    assert tile("h200-sxm", int(experts), int(inter), dtype, 100_000, release) == lines[-1]


def test_a_table_that_is_younger_than_a_release_is_not_its():
    assert tile("h200-sxm", 128, 704, "bf16", 128, "0.5.10") == (16, 32, 64, 1, 4, 3)


def test_names_of_types():
    def types(**words: object) -> str:
        return triton_types(make_problem(1, 16, 4096, 4096, **BF16, **words).types)

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
