"""Sweeps as YAML files: every key, and refusals that name file and key."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from gemm_eval import load_arch
from gemm_eval.arch import GpuSpec
from gemm_eval.errors import InvalidOptionError
from gemm_eval.sweep import (
    Adaptive,
    Grid,
    LatinHypercube,
    LogRange,
    Random,
    Range,
    SweepFile,
    Workload,
    read_sweep_file,
    transformer_workloads,
)
from gemm_eval.sweep.fields import Choices

ROOT = Path(__file__).resolve().parents[2]
MINIMAL = "base: demo-8core\nworkloads:\n  - {name: one, gemms: [[1, 16, 128, 256]]}\n"
MINE = "  - {name: one, gemms: [[1, 16, 128, 256]]}\n"
LLAMA = "base: demo-8core\nworkloads:\n  - {model: llama-3-8b"


def read(folder: Path, text: str) -> SweepFile:
    path = folder / "space.yaml"
    path.write_text(text, encoding="utf-8")
    return read_sweep_file(path)


def test_what_need_not_be_said(tmp_path: Path) -> None:
    asked = read(tmp_path, MINIMAL)

    assert list(asked.space.bases) == ["demo-8core"]
    assert asked.space.fields == asked.space.variables == {}
    (one,) = asked.workloads
    assert (one.name, one.num_tokens) == ("one", None)
    assert [(problem.sizes, str(problem.input_dtype), count) for problem, count in one.gemms] == [
        ((1, 16, 128, 256), "fp16", 1)
    ]
    assert asked.options == {
        "objectives": ["latency_us"], "constraints": [], "sampling": Grid(),
        "allow_idle_cores": False, "library": None, "l2": None, "clock": None,
    }  # fmt: skip


def test_fields_and_variables(tmp_path: Path) -> None:
    asked = read(tmp_path, MINIMAL + """
fields:
  num_cores: [8, 16]
  frequency_ghz: [1500 MHz]
  sram_bytes: {log_range: [256 KiB, 1 MiB], num: 3}
  dram_gb_per_s: {range: [100, 0.4 TB/s], step: 100}
  cube_m: {range: [16, 64], num: 4, step: 16}
  cube_steps_per_cycle: [{fp16: 1.0}, {fp16: 2.0, int8: 4.0}]
  mac_pj.fp16: [0.4, 0.5]
  reduction: [noc, dram]
  vector_is_concurrent: [true, false]
  area_mm2: = num_cores * cost + 1
variables:
  cost: [1.0, 2.5]
  half: = cost / 2
""")  # fmt: skip
    drawn = asked.space.drawn

    assert asked.space.names == (
        "arch", "cost", "half", "num_cores", "frequency_ghz", "sram_bytes", "dram_gb_per_s", "cube_m",
        "cube_steps_per_cycle", "mac_pj.fp16", "reduction", "vector_is_concurrent", "area_mm2",
    )  # fmt: skip
    assert drawn["num_cores"] == Choices((8, 16))
    assert drawn["frequency_ghz"] == Choices((1.5,))
    assert drawn["sram_bytes"] == LogRange(262144, 1048576, 3)
    assert drawn["dram_gb_per_s"] == Range(100.0, 400.0, step=100)
    assert drawn["cube_m"] == Range(16, 64, 4, 16)
    assert drawn["cube_steps_per_cycle"] == Choices(({"fp16": 1.0}, {"fp16": 2.0, "int8": 4.0}))
    assert drawn["vector_is_concurrent"] == Choices((True, False))
    assert asked.space.dependent == {"area_mm2": "num_cores * cost + 1", "half": "cost / 2"}
    assert asked.space.grid_size == 2 * 2 * 3 * 4 * 4 * 2 * 2 * 2 * 2


def test_models_and_gemms(tmp_path: Path) -> None:
    asked = read(tmp_path, """
base: demo-8core
workloads:
  - {model: llama-3-8b}
  - {model: llama-3-8b, name: long, phases: [decode], batch_size: 4, seq_len: 8192, dtype: w8a16, tensor_parallel: 2,
     fused: false}
  - {model: mixtral-8x7b, name: moe, batch_size: 2, seq_len: 64, expert_parallel: 4}
  - {name: mine, gemms: [[1, 16, 128, 256], [2, 16, 128, 256, 5]], num_tokens: 16, dtype: int8}
""")  # fmt: skip
    expected = [
        *transformer_workloads("llama-3-8b", dtype="bf16"),
        *transformer_workloads(
            "llama-3-8b", phases=["decode"], batch_size=4, seq_len=8192, dtype="w8a16", tensor_parallel=2, fused=False
        ),
        *transformer_workloads("mixtral-8x7b", batch_size=2, seq_len=64, expert_parallel=4, dtype="bf16"),
    ]

    assert [one.name for one in asked.workloads] == ["prefill", "decode", "long", "moe_prefill", "moe_decode", "mine"]
    for found, wanted in zip(asked.workloads, expected, strict=False):
        assert found == Workload(found.name, wanted.gemms, wanted.num_tokens, wanted.attention)
    assert [bool(one.attention) for one in asked.workloads] == [True, True, False, True, True, False]
    mine = asked.workloads[-1]
    assert [(problem.sizes, count) for problem, count in mine.gemms] == [((1, 16, 128, 256), 1), ((2, 16, 128, 256), 5)]
    assert (mine.num_tokens, str(mine.gemms[0][0].input_dtype)) == (16, "int8")


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "chips").mkdir()
    (tmp_path / "here").mkdir()
    shutil.copy(ROOT / "arch" / "multicore" / "demo-8core.yaml", tmp_path / "chips" / "mine.yaml")
    monkeypatch.chdir(tmp_path / "here")
    for base in ("../chips/mine.yaml", str(tmp_path / "chips" / "mine.yaml")):
        asked = read(tmp_path / "here", MINIMAL.replace("demo-8core", base))
        assert next(iter(asked.space.bases.values())).num_cores == load_arch("demo-8core").num_cores  # type: ignore[union-attr]
    with pytest.raises(InvalidOptionError, match=r"space\.yaml.*chips/mine\.yaml"):
        read(tmp_path / "here", MINIMAL.replace("demo-8core", "chips/mine.yaml"))


def test_several_bases_and_options_of_gpus(tmp_path: Path) -> None:
    asked = read(tmp_path, MINIMAL.replace("demo-8core", "[h100-sxm, a100-sxm-80gb]") + """
objectives: [latency_us, tflop_per_s]
constraints: [latency_us <= 1000, "num_sms > 100"]
library: cublas
l2: warm
clock: sustained
""")  # fmt: skip
    assert all(isinstance(arch, GpuSpec) for arch in asked.space.bases.values())
    assert list(asked.space.bases) == ["h100-sxm", "a100-sxm-80gb"]
    assert asked.options["objectives"] == ["latency_us", "tflop_per_s"]
    assert asked.options["constraints"] == ["latency_us <= 1000", "num_sms > 100"]
    assert [asked.options[name] for name in ("library", "l2", "clock")] == ["cublas", "warm", "sustained"]


@pytest.mark.parametrize(
    ("text", "sampling"),
    [
        ("{method: grid}", Grid()),
        ("{method: random, num_points: 10, seed: 3}", Random(10, 3)),
        ("{method: latin_hypercube, num_points: 10}", LatinHypercube(10)),
        (
            "{method: adaptive, num_points: 10, batch_size: 5, sampler: tpe, seed: 1}",
            Adaptive(10, batch_size=5, sampler="tpe", seed=1),
        ),
    ],
)
def test_samplings(tmp_path: Path, text: str, sampling: Any) -> None:
    asked = read(tmp_path, MINIMAL + f"allow_idle_cores: true\nsampling: {text}")
    assert asked.options["sampling"] == sampling
    assert asked.options["allow_idle_cores"] is True


def test_the_example_says_what_it_says() -> None:
    asked = read_sweep_file(ROOT / "examples" / "chip_space.yaml")

    assert list(asked.space.bases) == ["demo-8core"]
    assert asked.space.grid_size == 4 * 5 * 4
    assert asked.space.drawn["num_cores"] == Choices((8, 16, 32, 64))
    assert list(asked.workloads) == transformer_workloads("llama-3-8b", batch_size=16, seq_len=2048, dtype="bf16")
    assert asked.options["objectives"] == ["decode_latency_us", "prefill_latency_us", "area_mm2"]
    (row,) = asked.space.grid_rows(0, 1)
    values, why = asked.space.values(row)
    assert why == ""
    assert values["area_mm2"] == pytest.approx(8 * (2.0 + 1.2 * 0.25) + 0.02 * 100.0)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("- a\n", []),
        ("base: [", []),
        ("base: demo-8core\n", ["workloads"]),
        ("base: demo-8core\nworkloads: []\n", ["workloads"]),
        (MINIMAL + "spaces: 1\n", ["spaces"]),
        (MINIMAL + "objectives: latency_us\n", ["objectives"]),
        (MINIMAL + "allow_idle_cores: 1\n", ["allow_idle_cores"]),
        (MINIMAL.replace("demo-8core", "demo-9core"), ["demo-9core"]),
        (MINIMAL.replace("demo-8core", "[]"), ["base"]),
        (MINIMAL.replace("demo-8core", "[demo-8core, demo-8core]"), ["demo-8core"]),
        (MINIMAL + "fields: {num_core: [1]}\n", ["num_core", "num_cores"]),
        (MINIMAL + "fields: {num_cores: []}\n", ["num_cores"]),
        (MINIMAL + "fields: {num_cores: {range: 8}}\n", ["num_cores", "range: [low, high]"]),
        (MINIMAL + "fields: {num_cores: {range: [8, 4]}}\n", ["num_cores", "low < high"]),
        (MINIMAL + "fields: {num_cores: {range: [1, 8], number: 5}}\n", ["num_cores", "number"]),
        (MINIMAL + "fields: {sram_bytes: {log_range: [0, 8], num: 2}}\n", ["sram_bytes", "1e-100 <= low < high"]),
        (MINIMAL + "fields: {sram_bytes: {log_range: [1, 8], range: [1, 8]}}\n", ["sram_bytes"]),
        (MINIMAL + "fields: {area_mm2: = cores * 2}\n", ["area_mm2", "cores"]),
        (MINIMAL + "variables: {num_cores: [1]}\n", ["num_cores"]),
        (MINIMAL + 'variables: {x: ["\\e]0;title\\a"]}\n', ["none of them a control character", "x1b]0;title"]),
        (MINIMAL + 'variables: {"x\\e[1m": [1]}\n', ["a variable's name is of letters"]),
        (MINIMAL.replace("name: one", 'name: "one\\e[1m"'), ["workloads, 1", "a workload's name is of letters"]),
        (MINIMAL + "sampling: {method: sobol}\n", ["sampling", "latin_hypercube", "'sobol'"]),
        (MINIMAL + "sampling: {num_points: 5}\n", ["sampling", "method"]),
        (MINIMAL + "sampling: {method: random, num_points: 0}\n", ["sampling", "random", "num_points", "0"]),
        (MINIMAL + "sampling: {method: grid, num_points: 5}\n", ["sampling", "grid", "num_points"]),
        (MINIMAL + MINE, ["one, one"]),
        (MINIMAL + "  - {gemms: [[1, 2, 3, 4]]}\n", ["workloads, 2", "name"]),
        (MINIMAL + "  - {name: two, gemms: [[1, 2, 3]]}\n", ["workloads, 2", "[G, M, K, N, count]"]),
        (MINIMAL + "  - {name: two, gemms: [[1, 2, 3, 4, 0]]}\n", ["workloads, 2", "count"]),
        (MINIMAL + "  - {name: two, gemms: [[1, 2, 3, 4]], dtype: fp7}\n", ["workloads, 2", "fp7"]),
        (MINIMAL + "  - {name: two, gemms: [[1, 2, 3, 4]], batch: 1}\n", ["workloads, 2", "batch"]),
        (MINIMAL + "  - two\n", ["workloads"]),
        (LLAMA.replace("3-8b", "9-8b") + "}", ["workloads, 1", "llama-9-8b"]),
        (LLAMA + ", batch_size: 0}", ["workloads, 1", "batch_size"]),
        (LLAMA + ", phases: [training]}", ["workloads, 1", "phases"]),
        (LLAMA + ", dtype: fp7}", ["workloads, 1", "fp7"]),
        (LLAMA + ", tensor_parallel: 3}", ["workloads, 1", "3"]),
    ],
)
def test_refusals_name_file_and_key(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(InvalidOptionError) as caught:
        read(tmp_path, text)
    for word in [str(tmp_path / "space.yaml"), *words]:
        assert word in str(caught.value)
