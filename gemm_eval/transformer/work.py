"""Kinds of work as plain data, which `gemm_eval.estimate` prices, and operations of a step, each with its work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gemm_eval.checks import check_flag
from gemm_eval.dtypes import DType
from gemm_eval.moe import MoeLayer
from gemm_eval.workload import AttentionProblem, CollectiveProblem, GemmProblem


@dataclass(frozen=True, slots=True)
class GemmWork:
    """A GEMM on the matrix units.

    Attributes:
        quantize_from: type of activations, where the GEMM reads narrower ones; None: it reads them as they are.
        is_quantized: the kernel before writes A as narrow as the GEMM reads it; else a kernel of its own quantizes it.
        note: an assumption about it; empty: none.
    """

    problem: GemmProblem
    quantize_from: DType | None = None
    is_quantized: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class AttentionWork:
    """Scores, softmax and values of all heads of one device, forward or backward (gradients of all three inputs).

    Where attention stays within chunks of positions, each chunk is a sequence. `mask_bytes` are those of a mask or bias
    that is read; `note` is an assumption about it.
    """

    problem: AttentionProblem
    mask_bytes: int = 0
    is_backward: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class MemoryWork:
    """A kernel whose time is that of its bytes: a norm, positions, an activation, a copy.

    Attributes:
        what: the kernel: ``"add_rms_norm"``, ``"rotary_kv_write"``, ...; see `GEMMEvaluator.evaluate_memory_bound`.
        read_bytes, write_bytes: bytes of one run, each tensor once, without weights of norms.
        rows, width: rows that it works on, and elements of one in one tensor; 0: elements are dealt to all SMs.
    """

    what: str
    read_bytes: int
    write_bytes: int
    rows: int = 0
    width: int = 0

    @property
    def num_bytes(self) -> int:
        """Bytes read and written."""
        return self.read_bytes + self.write_bytes


Work = GemmWork | AttentionWork | MemoryWork | MoeLayer | CollectiveProblem
"""Work of an operation; a `MoeLayer` is its routed experts alone: shared experts are GEMMs of their own."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of a step, ``"o_proj"``, which runs once in each of `num_layers` layers.

    `layer_kind` is the kind of layers it is in (`LayerKind`); empty: outside of layers.
    """

    name: str
    layer_kind: str
    num_layers: int
    work: Work

    @property
    def kind(self) -> str:
        """``"gemm"``, ``"attention"``, ``"memory"``, ``"moe"`` or ``"collective"``."""
        return _KINDS[type(self.work)]

    @property
    def problem(self) -> Any:
        """The problem of its work; memory-bound operations and layers of experts have none."""
        return self.work.problem  # type: ignore[union-attr]


_KINDS: dict[type, str] = {
    GemmWork: "gemm", AttentionWork: "attention", MemoryWork: "memory", MoeLayer: "moe",
    CollectiveProblem: "collective",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fusions:
    """Operations that run as one kernel. All are on by default, as serving engines have them.

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
