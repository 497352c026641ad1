"""Checkpoints of AWQ and GPTQ: tensors word by word, whole folders packed, written and loaded back, and refusals."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemm_eval.errors import InvalidInputError, InvalidOptionError, InvalidProblemError, ModelConfigError
from gemm_eval.kernels import (
    PackedLayer,
    convert_checkpoint,
    load_packed,
    pack_checkpoint,
    pack_w4,
    save_packed,
)
from gemm_eval.kernels.checkpoint_tensors import read_quantization_config
from gemm_eval.kernels.checkpoints import from_awq, from_gptq
from gemm_eval.kernels.families.base import WeightMode
from gemm_eval.kernels.weights import dequantize, unpack_w4
from gemm_eval.storage import StoredTensor, TensorFile, write_tensors
from tests.kernels.checkpoint_samples import (
    AWQ,
    AWQ_ORDER,
    GPTQ,
    IN_ORDER,
    OTHERS,
    SampleLayer,
    along_columns,
    along_rows,
    make_layer,
    write_checkpoint,
)

# ---- tensors ---------------------------------------------------------------------------------------------------------


def tensors_of(K: int = 136, N: int = 24, group: int = 64, low: int = 0, high: int = 16) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(K + N + group)
    groups = -(-K // group)
    scales = rng.uniform(0.01, 0.1, (groups, N)).astype(np.float16)
    return rng.integers(0, 16, (K, N)), rng.integers(low, high, (groups, N)), scales


def expected(values: Any, zeros: Any, scales: Any, group: int) -> Any:
    k = np.arange(len(values)) // group
    return scales.astype(float)[k] * (values - zeros[k]).astype(float)


@pytest.mark.parametrize(("K", "group"), [(136, 64), (128, 128), (96, 32)])
def test_awq(K: int, group: int) -> None:
    values, zeros, scales = tensors_of(K, group=group)
    packed = from_awq(along_columns(values, AWQ_ORDER), along_columns(zeros, AWQ_ORDER), scales, group)

    assert (packed.mode, packed.group_size) == (WeightMode.GROUP_ZERO, group)
    np.testing.assert_array_equal(dequantize(packed), expected(values, zeros, scales, group))


def test_a_known_awq_word() -> None:
    """0x76543210 holds the columns 0, 2, 4, 6, 1, 3, 5, 7 from the lowest bits up."""
    qweight = np.full((8, 1), 0x76543210, np.int32)
    packed = from_awq(qweight, np.zeros((1, 1), np.int32), np.ones((1, 8), np.float16), 128)

    assert unpack_w4(packed).integers[0].tolist() == [0, 4, 1, 5, 2, 6, 3, 7]


@pytest.mark.parametrize(("version", "low"), [(1, 1), (2, 0)])
def test_gptq(version: int, low: int) -> None:
    values, zeros, scales = tensors_of(low=low)
    stored = along_columns(zeros - (version == 1), IN_ORDER)
    g_idx = np.arange(136, dtype=np.int32) // 64
    packed = from_gptq(along_rows(values), stored, scales, g_idx, 64, version=version)

    assert packed.mode is WeightMode.GROUP_ZERO
    np.testing.assert_array_equal(dequantize(packed), expected(values, zeros, scales, 64))


@pytest.mark.parametrize("sym", [True, None])
@pytest.mark.parametrize(("version", "word"), [(1, 0x77777777), (2, -0x77777778)])
def test_symmetric_gptq_needs_no_zero_points(version: int, word: int, sym: bool | None) -> None:
    values, _, scales = tensors_of()
    packed = from_gptq(along_rows(values), np.full((3, 3), word, np.int32), scales, None, 64, version=version, sym=sym)

    assert packed.mode is WeightMode.GROUP
    np.testing.assert_array_equal(dequantize(packed), expected(values, np.full((3, 24), 8), scales, 64))


@pytest.mark.parametrize("group_size", [None, -1])
def test_one_group_for_all_k(group_size: int | None) -> None:
    values, zeros, scales = tensors_of(group=136)
    qweight, order = along_rows(values), np.zeros(136, np.int32)

    packed = from_gptq(qweight, np.full((1, 3), 0x77777777, np.int32), scales, order, group_size)
    assert packed.mode is WeightMode.COLUMN
    np.testing.assert_array_equal(dequantize(packed), expected(values, np.full((1, 24), 8), scales, 136))

    packed = from_gptq(qweight, along_columns(zeros, IN_ORDER), scales, order, group_size, version=2)
    assert (packed.mode, packed.group_size) == (WeightMode.GROUP_ZERO, 128)
    np.testing.assert_array_equal(dequantize(packed), expected(values, zeros, scales, 136))


def test_bf16_rounds_the_scales() -> None:
    values, zeros, scales = tensors_of()
    packed = from_awq(along_columns(values, AWQ_ORDER), along_columns(zeros, AWQ_ORDER), scales, 64, activation="bf16")

    np.testing.assert_allclose(unpack_w4(packed).scales, scales, rtol=2**-8)
    np.testing.assert_array_equal(unpack_w4(packed).integers, values)


def test_a_wrapped_zero_point_is_refused() -> None:
    values, zeros, scales = tensors_of()
    zeros[1, 3] = 15
    with pytest.raises(InvalidProblemError, match=r"0\.\.14.*readers disagree"):
        from_gptq(along_rows(values), along_columns(zeros, IN_ORDER), scales, None, 64)


def test_a_wrong_version_is_found_where_weights_are_symmetric() -> None:
    values, _, scales = tensors_of()
    eights = np.full((3, 3), 0x88888888, np.uint32)
    with pytest.raises(InvalidProblemError, match=r"got 9\.\.9 by version 1; try version 2"):
        from_gptq(along_rows(values), eights, scales, None, 64, sym=True)


def sorted_by_chance(K: int, group: int) -> Any:
    """What act-order leaves: the group of each row, where rows were taken in an order of their own."""
    g_idx = np.empty(K, np.int32)
    g_idx[np.random.default_rng(K + group).permutation(K)] = np.arange(K) // group
    return g_idx


@pytest.mark.parametrize("g_idx_type", [np.int32, np.int64])
@pytest.mark.parametrize(("version", "low"), [(1, 1), (2, 0)])
@pytest.mark.parametrize(("K", "group"), [(136, 64), (256, 128), (96, 32)])
def test_act_order(K: int, group: int, version: int, low: int, g_idx_type: Any) -> None:
    values, zeros, scales = tensors_of(K, group=group, low=low)
    g_idx = sorted_by_chance(K, group)
    stored = along_columns(zeros - (version == 1), IN_ORDER)
    packed = from_gptq(along_rows(values), stored, scales, g_idx.astype(g_idx_type), group, version=version)
    meant = scales.astype(float)[g_idx] * (values - zeros[g_idx]).astype(float)

    assert packed.permutation.dtype == np.int32
    assert (g_idx[packed.permutation] == np.arange(K) // group).all()
    np.testing.assert_array_equal(dequantize(packed), meant)
    np.testing.assert_array_equal(unpack_w4(packed).integers, values[packed.permutation])
    assert "act-order" in repr(packed)
    assert packed.nbytes == packed.qweight.nbytes + packed.scales.nbytes + 4 * K
    np.testing.assert_array_equal(packed.to_cpu().permutation, packed.permutation)


def test_rows_that_are_in_order_need_no_permutation() -> None:
    values, zeros, scales = tensors_of(low=1)
    tensors = along_rows(values), along_columns(zeros - 1, IN_ORDER), scales

    assert from_gptq(*tensors, np.arange(136) // 64, 64).permutation is None
    assert from_gptq(*tensors, None, 64).permutation is None


def test_groups_of_other_sizes_are_refused() -> None:
    values, zeros, scales = tensors_of()
    order = np.arange(136, dtype=np.int32) // 64
    tensors = along_rows(values), along_columns(zeros, IN_ORDER), scales
    uneven = np.where(np.arange(136) == 3, 1, order)
    for g_idx in (uneven, order + 1, np.where(order == 2, 3, order)):
        with pytest.raises(InvalidProblemError, match=r"g_idx must give each group 64 rows, and the last the rest"):
            from_gptq(*tensors, g_idx, 64, version=2)
    for g_idx in (order[:-1], order.astype(float)):
        with pytest.raises(InvalidProblemError, match=r"g_idx must be integers of shape \[136\]"):
            from_gptq(*tensors, g_idx, 64, version=2)


@pytest.mark.parametrize(
    ("permutation", "rule"),
    [
        (np.arange(136), r"permutation must be int32 \[136\], got int64 \[136\]"),
        (np.arange(135, dtype=np.int32), r"permutation must be int32 \[136\], got int32 \[135\]"),
        (np.zeros(136, np.int32), r"permutation must hold each of 0\.\.135 once"),
        (np.arange(1, 137, dtype=np.int32), r"permutation must hold each of 0\.\.135 once"),
        (np.arange(272, dtype=np.int32)[::2], "permutation must be contiguous"),
    ],
)
def test_permutations_are_checked(permutation: Any, rule: str) -> None:
    values, zeros, scales = tensors_of(low=1)
    packed = from_gptq(along_rows(values), along_columns(zeros - 1, IN_ORDER), scales, None, 64)
    with pytest.raises(InvalidProblemError, match=rule):
        dataclasses.replace(packed, permutation=permutation)


@pytest.mark.parametrize(
    ("index", "value", "rule"),
    [
        (0, np.zeros((136, 3)), "qweight must be an int32 matrix, got float64"),
        (0, np.zeros((136, 3), np.int64), "qweight must be an int32 matrix, got int64"),
        (1, np.zeros(3, np.int32), "qzeros must be an int32 matrix"),
        (1, np.zeros((2, 3), np.int32), "qzeros must have 3 rows for 24 columns .*got shape \\[2, 24\\]"),
        (2, np.zeros((3, 16), np.float16), "scales must have 3 rows for 24 columns .*got shape \\[3, 16\\]"),
        (2, np.full((3, 24), np.inf, np.float16), "scales must be finite"),
    ],
)
def test_tensors_are_refused(index: int, value: Any, rule: str) -> None:
    values, zeros, scales = tensors_of()
    tensors = [along_columns(values, AWQ_ORDER), along_columns(zeros, AWQ_ORDER), scales]
    tensors[index] = value
    with pytest.raises(InvalidProblemError, match=rule):
        from_awq(tensors[0], tensors[1], tensors[2], 64)


def test_sizes_that_no_kernel_takes_are_refused() -> None:
    values, zeros, scales = tensors_of(K=100)
    with pytest.raises(InvalidProblemError, match="K must be a positive multiple of 8, got 100"):
        from_awq(along_columns(values, AWQ_ORDER), along_columns(zeros, AWQ_ORDER), scales, 64)


def test_options_are_refused() -> None:
    values, zeros, scales = tensors_of()
    tensors = along_rows(values), along_columns(zeros, IN_ORDER), scales
    with pytest.raises(InvalidOptionError, match="version must be 1 or 2, got 3"):
        from_gptq(*tensors, None, 64, version=3)
    with pytest.raises(InvalidOptionError, match="group_size must be one of 32, 64, 128, or None or -1"):
        from_gptq(*tensors, None, 256, version=2)


# ---- folders ---------------------------------------------------------------------------------------------------------


SAMPLES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "awq": (AWQ, {"method": "awq"}),
    "awq_bf16": (AWQ, {"method": "awq", "is_bf16": True}),
    "gptq": (GPTQ, {"method": "gptq", "is_sorted": False}),
    "gptq_v2": ({**GPTQ, "checkpoint_format": "gptq_v2"}, {"method": "gptq", "version": 2, "is_sorted": False}),
    "gptq_sym": ({**GPTQ, "sym": True, "desc_act": False}, {"method": "gptq", "is_symmetric": True}),
    "gptq_bf16": (GPTQ, {"method": "gptq", "is_bf16": True, "is_sorted": False}),
    "gptq_column": ({**GPTQ, "group_size": -1, "sym": True}, {"method": "gptq", "group": None, "is_symmetric": True}),
}


def layers_of(options: dict[str, Any]) -> dict[str, SampleLayer]:
    group = {"group": 64} | options
    return {
        f"model.layers.{i}.{name}": make_layer(K=K, N=N, seed=10 * i + K, has_bias=has_bias, **group)
        for i in range(2)
        for name, K, N, has_bias in (("q_proj", 136, 72, True), ("down_proj", 192, 128, False))
    }


@pytest.fixture(params=SAMPLES)
def sample(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, SampleLayer]]:
    config, options = SAMPLES[request.param]
    layers = layers_of(options)
    write_checkpoint(tmp_path / "checkpoint", layers, config, files=3)
    return tmp_path / "checkpoint", layers


def check_layers(found: dict[str, PackedLayer], layers: dict[str, SampleLayer]) -> None:
    assert found.keys() == layers.keys()
    for name, (packed, bias) in found.items():
        np.testing.assert_array_equal(dequantize(packed), layers[name].meant)
        expected = layers[name].bias
        assert (bias is None) is (expected is None)
        if bias is not None:
            values = bias if bias.dtype == np.float16 else (bias.astype(np.uint32) << 16).view(np.float32)
            np.testing.assert_array_equal(values, expected)


def test_a_converted_checkpoint_loads_back(sample: tuple[Path, dict[str, SampleLayer]], tmp_path: Path) -> None:
    folder, layers = sample
    made = convert_checkpoint(folder, tmp_path / "packed")
    out = tmp_path / "packed"
    permuted = sum(packed.permutation is not None for packed, _ in dict(pack_checkpoint(folder)).values())
    config = json.loads((out / "config.json").read_text())
    index = json.loads((out / "model.safetensors.index.json").read_text())
    names = {name for path in out.glob("*.safetensors") for name in TensorFile(path).names}

    assert (made.folder, made.num_layers, made.num_other, made.num_files) == (out, 4, len(OTHERS), 1)
    assert made.num_permuted == permuted
    check_layers(dict(pack_checkpoint(folder)), layers)
    check_layers(dict(load_packed(out)), layers)
    assert (config["hidden_size"], config["quantization_config"]["quant_method"]) == (6, "gemm_eval_w4a16")
    assert (out / "tokenizer.json").is_file()
    assert set(index["weight_map"]) == names
    file = TensorFile(out / "packed-00001.safetensors")
    for name, tensor in OTHERS.items():
        assert (file[name].dtype, file[name].data.tobytes()) == (tensor.dtype, tensor.data.tobytes())
    assert {file[name].dtype for name in names if name.endswith(".qweight")} == {"I32"}


def test_files_of_a_size(tmp_path: Path) -> None:
    layers = {f"layer{i}": make_layer("gptq", 1024, 2048, 128, i) for i in range(3)}
    write_checkpoint(tmp_path / "a", layers, {**GPTQ, "group_size": 128})
    made = convert_checkpoint(tmp_path / "a", tmp_path / "b", max_file_bytes=1 << 20)

    assert made.num_files == 4  # one a layer, and one for what else there is
    check_layers(dict(load_packed(tmp_path / "b")), layers)
    with pytest.raises(InvalidOptionError, match="max_file_bytes must be an integer in 1048576"):
        convert_checkpoint(tmp_path / "a", tmp_path / "c", max_file_bytes=5)


def test_the_type_in_which_layers_run(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, layers_of({"method": "awq"}), AWQ)
    for activation, expected in ((None, "fp16"), ("fp16", "fp16"), ("bf16", "bf16")):
        found = dict(pack_checkpoint(tmp_path, activation=activation))
        assert {str(packed.activation) for packed, _ in found.values()} == {expected}
        assert {str(bias.dtype) for _, bias in found.values() if bias is not None} == {
            "float16" if expected == "fp16" else "uint16"
        }


def test_scales_of_another_type_need_one(tmp_path: Path) -> None:
    layer = make_layer("awq", 136, 72, 64, 0)
    layer.tensors["scales"] = StoredTensor.of(layer.tensors["scales"].array.astype(np.float32))
    write_checkpoint(tmp_path, {"a": layer}, AWQ)
    with pytest.raises(InvalidProblemError, match="layer 'a': scales are F32: say in which activation"):
        list(pack_checkpoint(tmp_path))
    check_layers(dict(pack_checkpoint(tmp_path, activation="fp16")), {"a": layer})


def test_a_wrong_version_can_be_overruled(tmp_path: Path) -> None:
    layers = layers_of({"method": "gptq", "version": 2, "is_symmetric": True})
    write_checkpoint(tmp_path, layers, {**GPTQ, "sym": True})
    with pytest.raises(
        InvalidProblemError, match=r"layer 'model.layers.0.q_proj': zero points must all be 8 .* version 2"
    ):
        list(pack_checkpoint(tmp_path))
    check_layers(dict(pack_checkpoint(tmp_path, version=2)), layers)
    with pytest.raises(InvalidOptionError, match="version must be 1 or 2, or None"):
        list(pack_checkpoint(tmp_path, version=3))


def test_rules_for_some_layers(tmp_path: Path) -> None:
    layers = {"a.up": make_layer("gptq", 128, 64, 32, 1), "b.up": make_layer("gptq", 128, 64, 64, 2)}
    rules = {"-:.*lm_head": {}, r"+:a\..*": {"group_size": 32}}
    write_checkpoint(tmp_path, layers, {**GPTQ, "desc_act": False, "dynamic": rules})
    found = dict(pack_checkpoint(tmp_path))

    assert {name: packed.group_size for name, (packed, _) in found.items()} == {"a.up": 32, "b.up": 64}
    check_layers(found, layers)
    write_checkpoint(tmp_path, layers, {**GPTQ, "desc_act": False, "dynamic": rules | {"b": {"bits": 8}}})
    with pytest.raises(InvalidProblemError, match=r"layer 'b\.up': .*dynamic 'b': bits must be 4, got 8"):
        list(pack_checkpoint(tmp_path))


@pytest.mark.parametrize(
    ("changes", "error", "rule"),
    [
        (
            {"bits": 8},
            InvalidProblemError,
            "quantization_config: bits must be 4, got 8: kernels read weights of 4 bits",
        ),
        ({"bits": 3}, InvalidProblemError, "bits must be 4, got 3"),
        ({"bits": None}, InvalidProblemError, "bits must be 4, got None"),
        ({"quant_method": "bitsandbytes"}, InvalidProblemError, "quant_method must be awq or gptq or .*, got 'bitsa"),
        ({"quant_method": "compressed-tensors"}, InvalidProblemError, "format must be nvfp4-pack-quantized or mxfp4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, InvalidProblemError, "quant_algo must be NVFP4, got 'FP8'"),
        ({"quant_method": None}, InvalidProblemError, "quant_method must be awq or gptq or .*, got None"),
        ({"group_size": 256}, InvalidProblemError, "group_size must be one of 32, 64, 128, or -1 for all K, got 256"),
        ({"group_size": None}, InvalidProblemError, "group_size must be one of"),
        (
            {"checkpoint_format": "marlin"},
            InvalidProblemError,
            "checkpoint_format must be gptq or gptq_v2, got 'marlin'",
        ),
        ({"is_marlin_format": True}, InvalidProblemError, "checkpoint_format must be gptq or gptq_v2, got 'marlin'"),
        ({"sym": "yes"}, ModelConfigError, "sym must be true or false, got 'yes'"),
        ({"desc_act": 1}, ModelConfigError, "desc_act must be true or false, got 1"),
        ({"dynamic": {"+:(": {}}}, ModelConfigError, r"dynamic '\+:\(' is no regular expression"),
        ({"dynamic": {"+:a": 3}}, ModelConfigError, r"dynamic '\+:a' must be an object, got 3"),
        ({"dynamic": [1]}, ModelConfigError, "dynamic must be an object"),
    ],
)
def test_what_kernels_do_not_read_is_refused(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], rule: str
) -> None:
    write_checkpoint(tmp_path / "a", {"l": make_layer("gptq", 128, 64, 64, 1)}, GPTQ | changes)
    with pytest.raises(error, match=rule):
        convert_checkpoint(tmp_path / "a", tmp_path / "b")
    assert not (tmp_path / "b").exists()


def test_other_layouts_of_awq_are_refused(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {"l": make_layer("awq", 128, 64, 64, 1)}, {**AWQ, "version": "gemv"})
    with pytest.raises(InvalidProblemError, match="version must be gemm, got 'gemv'"):
        list(pack_checkpoint(tmp_path))
    write_checkpoint(tmp_path, {"l": make_layer("awq", 128, 64, 64, 1)}, {**AWQ, "version": "GEMM"})
    assert len(list(pack_checkpoint(tmp_path))) == 1


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        (
            "quantize_config.json",
            {"bits": 4, "group_size": 128, "desc_act": False, "sym": True},
            ("gptq", 128, 1, True),
        ),
        (
            "quantize_config.json",
            {"bits": 4, "group_size": -1, "checkpoint_format": "gptq_v2"},
            ("gptq", None, 2, None),
        ),
        ("quant_config.json", {"w_bit": 4, "q_group_size": 64, "version": "GEMM"}, ("awq", 64, 1, None)),
    ],
)
def test_configs_beside_the_models(tmp_path: Path, file: str, content: Any, expected: tuple[Any, ...]) -> None:
    (tmp_path / "config.json").write_text('{"hidden_size": 4}')
    (tmp_path / file).write_text(json.dumps(content))
    found = read_quantization_config(tmp_path)

    assert (found.method, found.group_size, found.version, found.sym) == expected
    assert found.source == str(tmp_path / file)


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (None, "does not say how it is quantized"),
        ("{", "not readable as JSON"),
        ("[1]", "the top level must be an object"),
        ('{"quantization_config": 4}', "quantization_config must be an object of keys, got 4"),
    ],
)
def test_configs_that_say_nothing_are_refused(tmp_path: Path, content: str | None, rule: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelConfigError, match=rule):
        read_quantization_config(tmp_path)


@pytest.mark.parametrize(
    ("part", "rule"),
    [
        ("qzeros", "there is no tensor qzeros beside qweight"),
        ("scales", "there is no tensor scales beside qweight"),
        ("g_idx", "there is no tensor g_idx, although .*config.json: quantization_config says desc_act"),
    ],
)
def test_layers_that_lack_a_tensor_are_refused(tmp_path: Path, part: str, rule: str) -> None:
    layer = make_layer("gptq", 128, 64, 64, 1)
    del layer.tensors[part]
    write_checkpoint(tmp_path, {"a.b": layer}, GPTQ)
    with pytest.raises(InvalidProblemError, match=rf"layer 'a\.b': {rule}"):
        list(pack_checkpoint(tmp_path))


def test_a_bias_of_another_shape_is_refused(tmp_path: Path) -> None:
    layer = make_layer("awq", 128, 64, 64, 1)
    layer.tensors["bias"] = StoredTensor.of(np.ones(32, np.float16))
    write_checkpoint(tmp_path, {"a": layer}, AWQ)
    with pytest.raises(InvalidProblemError, match=r"bias must be of shape \[64\], got \[32\]"):
        list(pack_checkpoint(tmp_path))


def test_folders_that_hold_no_checkpoint_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": AWQ}))
    with pytest.raises(InvalidInputError, match=r"has no files \*\.safetensors"):
        list(pack_checkpoint(tmp_path))
    write_tensors(tmp_path / "a.safetensors", OTHERS)
    with pytest.raises(InvalidProblemError, match=r"has no quantized layer: no tensor is named \*\.qweight"):
        list(pack_checkpoint(tmp_path))
    write_tensors(tmp_path / "b.safetensors", OTHERS)
    with pytest.raises(InvalidInputError, match=r"tensor 'model.* is in .*a\.safetensors and in .*b\.safetensors"):
        list(pack_checkpoint(tmp_path))


@pytest.mark.parametrize(
    ("weight_map", "rule"),
    [
        ({"x": "../a.safetensors"}, "name of a file beside it"), ({"x": 3}, "name of a file beside it"),
        ([], "name of a file beside it"), ({"x": "none.safetensors"}, r"cannot read .*none\.safetensors"),
        ({"x": "a.safetensors"}, "lists tensor 'x', which a.safetensors has not"),
    ],
)  # fmt: skip
def test_indices_that_lead_nowhere_are_refused(tmp_path: Path, weight_map: Any, rule: str) -> None:
    write_tensors(tmp_path / "a.safetensors", OTHERS)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises((InvalidInputError, ModelConfigError), match=rule):
        list(pack_checkpoint(tmp_path))


def test_a_folder_that_is_not_empty_is_left_alone(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "a", {"l": make_layer("awq", 128, 64, 64, 1)}, AWQ)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "mine").write_text("mine")
    with pytest.raises(InvalidOptionError, match="b must be empty"):
        convert_checkpoint(tmp_path / "a", tmp_path / "b")
    assert [path.name for path in (tmp_path / "b").iterdir()] == ["mine"]


def test_a_conversion_can_be_done_anew(tmp_path: Path) -> None:
    layers = {f"layer{i}": make_layer("gptq", 1024, 2048, 128, i) for i in range(2)}
    write_checkpoint(tmp_path / "a", layers, {**GPTQ, "group_size": 128})
    assert convert_checkpoint(tmp_path / "a", tmp_path / "b", max_file_bytes=1 << 20).num_files == 3
    assert convert_checkpoint(tmp_path / "a", tmp_path / "b", replace=True).num_files == 1
    check_layers(dict(load_packed(tmp_path / "b")), layers)
    assert len(list((tmp_path / "b").glob("*.safetensors"))) == 1
    with pytest.raises(InvalidOptionError, match="out must be another folder than the checkpoint's"):
        convert_checkpoint(tmp_path / "b" / ".." / "a", tmp_path / "a", replace=True)


def test_layers_of_ones_own(tmp_path: Path) -> None:
    weights = np.random.default_rng(0).standard_normal((128, 64)).astype(np.float32)
    packed, bias = pack_w4(weights, activation="bf16"), np.arange(64, dtype=np.uint16)
    save_packed({"a": packed, "b": PackedLayer(packed, bias)}, tmp_path / "x.safetensors")
    found = dict(load_packed(tmp_path / "x.safetensors"))

    assert found["a"].bias is None
    np.testing.assert_array_equal(found["b"].bias, bias)
    for layer in found.values():
        np.testing.assert_array_equal(layer.packed.qweight, packed.qweight)
        np.testing.assert_array_equal(layer.packed.scales, packed.scales)


def damaged(path: Path, metadata: dict[str, Any], without: str = "") -> Path:
    save_packed({"a": pack_w4(np.ones((128, 64), np.float32))}, path)
    file = TensorFile(path)
    facts = json.loads(file.metadata["w4a16_layers"])
    facts["a"] |= metadata
    tensors = {name: file[name] for name in file.names if name != without}
    write_tensors(path, tensors, {"w4a16_layers": json.dumps(facts)})
    return path


@pytest.mark.parametrize(
    ("metadata", "without", "rule"),
    [
        ({"N": 128}, "", "layer 'a': qweight must be uint32"),
        ({"mode": "columns"}, "", "layer 'a': mode must be one of"),
        ({"more": 1}, "", "layer 'a' must have N, K, mode, group_size, activation, scale_unit"),
        ({}, "a.scales", "layer 'a' has no tensor 'scales'"),
    ],
)
def test_packed_files_that_contradict_themselves(
    tmp_path: Path, metadata: dict[str, Any], without: str, rule: str
) -> None:
    with pytest.raises(InvalidInputError, match=rule):
        list(load_packed(damaged(tmp_path / "x", metadata, without)))


def test_what_is_not_packed_is_not_loaded(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a.safetensors", OTHERS)
    with pytest.raises(InvalidInputError, match="has no packed layers: `gemm-eval checkpoint convert` makes them"):
        list(load_packed(tmp_path / "a.safetensors"))
    with pytest.raises(InvalidInputError, match=r"has no model\.safetensors\.index\.json"):
        list(load_packed(tmp_path))
    write_tensors(tmp_path / "a.safetensors", OTHERS, {"w4a16_layers": "["})
    with pytest.raises(InvalidInputError, match="metadata w4a16_layers must be an object"):
        list(load_packed(tmp_path / "a.safetensors"))


@pytest.mark.parametrize("path", [5, None, "a\0b", b"bytes", np.array("a")])
def test_arguments_that_are_no_paths(tmp_path: Path, path: Any) -> None:
    for call in (
        lambda: list(pack_checkpoint(path)), lambda: list(load_packed(path)), lambda: save_packed({}, path),
        lambda: convert_checkpoint(path, tmp_path), lambda: convert_checkpoint(tmp_path, path),
    ):  # fmt: skip
        with pytest.raises(InvalidOptionError, match=r"(folder|out|path) must be a path, got"):
            call()
