"""`transformer_gemms`: the GEMMs of one forward pass of a transformer on one device."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Literal

from gemm_eval.checks import as_integer, check_flag, check_word, plain_number
from gemm_eval.dtypes import DtypeScheme
from gemm_eval.errors import InvalidOptionError
from gemm_eval.moe import Distribution
from gemm_eval.transformer.config import ModelConfig
from gemm_eval.transformer.shapes import UNIFORM, Operand, Shape, Step, check_expert_load, layer_shapes, lm_head_shape
from gemm_eval.transformer.types import WeightTypes, weight_types
from gemm_eval.words import shown
from gemm_eval.workload import MAX_DIM, MAX_MACS, GemmProblem, problem_of

PHASES = ("prefill", "decode")
"""Which forward passes there are."""


@dataclass(frozen=True, slots=True)
class LayerGemm:
    """A kind of GEMM in a model, ``"qkv_proj"``, and the layers that have it: 1 for the LM head.

    `is_weight` says whether B is a weight; else both operands are activations.
    """

    name: str
    problem: GemmProblem
    num_layers: int
    is_weight: bool

    def __repr__(self) -> str:
        return f"<LayerGemm {self.name}: {self.problem}, 1 in each of {self.num_layers} layers>"

    @property
    def total_count(self) -> int:
        """Number of runs in one forward pass."""
        return self.num_layers


def transformer_gemms(
    config: ModelConfig, *, phase: Literal["prefill", "decode"], batch_size: int, seq_len: int,
    tensor_parallel: int = 1, expert_parallel: int = 1, dtype: str | DtypeScheme | None = None,
    dense_dtype: str | None = None, quantize_lm_head: bool = False, quantize_router: bool = False,
    expert_imbalance: float = 1.0, absorb_mla: bool | None = None, expert_dtype: str | DtypeScheme | None = None,
    expert_load: str | Distribution = UNIFORM, new_tokens: int | None = None,
) -> tuple[LayerGemm, ...]:  # fmt: skip
    """Return the GEMMs of one forward pass on one device, in the order they run, as G, M, K, N.

    Prefill runs `seq_len` new tokens of each of `batch_size` sequences; decode runs one new token of each, which
    attends to `seq_len` positions, itself included. `new_tokens` says how many of the `seq_len` positions are new where
    it is another number: in prefill a chunk whose predecessors are in the cache, in decode k tokens that are guessed
    and verified at once (speculative decoding), each of which the LM head sees.

    MODELS.md, "GEMMs of a forward pass", says how attention, MLA, experts and parallel degrees become GEMMs.

    Args:
        dtype: None: as the model's file says; else a shorthand (``"bf16"``, ``"fp8_block"``, ``"w4a16"``) or a
            `DtypeScheme` for the projections of attention, the feed-forward networks and the experts.
        dense_dtype: of scores and values of attention, routers and the LM head; None: the input type of `dtype`, or
            bf16 where that has fewer than 16 bits. `quantize_lm_head`, `quantize_router` give these `dtype` too.
        expert_dtype: of routed experts; None: `dtype`.
        expert_load: rows of each expert: ``"uniform"``, as routing at random gives in expectation; ``"expected"``: as
            many for all that are active; or a distribution of `gemm_eval.moe`, as a word or a value.
        expert_imbalance: above 1 (busiest over mean load): all experts are charged as the busiest, which is a bound.
        absorb_mla: fold `kv_b_proj` into query and output; None: in decode only.

    Raises:
        InvalidOptionError: an option is out of range, or a degree does not divide what it splits.
        InvalidProblemError: `dtype` is unknown, or a GEMM would be too large.
    """
    check_flag("quantize_lm_head", quantize_lm_head)
    check_flag("quantize_router", quantize_router)
    step = make_step(
        config, phase, batch_size, seq_len, tensor_parallel, expert_parallel, expert_imbalance=expert_imbalance,
        expert_load=expert_load, absorb_mla=absorb_mla, new_tokens=new_tokens,
    )  # fmt: skip
    types = weight_types(
        config, dtype, dense_dtype, expert_dtype, quantize_lm_head=quantize_lm_head, quantize_router=quantize_router
    )
    shapes = (*layer_shapes(config, step), lm_head_shape(config, step))
    return tuple(gemm for shape in shapes for gemm in layer_gemms(shape, types))


def make_step(
    config: ModelConfig, phase: str, batch_size: int, seq_len: int, tensor_parallel: int, expert_parallel: int, *,
    expert_imbalance: float = 1.0, expert_load: Any = UNIFORM, absorb_mla: bool | None = None,
    new_tokens: int | None = None,
) -> Step:  # fmt: skip
    """Check the options of `transformer_gemms` that sizes depend on."""
    check_word("phase", phase, PHASES)
    is_prefill = phase == "prefill"
    absorbs = not is_prefill if absorb_mla is None else absorb_mla
    check_flag("absorb_mla", absorbs)
    if not isinstance(config, ModelConfig):
        raise InvalidOptionError(f"config must be a ModelConfig, as load_model returns one, got {shown(config)}")
    context = as_integer("seq_len", seq_len, 1, MAX_DIM)
    imbalance = plain_number(expert_imbalance)
    if imbalance is None or imbalance < 1:
        raise InvalidOptionError(f"expert_imbalance must be a finite number >= 1, got {shown(expert_imbalance)}")
    usual = context if is_prefill else 1
    new = usual if new_tokens is None else as_integer("new_tokens", new_tokens, 1, context)
    return Step(
        model=config.name, num_seqs=as_integer("batch_size", batch_size, 1, MAX_DIM), new_tokens=new, context=context,
        tensor_parallel=as_integer("tensor_parallel", tensor_parallel, 1, MAX_DIM),
        expert_parallel=as_integer("expert_parallel", expert_parallel, 1, MAX_DIM), expert_imbalance=imbalance,
        expert_load=check_expert_load(expert_load, imbalance),
        absorb_mla=absorbs, lm_head_all_tokens=not is_prefill, expands_cache=is_prefill and new < context,
    )  # fmt: skip


def layer_gemms(shape: Shape, types: WeightTypes, stored_as: str | None = None) -> tuple[LayerGemm, ...]:
    """Return the GEMMs of a shape: one, or one for each way in which layers store its weights.

    `stored_as` is the GEMM whose types it has, where it is a part of another.
    """
    result: list[LayerGemm] = []
    sizes = shape.G, shape.M, shape.K, shape.N
    fits = shape.row_groups is None and max(sizes) <= MAX_DIM and prod(sizes) <= MAX_MACS
    for stored in types.of(shape if stored_as is None else shape._replace(name=stored_as)):
        name = f"{shape.name}_{stored.types.b.dtype}" if result else shape.name
        if fits:
            problem = problem_of(stored.types, *sizes)
        else:
            words: Any = stored.types.words
            problem = GemmProblem(*sizes, row_groups=shape.row_groups, **words)  # which checks and may refuse it
        result.append(LayerGemm(name, problem, stored.num_layers, shape.operand is not Operand.ACTIVATION))
    return tuple(result)
