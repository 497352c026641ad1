"""Kernels of linear and sparse attention: heads held out, what was planted, laws, whole steps, and what is refused."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_eval import GEMMEvaluator, estimate_model, load_model
from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.errors import InvalidOptionError, InvalidProblemError, UnsupportedError
from gemm_eval.estimate import operation_costs
from gemm_eval.models.gpu import mixers as model
from gemm_eval.sweep import transformer_workloads
from gemm_eval.transformer import model_memory, model_operations
from gemm_eval.validation.exam import FITTED, MODEL, NAIVE
from gemm_eval.validation.subjects import mixers as subject
from gemm_eval.validation.tables import measured_root
from gemm_eval.workload import MIXER_KERNELS, MixerProblem

GPU = "h200-sxm"
MAX_ERROR = 0.12
"""MAPE of the kernels of heads that were held out."""
MAX_ERROR_OF_SCAN = 0.08
ONE = {"batch_size": 1, "seq_len": 4096}


def test_heads_held_out_of_states_and_scans() -> None:
    (table,) = [table for table in subject.tables(GPU) if table.library == "trtllm"]
    predicted = subject.exam().held_out(load_arch(GPU, GpuSpec), [table])
    limits = {"gdn_update": MAX_ERROR, "gdn_scan": MAX_ERROR_OF_SCAN}
    for kernel, limit in (limits | {"mamba2_conv": MAX_ERROR, "mamba2_conv_update": MAX_ERROR_OF_SCAN}).items():
        mask = table.kernels == kernel
        errors = {who: np.mean(np.abs(us[mask] / table.measured_us[mask] - 1)) for who, us in predicted.items()}
        assert errors[MODEL] < limit
        assert errors[MODEL] < min(errors[NAIVE], errors[FITTED])


def test_committed_calibrations_are_within_the_figures_of_the_documents() -> None:
    for gpu in ("h200-sxm", "b200"):
        for library in model.MIXER_LIBRARIES:
            calibration = model.MixerCalibration.load(model.mixer_calibration_path(gpu, library))
            assert calibration.errors[0].mape_percent < 100 * MAX_ERROR
            assert set(calibration.families) <= set(MIXER_KERNELS)


def test_a_fit_finds_what_was_planted() -> None:
    arch = load_arch(GPU, GpuSpec)
    problems = [
        MixerProblem("gdn_update", batch, 1, heads, key_heads=1) for batch in (1, 8, 64, 512) for heads in (4, 32)
    ]
    rows = model.mixer_rows(arch, problems)
    planted = model.MIXER_DEFAULTS | {"start_us": 3.0, "dram_frac": 0.6, "l2_frac": 0.4, "line_us": 0.0}
    fitted = subject.fit_kernel(arch, rows, model.mixer_us(arch, planted, rows))
    again_us = model.mixer_us(arch, model.MIXER_DEFAULTS | fitted, rows)
    assert again_us == pytest.approx(model.mixer_us(arch, planted, rows), rel=0.02)


@given(
    kernel=st.sampled_from(list(MIXER_KERNELS)), batch=st.integers(1, 256), q_len=st.integers(1, 9000),
    cached=st.integers(0, 100_000), heads=st.sampled_from([1, 4, 16, 64]),
    gpu=st.sampled_from(["h200-sxm", "b200", "l40s"]),
)  # fmt: skip
def test_more_work_never_takes_less(kernel: str, batch: int, q_len: int, cached: int, heads: int, gpu: str) -> None:
    evaluator = GEMMEvaluator(gpu, disk_cache=False)
    q_len = 1 if MIXER_KERNELS[kernel].part in ("update", "conv_update", "scores_paged") else q_len

    def us(more_batch: int = 1, more_tokens: int = 0) -> float:
        new = q_len + more_tokens
        problem = MixerProblem(kernel, batch * more_batch, new, heads, kv_len=new + cached)
        (result,) = evaluator.evaluate_mixers([problem])
        assert result.low_us < result.latency_us < result.high_us
        assert sum(result.breakdown.values()) == pytest.approx(result.latency_us)
        return result.latency_us

    assert us() <= us(more_batch=2) * (1 + 1e-9)
    if q_len > 1:
        assert us() <= us(more_tokens=64) * (1 + 1e-9)


PUBLISHED = {
    "h100-sxm": [
        (MixerProblem("mamba2_scan", 1, tokens, 128, key_dim=128, value_dim=64), tokens / tokens_per_us)
        for tokens, tokens_per_us in (
            (4096, 12.06), (8192, 12.62), (16384, 12.92), (32768, 11.80), (65536, 11.07), (131072, 10.70),
        )
    ],
    "b200": [
        (MixerProblem("mamba2_update", batch, 1, 64, key_heads=8, key_dim=128, value_dim=128), us)
        for batch, us in ((32, 46.8), (64, 86.0), (128, 167.4))
    ],
}  # fmt: skip
"""Figures of Mamba2 that its assumed coefficients were rounded to: vLLM's pull request 27299, FlashInfer's 4616."""


@pytest.mark.parametrize("gpu", PUBLISHED)
def test_mamba2_is_within_a_quarter_of_what_is_published(gpu: str) -> None:
    problems, published_us = zip(*PUBLISHED[gpu], strict=True)
    results = GEMMEvaluator(gpu, disk_cache=False).evaluate_mixers(problems)
    assert [r.latency_us for r in results] == pytest.approx(published_us, rel=0.25)
    assert all(
        r.source == "analytic" and r.low_us < us < r.high_us for r, us in zip(results, published_us, strict=True)
    )


def test_states_of_mamba2_are_in_the_cache_and_groups_are_replicated() -> None:
    config = load_model("granite-4.0-h-small")
    whole, part = (model_memory(config, batch_size=1, seq_len=1, tensor_parallel=tp).kv_cache_bytes for tp in (1, 4))
    states = 36 * (128 * 64 * 128 * 4 + 3 * (128 * 64 + 2 * 128) * 2)
    assert whole == states + 4 * 2 * 8 * 128 * 2
    assert part == whole // 4
    operations = model_operations(config, phase="decode", batch_size=8, seq_len=64, tensor_parallel=4)
    (update,) = (of for of in operations if of.name == "linear_update")
    assert (update.work.problem.num_heads, update.work.problem.key_heads, update.num_layers) == (32, 1, 36)  # type: ignore[union-attr]
    (projection,) = (of for of in operations if of.name == "linear_in_proj")
    assert projection.work.problem.N == 2 * 32 * 64 + 2 * 128 + 32  # type: ignore[union-attr]


AROUND = {"embedding", "input_norm", "ffn_norm", "gate_up_proj", "ffn_activation", "down_proj", "attention_all_reduce"}
MAX_ERROR_OF_BLOCKS = {
    ("h200-sxm", "vllm", "context"): 0.11, ("h200-sxm", "sglang", "context"): 0.20,
    ("h200-sxm", "sglang", "generation"): 0.15, ("b200", "vllm", "context"): 0.25,
    ("b200", "sglang", "context"): 0.28, ("b200", "sglang", "generation"): 0.15,
}  # fmt: skip
"""MAPE of whole attention blocks of DeepSeek-V3.2, on which nothing was fitted: kernels of DSA were, on GLM-5."""
NUM_BLOCKS = 25


@pytest.mark.parametrize(("gpu", "library", "phase"), MAX_ERROR_OF_BLOCKS)
def test_attention_blocks_of_another_model(gpu: str, library: str, phase: str) -> None:
    table = pd.read_csv(measured_root(gpu) / "sparse-layers-aiconfigurator-0.12" / "attention.csv")
    rows = table[(table["library"] == library) & (table["phase"] == phase)].sample(NUM_BLOCKS, random_state=0)
    errors = []
    for row in rows.to_dict("records"):
        operations = model_operations(
            load_model("deepseek-v3.2"), phase="prefill", batch_size=row["batch"], seq_len=row["kv_len"],
            new_tokens=row["q_len"], tensor_parallel=128 // row["num_heads"], absorb_mla=True,
        )  # fmt: skip
        block = [of for of in operations if of.layer_kind.endswith("dense") and not AROUND & {of.name}]
        block = [of for of in block if not of.name.startswith("ffn")]
        costs = operation_costs(GEMMEvaluator(gpu, disk_cache=False), block, attention_library="trtllm")
        errors.append(sum(cost.latency_us for cost in costs) / row["latency_us"] - 1.0)
    assert np.mean(np.abs(errors)) < MAX_ERROR_OF_BLOCKS[gpu, library, phase]


@pytest.mark.parametrize(
    "name", ["qwen3-next-80b-a3b", "kimi-linear-48b-a3b", "deepseek-v3.2", "nemotron-3-nano-30b-a3b"]
)
def test_whole_steps(name: str) -> None:
    sizes = {"phase": "prefill", "tensor_parallel": 8, **ONE, "new_tokens": 1024, "num_decodes": 16, "decode_len": 3000}
    kinds = {operation.layer_kind for operation in model_operations(load_model(name), **sizes)}  # type: ignore[arg-type]
    assert any(word in kind for kind in kinds for word in ("linear", "sparse"))
    estimate = estimate_model(name, GPU, 16, prompt_len=4096, tensor_parallel=8)
    longer = estimate_model(name, GPU, 16, prompt_len=32768, tensor_parallel=8)
    assert estimate.ttft_us < longer.ttft_us
    assert estimate.tpot_us < longer.tpot_us < 1.5 * estimate.tpot_us
    for arch in ("sg2260e", load_arch("mi300x").with_(carried_from=None)):
        with pytest.raises(UnsupportedError, match="linear and sparse attention"):
            estimate_model(name, arch, 1, prompt_len=64, dtype="bf16", ignore_memory=True)


def test_refusals() -> None:
    with pytest.raises(UnsupportedError, match="linear or sparse attention, which sweeps do not price"):
        transformer_workloads("kimi-linear-48b-a3b", batch_size=1, seq_len=64)
    evaluator = GEMMEvaluator(GPU, disk_cache=False)
    with pytest.raises(InvalidOptionError, match="library"):
        evaluator.evaluate_mixers([MixerProblem("gdn_scan", 1, 64, 4)], library="cudnn")
    for fields, message in (
        ({"kernel": "rwkv_scan"}, "kernel must be one of"), ({"batch": 0}, "batch"),
        ({"kv_len": 3}, "q_len must be <="),
        ({"key_heads": 3}, "key_heads must divide"),
    ):  # fmt: skip
        with pytest.raises(InvalidProblemError, match=message):
            MixerProblem(**{"kernel": "gdn_scan", "batch": 1, "q_len": 64, "num_heads": 4, **fields})  # type: ignore[arg-type]
