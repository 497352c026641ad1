"""Torch's fast paths of attention and encoder layers: taken where torch takes them, with the same results."""

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: make test-torch")

from torch import nn  # noqa: E402

from gemm_eval import GEMMEvaluator  # noqa: E402
from gemm_eval.torch import predict, predict_module  # noqa: E402
from gemm_eval.torch.trace import trace_module  # noqa: E402

EVALUATOR = GEMMEvaluator("h200-sxm", disk_cache=False)
MHA = nn.MultiheadAttention
FAST_ATTENTION = ["aten.addmm", "aten.scaled_dot_product_attention", "aten.addmm"]
FAST_OPERATIONS = ("_native_multi_head_attention", "_transformer_encoder_layer_fwd")


class SelfAttention(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.call = {name: options.pop(name) for name in ("need_weights", "attn_mask") if name in options}
        self.attention = MHA(**{"embed_dim": 64, "num_heads": 4, "batch_first": True} | options)

    def forward(self, x: Any) -> Any:
        return self.attention(x, x, x, **{"need_weights": False} | self.call)[0]


class CrossAttention(SelfAttention):
    def forward(self, x: Any) -> Any:
        return self.attention(x, x + 0, x + 0, need_weights=False)[0]


def layer(**options: Any) -> Any:
    given = {"d_model": 64, "nhead": 4, "dim_feedforward": 128, "batch_first": True} | options
    return nn.TransformerEncoderLayer(**given)


def is_fast_here(module: Any, x: Any, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether torch takes a fast path on the CPU, where nobody looks on."""
    taken = []
    with monkeypatch.context() as patch:
        for name in FAST_OPERATIONS:
            original = getattr(torch, name)

            def spy(*args: Any, original: Any = original, **kwargs: Any) -> Any:
                taken.append(original)
                return original(*args, **kwargs)

            patch.setattr(torch, name, spy)
        module(x)
    return bool(taken)


def live(module: Any, x: Any) -> tuple[Any, list[str]]:
    with predict(EVALUATOR) as found:
        out = module(x)
    return out, [call.name for call in found.trace.calls]


def is_followed(names: list[str]) -> bool:
    return names == FAST_ATTENTION or "aten._addmm_activation" in names


def frozen(module: Any) -> Any:
    return module.requires_grad_(False)


def hooked(module: Any) -> Any:
    module.linear1.register_forward_hook(lambda *_: None)
    return module


X = torch.randn(2, 16, 64, generator=torch.Generator().manual_seed(0))
CASES: dict[str, tuple[Callable[[], Any], bool]] = {
    "attention": (lambda: SelfAttention().eval(), True),
    "trained attention": (lambda: SelfAttention().train(), True),
    "attention with gradients": (lambda: SelfAttention().eval(), False),
    "attention of frozen weights": (lambda: frozen(SelfAttention().eval()), False),
    "positions first": (lambda: SelfAttention(batch_first=False).eval(), True),
    "an odd number of heads": (lambda: SelfAttention(num_heads=1).eval(), True),
    "no bias": (lambda: SelfAttention(bias=False).eval(), True),
    "more keys": (lambda: SelfAttention(add_bias_kv=True).eval(), True),
    "a zero key": (lambda: SelfAttention(add_zero_attn=True).eval(), True),
    "cross attention": (lambda: CrossAttention().eval(), True),
    "layer": (lambda: layer().eval(), True),
    "norms first": (lambda: layer(norm_first=True).eval(), True),
    "layer with gelu": (lambda: layer(activation="gelu").eval(), True),
    "trained layer": (lambda: layer(dropout=0.0).train(), True),
    "layer with gradients": (lambda: layer().eval(), False),
    "layer of frozen weights": (lambda: frozen(layer().eval()), False),
    "layer with silu, whose attention is fast": (lambda: layer(activation=nn.functional.silu).eval(), True),
    "layer with positions first": (lambda: layer(batch_first=False).eval(), True),
    "layer of no bias": (lambda: layer(bias=False).eval(), True),
    "layer with an odd number of heads": (lambda: layer(nhead=1).eval(), True),
}


@pytest.mark.parametrize("name", CASES)
def test_they_are_followed_where_torch_takes_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, is_without_gradients = CASES[name]
    module = make()
    with torch.no_grad() if is_without_gradients else contextlib.nullcontext():
        expected, is_fast = module(X), is_fast_here(module, X, monkeypatch)
        out, names = live(module, X)
    torch.testing.assert_close(out, expected, rtol=1e-4, atol=1e-5)
    assert out.shape == expected.shape
    assert out.requires_grad == expected.requires_grad
    if "silu" in name:
        assert is_fast
        assert names[:3] == FAST_ATTENTION
        assert "aten._addmm_activation" not in names
    else:
        assert is_followed(names) == is_fast


@torch.no_grad()
def test_torch_says_whether_there_are_fast_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (SelfAttention().eval(), layer().eval()):
        assert is_followed(live(module, X)[1])
        monkeypatch.setattr(torch.backends.mha, "_is_fastpath_enabled", False)
        assert not is_followed(live(module, X)[1])
        monkeypatch.undo()


@torch.no_grad()
def test_a_hook_on_a_part_of_a_layer_keeps_it_from_being_one(monkeypatch: pytest.MonkeyPatch) -> None:
    module = hooked(layer().eval())
    out, names = live(module, X)
    torch.testing.assert_close(out, module(X))
    assert names[:3] == FAST_ATTENTION  # attention by itself is fast
    assert "aten._addmm_activation" not in names


@torch.no_grad()
def test_what_is_not_followed_runs_as_before() -> None:
    mask = torch.zeros(16, 16, dtype=torch.bool)
    for module, x in (
        (SelfAttention(attn_mask=mask).eval(), X),
        (SelfAttention().eval().double(), X.double()),
        (SelfAttention().eval(), X[0]),
    ):
        out, names = live(module, x)
        torch.testing.assert_close(out, module(x), rtol=1e-4, atol=1e-5)
        assert not is_followed(names)


@torch.no_grad()
def test_attention_that_is_not_fused_has_products_and_a_softmax() -> None:
    """As an H100's profiler shows: weights are wanted, heads are short, or elements of a token lie apart."""
    parts = ["mm", "_transform_bias_rescale_qkv", "bmm", "_softmax", "bmm", "clone", "addmm"]
    apart = X.transpose(1, 2).contiguous().transpose(1, 2)
    for module, x, first, more in (
        (SelfAttention(need_weights=True).eval(), X, "mm", ["sum", "div_"]),
        (SelfAttention(num_heads=16).eval(), X, "mm", []),
        (SelfAttention().eval(), apart, "bmm", []),
    ):
        out, names = live(module, x)
        torch.testing.assert_close(out, module(x), rtol=1e-4, atol=1e-5)
        expected = [f"aten.{name}" for name in [first, *parts[1:], *more]]
        assert [name for name in names if name != "aten.expand"] == expected
    assert [call.name for call in trace_module(module, (x,), {}).calls] == expected


def test_traced_on_shapes_they_have_no_copies() -> None:
    vision = pytest.importorskip("torchvision").models.vision_transformer
    encoder = vision.Encoder(16, 2, 4, 64, 128, 0.0, 0.0).eval()

    def names(**options: Any) -> list[str]:
        return [call.name for call in trace_module(encoder, (X,), {}, **options).calls]

    assert names().count("aten.scaled_dot_product_attention") == 2
    assert "aten.clone" not in names()
    with torch.no_grad():
        assert names() == live(encoder, X)[1]
    assert "aten.clone" in names(backward=True)
    encoder.train()
    assert "aten.clone" in names()


def test_parts_of_a_layer_have_their_paths() -> None:
    for norm_first in (False, True):
        module = nn.Sequential(layer(norm_first=norm_first), nn.Linear(64, 8)).eval()
        found = predict_module(module, X, EVALUATOR, fusion="eager").operations
        paths = [(one.path, one.name) for one in found if one.path != "0"]
        assert sorted(paths) == sorted(
            [*((f"0.norm{at}", "aten.native_layer_norm") for at in (1, 2)), ("0.linear1", "aten._addmm_activation"),
             ("0.linear2", "aten.addmm"), *(("0.self_attn", name) for name in FAST_ATTENTION), ("1", "aten.addmm")]
        )  # fmt: skip
        assert [one.name for one in found if one.path == "0"] == ["aten.add_", "aten.add_"]


def test_compiled_attention_is_not_fast_and_a_compiled_layer_is() -> None:
    """As the graphs of torch.compile have it."""
    attention, encoder = SelfAttention().eval(), layer().eval()
    assert "aten.mm" in [call.name for call in trace_module(attention, (X,), {}, is_compiled=True).calls]
    assert is_followed([call.name for call in trace_module(encoder, (X,), {}, is_compiled=True).calls])
    for module, expected in ((attention, FAST_OPERATIONS[:0]), (encoder, FAST_OPERATIONS[1:])):
        seen: list[str] = []

        def backend(graph: Any, _: Any, seen: list[str] = seen) -> Any:
            seen += [node.target.__name__ for node in graph.graph.nodes if node.op == "call_function"]
            return graph.forward

        torch.compiler.reset()
        with torch.no_grad():
            torch.compile(module, backend=backend)(X)
        assert tuple(name for name in seen if name in FAST_OPERATIONS) == expected


def test_other_threads_and_what_comes_after_are_left_alone() -> None:
    before = (MHA.forward, nn.TransformerEncoderLayer.forward)
    attention = SelfAttention().eval()
    outs = []

    @torch.no_grad()
    def run() -> None:
        outs.append(attention(X))

    def fail() -> None:
        with predict(EVALUATOR) as found:
            thread = threading.Thread(target=run)
            thread.start()
            thread.join()
            assert not found.trace.calls
            with predict(EVALUATOR):
                run()
            run()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert len(outs) == 3
    for out in outs[1:]:
        torch.testing.assert_close(out, outs[0], rtol=1e-4, atol=1e-5)
    assert (MHA.forward, nn.TransformerEncoderLayer.forward) == before
