"""Packed layers on disk: a folder of safetensors files that a whole checkpoint became, and the way back.

Tensors of a layer are those of `W4Linear.state_dict()`: `NAME.qweight` (I32), `NAME.scales` (F16 or BF16; bytes of the
fp4 modes, which differ by the type of the activations, U8 or I8), `NAME.scale_unit` (F32 [1]), and maybe
`NAME.permutation` (I32) and `NAME.bias`. What they are is in the metadata of the file, as JSON under `w4a16_layers`.
All other tensors of the checkpoint are copied as they are, and so are its other files, config.json with a
`quantization_config` of its own.
"""

import itertools
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy

from gemm_eval.dtypes import DType
from gemm_eval.errors import GemmEvalError, InvalidInputError, InvalidOptionError, StorageError
from gemm_eval.kernels.checkpoint_tensors import (
    INDEX_FILE,
    PackedLayer,
    TensorFolder,
    as_path,
    read_json_file,
    read_quantization_config,
)
from gemm_eval.kernels.checkpoints import find_layers, pack_checkpoint
from gemm_eval.kernels.layout import as_array
from gemm_eval.kernels.weights import PackedW4
from gemm_eval.storage import StoredTensor, TensorFile, write_tensors, write_whole
from gemm_eval.words import as_integer, check_flag, shown

QUANT_METHOD = "gemm_eval_w4a16"
_LAYOUT = 1
_KEY = "w4a16_layers"
_FIELDS = ("N", "K", "mode", "group_size", "activation", "scale_unit")
_TYPE_OF = {DType.FP16: "F16", DType.BF16: "BF16"}
_BYTE_TYPE_OF = {DType.FP16: "U8", DType.BF16: "I8"}
_MAX_FILE_BYTES = 4 << 30
_LEAST_FILE_BYTES = 1 << 20
_WEIGHTS = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".tmp"}
_REPLACED = {"config.json", "quantize_config.json", "quant_config.json", "hf_quant_config.json"}


class Conversion(NamedTuple):
    """The outcome of a conversion of a checkpoint: where it is, and how much of what it has.

    `num_permuted` layers have act-order, `num_other` tensors were copied; `num_bytes` is of the files of tensors.
    """

    folder: Path
    num_layers: int
    num_permuted: int
    num_other: int
    num_files: int
    num_bytes: int


def convert_checkpoint(
    folder: str | Path, out: str | Path, *, activation: DType | str | None = None, version: int | None = None,
    max_file_bytes: int = _MAX_FILE_BYTES, replace: bool = False, progress: bool | None = None,
) -> Conversion:  # fmt: skip
    """Pack all quantized layers of a checkpoint, as `pack_checkpoint` reads them, into a new folder, layer by layer.

    Memory: one layer, and what a file of the result holds. The index is written last: a folder without it is not whole.

    Args:
        folder: the checkpoint.
        out: the new folder; one that is there has to be empty, unless `replace`.
        activation, version, progress: as for `pack_checkpoint`.
        max_file_bytes: a file of the result is closed when it holds more.
        replace: whether what a conversion wrote to `out` before, whole or not, is replaced.

    Raises:
        InvalidInputError: as `pack_checkpoint`; or `out` is not empty.
        StorageError: it cannot be written.
    """
    check_flag("replace", replace)
    limit = as_integer("max_file_bytes", max_file_bytes, _LEAST_FILE_BYTES, 1 << 50)
    source, target = as_path("folder", folder), as_path("out", out)
    if target.resolve() == source.resolve():
        raise InvalidOptionError(f"out must be another folder than the checkpoint's, which stays as it is: {target}")
    tensors = TensorFolder(source)
    layers = pack_checkpoint(source, activation=activation, version=version, progress=progress)
    first = next(layers)  # what cannot be read is refused before anything is written
    try:
        _make_room(target, may_replace=replace)
        files = _Files(target, limit)
        num_layers = num_permuted = 0
        for name, layer in itertools.chain([first], layers):
            files.add_layer(name, layer)
            num_layers, num_permuted = num_layers + 1, num_permuted + (layer.packed.permutation is not None)
        of_layers = set().union(*find_layers(tensors, read_quantization_config(source)).values())
        others = [name for name in tensors.names if name not in of_layers]
        for name in others:
            files.add_tensors({name: tensors[name]})
        files.close()
        _copy_other_files(source, target)
        files.write_index()
    except OSError as error:
        raise StorageError(f"cannot write {target}: {error}") from error
    return Conversion(target, num_layers, num_permuted, len(others), files.num_files, files.num_bytes)


def save_packed(layers: Mapping[str, PackedLayer | PackedW4], path: str | Path) -> None:
    """Write packed layers, on a CPU or a GPU, to one safetensors file; weights alone have no bias."""
    target = as_path("path", path)
    tensors: dict[str, StoredTensor] = {}
    facts = {}
    for name, layer in layers.items():
        whole = layer if isinstance(layer, PackedLayer) else PackedLayer(layer, None)
        tensors |= _tensors_of(name, whole)
        facts[name] = _facts_of(whole.packed)
    try:
        write_tensors(target, tensors, {_KEY: json.dumps(facts)})
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error}") from error


def load_packed(path: str | Path) -> Iterator[tuple[str, PackedLayer]]:
    """Yield the packed layers of a file or a folder, by name, as `save_packed` and `convert_checkpoint` wrote them.

    Arrays lie in CPU memory, and are read from the disk when they are used: `layer.packed.to_gpu()`.

    Raises:
        InvalidInputError: no such file or folder, one that is damaged or not whole, or one without packed layers.
    """
    folder_or_file = as_path("path", path)
    if folder_or_file.is_file():
        files = [TensorFile(folder_or_file)]
    elif (folder_or_file / INDEX_FILE).is_file():
        files = list(TensorFolder(folder_or_file).files.values())
    else:
        raise InvalidInputError(f"{folder_or_file} has no {INDEX_FILE}: it is no converted checkpoint, or not whole")
    result = [(file, _layers_of(file)) for file in files]
    if not any(facts for _, facts in result):
        raise InvalidInputError(f"{folder_or_file} has no packed layers: `gemm-eval checkpoint convert` makes them")
    for file, facts in result:
        for name, fields in facts.items():
            yield name, _layer_of(file, name, fields)


class _Files:
    """Writes tensors to files of about one size, and remembers where each is."""

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder, self._limit = folder, limit
        self._tensors: dict[str, StoredTensor] = {}
        self._facts: dict[str, dict[str, Any]] = {}
        self._file_of: dict[str, str] = {}
        self._held_bytes = self.num_files = self.num_bytes = 0

    def add_layer(self, name: str, layer: PackedLayer) -> None:
        self._facts[name] = _facts_of(layer.packed)
        self.add_tensors(_tensors_of(name, layer))

    def add_tensors(self, tensors: dict[str, StoredTensor]) -> None:
        """Keep all tensors of one layer in the same file."""
        self._tensors |= tensors
        self._held_bytes += sum(tensor.data.nbytes for tensor in tensors.values())
        if self._held_bytes >= self._limit:
            self.close()

    def close(self) -> None:
        """End the file, if it was started."""
        if not self._tensors:
            return
        self.num_files += 1
        name = f"packed-{self.num_files:05}.safetensors"
        write_tensors(self._folder / name, self._tensors, {_KEY: json.dumps(self._facts), "format": "pt"})
        self.num_bytes += self._held_bytes
        self._file_of |= dict.fromkeys(self._tensors, name)
        self._tensors, self._facts, self._held_bytes = {}, {}, 0

    def write_index(self) -> None:
        index = {"metadata": {"total_size": self.num_bytes}, "weight_map": self._file_of}
        write_whole(self._folder / INDEX_FILE, json.dumps(index, indent=2).encode())


def _make_room(target: Path, *, may_replace: bool) -> None:
    """Make the folder, or refuse it; of a result that is replaced the index goes first: without it, it is not whole."""
    target.mkdir(parents=True, exist_ok=True)
    if may_replace:
        for path in (target / INDEX_FILE, *target.glob("packed-*.safetensors")):
            path.unlink(missing_ok=True)
    elif any(target.iterdir()):
        raise InvalidOptionError(f"{target} must be empty, or say that what is in it may be replaced")


def _copy_other_files(source: Path, target: Path) -> None:
    """Tokenizer, generation config and whatever else is no weights; config.json says what the tensors now are."""
    for path in sorted(source.iterdir()):
        is_ours = path.name in _REPLACED or path.name.endswith(".index.json") or path.suffix in _WEIGHTS
        if path.is_file() and not is_ours and not path.name.startswith("."):
            shutil.copyfile(path, target / path.name)
    config = source / "config.json"
    fields = read_json_file(config) if config.is_file() else {}
    fields["quantization_config"] = {"quant_method": QUANT_METHOD, "layout": _LAYOUT, "bits": 4}
    write_whole(target / "config.json", json.dumps(fields, indent=2).encode())


def _tensors_of(name: str, layer: PackedLayer) -> dict[str, StoredTensor]:
    packed, dtype = layer.packed.to_cpu(), _TYPE_OF[layer.packed.activation]
    result = {
        "qweight": StoredTensor.of(packed.qweight.view(numpy.int32)),
        "scales": StoredTensor.of(packed.scales, _BYTE_TYPE_OF[packed.activation] if packed.mode.is_fp4 else dtype),
        "scale_unit": StoredTensor.of(numpy.array([packed.scale_unit], numpy.float32)),
    }
    if packed.permutation is not None:
        result["permutation"] = StoredTensor.of(packed.permutation)
    if layer.bias is not None:
        result["bias"] = StoredTensor.of(as_array(layer.bias, "bias", numpy), dtype)
    return {f"{name}.{part}": tensor for part, tensor in result.items()}


def _facts_of(packed: PackedW4) -> dict[str, Any]:
    texts = {"mode": packed.mode.name.lower(), "activation": str(packed.activation)}
    return {name: getattr(packed, name) for name in _FIELDS} | texts


def _layers_of(file: TensorFile) -> dict[str, Any]:
    try:
        result = json.loads(file.metadata.get(_KEY, "{}"))
    except (ValueError, RecursionError):
        result = None
    if not isinstance(result, dict):
        raise InvalidInputError(f"{file.path}: metadata {_KEY} must be an object of layers")
    return result


def _layer_of(file: TensorFile, name: str, fields: Any) -> PackedLayer:
    if not isinstance(fields, dict) or set(fields) != set(_FIELDS):
        raise InvalidInputError(f"{file.path}: layer {shown(name)} must have {', '.join(_FIELDS)}, got {shown(fields)}")
    parts = {
        part: file[f"{name}.{part}"].array
        for part in ("qweight", "scales", "permutation", "bias")
        if f"{name}.{part}" in file
    }
    try:
        words, scales, permutation = parts["qweight"].view(numpy.uint32), parts["scales"], parts.get("permutation")
        scales = scales.view(numpy.uint8) if scales.dtype == numpy.int8 else scales
        packed = PackedW4(qweight=words, scales=scales, permutation=permutation, **fields)
    except KeyError as error:
        raise InvalidInputError(f"{file.path}: layer {shown(name)} has no tensor {error}") from None
    except GemmEvalError as error:
        raise InvalidInputError(f"{file.path}: layer {shown(name)}: {error}") from None
    return PackedLayer(packed, parts.get("bias"))
