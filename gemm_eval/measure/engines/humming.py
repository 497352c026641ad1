"""humming-kernels, a W4A16 engine that compiles its kernels when they are first used, as `HummingLayer` runs it.

Its users make a layer, load weights and call it: for each M its tables then say which kernel runs. Here the weights of
one such layer are copied, and the very launch of its `forward` is called, so that it can be captured.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar, NamedTuple

from gemm_eval.device import BenchDevice, TimingProtocol
from gemm_eval.dtypes import DType
from gemm_eval.errors import GemmEvalError
from gemm_eval.extras import has_package, install_command, needs_extra
from gemm_eval.measure.engines.base import Bound, Engine, with_version
from gemm_eval.measure.engines.operands import DenseGemm, Operands, Weights
from gemm_eval.measure.engines.torch_tensors import as_tensor, import_torch, why_no_torch

__all__ = ["HummingEngine", "HummingWeights", "in_short", "is_in", "weight_config"]

_TENSORS = ("weight", "weight_scale", "weight_scale_2", "zero_point")
_LAYERS_AT_ONCE = 4
_WHAT = "comparing with humming-kernels"


class HummingWeights(NamedTuple):
    """Weights of a layer as the kernels read them, and counters that no other launch uses."""

    tensors: dict[str, Any]
    locks: Any

    @classmethod
    def of_layer(cls, layer: Any) -> HummingWeights:
        """Those of a `HummingLayer` that was transformed."""
        tensors = {name: tensor.data for name in _TENSORS if (tensor := getattr(layer, name, None)) is not None}
        return cls(tensors, layer.locks)

    def copied(self) -> HummingWeights:
        """Return the same in other memory."""
        return HummingWeights({name: tensor.clone() for name, tensor in self.tensors.items()}, self.locks.clone())

    @property
    def num_bytes(self) -> int:
        """Of all tensors, without the counters."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())


class HummingEngine(Engine[HummingWeights]):
    """Weights of 4 bits without zero points, scales in the type of the activations."""

    name: ClassVar[str] = "humming"
    needs_torch: ClassVar[bool] = True

    def __init__(self, device: BenchDevice, operands: Operands, protocol: TimingProtocol) -> None:
        super().__init__(device, operands, protocol)
        self._torch = import_torch()
        self._rows: dict[tuple[int, int], set[int]] = {}
        self._config: Any = None

    @classmethod
    def why_missing(cls) -> str | None:
        """See `Engine`."""
        if (reason := why_no_torch()) is not None:
            return reason
        if not has_package("humming"):
            return f"humming-kernels is not installed: {install_command('compare')}"
        try:
            with needs_extra(_WHAT, "compare"):
                import humming.layer  # noqa: F401
        except Exception as error:  # it looks for compilers and a GPU while it is imported
            return f"humming-kernels does not load: {error}"
        return None

    def describe(self) -> str:
        """See `Engine`."""
        return f"{with_version('humming-kernels')}, torch {self._torch.__version__}"

    def _dtype(self, activation: DType) -> Any:
        return self._torch.float16 if activation is DType.FP16 else self._torch.bfloat16

    def prepare(self, gemms: Sequence[DenseGemm]) -> None:
        """See `Engine`: only the kernels that these GEMMs run, of some layers at once."""
        for gemm in gemms:
            self._rows.setdefault((gemm.N, gemm.K), set()).add(gemm.M)
        layers = {(gemm.N, gemm.K): gemm for gemm in gemms}
        with ThreadPoolExecutor(_LAYERS_AT_ONCE) as pool:
            list(pool.map(self._prepare_layer, layers.values()))

    def _prepare_layer(self, gemm: DenseGemm) -> None:
        with needs_extra(_WHAT, "compare"):
            from humming.schema import HummingWeightSchema
            from humming.transform import prepare_layer_config

        with suppress(Exception):  # said again when the GEMM is bound
            config = prepare_layer_config(
                shape_n=gemm.N,
                shape_k=gemm.K,
                weight_schema=HummingWeightSchema.from_config(weight_config(gemm.group_size)),
                torch_dtype=self._dtype(gemm.activation),
                device=0,
            )
            self._kernels(config, self._rows[gemm.N, gemm.K])

    def _kernels(self, config: Any, rows: set[int]) -> Any:
        """Compile what the layer runs at these M, as its table of M says; returns the table as a launch takes it."""
        with needs_extra(_WHAT, "compare"):
            from humming.kernel.humming import HummingKernel

        wanted = [entry for entry in _table(config) if any(is_in(m, entry) for m in {1, *rows})]
        return HummingKernel.prepare_kernels(config.to_str(), None, wanted, 0)

    def pack(self, weights: Weights) -> HummingWeights:
        """See `Engine`."""
        with needs_extra(_WHAT, "compare"):
            from humming.layer import HummingLayer
            from humming.ops import pack_weight

        torch, is_bf16 = self._torch, weights.activation is DType.BF16
        layer = HummingLayer(
            shape_n=weights.N,
            shape_k=weights.K,
            weight_config=weight_config(weights.group_size),
            torch_dtype=self._dtype(weights.activation),
        ).cuda()
        words = [pack_weight(as_tensor(weights.integers[rows]).int(), 4) for rows in weights.chunks()]
        scales = as_tensor(weights.stored_scales(), is_bf16=is_bf16)
        layer.load_from_tensors({"weight": torch.cat(words), "weight_scale": scales})
        layer.transform()
        torch.cuda.synchronize()
        self._config = layer.humming_config
        return HummingWeights.of_layer(layer)

    def copy(self, packed: HummingWeights) -> HummingWeights:
        """See `Engine`."""
        return packed.copied()

    def num_bytes(self, packed: HummingWeights) -> int:
        """See `Engine`."""
        return packed.num_bytes

    def bind(self, gemm: DenseGemm) -> Bound:
        """See `Engine`."""
        with needs_extra(_WHAT, "compare"):
            from humming.ops import launch_kernel

        rows = self._rows.setdefault((gemm.N, gemm.K), set()) | {gemm.M}
        kernels, is_bf16 = self._kernels(self._config, rows), gemm.activation is DType.BF16
        c = self.operands.output(gemm.M, gemm.N)
        inputs = as_tensor(self.operands.inputs(gemm.M, gemm.K), is_bf16=is_bf16)
        outputs = as_tensor(c, is_bf16=is_bf16)
        calls = [
            partial(launch_kernel, configs=kernels, inputs=inputs, outputs=outputs, locks=layer.locks, **layer.tensors)
            for layer in self.copies
        ]
        (entry,) = [entry for entry in _table(self._config) if is_in(gemm.M, entry)]
        return Bound(calls, lambda: c, str(gemm.activation), in_short(entry[2]))


def weight_config(group_size: int) -> dict[str, Any]:
    """What its layers call int4 weights with a scale for each group."""
    return {"quant_method": "humming", "dtype": "int4", "group_size": group_size}


def _table(config: Any) -> list[Any]:
    """Its own choice of kernels by M: least M (exclusive), largest M and config, for all M."""
    with needs_extra(_WHAT, "compare"):
        from humming.tune import get_heuristics_config

    table = get_heuristics_config(config, device=0)
    if not isinstance(table, list):
        raise GemmEvalError("humming-kernels has no table of kernels by M for this layer")
    return table


def is_in(M: int, entry: Sequence[Any]) -> bool:
    """Whether an entry of its table of kernels is for so many rows."""
    return bool(entry[0] < M <= entry[1])


def in_short(config: dict[str, Any]) -> str:
    """What a config of its is, for people."""
    block, stages = "x".join(map(str, config["block_shape"])), config.get("num_stages", "")
    cut = " stream-K" if config.get("use_stream_k", True) else ""
    return f"{block} {stages} {config.get('mma_type', '')}{cut}"
