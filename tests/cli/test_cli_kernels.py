"""The commands `kernels` and `profile`: lists, timings beside other engines, and what they refuse."""

import json
from functools import partial
from typing import Any

import pytest

import gemm_eval.measure
from gemm_eval.cli.render_profile import Chosen, print_profile, profile_document
from gemm_eval.device import compiler_version
from gemm_eval.errors import GemmEvalError
from gemm_eval.kernels.families import families
from gemm_eval.measure import profile_kernels
from tests.cli.commands import Ran
from tests.kernels.fake_kernels import FakeKernelRunner, config, item


def run(*words: str, code: int = 0, columns: int = 100) -> str:
    ran = Ran("kernels", *words, columns=columns)
    assert ran.code == code, ran.err
    return ran.err if code else ran.out


def document(*words: str) -> Any:
    return json.loads(run(*words, "--json"))


def test_all_kernels_are_listed() -> None:
    text = run("--arch", "h200-sxm")

    assert all(name in text for name in families())
    assert "128x128x64" in text
    assert "cooperative" in text
    num_kernels = sum(len(list(family.configs())) for family in families().values())
    assert f"{num_kernels} of {num_kernels} kernels can run" in text


@pytest.mark.parametrize(
    ("arch", "has_run"), [("b200", False), ("rtx-5090", False), ("l40s", False), ("h100-pcie", True)]
)
def test_kernels_that_never_ran_say_so(arch: str, has_run: bool) -> None:
    text = " ".join(run("--arch", arch, "--family", "w4a16_gemv").split())
    assert ("none has ever run on a GPU of this generation" in text) is not has_run
    assert {kernel["has_run"] for kernel in document("--arch", arch, "--family", "w4a16_gemv")["kernels"]} == {has_run}
    if not has_run:  # where nothing can run there is nothing to say
        assert "none has ever run" not in run("--arch", arch, "--family", "w4a16_sm90")


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


ITEMS = [item(cta_m=cta_m) for cta_m in (32, 16, 128)]


@pytest.fixture
def profile_command(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(gemm_eval.measure, "W4A16Runner", lambda dtype: FakeKernelRunner(1000.0))
    return partial(Ran, "profile", columns=240)


def test_the_table_names_places_and_distances(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("COLUMNS", "240")
    found = profile_kernels(FakeKernelRunner(), ITEMS, [])
    choices = [
        Chosen("cost model", ITEMS[1].config, 11.0),
        Chosen("somebody", ITEMS[0].config, 9.0),
        Chosen("nobody", config(cta_m=64), 8.0),
    ]
    print_profile(found, choices, "h200-sxm", "fp16", 2)
    text = capsys.readouterr().out

    assert "M 16, N 128, K 256, fp16 x int4 (scales: group of 128) on h200-sxm" in text
    assert "16x128x64" in text
    assert "128x128x64" not in text
    assert "cost model: 10.00 us (predicted 11.00 us), the best, place 1" in text
    assert "somebody: 20.00 us (predicted 9.000 us), +100.0% from the best, place 2" in text
    assert "not timed" in text

    document = profile_document(found, choices, "h200-sxm", "fp16")
    assert json.loads(json.dumps(document)) == document
    assert document["kernels"][0]["tflop_per_s"] == pytest.approx(2 * 16 * 256 * 128 / 10.0 / 1e6)
    assert document["choices"][1]["over_best_frac"] == pytest.approx(1.0)
    assert document["choices"][1]["predicted_us"] == 9.0
    assert document["choices"][2]["place"] is None


def test_two_tables_fit_80_columns(profile_command: Any) -> None:
    words = ("2048", "5376", "43008", "--arch", "h200-sxm", "--count", "3")
    lines = profile_command(*words, columns=80).out.splitlines()
    rows = [line.split() for line in lines if line.split()[:1] in (["1"], ["2"], ["3"])]

    assert max(map(len, lines)) <= 80
    assert [row[0] for row in rows] == ["1", "2", "3"] * 2
    assert "clus-" in " ".join(lines)
    assert all("x" in row[4] for row in rows[:3])  # no tile is folded
    assert [len(row) for row in rows[3:]] == [9, 9, 9]

    wide = profile_command(*words).out.splitlines()
    assert sum(line.split()[:1] == ["1"] for line in wide) == 1


def test_the_command_times_every_config(profile_command: Any) -> None:
    done = profile_command("1", "4096", "4096", "--arch", "h200-sxm", "--group-size", "128", "--json")
    document = done.json()

    assert document["gemm"]["bytes_moved"] == 4096 * 4096 // 2 + 2 * 32 * 4096 + 2 * 2 * 4096
    assert document["num_kernels"] == len(document["kernels"]) > 50
    assert [kernel["place"] for kernel in document["kernels"]] == list(range(1, document["num_kernels"] + 1))
    assert [choice["by"] for choice in document["choices"]] == ["cost model"]
    assert all(choice["latency_us"] > 0 for choice in document["choices"])


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from gemm_eval.device import bench

    def fail() -> None:
        raise GemmEvalError("measuring needs an NVIDIA GPU, found none")

    monkeypatch.setattr(bench.runtime, "import_cupy", fail)
    refused = Ran("profile", "1", "4096", "4096")

    assert refused.code == 2
    assert "error: measuring needs an NVIDIA GPU, found none" in refused.err
