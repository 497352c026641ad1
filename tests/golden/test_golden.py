"""Answers and rankings stay what they are, on every machine, until somebody changes them on purpose."""

import pytest

from gemm_eval.models.gpu import BOUNDS
from gemm_eval.models.gpu.families import FAMILIES
from gemm_eval.models.gpu.libraries import LIBRARIES
from gemm_eval.models.gpu.packed import L2_STATES
from gemm_eval.models.gpu.sizes import QUANTIZED_FROM
from tools.golden.answers import GPU, MULTICORE
from tools.golden.changes import Golden, changes, first_change_of_ranking, read

MAX_ROWS = 640  # that somebody can read
NO_FAMILY_OF_THESE_GPUS = {"sm70_mma"}  # `test_gpu_cost` compares its costs with their definition
NO_CONFIGS = {"quantize"}  # its kernels run before a GEMM, whatever the config of that
HAS_FEW_TILES = ("sm90_int8", "sm100_block_fp4", "sm89_block_fp8", "sm120_block_fp8", "sm120_block_fp4")  # one or two
NEVER_THE_BEST_BOUND = {"store"}  # waves of tiles that end in stores take longer; `test_gpu_cost` has such configs


@pytest.mark.parametrize("golden", [MULTICORE, GPU], ids=lambda golden: golden.path.stem)
def test_answers_are_the_golden_ones(golden: Golden) -> None:
    text = golden.text()
    told = changes(golden, text)
    assert not told, f"{told}\nif on purpose: raise {golden.version}, make golden"
    if golden is MULTICORE:  # to the bit: order and repeated answers too
        assert text == golden.path.read_text(encoding="utf-8")


def test_the_golden_file_covers_the_model_and_can_be_read() -> None:
    answers = read(GPU)
    asked = [dict(zip(GPU.key, key, strict=True)) for key in answers]
    best = [rows[0] for rows in answers.values()]
    configs = [row["config"].split("/") for row in best]
    sizes = [[int(one[name]) for name in "GMKN"] for one in asked]
    plain_families = {name for name, family in FAMILIES.items() if not (family.for_types or family.plain_types)}

    assert sum(map(len, answers.values())) <= MAX_ROWS
    assert all(len(rows) == 3 for rows in answers.values() if not rows[0]["config"].startswith(HAS_FEW_TILES))
    assert {config[0] for config in configs} == plain_families - NO_FAMILY_OF_THESE_GPUS - NO_CONFIGS
    assert {config[8] for config in configs} == {"pingpong", "cooperative", "multistage", "vector"}
    assert {config[9] for config in configs} == {"data_parallel", "split_k", "stream_k"}
    assert {config[11] for config in configs} == {"along_m", "along_n"}
    assert {config[12] for config in configs} > {"1", "8"}
    assert {row["bound"] for row in best} == set(BOUNDS) - NEVER_THE_BEST_BOUND
    assert {(one["l2"], one["clock"]) for one in asked} > {(l2, "burst") for l2 in L2_STATES}
    assert {one["clock"] for one in asked} == {"burst", "sustained"}
    plain = {name for name, of in LIBRARIES.items() if not (of.grouped_families or of.default_of)}
    assert {one["library"] for one in asked} == {*plain, "auto"}
    assert {one["dtype"] for one in asked} == {
        "fp16", "bf16", "fp32", "tf32", "fp8", "fp8 full", "int8", "w4a16", "w8a16", "w4a8_fp8", "fp8_block", "mxfp8",
        "nvfp4",
    }  # fmt: skip
    assert {one["quantize_from"] for one in asked} == {"", *QUANTIZED_FROM}
    assert {"h200-sxm", "a100-sxm-80gb", "l40s", "b200", "rtx-pro-6000-server"} == {one["arch"] for one in asked}
    for what, is_there in (
        ("a batch", any(G > 1 for G, *_ in sizes)),
        ("a single row", any(M == 1 for _, M, *_ in sizes)),
        ("some rows", any(16 <= M <= 64 for _, M, *_ in sizes)),
        ("hundreds of rows", any(128 <= M <= 1024 for _, M, *_ in sizes)),
        ("thousands of rows", any(M >= 4096 for _, M, *_ in sizes)),
        ("a single column", any(N == 1 for *_, N in sizes)),
        ("odd sizes", any(M % 2 and K % 2 and N % 2 for _, M, K, N in sizes)),
        ("more than L2 holds", any(M * K * N > 2**40 for _, M, K, N in sizes)),
    ):
        assert is_there, f"no answer is of {what}"


def test_a_change_of_rank_or_time_is_noticed() -> None:
    rows = [{"rank": str(i), "latency_us": f"{t}", "bound": "dram", "config": c} for i, t, c in
            ((1, 5.0, "a"), (2, 6.0, "b"), (3, 6.0, "c"), (4, 7.0, "d"))]  # fmt: skip
    a, b, c, d = rows
    difference = first_change_of_ranking

    assert difference(rows, rows) is None
    assert difference(rows, [a, c, b, d]) is None
    assert difference(rows, [a, b, c, d | {"config": "e"}]) is None  # perhaps another of 7 us
    assert difference(rows, [a | {"latency_us": "5.00000001"}, b, c, d]) is None
    assert difference(rows, [b, a, c, d]) == (a, b)
    assert difference(rows, [a | {"config": "e"}, b, c, d]) is not None
    assert difference(rows, [a | {"latency_us": "5.0001"}, b, c, d]) is not None
    assert difference(rows, [a | {"bound": "l2"}, b, c, d]) is not None
    assert difference(rows, rows[:3]) == (d, None)
    assert difference(rows[:3], rows) == (None, d)
