"""Tracing: nothing changes, values are known where they can be, and what is not known is an error."""

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: make test-torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from gemm_eval import GEMMEvaluator, GemmProblem  # noqa: E402
from gemm_eval.errors import InvalidInputError, InvalidOptionError, UnsupportedError  # noqa: E402
from gemm_eval.torch import predict_module, predict_sizes  # noqa: E402
from tests.cases import case  # noqa: E402

EVALUATOR = GEMMEvaluator("h200-sxm", disk_cache=False)


class Call(nn.Module):
    """A function of a tensor, in a module with a linear layer."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function, self.layer = function, nn.Linear(64, 64)

    def forward(self, x: Any) -> Any:
        return self.function(self.layer, x)


def names(function: Any, x: Any = None, **options: Any) -> list[str]:
    x = torch.zeros(8, 64) if x is None else x
    return [one.name for one in predict_module(Call(function), x, EVALUATOR, **options).operations]


def test_nothing_of_the_module_changes() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8 * 36, 4)).train()
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    x = torch.randn(2, 3, 8, 8)
    kept = x.clone()
    prediction = predict_module(module, x, EVALUATOR, backward=True, optimizer="adamw")
    assert {one.phase for one in prediction.operations} == {"forward", "backward", "optimizer"}
    assert all(torch.equal(tensor, state[name]) for name, tensor in module.state_dict().items())
    assert all(parameter.grad is None for parameter in module.parameters())
    assert torch.equal(x, kept)
    assert not any("forward" in vars(layer) for layer in module.modules())
    from torch.nn.modules import module as hooks

    assert not hooks._global_forward_pre_hooks
    assert not hooks._global_forward_hooks
    module(x)  # runs as before
    assert module[1].num_batches_tracked == 1


def test_everything_is_put_back_after_an_error() -> None:
    def fail(layer: Any, x: Any) -> Any:
        raise KeyError(layer(x).shape)

    flag = torch.cuda.is_bf16_supported
    with pytest.raises(KeyError):
        names(fail)
    from torch.nn.modules import module as hooks

    assert not hooks._global_forward_hooks
    assert torch.cuda.is_bf16_supported is flag
    assert names(lambda layer, x: layer(x)) == ["aten.addmm"]


def test_inputs_of_all_kinds() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(64, 32)

        def forward(self, x: Any, scale: float = 1.0, *, more: Any = None) -> Any:
            y = self.layer(x) * scale
            return y if more is None else y + more["bias"]

    x, bias = torch.zeros(4, 64), torch.zeros(32)
    for given in (x, (x,), [x, 2.0], {"x": x, "more": {"bias": bias}}, {"x": x.to("meta"), "more": {"bias": bias}}):
        with case(type(given)):
            found = predict_module(Scaled(), given, EVALUATOR).operations
            assert [one.kind for one in found][:1] == ["gemm"]
            assert found[0].path == "layer"


def test_values_of_positions_and_masks_are_known() -> None:
    def forward(layer: Any, x: Any) -> Any:
        positions = torch.arange(x.shape[0], device=x.device)
        known = torch.tensor([2, 3], device=x.device)
        first, second = known.unbind()
        if (positions > 6).any() and int(first) == 2 and known.tolist() == [2, second.item()]:
            x = x[positions < 5]
        known += 1
        return layer(x[: int(known[1])])

    module = Call(forward)
    (gemm,) = [one for one in predict_module(module, torch.zeros(8, 64), EVALUATOR).operations if one.kind == "gemm"]
    assert "M=4 " in gemm.detail
    assert module(torch.zeros(8, 64)).shape == (4, 64)  # as it is in truth


def test_values_of_inputs_are_known_and_of_activations_are_not() -> None:
    def pick(layer: Any, x: Any) -> Any:
        return layer(x.new_zeros(int(x[0, 0]), 64))

    (gemm,) = names(pick, torch.full((1, 64), 3.0))[-1:]
    assert gemm == "aten.addmm"
    for ask in (
        lambda layer, x: layer(x) if layer(x).sum() > 0 else x, lambda layer, x: layer(x)[layer(x)[:, 0] > 0],
        lambda layer, x: layer(x).nonzero(), lambda layer, x: torch.tensor(layer(x).tolist()),
        lambda layer, x: torch.from_numpy(layer(x).detach().numpy()),
    ):  # fmt: skip
        with pytest.raises(UnsupportedError, match="asks for values of tensors"):
            names(ask)


def test_what_is_written_over_is_not_known_any_more() -> None:
    def forward(layer: Any, x: Any) -> Any:
        counts = torch.zeros(4, dtype=torch.long, device=x.device)
        counts.add_(layer(x)[:4, 0].long())
        return layer(x) if counts.sum() == 0 else x

    with pytest.raises(UnsupportedError, match="asks for values"):
        names(forward)


def test_a_long_mask_of_ones_has_a_value() -> None:
    def forward(layer: Any, mask: Any) -> Any:
        x = torch.zeros(8, 64, device=mask.device)
        return layer(x) if bool((mask == 1).all()) else layer(x) + 1

    assert names(forward, torch.ones(64, 2048, dtype=torch.long))[-1] == "aten.addmm"


def test_tensors_that_are_not_dense_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="only dense ones"):
        names(lambda layer, x: layer(x), torch.eye(64).to_sparse())


def test_autocast_runs_gemms_in_its_type() -> None:
    def forward(layer: Any, x: Any) -> Any:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return layer(x) @ layer.weight

    found = predict_module(Call(forward), torch.zeros(8, 64), EVALUATOR).operations
    problems = [str(GemmProblem(1, 8, 64, 64, "bf16", layout=layout)) for layout in ("tn", "nn")]  # type: ignore[arg-type]
    assert [one.detail for one in found if one.kind == "gemm"] == [f"{problems[0]}, with a bias", problems[1]]


def test_autocast_casts_a_weight_once_and_its_views_each_time() -> None:
    """A view is gone after its product, and leaves its identity to others."""

    def forward(layer: Any, x: Any) -> Any:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            x = layer(layer(x))
            for rows in sizes:
                x = x[:, :rows] @ layer.weight[:rows]
        return x

    sizes = [64 - 8 * (number % 4) for number in range(50)]
    with torch.no_grad():
        found = predict_module(Call(forward), torch.zeros(8, 64), EVALUATOR, fusion="eager").operations
    products = [each.detail for each in found if each.kind == "gemm"]
    assert products[2:] == [str(GemmProblem(1, 8, rows, 64, "bf16", layout="nn")) for rows in sizes]
    assert sum(each.name == "aten._to_copy" for each in found) == 3 + len(sizes)  # x, weight and bias; each view


def test_views_are_free_and_copies_are_not() -> None:
    def views(layer: Any, x: Any) -> Any:
        return layer(
            x.view(8, 8, 8).transpose(0, 1).transpose(0, 1).reshape(8, 64)[:, :].unsqueeze(0).squeeze(0).detach()
        )

    assert names(views) == ["aten.addmm"]
    assert names(lambda layer, x: layer(x.t().contiguous()), torch.zeros(64, 8)) == ["aten.clone", "aten.addmm"]


def test_one_buffer_is_not_taken_for_another_at_its_address() -> None:
    """Storages that are freed while a module runs leave their addresses to others."""

    def forward(layer: Any, x: Any) -> Any:
        for _ in range(50):
            x = layer(x.relu()).neg()
        return x

    found = predict_module(Call(forward), torch.zeros(8, 64), EVALUATOR).operations
    assert [one.name for one in found[1:-1]] == ["aten.addmm", "aten.neg + aten.relu"] * 49 + ["aten.addmm"]
    assert {one.num_bytes for one in found if one.name == "aten.neg + aten.relu"} == {2 * 4 * 8 * 64}


def test_shared_weights_are_counted_where_they_are_used() -> None:
    module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    module[2].weight = module[0].weight
    found = predict_module(module, torch.zeros(8, 64), EVALUATOR, backward=True, optimizer="sgd")
    assert [one.path for one in found.operations if one.kind == "gemm" and one.phase == "forward"] == ["0", "2"]
    (step,) = [one for one in found.operations if one.phase == "optimizer"]
    assert step.num_bytes == 3 * 4 * (64 * 64 + 2 * 64)  # value and gradient read, value written


def test_optimizers_move_what_they_keep() -> None:
    layer = nn.Linear(64, 32, bias=False).bfloat16()
    num_bytes = 2 * 64 * 32
    adam = torch.optim.AdamW(layer.parameters())
    momentum = torch.optim.SGD(layer.parameters(), momentum=0.9)
    for optimizer, factor in (("sgd", 3), ("sgd_momentum", 5), (momentum, 5), ("adamw", 7), (adam, 7), ("lion", 5)):
        with case(optimizer):
            found = predict_module(layer, torch.zeros(1, 64).bfloat16(), EVALUATOR, backward=True, optimizer=optimizer)
            assert [one.num_bytes for one in found.operations if one.phase == "optimizer"] == [factor * num_bytes]
    layer.weight.requires_grad_(False)
    with pytest.raises(InvalidInputError, match="no parameter requires one"):
        predict_module(layer, torch.zeros(1, 64).bfloat16(), EVALUATOR, backward=True)


def test_checkpointed_layers_run_again_in_the_backward_pass() -> None:
    from torch.utils.checkpoint import checkpoint

    def once(layer: Any, x: Any) -> Any:
        return layer(layer(x).relu())

    def twice(layer: Any, x: Any) -> Any:
        return checkpoint(once, layer, x, use_reentrant=False)

    plain, again = (
        [name for name in names(function, torch.zeros(8, 64), backward=True) if "mm" in name]
        for function in (once, twice)
    )
    assert len(again) >= len(plain) + 1


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # torch's own, where it imports its compiler
def test_functions_that_torch_compile_made_run_as_they_were_written() -> None:
    compiled = torch.compile(Call(lambda layer, x: layer(x).relu()))
    inner = torch.compile(lambda y: y.relu().neg())
    assert [one.name for one in predict_module(compiled, torch.zeros(8, 64), EVALUATOR).operations] == [
        "aten.addmm", "aten.relu"
    ]  # fmt: skip
    assert names(lambda layer, x: inner(layer(x))) == ["aten.addmm", "aten.relu + aten.neg"]


def test_gradients_belong_to_the_modules_of_the_forward_pass() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(64, 128), nn.Linear(64, 64)

        def forward(self, x: Any) -> Any:
            gate, value = self.up(x).chunk(2, -1)
            return self.down(gate.sigmoid() * value)

    module = nn.Sequential(nn.Linear(64, 64), Gated())
    found = predict_module(module, torch.zeros(8, 64), EVALUATOR, backward=True).operations
    backward = [(one.path, one.kind) for one in found if one.phase == "backward"]
    assert {path for path, kind in backward if kind == "gemm"} == {"0", "1.up", "1.down"}
    assert "" not in {path for path, _ in backward}


def test_sizes_over_ranges() -> None:
    module = nn.Linear(64, 32).bfloat16()
    table = predict_sizes(
        module, lambda batch, seq: torch.zeros(batch, seq, 64, dtype=torch.bfloat16, device="meta"), EVALUATOR,
        {"batch": (1, 8), "seq": range(16, 49, 16)},
    )  # fmt: skip
    assert [point for point, _ in table] == [(1, 16), (1, 32), (1, 48), (8, 16), (8, 32), (8, 48)]
    rows = table.to_dicts()
    assert [row["flop"] for row in rows] == [2 * row["batch"] * row["seq"] * 64 * 32 for row in rows]
    assert str(table).splitlines()[0].split()[:2] == ["batch", "seq"]
    assert len(str(table).splitlines()) == 7
    with pytest.raises(InvalidOptionError, match="one value at least"):
        predict_sizes(module, lambda: None, EVALUATOR, {})


def test_bad_arguments_are_errors_before_anything_is_traced() -> None:
    layer, x = nn.Linear(4, 4), torch.zeros(1, 4)
    for call, words in (
        (lambda: predict_module(torch.relu, x, EVALUATOR), "must be a torch.nn.Module"),  # type: ignore[arg-type]
        (lambda: predict_module(layer, x, EVALUATOR, fusion="nvfuser"), "fusion must be"),
        (lambda: predict_module(layer, x, EVALUATOR, attention_library="fa3"), "attention_library must be"),
        (lambda: predict_module(layer, x, EVALUATOR, optimizer="adamw"), "needs backward=True"),
        (lambda: predict_module(layer, x, EVALUATOR, backward=True, optimizer="muon"), "optimizer must be one of"),
        (lambda: predict_module(layer, x, EVALUATOR, l2="warm"), "options of its own"),
        (lambda: predict_module(layer, x, "h200-sxm", speed="fast"), "options must be those"),
    ):
        with case(words), pytest.raises((InvalidInputError, InvalidOptionError), match=words):
            call()


class _Step(nn.Module):
    """A block of attention and a feed-forward part, maybe recomputed, and a loss."""

    def __init__(self, *, is_checkpointed: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(64, 2, batch_first=True)
        self.parts = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64))
        self.is_checkpointed = is_checkpointed

    def block(self, x: torch.Tensor) -> torch.Tensor:
        return self.parts(x + self.attention(x, x, x, need_weights=False)[0])

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            x = checkpoint(self.block, x, use_reentrant=False) if self.is_checkpointed else self.block(x)
            return {"loss": nn.functional.mse_loss(x, torch.zeros_like(x))}


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_what_is_checkpointed_runs_again_and_autocast_reaches_all_products(is_checkpointed: bool) -> None:
    module = _Step(is_checkpointed=is_checkpointed)
    result = predict_module(module, torch.empty(2, 16, 64), EVALUATOR, backward=True, fusion="eager")
    products = [each for each in result.operations if each.kind == "gemm"]
    forward = [each for each in products if each.phase == "forward"]
    assert len(forward) == 4
    assert all("bf16" in each.detail for each in products)
    again = 3 * is_checkpointed  # up to the last operation whose inputs are needed
    assert len(products) == 4 + again + 7  # the input needs no gradient
