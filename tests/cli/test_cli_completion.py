"""What a shell completes, asked as bash asks: words in the environment, answers on stdout."""

import os
import subprocess
import sys

import pytest

from gemm_eval import list_archs, list_models
from gemm_eval.cli import options as completion
from gemm_eval.dtypes import parse_dtype, parse_scheme
from gemm_eval.validation.exam import gpus_with
from gemm_eval.validation.subjects import memory_bound
from gemm_eval.validation.subjects.chip_timings import chips_with_timings
from gemm_eval.validation.subjects.gemms import gpus_with_timings
from tests.cli.commands import Ran

MAIN = "from gemm_eval.cli import main; main()"


def run(code: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | env, timeout=300, check=False)


def asked(line: str, code: str = MAIN) -> subprocess.CompletedProcess[str]:
    """The last word of `line` is the one that the cursor stands behind; a space at the end begins a new one."""
    words = f"gemm-eval {line}"
    env = {"_GEMM_EVAL_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    return run(code, **env)


@pytest.mark.parametrize(
    ("line", "answers"),
    [
        ("eval", ["evaluate"]),
        ("evaluate --sha", ["--shapes"]),
        ("evaluate --arch h200", ["h200-sxm"]),
        ("evaluate --arch h200-sxm --arch demo", ["demo-8core"]),
        ("kernels --arch demo", []),
        ("model llama-3-", ["llama-3-70b", "llama-3-8b"]),
        ("top --dtype w4a16", ["w4a16", "w4a16_mxfp4", "w4a16_nvfp4"]),
        ("validate mu", ["multicore"]),
        ("validate gpu h100", ["h100-sxm"]),
        ("validate multicore rk", ["rk3588-npu"]),
        ("report --model llama-3-8", ["llama-3-8b"]),
        ("report --arch demo", ["demo-8core"]),
        ("validate ", None),
        ("evaluate --arch my_chip.y", []),  # the shell goes on with names of files
        ("no-such-command x", []),
    ],
)
def test_a_shell_is_answered(line: str, answers: list[str] | None) -> None:
    done = asked(line)

    assert (done.returncode, done.stderr) == (0, "")
    found = done.stdout.split()
    if answers is None:
        assert {"dense", "multicore"} <= set(found)
    else:
        assert found == answers


def test_an_answer_imports_nothing_heavy() -> None:
    heavy = ["numba", "numpy", "pandas", "yaml", "scipy"]  # of pydantic some versions of typer ask themselves
    code = f"import atexit, sys; atexit.register(lambda: print([m for m in {heavy} if m in sys.modules])); {MAIN}"
    for line in ("evaluate --arch h200", "gemms llama-3-8", "top --dtype nvfp", "validate gpu l4"):
        name, modules = asked(line, code).stdout.splitlines()
        assert name in ("h200-sxm", "llama-3-8b", "nvfp4", "l40s")
        assert modules == "[]", line


def test_names_are_those_that_are_taken() -> None:
    assert completion.complete_archs("") == list(list_archs())
    assert sorted([*completion.complete_gpus(""), *completion.complete_multicore("")]) == list(list_archs())
    assert completion.complete_models("") == list(list_models())
    assert [str(parse_dtype(word)) for word in completion.complete_types("")] == completion.complete_types("")
    assert all(parse_scheme(word) for word in completion.complete_schemes(""))
    assert completion.complete_archs("no such") == []
    measured = completion.complete_measured_gpus("")
    assert set(measured) == {*gpus_with_timings(), *gpus_with(memory_bound.exam()), "all"}
    assert completion.complete_measured_chips("") == [*sorted([*chips_with_timings(), "tpu-v4"]), "all"]


def test_completion_is_set_up_by_the_application_alone() -> None:
    shown = run(MAIN, "--show-completion", "bash", _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "complete -o default -F _gemm_eval_completion gemm-eval" in shown.stdout
    assert "--install-completion" in Ran("--help").out
    for words in (("evaluate",), ("validate",), ("validate", "dense"), ("arch", "list")):
        assert "completion" not in Ran(*words, "--help").out
