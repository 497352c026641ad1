"""The commands `gemm-eval checkpoint`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.commands import Ran
from tests.kernels.checkpoint_samples import GPTQ, make_layer, write_checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    layers = {
        "layers.0.up": make_layer("gptq", 128, 64, 64, 0, is_sorted=False),
        "layers.0.down": make_layer("gptq", 256, 128, 64, 1, has_bias=True),
    }
    write_checkpoint(tmp_path / "checkpoint", layers, GPTQ, files=2)
    return tmp_path / "checkpoint"


def test_convert_and_show(folder: Path, tmp_path: Path) -> None:
    ran = Ran("checkpoint", "convert", folder, "--out", tmp_path / "packed", columns=200)
    assert ran.code == 0, ran.err
    assert "2 layers, 1 of them with act-order, 2 other tensors, 1 files" in ran.out
    ran = Ran("checkpoint", "show", tmp_path / "packed")
    rows = [line.split() for line in ran.out.splitlines() if line.startswith("layers.")]

    assert sorted(rows) == [
        ["layers.0.down", "256", "128", "group_zero", "64", "fp16", "-", "yes", "0.0"],
        ["layers.0.up", "128", "64", "group_zero", "64", "fp16", "yes", "-", "0.0"],
    ]
    assert "2 layers, 0.0 MB" in ran.out


def test_json(folder: Path, tmp_path: Path) -> None:
    options = "--activation", "bf16", "--gptq-version", "1", "--json"
    made = json.loads(Ran("checkpoint", "convert", folder, "-o", tmp_path / "packed", *options).out)
    shown = json.loads(Ran("checkpoint", "show", tmp_path / "packed", "--json").out)
    one = next(layer for layer in shown["layers"] if layer["name"] == "layers.0.down")

    assert (made["folder"], made["num_layers"], made["num_permuted"]) == (str(tmp_path / "packed"), 2, 1)
    assert (one["K"], one["N"], one["activation"], one["bias"], one["act_order"]) == (256, 128, "bf16", True, False)
    assert one["num_bytes"] == 256 * 128 // 2 + 4 * 128 * 2 * 2 + 128 * 2


def test_errors_are_a_line(folder: Path, tmp_path: Path) -> None:
    for words, message in (
        (("convert", tmp_path / "none", "-o", tmp_path / "p"), "has no files *.safetensors"),
        (("convert", folder, "-o", folder), "out must be another folder"),
        (("convert", folder, "-o", tmp_path / "p", "--activation", "fp8"), "activation must be one of fp16, bf16"),
        (("convert", folder, "-o", tmp_path / "p", "--gptq-version", "3"), "version must be 1 or 2"),
        (("show", folder), "has no packed layers"),
    ):
        ran = Ran("checkpoint", *words)
        assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), words
        assert message in ran.err
