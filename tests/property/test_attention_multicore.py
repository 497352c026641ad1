"""Fused attention on multi-core chips: counts against every visit, the search against brute force."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gemm_eval import AttentionProblem, MulticoreSpec, load_arch
from gemm_eval.models.multicore import attention_params, attention_sizes
from gemm_eval.models.multicore.attention_kernels import (
    attention_block_of,
    count_core,
)


@st.composite
def problems(draw: st.DrawFn, most: int) -> AttentionProblem:
    """Masked ones, of one head of each KV head's group."""
    kv_len = draw(st.integers(1, most))
    q_len = draw(st.just(kv_len) | st.integers(1, kv_len))
    window = draw(st.none() | st.integers(1, kv_len))
    group = draw(st.integers(1, 4))
    return AttentionProblem(1, q_len, kv_len, group, 1, 4, "fp16", None, None, True, window)  # type: ignore[arg-type]


def demo(**changes: object) -> MulticoreSpec:
    """The teaching chip."""
    arch = load_arch("demo-8core").with_(**changes)
    assert isinstance(arch, MulticoreSpec)
    return arch


@given(problems(1 << 20), st.integers(1, 4096), st.integers(1, 4096))
def test_counts_of_many_tiles_are_those_of_each(problem: AttentionProblem, units_q: int, units_kv: int) -> None:
    arch = demo()
    p, s = attention_params(arch, problem)[0], attention_sizes(problem)
    blk = attention_block_of(p, s, 1, 1, 1, 0)
    tile_q, tile_kv = min(units_q * arch.cube_m, s.rows), min(units_kv * 16, s.keys)
    found = count_core(p, s, blk, 0, 0, s.keys, tile_q, tile_kv, 0)
    if not s.is_masked:
        assert found.scores == s.rows * s.keys
        return
    starts = np.arange(0, s.rows, tile_q)
    ends = np.minimum(starts + tile_q, s.rows) - 1
    low = np.maximum(starts // s.group + s.ahead - s.window + 1, 0) // tile_kv
    high = (ends // s.group + s.ahead) // tile_kv
    keys = np.minimum((high + 1) * tile_kv, s.keys) - low * tile_kv
    size = np.minimum((low + 1) * tile_kv, s.keys) - low * tile_kv
    assert found.visits == (high - low + 1).sum()
    assert found.scores == ((ends - starts + 1) * keys).sum()
    assert found.kv_keys == keys.sum() - size[1:][low[1:] == high[:-1]].sum()
    assert found.scores >= problem.num_pairs * problem.group
