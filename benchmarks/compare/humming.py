"""humming-kernels, a W4A16 engine that compiles its kernels when they are first used, dense and grouped.

Its users make a `HummingLayer`, load weights and call it: for each M its tables then say which kernel runs. Here the
weights of one such layer are copied, and the very launch of its `forward` is called, so that it can be captured.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, NamedTuple

from benchmarks.compare.engines import Engine, as_tensor, import_torch, why_no_torch, with_version
from benchmarks.compare.operands import TENSOR_SCALE, Gemm, Layer, Offsets, Operands, Weights
from gemm_eval.device import BenchDevice, Call, TimingProtocol
from gemm_eval.dtypes import DType
from gemm_eval.errors import GemmEvalError
from gemm_eval.kernels import WeightMode
from gemm_eval.words import has_package, install_command, needs_extra

_TENSORS = ("weight", "weight_scale", "weight_scale_2", "zero_point")
_LAYERS_AT_ONCE = 3
_GROUPED = "grouped_contiguous"
_PURPOSE = "comparing with humming-kernels"


class HummingWeights(NamedTuple):
    """Weights of a layer as the kernels read them, and counters that no other launch uses."""

    tensors: dict[str, Any]
    locks: Any


class HummingEngine(Engine[HummingWeights]):
    """Weights of 4 bits; scales of integers have the type of the activations."""

    name: ClassVar[str] = "humming"
    needs_torch: ClassVar[bool] = True
    input_dtype: ClassVar[str] = ""  # what tokens are rounded to; empty: as they are

    def __init__(self, device: BenchDevice, operands: Operands, protocol: TimingProtocol) -> None:
        super().__init__(device, operands, protocol)
        self._torch = import_torch()
        self._rows: dict[Layer, set[int]] = {}
        self._config: Any = None

    @classmethod
    def why_missing(cls) -> str | None:
        if (reason := why_no_torch()) is not None:
            return reason
        if not has_package("humming"):
            return f"humming-kernels is not installed: {install_command('compare')}"
        try:
            with needs_extra(_PURPOSE, "compare"):
                import humming.layer  # noqa: F401
        except Exception as error:  # it looks for compilers and a GPU while it is imported
            return f"humming-kernels does not load: {error}"
        return None

    def describe(self) -> str:
        return f"{with_version('humming-kernels')}, torch {self._torch.__version__}"

    def _options(self, N: int, K: int, num_groups: int, activation: DType) -> dict[str, Any]:
        """Return the options that a layer and its config have in common."""
        dtype = self._torch.float16 if activation is DType.FP16 else self._torch.bfloat16
        experts = {"num_experts": num_groups} if num_groups > 1 else {}
        return {"shape_n": N, "shape_k": K, "torch_dtype": dtype, **experts}

    def prepare(self, gemms: Sequence[Gemm]) -> None:
        """See `Engine`: only the kernels that these GEMMs run, of some layers at once."""
        for gemm in gemms:
            self._rows.setdefault(gemm.layer, set()).add(gemm.expected_rows)
        layers = {gemm.layer: gemm for gemm in gemms}
        with ThreadPoolExecutor(_LAYERS_AT_ONCE) as pool:
            list(pool.map(self._prepare_layer, layers.values()))

    def _prepare_layer(self, gemm: Gemm) -> None:
        with needs_extra(_PURPOSE, "compare"):
            from humming.schema import HummingInputSchema, HummingWeightSchema
            from humming.transform import prepare_layer_config
        layer = gemm.layer
        with suppress(Exception):  # said again when the GEMM is bound
            inputs = HummingInputSchema(a_dtype=self.input_dtype) if self.input_dtype else None
            config = prepare_layer_config(
                input_schema=inputs,
                weight_schema=HummingWeightSchema.from_config(_weight_config(gemm)),
                device=0,
                **self._options(layer.N, layer.K, layer.num_groups, gemm.activation),
            )
            self._kernels(config, layer, self._rows[layer])

    def _kernels(self, config: Any, layer: Layer, rows: Iterable[int]) -> Any:
        """Compile the kernels of a layer for these numbers of rows; return them as a launch takes them."""
        with needs_extra(_PURPOSE, "compare"):
            from humming.kernel.humming import HummingKernel
        all_rows = set(rows) if layer.is_grouped else {1, *rows}
        wanted = [entry for entry in _table(config, layer) if any(_is_in(m, entry) for m in all_rows)]
        options = json.dumps({"gemm_type": _GROUPED}) if layer.is_grouped else None
        return HummingKernel.prepare_kernels(config.to_str(), options, wanted, 0)

    def pack(self, experts: Sequence[Weights]) -> HummingWeights:
        with needs_extra(_PURPOSE, "compare"):
            from humming.layer import HummingLayer
            from humming.ops import pack_weight

        torch, first = self._torch, experts[0]
        module = HummingLayer(
            input_config={"quant_method": "humming", "dtype": self.input_dtype} if self.input_dtype else None,
            weight_config=_weight_config(first),
            **self._options(first.N, first.K, len(experts), first.activation),
        ).cuda()
        tensors = {
            "weight": [
                torch.cat([pack_weight(as_tensor(one.codes[rows]).int(), 4) for rows in one.chunks()])
                for one in experts
            ],
            "weight_scale": [self._scales(one) for one in experts],
        }
        if first.mode is WeightMode.GROUP_ZERO:  # eight columns a word
            zeros = [as_tensor(one.zeros.T.copy()).int() for one in experts]
            tensors["zero_point"] = [pack_weight(one, 4).T.contiguous() for one in zeros]
        if first.mode is WeightMode.NVFP4:
            tensors["weight_scale_2"] = [torch.full((1,), TENSOR_SCALE, device="cuda") for _ in experts]
        join = torch.stack if len(experts) > 1 else torch.cat
        module.load_from_tensors({name: join(of_experts) for name, of_experts in tensors.items()})
        del tensors
        module.transform()
        torch.cuda.synchronize()
        self._config = module.humming_config
        tensors = {name: tensor.data for name in _TENSORS if (tensor := getattr(module, name, None)) is not None}
        return HummingWeights(tensors, module.locks)

    def _scales(self, weights: Weights) -> Any:
        if not weights.mode.is_fp4:
            return as_tensor(weights.stored_scales(), is_bf16=weights.activation is DType.BF16)
        is_mx, torch = weights.mode is WeightMode.MXFP4, self._torch
        return as_tensor(weights.scale_bytes).view(torch.float8_e8m0fnu if is_mx else torch.float8_e4m3fn)

    def copy(self, packed: HummingWeights) -> HummingWeights:
        return HummingWeights({name: tensor.clone() for name, tensor in packed.tensors.items()}, packed.locks.clone())

    def num_bytes(self, packed: HummingWeights) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in packed.tensors.values())

    def call(self, gemm: Gemm, packed: HummingWeights, offsets: Offsets, on_gpu: Any) -> Call:  # noqa: ARG002
        with needs_extra(_PURPOSE, "compare"):
            from humming.ops import launch_kernel
        layer, is_bf16 = gemm.layer, gemm.activation is DType.BF16
        rows = self._rows.setdefault(layer, set()) | {gemm.expected_rows}
        inputs, outputs = (as_tensor(array, is_bf16=is_bf16) for array in self.arrays(gemm))
        experts = {"expert_layout": as_tensor(on_gpu), "valid_shape_m": gemm.expected_rows} if layer.is_grouped else {}
        return partial(
            launch_kernel, configs=self._kernels(self._config, layer, rows), inputs=inputs, outputs=outputs,
            locks=packed.locks, **experts, **packed.tensors,
        )  # fmt: skip

    def config(self, gemm: Gemm) -> str:
        (entry,) = [entry for entry in _table(self._config, gemm.layer) if _is_in(gemm.expected_rows, entry)]
        config = entry[2]
        block, stages = "x".join(map(str, config["block_shape"])), config.get("num_stages", "")
        cut = " stream-K" if config.get("use_stream_k", True) else ""
        return f"{block} {stages} {config.get('mma_type', '')}{cut}"


_FP4_CONFIGS: dict[WeightMode, dict[str, Any]] = {
    WeightMode.MXFP4: {"scale_dtype": "float8e8m0"},
    WeightMode.NVFP4: {"scale_dtype": "float8e4m3", "scale_2_type": "tensor"},
}


def _weight_config(of: Gemm | Weights) -> dict[str, Any]:
    """Return what its layers call weights of a mode."""
    config = {"quant_method": "humming", "dtype": "int4", "group_size": of.group_size}
    if of.mode.is_fp4:
        return config | {"dtype": "float4e2m1"} | _FP4_CONFIGS[of.mode]
    return config | ({"has_zero_point": True} if of.mode is WeightMode.GROUP_ZERO else {})


def _table(config: Any, layer: Layer) -> list[Any]:
    """Return its own choice of kernels by rows: least number (exclusive), largest number, and config."""
    with needs_extra(_PURPOSE, "compare"):
        from humming.tune import get_heuristics_config
    options = {"gemm_type": _GROUPED} if layer.is_grouped else {}
    table = get_heuristics_config(config, device=0, **options)
    if not isinstance(table, list):
        raise GemmEvalError("humming-kernels has no table of kernels by M for this layer")
    return table


def _is_in(rows: int, entry: Sequence[Any]) -> bool:
    return bool(entry[0] < rows <= entry[1])
