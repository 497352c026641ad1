"""The command `gemm-eval asm`."""

import json
from functools import partial
from pathlib import Path

import pytest

from gemm_eval import load_arch
from gemm_eval.arch import GpuSpec
from gemm_eval.autotune.asm import cycles_of_loop, occupancy_of_card, score, score_cubin
from tests.autotune.fake_cubin import FakeKernel, make_cubin
from tests.cli import commands

H200 = load_arch("h200-sxm", GpuSpec)
SASS = Path(__file__).parents[1].joinpath("data", "snippets", "short_loop.sass").read_text(encoding="utf-8")
NUM_INSTRUCTIONS = 12
PTX = ".version 8.0\n.target sm_80\n.visible .entry first() { ret; }\n.visible .entry second() { ret; }\n"
KERNEL = FakeKernel("gemm_kernel", bytes(16 * NUM_INSTRUCTIONS), registers=168, stack_bytes=56, reqntid=(256, 1, 1))


Ran = partial(commands.Ran, "asm")


@pytest.fixture
def cubin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", "off")
    monkeypatch.setattr(score, "disassemble_code", lambda code, target: SASS)
    file = tmp_path / "gemm_kernel.cubin"
    file.write_bytes(make_cubin(KERNEL))
    return file


@pytest.fixture
def ptx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", "off")
    file = tmp_path / "two.ptx"
    file.write_text(PTX, encoding="utf-8")
    return file


def one_line(text: str) -> str:
    return " ".join(text.split())


def rows(text: str) -> dict[str, list[str]]:
    """Rows of the tables, by what they begin with."""
    cells = [[cell for cell in line.split("  ") if cell] for line in text.splitlines() if "  " in line]
    return {first: [cell.strip() for cell in rest] for first, *rest in cells}


def test_a_card(cubin: Path) -> None:
    out = Ran(cubin).out
    text, table = one_line(out), rows(out)

    assert text.startswith(
        "gemm_kernel: sm_90a, read from a cubin threads 256 (8 warps), registers 168, stack 56 bytes"
    )
    assert "occupancy on h200-sxm: 1 CTA an SM, 8 of 64 warps, limited by registers, with 0 bytes" in text
    assert table["instructions of a warp"] == ["main loop", "share", "in all"]
    assert table["tensor"] == ["2", "22.2%", "2"]
    assert table["integer"] == ["0", "0.0%", "1"]
    assert table["all"] == ["9", "12"]
    assert "convert" not in table
    assert [line.split() for line in out.splitlines() if line.startswith("m64")] == [
        ["m64n256k16", "16", "shared", "memory", "1"],
        ["m64n256k16", "16", "registers", "1"],
    ]
    assert "4.500 issue slots for each tensor-core instruction" in text
    assert "512 bytes of a warp from global memory at most, 512.00 tensor-core FLOP a byte" in text
    assert "takes 64.00 cycles of its tensor cores and 2.250 of issue: tensor cores are the first limit" in text
    assert "the compiler serialized them" in text
    assert "1 loads and stores of local memory: spilled registers, or arrays of a thread." in text


def test_json_is_the_card(cubin: Path) -> None:
    card = score_cubin(cubin.read_bytes())
    found = Ran(cubin, "--json").json()
    occupancy, cycles = occupancy_of_card(card, H200), cycles_of_loop(card.loop, H200)

    assert occupancy is not None
    assert cycles is not None
    assert found == json.loads(json.dumps(card.to_dict())) | {
        "arch": "h200-sxm",
        "occupancy": {
            "ctas_per_sm": 1, "limited_by": "registers", "num_threads": 256, "registers": 168, "smem_bytes": 0,
        },
        "loop_cycles": cycles._asdict(),
    }  # fmt: skip


def test_another_gpu(cubin: Path) -> None:
    text = one_line(Ran(cubin, "--arch", "a100-sxm-80gb").out)

    assert "occupancy on a100-sxm-80gb: 1 CTA an SM" in text
    assert "a100-sxm-80gb is sm_80: what is said of it is for code as this" in text
    assert "is sm_90" not in one_line(Ran(cubin).out)


def test_what_ptx_leaves_open(ptx: Path) -> None:
    text = one_line(Ran(ptx, "--kernel", "second").out)

    assert text.startswith("second: sm_80, read from PTX threads unknown, registers unknown, stack 0 bytes")
    assert "occupancy on h200-sxm: unknown, PTX does not say registers and threads" in text
    assert "No loop does the work: counts are of the whole kernel" in text
    found = Ran(ptx, "--kernel", "second", "--json").json()
    assert (found["occupancy"], found["registers"]) == (None, None)
    assert not found["loop"]["is_loop"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "there are 2 kernels, say which: first, second"),
        (("--kernel", "third"), "there is no kernel 'third', only first, second"),
        (("--kernel", "first", "--arch", "demo-8core"), "demo-8core"),
        (("--kernel", "first", "--smem-bytes", "-1"), "smem-bytes"),
    ],
)
def test_errors_are_one_line(ptx: Path, words: tuple[str, ...], message: str) -> None:
    plain, document = Ran(ptx, *words), Ran(ptx, *words, "--json")

    assert (plain.code, plain.out, document.code, document.out) == (2, "", 2, "")
    assert plain.err.startswith("error: ")
    assert plain.err.count("\n") == 1
    assert message in plain.err
    assert message in json.loads(document.err)["error"]["message"]
