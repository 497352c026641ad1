"""The closed form of continuous batching beside a simulation, and its laws."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_eval.serving import Load, SteadyState, Times, steady_state
from tests.serving.simulate import simulate


def drawn(seed: int) -> tuple[Load, Times]:
    rng = random.Random(seed)
    num_chunks = rng.choice([1, 1, 1, 3])
    base_us, seq_us, chunk_us = rng.uniform(5e3, 2e4), rng.uniform(20.0, 200.0), rng.uniform(5e3, 1e5)
    load = Load(
        concurrency=rng.choice([1, 2, 8, 32, 64, 128]), num_steps=rng.choice([64, 256, 1024]), num_chunks=num_chunks,
        chunks_per_step=1.0 if num_chunks > 1 else rng.choice([1.0, 4.0, 8.0]), is_mixed=rng.random() < 0.5,
        max_seqs=rng.choice([1000, 1000, 40]), has_fixed_lengths=rng.random() < 0.4,
    )  # fmt: skip
    if rng.random() < 0.25:
        workers = rng.choice([1, 2, 4])
        load = load._replace(prefill_workers=workers, num_prefill_workers=workers, is_mixed=False)
        send_us = rng.choice([3e3, 5e4])
        load = load._replace(has_fixed_lengths=False, send_us=send_us, num_pieces=num_chunks, receive_us=send_us / 2)
    fixed_us = rng.choice([0.0, chunk_us]) if load.prefill_workers else 0.0
    return load, Times(lambda num: base_us + seq_us * num, lambda chunks, _: fixed_us + chunk_us * chunks)


@pytest.mark.parametrize("seed", range(24))
def test_simulation(seed: int) -> None:
    load, times = drawn(seed)
    state = steady_state(load, times)
    played = simulate(load, times, num_requests=max(150, round(10 * load.concurrency)), seed=seed)
    assert state.step_us == pytest.approx(played.tpot_us, rel=0.04)
    assert state.requests_per_us == pytest.approx(played.requests_per_us, rel=0.1)
    assert state.wait_us + state.prompt_us == pytest.approx(played.ttft_us, rel=0.25)


LOADS = st.builds(
    Load, concurrency=st.integers(1, 4096), num_steps=st.floats(1.0, 8192.0), num_chunks=st.integers(1, 8),
    chunks_per_step=st.floats(1.0, 32.0), is_mixed=st.booleans(), max_seqs=st.integers(1, 4096),
    has_fixed_lengths=st.booleans(), first_frac=st.just(0.0), prefill_workers=st.just(0.0),
    num_prefill_workers=st.just(1), send_us=st.just(0.0), receive_us=st.just(0.0), num_pieces=st.integers(1, 8),
)  # fmt: skip
COSTS = st.floats(1.0, 1e5)


def solved(load: Load, base_us: float, seq_us: float, chunk_us: float) -> SteadyState:
    return steady_state(load, Times(lambda num: base_us + seq_us * num, lambda chunks, _: chunk_us * chunks))


@given(LOADS, COSTS, COSTS, COSTS)
def test_little(load: Load, base_us: float, seq_us: float, chunk_us: float) -> None:
    """Requests in flight are the throughput times the time of one; none is lost."""
    state = solved(load, base_us, seq_us, chunk_us)
    request_us = state.wait_us + state.prompt_us + load.num_steps * state.step_us
    assert state.requests_per_us * request_us == pytest.approx(load.concurrency, rel=1e-3)
    assert state.wait_us >= -1e-6 * request_us
    assert state.num_seqs <= min(load.concurrency, load.max_seqs) * (1 + 1e-9)
    assert state.wait_p99_us >= state.wait_us


@given(LOADS, COSTS, st.floats(0.0, 0.1), COSTS)
def test_more_requests_never_lower_throughput(load: Load, base_us: float, seq_frac: float, chunk_us: float) -> None:
    """Holds where a sequence more costs less than a step of one: else batching does not pay."""
    load = load._replace(num_steps=15.0 + load.num_steps)
    one = solved(load, base_us, seq_frac * base_us, chunk_us)
    more = solved(load._replace(concurrency=2 * load.concurrency), base_us, seq_frac * base_us, chunk_us)
    assert more.requests_per_us >= one.requests_per_us * 0.97


@given(LOADS, COSTS, COSTS, COSTS, st.floats(0.25, 4.0), COSTS, COSTS)
def test_pools_give_no_more_than_their_parts(
    load: Load, base_us: float, seq_us: float, chunk_us: float, workers: float, send_us: float, receive_us: float
) -> None:
    load = load._replace(prefill_workers=workers, is_mixed=False, send_us=send_us, receive_us=receive_us)
    state = solved(load, base_us, seq_us, chunk_us)
    read_us = load.num_chunks * chunk_us
    assert state.requests_per_us <= workers / max(read_us, send_us)
    assert state.requests_per_us <= 1.0 / receive_us
    rounding_us = 1e-9 * state.prompt_us
    left_us = state.prompt_us - read_us
    assert max(send_us, receive_us) / load.num_pieces - rounding_us <= left_us <= max(send_us, receive_us) + rounding_us
    num_seqs = min(load.concurrency, load.max_seqs)
    assert state.requests_per_us <= num_seqs / (load.num_steps * (base_us + seq_us * num_seqs)) * (1 + 1e-6)
