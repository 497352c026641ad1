"""Pruning without Triton: what stays of a list of configs, what is said about the rest, what is benchmarked."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import pytest

from gemm_eval import GemmEvalError, GemmProblem, load_arch
from gemm_eval.autotune.triton import KernelArguments, TensorArgument, TritonPruner
from gemm_eval.autotune.triton import compile as touching
from gemm_eval.autotune.triton.pruner import num_kept
from gemm_eval.errors import ArchNotFoundError, InvalidOptionError, UnsupportedError
from tests.autotune.fake_triton import FakeConfig, FakeModel, area, tensors, tiles

CALL = {**tensors(), "M": 4096, "N": 4096, "K": 4096}
SMALL = CALL | {"M": 16, "N": 128, "K": 128}


def pruner(**options: Any) -> TritonPruner:
    return TritonPruner("h200-sxm", **{"model": FakeModel(area), **options})


@pytest.mark.parametrize(
    ("top_k", "num_configs", "expected"),
    [
        (0.2, 72, 14), (0.2, 4, 1), (0.2, 1, 1), (0.01, 3, 1), (0.29, 100, 29), (0.7, 10, 7), (1.0, 5, 5),
        (1, 5, 1), (3, 5, 3), (9, 5, 5),
    ],
)  # fmt: skip
def test_top_k_is_a_count_or_a_share_rounded_down(top_k: float, num_configs: int, expected: int) -> None:
    assert num_kept(top_k, num_configs) == expected


@pytest.mark.parametrize("top_k", [0, -1, 0.0, 1.5, -0.1, True, "3", None, math.nan])
def test_top_k_out_of_range(top_k: Any) -> None:
    with pytest.raises(InvalidOptionError, match="top_k must be"):
        pruner(top_k=top_k)


def test_the_best_stay_in_order_and_never_none() -> None:
    configs, hopeless = tiles(), tiles(sizes=(48, 96))
    assert pruner(top_k=2).early_config_prune(configs, CALL) == [
        configs[2],
        configs[1],
    ]  # 16x16 is below one mma a warp
    six_break_a_rule = [*configs, *tiles(sizes=(48,) * 6)]
    assert len(pruner(top_k=0.3).early_config_prune(six_break_a_rule, CALL)) == 3  # a share is of the full list
    chooser = pruner(top_k=1)
    assert chooser.early_config_prune(hopeless, CALL) == hopeless
    assert "all stay" in str(chooser.last)


def test_arguments_come_by_position_or_by_name() -> None:
    configs = tiles()
    by_name = {name: CALL[name] for name in ("N", "K")}
    by_place = {name: value for name, value in CALL.items() if name not in by_name}

    assert pruner(top_k=1).early_config_prune(configs, by_place, grid=(1,), warmup=False, **by_name) == [configs[2]]


def test_an_unknown_kind_of_kernel_keeps_all_and_warns() -> None:
    class Refuses(FakeModel):
        def triton_times_us(self, *args: Any) -> Any:
            raise UnsupportedError("no such tensor core")

    chooser = pruner(top_k=1, model=Refuses(area))
    with pytest.warns(UserWarning, match="no such tensor core"):
        assert len(chooser.early_config_prune(tiles(), CALL)) == 4


def test_small_problems_are_dispatched() -> None:
    configs = tiles(sizes=(64, 32))
    chooser = pruner(top_k=1.0)

    assert chooser.early_config_prune(configs, SMALL) == [configs[1]]
    assert chooser.last is not None
    assert chooser.last.is_small
    assert len(pruner(top_k=1.0, small=None).early_config_prune(configs, SMALL)) == 2
    assert len(pruner(top_k=1.0, small=lambda problem, arch: True).early_config_prune(configs, CALL)) == 1


def test_what_was_ranked_is_the_gemm_of_the_call() -> None:
    arguments = KernelArguments(weight_dtype="int4", group_size=64, b="w_ptr")
    ranking = pruner(arguments=arguments).rank(tiles(), CALL | {"w_ptr": TensorArgument("uint8")})

    assert ranking.problem == GemmProblem(
        1, 4096, 4096, 4096, input_dtype="fp16", weight_dtype="int4", group_size=64, output_dtype="fp16"
    )


def test_a_single_survivor_is_not_benchmarked() -> None:
    calls: list[Any] = []

    def bench(call: Any, quantiles: Any) -> list[float]:
        calls.append(call)
        return [7.0] * len(quantiles)

    chooser = pruner(top_k=1, bench=bench)
    chooser.early_config_prune(tiles(), CALL)
    assert chooser.do_bench(pytest.fail, quantiles=(0.5, 0.2, 0.8)) == [0.01024] * 3
    assert chooser.do_bench(pytest.fail) == 0.01024
    assert calls == []

    chooser.top_k = 2
    chooser.early_config_prune(tiles(), CALL)
    assert chooser.do_bench(print, quantiles=(0.5, 0.2, 0.8)) == [7.0] * 3
    assert calls == [print]


def test_verbose_says_why_each_fell(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    configs = [*tiles(), *tiles(sizes=(48,))]
    chooser = pruner(top_k=1, verbose=True)
    chooser.early_config_prune(configs, CALL)
    printed = capsys.readouterr().out

    assert "1 of 5 configs stay" in printed
    for text in ("32x32x32", "stays", "number 2: the best 1 stay", "mma_shape: 256 elements", "block M 48 is no power"):
        assert text in printed
    assert chooser.last is not None
    assert all(verdict.reason for verdict in chooser.last.verdicts if not verdict.is_kept)
    assert "block M 48 is no power" in str(chooser.last)
    pruner(top_k=1).early_config_prune(configs, CALL)
    assert capsys.readouterr().out == ""


def test_the_gpu_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(touching, "_name_of_gpu", lambda: "NVIDIA H200")
    chooser = TritonPruner(model=FakeModel(area), top_k=1)
    assert len(chooser.early_config_prune(tiles(), CALL)) == 1
    assert chooser.last is not None
    assert chooser.last.gpu == load_arch("h200-sxm").name

    monkeypatch.setattr(touching, "_name_of_gpu", lambda: "NVIDIA GeForce RTX 3060")
    with pytest.raises(ArchNotFoundError, match=r"'NVIDIA GeForce RTX 3060': give arch.*h200-sxm"):
        chooser.rank(tiles(), CALL)


def test_without_triton_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)

    with pytest.raises(GemmEvalError, match=r"pip install 'gemm_eval\[triton\]'"):
        touching.import_triton()


def test_ranking_needs_no_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)

    assert len(pruner(top_k=2).early_config_prune(tiles(FakeConfig), CALL)) == 2


@pytest.mark.parametrize(
    ("act", "error", "message"),
    [
        (lambda: pruner(arguments=KernelArguments(M="rows")).rank(tiles(), CALL), InvalidOptionError,
         r"M is 'rows', but .* have BLOCK_K"),
        (lambda: pruner().rank([], CALL), InvalidOptionError, "at least one"),
        (lambda: pruner(num_compile_threads=0), InvalidOptionError, "num_compile_threads"),
        (lambda: TritonPruner("sg2260"), InvalidOptionError, "is none"),
        (lambda: TritonPruner("h300"), ArchNotFoundError, "h300"),
    ],
)  # fmt: skip
def test_wrong_names_and_options(act: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        act()
