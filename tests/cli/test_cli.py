"""The command line: what it prints, on which stream, and with which exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import gemm_eval
from gemm_eval import GEMMEvaluator, GEMMResult, load_arch
from gemm_eval.arch import GpuSpec, check_arch, list_archs
from gemm_eval.cli.app import app
from gemm_eval.cli.options import format_mapping, integer, parse_mapping
from gemm_eval.cli.output import format_change, format_number, format_share, print_json
from gemm_eval.cli.render_arch import unit_of
from gemm_eval.cli.render_top import describe_difference
from gemm_eval.workload import make_problem

SIZES = (1, 512, 4096, 1024)
WORDS = tuple(map(str, SIZES))
DEMO = ("--arch", "demo-8core")
BARE_CHIP = """
name: bare
num_cores: 1
frequency_ghz: 1.0
cube_m: 16
cube_k: 16
cube_n: 16
cube_steps_per_cycle: {fp16: 1.0}
sram_bytes: SRAM
dram_gb_per_s: 100.0
reduction: none
"""


@pytest.fixture(scope="module", autouse=True)
def compiled_kernels() -> None:
    """Compile what the commands call: the first compile of a machine says so on stderr."""
    evaluator = GEMMEvaluator("demo-8core")
    result = evaluator.evaluate(*SIZES)
    evaluator.evaluate_mapping(result.problem, result.mapping)


class Ran:
    """Exit code, stdout and stderr of one run."""

    def __init__(self, *words: str, columns: int = 80) -> None:
        env = {"COLUMNS": str(columns), "TERM": "dumb", "FORCE_COLOR": None, "NO_COLOR": None}
        result = CliRunner().invoke(app, list(words), env=env)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        self.code, self.out, self.err = result.exit_code, result.stdout, result.stderr

    def json(self) -> Any:
        assert (self.code, self.err) == (0, "")
        return json.loads(self.out, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


def run_process(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from gemm_eval.cli import main; main()", *words]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env}, timeout=300, check=False)


def plain(document: Any) -> Any:
    return json.loads(json.dumps(document))


def demo(**options: Any) -> GEMMResult:
    return GEMMEvaluator("demo-8core").evaluate(*SIZES, **options)


def chip_file(folder: Path, sram_bytes: int = 1 << 20, more: str = "") -> str:
    path = folder / "bare.yaml"
    path.write_text(BARE_CHIP.replace("SRAM", str(sram_bytes)) + more)
    return str(path)


# evaluate


def test_evaluate_json_is_the_library_result() -> None:
    assert Ran("evaluate", *DEMO, *WORDS, "--json").json() == {"results": [plain(demo().to_dict())]}


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (["--dtype", "w4a16"], {"dtype": "w4a16"}),
        (["--input-dtype", "bf16"], {"input_dtype": "bf16"}),
        (["--weight-dtype", "int8"], {"weight_dtype": "int8"}),
        (["--output-dtype", "fp32"], {"output_dtype": "fp32"}),
        (["--dtype", "w4a16", "--group-size", "64"], {"dtype": "w4a16", "group_size": 64}),
        (["--dtype", "w4a16", "--group-size", "-1"], {"dtype": "w4a16", "group_size": -1}),
        (["--dtype", "w4a16", "--zero-dtype", "fp16"], {"dtype": "w4a16", "zero_dtype": "fp16"}),
    ],
)
@pytest.mark.parametrize("command", ["evaluate", "top"])
def test_type_options_reach_the_library(command: str, words: list[str], options: dict[str, Any]) -> None:
    document = Ran(command, *DEMO, *WORDS, *words, "--json").json()

    assert document["results"][0]["problem"] == plain(demo(**options).to_dict()["problem"])
    assert document["results"][0]["problem"] != plain(demo().to_dict()["problem"])


@pytest.mark.parametrize("command", ["evaluate", "top"])
def test_no_idle_cores_reaches_the_library(command: str) -> None:
    words = (command, *DEMO, "1", "16", "16", "16", "--json")
    idle, busy = (
        GEMMEvaluator("demo-8core", allow_idle_cores=allow).evaluate(1, 16, 16, 16) for allow in (True, False)
    )
    assert idle.mapping != busy.mapping

    assert Ran(*words).json()["results"][0]["mapping"] == plain(idle.to_dict()["mapping"])
    assert Ran(*words, "--no-idle-cores").json()["results"][0]["mapping"] == plain(busy.to_dict()["mapping"])


def test_evaluate_compares_archs_in_the_order_given() -> None:
    archs = ["sg2260e", "demo-8core", "ascend-910"]
    words = [word for name in archs for word in ("--arch", name)]

    results = Ran("evaluate", *words, *WORDS, "--json").json()["results"]
    text = Ran("evaluate", *words, *WORDS, "--no-explain", columns=200)

    assert [result["arch_name"] for result in results] == archs
    assert results == [plain(GEMMEvaluator(name).evaluate(*SIZES).to_dict()) for name in archs]
    (row,) = re.findall(r"^latency, us(.*)$", text.out, flags=re.MULTILINE)
    assert row.split() == [format_number(result["latency_us"]) for result in results]


def test_evaluate_prints_what_the_result_says() -> None:
    result = demo()
    assert result.energy_pj is not None

    out = Ran("evaluate", *DEMO, *WORDS).out

    rows = dict(re.findall(r"^ *(\S.*?)  +(\S.*?) *$", out, flags=re.MULTILINE))
    assert rows["latency, us"] == format_number(result.latency_us)
    assert rows["TFLOP/s"] == format_number(result.tflop_per_s)
    assert rows["utilization of peak"] == f"{result.utilization_frac:.1%}"
    assert rows["bound by"] == result.bound
    assert rows["DRAM, bytes"] == f"{result.dram_bytes:,}"
    assert rows["DRAM, GB/s (of peak)"].startswith(format_number(result.dram_gb_per_s))
    assert rows["energy, uJ"] == format_number(result.energy_pj / 1e6)
    assert rows["active cores"] == "8 of 8"
    assert rows["matrix"].startswith(format_number(result.breakdown["matrix_us"]))
    assert rows["hidden by overlap"].startswith(format_number(result.breakdown["hidden_us"]))
    assert rows["B"].startswith(f"{result.traffic['b_bytes']:,} (")
    assert rows["--mapping"] == format_mapping(result.mapping)
    assert "".join(result.explain().split()) in "".join(out.split())


def test_evaluate_leaves_out_unknown_energy_and_explanations_on_demand() -> None:
    out = Ran("evaluate", "--arch", "sg2260e", *WORDS, "--no-explain").out

    assert "energy" not in out
    assert "Would help" not in out


def test_explanation_in_json_on_demand_only() -> None:
    words = ("evaluate", *DEMO, *WORDS, "--json")

    assert "explanation" not in Ran(*words).json()["results"][0]
    assert Ran(*words, "--explain").json()["results"][0]["explanation"] == demo().explain()


def test_mapping_is_replayed() -> None:
    evaluator = GEMMEvaluator("demo-8core")
    text = "1,4,2,1/128,256,144/nkm"

    problem = make_problem(*SIZES, default_dtype=evaluator.arch.default_dtype)
    expected = evaluator.evaluate_mapping(problem, parse_mapping(text))

    assert Ran("evaluate", *DEMO, *WORDS, "--mapping", text, "--json").json() == {
        "results": [plain(expected.to_dict())]
    }
    assert expected.latency_us != demo().latency_us


def test_printed_mapping_can_be_replayed() -> None:
    out = Ran("evaluate", *DEMO, *WORDS, "--no-explain").out
    (text,) = re.findall(r"^--mapping +(\S+)", out, flags=re.MULTILINE)

    (replayed,) = Ran("evaluate", *DEMO, *WORDS, "--mapping", text, "--json").json()["results"]

    assert parse_mapping(text) == demo().mapping
    assert replayed["latency_us"] == demo().latency_us


# top


@pytest.mark.parametrize("distinct", ["mapping", "partition"])
def test_top_json_is_the_library_ranking(distinct: Any) -> None:
    expected = GEMMEvaluator("demo-8core").top(demo().problem, 7, distinct=distinct)

    document = Ran("top", *DEMO, *WORDS, "-k", "7", "--distinct", distinct, "--json").json()

    assert document == {"results": [plain(result.to_dict()) for result in expected]}


def test_top_lists_ten_by_default() -> None:
    assert len(Ran("top", *DEMO, *WORDS, "--json").json()["results"]) == 10


@pytest.mark.parametrize("columns", [80, 300])
def test_top_table_shows_every_result(columns: int) -> None:
    results = GEMMEvaluator("demo-8core").top(demo().problem, 12)

    out = Ran("top", *DEMO, *WORDS, "-k", "12", columns=columns).out

    assert re.findall(r"^ *(\d+) ", out, flags=re.MULTILINE) == [str(rank) for rank in range(1, 13)]
    for result in results:
        assert format_number(result.latency_us) in out
        assert f"{result.dram_bytes:,}" in out
        assert f"{result.sram_used_bytes:,}" in out
        assert "x".join(map(str, result.mapping.tile)) in out
        assert ",".join(map(str, result.mapping.partition)) in out
    assert format_change(results[-1].latency_us, results[0].latency_us) in out


def test_difference_names_choices_and_their_effect() -> None:
    evaluator = GEMMEvaluator("demo-8core")
    problem = demo().problem
    best = evaluator.evaluate_mapping(problem, parse_mapping("1,2,4,1/256,256,352/mnk"))

    def words(mapping: str) -> str:
        return describe_difference(best, evaluator.evaluate_mapping(problem, parse_mapping(mapping)))

    assert words("1,2,4,1/256,256,352/mnk") == "nothing; same cost"
    assert words("1,2,4,1/256,256,352/nmk") == "loop order; same cost"
    assert words("1,2,4,1/256,128,352/mnk") == "tile; more DRAM traffic: A; fill drain +0.3840 us; bound by dram"
    assert words("1,2,4,1/256,128,352/kmn") == (
        "tile, loop order; more DRAM traffic: C spill, C refill; fill drain +0.3840 us; bound by dram"
    )
    assert words("1,2,2,1/256,256,352/mnk").startswith(
        "partition; 4 fewer active cores; more DRAM traffic: A; matrix +"
    )


# arch


def test_arch_list_json() -> None:
    documents = Ran("arch", "list", "--json").json()["archs"]

    assert [document["name"] for document in documents] == list(list_archs())
    chip = load_arch("sg2260e")
    (shown,) = (document for document in documents if document["name"] == "sg2260e")
    assert shown == {
        "name": "sg2260e",
        "type": "multicore",
        "title": chip.title,
        "num_cores": 4,
        "default_dtype": "fp16",
        "peak_tflop_per_s": chip.peak_tflop_per_s(),
        "dram_gb_per_s": 273.056,
        "sram_total_bytes": 64 << 20,
        "is_coarse": False,
    }


def test_arch_list_json_of_a_gpu() -> None:
    documents = Ran("arch", "list", "--json").json()["archs"]

    (shown,) = (document for document in documents if document["name"] == "h200-sxm")
    gpu = load_arch("h200-sxm", GpuSpec)
    assert shown == {
        "name": "h200-sxm",
        "type": "gpu",
        "title": gpu.title,
        "sm_arch": "sm_90",
        "num_sms": 132,
        "default_dtype": "fp16",
        "peak_tflop_per_s": gpu.peak_tflop_per_s(),
        "dram_gb_per_s": 4800.0,
        "l2_bytes": 60 << 20,
    }


def test_arch_list_has_a_table_for_each_kind() -> None:
    out = Ran("arch", "list", columns=120).out

    multicore, gpu = out.index("\nmulticore "), out.index("\ngpu ")
    assert multicore < out.index("\nwormhole-n150 ") < gpu < out.index("\na100-sxm-40gb ")
    assert re.search(r"^h200-sxm +132 +989\.43 fp16 +4,800 +60 +NVIDIA H200 SXM", out, flags=re.MULTILINE)


def test_arch_show_groups_the_fields_of_a_gpu() -> None:
    gpu = load_arch("h200-sxm", GpuSpec)

    out = Ran("arch", "show", "h200-sxm", columns=200).out

    titles = ["chip and clocks", "tensor cores of an SM", "instruction issue and ALUs", "L2 and DRAM", "fixed costs"]
    places = [re.search(rf"^{title}", out, flags=re.MULTILINE) for title in titles]
    starts = [place.start() for place in places if place]
    assert len(starts) == len(titles)
    assert starts == sorted(starts)
    for name, entry in gpu.provenance.items():
        (line,) = re.findall(rf"^{re.escape(name)} .*$", out, flags=re.MULTILINE)
        assert f"{entry.kind}: {entry.source}" in line
    assert re.search(r"^fp16 +989\.4298 +989\.4 +919\.1 +773\.2", out, flags=re.MULTILINE)


def test_arch_show_json_of_a_gpu() -> None:
    gpu = load_arch("h200-sxm", GpuSpec)

    document = Ran("arch", "show", "h200-sxm", "--json").json()

    assert document["arch"] == gpu.model_dump(mode="json")
    assert document["derived"]["sustained_tflop_per_s"]["bf16"] == gpu.tensor_tflop_per_s("bf16", "sustained")
    assert document["derived"]["dram_achievable_gb_per_s"] == 4500.0
    assert document["units"]["l2_bytes_per_cycle"] == "bytes/cycle"


def test_arch_list_marks_what_is_coarse_and_keeps_names_whole() -> None:
    out = Ran("arch", "list").out

    for name in list_archs():
        assert re.search(rf"^{re.escape(name)} ", out, flags=re.MULTILINE)
    assert re.findall(r"^(\S+) \*", out, flags=re.MULTILINE) == [
        name for name in list_archs() if getattr(load_arch(name), "is_coarse", False)
    ]
    assert re.search(r"^sg2260e +4 +65\.54 fp16 +273\.056 +64 ", out, flags=re.MULTILINE)


def test_arch_show_gives_unit_kind_and_source_of_every_number() -> None:
    chip = load_arch("demo-8core")

    out = Ran("arch", "show", "demo-8core", columns=200).out

    for name, entry in chip.provenance.items():
        (line,) = re.findall(rf"^{re.escape(name)} .*$", out, flags=re.MULTILINE)
        assert f"{entry.kind}: {entry.source}" in line
        assert f" {unit_of(name.split('.')[0])} " in line
    assert re.search(r"^vector_is_concurrent +true +default", out, flags=re.MULTILINE)
    assert re.search(r"^dram_sharing +fair +choice", out, flags=re.MULTILINE)
    assert re.search(r"^int8 +131\.072 ", out, flags=re.MULTILINE)


def test_arch_show_json_is_the_spec() -> None:
    chip = load_arch("tpu-v4")

    document = Ran("arch", "show", "tpu-v4", "--json").json()

    assert document["arch"] == chip.model_dump(mode="json")
    assert document["derived"]["peak_tflop_per_s"] == {
        "bf16": chip.peak_tflop_per_s(),
        "int8": chip.peak_tflop_per_s("int8"),
    }
    assert document["units"]["dram_pj_per_byte"] == "pJ/byte"


def test_every_number_of_a_spec_has_a_unit() -> None:
    for name in list_archs():
        for key in load_arch(name).provenance:
            assert unit_of(key.split(".")[0]), key
    assert unit_of("title") == ""


def test_arch_check_of_all_presets_passes_and_lists_each_finding() -> None:
    document = Ran("arch", "check", *list_archs(), "--json").json()

    assert document["ok"] is True
    for entry in document["archs"]:
        expected = [
            finding._asdict() | {"is_note": finding.is_note} for finding in check_arch(load_arch(entry["arch"]))
        ]
        assert entry["findings"] == expected


def test_arch_check_fails_on_a_missed_figure(tmp_path: Path) -> None:
    path = chip_file(tmp_path, more="published: {dram_gb_per_s: 120.0, source: a sheet}\n")

    text, document = Ran("arch", "check", "tpu-v4", path, columns=200), Ran("arch", "check", path, "--json")

    assert (text.code, text.err) == (1, "")
    assert re.search(r"FAILED +dram_gb_per_s +100 GB/s, published 120 \(-16.67%", text.out)
    assert re.search(r" note +num_cores +1 has no kind and source", text.out)
    assert "tpu-v4" in text.out
    assert document.code == 1
    assert json.loads(document.out)["ok"] is False


def test_arch_check_goes_on_after_an_invalid_file(tmp_path: Path) -> None:
    ran = Ran("arch", "check", chip_file(tmp_path, sram_bytes=-1), "tpu-v4", columns=300)

    assert ran.code == 1
    assert "sram_bytes must be >= 1, got -1" in ran.out
    assert "275 (+0.09%)" in ran.out


# errors and exit codes

FAILURES = [
    (2, "UsageError", ["evaluate", *DEMO, "-4", "1", "1", "1"], "No such option: -4; a size is an integer >= 1"),
    (2, "InvalidProblemError", ["top", *DEMO, "1", "0", "1", "1"], "M must be in 1..2**40, got 0"),
    (2, "InvalidProblemError", ["evaluate", *DEMO, "1", "1", "4096.0", "1"], "K must be an integer >= 1, got '4096.0'"),
    (2, "InvalidProblemError", ["evaluate", *DEMO, "1", "1", "1", "4k"], "N must be an integer >= 1, got '4k'"),
    (2, "InvalidProblemError", ["evaluate", *DEMO, "1", "1", "1", "9" * 30], "N must be in 1..2**40, got a number of"),
    (2, "InvalidProblemError", ["evaluate", *DEMO, *WORDS, "--dtype", "fp61"], "dtype must be one of"),
    (2, "InvalidProblemError", ["evaluate", *DEMO, *WORDS, "--group-size", "64"], "group_size is for quantized"),
    (2, "InvalidMappingError", ["evaluate", *DEMO, *WORDS, "--mapping", "1,4,2/256"], "--mapping must be P_G,P_M"),
    (2, "InvalidMappingError", ["evaluate", *DEMO, *WORDS, "--mapping", "9,1,1,1/16,16,16/mnk"], "<= num_cores"),
    (2, "InvalidOptionError", ["top", *DEMO, *WORDS, "-k", "0"], "k must be an integer in 1..10000, got 0"),
    (2, "ArchNotFoundError", ["evaluate", "--arch", "demo-8cor", *WORDS], "did you mean demo-8core"),
    (2, "ArchNotFoundError", ["arch", "show", "nowhere.yaml"], "nowhere.yaml"),
    (2, "ArchNotFoundError", ["arch", "check", "nowhere.yaml"], "nowhere.yaml"),
    (2, "UsageError", ["evaluate", *DEMO, "1", "1", "1"], "Missing argument"),
    (2, "UsageError", ["evaluate", *WORDS], "--arch"),
    (2, "UsageError", ["evaluate", *DEMO, *WORDS, "--expalin"], "--expalin"),
    (2, "UsageError", ["evaluate", *DEMO, "--dtyp", "w4a16", *WORDS], "No such option: --dtyp, did you mean --dtype?"),
    (2, "UsageError", ["top", *DEMO, *WORDS, "-k", "ten"], "-k"),
    (2, "UsageError", ["top", *DEMO, *WORDS, "--distinct", "tile"], "--distinct"),
    (2, "UsageError", ["evlauate"], "evlauate"),
    (3, "UnsupportedError", ["evaluate", "--arch", "tpu-v4", *WORDS, "--dtype", "fp32"], "tpu-v4 cannot multiply fp32"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "kind", "words", "message"), FAILURES, ids=[f"{f[1]}-{f[3][:20]}" for f in FAILURES])
def test_an_error_is_one_line_on_stderr(code: int, kind: str, words: list[str], message: str) -> None:
    text, document = Ran(*words), Ran(*words, "--json")

    assert (text.code, text.out) == (code, "")
    assert re.fullmatch(r"error: [^\n]+\n", text.err)
    assert message in text.err
    assert (document.code, document.out) == (code, "")
    error = json.loads(document.err)["error"]
    assert error["type"] == kind
    assert message in error["message"]


def test_infeasible_is_exit_3(tmp_path: Path) -> None:
    ran = Ran("evaluate", "--arch", chip_file(tmp_path, sram_bytes=64), *WORDS)

    assert (ran.code, ran.out) == (3, "")
    assert "levers: sram_bytes >=" in ran.err


def test_an_exception_that_is_not_ours_goes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(GEMMEvaluator, "evaluate_problem", broken)

    with pytest.raises(ZeroDivisionError, match="a bug"):
        Ran("evaluate", *DEMO, *WORDS)


def test_a_nan_never_becomes_json() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        print_json({"latency_us": float("nan")})


# help and appearance


def test_help_describes_every_option_and_the_exit_codes() -> None:
    def commands(command: Any, path: list[str]) -> Iterator[tuple[list[str], Any]]:
        yield path, command
        for name, child in getattr(command, "commands", {}).items():
            yield from commands(child, [*path, name])

    found = list(commands(typer.main.get_command(app), []))
    assert [path for path, _ in found] == [
        [], ["evaluate"], ["top"], ["model"], ["prewarm"], ["kernels"], ["asm"], ["kernel-table"], ["measure"],
        ["profile"], ["crossover"], ["sweep"], ["pareto"], ["report"],
        ["validate"], ["validate", "dense"], ["validate", "w4a16"], ["validate", "triton"],
        ["calibrate"], ["calibrate", "dense"], ["calibrate", "w4a16"], ["calibrate", "triton"],
        ["arch"], ["arch", "list"], ["arch", "show"], ["arch", "check"],
        ["configs"], ["configs", "build"], ["configs", "list"], ["configs", "merge"],
    ]  # fmt: skip
    for path, command in found:
        ran = Ran(*path, "--help")
        assert ran.code == 0
        assert "Exit codes: 0 ok; 1 a check failed, or a folder could not be written; 2 wrong usage" in " ".join(
            ran.out.split()
        )
        assert "…" not in ran.out
        for parameter in command.params:
            if getattr(parameter, "expose_value", True):
                assert parameter.help, f"{path}: {parameter.name}"


@pytest.mark.parametrize(
    "words",
    [
        [], ["evaluate"], ["top"], ["model"], ["prewarm"], ["calibrate"], ["calibrate", "dense"],
        ["calibrate", "w4a16"], ["calibrate", "triton"], ["arch"], ["arch", "show"], ["arch", "check"],
    ],
)  # fmt: skip
def test_no_arguments_is_help(words: list[str]) -> None:
    ran = Ran(*words)

    assert ran.code == 2
    assert ran.err == ""
    assert re.search(rf"Usage: .*{' '.join(words)} \[OPTIONS\]", ran.out)


def test_version() -> None:
    assert Ran("--version").out == f"gemm-eval {gemm_eval.__version__}\n"


def test_the_package_is_the_command() -> None:
    command = [sys.executable, "-m", "gemm_eval", "--version"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert (ran.stdout, ran.stderr) == (f"gemm-eval {gemm_eval.__version__}\n", "")


TEXT_COMMANDS = [
    ["evaluate", *DEMO, "--arch", "sg2260e", "--arch", "ascend-910", "16", "4096", "4096", "28672"],
    ["evaluate", *DEMO, "--dtype", "w4a16", "--zero-dtype", "fp16", *WORDS],
    ["top", *DEMO, "16", "4096", "4096", "28672"],
    ["arch", "list"],
    ["arch", "show", "ascend-910"],
    ["arch", "check", "ascend-910", "demo-8core"],
]


@pytest.mark.parametrize("words", TEXT_COMMANDS, ids=" ".join)
def test_80_columns_are_enough(words: list[str]) -> None:
    narrow, wide = Ran(*words, columns=80), Ran(*words, columns=400)

    assert max(map(len, narrow.out.splitlines())) <= 80
    assert "…" not in narrow.out
    numbers = re.findall(r"\d[\d,.]*\d", wide.out)
    assert len(numbers) > 10
    # "0.00" only pads a row that another arch fills, and they may stand in different tables
    assert [number for number in numbers if number not in narrow.out and number != "0.00"] == []


@pytest.mark.parametrize("words", TEXT_COMMANDS, ids=" ".join)
def test_a_very_narrow_terminal_loses_no_character_of_its_numbers(words: list[str]) -> None:
    wide, narrow = Ran(*words, columns=80).out, Ran(*words, columns=30).out

    assert "…" not in narrow
    assert max(map(len, narrow.splitlines())) <= 30
    assert sum(map(str.isdigit, narrow)) >= sum(map(str.isdigit, wide))


# as a process of its own


def test_process_writes_json_on_stdout_and_nothing_else() -> None:
    ran = run_process("evaluate", *DEMO, *WORDS, "--json")

    assert ran.returncode == 0
    assert json.loads(ran.stdout)["results"][0] == plain(demo().to_dict())


def test_process_writes_errors_on_stderr() -> None:
    ran = run_process("evaluate", *DEMO, "0", "1", "1", "1")

    assert (ran.returncode, ran.stdout, ran.stderr) == (2, "", "error: G must be in 1..2**40, got 0\n")


def test_process_without_a_terminal_prints_no_escape_codes() -> None:
    ran = run_process("top", *DEMO, *WORDS, NO_COLOR="1")

    assert ran.returncode == 0
    assert "\x1b" not in ran.stdout


@pytest.mark.parametrize(
    ("words", "imports_numba"),
    [(["--help"], False), (["evaluate", "--help"], False), (["arch", "list"], False), (["top", *DEMO, *WORDS], True)],
    ids=str,
)
def test_only_commands_that_compute_import_numba(words: list[str], imports_numba: bool) -> None:
    code = (
        "import atexit, sys; from gemm_eval.cli import main; "
        "atexit.register(lambda: sys.stderr.write(f'numba={\"numba\" in sys.modules}')); main()"
    )
    ran = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=300, check=True)

    assert ran.stderr.endswith(f"numba={imports_numba}")
    assert ran.stdout


@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="no SIGPIPE on this system")
def test_a_reader_that_leaves_early_is_no_error() -> None:
    command = [sys.executable, "-c", "from gemm_eval.cli import main; main()"]
    with subprocess.Popen(
        [*command, "top", *DEMO, *WORDS, "-k", "1000", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"{\n"
        process.stdout.close()
        errors = process.stderr.read()

    assert b"Traceback" not in errors
    assert b"Broken" not in errors
    assert process.returncode == -signal.SIGPIPE


# words and numbers


@pytest.mark.parametrize(
    ("text", "value"), [("4096", 4096), ("-4", -4), ("4_096", 4096), ("4096.0", "4096.0"), ("", ""), ("1e3", "1e3")]
)
def test_integer_leaves_judgement_to_the_library(text: str, value: object) -> None:
    assert integer(text) == value


@pytest.mark.parametrize("text", ["1,4,2,1/256,512,144/mnk", "1,1,1,8/1,2,3/KNM", " 1, 4,2,1 / 256,512,144 / nmk "])
def test_mapping_text_comes_back(text: str) -> None:
    mapping = parse_mapping(text)

    assert format_mapping(mapping) == text.replace(" ", "").lower()
    assert parse_mapping(format_mapping(mapping)) == mapping


def test_numbers_as_text() -> None:
    assert [format_number(x) for x in (0.0, 0.00012346, 1.0, 9.87654, -10.006, 1234567.891)] == [
        "0.00", "0.0001235", "1.000", "9.877", "-10.01", "1,234,567.89",
    ]  # fmt: skip
    assert [format_change(x, 2.0) for x in (2.0, 3.0, 1.0)] == ["=", "+50.00%", "-50.00%"]
    assert format_change(1.0, 0.0) == "new"
    assert (format_share(1.0, 8.0), format_share(0.0, 0.0)) == ("12.5%", "-")
