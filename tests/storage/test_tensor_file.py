"""Files of tensors: read and written as the format says, and refused where they are damaged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemm_eval.errors import InvalidInputError
from gemm_eval.storage import StoredTensor, TensorFile, write_tensors

TENSORS = {
    "bytes": StoredTensor.of(np.arange(3, dtype=np.uint8)),
    "half": StoredTensor.of(np.array([[1, 2.5, -3]], np.float16)),
    "brain": StoredTensor.of(np.array([[0x3F80], [0xC000]], np.uint16), "BF16"),
    "words": StoredTensor.of(np.arange(-4, 4, dtype=np.int32).reshape(2, 2, 2)),
    "scalar": StoredTensor.of(np.array(7, np.int64)),
    "none": StoredTensor.of(np.empty((0, 5), np.float32)),
    "eight": StoredTensor("F8_E4M3", (2,), np.array([1, 2], np.uint8)),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_tensors(tmp_path / "a.safetensors", TENSORS, {"key": "a text"})
    return tmp_path / "a.safetensors"


def test_what_was_written_is_read(path: Path) -> None:
    file = TensorFile(path)

    assert (set(file.names), file.metadata) == (set(TENSORS), {"key": "a text"})
    assert "half" in file
    assert "other" not in file
    for name, tensor in TENSORS.items():
        assert (file[name].dtype, file[name].shape) == (tensor.dtype, tensor.shape)
        np.testing.assert_array_equal(file[name].data, tensor.data)
        if name != "eight":
            assert file[name].array.flags.aligned
            np.testing.assert_array_equal(file[name].array, tensor.array)
    assert [p.name for p in path.parent.iterdir()] == ["a.safetensors"]


def test_types_that_numpy_lacks(path: Path) -> None:
    assert TensorFile(path)["brain"].array.dtype == np.uint16
    with pytest.raises(InvalidInputError, match="'F8_E4M3', which numpy has not"):
        _ = TensorFile(path)["eight"].array
    with pytest.raises(InvalidInputError, match="no type for complex128"):
        StoredTensor.of(np.ones(2, complex))


def test_rows_of_a_larger_array_are_written_alone() -> None:
    whole = np.arange(12, dtype=np.float32).reshape(3, 4)

    np.testing.assert_array_equal(StoredTensor.of(whole[:, ::2]).array, whole[:, ::2])


def test_the_package_safetensors_reads_it_and_the_reverse(path: Path, tmp_path: Path) -> None:
    package = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    plain = {name: tensor.array for name, tensor in TENSORS.items() if name not in ("brain", "eight")}
    write_tensors(tmp_path / "plain", {name: StoredTensor.of(array) for name, array in plain.items()})
    for name, array in package.load_file(tmp_path / "plain").items():
        np.testing.assert_array_equal(array, plain[name])
    package.save_file(plain, tmp_path / "theirs", {"key": "theirs"})
    file = TensorFile(tmp_path / "theirs")

    assert file.metadata == {"key": "theirs"}
    for name, array in plain.items():
        np.testing.assert_array_equal(file[name].array, array)


def raw(header: Any, data: bytes = b"\0" * 8, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"", "a header of 0 bytes in a file of 0"),
        (b"\x01\0\0", "in a file of 3"),
        (raw({}, length=1 << 40), "a header of 1,099,511,627,776 bytes"),
        (raw(b"{]"), "a header that is no JSON"),
        (raw(b"[" * 100_000), "a header that is no JSON"),
        (raw(b"\xff"), "a header that is no JSON"),
        (raw([1]), "a header that is no object"),
        (raw({"__metadata__": {"a": 1}}), "metadata that are no texts"),
        (raw({"__metadata__": "a"}), "metadata that are no texts"),
        (raw({"a": 1}), "tensor 'a' with 1"),
        (raw({"a": {**ENTRY, "shape": [-2]}}), "tensor 'a' with"),
        (raw({"a": {**ENTRY, "shape": [2.0]}}), "tensor 'a' with"),
        (raw({"a": {**ENTRY, "dtype": 5}}), "tensor 'a' with"),
        (raw({"a": {**ENTRY, "data_offsets": [0, 8, 9]}}), "tensor 'a' with"),
        (raw({"a": {**ENTRY, "data_offsets": [0, 12], "shape": [3]}}), "tensor 'a' with"),
        (raw({"a": {**ENTRY, "data_offsets": [8, 0]}}), "tensor 'a' with"),
        (raw({"a": {**ENTRY, "shape": [3]}}), r"tensor 'a' with 8 bytes for F32 \[3\]"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, content: bytes, rule: str) -> None:
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match=rule) as caught:
        TensorFile(path)
    assert str(path) in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"cannot read .*: No such file"):
        TensorFile(tmp_path / "none")
