"""`estimate_serving`: TTFT, TPOT and throughput of a served model under load, as benchmarks of servers measure them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from gemm_eval.arch import ArchSpec
from gemm_eval.errors import InvalidOptionError
from gemm_eval.estimate import Basis, Engine, Replica, StepEstimate, default_engine, evaluator_of, tokens_per_step
from gemm_eval.evaluate import GEMMEvaluator, Result
from gemm_eval.frozen import FrozenDict
from gemm_eval.serving.batching import Load, StepTimes, Times, steady_state, transfer_us
from gemm_eval.transformer import Layout, ModelConfig, ModelMemory
from gemm_eval.units import per_s, time_text
from gemm_eval.words import as_integer, plain_number, shown
from gemm_eval.workload import MAX_DIM


@dataclass(frozen=True, slots=True)
class ServingEstimate(Result):
    """A served model under load: latencies that clients see, throughput, and what holds it back.

    Definitions are those of `vllm bench serve`: TTFT from sending a request to its first token; TPOT the rest of the
    request's time over the tokens after the first (AIPerf: inter token latency); ITL the time between two messages of
    a stream (AIPerf: inter chunk latency; with speculation a message has several tokens); a request's end-to-end
    latency is TTFT + (output_len - 1) x TPOT.

    Attributes:
        concurrency: requests in flight, of all replicas together.
        num_replicas: that decode; of aggregated serving each reads its prompts too.
        num_prefill_replicas: workers of a pool of their own for prompts; 0: aggregated serving.
        num_devices: of all replicas and both pools.
        ttft_us, ttft_p99_us: mean and 99th percentile, with queueing; `ttft_alone_us` of a request alone.
        tpot_us: mean time per output token after the first.
        itl_us, itl_p99_us: mean and 99th percentile of inter-token latency.
        requests_per_s: throughput.
        mean_seqs: sequences in decode on a scheduler (a replica, or a group of data-parallel attention), in the mean.
        max_seqs: sequences that one holds: by memory, or by the limit of the engine.
        prompt_frac: share of decode steps that a chunk of a prompt makes longer.
        is_full: requests wait because prompts come faster than they are read, or because memory is full.
        prefill, decode: the steps behind it; of a prompt one chunk, of decode that of about `mean_seqs` sequences.
    """

    model_name: str
    arch_name: str
    engine: str
    concurrency: int
    prompt_len: int
    output_len: int
    num_replicas: int
    num_prefill_replicas: int
    num_devices: int
    ttft_us: float
    ttft_p99_us: float
    ttft_alone_us: float
    tpot_us: float
    itl_us: float
    itl_p99_us: float
    requests_per_s: float
    mean_seqs: float
    max_seqs: int
    prompt_frac: float
    is_full: bool
    memory: ModelMemory
    prefill: StepEstimate
    decode: StepEstimate
    options: FrozenDict[str, Any]
    _engine: Engine = field(repr=False, compare=False)
    optional_names: ClassVar = ("prefill", "decode")  # of JSON: a list of many does without
    _derived: ClassVar[tuple[str, ...]] = (
        "layout", "ttft_interval_us", "tpot_interval_us", "request_us", "output_tokens_per_s",
        "tokens_per_s_per_device", "tokens_per_s_per_user", "basis",
    )  # fmt: skip

    def __repr__(self) -> str:
        return (
            f"<ServingEstimate {self.model_name} on {self.num_devices} x {self.arch_name} ({self.engine}), "
            f"{self.concurrency:,} requests in flight: TTFT {time_text(self.ttft_us)}, TPOT {time_text(self.tpot_us)}, "
            f"{self.tokens_per_s_per_device:,.0f} tok/s/GPU>"
        )

    @property
    def ttft_interval_us(self) -> tuple[float, float]:
        """The 80% interval of the mean TTFT: that of a step of a prompt, and of queues and host of the engine."""
        return self.prefill.interval_of(self.ttft_us, self._engine.ttft_spread)

    @property
    def tpot_interval_us(self) -> tuple[float, float]:
        """The 80% interval of TPOT: that of a decode step, and of schedule and host of the engine."""
        return self.decode.interval_of(self.tpot_us, self._engine.tpot_spread)

    @property
    def basis(self) -> Basis:
        """The engine, the libraries of its kernels, and shares of the time of both steps by source."""
        return Basis.of(self._engine, self.prefill, self.decode)

    @property
    def layout(self) -> str:
        """Workers and their degrees of parallelism in words: ``2 x TP4``, ``1 x TP2 prefill + 2 x TP4 decode``."""
        decode = f"{self.num_replicas} x {_layout_of(self.options)}"
        if not self.num_prefill_replicas:
            return decode
        return f"{self.num_prefill_replicas} x {_layout_of(self.options['prefill'])} prefill + {decode} decode"

    @property
    def request_us(self) -> float:
        """End-to-end latency of a request."""
        return self.ttft_us + (self.output_len - 1) * self.tpot_us

    @property
    def output_tokens_per_s(self) -> float:
        """Output tokens a second of the deployment."""
        return self.requests_per_s * self.output_len

    @property
    def tokens_per_s_per_device(self) -> float:
        """Output tokens a second of a device."""
        return self.output_tokens_per_s / self.num_devices

    @property
    def tokens_per_s_per_user(self) -> float:
        """Tokens a second that one client receives after the first."""
        return per_s(1.0, self.tpot_us)

    def explain(self) -> str:
        """Return a short text: latencies, throughput, and what limits it."""
        low_us, high_us = self.tpot_interval_us
        first_us, last_us = self.ttft_interval_us
        lines = [
            f"{self.model_name} on {self.num_devices} x {self.arch_name}, {self.engine}, {self.layout}; "
            f"{self.concurrency:,} requests in flight of {self.prompt_len:,} + {self.output_len:,} tokens:",
            f"TTFT {time_text(self.ttft_us)} in the mean ({time_text(self.ttft_alone_us)} alone, p99 "
            f"{time_text(self.ttft_p99_us)}), TPOT {time_text(self.tpot_us)}, ITL p99 {time_text(self.itl_p99_us)}, "
            f"a request {time_text(self.request_us)};",
            f"80% of measured means are expected within {time_text(first_us)} to {time_text(last_us)} (TTFT) and "
            f"{time_text(low_us)} to {time_text(high_us)} (TPOT);",
            f"{self.requests_per_s:,.2f} requests/s, {self.tokens_per_s_per_device:,.0f} tok/s/GPU, "
            f"{self.tokens_per_s_per_user:,.0f} tok/s/user;",
            f"{self.mean_seqs:,.1f} sequences in decode in the mean of at most {self.max_seqs:,}; "
            f"{self.prompt_frac:.0%} of decode steps are longer by a chunk of a prompt.",
            str(self.basis), self._engine.explain(),
        ]  # fmt: skip
        if self.is_full:
            lines.append("Requests queue: memory or steps are full. More replicas, or fewer requests in flight, help.")
        return "\n".join(lines)


def _layout_of(options: Mapping[str, Any]) -> str:
    tensor, pipeline, expert = (options[f"{name}_parallel"] for name in ("tensor", "pipeline", "expert"))
    layout = Layout(tensor, pipeline, 1, expert, max(1, expert // tensor))
    return str(layout) if layout.num_devices > 1 else "TP1"


class Requests(NamedTuple):
    """The requests of clients, all of one size; see `estimate_serving` for the fields."""

    prompt_len: int
    output_len: int
    prefix_hit_frac: float = 0.0
    speculative_tokens: int = 0
    acceptance: float = 0.7
    has_fixed_lengths: bool = False

    def check(self) -> None:
        """Raise InvalidOptionError for sizes and shares out of their range."""
        as_integer("prompt_len", self.prompt_len, 1, MAX_DIM)
        as_integer("output_len", self.output_len, 2, MAX_DIM)
        tokens_per_step(self.speculative_tokens, self.acceptance)
        share = plain_number(self.prefix_hit_frac)
        if share is None or not 0 <= share < 1:
            raise InvalidOptionError(f"prefix_hit_frac must be in 0..1, below 1, got {shown(self.prefix_hit_frac)}")

    def max_seqs_on(self, replica: Replica) -> int:
        """Return the most sequences in decode of a scheduler: by memory, or by the limit of the engine; 0: not one.

        An engine that reserves the whole output admits no request that might have to be put off later.
        """
        held_len = self.output_len if replica.engine.reserves_output else self.output_len // 2
        fitting = replica.largest_batch(self.prompt_len + held_len)
        return replica.engine.max_seqs if fitting is None else min(fitting, replica.engine.max_seqs)

    def times_on(self, replica: Replica) -> StepTimes:
        """Return the times of the steps of a replica for these requests."""
        return StepTimes(
            replica, prompt_tokens=max(1, round(self.prompt_len * (1.0 - self.prefix_hit_frac))),
            prompt_len=self.prompt_len, decode_len=self.prompt_len + self.output_len // 2,
            new_tokens=1 + self.speculative_tokens,
        )  # fmt: skip


def estimate_serving(
    model: ModelConfig | str | os.PathLike[str], arch: ArchSpec | GEMMEvaluator | str | os.PathLike[str],
    concurrency: int = 64, *, prompt_len: int = 1024, output_len: int = 1024, engine: Engine | str | None = None,
    num_replicas: int = 1, num_prefill_replicas: int = 0, prefill: Mapping[str, Any] | None = None,
    prefix_hit_frac: float = 0.0, speculative_tokens: int = 0, acceptance: float = 0.7,
    has_fixed_lengths: bool = False, num_requests: int | None = None, **layout: Any,
) -> ServingEstimate:  # fmt: skip
    """Say what clients of a served model see: TTFT with queueing, TPOT, inter-token latency, throughput.

    >>> estimate_serving("llama-3-70b", "h100-sxm", 64, tensor_parallel=4, engine="vllm")     # doctest: +SKIP

    Clients keep `concurrency` requests in flight; the engine batches them continuously (`gemm_eval.serving.batching`).

    Args:
        model, arch: as for `estimate_model`.
        concurrency: requests in flight, of all replicas together.
        prompt_len, output_len: tokens of a request in and out; 2 or more out.
        engine: whose kernels, scheduler and host (`gemm_eval.estimate.load_engine`); None: the
            `default_engine` of the arch.
        num_replicas: copies of the model; each has its share of the requests.
        num_prefill_replicas: workers of a pool of their own, which read the prompts and send their caches to the
            others (disaggregated serving); 0: each replica does both. Caches go over the link where both pools fit a
            node, else over `interconnect.network`.
        prefill: options of `layout` that these workers have otherwise (``{"tensor_parallel": 4}``).
        prefix_hit_frac: share of a prompt whose keys and values are in the cache already.
        speculative_tokens, acceptance: as for `estimate_model`.
        has_fixed_lengths: outputs are all equally long, as in benchmarks whose range of lengths is 0: requests that
            began together end together. Else outputs differ, and requests come at random times.
        num_requests: of a benchmark, whose first `concurrency` ones are sent at once; None: steady state.
        layout: degrees of parallelism, types, libraries and `memory_frac`, as for `estimate_model`.

    Raises:
        InfeasibleError: the model, or one sequence, does not fit.
        UnsupportedError: as for `estimate_model`; or pools do not fit a node, and the arch has no network.
        InvalidOptionError, ModelConfigError, ArchError: as for `estimate_model`.
    """  # fmt: skip
    requests = Requests(prompt_len, output_len, prefix_hit_frac, speculative_tokens, acceptance, has_fixed_lengths)
    requests.check()
    evaluator = evaluator_of(arch)
    layout["engine"] = default_engine(evaluator.arch) if engine is None else engine
    replica = Replica(model, evaluator, **layout)
    pool = Replica(model, replica.evaluator, **layout | dict(prefill or {})) if num_prefill_replicas else None
    return serve(
        requests.times_on(replica), requests, concurrency, num_replicas=num_replicas,
        prefill=None if pool is None else requests.times_on(pool), num_prefill_replicas=num_prefill_replicas,
        num_requests=num_requests,
    )  # fmt: skip


def serve(
    times: StepTimes, requests: Requests, concurrency: int, *, num_replicas: int = 1,
    prefill: StepTimes | None = None, num_prefill_replicas: int = 0, num_requests: int | None = None,
) -> ServingEstimate:  # fmt: skip
    """Return the estimate of replicas whose steps are known; arguments and errors are those of `estimate_serving`.

    Args:
        times: of the steps of a replica.
        prefill: of the steps of a worker that reads prompts; None: each replica reads its own.
    """
    replica, reader = times.replica, prefill or times
    as_integer("concurrency", concurrency, 1, MAX_DIM)
    as_integer("num_replicas", num_replicas, 1, MAX_DIM)
    as_integer("num_prefill_replicas", num_prefill_replicas, 0, MAX_DIM)
    if num_requests is not None:
        as_integer("num_requests", num_requests, concurrency, MAX_DIM)
    memory = replica.check_memory(1, requests.prompt_len + requests.output_len, requests.output_len)
    max_seqs = requests.max_seqs_on(replica)
    num_schedulers = min(concurrency, num_replicas * replica.num_groups)  # others have no request
    gained = tokens_per_step(requests.speculative_tokens, requests.acceptance)
    load = Load(
        concurrency=concurrency / num_schedulers, num_steps=(requests.output_len - 1) / gained,
        num_chunks=reader.num_chunks, chunks_per_step=reader.chunks_per_step,
        is_mixed=prefill is None and replica.engine.has_mixed_steps, max_seqs=max_seqs,
        has_fixed_lengths=requests.has_fixed_lengths,
        first_frac=0.0 if num_requests is None else concurrency / num_requests,
    )  # fmt: skip
    devices = num_replicas * replica.num_devices
    if prefill is not None:
        prefill.replica.check_memory(1, requests.prompt_len)
        devices += num_prefill_replicas * prefill.replica.num_devices
        num_workers = num_prefill_replicas * prefill.replica.num_groups
        send_us, receive_us = transfer_us(prefill, times, devices)
        load = load._replace(
            prefill_workers=num_workers / num_schedulers, num_prefill_workers=num_workers, send_us=send_us,
            receive_us=receive_us, num_pieces=reader.num_chunks if replica.engine.sends_chunks else 1,
        )  # fmt: skip
    state = steady_state(load, Times(times.decode_us, reader.chunk_us))
    overhead_us = replica.engine.request_us + reader.fill_us()
    read_us = reader.num_chunks * reader.alone_us()
    alone_us = read_us + overhead_us + load.transfer_left_us(read_us)
    return ServingEstimate(
        model_name=replica.config.name, arch_name=replica.arch.name, engine=replica.engine.name,
        concurrency=concurrency, prompt_len=requests.prompt_len, output_len=requests.output_len,
        num_replicas=num_replicas, num_prefill_replicas=num_prefill_replicas, num_devices=devices,
        ttft_us=overhead_us + state.wait_us + state.prompt_us,
        ttft_p99_us=overhead_us + state.wait_p99_us + state.prompt_us, ttft_alone_us=alone_us,
        tpot_us=state.step_us / gained, itl_us=state.step_us,
        itl_p99_us=state.step_p99_us,
        requests_per_s=per_s(state.requests_per_us * num_schedulers, 1.0), mean_seqs=state.num_seqs,
        max_seqs=max_seqs, prompt_frac=state.prompt_frac, is_full=state.is_full, memory=memory,
        prefill=reader.chunk_step(), decode=times.decode_step(state.num_seqs),
        options=FrozenDict(
            replica.options | requests._asdict()
            | {"prefill": None if prefill is None else FrozenDict(prefill.replica.options)}
        ),
        _engine=replica.engine,
    )  # fmt: skip
