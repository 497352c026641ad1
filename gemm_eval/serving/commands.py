"""Commands that start the servers of a deployment: vLLM's, SGLang's and TensorRT-LLM's.

Names and meanings of flags are those of:
    https://docs.vllm.ai/en/stable/configuration/engine_args/
    https://docs.vllm.ai/en/stable/features/nixl_connector_usage/
    https://docs.sglang.io/advanced_features/server_arguments.html
    https://docs.sglang.io/docs/advanced_features/dp_dpa_router_guide.md
    https://nvidia.github.io/TensorRT-LLM/commands/trtllm-serve/trtllm-serve.html
    https://nvidia.github.io/TensorRT-LLM/features/disagg-serving.html
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from gemm_eval.serving.estimate import ServingEstimate
from gemm_eval.transformer import ModelConfig

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
        """Tensor, pipeline and expert parallelism."""
        tensor, pipeline, expert = (self.options[f"{name}_parallel"] for name in ("tensor", "pipeline", "expert"))
        return tensor, pipeline, expert

    @property
    def max_len(self) -> int:
        """Positions of a sequence."""
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
