"""`select_config`: the evaluator's order, presets by name, files by path, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gemm_eval import GEMMEvaluator, GemmProblem, load_arch, select_config
from gemm_eval.arch import GpuSpec
from gemm_eval.errors import ArchNotFoundError, InvalidOptionError
from gemm_eval.evaluate import select as _select

H200 = load_arch("h200-sxm", GpuSpec)
W4A16 = GemmProblem(1, 16, 4096, 12288, input_dtype="fp16", weight_dtype="int4", group_size=128)


@pytest.mark.parametrize("options", [{}, {"l2": "warm", "clock": "sustained"}, {"library": "gemm-eval"}], ids=str)
@pytest.mark.parametrize("problem", [W4A16, GemmProblem(2, 300, 1024, 520, input_dtype="bf16")], ids=str)
def test_the_order_is_that_of_the_evaluator(problem: GemmProblem, options: dict[str, str]) -> None:
    if problem is not W4A16:
        options = {name: value for name, value in options.items() if name != "library"}
    top = [result.mapping for result in GEMMEvaluator(H200).top(problem, 5, **options)]

    assert list(select_config(problem, H200, 5, **options)) == top
    assert select_config(problem, H200, **options) == (top[0],)


def test_fewer_where_there_are_fewer() -> None:
    every = select_config(W4A16, H200, 1 << 20)

    assert 100 < len(every) == len(set(every)) < 1 << 20
    assert every[:3] == select_config(W4A16, H200, 3)


def test_a_preset_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Any] = []
    monkeypatch.setattr(_select, "_presets", {})
    monkeypatch.setattr(_select, "load_arch", lambda name: reads.append(name) or load_arch(name))

    assert [select_config(W4A16, "h200-sxm") for _ in range(3)] == [select_config(W4A16, H200)] * 3
    assert reads == ["h200-sxm"]


def test_a_file_is_read_at_every_call(tmp_path: Path) -> None:
    path = tmp_path / "chip.yaml"
    path.write_text("base: h200-sxm\n")
    assert select_config(W4A16, str(path)) == select_config(W4A16, H200)

    path.write_text("base: sg2260\n")
    with pytest.raises(InvalidOptionError, match="kernels of GPUs, chip is none"):
        select_config(W4A16, str(path))


@pytest.mark.parametrize("k", [0, -1, True, 1.0, "1", None])
def test_k_is_a_count(k: Any) -> None:
    with pytest.raises(InvalidOptionError, match=r"k must be an integer in 1\.\."):
        select_config(W4A16, H200, k)


def test_what_does_not_exist() -> None:
    with pytest.raises(ArchNotFoundError, match=r"did you mean .*h200-sxm"):
        select_config(W4A16, "h200")
    with pytest.raises(InvalidOptionError, match="library must be one of"):
        select_config(W4A16, H200, library="mine")
    with pytest.raises(InvalidOptionError, match=r"l2 must be a word or None, got \[\]"):
        select_config(W4A16, H200, l2=[])  # type: ignore[arg-type]
