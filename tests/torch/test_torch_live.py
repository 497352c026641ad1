"""`predict`: what runs here, written down for elsewhere; results stay those that the code has without it."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: make test-torch")

from torch import nn  # noqa: E402

from gemm_eval import GEMMEvaluator, GemmProblem  # noqa: E402
from gemm_eval.errors import GemmEvalError, InvalidOptionError  # noqa: E402
from gemm_eval.torch import predict, predict_module  # noqa: E402

EVALUATOR = GEMMEvaluator("h200-sxm", disk_cache=False)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)

    def forward(self, x: Any) -> Any:
        q, k, v = (y.unflatten(-1, (4, 16)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Routed(nn.Module):
    """Experts that get the rows whose values choose them."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(16, 16) for _ in range(2))

    def forward(self, x: Any) -> Any:
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (x[:, 0] > 0).long() == number
            out[rows] = expert(x[rows])
        return out


def test_a_static_module_is_predicted_as_without_running_it() -> None:
    module, x = Attention().eval(), torch.randn(2, 32, 64)
    with torch.no_grad():
        expected = module(x)
        with predict(EVALUATOR) as p:
            got = module(x)
    assert torch.equal(got, expected)
    live = [(one.path, one.kind, one.detail) for one in p.operations if one.kind != "memory"]
    traced = predict_module(module, x, EVALUATOR, fusion="eager").operations
    expected_ones = [
        (f"Attention.{one.path}".rstrip("."), one.kind, one.detail) for one in traced if one.kind != "memory"
    ]
    assert live == expected_ones
    assert p.fusion == "eager"


def test_gradients_are_those_of_the_code_and_their_gemms_are_seen() -> None:
    module, x = Attention(), torch.randn(2, 32, 64)
    module(x).sum().backward()
    expected = module.qkv.weight.grad.clone()
    module.zero_grad()
    with predict(EVALUATOR) as p:
        module(x).sum().backward()
    assert torch.equal(module.qkv.weight.grad, expected)
    backward = [one for one in p.operations if one.phase == "backward"]
    assert [one.path for one in backward if one.kind == "gemm"] == ["Attention.out"] * 2 + ["Attention.qkv"]
    assert [one.path for one in backward if one.kind == "attention"] == ["Attention"]


def test_experts_have_the_rows_that_they_were_given() -> None:
    module, x = Routed(), torch.randn(12, 16)
    x[:, 0] = torch.tensor([1.0] * 9 + [-1.0] * 3)
    with predict(EVALUATOR) as p, torch.no_grad():
        module(x)
    rows = {one.path: one.detail.split()[1] for one in p.operations if one.kind == "gemm"}
    assert rows == {"Routed.experts.0": "M=3", "Routed.experts.1": "M=9"}


def test_code_without_modules_is_seen_too() -> None:
    a = torch.randn(8, 16, dtype=torch.bfloat16)
    with predict("l40s", fusion="inductor", disk_cache=False) as p:
        y = (a @ a.t()).relu().neg()
    assert y.shape == (8, 8)
    assert [one.name for one in p.operations] == ["aten.mm", "aten.relu + aten.neg"]
    assert p.operations[0].detail == str(GemmProblem(1, 8, 16, 8, "bf16"))  # type: ignore[arg-type]
    assert "l40s" in str(p)


def test_it_is_there_once_the_block_is_left_and_only_if_it_ended_well() -> None:
    with predict(EVALUATOR) as p, pytest.raises(GemmEvalError, match="once its `with` block is left"):
        p.result  # noqa: B018
    assert p.operations == ()

    def broken() -> None:
        with predict(EVALUATOR) as inner:
            caught.append(inner)
            raise KeyError("mine")

    caught: list[Any] = []
    with pytest.raises(KeyError, match="mine"):
        broken()
    with pytest.raises(GemmEvalError, match="once its"):
        caught[0].result  # noqa: B018
    from torch.nn.modules import module as hooks

    assert not hooks._global_forward_hooks


def test_options_are_checked() -> None:
    with pytest.raises(InvalidOptionError, match="fusion must be"):
        predict(EVALUATOR, fusion="none")
    context = predict(EVALUATOR)
    with context:
        pass
    with pytest.raises(GemmEvalError, match="twice"):
        context.__enter__()
