"""Quantized linear layers are seen for what they are: by public layouts, and as their packages make them."""

import enum
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch: make test-torch")

from torch import nn  # noqa: E402

from gemm_eval import GEMMEvaluator, GemmProblem  # noqa: E402
from gemm_eval.torch import predict, predict_module  # noqa: E402
from gemm_eval.torch.quantized import QuantizedLinear, quantized_linear, quantized_linears  # noqa: E402
from gemm_eval.transformer import GemmWork, MemoryWork  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # the packages warn as they like
EVALUATOR = GEMMEvaluator("h200-sxm", disk_cache=False)
K, N, ROWS = 1024, 512, 4
X = torch.empty(2, 2, K, dtype=torch.bfloat16, device="meta")


def problem(**types: Any) -> GemmProblem:
    return GemmProblem(1, ROWS, K, N, **({"input_dtype": "bf16", "output_dtype": "bf16"} | types))


def works(layer: Any) -> list[Any]:
    found = predict_module(nn.Sequential(layer), X, EVALUATOR).operations
    assert {one.path for one in found} == {"0"}
    return [one._work for one in found]


def only_gemm(layer: Any) -> GemmProblem:
    (work,) = [work for work in works(layer) if isinstance(work, GemmWork)]
    return work.problem


class Layer(nn.Module):
    """What all layers of packages have; none of them can run here."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.in_features, self.out_features = K, N
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: Any) -> Any:
        raise AssertionError("a stand-in takes its place")


class WQLinear_GEMM(Layer):  # noqa: N801  AutoAWQ's name
    pass


class QuantLinear(Layer):
    pass


class Linear4bit(Layer):
    pass


class Linear8bitLt(Layer):
    pass


class Type(enum.StrEnum):
    """As compressed-tensors has its words."""

    INT, FLOAT, GROUP, CHANNEL, TOKEN, BLOCK = "int", "float", "group", "channel", "token", "block"


def buffers(**shapes: Any) -> dict[str, Any]:
    return {name: torch.empty(shape, dtype=dtype, device="meta") for name, (shape, dtype) in shapes.items()}


def test_awq() -> None:
    held = buffers(
        qweight=((K, N // 8), torch.int32), qzeros=((K // 128, N // 8), torch.int32), scales=((K // 128, N), torch.half)
    )
    layer = WQLinear_GEMM(w_bit=4, group_size=128, **held)
    assert only_gemm(layer) == problem(weight_dtype="int4", group_size=128, zero_dtype="int4")


def test_gptq() -> None:
    layer = QuantLinear(bits=4, group_size=64, sym=True)
    assert only_gemm(layer) == problem(weight_dtype="int4", group_size=64)
    layer = QuantLinear(bits=8, group_size=-1, sym=True, infeatures=K, outfeatures=N)
    assert only_gemm(layer) == problem(weight_dtype="int8")


def test_bitsandbytes_unpacks_4_bits_but_for_one_row() -> None:
    state = SimpleNamespace(quant_type="nf4", blocksize=64)
    layer = Linear4bit(weight=SimpleNamespace(quant_state=state))
    unpack, gemm = works(layer)
    assert isinstance(unpack, MemoryWork)
    assert (unpack.read_bytes, unpack.write_bytes) == (K * N // 2, 2 * K * N)
    assert gemm == GemmWork(problem())
    one = predict_module(nn.Sequential(layer), X[:1, :1], EVALUATOR).operations
    assert [item._work for item in one] == [
        GemmWork(GemmProblem(1, 1, K, N, "bf16", "int4", "bf16", group_size=64))  # type: ignore[arg-type]
    ]


def test_bitsandbytes_quantizes_x_to_8_bits() -> None:
    quantize, gemm, dequantize = works(Linear8bitLt())
    assert gemm == GemmWork(GemmProblem(1, ROWS, K, N, "int8", "int8", "int32"))  # type: ignore[arg-type]
    assert (quantize.read_bytes, quantize.write_bytes) == (2 * ROWS * K, ROWS * K)
    assert (dequantize.read_bytes, dequantize.write_bytes) == (4 * ROWS * N, 2 * ROWS * N)


def scheme(num_bits: int, kind: Type, strategy: Type, inputs: Any = None, **more: Any) -> Any:
    args = {"group_size": None, "symmetric": True, "block_structure": None} | more
    weights = SimpleNamespace(num_bits=num_bits, type=kind, strategy=strategy, **args)
    return SimpleNamespace(weights=weights, input_activations=inputs)


def test_compressed_tensors() -> None:
    fp8 = SimpleNamespace(num_bits=8, type=Type.FLOAT, strategy=Type.TOKEN)
    int8 = SimpleNamespace(num_bits=8, type=Type.INT, strategy=Type.TOKEN)
    for given, expected in (
        (scheme(4, Type.INT, Type.GROUP, group_size=128), problem(weight_dtype="int4", group_size=128)),
        (scheme(4, Type.INT, Type.GROUP, group_size=32, symmetric=False),
         problem(weight_dtype="int4", group_size=32, zero_dtype="int4")),
        (scheme(8, Type.INT, Type.CHANNEL, int8), problem(input_dtype="int8", output_dtype="int32")),
        (scheme(8, Type.FLOAT, Type.CHANNEL, fp8), problem(input_dtype="fp8")),
        (scheme(8, Type.FLOAT, Type.BLOCK, fp8, block_structure=[128, 128]),
         problem(input_dtype="fp8", group_size=128, group_n=128)),
    ):  # fmt: skip
        linear = nn.Linear(K, N, bias=False).bfloat16()
        linear.quantization_scheme = given
        assert only_gemm(linear) == expected


def torchao_weight(name: str, **attributes: Any) -> Any:
    """A weight whose class is called as one of torchao's, and lies there."""
    kind = type(name, (torch.nn.Parameter,), {"__module__": "torchao.quantization"})
    weight = torch.Tensor._make_subclass(kind, torch.empty(N, K, dtype=torch.bfloat16, device="meta"))
    for attribute, value in attributes.items():
        setattr(weight, attribute, value)
    return weight


def test_torchao() -> None:
    dynamic = object()
    affine = {"quant_min": -8, "quant_max": 7, "zero_point_domain": "int"}
    for weight, expected in (
        (torchao_weight("Int4Tensor", block_size=[1, 128], zero_point=torch.zeros(1)),
         problem(weight_dtype="int4", group_size=128, zero_dtype="int4")),
        (torchao_weight("Int8Tensor", block_size=[1, K]), problem(weight_dtype="int8")),
        (torchao_weight("Int8Tensor", block_size=[1, K], act_quant_kwargs=dynamic),
         problem(input_dtype="int8", output_dtype="int32")),
        (torchao_weight("Float8Tensor", block_size=[1, K], act_quant_kwargs=dynamic), problem(input_dtype="fp8")),
        (torchao_weight("Float8Tensor", block_size=[128, 128], act_quant_kwargs=dynamic),
         problem(input_dtype="fp8", group_size=128, group_n=128)),
        (torchao_weight("AffineQuantizedTensor", block_size=(1, 64), **affine),
         problem(weight_dtype="int4", group_size=64, zero_dtype="int4")),
        (torchao_weight("IntxUnpackedToInt8Tensor", block_size=(1, 32), target_dtype="torch.int4"),
         problem(weight_dtype="int4", group_size=32)),
    ):  # fmt: skip
        linear = nn.Linear(K, N, bias=False, device="meta")
        linear._parameters["weight"] = weight
        assert only_gemm(linear) == expected


def test_our_own_layer_is_its_operator() -> None:
    from gemm_eval.kernels.linear import W4Linear

    for options, types in (
        ({"group_size": 64}, {"weight_dtype": "int4", "group_size": 64}),
        ({"mode": "group_zero"}, {"weight_dtype": "int4", "group_size": 128, "zero_dtype": "int4"}),
        ({"mode": "column"}, {"weight_dtype": "int4"}),
        ({"mode": "nvfp4"}, {"weight_dtype": "fp4", "group_size": 16}),
    ):
        layer = W4Linear(K, N, activation="bf16", device="meta", **options)  # type: ignore[arg-type]
        assert only_gemm(layer) == problem(**types)


def test_the_gradient_of_x_passes_through_unpacked_weights() -> None:
    module = nn.Sequential(nn.Linear(K, K).bfloat16(), WQLinear_GEMM(w_bit=4, group_size=128))
    found = predict_module(module, X, EVALUATOR, backward=True).operations
    backward = [one._work for one in found if one.phase == "backward" and one.path == "1"]
    assert [type(work) for work in backward] == [MemoryWork, GemmWork]
    assert backward[1].problem == GemmProblem(1, ROWS, N, K, "bf16")  # type: ignore[arg-type]


def test_layers_of_torch_are_none() -> None:
    assert quantized_linears(nn.Sequential(nn.Linear(4, 4), nn.ReLU())) == {}
    assert quantized_linear(WQLinear_GEMM(w_bit=3, group_size=128)) is None


def test_as_torchao_makes_them() -> None:
    quantization = pytest.importorskip("torchao.quantization", reason="needs torchao: pip install torchao")
    layer = nn.Sequential(nn.Linear(K, N, bias=False)).bfloat16()
    quantization.quantize_(layer, quantization.Int8WeightOnlyConfig())
    assert quantized_linear(layer[0]) == QuantizedLinear(
        "torchao Int8Tensor", K, N, problem(weight_dtype="int8").types.b.dtype
    )
    with predict(EVALUATOR) as p, torch.no_grad():
        layer(torch.zeros(ROWS, K, dtype=torch.bfloat16))
    assert [one._work for one in p.operations if one.kind == "gemm"] == [GemmWork(problem(weight_dtype="int8"))]
    assert only_gemm(layer[0]) == problem(weight_dtype="int8")


def test_as_compressed_tensors_makes_them() -> None:
    package = pytest.importorskip("compressed_tensors.quantization", reason="needs compressed-tensors")
    layer = nn.Sequential(nn.Linear(K, N, bias=False)).bfloat16()
    config = package.QuantizationConfig(config_groups={"all": package.preset_name_to_scheme("W4A16", ["Linear"])})
    package.apply_quantization_config(layer, config)
    assert only_gemm(layer[0]) == problem(weight_dtype="int4", group_size=128)


def test_as_bitsandbytes_makes_them() -> None:
    package = pytest.importorskip("bitsandbytes", reason="needs bitsandbytes")
    assert works(package.nn.Linear4bit(K, N, quant_type="nf4"))[1] == GemmWork(problem())
    assert only_gemm(package.nn.Linear8bitLt(K, N, has_fp16_weights=False)).input_dtype == "int8"
