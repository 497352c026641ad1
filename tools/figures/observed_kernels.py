"""What committed timings say of kernels, for templates: our W4A16 kernels, Triton's, cuDNN's, and Inductor's choice."""

from __future__ import annotations

import functools
import json
import math
import re
import statistics
from collections import defaultdict
from collections.abc import Collection
from typing import Any

import pandas as pd

from gemm_eval import GpuSpec, load_arch
from gemm_eval.arch import data_root
from gemm_eval.dtypes import DType
from gemm_eval.measure import compare_kernels
from gemm_eval.models.gpu import coefficients_for
from gemm_eval.models.gpu.triton import TritonConfig, estimate_code
from gemm_eval.torch.inductor_ranking import KernelTraits, rank_times
from gemm_eval.validation.predictors.triton_codes import KernelKey, read_codes
from gemm_eval.validation.predictors.w4a16 import W4A16Model
from gemm_eval.validation.predictors.w4a16_rows import read_w4a16_timings
from gemm_eval.workload import GemmProblem
from tests.models.test_convolutions import timed

_GPU = "h200-sxm"
_MEASURED = data_root() / "measured" / _GPU
_OF_HOPPER = ("fp16", "fp16-wide", "fp16-blind-2", "fp16-full")
"""Tables that have kernels of `w4a16_sm90` and `w4a16_sm90_cluster`."""
_WEIGHT_BYTES = 0.5 + 2 / 128  # with a scale of 16 bits for 128
_SIZES = (4096, 4096, 4096)
"""A GEMM whose kernels have the machine code of all."""
_TEMPLATE = re.compile(r"triton_mm (\d+)x(\d+)x(\d+) (\d+) warps (\d+) stages")
_LIBRARY = ("mm", "addmm", "bias_addmm")


@functools.cache
def _arch() -> GpuSpec:
    """The GPU of all these timings."""
    return load_arch(_GPU, GpuSpec)


def w4a16_coefficient(family: str, name: str) -> float:
    """A coefficient of our kernels as it comes along."""
    return coefficients_for(_arch(), "gemm-eval", family)[0][name]


def w4a16_best(M: int, N: int = 28672, K: int = 8192) -> dict[str, Any]:
    """The fastest timed kernel of a GEMM: microseconds, tile, terabytes and teraflop a second, share of one pass."""
    (found,) = (one for one in _best_kernels() if (one.M, one.N, one.K) == (M, N, K))
    bytes_per_us = N * K * _WEIGHT_BYTES / found.best_us
    return {
        "us": found.best_us, "tile": " x ".join(found.best.split()[1].split("x")[:2]),
        "tb_per_s": bytes_per_us / 1e6, "tflop_per_s": 2 * M * N * K / found.best_us / 1e6,
        "read_frac": found.read_us and found.read_us / found.best_us,
    }  # fmt: skip


@functools.cache
def _best_kernels() -> list[Any]:
    found = compare_kernels(_MEASURED / "w4a16" / "fp16.parquet", None, _GPU, "fp16")
    return [one for one in found if one.mode == "group"]


def w4a16_rows(**wanted: Any) -> pd.DataFrame:
    """Timings of kernels of Hopper with these values, and the `error_frac` of their predictions."""
    rows = _w4a16_rows()
    for name, value in wanted.items():
        rows = rows[rows[name] == value]
    return rows


@functools.cache
def _w4a16_rows() -> pd.DataFrame:
    model, _ = W4A16Model.as_it_is(_arch())
    found = []
    for name in _OF_HOPPER:
        path = _MEASURED / "w4a16" / f"{name}.parquet"
        timings = read_w4a16_timings(_arch(), [path])
        errors = model.predict(timings) / timings.measured_us - 1
        found.append(timings.frame.assign(table=name, error_frac=errors))
    rows = pd.concat(found, ignore_index=True)
    return rows[rows.family.isin(["w4a16_sm90", "w4a16_sm90_cluster"])]


def w4a16_most_bias(by: str, but: Collection[Any], **wanted: Any) -> float:
    """The largest mean error of timings that are alike in one column, but for some of its values."""
    errors = w4a16_rows(**wanted).groupby(by).error_frac.mean()
    return float(errors.drop(list(but)).abs().max())


def stream_k_beyond_l2() -> dict[str, Any]:
    """Stream-K where A is larger than L2: configs, least and largest error, GEMMs, in how many another is faster."""
    rows = _w4a16_rows()
    a_bytes = 2 * rows.M * rows.K
    rows = rows[a_bytes > _arch().l2_bytes]
    is_streamed = rows.decomposition == "stream_k"
    gemm = ["table", "M", "K", "N", "mode", "group_size"]
    streamed, others = (rows[part].groupby(gemm).latency_us.min() for part in (is_streamed, ~is_streamed))
    errors = rows[is_streamed].error_frac
    return {
        "num": len(errors), "least": errors.min(), "most": errors.max(), "num_gemms": len(streamed),
        "num_slower": int((others.reindex(streamed.index) < streamed).sum()),
    }  # fmt: skip


def estimated_codes(kind: str) -> dict[str, Any]:
    """What `estimate_code` says against the machine code of timed kernels, "dense" ones or "w4a16".

    ``num``; how many have the same tensor-core instructions (``num_same``) and shared memory within 1%
    (``num_smem``); ``means``: mean factors of issue and of registers by data set; ``worst``.
    """
    return _estimated_codes()[kind]


@functools.cache
def _estimated_codes() -> dict[str, dict[str, Any]]:
    factors: dict[str, dict[tuple[str, str], list[float]]] = {"dense": defaultdict(list), "w4a16": defaultdict(list)}
    num_same = dict.fromkeys(factors, 0)
    num_smem = dict.fromkeys(factors, 0)
    num = dict.fromkeys(factors, 0)
    for key, code in read_codes(_MEASURED / "triton" / "codes.csv").items():
        kind = "w4a16" if key.data_set.startswith("w4a16") else "dense"
        found = estimate_code(_arch(), _problem_of(key), _config_of(key))
        steps = code.loop.k / key.block_k
        num[kind] += 1
        num_same[kind] += [(*one[:-1], one.num * steps) for one in found.loop.mma] == list(map(tuple, code.loop.mma))
        num_smem[kind] += abs(found.smem_bytes / code.smem_bytes - 1) <= 0.01
        factors[kind][key.data_set, "issue"].append(_factor(found.loop.issue * steps, code.loop.issue))
        factors[kind][key.data_set, "registers"].append(_factor(found.registers, code.registers))
    return {
        kind: {
            "num": num[kind], "num_same": num_same[kind], "num_smem": num_smem[kind],
            "means": [statistics.mean(of) for of in parts.values()], "worst": max(max(of) for of in parts.values()),
        }
        for kind, parts in factors.items()
    }  # fmt: skip


def _factor(one: float, other: float) -> float:
    return math.exp(abs(math.log(one / other)))


def _problem_of(key: KernelKey) -> GemmProblem:
    kind, *words = key.data_set.split("-")
    if kind == "w4a16":
        activation, group_size = DType(words[0]), 64 if "g64" in words else 128
        return GemmProblem(1, *_SIZES, activation, DType.INT4, activation, group_size=group_size)
    dtype = DType(kind)
    return GemmProblem(1, *_SIZES, dtype, dtype, DType.FP16 if dtype is DType.FP8 else dtype)


def _config_of(key: KernelKey) -> TritonConfig:
    return TritonConfig(*key[1:6], 8, 4 if key.is_split else 1)


def gpu_spec(name: str) -> Any:
    """A field of the spec of the GPU of all these timings."""
    return getattr(_arch(), name)


def convolutions() -> dict[str, dict[str, float]]:
    """Errors of cuDNN's convolutions by kind, on the calls that they were fitted on: ``mean`` and ``num``."""
    errors = defaultdict(list)
    for kind, measured_us, predicted_us in timed():
        errors[kind].append(abs(predicted_us / measured_us - 1))
    return {kind: {"mean": statistics.mean(of), "num": len(of)} for kind, of in errors.items()}


def mask_ratios() -> list[float]:
    """How many times as long cuDNN's attention takes with a mask that is a tensor: its kernel alone."""
    calls = _torch_calls()
    calls = calls[calls.group == "attention"]
    kernels = {
        tuple(call.split()[1:]): max(us for name, us in json.loads(of) if "sdpa" in name)
        for call, of in zip(calls.call, calls.kernels, strict=True)
    }
    return [us / kernels["none", sizes] for (mask, sizes), us in kernels.items() if mask in ("bool", "bias")]


@functools.cache
def _torch_calls() -> pd.DataFrame:
    return pd.read_csv(_MEASURED / "torch" / "kernels.csv")


def module_us(module: str, fusion: str) -> float:
    """Time of a whole module of torch in a CUDA graph, "eager" or as "inductor" fuses it."""
    return float(_graph_us("modules" if fusion == "eager" else "compiled")[module])


@functools.cache
def _graph_us(name: str) -> pd.Series[float]:
    return pd.read_csv(_MEASURED / "torch" / f"{name}.csv", index_col="module").graph_us


def inductor_by_model() -> list[float]:
    """Share of the time that compiling a model takes when pruned."""
    compiled = pd.read_csv(_MEASURED / "inductor" / "compile.csv")
    return list(compiled.pruned_s / compiled.all_s)


def inductor_gains(below_us: float) -> list[float]:
    """How many times as slow max-autotune's own choices are, of GEMMs below so many microseconds."""
    layers = pd.read_csv(_MEASURED / "inductor" / "layers.csv")
    return list(layers.speed[layers.pruned_us < below_us])


def event_ratios() -> dict[str, float]:
    """How many times as long the same call of cuBLAS takes by Inductor's events as in CUDA graphs."""
    calls = _candidates()
    calls = calls[calls.choice.isin(_LIBRARY)]
    times = calls.pivot_table(index=["model", "M", "N", "K", "choice"], columns="top_k", values="inductor_us")
    ratios = (times["all"] / times["3"]).dropna()
    return {"least": ratios.min(), "median": ratios.median(), "most": ratios.max()}


def inductor_template_ratios(above_us: float) -> list[float]:
    """How many times as long as timed the Triton model takes the fastest template of long GEMMs."""
    return _template_ratios(above_us)


@functools.cache
def _template_ratios(above_us: float) -> list[float]:
    calls, found = _candidates(), []
    calls = calls[calls.top_k == "all"]
    for _, rows in calls.groupby(["model", "M", "N", "K"]):
        rows = rows[rows.choice.str.fullmatch(_TEMPLATE)]
        fastest = min(rows.to_dict("records"), key=lambda row: float(row["inductor_us"]))
        if fastest["inductor_us"] > above_us:
            m, n, k, warps, stages = map(int, _TEMPLATE.findall(fastest["choice"])[0])
            config = TritonConfig(m, n, k, warps, stages, group_m=8)
            problem = GemmProblem(1, fastest["M"], fastest["K"], fastest["N"], DType.BF16, DType.BF16, DType.BF16)
            predicted_us = rank_times(_arch(), problem, [config], KernelTraits()).times_us[0]
            found.append(float(predicted_us / fastest["inductor_us"]))
    return found


@functools.cache
def _candidates() -> pd.DataFrame:
    return pd.read_csv(_MEASURED / "inductor" / "candidates.csv", dtype={"top_k": str})
