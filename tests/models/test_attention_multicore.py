"""Fused attention on multi-core chips: numbers worked out by hand, what is refused, and what stays in SRAM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gemm_eval import AttentionProblem, InfeasibleError, MulticoreSpec, UnsupportedError, load_arch
from gemm_eval.mapping import AttentionMapping, AttentionOrder, AttentionPartition, AttentionTile
from gemm_eval.models.multicore import AttentionCost, attention_params, attention_sizes, unpack_attention_cost
from gemm_eval.models.multicore.attention_kernels import attention_sram_bytes
from gemm_eval.search import find_best_fused_attention
from tools.laws.multicore_attention import cost_of

QK, KQ = AttentionOrder


def chip(**changes: Any) -> MulticoreSpec:
    """One core at 1 GHz with cubes of 4, 1,000 bytes a microsecond, and one buffer of each kind: nothing overlaps."""
    fields: dict[str, Any] = {
        "name": "worked", "num_cores": 1, "frequency_ghz": 1.0, "cube_m": 4, "cube_k": 4, "cube_n": 4,
        "cube_steps_per_cycle": {"fp16": 1.0}, "sram_bytes": 1 << 20, "input_buffers": 1, "dram_gb_per_s": 1.0,
        "vector_ops_per_cycle": 16.0,
    }  # fmt: skip
    return MulticoreSpec(**fields | changes)


def problem(q_len: int = 8, kv_len: int = 8, **changes: Any) -> AttentionProblem:
    """Of one head of 4 elements, full."""
    kinds: dict[str, Any] = {"num_heads": 1, "num_kv_heads": 1, "head_dim": 4, "dtype": "fp16", "causal": False}
    return AttentionProblem(batch=1, q_len=q_len, kv_len=kv_len, **kinds | changes)


def cost(arch: MulticoreSpec, of: AttentionProblem, tile: tuple[int, int], order: AttentionOrder = QK,
         partition: tuple[int, int, int] = (1, 1, 1), *, is_folded: bool = False) -> AttentionCost:  # fmt: skip
    """Cost of a mapping."""
    return cost_of(
        arch, of, AttentionMapping(AttentionPartition(*partition), AttentionTile(*tile), order, is_folded)
    )  # fmt: skip


def test_one_tile_by_hand() -> None:
    found = cost(chip(), problem(), (8, 8))
    assert found.scores == 64
    assert found.breakdown["matrix_us"] == 2 * (2 + 2) / 1000  # steps of 4 rows: 2 blocks of keys and 2 of values
    vector_ops = (8 + 5) * 64 + 4 * (8 + 8)  # O rescaled at its one visit, and divided
    assert found.breakdown["vector_us"] == vector_ops / 16 / 1000
    assert (found.q_bytes, found.kv_bytes, found.o_store_bytes) == (64, 128, 64)
    assert found.dram_bytes == problem().num_bytes
    assert found.latency_us == pytest.approx(0.056 + 0.256)  # the vector unit is the longer one, then all bytes


def test_what_streams_is_loaded_again() -> None:
    of_rows, of_keys = cost(chip(), problem(), (4, 4)), cost(chip(), problem(), (4, 4), KQ)
    assert (of_rows.q_bytes, of_rows.kv_bytes, of_rows.o_spill_bytes) == (64, 2 * 128, 0)
    assert (of_keys.q_bytes, of_keys.kv_bytes) == (2 * 64, 128)
    assert of_keys.o_spill_bytes == of_keys.o_refill_bytes == 8 * (4 + 2) * 4  # fp32, with the maximum and the sum
    assert of_rows.visits == of_keys.visits == 4


def test_a_causal_mask_skips_tiles_and_folding_evens_cores() -> None:
    of = problem(16, 16, causal=True)
    whole = cost(chip(), of, (4, 4))
    assert (whole.visits, whole.scores) == (1 + 2 + 3 + 4, 10 * 16)
    two = chip(num_cores=2)
    contiguous, folded = (
        cost(two, of, (4, 4), partition=(1, 2, 1), is_folded=is_folded) for is_folded in (False, True)
    )
    assert contiguous.visits == 3 + 4  # of the core with the late rows
    assert folded.visits == 1 + 4
    assert folded.scores == contiguous.scores == whole.scores
    assert folded.latency_us < contiguous.latency_us


def test_a_window_skips_what_is_behind_it() -> None:
    found = cost(chip(), problem(16, 64, causal=True, window=4), (4, 4))
    assert attention_sizes(problem(16, 64, causal=True, window=4)).keys == 19  # 3 before the first query's position
    assert found.visits == 2 * 4  # keys start 3 positions early, so each row tile touches two tiles
    assert found.kv_bytes == (8 + 4 + 4 + 3) * 16  # of these the first is still there from the row tile before


def test_split_keys_meet_over_the_network() -> None:
    arch = chip(num_cores=2, reduction="noc", noc_gb_per_s=1.0, dram_sharing="fair")
    found = cost(arch, problem(1, 8), (1, 4), partition=(1, 1, 2))
    share = 6 / 2  # of V + 2 elements
    assert found.breakdown["reduction_noc_us"] == share * 4 / 1000
    assert found.breakdown["reduction_add_us"] == 2 * share / 16 / 1000
    assert found.breakdown["reduction_dram_us"] == 2 * 2 / 500
    assert found.o_store_bytes == 0
    assert found.reduction_bytes == 4 * 2


def test_latents_are_keys_and_values_at_once() -> None:
    apart, latent = (cost(chip(), problem(v_head_dim=4, is_latent=is_latent), (8, 8)) for is_latent in (False, True))
    assert latent.kv_bytes * 2 == apart.kv_bytes
    assert latent.sram_used_bytes < apart.sram_used_bytes
    assert latent.breakdown["matrix_us"] == apart.breakdown["matrix_us"]


def test_narrow_keys_are_widened_by_the_vector_unit() -> None:
    arch = chip(dequant="vector", dequant_ops_per_elem=2.0)
    wide, narrow = (cost(arch, problem(kv_dtype=kv), (8, 8)) for kv in (None, "fp8"))
    assert narrow.kv_bytes * 2 == wide.kv_bytes
    assert narrow.sram_used_bytes == wide.sram_used_bytes + narrow.kv_bytes  # a copy as wide, of half the bytes
    more_us = narrow.breakdown["vector_us"] - wide.breakdown["vector_us"]
    assert more_us == pytest.approx(2.0 * 2 * 8 * 4 / 16 / 1000)
    with pytest.raises(UnsupportedError, match="no way to turn fp8 weights"):
        cost(chip(), problem(kv_dtype="fp8"), (8, 8))


def test_the_sram_rule() -> None:
    arch = chip(lane_num=3, align_bytes=16, output_buffers=2, input_buffers=2)
    used = attention_sram_bytes(attention_params(arch, problem())[0], attention_sizes(problem()), 4, 8)
    queries, keys = 6 * 16, 9 * 16  # rows padded to 3 lanes, 8 bytes to 16
    scores, weights = 6 * 32, 6 * 16
    output, stats = 6 * 16, 6 * 16
    assert used == 2 * (queries + 2 * keys) + scores + weights + 2 * output + stats


def test_resident_operands_take_room_and_no_bandwidth() -> None:
    arch = chip(num_cores=2, resident=("A", "C"), noc_gb_per_s=1.0, dram_sharing="fair")
    params = attention_params(arch, problem())
    assert params["sram_usable_bytes"][0] == (1 << 20) - (64 + 64) // 2
    found = cost(arch, problem(), (4, 8), partition=(1, 2, 1))
    assert (found.q_bytes, found.o_store_bytes) == (0, 0)
    assert found.dram_bytes == found.kv_bytes == 2 * 128


def test_what_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="no vector unit for the softmax"):
        attention_params(chip(vector_ops_per_cycle=None, reduction="none"), problem())
    with pytest.raises(UnsupportedError, match="cannot multiply bf16"):
        attention_params(chip(), problem(dtype="bf16"))
    with pytest.raises(InfeasibleError, match="no tiles of fused attention") as caught:
        find_best_fused_attention(chip(sram_bytes=300, input_buffers=2), problem())
    assert caught.value.demand == 2 * (32 + 2 * 32) + 64 + 32 + 64 + 32
    assert caught.value.limit == 300
    assert caught.value.levers == ("sram_bytes >= 384", "input_buffers: 1", "fused=False")


@pytest.mark.parametrize("name", ["demo-8core", "ascend-910", "wormhole-n150", "ipu-gc200", "tpu-v7", "sg2260"])
def test_presets_answer(name: str) -> None:
    arch = load_arch(name)
    assert isinstance(arch, MulticoreSpec)
    for q_len in (1, 1024):
        dtype = "bf16" if "bf16" in arch.cube_steps_per_cycle else "fp16"
        of = AttentionProblem(4, q_len, 1024, 32, 8, 128, dtype)  # type: ignore[arg-type]
        found = unpack_attention_cost(find_best_fused_attention(arch, of)[0])
        assert found.scores >= 4 * 32 * of.num_pairs
        assert np.prod(found.mapping.partition) <= arch.num_cores
        assert found.sram_used_bytes <= arch.sram_usable_bytes
        assert sum(found.breakdown.values()) == pytest.approx(found.latency_us)
