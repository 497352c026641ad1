"""Four-bit floats as weights: rounding, packing, what kernels decode, and checkpoints that store them."""

import ctypes
import itertools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidInputError, InvalidOptionError, InvalidProblemError
from gemm_eval.kernels import (
    PackedW4,
    QuantizedFp4,
    convert_checkpoint,
    dequantize,
    load_packed,
    pack_checkpoint,
    pack_fp4,
    pack_mxfp4,
    pack_nvfp4,
    pack_w4,
    quantize_fp4,
    quantize_w4,
    unpack_fp4,
    unpack_w4,
)
from gemm_eval.kernels.checkpoint_tensors import read_quantization_config
from gemm_eval.kernels.families import WeightMode
from gemm_eval.kernels.layout import E2M1_VALUES, decode, encode, parse_activation, stored_values, to_kernel_order
from gemm_eval.kernels.registry import COMMON, SOURCES
from gemm_eval.storage import StoredTensor, TensorFile, write_tensors
from tests.oracle import fragments
from tests.oracle.fragments import E2M1

# ---- packing ---------------------------------------------------------------------------------------------------------


VALUES = np.concatenate([E2M1, -E2M1])
E4M3 = np.array([m * 2.0**-9 if e == 0 else (8 + m) * 2.0 ** (e - 10) for e in range(16) for m in range(8)][:127])
E8M0 = 2.0 ** (np.arange(255) - 127.0)
GROUP = {"mxfp4": 32, "nvfp4": 16}
SCALES = {"mxfp4": E8M0, "nvfp4": E4M3}
MODES = sorted(GROUP)
ACTIVATIONS = ["fp16", "bf16"]


def quantized(mode: str, K: int = 200, N: int = 72, seed: int = 0) -> QuantizedFp4:
    """Any codes, and scales of a span that fp16 holds."""
    rng = np.random.default_rng(seed)
    shape = -(-K // GROUP[mode]), N
    scales = rng.integers(100, 125, shape) if mode == "mxfp4" else rng.integers(0, 127, shape)
    tensor_scale = 1.0 if mode == "mxfp4" else float(np.float32(rng.uniform(1e-4, 1)))
    return QuantizedFp4(rng.integers(0, 16, (K, N), dtype=np.uint8), scales.astype(np.uint8), tensor_scale)


def meant(mode: str, weights: QuantizedFp4) -> Any:
    scales = SCALES[mode][weights.scales] * weights.tensor_scale
    return VALUES[weights.codes] * np.repeat(scales, GROUP[mode], axis=0)[: len(weights.codes)]


def rows_of(codes: Any) -> Any:
    """Codes [K, N] as checkpoints have them: [N, K / 2], the lower bits first."""
    return np.ascontiguousarray((codes[0::2] | codes[1::2] << 4).T)


# ---- quantization --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_quantizing_takes_the_nearest_code_and_of_two_the_even_one(mode: str) -> None:
    rng = np.random.default_rng(3)
    weights = rng.standard_normal((96, 16)) * 2.0 ** rng.integers(-9, 9, 16)
    found = quantize_fp4(weights, mode)
    scales = np.repeat(SCALES[mode][found.scales] * found.tensor_scale, GROUP[mode], axis=0)
    for k, n in itertools.product(range(96), range(16)):
        distances = np.abs(VALUES[:8] - min(abs(weights[k, n]) / scales[k, n], 6))
        assert distances[found.codes[k, n] & 7] == distances.min()
        assert found.codes[k, n] & 7 == 0 or (found.codes[k, n] >= 8) == (weights[k, n] < 0)


@pytest.mark.parametrize(("largest", "exponent"), [(6.0, 0), (7.99, 0), (8.0, 1), (4.0, 0), (3.99, -1), (1e-3, -12)])
def test_mxfp4_scales_are_those_of_the_specification(largest: float, exponent: int) -> None:
    weights = np.full((32, 8), largest)
    found = quantize_fp4(weights)

    assert (found.scales == 127 + exponent).all()
    assert (found.codes == (7 if largest / 2.0**exponent > 5 else 6)).all()


def test_nvfp4_scales_use_the_range_of_e4m3() -> None:
    weights = np.random.default_rng(0).standard_normal((64, 16))
    found = quantize_fp4(weights, "nvfp4")

    assert found.scales.max() == 0x7E
    assert found.tensor_scale == np.float32(np.abs(weights).max() / 2688)
    error = np.linalg.norm(dequantize(pack_fp4(found, "nvfp4")) - weights) / np.linalg.norm(weights)
    assert error < 0.11


@pytest.mark.parametrize("mode", MODES)
def test_zeros_stay_zeros(mode: str) -> None:
    for activation in ACTIVATIONS:
        assert not dequantize(pack_w4(np.zeros((40, 8)), mode=mode, activation=activation)).any()


# ---- packing and back ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(6))
def test_round_trip_is_exact(seed: int, mode: str, activation: str) -> None:
    rng = np.random.default_rng(seed)
    weights = quantized(mode, 8 * int(rng.integers(1, 40)), 8 * int(rng.integers(1, 20)), seed)
    packed = pack_fp4(weights, mode, activation)
    found = unpack_fp4(packed)

    is_zero = np.repeat(SCALES[mode][weights.scales] == 0, GROUP[mode], axis=0)[: len(weights.codes)]
    np.testing.assert_array_equal(found.codes, np.where(is_zero, 0, weights.codes))
    np.testing.assert_array_equal(found.scales, weights.scales)
    assert found.tensor_scale == weights.tensor_scale
    np.testing.assert_array_equal(dequantize(packed), meant(mode, weights))
    assert (packed.group_size, packed.scales.dtype) == (GROUP[mode], np.uint8)
    assert packed.nbytes == packed.num_column_blocks * packed.num_k_blocks * (2048 + 64 * 64 // GROUP[mode])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_groups_without_weights_do_not_count(activation: str) -> None:
    """gpt-oss stores any scale beside a group of zeros."""
    weights = quantized("mxfp4", 128, 8)
    weights.codes[32:64] &= 8
    weights.scales[1] = [0, 1, 200, 250, 254, 255, 127, 3]
    packed = pack_fp4(weights, "mxfp4", activation)

    assert not dequantize(packed)[32:64].any()
    weights.scales[1] = 0
    np.testing.assert_array_equal(dequantize(packed), meant("mxfp4", weights))


def test_the_span_that_each_type_holds() -> None:
    weights = quantized("mxfp4", 64, 8)
    for span, activation in ((24, "fp16"), (133, "bf16")):
        weights.scales[0], weights.scales[1] = 200, 200 - span
        np.testing.assert_array_equal(dequantize(pack_fp4(weights, "mxfp4", activation)), meant("mxfp4", weights))
        weights.scales[1, 3] -= 1
        with pytest.raises(InvalidProblemError, match=rf"within 2\^{span} of each other for {activation}"):
            pack_fp4(weights, "mxfp4", activation)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gpt_oss_layout(activation: str) -> None:
    weights = quantized("mxfp4", 256, 24)
    blocks = rows_of(weights.codes).reshape(24, 8, 16)
    scales = np.ascontiguousarray(weights.scales.T)
    alone = pack_mxfp4(blocks, scales, activation=activation)
    assert isinstance(alone, PackedW4)
    np.testing.assert_array_equal(dequantize(alone), meant("mxfp4", weights))

    experts = pack_mxfp4(np.stack([blocks, blocks ^ 0x88]), np.stack([scales, scales + 1]), activation=activation)

    assert isinstance(experts, tuple)
    np.testing.assert_array_equal(dequantize(experts[0]), meant("mxfp4", weights))
    np.testing.assert_array_equal(dequantize(experts[1]), -2 * meant("mxfp4", weights))
    np.testing.assert_array_equal(
        pack_mxfp4(blocks.reshape(24, 128), scales).qweight, pack_mxfp4(blocks, scales).qweight
    )


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_layouts_of_modelopt_and_compressed_tensors(activation: str) -> None:
    weights = quantized("nvfp4", 144, 24)._replace(tensor_scale=0.25)
    rows, scales = rows_of(weights.codes), weights.scales.T
    modelopt = pack_nvfp4(rows, scales, np.float32(0.25), activation=activation)
    compressed = pack_nvfp4(rows, scales, global_scale=np.array([4.0]), activation=activation)
    experts = pack_nvfp4(np.stack([rows] * 2), np.stack([scales] * 2), [0.25, 3.0], activation=activation)

    assert isinstance(experts, tuple)
    for packed in (modelopt, compressed, experts[0]):
        assert isinstance(packed, PackedW4)
        np.testing.assert_array_equal(dequantize(packed), meant("nvfp4", weights))
    np.testing.assert_array_equal(dequantize(experts[1]), meant("nvfp4", weights) * 12)


# ---- what is refused -----------------------------------------------------------------------------------------------


def test_refusals() -> None:
    good = quantized("mxfp4", 64, 8)
    rows, scales = rows_of(good.codes), np.ascontiguousarray(good.scales.T)
    refused: list[tuple[Any, str]] = [
        (lambda: pack_fp4(good._replace(codes=good.codes + 1), "mxfp4"), "codes must be 0..15, got 16"),
        (lambda: pack_fp4(good._replace(scales=good.scales[:1]), "mxfp4"), r"scales must be uint8 \[2, 8\]"),
        (lambda: pack_fp4(good._replace(codes=good.codes.astype(int)), "mxfp4"), "codes must be uint8"),
        (lambda: pack_fp4(good._replace(scales=np.full_like(good.scales, 255)), "mxfp4"), "NaN"),
        (lambda: pack_fp4(QuantizedFp4(good.codes, np.full((4, 8), 200, np.uint8), 1.0), "nvfp4"), "not negative"),
        (lambda: pack_fp4(QuantizedFp4(good.codes, np.full((4, 8), 56, np.uint8), -1.0), "nvfp4"), "tensor_scale"),
        (lambda: pack_fp4(QuantizedFp4(good.codes, np.full((4, 8), 56, np.uint8), 1e39), "nvfp4"), "tensor_scale"),
        (lambda: pack_mxfp4(rows, scales.astype(np.float32)), "scales must be uint8, got float32"),
        (lambda: pack_mxfp4(rows, scales[:, :1]), r"must come with scales \[N, K / 32\]"),
        (lambda: pack_mxfp4(rows[None], scales[None].repeat(2, 0)), "as many experts"),
        (lambda: pack_nvfp4(rows[None], np.full((1, 8, 4), 56, np.uint8), [1.0, 2.0, 3.0]), "one number or 1"),
        (lambda: pack_nvfp4(rows, np.full((8, 4), 56, np.uint8), [1.0, 2.0]), "one number, got 2"),
        (lambda: pack_nvfp4(rows, np.full((8, 4), 56, np.uint8), global_scale=0.0), "tensor_scale"),
        (lambda: pack_w4(np.zeros((32, 8)), mode="mxfp4", scales=np.ones((1, 8))), "given to pack_mxfp4"),
        (lambda: quantize_fp4(np.full((32, 8), np.inf)), "finite"),
        (lambda: quantize_fp4(np.zeros((32, 8), int)), "floats"),
        (lambda: unpack_w4(pack_fp4(good, "mxfp4")), "unpack_fp4"),
        (lambda: unpack_fp4(pack_w4(np.zeros((32, 8)))), "unpack_w4"),
    ]
    for call, message in refused:
        with pytest.raises(InvalidProblemError, match=message):
            call()
    options: list[tuple[Any, str]] = [
        (lambda: pack_fp4(good, "group"), "mode must be mxfp4 or nvfp4"),
        (lambda: quantize_w4(np.zeros((32, 8)), mode="nvfp4"), "quantize_fp4"),
        (lambda: pack_w4(np.zeros((32, 8)), 64, mode="nvfp4"), "group_size must be 16 in mode nvfp4, got 64"),
        (lambda: pack_nvfp4(rows, scales), "give tensor_scale"),
        (lambda: pack_nvfp4(rows, scales, 1.0, global_scale=1.0), "give tensor_scale"),
    ]
    for call, message in options:
        with pytest.raises(InvalidOptionError, match=message):
            call()


# ---- decoding in kernels ---------------------------------------------------------------------------------------------


COMPILER = shutil.which("g++")

BEGIN, END = "// Scales of k16 step j of a block", "// One packed word to the operand"


@pytest.fixture(
    params=[(mode, activation) for mode in ("mxfp4", "nvfp4") for activation in ("fp16", "bf16")], ids="-".join
)
def decoder(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str, ctypes.CDLL]:
    if COMPILER is None:
        pytest.skip("no g++")
    mode, activation = request.param
    text = (SOURCES / COMMON).read_text("utf-8")
    source, library = Path(__file__).with_name("decode_on_cpu.cpp"), tmp_path / "decode.so"
    (tmp_path / "decode.cuh").write_text(text[text.index(BEGIN) : text.index(END)])
    macros = [f"-DMODE={int(WeightMode[mode.upper()])}", f"-DACT_BF16={int(activation == 'bf16')}"]
    subprocess.run([COMPILER, "-shared", "-fPIC", "-O1", *macros, "-I", tmp_path, "-o", library, source], check=True)
    return mode, activation, ctypes.CDLL(str(library))


def values_of(registers: Any, activation: str) -> Any:
    """Low and high halves, float64 [..., 2]."""
    halves = np.ascontiguousarray(registers).view(np.uint16).reshape(*registers.shape, 2)
    return fragments.bf16_values(halves) if activation == "bf16" else halves.view(np.float16).astype(np.float64)


def test_every_code_in_every_place(decoder: tuple[str, str, ctypes.CDLL]) -> None:
    _, activation, library = decoder
    natural = np.random.default_rng(1).integers(0, 2**32, 4096, dtype=np.uint32)
    words = to_kernel_order(natural, parse_activation(activation))
    found = np.zeros((len(words), 4), np.uint32)
    library.spread(words.ctypes.data_as(ctypes.c_void_p), found.ctypes.data_as(ctypes.c_void_p), len(words))

    unit = 2.0**-126 if activation == "bf16" else 2.0**-14
    for i in range(4):  # register: k + 8 (i / 2), column g + 8 (i % 2); halves: k, k + 1
        for p in range(2):
            codes = natural >> (16 * p + 8 * (i // 2) + 4 * (i % 2)) & 15
            expected = np.array(E2M1_VALUES)[codes] * unit
            assert set(codes.tolist()) == set(range(16))
            np.testing.assert_array_equal(values_of(found, activation)[:, i, p], expected)
            np.testing.assert_array_equal(np.signbit(values_of(found, activation)[:, i, p]), codes >= 8)


def test_products_are_exact_for_every_scale(decoder: tuple[str, str, ctypes.CDLL]) -> None:
    """Each byte that packing stores, at each of its places; its product with each code is exact in 16 bits."""
    mode, activation, library = decoder
    known = WeightMode[mode.upper()]
    every = stored_bytes(mode, activation)
    of_block = 64 // known.group_sizes[0]
    stored = np.random.default_rng(2).choice(every, (2048, 2 * of_block)).astype(np.uint8)
    assert all(set(column.tolist()) == set(every.tolist()) for column in stored.T)
    words = np.zeros((len(stored), 8), np.uint8)
    words[:, : 2 * of_block] = stored
    found = np.zeros((len(stored), 4, 2), np.uint32)
    library.scales(words.ctypes.data_as(ctypes.c_void_p), found.ctypes.data_as(ctypes.c_void_p), len(stored))

    unit = (2.0**-126 if activation == "bf16" else 2.0**-14) * 2.0**7
    meant = stored_values(stored, known, parse_activation(activation))
    for j in range(4):
        for h in range(2):
            expected = meant[:, j * of_block // 4 * 2 + h]
            scales = values_of(found, activation)[:, j, h]
            np.testing.assert_array_equal(scales[:, 0], scales[:, 1])
            np.testing.assert_array_equal(scales[:, 0] * unit, expected)
            for code in E2M1_VALUES:
                exact = expected * code / 2.0**7
                bits = fragments.bf16_bits(exact) if activation == "bf16" else exact.astype(np.float16)
                held = fragments.bf16_values(bits) if activation == "bf16" else bits.astype(np.float64)
                np.testing.assert_array_equal(held, exact)


def stored_bytes(mode: str, activation: str) -> Any:
    """All bytes of scales of groups that matter."""
    if mode == "mxfp4":
        return np.arange(6, 31) << 2 if activation == "fp16" else np.arange(121, 255)
    return np.arange((13 << 3), (30 << 3) + 7)


# ---- checkpoints -----------------------------------------------------------------------------------------------------


EXPERTS, K, N = 3, 96, 24
OTHER = {"model.norm.weight": StoredTensor.of(np.ones(6, np.float16))}


def bytes_of(codes: Any) -> Any:
    """Codes [..., N, K] as [..., N, K / 2], the first of two in the lower bits."""
    return codes[..., 0::2] | codes[..., 1::2] << 4


def bf16(values: Any) -> StoredTensor:
    return StoredTensor.of(encode(values.astype(np.float32), DType.BF16), "BF16")


def e4m3(bits: Any) -> Any:
    field, fraction = bits.astype(int) >> 3, bits & 7
    return np.where(field > 0, (1 + fraction / 8) * 2.0 ** (field - 7), fraction * 2.0**-9)


class Sample:
    """Tensors, what their layers mean ([K, N] and bias by name), and the quantization_config."""

    def __init__(self, kind: str) -> None:
        self.random = np.random.default_rng(5)
        self.tensors: dict[str, StoredTensor] = dict(OTHER)
        self.meant: dict[str, tuple[Any, Any]] = {}
        self.config, self.mode = getattr(self, f"_{kind}")()

    def codes_and_scales(self, shape: tuple[int, ...], group: int) -> tuple[Any, Any]:
        low, high = (110, 126) if group == 32 else (1, 127)
        codes = self.random.integers(0, 16, shape, dtype=np.uint8)
        return codes, self.random.integers(low, high, (*shape[:-1], shape[-1] // group), dtype=np.uint8)

    def _gpt_oss(self) -> tuple[dict[str, Any], WeightMode]:
        for name in ("gate_up_proj", "down_proj"):
            codes, scales = self.codes_and_scales((EXPERTS, N, K), 32)
            bias = self.random.integers(-8, 8, (EXPERTS, N)).astype(np.float32)
            prefix = f"model.layers.0.mlp.experts.{name}"
            blocks = bytes_of(codes).reshape(EXPERTS, N, K // 32, 16)
            self.tensors |= {
                f"{prefix}_blocks": StoredTensor.of(blocks), f"{prefix}_scales": StoredTensor.of(scales),
                f"{prefix}_bias": bf16(bias),
            }  # fmt: skip
            for e in range(EXPERTS):
                weights = VALUES[codes[e]] * np.repeat(2.0 ** (scales[e] - 127.0), 32, axis=1)
                self.meant[f"model.layers.0.mlp.experts.{e}.{name}"] = weights.T, bias[e]
        return {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, WeightMode.MXFP4

    def _linear(self, name: str, group: int, weight: str) -> Any:
        """Weights without the scale of the tensor."""
        codes, scales = self.codes_and_scales((N, K), group)
        kind = "U8" if group == 32 else "F8_E4M3"
        self.tensors[f"{name}.{weight}"] = StoredTensor.of(bytes_of(codes))
        self.tensors[f"{name}.weight_scale"] = StoredTensor(kind, scales.shape, scales.reshape(-1))
        of_groups = 2.0 ** (scales - 127.0) if group == 32 else e4m3(scales)
        return (VALUES[codes] * np.repeat(of_groups, group, axis=1)).T

    def _modelopt(self) -> tuple[dict[str, Any], WeightMode]:
        for i, unit in enumerate((0.3, 2.0)):
            weights, name = self._linear(f"layers.{i}", 16, "weight"), f"layers.{i}"
            scale = np.float32(unit)
            self.tensors[f"{name}.weight_scale_2"] = StoredTensor.of(np.array(scale))
            self.tensors[f"{name}.input_scale"] = StoredTensor.of(np.array(np.float32(7)))
            self.tensors[f"{name}.bias"] = bf16(np.full(N, i))
            self.meant[name] = weights * float(scale), np.full(N, i)
        return {"quant_method": "modelopt", "quant_algo": "NVFP4"}, WeightMode.NVFP4

    def _compressed_nvfp4(self) -> tuple[dict[str, Any], WeightMode]:
        weights = self._linear("up", 16, "weight_packed")
        self.tensors["up.weight_global_scale"] = StoredTensor.of(np.array([8], np.float32))
        self.meant["up"] = weights / 8, None
        return {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, WeightMode.NVFP4

    def _compressed_mxfp4(self) -> tuple[dict[str, Any], WeightMode]:
        self.meant["up"] = self._linear("up", 32, "weight_packed"), None
        return {"quant_method": "compressed-tensors", "format": "mxfp4-pack-quantized"}, WeightMode.MXFP4

    def write(self, folder: Path, dtype: str | None = "bfloat16") -> Path:
        folder.mkdir()
        write_tensors(folder / "model.safetensors", self.tensors)
        config = {"quantization_config": self.config} | ({} if dtype is None else {"torch_dtype": dtype})
        (folder / "config.json").write_text(json.dumps(config))
        return folder


KINDS = ["gpt_oss", "modelopt", "compressed_nvfp4", "compressed_mxfp4"]


def check(found: dict[str, Any], sample: Sample, activation: str) -> None:
    assert found.keys() == sample.meant.keys()
    for name, (packed, bias) in found.items():
        weights, expected = sample.meant[name]
        np.testing.assert_array_equal(dequantize(packed), weights)
        assert (packed.mode, packed.activation) == (sample.mode, activation)
        assert (bias is None) is (expected is None)
        if expected is not None:
            np.testing.assert_array_equal(decode(bias, packed.activation), expected)


@pytest.mark.parametrize("activation", [None, "fp16", "bf16"])
@pytest.mark.parametrize("kind", KINDS)
def test_packed_converted_and_loaded(kind: str, activation: str | None, tmp_path: Path) -> None:
    sample = Sample(kind)
    folder = sample.write(tmp_path / "a")
    (folder / "hf_quant_config.json").write_text("{}")
    check(dict(pack_checkpoint(folder, activation=activation)), sample, activation or "bf16")
    made = convert_checkpoint(folder, tmp_path / "b", activation=activation)

    check(dict(load_packed(tmp_path / "b")), sample, activation or "bf16")
    file = TensorFile(tmp_path / "b" / "packed-00001.safetensors")
    layer = next(iter(sample.meant))
    assert file[f"{layer}.scales"].dtype == ("U8" if activation == "fp16" else "I8")
    assert made.num_layers == len(sample.meant)
    others = set(OTHER) | {name for name in sample.tensors if name.endswith("input_scale")}
    assert {name for name in file.names if name in sample.tensors and ".bias" not in name} == others
    assert not (tmp_path / "b" / "hf_quant_config.json").exists()


def test_modelopts_own_config_file(tmp_path: Path) -> None:
    sample = Sample("modelopt")
    folder = sample.write(tmp_path / "a")
    (folder / "config.json").write_text(json.dumps({"torch_dtype": "float16"}))
    (folder / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))

    assert read_quantization_config(folder)[:2] == ("modelopt", None)
    check(dict(pack_checkpoint(folder, activation="fp16")), sample, "fp16")


def test_the_type_is_that_of_the_bias_or_the_model_or_said(tmp_path: Path) -> None:
    without_bias = Sample("compressed_mxfp4").write(tmp_path / "a", dtype=None)
    with pytest.raises(InvalidProblemError, match=r"'up': .* tells no type of activations: say in which"):
        dict(pack_checkpoint(without_bias))
    sample = Sample("gpt_oss")
    check(dict(pack_checkpoint(sample.write(tmp_path / "b", dtype=None))), sample, "bf16")


def test_what_does_not_hold_together_is_refused(tmp_path: Path) -> None:
    def refused(change: Any, message: str, kind: str = "gpt_oss") -> None:
        sample = Sample(kind)
        change(sample.tensors)
        folder = sample.write(tmp_path / str(len(list(tmp_path.iterdir()))))
        with pytest.raises((InvalidProblemError, InvalidInputError), match=message):
            dict(pack_checkpoint(folder))

    down = "model.layers.0.mlp.experts.down_proj"
    refused(lambda x: x.pop(f"{down}_scales"), f"there is no tensor {down}_scales")
    refused(
        lambda x: x.update({f"{down}_blocks": StoredTensor.of(np.zeros((3, N, 3, 16), np.int32))}), "must be of type"
    )
    refused(lambda x: x.update({f"{down}_scales": StoredTensor.of(np.zeros((2, N, 3), np.uint8))}), "no expert 2")
    refused(lambda x: x.update({f"{down}_scales": StoredTensor.of(np.zeros((3, N, 2), np.uint8))}), "must come with")
    refused(lambda x: x.update({f"{down}_bias": bf16(np.zeros((3, 8)))}), r"bias must be of shape \[24\]")
    refused(lambda x: x.pop("layers.1.weight_scale"), "there is no tensor layers.1.weight_scale", "modelopt")
    refused(lambda x: x.pop("up.weight_packed"), r"no tensor is named \*.weight_packed", "compressed_nvfp4")
