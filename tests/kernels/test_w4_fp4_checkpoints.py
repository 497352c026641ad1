"""Whole checkpoints of four-bit floats, written byte by byte as gpt-oss, ModelOpt and compressed-tensors write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidInputError, InvalidProblemError
from gemm_eval.kernels import WeightMode, convert_checkpoint, dequantize, load_packed, pack_checkpoint
from gemm_eval.kernels.checkpoint_tensors import read_quantization_config
from gemm_eval.kernels.layout import decode, encode
from gemm_eval.storage import StoredTensor, TensorFile, write_tensors
from tests.oracle.fragments import E2M1

VALUES = np.concatenate([E2M1, -E2M1])
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
