"""The main loop of random control flow, against the definitions: dominators and natural loops as sets of blocks."""

import random
from itertools import pairwise

from gemm_eval.device.sass import Instruction, find_main_loop
from gemm_eval.errors import GemmEvalError

NUM_KERNELS = 1500
PER_LANE = "BRA.U.ANY"


def random_kernel(rng: random.Random) -> list[Instruction]:
    num, made = rng.randrange(1, 30), []
    for i in range(num):
        near = min(num - 1, max(0, i + rng.randrange(-8, 6)))
        kind = rng.random()
        if kind < 0.4:
            target = None if rng.random() < 0.05 else 16 * rng.choice((near, rng.randrange(num)))
            opcode = rng.choice(("BRA", "BRA", "BRA", PER_LANE))
            made.append(Instruction(16 * i, rng.choice(("", "@P0", "@P1")), opcode, "", target))
        else:
            made.append(Instruction(16 * i, "", "EXIT" if kind < 0.45 else rng.choice(("HMMA", "MOV")), "", None))
    return made


def naive_main_loop(code: list[Instruction]) -> list[int]:
    """Addresses of the main loop; empty without one. Each loop is a set of instructions, found from its definition."""
    starts = {0, len(code)} | {one.target // 16 for one in code if one.target is not None}
    starts |= {i + 1 for i, one in enumerate(code) if one.is_branch or one.is_end}
    blocks = [range(*pair) for pair in pairwise(sorted(starts))]
    at = {block.start: number for number, block in enumerate(blocks)}
    after = []
    for number, block in enumerate(blocks):
        last = code[block[-1]]
        to = set() if last.target is None else {at[last.target // 16]}
        after.append(to | ({number + 1} if last.may_fall_through and number + 1 < len(blocks) else set()))

    def reached(without: int | None) -> list[int]:
        order = [] if without == 0 else [0]
        for block in order:
            order += sorted(after[block] - {without} - set(order))
        return order

    order = reached(None)
    loops: dict[int, set[int]] = {}
    for block in order:
        for entry in sorted(after[block]):
            is_on_all_ways = block == entry or block not in reached(entry)
            if is_on_all_ways and code[blocks[block][-1]].opcode != PER_LANE:
                body = {entry, block}
                while more := {b for b in order if b not in body and after[b] & (body - {entry})}:
                    body |= more
                loops[entry] = loops.get(entry, set()) | body
    work = {entry: sum(code[i].name == "HMMA" for b in body for i in blocks[b]) for entry, body in loops.items()}
    inner = [e for e in loops if work[e] and not any(work[o] and loops[o] < loops[e] for o in loops)]
    if not inner:
        return []
    entry = max(inner, key=work.__getitem__)
    last = max(block for block in loops[entry] if entry in after[block])
    ways = [[entry]]
    best: list[int] = []
    while ways:
        way = ways.pop()
        size = sum(len(blocks[b]) for b in way)
        if way[-1] == last and size > sum(len(blocks[b]) for b in best):
            best = way
        ways += [[*way, b] for b in after[way[-1]] & loops[entry] if way[-1] < b <= last]
    return [16 * i for b in best for i in blocks[b]]


def test_main_loops_are_those_of_the_definition() -> None:
    num_found = 0
    for seed in range(NUM_KERNELS):
        code = random_kernel(random.Random(seed))
        expected = naive_main_loop(code)
        try:
            found = [one.address for one in find_main_loop(code, lambda one: one.name == "HMMA")]
        except GemmEvalError:
            found = []
        num_found += bool(found)
        if len(found) != len(expected) or not found:
            assert found == expected, seed
        else:  # of ways of one length any
            assert (found[0], found[-1]) == (expected[0], expected[-1]), seed
    assert num_found > NUM_KERNELS // 5
