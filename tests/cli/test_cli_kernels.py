"""The command `gemm-eval kernels`."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

import gemm_eval.measure
from gemm_eval.cli.app import app
from gemm_eval.device import compiler_version
from gemm_eval.errors import GemmEvalError
from gemm_eval.kernels.families import families
from gemm_eval.measure import compare_kernels
from gemm_eval.measure.profile import ComparedGemm

SIZES = ("-m", "64", "-k", "4096", "-n", "4096")


def run(*words: str, code: int = 0, columns: int = 100) -> str:
    result = CliRunner().invoke(app, ["kernels", *words], env={"COLUMNS": str(columns), "TERM": "dumb"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stderr if code else result.stdout


def document(*words: str) -> Any:
    return json.loads(run(*words, "--json"))


def test_all_kernels_are_listed() -> None:
    text = run("--arch", "h200-sxm")

    assert all(name in text for name in families())
    assert "128x128x64" in text
    assert "cooperative" in text
    num_kernels = sum(len(list(family.configs())) for family in families().values())
    assert f"{num_kernels} of {num_kernels} kernels can run" in text


def test_a_family_that_cannot_run_takes_one_line() -> None:
    lines = run("--arch", "a100-sxm-80gb").splitlines()
    (line,) = [line for line in lines if line.startswith("w4a16_sm90:")]

    assert "has no kernels for GPUs of compute capability 8.0" in line


@pytest.mark.parametrize(
    ("arch", "has_run"), [("b200", False), ("rtx-5090", False), ("l40s", False), ("h100-pcie", True)]
)
def test_kernels_that_never_ran_say_so(arch: str, has_run: bool) -> None:
    text = " ".join(run("--arch", arch, "--family", "w4a16_gemv").split())
    assert ("none has ever run on a GPU of this generation" in text) is not has_run
    assert {kernel["has_run"] for kernel in document("--arch", arch, "--family", "w4a16_gemv")["kernels"]} == {has_run}
    if not has_run:  # where nothing can run there is nothing to say
        assert "none has ever run" not in run("--arch", arch, "--family", "w4a16_sm90")


def test_blackwell_is_told_why_it_lacks_the_kernels_of_hopper() -> None:
    for arch, capability in (("b200", "10.0"), ("b300", "10.3"), ("rtx-5070", "12.0")):
        for family in ("w4a16_sm90", "w4a16_sm90_cluster"):
            text = " ".join(run("--arch", arch, "--family", family).split())
            assert (
                f"{family} has no kernels for GPUs of compute capability {capability}, only for 9.0: wgmma is "
                "Hopper's alone, Blackwell has no such instruction"
            ) in text


def test_sizes_say_how_k_can_be_cut() -> None:
    text = run("--arch", "h200-sxm", *SIZES, "--family", "w4a16_sm80")

    assert "split-K" in text
    assert "stream" in text
    assert "kernels can run these sizes" in text


def test_a_document_has_units_in_its_names() -> None:
    found = document("--arch", "h200-sxm", "--mode", "column", "--activation", "bf16", *SIZES)
    kernel = found["kernels"][0]

    assert (found["mode"], found["activation"], found["group_size"]) == ("column", "bf16", 0)
    assert found["sizes"] == {"M": 64, "K": 4096, "N": 4096}
    assert set(kernel) == {
        "config", "num_threads", "dynamic_smem_bytes", "is_legal", "refusal", "has_run", "splits", "compiled",
    }  # fmt: skip
    assert kernel["compiled"] is None
    for kernel in found["kernels"]:
        assert kernel["is_legal"] == (kernel["refusal"] is None) == (kernel["splits"] is not None)


def test_kernels_can_be_compiled_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        compiler_version()
    except GemmEvalError as error:
        pytest.skip(str(error))
    family = families()["w4a16_gemv"]
    two = list(family.configs())[:2]  # each takes a while
    monkeypatch.setattr(type(family), "configs", lambda self: iter(two))
    words = ("--arch", "h200-sxm", "--family", family.name, "--compile")
    compiled = [kernel["compiled"] for kernel in document(*words)["kernels"]]

    assert len(compiled) == 2
    assert all(kernel["registers"] > 0 and kernel["ctas_per_sm"] > 0 for kernel in compiled)
    assert "regs" in run(*words)


def test_timings_of_a_gpu_as_json() -> None:
    pytest.importorskip("pyarrow")
    document = json.loads(run("--arch", "h200-sxm", "--measured", "--json"))

    assert document["activation"] == "fp16"
    assert len(document["gemms"]) >= 120
    assert all(0 < gemm["best_us"] < 1e6 for gemm in document["gemms"])


def test_timings_of_a_gpu_are_printed_beside_others(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    compared: list[ComparedGemm] = []

    def compare(*args: Any) -> list[ComparedGemm]:
        compared.extend(compare_kernels(*args))
        return compared

    monkeypatch.setattr(gemm_eval.measure, "compare_kernels", compare)
    lines = run("--arch", "h200-sxm", "--measured", columns=300).splitlines()
    rows = [cells for line in lines if (cells := line.replace(",", "").split()) and cells[0].isdigit()]

    assert len(compared) >= 120
    assert "cuBLAS us" in "".join(lines[:4])
    assert [tuple(map(int, cells[:3])) for cells in rows] == [(gemm.N, gemm.K, gemm.M) for gemm in compared]
    for cells, gemm in zip(rows, compared, strict=True):
        text = " ".join(cells)
        assert text.endswith(gemm.best)
        assert gemm.cublas_us is not None
        assert f" {gemm.cublas_us / gemm.best_us:.2f} " in text
        assert f" {gemm.mode} " in text
    assert {gemm.mode for gemm in compared} == {"group"}
    for name in ("M <= 32", "M = 33..512", "M > 512"):
        (line,) = [line for line in lines if line.startswith(f"{name}: ")]
        assert "times as fast as cuBLAS" in line
        assert "times as fast as humming" in line


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--arch", "sg2260e"), 3, "W4A16 kernels need an NVIDIA GPU, sg2260e is none"),
        (("--arch", "h200-sxm", "-m", "4"), 2, "-k and -n must be given, too: sizes by name are -m M -k K -n N"),
        (("--arch", "h200-sxm", "-m", "0", "-k", "64", "-n", "64"), 2, "M must be an integer >= 1, got 0"),
        (("--arch", "h200-sxm", "-m", "4", "-k", "60", "-n", "64"), 2, "K must be a positive multiple of 8"),
        (("--arch", "h200-sxm", "--family", "cutlass"), 2, "--family must be one of w4a16_gemv,"),
        (("--arch", "h200-sxm", "--mode", "row"), 2, "mode must be one of column, group, group_zero"),
        (("--arch", "h200-sxm", "--group-size", "16"), 2, "group_size must be one of 32, 64, 128"),
        (("--arch", "h200-sxm", "--activation", "fp8"), 2, "activation must be"),
        (("--arch", "h200-sxm", "--measured", "--compile"), 2, "--measured does not go with --compile; it goes with"),
        (("--arch", "h200-sxm", "--measured", "-m", "8"), 2, "--measured does not go with -m; it goes with"),
        (("--arch", "h200-sxm", "4", "64"), 2, "sizes are M K N, or by name -m M -k K -n N; got 2: 4 64"),
        (("--arch", "h200-sxm", "4", "64", "64", "-n", "8"), 2, "sizes are M K N or have names, never both"),
        (("--arch", "l4", "--measured"), 2, "no timings of our kernels with fp16 activations come for l4"),
        (
            ("--arch", "h200-sxm", "--measured", "--activation", "bf16"), 2,
            "no timings of our kernels with bf16 activations come for h200-sxm",
        ),
    ],
)  # fmt: skip
def test_wrong_words_are_one_line(words: tuple[str, ...], code: int, message: str) -> None:
    error = run(*words, code=code)

    assert message in error
    assert len(error.splitlines()) == 1
