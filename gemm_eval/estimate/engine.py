"""Serving engines: whose kernels they run, how they schedule steps, and the time of their host."""

from __future__ import annotations

from dataclasses import dataclass, field

from gemm_eval.transformer import CHUNK_TOKENS, Fusions


@dataclass(frozen=True, slots=True)
class Engine:
    """A serving engine: libraries of its kernels, what it fuses, how it schedules, and what its host adds.

    Attributes:
        name, version: as in ``vllm``, ``0.12``.
        attention_library, collective_library, expert_library: whose kernels; None: the default of their model.
        fusions: operations that run as one kernel.
        chunk_tokens: of prompts in one step, at most (vLLM: max_num_batched_tokens).
        max_seqs: sequences in decode, at most (vLLM: max_num_seqs).
        has_mixed_steps: chunks of prompts share steps with decode; else they run in steps of their own, which go first.
        step_us: time of the host in each step that the GPU waits for.
        seq_us: the same for each sequence of a step.
        request_us: time of a request outside of its steps: its way through the server to the scheduler.
    """

    name: str
    version: str = ""
    attention_library: str | None = None
    collective_library: str | None = None
    expert_library: str | None = None
    fusions: Fusions = field(default_factory=Fusions)
    chunk_tokens: int = CHUNK_TOKENS
    max_seqs: int = 1024
    has_mixed_steps: bool = True
    step_us: float = 0.0
    seq_us: float = 0.0
    request_us: float = 0.0


IDEAL = Engine("ideal")
"""The sum of the kernels: mixed steps, and no time of the host."""
