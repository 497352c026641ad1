"""The benchmark of pruned tuning, but for its timing: sizes, configs, methods, summary, and its committed results."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gemm_eval import GemmProblem, load_arch
from gemm_eval.arch import GpuSpec
from gemm_eval.autotune.triton import KernelArguments, TensorArgument, TritonPruner
from gemm_eval.autotune.triton.arguments import SMALL_SHARE, work_us
from gemm_eval.validation import CONFIG_COLUMNS, GEMM_COLUMNS, TritonModel, read_triton_timings, triton_table
from gemm_eval.validation.subjects.triton import without_code

pytest.importorskip("triton", reason="Triton has packages for Linux only")
EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))
import benchmark_asm_aware as benchmark  # noqa: E402
import triton_gemm  # noqa: E402
import triton_w4a16_gemm  # noqa: E402

H200 = load_arch("h200-sxm", GpuSpec)
KERNELS = {"gemm": triton_gemm, "w4a16": triton_w4a16_gemm}
TENSORS = {
    "fp32": ["part_ptr"], "int32": ["count_ptr"], "uint8": ["w_ptr"],
    "fp16": ["a_ptr", "b_ptr", "scale_ptr", "c_ptr"],
}  # fmt: skip
ARGUMENTS = KernelArguments()
RESULTS = json.loads(benchmark.DEFAULT_RESULTS.read_text(encoding="utf-8"))["results"]


def bare(kernel: str) -> Any:
    return triton_gemm.gemm_kernel if kernel == "gemm" else triton_w4a16_gemm.w4a16_kernel


def call_of(kernel: str, M: int, N: int, K: int) -> dict[str, Any]:
    values: dict[str, Any] = {
        "M": M, "N": N, "K": K, "stride_am": K, "stride_bn": K, "stride_wn": K // 2, "stride_cm": N,
    }  # fmt: skip
    values |= {name: TensorArgument(dtype) for dtype, names in TENSORS.items() for name in names}
    values |= {"GROUP_SIZE": benchmark.GROUP_SIZE}
    return {name: values[name] for name in bare(kernel).arg_names if name in values}


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_model_ranks_the_kernels_without_a_gpu(
    kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    configs = KERNELS[kernel].CONFIGS
    pruner = TritonPruner(H200, benchmark.ARGUMENTS[kernel], kernel=bare(kernel), top_k=0.2, compile_k=4)
    large = pruner.rank(configs, call_of(kernel, 8192, 8192, 8192))
    assert large.num_compiled >= len(large.kept) == len(configs) // 5
    assert all(config.kwargs["BLOCK_M"] * config.kwargs["BLOCK_N"] >= 64 * 128 for config in large.kept[:3])
    assert {verdict.reason for verdict in large.verdicts if verdict.is_kept} == {""}
    assert all(verdict.reason for verdict in large.verdicts if not verdict.is_kept)

    pruner.use_assembly = False
    decode = pruner.rank(configs, call_of(kernel, 1, 8192, 8192))
    assert all(config.kwargs["BLOCK_M"] <= 32 for config in decode.kept[:3])
    assert decode.kept[0].kwargs["BLOCK_M"] == 16
    assert decode.source == "corrected"
    assert all(of.low_us < of.time_us < of.high_us for of in decode.verdicts if of.time_us)  # type: ignore[operator]


def test_small_gemms_lose_little_to_a_config_that_was_not_benchmarked() -> None:
    """What the docstring of `SMALL_SHARE` says, from the timings of configs that the examples have."""
    timings = read_triton_timings(H200, triton_table("h200-sxm"))
    rows = timings.frame.assign(predicted_us=TritonModel.as_it_is(H200)[0].predict(without_code(timings)))
    known = {
        (weights, *ARGUMENTS.config(config.all_kwargs())[:7])
        for weights, module in (("dense", triton_gemm), ("int4", triton_w4a16_gemm))
        for config in module.CONFIGS
    }
    weights = rows["weight_dtype"].where(rows["weight_dtype"] == "int4", "dense")
    configs = zip(weights, *(rows[name] for name in CONFIG_COLUMNS), strict=True)
    rows = rows[[config in known for config in configs]]
    losses = {}
    for gemm, mine in rows.groupby(GEMM_COLUMNS):
        first = mine.iloc[0]
        types = {name: first[name] for name in ("input_dtype", "weight_dtype", "output_dtype")}
        group = int(first["group_size"]) if first["weight_dtype"] == "int4" else None
        problem = GemmProblem(1, *(int(first[name]) for name in "MKN"), **types, group_size=group)
        if len(mine) >= 8:
            chosen_us = mine.loc[mine["predicted_us"].idxmin(), "latency_us"]
            losses[gemm] = work_us(problem, H200) / H200.graph_node_us, 1 - mine["latency_us"].min() / chosen_us
    small = [loss for share, loss in losses.values() if share <= SMALL_SHARE]
    up_to_1 = [loss for share, loss in losses.values() if share <= 1.0]

    assert (len(small), len(up_to_1)) == (3, 36)
    assert max(small) <= 0.05
    assert max(up_to_1) <= 0.07


@pytest.mark.parametrize(
    ("kernel", "dtype", "num_sizes"),
    [("gemm", "fp16", 40), ("w4a16", "fp16", 40), ("gemm", "fp8", 40), ("gemm", "bf16", 20), ("w4a16", "bf16", 20)],
)
def test_committed_results(kernel: str, dtype: str, num_sizes: int) -> None:
    """By every method, with the configs that there are, right, and as good as README says."""
    results = [result for result in RESULTS if (result["kernel"], result["dtype"]) == (kernel, dtype)]
    known = {str(config) for config in KERNELS[kernel].CONFIGS}
    sizes = {(result["M"], result["N"], result["K"]) for result in results}

    assert len(results) == len(sizes) == num_sizes
    assert sizes <= set(benchmark.SIZES)
    for result in results:
        assert set(result["methods"]) == set(benchmark.METHODS)
        for of_method in result["methods"].values():
            assert of_method["config"] in known
            assert of_method["relative_error"] < 2e-3
            flop = 2 * result["M"] * result["N"] * result["K"]
            assert of_method["tflop_per_s"] == pytest.approx(flop / of_method["steady_ms"] / 1e9, rel=1e-3)
    summary = benchmark.summarize(results)
    pruned = summary["asm_aware"]
    assert (pruned["geo_mean"] >= 0.99, pruned["worst"] >= 0.95) == (True, True)
    assert (pruned["most_benchmarked_frac"] <= 0.2, pruned["times_less_tuning"] >= 4) == (True, True)
    assert summary["asm_aware_3"]["geo_mean"] >= 0.97
    assert summary["model"]["geo_mean"] >= 0.95
