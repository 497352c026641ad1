"""What a step of inference is made of, as plain data: GEMMs, attention, memory-bound operations, experts, messages."""

from __future__ import annotations

from dataclasses import dataclass

from gemm_eval.checks import check_flag
from gemm_eval.dtypes import DType
from gemm_eval.moe import MoeLayer
from gemm_eval.workload import AttentionProblem, GemmProblem

__all__ = [
    "AttentionOperation",
    "CollectiveOperation",
    "Fusions",
    "GemmOperation",
    "MemoryOperation",
    "MoeOperation",
    "Operation",
]


@dataclass(frozen=True, slots=True)
class Fusions:
    """Which operations run as one kernel. All are on by default, as serving engines have them.

    Attributes:
        residual_norm: a residual is added in the norm that follows.
        qkv: queries, keys and values are one GEMM, as are the projections into the latents of MLA.
        gate_up: gate and up projection are one GEMM.
        gated_activation: the activation of the gate and its product with up are one pass.
        rotary_kv_write: positions are turned where keys and values are written to the cache.
        quantization: where GEMMs read fewer bits than activations have, the kernel before writes them, with scales: a
            norm or an activation, and the attention kernel where one static scale holds for the tensor (fp8 without
            blocks). Off: a kernel of its own before each such GEMM. Sources: vLLM, `PassConfig.fuse_norm_quant`,
            `fuse_act_quant` and `fuse_attn_quant` (https://docs.vllm.ai/en/stable/design/fusions/); the last is off
            by default there, and on in TensorRT-LLM (`--use_fp8_context_fmha`).
    """

    residual_norm: bool = True
    qkv: bool = True
    gate_up: bool = True
    gated_activation: bool = True
    rotary_kv_write: bool = True
    quantization: bool = True

    def __post_init__(self) -> None:
        for name in self.__slots__:
            check_flag(name, getattr(self, name))


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation of a step, which runs once in each of `num_layers` layers.

    Attributes:
        name: what it is for: ``"o_proj"``, ``"ffn_norm"``, ``"attention"``.
        layer_kind: the kind of layers it is in (`gemm_eval.transformer.stages.LayerKind`); empty: outside of layers.
        num_layers: how often it runs in the step.
    """

    name: str
    layer_kind: str
    num_layers: int

    @property
    def kind(self) -> str:
        """``"gemm"``, ``"attention"``, ``"memory"``, ``"moe"`` or ``"collective"``."""
        return type(self).__name__.removesuffix("Operation").lower()


@dataclass(frozen=True, slots=True)
class GemmOperation(Operation):
    """A GEMM with weights.

    Attributes:
        problem: sizes and types.
        quantize_from: type of activations, where the GEMM reads narrower ones; None: it reads them as they are.
        is_quantized: the kernel before writes A as narrow as the GEMM reads it; else a kernel of its own quantizes it.
    """

    problem: GemmProblem
    quantize_from: DType | None = None
    is_quantized: bool = False


@dataclass(frozen=True, slots=True)
class AttentionOperation(Operation):
    """Scores, softmax and values of all heads of one device.

    Attributes:
        problem: sizes and types; where attention stays within chunks of positions, each chunk is a sequence.
    """

    problem: AttentionProblem


@dataclass(frozen=True, slots=True)
class MemoryOperation(Operation):
    """An operation whose time is that of its bytes: a norm, positions, an activation, a copy.

    Attributes:
        what: the kernel: ``"add_rms_norm"``, ``"rotary_kv_write"``, ``"silu_mul"``, ...
        rows, width: rows that it works on, and elements of one in one tensor.
        read_bytes, write_bytes: of one run, each tensor once, without weights of norms.
    """

    what: str
    rows: int
    width: int
    read_bytes: int
    write_bytes: int

    @property
    def num_bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.write_bytes


@dataclass(frozen=True, slots=True)
class MoeOperation(Operation):
    """The routed experts of a layer: choice, permutation, both grouped GEMMs, activation and weighted sum.

    Attributes:
        layer: for `gemm_eval.moe_layers`, without the shared experts, which are GEMMs of their own here.
    """

    layer: MoeLayer


@dataclass(frozen=True, slots=True)
class CollectiveOperation(Operation):
    """A message between devices.

    Attributes:
        what: ``"all_reduce"``, ``"all_gather"``, ``"all_to_all"`` or ``"send"``.
        message_bytes: of one device: what it adds, contributes or sends in all.
        num_ranks: devices that take part.
    """

    what: str
    message_bytes: int
    num_ranks: int
