"""The command line: errors, help, appearance, a process of its own, words and numbers."""

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

import gemm_eval
from gemm_eval import GEMMEvaluator
from gemm_eval.cli.app import app
from gemm_eval.cli.output import format_change, format_number, format_share, print_json
from gemm_eval.cli.values import format_mapping, parse_mapping
from tests.cli.commands import DEMO, WORDS, Ran, chip_file, demo, plain

pytestmark = pytest.mark.usefixtures("compiled_kernels")


def run_process(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from gemm_eval.cli import main; main()", *words]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **env}, timeout=300, check=False)


# errors and exit codes


def test_infeasible_is_exit_3(tmp_path: Path) -> None:
    ran = Ran("evaluate", "--arch", chip_file(tmp_path, sram_bytes=64), *WORDS)

    assert (ran.code, ran.out) == (3, "")
    assert "would fit with: sram_bytes >=" in ran.err


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
        [], ["evaluate"], ["top"], ["grouped"], ["attention"], ["collective"], ["gemms"], ["model"], ["train"], ["moe"],
        ["prewarm"], ["serve"],
        ["kernels"], ["asm"],
        ["profile"], ["crossover"], ["sweep"], ["pareto"], ["report"], ["schema"],
        ["measure"], ["measure", "gpu"], ["measure", "host"],
        ["validate"], ["validate", "dense"], ["validate", "gpu"], ["validate", "moe"], ["validate", "attention"],
        ["validate", "collective"], ["validate", "memory-bound"], ["validate", "mixers"], ["validate", "stacks"],
        ["validate", "served"], ["validate", "training"],
        ["validate", "w4a16"], ["validate", "multicore"], ["validate", "triton"],
        ["calibrate"], ["calibrate", "dense"], ["calibrate", "correction"], ["calibrate", "intervals"],
        ["calibrate", "quantization"],
        ["calibrate", "moe"], ["calibrate", "attention"],
        ["calibrate", "collective"], ["calibrate", "memory-bound"], ["calibrate", "mixers"], ["calibrate", "served"],
        ["calibrate", "w4a16"], ["calibrate", "multicore"], ["calibrate", "triton"],
        ["arch"], ["arch", "list"], ["arch", "show"], ["arch", "check"],
        ["configs"], ["configs", "build"], ["configs", "list"], ["configs", "merge"],
        ["checkpoint"], ["checkpoint", "convert"], ["checkpoint", "show"],
    ]  # fmt: skip
    for path, command in found:
        ran = Ran(*path, "--help")
        assert ran.code == 0
        assert "Exit codes: 0 ok; 1 a check failed, or a folder could not be written; 2 wrong usage" in " ".join(
            ran.out.split()
        )
        assert "…" not in ran.out
        assert max(map(len, ran.out.splitlines())) <= 80
        if command.no_args_is_help:
            bare = Ran(*path)
            assert (bare.code, bare.err) == (2, "")
            assert re.search(rf"Usage: .*{' '.join(path)} \[OPTIONS\]", bare.out)
        texts = [command.help, *(getattr(parameter, "help", None) for parameter in command.params)]
        brackets = re.findall(r"\S*\[[^\]]*\]", " ".join((text or "").replace("\\[", "[") for text in texts))
        lines = " ".join(Ran(*path, "--help", columns=400).out.split()) if brackets else ""
        for words in brackets:
            assert " ".join(words.split()) in lines, f"{path}: rich took {words} for a style"
        for parameter in command.params:
            if getattr(parameter, "expose_value", True):
                assert parameter.help, f"{path}: {parameter.name}"


def test_the_package_is_the_command() -> None:
    command = [sys.executable, "-m", "gemm_eval", "--version"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert (ran.stdout, ran.stderr) == (f"gemm-eval {gemm_eval.__version__}\n", "")


TEXT_COMMANDS = [
    ["evaluate", *DEMO, "--arch", "ascend-910", "-m", "1..4096", "-k", "4096,14336", "-n", "4096"],
    ["evaluate", *DEMO, "--arch", "sg2260e", "--arch", "ascend-910", "16", "4096", "4096", "28672"],
    ["evaluate", *DEMO, "--dtype", "w4a16", "--zero-dtype", "fp16", *WORDS],
    ["top", *DEMO, "16", "4096", "4096", "28672"],
    ["top", "--arch", "h200-sxm", *WORDS, "-c", "4"],
    ["gemms", "llama-3-8b", *DEMO, "--seq-len", "16", "--memory"],
    ["model", "llama-3-8b", *DEMO, "--batch", "1,16", "--prompt", "64,4096", "--memory"],
    ["moe", *DEMO, "--tokens", "2,4096", "--model", "mixtral-8x7b"],
    ["attention", *DEMO, "--arch", "ascend-910", "--batch", "1,64", "--kv", "2048", "--heads", "32"],
    ["collective", "--arch", "h200-sxm", "all_reduce", "1KiB..16MiB", "--ranks", "2,8"],
    ["kernels", "--arch", "h200-sxm", "64", "4096", "4096"],
    ["arch", "list"],
    ["arch", "show", "ascend-910"],
    ["arch", "check", "ascend-910", "demo-8core"],
]


@pytest.mark.parametrize("words", TEXT_COMMANDS, ids=" ".join)
def test_80_columns_are_enough(words: list[str]) -> None:
    narrow, wide = Ran(*words, columns=80), Ran(*words, columns=400)

    assert [line for line in narrow.out.splitlines() if len(line) > 80 and " " in line.strip()] == []  # but for links
    assert "…" not in narrow.out
    numbers = re.findall(r"\d[\d,.]*\d", wide.out)
    assert len(numbers) > 10
    # "0.00" only pads a row that another arch fills, and they may stand in different tables
    assert [number for number in numbers if number not in narrow.out and number != "0.00"] == []


# as a process of its own


def test_process_writes_json_on_stdout_and_nothing_else() -> None:
    ran = run_process("evaluate", *DEMO, *WORDS, "--json")

    assert ran.returncode == 0
    assert json.loads(ran.stdout)["results"][0] == plain(demo().to_dict())


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
        [*command, "top", *DEMO, *WORDS, "-c", "1000", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
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
