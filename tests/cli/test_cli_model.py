"""The commands on whole models, `gemms`, `prewarm` and `model`: what they print, and their exit codes."""

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from gemm_eval import GEMMEvaluator, GEMMResult, estimate_model, load_arch
from gemm_eval.cli.output import format_share
from gemm_eval.transformer import (
    WHAT_COUNTS,
    LayerGemm,
    ModelConfig,
    load_model,
    model_memory,
    model_on,
    transformer_gemms,
    types_on,
)
from gemm_eval.transformer.prewarm import PrewarmReport, prewarm
from gemm_eval.units import time_text
from tests.cli.commands import Ran

pytestmark = pytest.mark.usefixtures("compiled_kernels", "own_cache")
ARCH = ("--arch", "demo-8core")
SHORT = ("--seq-len", "64")


def typed(model: str, arch: str, **options: Any) -> tuple[ModelConfig, dict[str, Any]]:
    """The model and the options with the types that it has on an arch."""
    config = model_on(load_arch(arch), load_model(model))
    types = types_on(load_arch(arch), options.get("dtype"), options.get("dense_dtype"), config)
    return config, {"batch_size": 1, "seq_len": 64} | options | dict(types)


def library(model: str, phase: Any, arch: str = "demo-8core", **options: Any) -> list[tuple[LayerGemm, GEMMResult]]:
    evaluator = GEMMEvaluator(arch, disk_cache=False)
    config, options = typed(model, arch, **options)
    gemms = transformer_gemms(config, phase=phase, **options)
    return [(gemm, evaluator.evaluate_problem(gemm.problem)) for gemm in gemms]


def document(rows: list[tuple[LayerGemm, GEMMResult]]) -> Any:
    entries = [{"name": g.name, "total_count": g.total_count, "result": r.to_dict()} for g, r in rows]
    return json.loads(json.dumps(entries))


# model

CALLS: list[Any] = [
    ("llama-3-8b", [], {}),
    ("llama-3-8b", ["--batch", "7", "--dtype", "w4a16"], {"batch_size": 7, "dtype": "w4a16"}),
    ("llama-3-70b", ["--tp", "8"], {"tensor_parallel": 8}),
    pytest.param("deepseek-v3", ["--dtype", "fp8", "--dense-dtype", "fp16"], {"dtype": "fp8", "dense_dtype": "fp16"}),
    pytest.param("mixtral-8x7b", ["--tp", "2", "--ep", "4"], {"tensor_parallel": 2, "expert_parallel": 4}),
    pytest.param("deepseek-v3", ["--batch", "3"], {"batch_size": 3}),
]


@pytest.mark.parametrize(("model", "words", "options"), CALLS)
def test_model_json_is_what_the_library_says(model: str, words: list[str], options: dict[str, Any]) -> None:
    found = Ran("gemms", model, *ARCH, *SHORT, *words, "--json").json()

    phases = {phase: document(library(model, phase, **options)) for phase in ("prefill", "decode")}
    config, options = typed(model, "demo-8core", **options)
    memory = model_memory(config, **options)
    held = json.loads(json.dumps(dataclasses.asdict(memory))) | {"total_bytes": memory.total_bytes}
    assert found == {
        "model": model, "arch": "demo-8core", "what_counts": WHAT_COUNTS, "memory": held, "phases": phases,
    }  # fmt: skip
    assert list(found["phases"]) == ["prefill", "decode"]


@pytest.mark.parametrize("columns", [80, 100, 200])
@pytest.mark.parametrize(("model", "words", "options"), CALLS)
def test_text_shows_every_gemm_whole(model: str, words: list[str], options: dict[str, Any], columns: int) -> None:
    ran = Ran("gemms", model, *ARCH, *SHORT, *words, columns=columns)

    assert (ran.code, ran.err) == (0, "")
    assert max(map(len, ran.out.splitlines())) <= columns
    assert "…" not in ran.out
    prefill, decode = ran.out.split(f"{model} on demo-8core, ")[1:]
    for phase, out in (("prefill", prefill), ("decode", decode)):
        rows = library(model, phase, **options)
        total_us = sum(gemm.total_count * result.latency_us for gemm, result in rows)
        for gemm, result in rows:
            line = " ".join(re.findall(rf"^{gemm.name} .*$", out, flags=re.MULTILINE))
            all_us = gemm.total_count * result.latency_us
            cells = [
                *"·".join(gemm.problem.size_words).split(),  # of experts the rows of all: (512 in 256)·K·N
                str(gemm.num_layers),
                result.bound,
                *time_text(result.latency_us).split(),
                *time_text(all_us).split(),
                format_share(all_us, total_us),
                format_share(result.utilization_frac, 1.0),
            ]
            assert set(cells) <= set(line.split()), line
            assert "·".join(gemm.problem.size_words) in line
            types = f"{gemm.problem.input_dtype}"
            assert re.search(rf" {types} x {gemm.problem.weight_dtype} ", line) or not gemm.problem.is_weight_quantized


def test_model_by_config_json(tmp_path: Path) -> None:
    path = tmp_path / "mine" / "config.json"
    path.parent.mkdir()
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "vocab_size": 1000}
    path.write_text(json.dumps({"model_type": "llama", "num_attention_heads": 4, **sizes}))

    found = Ran("gemms", str(path), *ARCH, *SHORT, "--json").json()

    assert found["model"] == "mine"
    assert found["phases"]["prefill"] == document(library(str(path), "prefill"))


def test_a_gpu_that_is_too_small_is_refused_unless_asked_otherwise() -> None:
    words = ("gemms", "llama-3-70b", "--arch", "h200-sxm", *SHORT, "--phase", "decode")
    text, code = Ran(*words), Ran(*words, "--json")

    assert (text.code, text.out, code.code) == (3, "", 3)
    assert "llama-3-70b does not fit into 0.9 of the DRAM of a device (h200-sxm; memory_frac), with" in text.err
    assert "limit 135,679,338,086 bytes, gap" in text.err
    assert "would fit with: --tp 2 (70.6 GB a device); --pp 2 (70.6 GB a device); --dtype fp8 (" in text.err
    assert json.loads(code.err)["error"]["type"] == "InfeasibleError"
    for more in (("--ignore-memory",), ("--memory-frac", "1"), ("--tp", "2"), ("--dtype", "w4a16")):
        assert Ran(*words, *more).code == 0, more


# prewarm


def test_prewarm_json_is_the_report_and_the_next_run_knows_all() -> None:
    lists = {"batch_sizes": [1, 3], "seq_lens": [16, 32], "tensor_parallel": [1, 2], "dtypes": ["fp16", "w4a16"]}
    words = ["--batch", "1", "--batch", "3", "--seq-len", "16", "--seq-len", "32", "--tp", "1", "--tp", "2"]
    words += ["--dtype", "fp16", "--dtype", "w4a16"]
    evaluator = GEMMEvaluator("demo-8core", disk_cache=False)
    expected = dataclasses.asdict(prewarm(evaluator, "mixtral-8x7b", **lists))  # type: ignore[arg-type]

    first, second = (Ran("prewarm", "mixtral-8x7b", *ARCH, *words, "--json").json() for _ in range(2))

    changes = {"num_stored": expected["num_unique"], "seconds": first["seconds"]}
    assert first == expected | changes
    assert second == first | {"num_known": first["num_unique"], "seconds": second["seconds"]}
    later = GEMMEvaluator("demo-8core")
    prewarm(later, "mixtral-8x7b", **lists)  # type: ignore[arg-type]
    assert later.cache_info().records.misses == 0


@pytest.mark.parametrize("columns", [30, 80])
def test_prewarm_text_is_the_report_on_one_line(columns: int) -> None:
    ran = Ran("prewarm", "llama-3-8b", *ARCH, *SHORT, columns=columns)

    numbers = list(map(int, re.findall(r"(\d+) (?:GEMMs|unique|known|infeasible|stored|hits)", ran.out)))
    fields: list[Any] = ["llama-3-8b", *numbers, float(ran.out.split()[-2])]
    assert ran.out == f"{PrewarmReport(*fields)}\n"
    assert numbers == [14, 13, 0, 0, 13, 13]
    assert (ran.code, ran.err) == (0, "")


# errors and help


def test_experts_have_types_and_loads_of_their_own() -> None:
    words = [
        "gemms", "gpt-oss-20b", "--arch", "h200-sxm", *SHORT,
        *["--phase", "decode", "--batch", "8", "--dtype", "bf16"],
    ]  # fmt: skip
    found = Ran(*words, "--expert-dtype", "w4a16_mxfp4", "--expert-load", "power_law_1.2", "--json").json()
    options = {"dtype": "bf16", "expert_dtype": "w4a16_mxfp4", "expert_load": "power_law_1.2", "batch_size": 8}
    rows = library("gpt-oss-20b", "decode", "h200-sxm", **options)

    assert found["phases"]["decode"] == document(rows)
    by_name = {gemm.name: gemm.problem for gemm, _ in rows}
    assert by_name["expert_down"].is_weight_quantized
    assert by_name["expert_down"].rows == 8 * 4
    assert not by_name["o_proj"].is_weight_quantized
    assert found["memory"]["weight_bytes"] < 15e9


@pytest.mark.parametrize("columns", [80, 160])
def test_several_stand_in_a_table(columns: int) -> None:
    words = [
        "model", "llama-3-8b", "--arch", "h200-sxm", "--arch", "rtx-4090", "--batch", "1,4096", "--prompt", "128,512",
    ]  # fmt: skip
    ran = Ran(*words, columns=columns)
    assert (ran.code, ran.err) == (0, "")
    assert max(map(len, ran.out.splitlines())) <= columns
    lines = [line.split() for line in ran.out.splitlines() if line.startswith(("h200-sxm ", "rtx-4090 "))]
    assert [(line[0], line[1], line[-1]) for line in lines[-8::2]] == [
        ("h200-sxm", "1", "yes"), ("h200-sxm", "4,096", "no"), ("rtx-4090", "1", "yes"), ("rtx-4090", "4,096", "no"),
    ]  # fmt: skip
    found = Ran(*words, "--json").json()
    assert [(item["arch_name"], item["batch"], item["prompt_len"]) for item in found] == [
        (arch, batch, prompt) for arch in ("h200-sxm", "rtx-4090") for batch in (1, 4096) for prompt in (128, 512)
    ]


def test_operations_and_memory_where_asked() -> None:
    words = ("model", "qwen3-30b-a3b", "--arch", "h200-sxm", "--operations", "--memory")
    ran = Ran(*words, columns=200)
    assert ran.code == 0
    found = estimate_model("qwen3-30b-a3b", "h200-sxm")
    for cost in found.decode.costs:
        assert cost.operation.name in ran.out
    assert "Memory of a device" in ran.out
    assert max(map(len, Ran(*words).out.splitlines())) <= 80
