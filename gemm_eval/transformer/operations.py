"""`model_operations`: all operations of one step of inference on one device, in the order in which engines run them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from gemm_eval.checks import as_integer, check_flag, check_word
from gemm_eval.dtypes import DtypeScheme, parse_dtype
from gemm_eval.errors import InvalidOptionError
from gemm_eval.moe import Distribution
from gemm_eval.transformer.config import ModelConfig
from gemm_eval.transformer.experts import UNIFORM
from gemm_eval.transformer.ffn_shapes import lm_head_shape
from gemm_eval.transformer.gemms import PHASES, make_step
from gemm_eval.transformer.layer_operations import layer_operations
from gemm_eval.transformer.operation_context import Context
from gemm_eval.transformer.operation_kinds import CollectiveOperation, Fusions, Operation
from gemm_eval.transformer.stages import layer_kinds, stage_config, stage_layers
from gemm_eval.transformer.types import weight_types
from gemm_eval.words import shown

__all__ = ["model_operations"]

_FP32_BYTES = 4
_TOKEN_BYTES = 8


def model_operations(
    config: ModelConfig,
    *,
    phase: Literal["prefill", "decode"],
    batch_size: int,
    seq_len: int,
    new_tokens: int | None = None,
    tensor_parallel: int = 1,
    expert_parallel: int = 1,
    pipeline_parallel: int = 1,
    stage: int = 0,
    dtype: str | DtypeScheme | None = None,
    dense_dtype: str | None = None,
    expert_dtype: str | DtypeScheme | None = None,
    kv_dtype: str | None = None,
    absorb_mla: bool | None = None,
    lm_head_all_tokens: bool = False,
    expert_load: str | Distribution = UNIFORM,
    expert_seed: int = 0,
    experts_as_layer: bool = True,
    fusions: Fusions | None = None,
) -> tuple[Operation, ...]:
    """Return the operations of one step on one device: embedding, layers by kind, norm, LM head, sampling.

    Layers of one kind stand together, at the place of the first of them; each operation says in how many layers it
    runs. Arguments not named here are those of `transformer_gemms`.

    Args:
        config: the model.
        phase, batch_size, seq_len, new_tokens: the step.
        tensor_parallel, expert_parallel: degrees.
        pipeline_parallel, stage: stages, and which of them: the first has the embedding, the last norm and LM head;
            all others send what they computed to the next.
        dtype, dense_dtype, expert_dtype: types of GEMMs.
        kv_dtype: type of the KV cache, as for `model_memory`.
        absorb_mla, lm_head_all_tokens, expert_load, expert_seed: as for `transformer_gemms`.
        experts_as_layer: routed experts as one `MoeOperation`; False: as grouped GEMMs, with what is around them.
        fusions: which operations run as one kernel; None: all that engines fuse.

    Raises:
        InvalidOptionError, InvalidProblemError: as `transformer_gemms`.
    """
    check_word("phase", phase, PHASES)
    check_flag("experts_as_layer", experts_as_layer)
    fused = Fusions() if fusions is None else fusions
    if not isinstance(fused, Fusions):
        raise InvalidOptionError(f"fusions must be Fusions, got {shown(fusions)}")
    step = make_step(
        config,
        phase,
        batch_size,
        seq_len,
        tensor_parallel,
        expert_parallel,
        expert_load=expert_load,
        expert_seed=expert_seed,
        absorb_mla=phase == "decode" if absorb_mla is None else absorb_mla,
        lm_head_all_tokens=lm_head_all_tokens,
        new_tokens=new_tokens,
    )
    if config.moe is None and step.expert_parallel > 1:
        raise InvalidOptionError(f"expert_parallel is for models with experts, which {config.name} has not")
    stages = stage_layers(config.num_layers, pipeline_parallel)
    index = as_integer("stage", stage, 0, len(stages) - 1)
    part = stage_config(config, stages[index])
    of_checkpoint = config.quantization if dtype is None else None
    kept = weight_types(part, dtype, dense_dtype, expert_dtype).kept
    kv = parse_dtype(kv_dtype or (of_checkpoint and of_checkpoint.kv_cache_dtype) or kept, what="kv_dtype")

    def context(of: ModelConfig, **more: Any) -> Context:
        inner = step if of.moe is not None else replace(step, expert_parallel=1)
        types = weight_types(of, dtype, dense_dtype, expert_dtype)
        return Context(
            config=of, step=inner, types=types, kv_dtype=kv, fusions=fused, experts_as_layer=experts_as_layer, **more
        )

    outside = context(part, layer_kind="", has_rope=False, is_start=False)
    found: list[Operation] = []
    if index == 0:
        found += _embedding(outside)
    for kind in layer_kinds(part):
        alone = stage_config(part, kind.layers)
        is_start = index == 0 and 0 in kind.layers
        found += layer_operations(context(alone, layer_kind=kind.name, has_rope=kind.has_rope, is_start=is_start))
    found += _head(outside) if index == len(stages) - 1 else _send(outside)
    return tuple(found)


def _embedding(context: Context) -> Iterator[Operation]:
    """Rows of the embedding; each device of a group has some of the vocabulary, so that they are added up."""
    hidden = context.config.hidden_size
    ids = _TOKEN_BYTES / context.elem_bytes / hidden
    yield context.memory("embedding", "gather", hidden, reads=1 + (context.config.num_positions > 0) + ids)
    yield from context.all_reduce("embedding_all_reduce")


def _head(context: Context) -> Iterator[Operation]:
    """The last residual and norm of all tokens, the LM head of those that are sampled, and sampling in fp32."""
    yield from context.norms("final_norm", adds=True)
    head = lm_head_shape(context.config, context.step)
    yield from context.gemms(head)
    ranks, vocab = context.step.tensor_parallel, context.config.vocab_size
    if ranks > 1:
        size = head.M * head.N * context.elem_bytes
        yield CollectiveOperation("logits_all_gather", "", 1, "all_gather", size, ranks)
    wide, token = _FP32_BYTES / context.elem_bytes, _TOKEN_BYTES / context.elem_bytes / vocab
    yield context.memory("logits_cast", "cast", vocab, writes=wide, rows=head.M)
    yield context.memory("sampling", "sample", vocab, reads=wide, writes=token, rows=head.M)


def _send(context: Context) -> Iterator[Operation]:
    """The hidden state, and the residual where the next norm adds it."""
    tensors = 1 + context.fusions.residual_norm
    size = tensors * context.step.tokens * context.config.hidden_size * context.elem_bytes
    yield CollectiveOperation("stage_send", "", 1, "send", size, 2)
