"""The commands on whole models, `model` and `prewarm`: what they print, and their exit codes."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

from gemm_eval import GEMMEvaluator, GEMMResult, load_arch
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

ARCH = ("--arch", "demo-8core")
SHORT = ("--seq-len", "64")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    GEMMEvaluator("demo-8core", disk_cache=False).evaluate_many([(1, 1, 1, 1)])  # compiles, which stderr tells
    monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", str(tmp_path / "cache"))


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
    pytest.param(
        "deepseek-v3",
        ["--dtype", "fp8", "--dense-dtype", "fp16"],
        {"dtype": "fp8", "dense_dtype": "fp16"},
    ),
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


@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_one_phase_only(phase: str) -> None:
    found = Ran("gemms", "llama-3-8b", *ARCH, *SHORT, "--phase", phase, "--json").json()
    text = Ran("gemms", "llama-3-8b", *ARCH, *SHORT, "--phase", phase).out

    assert list(found["phases"]) == [phase]
    assert re.findall(r"^llama-3-8b on demo-8core, (\w+)", text, flags=re.MULTILINE) == [phase]


def test_no_idle_cores_and_the_default_type_of_the_arch_reach_the_library() -> None:
    found = Ran("gemms", "llama-3-8b", "--arch", "tpu-v4", *SHORT, "--no-idle-cores", "--json").json()

    evaluator = GEMMEvaluator("tpu-v4", allow_idle_cores=False)
    for phase, rows in found["phases"].items():
        expected = library("llama-3-8b", phase, "tpu-v4")
        assert [row["result"] for row in rows] == [
            json.loads(json.dumps(evaluator.evaluate_problem(gemm.problem).to_dict())) for gemm, _ in expected
        ]
        assert {row["result"]["problem"]["input_dtype"] for row in rows} == {"bf16"}


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


def test_80_columns_show_the_numbers_of_400() -> None:
    words = ("gemms", "llama-3.1-405b", *ARCH, "--batch", "64", "--seq-len", "131072", "--dtype", "w4a16")
    narrow, wide = Ran(*words, columns=80), Ran(*words, columns=400)

    assert max(map(len, narrow.out.splitlines())) <= 80
    numbers = re.findall(r"\d[\d,.·]*\d", wide.out)
    assert len(numbers) > 100
    assert [number for number in numbers if number not in narrow.out] == []


def test_a_very_narrow_terminal_loses_no_digit_and_breaks_no_word() -> None:
    words = ("gemms", "deepseek-v3", *ARCH, *SHORT)
    wide, narrow = Ran(*words, columns=80).out, Ran(*words, columns=30).out

    assert "…" not in narrow
    assert {word for word in narrow.split() if word[0] not in "─"} <= set(wide.split())
    assert sum(map(str.isdigit, narrow)) >= sum(map(str.isdigit, wide))


def test_sums_are_those_of_the_library() -> None:
    out = Ran("gemms", "mixtral-8x7b", *ARCH, *SHORT, "--batch", "3", columns=200).out

    lines = re.findall(r"GEMMs of a layer: (.+?) in the mean; of the model: (.+?), (.+?) a token", out)
    for line, phase, tokens in zip(lines, ("prefill", "decode"), (3 * 64, 3), strict=True):
        rows = library("mixtral-8x7b", phase, batch_size=3)
        total_us = sum(gemm.total_count * result.latency_us for gemm, result in rows)
        head_us = sum(result.latency_us for gemm, result in rows if gemm.name == "lm_head")
        layer_us = (total_us - head_us) / load_model("mixtral-8x7b").num_layers
        assert line == tuple(map(time_text, (layer_us, total_us, total_us / tokens)))


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
    assert (
        "levers: tensor_parallel = 2 (70.6 GB a device); pipeline_parallel = 2 (70.6 GB a device); dtype = fp8 ("
        in text.err
    )
    assert json.loads(code.err)["error"]["type"] == "InfeasibleError"
    for more in (("--ignore-memory",), ("--memory-frac", "1"), ("--tp", "2"), ("--dtype", "w4a16")):
        assert Ran(*words, *more).code == 0, more


def test_the_notes_say_what_the_sums_leave_out() -> None:
    for arch, said in (
        ("demo-8core", "the size of its DRAM is not known, so whether they fit is not checked."),
        (
            "h200-sxm",
            "weights 16.1 GB, KV cache 0.0 GB and activations 0.0 GB a device, of 0.9 x 150.8 GB that may be used",
        ),
    ):
        out = " ".join(Ran("gemms", "llama-3-8b", "--arch", arch, *SHORT, "--phase", "decode").out.split())
        assert said in out
        assert out.endswith(WHAT_COUNTS)


def test_model_writes_nothing_to_disk(tmp_path: Path) -> None:
    assert Ran("gemms", "llama-3-8b", *ARCH, *SHORT).code == 0
    assert not list(tmp_path.rglob("results*"))


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


def test_prewarm_with_the_cache_off_says_that_nothing_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", "off")
    report = Ran("prewarm", "llama-3-8b", *ARCH, *SHORT, "--json").json()

    assert (report["num_unique"], report["num_stored"], report["num_hits_after"]) == (13, 0, 13)


def test_prewarm_options_of_one_phase_and_no_idle_cores() -> None:
    words = ("--phase", "decode", "--no-idle-cores", "--json")
    report = Ran("prewarm", "llama-3-8b", *ARCH, *SHORT, *words).json()

    assert report["num_gemms"] == 7
    for allow, num_known in ((True, 0), (False, 7)):
        evaluator = GEMMEvaluator("demo-8core", allow_idle_cores=allow)
        found = prewarm(evaluator, "llama-3-8b", batch_sizes=[1], seq_lens=[64], phases=["decode"])
        assert found.num_known == num_known


# errors and help

FAILURES = [
    (2, "ModelConfigError", ["llama-9", *ARCH], "did you mean"),
    (2, "ModelConfigError", ["no-such/config.json", *ARCH], "no-such"),
    (2, "ArchNotFoundError", ["llama-3-8b", "--arch", "demo-8cor"], "did you mean demo-8core"),
    (2, "InvalidOptionError", ["llama-3-8b", *ARCH, "--batch", "0"], "--batch must be whole numbers >= 1"),
    (2, "InvalidOptionError", ["llama-3-8b", *ARCH, "--seq-len", "-5"], "--seq-len must be"),
    (2, "InvalidOptionError", ["llama-3-8b", *ARCH, "--tp", "3"], "tensor_parallel must divide"),
    (2, "InvalidOptionError", ["mixtral-8x7b", *ARCH, "--ep", "3"], "expert_parallel"),
    (2, "InvalidProblemError", ["llama-3-8b", *ARCH, "--dtype", "w5a16"], "dtype must be one of"),
    (2, "InvalidProblemError", ["llama-3-8b", *ARCH, "--seq-len", str(1 << 40)], "must be <= 2**57"),
    (2, "UsageError", ["llama-3-8b"], "--arch"),
    (2, "UsageError", [*ARCH], "Missing argument"),
    (2, "UsageError", ["llama-3-8b", *ARCH, "--phase", "train"], "--phase"),
    (2, "InvalidOptionError", ["llama-3-8b", *ARCH, "--batch", "1.5"], "got '1.5'"),
    (2, "UsageError", ["llama-3-8b", *ARCH, "--layers", "1"], "--layers"),
    (3, "UnsupportedError", ["llama-3-8b", "--arch", "tpu-v4", "--dtype", "fp32"], "tpu-v4 cannot multiply fp32"),
]  # fmt: skip


@pytest.mark.parametrize("command", ["gemms", "prewarm"])
@pytest.mark.parametrize(("code", "kind", "words", "message"), FAILURES, ids=[f"{f[1]}-{f[3][:20]}" for f in FAILURES])
def test_an_error_is_one_line_on_stderr(command: str, code: int, kind: str, words: list[str], message: str) -> None:
    text, as_json = Ran(command, *words), Ran(command, *words, "--json")

    assert (text.code, text.out, as_json.code, as_json.out) == (code, "", code, "")
    assert re.fullmatch(r"error: [^\n]+\n", text.err)
    assert message in text.err
    error = json.loads(as_json.err)["error"]
    assert error["type"] == kind
    assert message in error["message"]


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_model_that_does_not_fit_is_exit_3_but_prewarms(tmp_path: Path, words: tuple[str, ...]) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(
        "{name: tiny, num_cores: 1, frequency_ghz: 1.0, cube_m: 16, cube_k: 16, cube_n: 16, sram_bytes: 64, "
        "cube_steps_per_cycle: {fp16: 1.0}, dram_gb_per_s: 100.0, reduction: none}"
    )
    shown, warmed = (Ran(name, "llama-3-8b", "--arch", str(path), *SHORT, *words) for name in ("gemms", "prewarm"))

    assert (shown.code, shown.out, warmed.code) == (3, "", 0)
    assert "levers: sram_bytes >=" in shown.err
    assert re.search(r'"num_infeasible": 13|13 infeasible', warmed.out)


@pytest.mark.parametrize("command", ["gemms", "prewarm"])
def test_help(command: str) -> None:
    ran = Ran(command, "--help")
    words = " ".join(ran.out.split())

    assert (ran.code, ran.err) == (0, "")
    assert "…" not in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80
    for option in ("--arch", "--phase", "--batch", "--seq-len", "--tp", "--ep", "--dtype", "--no-idle-cores", "--json"):
        assert option in words
    assert "[default: 2048]" in words
    assert "Exit codes: 0 ok" in words
    assert (Ran(command).code, Ran(command).err) == (2, "")  # no words at all: help too


def test_experts_have_types_and_loads_of_their_own() -> None:
    words = (
        "gemms",
        "gpt-oss-20b",
        "--arch",
        "h200-sxm",
        *SHORT,
        "--phase",
        "decode",
        "--batch",
        "8",
        "--dtype",
        "bf16",
    )
    found = Ran(*words, "--expert-dtype", "w4a16_mxfp4", "--expert-load", "power_law_1.2", "--json").json()
    options = {"dtype": "bf16", "expert_dtype": "w4a16_mxfp4", "expert_load": "power_law_1.2", "batch_size": 8}
    rows = library("gpt-oss-20b", "decode", "h200-sxm", **options)

    assert found["phases"]["decode"] == document(rows)
    by_name = {gemm.name: gemm.problem for gemm, _ in rows}
    assert by_name["expert_down"].is_weight_quantized
    assert by_name["expert_down"].rows == 8 * 4
    assert not by_name["o_proj"].is_weight_quantized
    assert found["memory"]["weight_bytes"] < 15e9
