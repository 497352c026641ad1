"""What the operations of a step have in common: sizes, types, fusions, and how each is written down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gemm_eval.dtypes import DType
from gemm_eval.transformer.config import ModelConfig
from gemm_eval.transformer.gemms import layer_gemms
from gemm_eval.transformer.operation_kinds import (
    CollectiveOperation,
    Fusions,
    GemmOperation,
    MemoryOperation,
    Operation,
)
from gemm_eval.transformer.shapes import Shape, Step
from gemm_eval.transformer.types import WeightTypes

__all__ = ["Context"]

_BITS_PER_BYTE = 8


@dataclass(frozen=True, slots=True)
class Context:
    """Some layers that do the same, in one step of inference on one device.

    Attributes:
        config: a model of these layers alone.
        layer_kind: what they are called; empty: what is outside of layers.
        has_rope: whether their positions are rotary.
        is_start: whether the first layer of the whole model is among them.
        step: sizes of the step.
        types, kv_dtype: types of GEMMs and of the KV cache.
        fusions: which operations run as one.
        experts_as_layer: whether routed experts are one operation.
    """

    config: ModelConfig
    layer_kind: str
    has_rope: bool
    is_start: bool
    step: Step
    types: WeightTypes
    kv_dtype: DType
    fusions: Fusions
    experts_as_layer: bool

    @property
    def elem_bytes(self) -> int:
        """Bytes of an element of an activation."""
        return self.types.kept.bits // _BITS_PER_BYTE

    @property
    def num_layers(self) -> int:
        """How many layers these are; 1 outside of layers."""
        return self.config.num_layers if self.layer_kind else 1

    def gemms(self, shape: Shape, name: str | None = None) -> Iterator[Operation]:
        """Yield a GEMM, once for each way in which layers store its weights."""
        for gemm in layer_gemms(shape if name is None else shape._replace(name=name), self.types, shape.name):
            is_narrow = gemm.problem.types.a.dtype.bits < self.types.kept.bits
            quantize_from = self.types.kept if is_narrow else None
            yield GemmOperation(gemm.name, self.layer_kind, gemm.num_layers, gemm.problem, quantize_from)

    def memory(
        self,
        name: str,
        what: str,
        width: int,
        *,
        reads: float = 1,
        writes: float = 1,
        rows: int | None = None,
        num_layers: int = 0,
    ) -> MemoryOperation:
        """Return an operation on `rows` rows of `width` elements (default: one a token), read and written so often."""
        num = self.step.tokens if rows is None else rows
        return MemoryOperation(
            name,
            self.layer_kind,
            num_layers or self.num_layers,
            what,
            num,
            width,
            round(num * reads * width * self.elem_bytes),
            round(num * writes * width * self.elem_bytes),
        )

    def norms(self, name: str, *, adds: bool, starts: bool = False) -> Iterator[Operation]:
        """Yield a norm of the hidden state, after a residual is added to it if it `adds`; not in a first layer."""
        hidden = self.config.hidden_size
        what = "rms_norm" if self.config.norm == "rms" else "layer_norm"
        num = self.num_layers
        if starts or not adds:
            yield self.memory(name, what, hidden, num_layers=1 if adds else num)
            num -= 1 if adds else num
        if num and self.fusions.residual_norm:
            yield self.memory(name, f"add_{what}", hidden, reads=2, writes=2, num_layers=num)
        elif num:
            yield self.memory(f"{name}_residual", "add", hidden, reads=2, num_layers=num)
            yield self.memory(name, what, hidden, num_layers=num)

    def all_reduce(self, name: str) -> Iterator[Operation]:
        """Yield the sum of the hidden state over a tensor-parallel group."""
        ranks = self.step.tensor_parallel
        if ranks > 1:
            size = self.step.tokens * self.config.hidden_size * self.elem_bytes
            yield CollectiveOperation(name, self.layer_kind, self.num_layers, "all_reduce", size, ranks)

    def network(self, shapes: Sequence[Shape], activation: str) -> Iterator[Operation]:
        """Yield up (with gate), the activation and down of a feed-forward network."""
        up, down = shapes
        if "gate_up" in up.name and not self.fusions.gate_up:
            half = up._replace(N=up.N // 2)
            yield from self.gemms(half, up.name.replace("gate_up", "gate"))
            yield from self.gemms(half, up.name.replace("gate_up", "up"))
        else:
            yield from self.gemms(up)
        yield from self.activation(activation, down.K, is_gated="gate_up" in up.name)
        yield from self.gemms(down)

    def activation(self, name: str, width: int, *, is_gated: bool, rows: int | None = None) -> Iterator[Operation]:
        """Yield the activation of `width` channels, times up where there is a gate."""
        if is_gated and self.fusions.gated_activation:
            yield self.memory(name, "act_mul", width, reads=2, rows=rows)
            return
        yield self.memory(name, "act", width, rows=rows)
        if is_gated:
            yield self.memory(f"{name}_product", "mul", width, reads=2, rows=rows)
