"""What-if changes of an arch, sizes with k, other names of options, lists of names."""

import json
from typing import Any

import pytest

from tests.cli.commands import Ran

GEMM = ("evaluate", "--arch", "demo-8core", "1", "64", "512", "512")


def document(*words: str) -> Any:
    return json.loads(Ran(*words, "--json").out)


def test_set_changes_the_arch_of_any_command() -> None:
    plain = document(*GEMM)
    slower = document(*GEMM, "--set", "dram_gb_per_s=20", "--set", "sram_bytes=1 MiB")
    assert slower["results"][0]["latency_us"] > plain["results"][0]["latency_us"]
    sends = ("collective", "--arch", "h200-sxm", "all_reduce", "16MiB", "--ranks", "8")
    faster = Ran(*sends, "--set", "interconnect.gb_per_s=900")
    assert (faster.code, faster.err) == (0, "")
    assert faster.out != Ran(*sends).out
    of_kernels = ("kernels", "--arch", "h200-sxm")
    legal, fewer = (
        sum(kernel["is_legal"] for kernel in document(*of_kernels, *more)["kernels"])
        for more in ((), ("--set", "smem_per_sm_bytes=100 KiB", "--set", "smem_per_cta_bytes=99 KiB"))
    )
    assert 0 < fewer < legal


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("num_coress=3", "did you mean num_cores?"), ("num_cores", "--set takes FIELD=VALUE"),
        ("sram_bytes=1 GHz", "or one with a unit: B, kB"),
    ],
)  # fmt: skip
def test_a_wrong_change_is_refused_in_words(change: str, words: str) -> None:
    ran = Ran(*GEMM, "--set", change)
    assert ran.code == 2
    assert words in ran.err


def test_sizes_may_be_in_units_of_1024() -> None:
    sizes = ("evaluate", "--arch", "demo-8core", "1", "16")
    assert document(*sizes, "1k", "2k") == document(*sizes, "1024", "2048")
    assert Ran(*sizes, "1q", "2k").code == 2


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("model", "--tensor-parallel", "2"), "--tp"), (("serve", "--batch-size", "4"), "--concurrency"),
        (("train", "--isl", "4096"), "--seq-len"),
    ],
)  # fmt: skip
def test_names_of_engines_and_of_python_lead_to_the_option(words: tuple[str, ...], meant: str) -> None:
    command, *rest = words
    ran = Ran(command, "llama-3-8b", "--arch", "h200-sxm", *rest)
    assert ran.code == 2
    assert f"did you mean {meant}" in ran.err


def test_names_of_models_engines_types_and_libraries_are_listed() -> None:
    text = Ran("model", "--list").out
    for name in ("llama-3-8b", "vllm", "w4a16", "cublas"):
        assert name in text


def test_commands_of_m_k_n_take_g_m_k_n_of_one_product_too() -> None:
    words = ("kernels", "--arch", "h200-sxm", "--json")
    assert Ran(*words, "1", "64", "4096", "4096").out == Ran(*words, "64", "4096", "4096").out
    assert Ran(*words, "2", "64", "4096", "4096").code == 2
