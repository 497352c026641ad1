"""Questions about attention, messages, memory-bound kernels, experts, whole models and modules of torch."""

import functools
import importlib.util
import itertools
import sys
from collections.abc import Callable
from typing import Any

from gemm_eval import (
    GEMMEvaluator,
    MulticoreSpec,
    estimate_model,
    list_models,
    load_model,
    moe_layer,
    transformer_gemms,
)
from gemm_eval.arch import GpuSpec
from tools.corpus.answer import Answers, ask, fields
from tools.corpus.gemms import archs, evaluators

_ATTENTION: tuple[dict[str, Any], ...] = (
    {"batch": 1, "q_len": 1024, "kv_len": 1024, "num_heads": 32, "num_kv_heads": 8},
    {"batch": 1, "q_len": 1, "kv_len": 100, "num_heads": 32, "num_kv_heads": 8},
    {"batch": 8, "q_len": 1, "kv_len": 4096, "num_heads": 32, "num_kv_heads": 8},
    {"batch": 64, "q_len": 1, "kv_len": 8191, "num_heads": 8, "num_kv_heads": 1},
    {"batch": 4, "q_len": 8192, "kv_len": 8192, "num_heads": 16},
    {"batch": 3, "q_len": 5, "kv_len": 777, "num_heads": 28, "num_kv_heads": 4},
    {"batch": 2, "q_len": 512, "kv_len": 4096, "num_heads": 64, "num_kv_heads": 8, "head_dim": 64},
    {"batch": 16, "q_len": 1, "kv_len": 4096, "num_heads": 32, "num_kv_heads": 8, "kv_dtype": "fp8"},
    {"batch": 2, "q_len": 2048, "kv_len": 2048, "num_heads": 32, "num_kv_heads": 8, "dtype": "fp8"},
    {"batch": 2, "q_len": 2048, "kv_len": 2048, "num_heads": 32, "window": 512},
    {"batch": 1, "q_len": 197, "kv_len": 197, "num_heads": 12, "head_dim": 64, "causal": False},
    {"batch": 32, "q_len": 1, "kv_len": 2048, "num_heads": 64, "num_kv_heads": 8, "head_dim": 64, "has_sinks": True},
    {"batch": 16, "q_len": 1, "kv_len": 4096, "num_heads": 128, "num_kv_heads": 1, "head_dim": 576, "v_head_dim": 512,
     "is_latent": True},
    {"batch": 1, "q_len": 1024, "kv_len": 1024, "num_heads": 128, "head_dim": 192, "v_head_dim": 128},
)  # fmt: skip
_TORCH_TYPES = ("float32", "bfloat16")
_attention_of = fields(
    "latency_us", "breakdown", "bound", "kernel", "is_fused", "has_positions", "roofs", "source", "mapping",
    "dram_bytes",
)  # fmt: skip
_collective_of = fields("latency_us", "algorithm", "breakdown", "bound", "library", "source", "interconnect")
_memory_of = fields("latency_us", "breakdown", "source")
_MEMORY_KERNELS = (
    "act", "act_mul", "rms_norm", "add_rms_norm", "layer_norm", "rotary_kv_write", "rotary", "qk_norm", "kv_write",
    "gather", "permute", "weighted_sum", "top_k", "cast", "sort", "torch_vector", "torch_gelu", "torch_cast",
    "torch_offsets", "torch_scattered", "torch_cat", "torch_layer_norm", "torch_softmax", "torch_sum", "torch_moments",
    "torch_batch_norm", "torch_max_pool", "inductor_rows", "cudnn_layout", "",
)  # fmt: skip
_MODEL_ARCHS = ("h200-sxm", "b200", "l40s", "sg2260", "tpu-v5e")
_MODEL_OPTIONS: tuple[dict[str, Any], ...] = (
    {"dtype": "fp8", "kv_dtype": "fp8"},
    {"dtype": "w4a16"},
    {"tensor_parallel": 1, "batch": 1},
    {"tensor_parallel": 2, "pipeline_parallel": 2, "prompt_len": 5000, "chunk_tokens": 2048},
    {"speculative_tokens": 3, "acceptance": 0.6},
    {"attention_library": "flash", "collective_library": "nccl"},
    {"fused": False},
    {"prompt_len": 100_000, "output_len": 1},
)
_MOE: tuple[tuple[tuple[int, int, int, int, int], dict[str, Any]], ...] = (
    ((256, 7168, 2048, 256, 8), {"ep": 8, "num_expert_groups": 8, "num_shared_experts": 1}),
    ((16, 4096, 14336, 8, 2), {"tp": 2}),
    ((4096, 2048, 768, 128, 8), {"distribution": "power_law_1.01", "num_draws": 3}),
    ((1000, 2880, 2880, 128, 4), {"rank": "mean", "ep": 4, "distribution": "uniform"}),
    ((1, 2048, 1408, 64, 6), {"gated": False, "num_shared_experts": 2}),
)
_MOE_TYPES: tuple[dict[str, Any], ...] = (
    {"dtype": "bf16"}, {"dtype": "fp8"}, {"dtype": "fp8_block"}, {"dtype": "w4a16"}, {"dtype": "nvfp4"},
    {"dtype": "w4a16_mxfp4"}, {"dtype": "bf16", "library": "triton/64x64x32"}, {"dtype": "bf16", "l2": "warm"},
)  # fmt: skip
_moe_of = fields(
    "latency_us", "std_us", "min_us", "max_us", "breakdown", "bound", "library", "imbalance", "expert_imbalance",
    "rows", "num_active",
)  # fmt: skip


def _attention(is_small: bool) -> Answers:
    """Attention of every preset, fused and not, and by every library of a GPU."""
    for kind in (GpuSpec, MulticoreSpec):
        variants: list[dict[str, Any]] = [{}, {"fused": False}]
        if kind is GpuSpec:
            variants += [{"library": name} for name in ("cudnn", "flash", "flashinfer")]
        for evaluator, options, sizes in itertools.product(evaluators(kind, is_small), variants, _ATTENTION):
            call = functools.partial(evaluator.evaluate_attention, **sizes, **options)
            yield ask(f"{evaluator.arch.name} {options} {sizes}", call, _attention_of)


def _collective(is_small: bool) -> Answers:
    """Messages of every size and algorithm."""
    words = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send")
    for kind in (GpuSpec, MulticoreSpec):
        for evaluator, library in itertools.product(evaluators(kind, is_small), (None, "nccl")):
            for what, ranks, power in itertools.product(words, (1, 2, 3, 4, 8), (5, 10, 14, 17, 20, 23, 26, 30)):
                size = (1 << power) + power
                call = functools.partial(evaluator.evaluate_collective, what, size, ranks, library=library)
                yield ask(f"{evaluator.arch.name} {library} {what} {size} x{ranks}", call, _collective_of)
        for evaluator, box in itertools.product(evaluators(kind, is_small), ("pcie-one-socket", "pcie-two-sockets")):
            call = functools.partial(evaluator.evaluate_collective, "all_reduce", 1 << 20, 4, interconnect=box)
            yield ask(f"{evaluator.arch.name} {box}", call, _collective_of)


def _memory_bound(is_small: bool) -> Answers:
    """Kernels whose time is that of their bytes."""
    sizes = ((1 << 10, 1 << 10, 512, 1), (1 << 20, 3 << 19, 4096, 128), (1 << 27, 1 << 26, 8192, 8192), (777, 13, 0, 0))
    for kind in (GpuSpec, MulticoreSpec):
        for evaluator, name, size in itertools.product(evaluators(kind, is_small), _MEMORY_KERNELS, sizes):
            call = functools.partial(evaluator.evaluate_memory_bound, *size, name)
            yield ask(f"{evaluator.arch.name} {name} {size}", call, _memory_of)
        for evaluator in evaluators(kind, is_small):
            yield ask(f"{evaluator.arch.name} switches", functools.partial(_switches, evaluator), list)


def _switches(evaluator: Any) -> list[float]:
    return [evaluator.switch_us(rows) for rows in (1, 64, 1000, 100_000)]


def _model(is_small: bool) -> Answers:
    """Every preset of a model on GPUs and chips, in one step of prefill and of decode."""
    asked: list[tuple[str, str, dict[str, Any]]] = [
        (model, arch, {"batch": 16, "tensor_parallel": 8})
        for model, arch in itertools.product(list_models(), _MODEL_ARCHS)
    ]
    for arch, options in itertools.product(_MODEL_ARCHS, _MODEL_OPTIONS):
        asked += [(model, arch, {"batch": 32} | options) for model in ("llama-3-8b", "qwen3-30b-a3b", "gpt-oss-120b")]
    asked += [("deepseek-v3", arch, {"batch": 8, "expert_parallel": 8}) for arch in ("h200-sxm", "b200", "b300")]
    asked += [("llama-3-70b", arch.name, {"batch": 4}) for kind in (GpuSpec, MulticoreSpec) for arch in archs(kind)]
    for model, name, options in asked[:: 40 if is_small else 1]:
        call = functools.partial(estimate_model, model, name, ignore_memory=True, **options)
        yield ask(f"{model} {name} {options}", call, _estimate_of)


def _estimate_of(estimate: Any) -> dict[str, Any]:
    steps = {step.phase: [_operation_of(cost) for cost in step.costs] for step in (estimate.prefill, estimate.decode)}
    figures = fields(
        "ttft_us", "tpot_us", "request_us", "prompt_stage_us", "tokens_per_step", "decode_tokens_per_s",
        "tokens_per_s_per_device", "num_devices", "fits", "largest_batch", "memory_limit_bytes",
    )(estimate)  # fmt: skip
    return figures | steps | {"total_bytes": estimate.memory.total_bytes, "weight_bytes": estimate.memory.weight_bytes}


def _operation_of(cost: Any) -> list[Any]:
    operation = cost.operation
    return [operation.name, operation.kind, operation.num_layers, cost.latency_us, cost.bound, cost.how]


def _gemms(is_small: bool) -> Answers:
    """The GEMMs of every preset of a model."""
    phases: tuple[dict[str, Any], ...] = (
        {"phase": "prefill", "batch_size": 2, "seq_len": 1024},
        {"phase": "decode", "batch_size": 16, "seq_len": 4096, "tensor_parallel": 2},
        {"phase": "decode", "batch_size": 1, "seq_len": 64, "dtype": "w4a16", "new_tokens": 3},
    )
    for model, words in itertools.product(list_models()[:: 20 if is_small else 1], phases):
        call = functools.partial(transformer_gemms, load_model(model), **words)
        yield ask(f"{model} {words}", call, list)


def _moe(is_small: bool) -> Answers:
    """Layers of experts on every preset."""
    for kind, types in ((GpuSpec, _MOE_TYPES), (MulticoreSpec, _MOE_TYPES[:1])):
        for evaluator, options, (sizes, layer) in itertools.product(evaluators(kind, is_small), types, _MOE):
            call = functools.partial(_experts, evaluator, sizes, layer | options)
            yield ask(f"{evaluator.arch.name} {options} {sizes} {layer}", call, _moe_of)


def _experts(evaluator: GEMMEvaluator, sizes: tuple[int, int, int, int, int], options: dict[str, Any]) -> Any:
    return moe_layer(evaluator, *sizes, **options)


def _module(is_small: bool) -> Answers:
    """Modules of torch, in inference and training; nothing without torch."""
    if importlib.util.find_spec("torch") is None:
        print("module: not asked, as torch is not installed (`make test-torch` makes an environment)", file=sys.stderr)
        return
    import torch

    from gemm_eval.torch import predict_module

    with torch.device("meta"):
        layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, norm_first=True)
        images = torch.nn.Sequential(
            torch.nn.Conv2d(3, 64, 7, 2, 3), torch.nn.BatchNorm2d(64), torch.nn.ReLU(), torch.nn.MaxPool2d(3, 2, 1),
            torch.nn.Conv2d(64, 128, 3, 1, 1), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(),
            torch.nn.Linear(128, 10),
        )  # fmt: skip
        cases = {"layer": (layer, torch.empty(4, 512, 768)), "images": (images, torch.empty(8, 3, 224, 224))}
    variants: tuple[dict[str, Any], ...] = (
        {}, {"fusion": "eager"}, {"backward": True, "optimizer": "adamw"}, {"attention_library": "cudnn"},
    )  # fmt: skip
    for (name, (module, inputs)), dtype, options in itertools.product(cases.items(), _TORCH_TYPES, variants):
        typed = module.to(getattr(torch, dtype)).train("backward" in options)
        for arch in _MODEL_ARCHS[: 1 if is_small else None]:
            call = functools.partial(predict_module, typed, inputs.to(getattr(torch, dtype)), arch, **options)
            yield ask(f"{name} {dtype} {options} {arch}", call, _prediction_of)


def _prediction_of(prediction: Any) -> list[Any]:
    read = fields("path", "name", "phase", "kind", "latency_us", "bound", "source", "flop", "num_bytes", "start_us")
    return [list(read(operation).values()) for operation in prediction.operations]


MODEL_KINDS: dict[str, Callable[[bool], Answers]] = {
    "attention": _attention, "collective": _collective, "memory-bound": _memory_bound, "gemms": _gemms, "moe": _moe,
    "model": _model, "module": _module,
}  # fmt: skip
