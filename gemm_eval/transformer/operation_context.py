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
from gemm_eval.workload import Operand

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

    def gemms(self, shape: Shape, name: str | None = None, *, is_quantized: bool = False) -> Iterator[Operation]:
        """Yield a GEMM, once for each way in which layers store its weights.

        `is_quantized`: the kernel before writes A as narrow as the GEMM reads it.
        """
        for gemm in layer_gemms(shape if name is None else shape._replace(name=name), self.types, shape.name):
            is_narrow = gemm.problem.types.a.dtype.bits < self.types.kept.bits
            yield GemmOperation(
                gemm.name, self.layer_kind, gemm.num_layers, gemm.problem,
                quantize_from=self.types.kept if is_narrow else None, is_quantized=is_narrow and is_quantized,
            )  # fmt: skip

    def narrow_input(self, *shapes: Shape) -> Operand | None:
        """Return A of these GEMMs, which read the same tensor, if the kernel before can write it for all of them.

        That is so where all of them, in all layers, read the same type, narrower than activations.
        """
        inputs = {stored.types.a for shape in shapes for stored in self.types.of(shape)}
        if not self.fusions.quantization or len(inputs) != 1:
            return None
        (operand,) = inputs
        return operand if operand.dtype.bits < self.types.kept.bits else None

    def written(self, operand: Operand | None, rows: int, width: int) -> float:
        """Return the share of the bytes of activations that `rows` of `width` take as A of a GEMM; None: all of it."""
        return 1.0 if operand is None else operand.total_bits(rows, width) / (rows * width * self.types.kept.bits)

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

    def norms(
        self, name: str, *, adds: bool, starts: bool = False, operand: Operand | None = None
    ) -> Iterator[Operation]:
        """Yield a norm of the hidden state, after a residual is added to it if it `adds`; not in a first layer.

        `operand`: A of the GEMM behind, which the norm writes (`narrow_input`); None: activations.
        """
        hidden = self.config.hidden_size
        written = self.written(operand, self.step.tokens, hidden)
        what = "rms_norm" if self.config.norm == "rms" else "layer_norm"
        num = self.num_layers
        if starts or not adds:
            yield self.memory(name, what, hidden, writes=written, num_layers=1 if adds else num)
            num -= 1 if adds else num
        if num and self.fusions.residual_norm:
            yield self.memory(name, f"add_{what}", hidden, reads=2, writes=1 + written, num_layers=num)
        elif num:
            yield self.memory(f"{name}_residual", "add", hidden, reads=2, num_layers=num)
            yield self.memory(name, what, hidden, writes=written, num_layers=num)

    def all_reduce(self, name: str) -> Iterator[Operation]:
        """Yield the sum of the hidden state over a tensor-parallel group."""
        ranks = self.step.tensor_parallel
        if ranks > 1:
            size = self.step.tokens * self.config.hidden_size * self.elem_bytes
            yield CollectiveOperation(name, self.layer_kind, self.num_layers, "all_reduce", size, ranks)

    def network(self, shapes: Sequence[Shape], activation: str, *, is_quantized: bool = False) -> Iterator[Operation]:
        """Yield up (with gate), the activation and down of a feed-forward network.

        `is_quantized`: the norm before writes its input as narrow as GEMMs read it.
        """
        up, down = shapes
        if "gate_up" in up.name and not self.fusions.gate_up:
            half = up._replace(N=up.N // 2)
            yield from self.gemms(half, up.name.replace("gate_up", "gate"), is_quantized=is_quantized)
            yield from self.gemms(half, up.name.replace("gate_up", "up"), is_quantized=is_quantized)
        else:
            yield from self.gemms(up, is_quantized=is_quantized)
        operand = self.narrow_input(down)
        yield from self.activation(activation, down.K, is_gated="gate_up" in up.name, operand=operand)
        yield from self.gemms(down, is_quantized=operand is not None)

    def activation(
        self, name: str, width: int, *, is_gated: bool, rows: int | None = None, operand: Operand | None = None
    ) -> Iterator[Operation]:
        """Yield the activation of `width` channels, times up where there is a gate; `operand` is that of `norms`."""
        written = self.written(operand, self.step.tokens if rows is None else rows, width)
        if is_gated and self.fusions.gated_activation:
            yield self.memory(name, "act_mul", width, reads=2, writes=written, rows=rows)
            return
        yield self.memory(name, "act", width, writes=1 if is_gated else written, rows=rows)
        if is_gated:
            yield self.memory(f"{name}_product", "mul", width, reads=2, writes=written, rows=rows)
