"""Loops whose time tells the clock of a core and the bandwidth of its memories.

Arrays: words (num_words,), whatever lies in them.
"""

from __future__ import annotations

from typing import Any

from gemm_eval.jit import entry_point

CYCLES_PER_LINK = 6
"""Cycles of one round of `run_chain`: three shifts and three xors that wait for each other, a cycle each on x86-64; on
64-bit ARM three xors of a shifted register, two cycles each."""


@entry_point
def run_chain(seed: int, num_links: int) -> int:
    """Run a chain of xorshift steps (Marsaglia 2003), each of which needs what the one before it gave."""
    state = seed
    for _ in range(num_links):
        state ^= state << 13
        state ^= state >> 7
        state ^= state << 17
    return state


@entry_point
def read_words(words: Any, num_rounds: int) -> int:
    """Read all words so many times."""
    total = 0
    for turn in range(num_rounds):  # what is added depends on the round, or compilers read once
        for i in range(words.size):
            total += words[i] ^ turn
    return total


@entry_point
def copy_words(source: Any, target: Any, num_rounds: int) -> None:
    """Read all words and write as many so many times."""
    for turn in range(num_rounds):
        for i in range(source.size):
            target[i] = source[i] + turn
