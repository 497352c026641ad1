"""`find_deployments`: layouts, pools, types and loads of a served model, the best of them, and commands to start them.

Names and meanings of the flags of vLLM, SGLang and TensorRT-LLM are those of:
    https://docs.vllm.ai/en/stable/configuration/engine_args/
    https://docs.vllm.ai/en/stable/features/nixl_connector_usage/
    https://docs.sglang.io/advanced_features/server_arguments.html
    https://docs.sglang.io/docs/advanced_features/dp_dpa_router_guide.md
    https://nvidia.github.io/TensorRT-LLM/commands/trtllm-serve/trtllm-serve.html
    https://nvidia.github.io/TensorRT-LLM/features/disagg-serving.html
"""

import itertools
import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from gemm_eval.arch import ArchSpec
from gemm_eval.errors import GemmEvalError, InfeasibleError, InvalidOptionError, UnsupportedError
from gemm_eval.estimate import Engine, Replica, default_engine, evaluator_of
from gemm_eval.evaluate import GEMMEvaluator, Result
from gemm_eval.serving.batching import StepTimes
from gemm_eval.serving.estimate import Requests, ServingEstimate, serve
from gemm_eval.transformer import Layout, ModelConfig, legal_layouts, load_model, num_joined
from gemm_eval.units import time_text
from gemm_eval.words import as_integer, check_flag, plain_number, shown
from gemm_eval.workload import MAX_DIM

_MAX_DEVICES = 1 << 10
_DIGITS = 6  # after the point, of rates that count as different
_LEAST_GAIN = 1.01  # in tok/s/user, of a deployment on the front over one with more tok/s/GPU


class LeftOut(NamedTuple):
    """A layout that cannot serve the requests.

    Attributes:
        arch_name, engine, dtype: of the replica; None: the types of the checkpoint.
        layout: degrees of parallelism of a replica, in words.
        reason: what is missing and by how much, and which options would do.
    """

    arch_name: str
    engine: str
    dtype: str | None
    layout: str
    reason: str


@dataclass(frozen=True, slots=True)
class Deployments(Result):
    """The best deployments of a model for one kind of request.

    Attributes:
        ttft_limit_us, tpot_limit_us: largest mean TTFT and TPOT that were allowed; None: any.
        front: deployments within the limits of which no other has more tok/s/GPU and more tok/s/user, most tok/s/GPU
            first. One that has less than 1% more tok/s/user than the one before is left out; of equal ones the one of
            fewest devices stays.
        nearest: the deployment that misses its limits by least where none keeps them.
        best_by_arch: the deployment with most tok/s/GPU within the limits on each arch that has one, best first.
        num_points, num_within: deployments that were estimated, and those within the limits.
        left_out: layouts that cannot serve the requests.
    """

    model_name: str
    prompt_len: int
    output_len: int
    ttft_limit_us: float | None
    tpot_limit_us: float | None
    front: tuple[ServingEstimate, ...]
    nearest: ServingEstimate | None
    num_points: int
    num_within: int
    left_out: tuple[LeftOut, ...]
    best_by_arch: tuple[ServingEstimate, ...] = ()
    _derived: ClassVar[tuple[str, ...]] = ()

    def __repr__(self) -> str:
        return f"<Deployments of {self.model_name}: {len(self.front)} on the front of {self.num_points:,}>"

    @property
    def best(self) -> ServingEstimate:
        """The deployment with most tok/s/GPU within the limits.

        Raises:
            InfeasibleError: none is within the limits; the error says how near the nearest is.
            UnsupportedError: no layout can serve the requests; the error says why.
        """
        if self.front:
            return self.front[0]
        if self.nearest is None:
            raise UnsupportedError(self.explain())
        limits = {"ttft": self.ttft_limit_us, "tpot": self.tpot_limit_us}
        missed = {name: limit for name, limit in limits.items() if limit is not None}
        name = max(missed, key=lambda name: getattr(self.nearest, f"{name}_us") / missed[name])
        raise InfeasibleError(
            self.explain(), resource=name, demand=round(getattr(self.nearest, f"{name}_us")), limit=round(missed[name]),
            unit="us", levers=(),
        )  # fmt: skip

    def reasons(self) -> dict[str, int]:
        """Return why layouts were left out, and how many for each reason, most first."""
        return dict(Counter(item.reason for item in self.left_out).most_common())

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON; estimates without the operations of their steps."""
        return Result.to_dict(self) | {
            "front": [summary(estimate) for estimate in self.front],
            "best_by_arch": [summary(estimate) for estimate in self.best_by_arch],
            "nearest": None if self.nearest is None else summary(self.nearest),
        }

    def explain(self) -> str:
        """Return a short text: the best deployment, or how far off the nearest one is."""
        limits = [
            f"{name} within {time_text(limit)}"
            for name, limit in (("TTFT", self.ttft_limit_us), ("TPOT", self.tpot_limit_us))
            if limit is not None
        ]
        if self.front:
            kept = f"{self.num_within:,} have {' and '.join(limits)}. " if limits else ""
            return f"{self.num_points:,} deployments; {kept}The best:\n{self.front[0].explain()}"
        if self.nearest is not None:
            return (
                f"none of {self.num_points:,} deployments has {' and '.join(limits)}. The nearest:\n"
                f"{self.nearest.explain()}"
            )
        reason = next(iter(self.reasons()), "no layout divides the model and the number of devices")
        return f"no deployment of {self.model_name}: {reason}"


def summary(estimate: ServingEstimate) -> dict[str, Any]:
    """Return an estimate as plain values without the operations of its steps."""
    return {name: value for name, value in estimate.to_dict().items() if name not in estimate.optional_names}


def find_deployments(
    model: ModelConfig | str | os.PathLike[str], archs: Iterable[Any] | ArchSpec | GEMMEvaluator | str,
    num_devices: Iterable[int] | int = (8, 16), *, prompt_len: int = 1024, output_len: int = 1024,
    ttft_us: float | None = None, tpot_us: float | None = None,
    engines: Iterable[Engine | str] | Engine | str | None = None, dtypes: Iterable[str | None] = (None,),
    concurrencies: Iterable[int] | None = None, aggregated: bool = True, disaggregated: bool = True,
    tensor: Iterable[int] | None = None, pipeline: Iterable[int] | None = None, expert: Iterable[int] | None = None,
    prefix_hit_frac: float = 0.0, speculative_tokens: int = 0, acceptance: float = 0.7,
    has_fixed_lengths: bool = False, **options: Any,
) -> Deployments:  # fmt: skip
    """Search the deployments of a model on a number of devices, and return the Pareto front within limits.

    >>> find_deployments("llama-3-70b", ["h200-sxm"], 8, prompt_len=4096, tpot_us=30e3).best    # doctest: +SKIP

    Searched are all legal layouts of a replica (tensor, pipeline and expert parallelism, attention data parallelism
    where experts are spread further than a tensor-parallel group), as many replicas as fill the devices, types and
    concurrencies; with `disaggregated` also pools of prefill and decode workers, each with a layout of its own, where
    a link or a network joins them. Of pools, layouts are left out that another of as many devices beats at every load.
    The sizes of workers divide the number of devices.

    Args:
        model: as for `estimate_model`.
        archs: an arch, its name or path, or a `GEMMEvaluator`; or several.
        num_devices: number of devices of the deployment, or several numbers.
        prompt_len, output_len, prefix_hit_frac, speculative_tokens, acceptance, has_fixed_lengths: of the requests, as
            for `estimate_serving`.
        ttft_us, tpot_us: largest mean TTFT (with queueing) and TPOT; None: any.
        engines: as for `estimate_serving`; None: the `default_engine` of each arch.
        dtypes: types of weights, as ``dtype`` of `estimate_model`; None: those of the checkpoint.
        concurrencies: requests in flight; None: powers of two, until no more fit.
        aggregated, disaggregated: search replicas that do both, and pools.
        tensor, pipeline, expert: degrees to which the search is limited; None: all that divide.
        options: other options of `estimate_model` that all have in common (``kv_dtype``, ``memory_frac``, ...).

    Raises:
        InvalidOptionError, UnsupportedError, ModelConfigError, ArchError: as for `estimate_serving`.
    """  # fmt: skip
    requests = Requests(prompt_len, output_len, prefix_hit_frac, speculative_tokens, acceptance, has_fixed_lengths)
    requests.check()
    for name, limit in (("ttft_us", ttft_us), ("tpot_us", tpot_us)):
        if limit is not None and not (plain_number(limit) or 0.0) > 0.0:
            raise InvalidOptionError(f"{name} must be a number of microseconds above 0, or None, got {shown(limit)}")
    check_flag("aggregated", aggregated)
    check_flag("disaggregated", disaggregated)
    counts = [as_integer("num_devices", num, 1, _MAX_DEVICES) for num in _listed(num_devices)]
    asked = None if concurrencies is None else [as_integer("concurrency", c, 1, MAX_DIM) for c in concurrencies]
    config = model if isinstance(model, ModelConfig) else load_model(model)
    degrees = {
        name: None if values is None else tuple(values)
        for name, values in (("tensor", tensor), ("pipeline", pipeline), ("expert", expert))
    }
    points: list[ServingEstimate] = []
    left_out: list[LeftOut] = []
    for evaluator in map(evaluator_of, _listed(archs)):
        for engine in [default_engine(evaluator.arch)] if engines is None else _listed(engines):
            for dtype in dtypes:
                held = options | {"dtype": dtype, "engine": engine}
                workers = _Workers(config, evaluator, requests, asked, counts, degrees, held, left_out)
                for num in counts:
                    if aggregated:
                        points += workers.replicas(num)
                    if disaggregated:
                        points += workers.pools(num)

    limits = (ttft_us, tpot_us)
    within = [point for point in points if _excess(point, limits) <= 1.0]
    best: dict[str, ServingEstimate] = {}
    for point in sorted(within, key=lambda point: -point.tokens_per_s_per_device):
        best.setdefault(point.arch_name, point)
    return Deployments(
        config.name, prompt_len, output_len, ttft_us, tpot_us, front=tuple(_front(within)),
        nearest=None if within or not points else min(points, key=lambda point: _excess(point, limits)),
        num_points=len(points), num_within=len(within), left_out=tuple(left_out),
        best_by_arch=tuple(best.values()),
    )  # fmt: skip


def _listed(values: Any) -> list[Any]:
    is_several = isinstance(values, Iterable) and not isinstance(values, str | os.PathLike | ArchSpec | Engine)
    return list(values) if is_several else [values]


def _excess(point: ServingEstimate, limits: tuple[float | None, float | None]) -> float:
    """Return by what factor a deployment misses the limit that it misses most; at most 1: it keeps both."""
    pairs = zip((point.ttft_us, point.tpot_us), limits, strict=True)
    return max((us / limit for us, limit in pairs if limit is not None), default=0.0)


def _front(points: Sequence[ServingEstimate]) -> list[ServingEstimate]:
    """Return the deployments that no other beats in both rates, but for those that hardly gain on the one before."""
    from gemm_eval.sweep import pareto_front  # only here: sweeps load much else

    rates = [(point.tokens_per_s_per_device, point.tokens_per_s_per_user) for point in points]
    is_best = pareto_front(np.round(np.reshape(rates, (-1, 2)), _DIGITS), maximize=[True, True])
    front: list[ServingEstimate] = []
    best = itertools.compress(points, is_best.tolist())
    for point in sorted(best, key=lambda e: (-round(e.tokens_per_s_per_device, _DIGITS), e.num_devices, e.ttft_us)):
        if not front or point.tokens_per_s_per_user > _LEAST_GAIN * front[-1].tokens_per_s_per_user:
            front.append(point)
    return front


class _Worker(NamedTuple):
    """A replica of a layout, its steps, and the most sequences in decode that a scheduler of it is asked about."""

    layout: Layout
    times: StepTimes
    max_seqs: int

    @property
    def capacity(self) -> int:
        return self.max_seqs * self.times.replica.num_groups


class _Workers:
    """The workers of an arch, an engine and a type, of all layouts and sizes that divide a number of devices."""

    def __init__(
        self, config: ModelConfig, evaluator: GEMMEvaluator, requests: Requests, asked: Sequence[int] | None,
        counts: Sequence[int], degrees: Mapping[str, tuple[int, ...] | None], held: Mapping[str, Any],
        left_out: list[LeftOut],
    ) -> None:  # fmt: skip
        self._evaluator, self._requests, self._asked = evaluator, requests, asked
        self._by_size: dict[int, list[_Worker]] = {}
        for size in range(1, max(counts) + 1):
            if all(num % size for num in counts):
                continue
            self._by_size[size] = []
            joined: dict[str, Any] = {"max_tensor": num_joined(evaluator.arch), **degrees}
            for layout in legal_layouts(config, size, **joined):
                num_groups = max(1, layout.expert // layout.tensor)
                if layout.data != num_groups or num_groups * layout.tensor % layout.expert:
                    continue  # replicas side by side, which are counted as such; or experts off the groups
                replica = Replica(
                    config, evaluator, tensor_parallel=layout.tensor, pipeline_parallel=layout.pipeline,
                    expert_parallel=layout.expert, **held,
                )  # fmt: skip
                try:
                    self._by_size[size].append(self._worker(layout, replica))
                except (InfeasibleError, UnsupportedError) as error:
                    names = evaluator.arch.name, replica.engine.name, held["dtype"]
                    left_out.append(LeftOut(*names, str(layout), _reason(error)))
        self._readers = {size: _unbeaten(workers, self._reading) for size, workers in self._by_size.items()}
        self._decoders = {size: _unbeaten(workers, self._decoding) for size, workers in self._by_size.items()}

    def _worker(self, layout: Layout, replica: Replica) -> _Worker:
        requests = self._requests
        replica.check_memory(1, requests.prompt_len + requests.output_len, requests.output_len)
        times, max_seqs = requests.times_on(replica), requests.max_seqs_on(replica)
        if self._asked is not None:
            max_seqs = min(max_seqs, max(self._asked))
        times.price(max_seqs)
        return _Worker(layout, times, max_seqs)

    def replicas(self, num_devices: int) -> Iterator[ServingEstimate]:
        for size, workers in self._by_size.items():
            num, rest = divmod(num_devices, size)
            for worker in workers if not rest else ():
                yield from self._estimates(worker, num)

    def pools(self, num_devices: int) -> Iterator[ServingEstimate]:
        """Yield the estimates of a pool of workers that read beside one of workers that decode; none: no network."""
        link = self._evaluator.arch.interconnect
        if link is None or (num_devices > num_joined(self._evaluator.arch) and getattr(link, "network", None) is None):
            return
        for size, decoders in self._decoders.items():
            for num in range(1, (num_devices - 1) // size + 1):
                left = num_devices - num * size
                for other, readers in self._readers.items():
                    if left % other:
                        continue
                    for worker in decoders:
                        for reader in readers:
                            yield from self._estimates(worker, num, reader.times, left // other)

    def _estimates(
        self, worker: _Worker, num: int, prefill: StepTimes | None = None, num_readers: int = 0
    ) -> Iterator[ServingEstimate]:  # fmt: skip
        """Yield estimates at growing concurrency, until requests queue for steps or memory."""
        least, most = num * worker.times.replica.num_groups, num * worker.capacity
        for concurrency in _powers_of_two(most) if self._asked is None else self._asked:
            if self._asked is None and concurrency < least:
                continue  # idle replicas: fewer devices do the same
            estimate = serve(
                worker.times, self._requests, concurrency, num_replicas=num, prefill=prefill,
                num_prefill_replicas=num_readers,
            )  # fmt: skip
            yield estimate
            if self._asked is None and estimate.is_full:
                return

    def _reading(self, worker: _Worker) -> tuple[float, ...]:
        """Return times of a prompt on a worker, alone and in steps of as many as they hold, by all its schedulers."""
        times = worker.times
        chunks, groups = times.chunks_per_step, times.replica.num_groups
        one_us, all_us = (times.num_chunks * times.chunk_us(num, 0.0) / num for num in (1.0, chunks))
        return one_us + times.fill_us(), one_us / groups, all_us / groups

    def _decoding(self, worker: _Worker) -> tuple[float, ...]:
        """Return times of decode steps at powers of two of sequences; infinite beyond what fits."""
        groups = worker.times.replica.num_groups
        return tuple(
            worker.times.decode_us(max(1.0, num / groups)) if num <= worker.capacity else np.inf
            for num in _powers_of_two(MAX_DIM)
        )


def _reason(error: GemmEvalError) -> str:
    if isinstance(error, InfeasibleError) and error.resource == "dram":
        levers = " or ".join(error.levers) or "no single change of the layout or of types"
        return f"needs {error.demand / 1e9:,.1f} of {error.limit / 1e9:,.1f} GB a device; would do: {levers}"
    return str(error)


def _powers_of_two(most: int) -> Iterator[int]:
    return (1 << bit for bit in range(most.bit_length()))


def _unbeaten(workers: Sequence[_Worker], costs: Any) -> list[_Worker]:
    """Return the workers that no other of as many devices beats in all costs."""
    table = np.array([costs(worker) for worker in workers])
    return [
        worker
        for index, worker in enumerate(workers)
        if not (np.all(table <= table[index], axis=1) & np.any(table < table[index], axis=1)).any()
    ]


_PORT = 8000  # of a router or a single server; workers have the ports after it
_ONLINE_TYPES = ("fp8",)  # to which vLLM and SGLang quantize weights of 16 bits when they load them
_KEPT_TYPES = (None, "bf16", "fp16")


class _Server(NamedTuple):
    """A server of a deployment.

    Attributes:
        role: ``"prefill"`` or ``"decode"`` in pools; empty: it does both.
        num: equal servers.
        port: of the first of them.
        options: of its replica.
        groups: of data-parallel attention.
        max_seqs: sequences that each group decodes at most; None: it decodes none.
        estimate: the deployment.
        checkpoint: the path or the name of the model.
    """

    role: str
    num: int
    port: int
    options: Mapping[str, Any]
    groups: int
    max_seqs: int | None
    estimate: ServingEstimate
    checkpoint: str

    @property
    def degrees(self) -> tuple[int, int, int]:
        tensor, pipeline, expert = (self.options[f"{name}_parallel"] for name in ("tensor", "pipeline", "expert"))
        return tensor, pipeline, expert

    @property
    def max_len(self) -> int:
        return self.estimate.prompt_len + self.estimate.output_len

    def notes(self) -> Iterator[str]:
        """Yield comments on the servers, and on what flags do not say."""
        if self.role or self.num > 1:
            ports = f"port {self.port}" + (f" to {self.port + self.num - 1}" if self.num > 1 else "")
            yield f"# {self.num} {self.role or 'replica'} server{'s' * (self.num > 1)}, {ports}"
        dtype = self.options["dtype"]
        if dtype not in (*_KEPT_TYPES, *_ONLINE_TYPES):
            yield f"# the checkpoint must have weights in {dtype}"


def checkpoint_of(config: ModelConfig) -> str:
    """Return the name of a model on Hugging Face, as the source of its size has it; else its own name."""
    source = "" if config.published is None else config.published.source
    match = re.search(r"huggingface\.co/([\w.-]+/[\w.-]*\w)", source)
    return config.name if match is None else match[1]


def engine_commands(estimate: ServingEstimate, checkpoint: str) -> tuple[str, ...]:
    """Return the commands that start a deployment, a text for each kind of server, and for their router.

    Speculation is that of models with layers for it (multi-token prediction); others need the flag of their engine for
    a draft model, too, and servers over several nodes those for the address of the first.

    Args:
        estimate: of an engine that has commands; of ``ideal`` and others there are none.
        checkpoint: the path of the model, or its name on Hugging Face.
    """
    name = estimate.engine.split()[0]
    if name not in _ENGINES:
        return ()
    server, router = _ENGINES[name]
    servers, port = [], _PORT
    pools = [("", estimate.num_replicas, estimate.options)]
    if estimate.num_prefill_replicas:
        readers = "prefill", estimate.num_prefill_replicas, estimate.options["prefill"]
        pools, port = [readers, ("decode", estimate.num_replicas, estimate.options)], _PORT + 1
    for role, num, options in pools:
        groups = max(1, options["expert_parallel"] // options["tensor_parallel"])
        most = min(estimate.max_seqs, math.ceil(estimate.concurrency / (num * groups)))
        max_seqs = None if role == "prefill" else most
        servers.append(_Server(role, num, port, options, groups, max_seqs, estimate, checkpoint))
        port += num
    texts = ["\n".join([*each.notes(), *server(each)]) for each in servers]
    return (*texts, router(servers)) if len(servers) > 1 else tuple(texts)


def _command(words: str, flags: Mapping[str, Any]) -> str:
    """Return a command with a flag a line; a flag whose value is None or False is left out, of True it has no value."""
    given = [
        name if value is True else f"{name} {shlex.quote(str(value))}"
        for name, value in flags.items()
        if value is not None and value is not False
    ]
    return " \\\n  ".join([words, *given])


def _more_than_one(degree: int) -> int | None:
    return degree if degree > 1 else None


def _quantization(server: _Server) -> str | None:
    dtype = server.options["dtype"]
    return dtype if dtype in _ONLINE_TYPES else None


def _vllm(server: _Server) -> Iterator[str]:
    tensor, pipeline, expert = server.degrees
    if 1 < expert < tensor:
        yield f"# experts are spread over all {tensor} ranks: vLLM has no smaller group"
    guesses = server.options.get("speculative_tokens", 0)
    guessing = f'{{"method": "mtp", "num_speculative_tokens": {guesses}}}' if guesses else None
    yield _command(f"vllm serve {shlex.quote(server.checkpoint)}", {
        "--port": server.port, "--tensor-parallel-size": tensor,
        "--pipeline-parallel-size": _more_than_one(pipeline), "--data-parallel-size": _more_than_one(server.groups),
        "--enable-expert-parallel": expert > 1, "--max-num-seqs": server.max_seqs,
        "--max-num-batched-tokens": server.options["chunk_tokens"], "--max-model-len": server.max_len,
        "--gpu-memory-utilization": server.options["memory_frac"], "--kv-cache-dtype": server.options["kv_dtype"],
        "--quantization": _quantization(server), "--speculative-config": guessing,
        "--kv-transfer-config": '{"kv_connector": "NixlConnector", "kv_role": "kv_both"}' if server.role else None,
    })  # fmt: skip


def _vllm_router(_: list[_Server]) -> str:
    return "# in front of both: a proxy that sends each prompt to a prefill server first (docs: NixlConnector usage)"


def _sglang(server: _Server) -> Iterator[str]:
    tensor, pipeline, expert = server.degrees
    kv_dtype = server.options["kv_dtype"]
    flags = {
        "--port": server.port, "--tp-size": tensor * server.groups, "--pp-size": _more_than_one(pipeline),
        "--ep-size": _more_than_one(expert), "--dp-size": _more_than_one(server.groups),
        "--enable-dp-attention": server.groups > 1,
        # of all groups together
        "--max-running-requests": None if server.max_seqs is None else server.max_seqs * server.groups,
        "--chunked-prefill-size": server.options["chunk_tokens"] * server.groups, "--context-length": server.max_len,
        "--mem-fraction-static": server.options["memory_frac"],
        "--kv-cache-dtype": "fp8_e4m3" if kv_dtype == "fp8" else kv_dtype, "--quantization": _quantization(server),
        "--disaggregation-mode": server.role or None,
    }  # fmt: skip
    if guesses := server.options.get("speculative_tokens", 0):
        flags |= {
            "--speculative-algorithm": "EAGLE", "--speculative-num-steps": guesses, "--speculative-eagle-topk": 1,
            "--speculative-num-draft-tokens": guesses + 1,
        }  # fmt: skip
    yield _command(f"python -m sglang.launch_server --model-path {shlex.quote(server.checkpoint)}", flags)


def _sglang_router(servers: list[_Server]) -> str:
    urls = [
        f"--{server.role} http://127.0.0.1:{server.port + index}" for server in servers for index in range(server.num)
    ]
    return " \\\n  ".join(["python -m sglang_router.launch_router --pd-disaggregation", f"--port {_PORT}", *urls])


def _trtllm(server: _Server) -> Iterator[str]:
    tensor, pipeline, expert = server.degrees
    if server.groups > 1 and tensor > 1:
        yield "# attention is data-parallel over all ranks: TensorRT-LLM has no tensor-parallel groups in it"
    if server.options["dtype"] in _ONLINE_TYPES:
        yield f"# the checkpoint must have weights in {server.options['dtype']}"
    lines = [f"enable_attention_dp: {str(server.groups > 1).lower()}", "kv_cache_config:"]
    lines.append(f"  free_gpu_memory_fraction: {server.options['memory_frac']}")
    if server.options["kv_dtype"] is not None:
        lines.append(f"  dtype: {server.options['kv_dtype']}")
    if guesses := server.options.get("speculative_tokens", 0):
        lines += ["speculative_config:", "  decoding_type: MTP", f"  num_nextn_predict_layers: {guesses}"]
    if server.role:
        lines += ["cache_transceiver_config:", "  backend: DEFAULT"]
        lines += ["disable_overlap_scheduler: true"] if server.role == "prefill" else []
    file = f"{server.role or 'server'}.yaml"
    yield "\n".join([f"cat > {file} <<'EOF'", *lines, "EOF"])
    yield _command(f"trtllm-serve {shlex.quote(server.checkpoint)}", {
        "--port": server.port, "--backend": "pytorch", "--tp_size": tensor * server.groups,
        "--pp_size": _more_than_one(pipeline), "--ep_size": _more_than_one(expert),
        "--max_batch_size": server.max_seqs, "--max_num_tokens": server.options["chunk_tokens"],
        "--max_seq_len": server.max_len, "--extra_llm_api_options": file,
    })  # fmt: skip


def _trtllm_router(servers: list[_Server]) -> str:
    lines = ["hostname: 0.0.0.0", f"port: {_PORT}", "backend: pytorch"]
    for name, server in zip(("context", "generation"), servers, strict=True):
        urls = (f'    - "localhost:{server.port + index}"' for index in range(server.num))
        lines += [f"{name}_servers:", f"  num_instances: {server.num}", "  urls:", *urls]
    start = "trtllm-serve disaggregated -c disaggregated.yaml"
    return "\n".join(["cat > disaggregated.yaml <<'EOF'", *lines, "EOF", start])


_ENGINES: Mapping[str, tuple[Callable[[_Server], Iterator[str]], Callable[[list[_Server]], str]]] = {
    "vllm": (_vllm, _vllm_router), "sglang": (_sglang, _sglang_router), "trtllm": (_trtllm, _trtllm_router),
}  # fmt: skip
