"""`W4Linear` on a CPU: what it computes, keeps, loads and refuses, and how torch.compile and fake tensors take it."""

import contextlib
import copy
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gemm_eval import kernels
from gemm_eval.errors import InvalidOptionError, InvalidProblemError
from tests.kernels.checkpoint_samples import AWQ, GPTQ, SampleLayer, make_layer, write_checkpoint

torch = pytest.importorskip("torch", reason="needs torch: pip install 'gemm_eval[torch]'")

from gemm_eval.kernels import linear_op  # noqa: E402
from gemm_eval.kernels.linear import W4Linear, replace_linears  # noqa: E402
from gemm_eval.kernels.linear_op import dequantize_tensors, w4a16_linear  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # torch's compiler warns as it likes
K, N = 136, 72
TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}
WORST_ERROR = {"fp16": 1e-3, "bf16": 5e-3}
KINDS = [("group", 64), ("group", 32), ("group_zero", 128), ("column", None), ("mxfp4", None), ("nvfp4", None)]


def packed_of(
    mode: str = "group", group: int | None = 64, activation: str = "fp16", is_sorted: bool = True
) -> kernels.PackedW4:
    random = np.random.default_rng(group or 0)
    packed = kernels.pack_w4(random.standard_normal((K, N)).astype(np.float32), group, mode, activation=activation)
    if is_sorted:
        return packed
    return dataclasses.replace(packed, permutation=random.permutation(K).astype(np.int32))


def layer_of(activation: str = "fp16", **options: Any) -> Any:
    return W4Linear.from_packed(packed_of(activation=activation, **options), np.arange(N, dtype=np.float32) - 30)


def tokens(*shape: int, activation: str = "fp16") -> Any:
    return torch.from_numpy(np.random.default_rng(1).standard_normal(shape)).to(TYPES[activation])


def error_of(found: Any, expected: Any) -> float:
    found = found.detach().double().numpy()
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


# ---- what it computes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["fp16", "bf16"])
@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize(("mode", "group"), KINDS)
def test_tensors_mean_what_arrays_mean(mode: str, group: int | None, is_sorted: bool, activation: str) -> None:
    packed = packed_of(mode, group, activation, is_sorted)
    layer = W4Linear.from_packed(packed)
    found = dequantize_tensors(
        layer.qweight, layer.scales, layer.permutation, N, K, int(layer.mode), layer.group_size, layer.scale_unit
    )

    np.testing.assert_array_equal(found.numpy(), kernels.dequantize(packed).astype(np.float32))


@pytest.mark.parametrize("activation", ["fp16", "bf16"])
@pytest.mark.parametrize("shape", [(K,), (1, K), (5, K), (2, 3, K), (0, K), (2, 0, K)])
def test_leading_dimensions(shape: tuple[int, ...], activation: str) -> None:
    packed, bias = packed_of(activation=activation, is_sorted=False), np.arange(N, dtype=np.float32) - 30
    x = tokens(*shape, activation=activation)
    y = W4Linear.from_packed(packed, bias)(x)

    assert (tuple(y.shape), y.dtype) == ((*shape[:-1], N), x.dtype)
    if y.numel():
        assert error_of(y, x.double().numpy() @ kernels.dequantize(packed) + bias) < WORST_ERROR[activation]


def test_rows_that_lie_apart() -> None:
    layer = layer_of()
    wide = tokens(4, 2 * K)

    torch.testing.assert_close(layer(wide[:, ::2]), layer(wide[:, ::2].contiguous()), rtol=0, atol=0)
    torch.testing.assert_close(layer(wide[:, :K]), layer(wide[:, :K].contiguous()), rtol=0, atol=0)


def test_gradients_are_those_of_the_dequantized_layer() -> None:
    layer, weights = layer_of(is_sorted=False), kernels.dequantize(packed_of(is_sorted=False))
    x = tokens(3, 5, K).requires_grad_()
    bias = layer.bias.clone().requires_grad_()
    y = w4a16_linear(
        x, layer.qweight, layer.scales, layer.permutation, bias, N, K, int(layer.mode), layer.group_size,
        layer.scale_unit,
    )  # fmt: skip
    gradient = tokens(3, 5, N)
    y.backward(gradient)

    assert error_of(x.grad, gradient.double().numpy() @ weights.T) < 2e-3
    assert error_of(bias.grad, gradient.double().numpy().sum((0, 1))) < 2e-3
    assert all(buffer.grad is None for buffer in layer.buffers())


def test_autocast_casts_to_the_type_of_the_weights() -> None:
    layer, x = layer_of("bf16"), tokens(2, K).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype is torch.bfloat16
    with pytest.raises(InvalidProblemError, match=r"x must be torch\.bfloat16, the type that the weights were packed"):
        layer(x)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(2, K), r"x must be torch\.float16, the type that the weights were packed for, got torch\.float32"),
        (torch.zeros(2, K, dtype=torch.bfloat16), r"got torch\.bfloat16; cast it, or pack the weights for its type"),
        (torch.zeros(2, K + 8, dtype=torch.float16), rf"x must have shape \[\.\.\., {K}\], got \[2, {K + 8}\]"),
        (torch.zeros((), dtype=torch.float16), r"x must have shape .*, got \[\]"),
    ],
)
def test_activations_are_checked(x: Any, message: str) -> None:
    with pytest.raises(InvalidProblemError, match=message):
        layer_of()(x)


def test_the_operator_checks_its_tensors() -> None:
    layer = layer_of()
    good = [layer.qweight, layer.scales, None, layer.bias]
    for index, wrong, message in (
        (0, layer.qweight[:1], "qweight must be torch.int32"),
        (0, layer.qweight.float(), "qweight must be torch.int32"),
        (1, layer.scales[:, :1], "scales must be torch.float16"),
        (2, torch.zeros(K, dtype=torch.int64), "permutation must be torch.int32"),
        (3, layer.bias.float(), "bias must be torch.float16"),
        (3, layer.bias[1:], "bias must be torch.float16"),
    ):
        tensors = [*good[:index], wrong, *good[index + 1 :]]
        with pytest.raises(InvalidProblemError, match=message):
            w4a16_linear(tokens(2, K), *tensors, N, K, int(layer.mode), layer.group_size, layer.scale_unit)


def test_all_tensors_lie_on_one_device() -> None:
    layer = layer_of()
    with pytest.raises(InvalidProblemError, match="x must be on cpu, where the layer's qweight is, got meta"):
        layer(tokens(2, K).to("meta"))
    layer.bias = layer.bias.to("meta")
    with pytest.raises(InvalidProblemError, match="x must be on meta, where the layer's bias is, got cpu"):
        layer(tokens(2, K))


# ---- torch.compile -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize(("mode", "group"), KINDS)
def test_opcheck(mode: str, group: int | None, is_sorted: bool) -> None:
    layer = layer_of(mode=mode, group=group, is_sorted=is_sorted)
    for x in (tokens(4, K), tokens(2, 3, K).requires_grad_()):
        arguments = (
            x, layer.qweight, layer.scales, layer.permutation, layer.bias, N, K, int(layer.mode), layer.group_size,
            layer.scale_unit,
        )  # fmt: skip
        checked = torch.library.opcheck(w4a16_linear, arguments)
        assert set(checked.values()) == {"SUCCESS"}


class Block(torch.nn.Module):
    """Two layers and what stands between them in a model."""

    def __init__(self) -> None:
        super().__init__()
        self.up = layer_of(is_sorted=False)
        self.down = W4Linear.from_packed(kernels.pack_w4(np.full((N, K), 0.1, np.float32), 32, "group_zero"))

    def forward(self, x: Any) -> Any:
        return x + self.down(torch.nn.functional.silu(self.up(x)))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compile_takes_a_block_whole(backend: str) -> None:
    block = Block()
    compiled = torch.compile(block, fullgraph=True, backend=backend, dynamic=True)
    with torch.no_grad():
        for num_tokens in (3, 7):
            x = tokens(2, num_tokens, K)
            torch.testing.assert_close(compiled(x), block(x))


def test_a_graph_holds_one_operator_a_layer() -> None:
    exported = torch.export.export(Block().eval(), (tokens(4, K),))
    ours = [node for node in exported.graph.nodes if node.target is w4a16_linear]

    assert len(ours) == 2
    assert tuple(ours[0].meta["val"].shape) == (4, N)


def test_fake_and_meta_tensors() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = copy.deepcopy(layer_of())._apply(mode.from_tensor)
        y = fake(mode.from_tensor(tokens(2, 3, K)))
        assert (tuple(y.shape), y.dtype) == ((2, 3, N), torch.float16)
        with pytest.raises(InvalidProblemError, match="x must be"):
            fake(mode.from_tensor(tokens(2, K).float()))
    meta = W4Linear(K, N, device="meta")
    y = meta(torch.empty(4, K, dtype=torch.float16, device="meta"))
    assert (tuple(y.shape), y.device.type) == ((4, N), "meta")


# ---- what it keeps and loads ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["fp16", "bf16"])
@pytest.mark.parametrize("is_sorted", [True, False])
@pytest.mark.parametrize(("mode", "group"), KINDS)
def test_a_state_dict_goes_out_and_in(mode: str, group: int | None, is_sorted: bool, activation: str) -> None:
    layer = layer_of(activation, mode=mode, group=group, is_sorted=is_sorted)
    state = {name: tensor.clone() for name, tensor in layer.state_dict().items()}
    empty = W4Linear(K, N, mode=mode, group_size=group, activation=activation, act_order=is_sorted)
    empty.load_state_dict(state)
    x = tokens(3, K, activation=activation)

    assert set(state) == {"qweight", "scales", "scale_unit", "bias"} | (set() if is_sorted else {"permutation"})
    assert (empty.permutation is None) is is_sorted
    torch.testing.assert_close(empty(x), layer(x), rtol=0, atol=0)
    for assign in (False, True):
        other = torch.nn.ModuleDict({"a": W4Linear(K, N, activation=activation)})
        other.load_state_dict({f"a.{name}": tensor for name, tensor in state.items()}, assign=assign)
        torch.testing.assert_close(other["a"](x), layer(x), rtol=0, atol=0)


@pytest.mark.parametrize("factor", [2.0**-12, 1.0, 2.0**6])
def test_scales_of_any_size(factor: float) -> None:
    """What is stored of them is a multiple of a power of 2, which goes wherever the weights go."""
    weights = np.random.default_rng(0).standard_normal((K, N)).astype(np.float32) * np.float32(factor)
    packed = kernels.pack_w4(weights, 32)
    layer = W4Linear.from_packed(packed)
    other = W4Linear(K, N, bias=False)
    other.load_state_dict(layer.state_dict())
    x = tokens(3, K)

    assert layer.scale_unit == other.scale_unit == packed.scale_unit
    assert error_of(other(x), x.double().numpy() @ kernels.dequantize(packed)) < 1e-3
    assert other.to_packed().packed.scale_unit == packed.scale_unit


def test_states_that_do_not_fit_are_refused() -> None:
    layer = layer_of("bf16", mode="group_zero", group=128, is_sorted=False)
    state = layer.state_dict()
    empty = W4Linear(K, N, mode="group_zero", activation="fp16")
    with pytest.raises(
        RuntimeError,
        match=r"scales must be torch\.float16 or torch\.uint8, got torch\.bfloat16: packed for another type",
    ):
        empty.load_state_dict(state)
    empty = W4Linear(K, N, mode="group_zero", activation="bf16")
    for order in (torch.zeros(K, dtype=torch.int32), torch.arange(K), torch.arange(1, K + 1, dtype=torch.int32)):
        with pytest.raises(RuntimeError, match=f"permutation must be int32 with each of 0..{K - 1} once"):
            empty.load_state_dict(state | {"permutation": order})
    with pytest.raises(RuntimeError, match="size mismatch for qweight"):
        W4Linear(K, 2 * N, activation="bf16").load_state_dict(state)
    for missing in ("qweight", "scales", "scale_unit", "bias"):
        with pytest.raises(RuntimeError, match=f"Missing key.*{missing}"):
            empty.load_state_dict({name: tensor for name, tensor in state.items() if name != missing})
    for unit in (torch.tensor([3.0]), torch.tensor([0.0]), torch.tensor(1.0), torch.ones(1).half(), torch.ones(2)):
        with pytest.raises(RuntimeError, match="scale_unit must be fp32 with one power of 2"):
            empty.load_state_dict(state | {"scale_unit": unit})
    with pytest.raises(RuntimeError, match="Unexpected key"):
        empty.load_state_dict(state | {"scale": torch.ones(1)})


@pytest.mark.parametrize(("mode", "group"), [("group_zero", 64), ("mxfp4", None)])
@pytest.mark.parametrize("cast", ["half", "bfloat16", "float", "double"])
def test_casts_of_a_module_leave_it_as_it_is(cast: str, mode: str, group: int | None) -> None:
    model = torch.nn.ModuleList([torch.nn.Linear(8, 8), layer_of("bf16", mode=mode, group=group)])
    before = {name: tensor.clone() for name, tensor in model[1].state_dict().items()}
    getattr(model, cast)()

    assert model[0].weight.dtype is getattr(torch, cast)
    for name, tensor in model[1].state_dict().items():
        assert tensor.dtype is before[name].dtype
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)


def test_moves_and_copies() -> None:
    layer = layer_of(is_sorted=False)
    twin = copy.deepcopy(layer)
    twin.qweight.zero_()

    assert bool(layer.qweight.any())
    assert {tensor.device.type for tensor in copy.deepcopy(layer).to("meta").buffers()} == {"meta"}
    assert layer.scales.dtype is torch.float16
    assert not list(layer.parameters())


@pytest.mark.parametrize(("mode", "group"), [("group_zero", 128), ("mxfp4", 32), ("nvfp4", 16)])
@pytest.mark.parametrize("activation", ["fp16", "bf16"])
def test_to_packed_is_the_way_back(activation: str, mode: str, group: int) -> None:
    packed = packed_of(mode, group, activation, is_sorted=False)
    layer = W4Linear.from_packed(packed, np.ones(N, np.float32))
    again, bias = layer.to_packed()

    for name in ("qweight", "scales", "permutation"):
        np.testing.assert_array_equal(getattr(again, name), getattr(packed, name))
    assert (again.N, again.K, again.mode, again.group_size) == (N, K, packed.mode, group)
    assert (again.activation, again.scale_unit) == (activation, packed.scale_unit)
    assert bias.dtype == (np.float16 if activation == "fp16" else np.uint16)
    layer.qweight.zero_()
    assert not again.qweight.any()  # one memory
    assert packed.qweight.any()


def test_repr() -> None:
    assert repr(layer_of(is_sorted=False)) == (
        "W4Linear(in_features=136, out_features=72, bias=True, mode=group, group_size=64, activation=fp16, "
        "act_order=True)"
    )
    assert "mode=column, activation=bf16)" in repr(layer_of("bf16", mode="column", group=None))


def test_a_state_of_bytes_is_for_one_type_of_activations() -> None:
    state = layer_of("bf16", mode="mxfp4", group=None).state_dict()
    assert state["scales"].dtype is torch.int8
    with pytest.raises(RuntimeError, match=r"scales must be torch\.float16 or torch\.uint8, got torch\.int8"):
        W4Linear(K, N, mode="mxfp4").load_state_dict(state)
    layer = W4Linear(K, N, mode="group", group_size=64, activation="bf16")
    layer.load_state_dict(state)  # as many bytes as scales of mode GROUP_ZERO: the type tells them apart

    assert (layer.mode.name, layer.group_size) == ("MXFP4", 32)
    x = tokens(3, K, activation="bf16")
    torch.testing.assert_close(layer(x), layer_of("bf16", mode="mxfp4", group=None)(x), rtol=0, atol=0)
    with pytest.raises(RuntimeError, match="scale_unit must be fp32 with one power of 2"):
        layer.load_state_dict(state | {"scale_unit": torch.tensor([3.0])})
    state = layer_of("bf16", mode="nvfp4", group=None).state_dict()
    layer.load_state_dict(state | {"scale_unit": torch.tensor([3.0])})
    assert (layer.mode.name, layer.scale_unit) == ("NVFP4", 3.0)
    with pytest.raises(RuntimeError, match="scale_unit must be fp32 with one positive number"):
        layer.load_state_dict(state | {"scale_unit": torch.tensor([-3.0])})


# ---- from what there is --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("has_bias", [True, False])
def test_from_linear(dtype: Any, has_bias: bool) -> None:
    linear = torch.nn.Linear(K, N, bias=has_bias).to(dtype)
    activation = "bf16" if dtype is torch.bfloat16 else "fp16"
    layer = W4Linear.from_linear(linear, 32, activation=activation if dtype is torch.float32 else None)
    x = tokens(64, K, activation=activation)
    expected = linear.double()(x.double()).detach().numpy()

    assert (layer.bias is None) is not has_bias
    assert layer(x).dtype is x.dtype
    assert 0.01 < error_of(layer(x), expected) < 0.15  # 4 bits
    meant = kernels.dequantize(kernels.pack_w4(linear.weight.t().detach().float().numpy(), 32, activation=activation))
    np.testing.assert_array_equal(kernels.dequantize(layer.to_packed().packed), meant)


def test_from_tensors_of_four_bit_floats() -> None:
    random = np.random.default_rng(2)
    rows = torch.from_numpy(random.integers(0, 256, (N, K // 2), dtype=np.uint8))
    powers = torch.from_numpy(random.integers(110, 125, (N, -(-K // 32)), dtype=np.uint8))
    numbers = torch.from_numpy(random.integers(60, 120, (N, -(-K // 16)), dtype=np.uint8)).view(torch.float8_e4m3fn)
    unit, bias, x = torch.tensor([0.25]), torch.arange(N, dtype=torch.float32), tokens(3, K, activation="bf16")
    for layer, packed in (
        (W4Linear.from_mxfp4(rows, powers, bias=bias), kernels.pack_mxfp4(rows.numpy(), powers.numpy())),
        (
            W4Linear.from_nvfp4(rows, numbers, unit, bias=bias),
            kernels.pack_nvfp4(rows.numpy(), numbers.view(torch.uint8).numpy(), global_scale=4.0),
        ),
    ):
        assert layer.activation == "bf16"
        assert error_of(layer(x), x.double().numpy() @ kernels.dequantize(packed) + bias.numpy()) < WORST_ERROR["bf16"]
    with pytest.raises(InvalidProblemError, match="one matrix, got those of 2 experts"):
        W4Linear.from_mxfp4(torch.stack([rows] * 2), torch.stack([powers] * 2))


def test_what_cannot_be_quantized_is_refused() -> None:
    with pytest.raises(InvalidProblemError, match=r"linear must be a torch\.nn\.Linear, got Conv1d"):
        W4Linear.from_linear(torch.nn.Conv1d(8, 8, 1))
    with pytest.raises(InvalidProblemError, match=r"weights are torch\.float32: say in which activation"):
        W4Linear.from_linear(torch.nn.Linear(8, 8))
    with pytest.raises(InvalidProblemError, match="N must be a positive multiple of 8, got 9"):
        W4Linear.from_linear(torch.nn.Linear(8, 9).half())
    with pytest.raises(InvalidProblemError, match="K must be a positive multiple of 8, got 9"):
        W4Linear(9, 8)
    with pytest.raises(InvalidOptionError, match="group_size must be one of"):
        W4Linear(8, 8, group_size=48)
    with pytest.raises(InvalidProblemError, match=rf"bias must be of shape \[{N}\], got \[3\]"):
        W4Linear.from_packed(packed_of(), torch.ones(3))
    with pytest.raises(InvalidProblemError, match="bias must be float16"):
        W4Linear.from_packed(packed_of(), np.ones(3, np.float32))
    with pytest.raises(InvalidProblemError, match="packed must be a PackedW4"):
        W4Linear.from_packed(torch.ones(8, 8))


def tensors_of(layer: SampleLayer) -> dict[str, Any]:
    """As safetensors.torch gives them."""
    found = {}
    for name, stored in layer.tensors.items():
        tensor = torch.from_numpy(stored.array.view(np.int16).copy() if stored.dtype == "BF16" else stored.array)
        found[name] = tensor.view(torch.bfloat16) if stored.dtype == "BF16" else tensor
    return found


@pytest.mark.parametrize("is_bf16", [True, False])
@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_from_tensors_of_checkpoints(method: str, is_bf16: bool) -> None:
    sample = make_layer(method, K, N, 64, 3, has_bias=True, is_sorted=method == "awq", is_bf16=is_bf16)
    tensors = tensors_of(sample)
    make = W4Linear.from_awq if method == "awq" else W4Linear.from_gptq
    layer = make(**tensors, group_size=64)
    x = tokens(5, K, activation="bf16" if is_bf16 else "fp16")

    assert layer.scales.dtype is x.dtype
    assert (
        error_of(layer(x), x.double().numpy() @ sample.meant + sample.bias) < WORST_ERROR["bf16" if is_bf16 else "fp16"]
    )
    tensors["scales"] = tensors["scales"].float()
    with pytest.raises(InvalidProblemError, match="scales are float32: say in which activation"):
        make(**tensors, group_size=64)
    assert make(**tensors, group_size=64, activation="fp16").scales.dtype is torch.float16


class Model(torch.nn.Module):
    """With layers of the names that a checkpoint has."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.ModuleDict({"up": torch.nn.Linear(K, N)}) for _ in range(2)])


@pytest.mark.parametrize("config", [AWQ, GPTQ], ids=["awq", "gptq"])
def test_a_whole_checkpoint_into_a_model(config: dict[str, Any], tmp_path: Path) -> None:
    method = config["quant_method"]
    layers = {
        f"layers.{i}.up": make_layer(method, K, N, 64, i, has_bias=True, is_sorted=method == "awq") for i in range(2)
    }
    write_checkpoint(tmp_path / "a", layers, config, files=2)
    kernels.convert_checkpoint(tmp_path / "a", tmp_path / "b")
    x = tokens(4, K)
    for source in (kernels.pack_checkpoint(tmp_path / "a"), kernels.load_packed(tmp_path / "b")):
        model = Model()
        assert replace_linears(model, source) == 2
        for i in range(2):
            sample = layers[f"layers.{i}.up"]
            assert error_of(model.layers[i]["up"](x), x.double().numpy() @ sample.meant + sample.bias) < 1e-3


def test_packed_files_are_a_state_dict(tmp_path: Path) -> None:
    package = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")
    sample = make_layer("gptq", K, N, 64, 0, has_bias=True, is_sorted=False, is_bf16=True)
    write_checkpoint(tmp_path / "a", {"x": sample}, GPTQ)
    kernels.convert_checkpoint(tmp_path / "a", tmp_path / "b")
    state = package.load_file(tmp_path / "b" / "packed-00001.safetensors")
    model = torch.nn.ModuleDict({"x": W4Linear(K, N, mode="group_zero", group_size=64, activation="bf16")})
    model.load_state_dict({name: tensor for name, tensor in state.items() if name.startswith("x.")})
    x = tokens(4, K, activation="bf16")

    assert error_of(model["x"](x), x.double().numpy() @ sample.meant + sample.bias) < WORST_ERROR["bf16"]


def test_layers_that_a_model_has_not_are_refused() -> None:
    model = Model()
    with pytest.raises(InvalidProblemError, match=r"the model has no layer 'layers\.2\.up'"):
        replace_linears(model, [("layers.2.up", kernels.PackedLayer(packed_of(), None))])
    with pytest.raises(InvalidProblemError, match=r"layer 'layers\.0' must have in_features .* got None and None"):
        replace_linears(model, [("layers.0", kernels.PackedLayer(packed_of(), None))])
    other = kernels.PackedLayer(kernels.pack_w4(np.ones((K, 2 * N), np.float32)), None)
    with pytest.raises(InvalidProblemError, match=f"136 and 144, as the packed one has, got {K} and {N}"):
        replace_linears(model, [("layers.0.up", other)])


# ---- what a GPU is asked to do -------------------------------------------------------------------------------------


class Gpu:
    """Takes CPU tensors for its own, and writes down the calls of `w4a16_gemm`."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, kernels.PackedW4, Any, dict[str, Any]]] = []
        self.is_capturing = False

    def w4a16_gemm(self, rows: Any, packed: kernels.PackedW4, bias: Any, **more: Any) -> None:
        self.calls.append((rows, packed, bias, more))

    def call(self, layer: Any, x: Any) -> Any:
        tensors = layer.qweight, layer.scales, layer.permutation, layer.bias
        return linear_op._on_gpu(
            x, *tensors, layer.out_features, layer.in_features, int(layer.mode), layer.group_size, layer.scale_unit
        )


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    made = Gpu()
    cupy = SimpleNamespace(
        dtype=np.dtype,
        ndarray=lambda shape, dtype, data: SimpleNamespace(
            shape=shape, dtype=np.dtype(dtype), data=data, flags=SimpleNamespace(c_contiguous=True)
        ),
        cuda=SimpleNamespace(
            UnownedMemory=lambda address, num_bytes, owner, device: SimpleNamespace(ptr=address),
            MemoryPointer=lambda memory, offset: memory,
        ),
    )
    cuda = SimpleNamespace(
        device=lambda device: contextlib.nullcontext(),
        current_stream=lambda device: SimpleNamespace(cuda_stream=7),
        is_current_stream_capturing=lambda: made.is_capturing,
    )
    monkeypatch.setattr(linear_op.torch, "cuda", cuda)
    monkeypatch.setattr(linear_op, "import_cupy", lambda: cupy)
    monkeypatch.setattr(linear_op, "w4a16_gemm", made.w4a16_gemm)
    monkeypatch.setattr(linear_op, "workspace_bytes", lambda M, packed, is_fp8: 1000 * M)
    monkeypatch.setattr(linear_op, "_device_of", lambda x: 0)
    linear_op._packed_at.cache_clear()
    yield made
    linear_op._packed_at.cache_clear()


@pytest.mark.parametrize("activation", ["fp16", "bf16"])
def test_kernels_are_given_the_memory_of_the_tensors(gpu: Gpu, activation: str) -> None:
    layer, x = layer_of(activation, mode="group_zero", group=128), tokens(2, 3, K, activation=activation)
    y = gpu.call(layer, x)
    ((rows, packed, bias, more),) = gpu.calls

    assert (tuple(y.shape), y.dtype) == ((2, 3, N), x.dtype)
    assert (rows.data_ptr(), tuple(rows.shape)) == (x.data_ptr(), (6, K))
    assert (packed.qweight.data.ptr, packed.scales.data.ptr) == (layer.qweight.data_ptr(), layer.scales.data_ptr())
    assert (packed.N, packed.K, packed.group_size, str(packed.activation)) == (N, K, 128, activation)
    assert packed.permutation is None
    assert bias is layer.bias
    assert (more["out"].data_ptr(), tuple(more["out"].shape)) == (y.data_ptr(), (6, N))
    assert (more["stream"], more["workspace"]) == (7, None)
    gpu.call(layer, x)
    assert gpu.calls[1][1] is packed  # and with it what is known of it


def test_a_workspace_is_torchs_in_a_graph_and_with_act_order(gpu: Gpu) -> None:
    layer, x = layer_of(), tokens(3, K)
    gpu.is_capturing = True
    gpu.call(layer, x)
    gpu.is_capturing = False
    layer = layer_of(is_sorted=False)
    gpu.call(layer, x)

    assert [tuple(call[3]["workspace"].shape) for call in gpu.calls] == [(3000,), (3000,)]
    assert gpu.calls[1][1].permutation.data.ptr == layer.permutation.data_ptr()


def test_rows_that_kernels_cannot_read_are_copied(gpu: Gpu) -> None:
    layer = layer_of()
    flat = tokens(40 * K)
    for x, is_copied in (
        (flat[: 4 * K].view(4, K), False), (flat[8 : 8 + 4 * K].view(4, K), False),
        (flat[1 : 1 + 4 * K].view(4, K), True), (flat.view(20, 2 * K)[:, :K], False),
        (flat[: 4 * (K + 4)].view(4, K + 4)[:, :K], True), (flat[: K + 4].view(1, K + 4)[:, :K], False),
        (flat.view(K, 40).t(), True), (flat[:K].expand(4, K), True),
    ):  # fmt: skip
        gpu.call(layer, x)
        rows = gpu.calls[-1][0]
        assert (rows.data_ptr() != x.data_ptr()) is is_copied
        assert (rows.data_ptr() % 16, rows.stride(1)) == (0, 1)
        assert torch.equal(rows, x)


def test_no_rows_are_no_launch(gpu: Gpu) -> None:
    assert tuple(gpu.call(layer_of(), tokens(2, 0, K)).shape) == (2, 0, N)
    assert gpu.calls == []
