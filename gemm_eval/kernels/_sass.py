"""From machine code to what its main loop issues: nvdisasm, the loop that does the work, its instructions by class.

Instructions are read as nvdisasm, cuobjdump and Triton write them. `find_main_loop` takes those of PTX too.

A warp takes one issue slot for each instruction, also for one whose predicate is false. What a class costs beyond that
depends on the GPU: classes are cut so that instructions of one class go to one execution unit.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from gemm_eval.errors import GemmEvalError

__all__ = [
    "INSTRUCTION_BYTES",
    "Instruction",
    "InstructionCounts",
    "class_of",
    "count_instructions",
    "disassemble",
    "disassemble_code",
    "find_main_loop",
    "nvdisasm_version",
    "parse_sass",
]

_PACKAGE = "nvidia-cuda-nvdisasm"
_PROGRAM_NAMES = ("nvdisasm", "nvdisasm.exe")
_TIMEOUT_S = 120
INSTRUCTION_BYTES = 16
"""Of each instruction since compute capability 7.0."""

_LABEL = re.compile(r"\s*(\.L_\w+|LBB\d+):")
_INSTRUCTION = re.compile(  # Triton writes stalls and barriers where others write the address
    r"\s*(?:/\*(?P<address>[0-9a-f]{4,})\*/|[\d-]{2}:[\d-]:[\d-]:[Y-]:[\da-f])\s+"
    r"(?:(?P<guard>@!?U?P\w+)\s+)?(?P<opcode>[A-Z][\w.]*)\s*(?P<operands>[^;]*);"
)
_TARGET = re.compile(r"(?:^|,\s*)(?:`\((?P<label>\.L_\w+)\)|(?P<triton>LBB\d+)|(?P<address>0x[\da-f]+))$")
_BRANCHES = {"BRA", "BRX", "JMP", "JMX", "bra", "brx"}  # in small letters: of PTX
_ENDS = {"EXIT", "RET", "exit", "ret", "trap"}
_NEVER = "@!PT"
_PER_LANE_BRANCH = "BRA.U.ANY"  # back to an instruction that takes one lane's operands at a time


class Instruction(NamedTuple):
    """One instruction.

    Attributes:
        address: in bytes from the start of the kernel.
        guard: predicate that it is executed under, such as "@!P0"; empty: always.
        opcode: with its modifiers, such as "LDS.128".
        operands: as they were written.
        target: address that a branch goes to, or None.
    """

    address: int
    guard: str
    opcode: str
    operands: str
    target: int | None

    @property
    def name(self) -> str:
        """The opcode without modifiers."""
        return self.opcode.partition(".")[0]

    @property
    def may_fall_through(self) -> bool:
        """Whether the next instruction may follow: all but jumps and ends without a condition."""
        has_condition = bool(self.guard) or self.target is None or "," in self.operands  # BRA P1, `(.L_x_1)
        return self.name not in _ENDS | _BRANCHES or (has_condition and (self.name in _BRANCHES or bool(self.guard)))


class InstructionCounts(NamedTuple):
    """Warp instructions by class.

    Attributes:
        tensor: HGMMA (one for a whole m64nNk16 in each of 4 warps) or HMMA (m16n8k16).
        integer: of the ALU: logic, additions, shifts, permutations, comparisons, selections, moves, minima.
        imad: integer multiply-add, also where the compiler moves or adds with it: on the FMA units.
        half: arithmetic on pairs of fp16 or bf16.
        single: fp32 arithmetic.
        convert: fp16 to fp32 (HADD2.F32, on the units of `half`) and all else that changes a type.
        load_shared, load_matrix, store_shared: LDS, LDSM, STS and STSM.
        copy: from global memory, to registers or to shared memory: LDG, LDGSTS, bulk and tensor copies.
        uniform: of the uniform datapath, and moves to and from its registers.
        synchronisation: barriers, mbarriers, waiting for copies or for the tensor cores.
        control: branches and the bookkeeping of diverged lanes.
        other: the rest, such as NOP, S2R and LDC, and what never does anything (`@!PT LDS` stands before some LDGSTS).
    """

    tensor: int
    integer: int
    imad: int
    half: int
    single: int
    convert: int
    load_shared: int
    load_matrix: int
    store_shared: int
    copy: int
    uniform: int
    synchronisation: int
    control: int
    other: int

    @property
    def total(self) -> int:
        """All of them: issue slots of a warp."""
        return sum(self)


_CLASSES: dict[str, tuple[str, ...]] = {
    "tensor": ("HGMMA", "HMMA"),
    "integer": (
        "LOP3", "LOP", "IADD3", "IADD", "VIADD", "SHF", "SHL", "SHR", "PRMT", "ISETP", "ICMP", "SEL", "FSEL", "LEA",
        "MOV", "IABS", "IMNMX", "VIMNMX", "FMNMX", "PLOP3", "P2R", "R2P", "FSETP", "HSETP2", "SGXT", "BMSK", "VABSDIFF",
    ),
    "imad": ("IMAD", "IMUL", "XMAD"),
    "half": ("HFMA2", "HADD2", "HMUL2", "HMNMX2"),
    "single": ("FFMA", "FADD", "FMUL", "FFMA2", "FADD2", "FMUL2"),
    "convert": ("F2F", "F2FP", "I2F", "I2FP", "F2I", "I2I", "FRND"),
    "load_shared": ("LDS",),
    "load_matrix": ("LDSM",),
    "store_shared": ("STS", "STSM"),
    "copy": ("LDG", "LDGSTS", "UTMALDG", "UBLKCP", "UBLKPF", "LD"),
    "uniform": ("R2UR", "S2UR", "VOTEU", "REDUX"),
    "synchronisation": (
        "BAR", "SYNCS", "WARPSYNC", "DEPBAR", "LDGDEPBAR", "WARPGROUP", "MEMBAR", "ERRBAR", "CGAERRBAR", "FENCE",
        "ARRIVES", "UCGABAR_WAIT", "UCGABAR_ARV", "NANOSLEEP",
    ),
    "control": ("BRA", "BRX", "BSSY", "BSYNC", "BREAK", "EXIT", "CALL", "RET", "YIELD", "JMP", "JMX", "WARPGROUPSET"),
}  # fmt: skip
_CLASS_OF = {name: kind for kind, names in _CLASSES.items() for name in names}


@cache
def _nvdisasm() -> Path:
    """Where the disassembler is: in its package, on the PATH, or in Triton's package."""
    try:
        files = importlib.metadata.files(_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    places = [Path(str(file.locate())) for file in files if file.name in _PROGRAM_NAMES]
    if found := shutil.which("nvdisasm"):
        places.append(Path(found))
    if (triton := importlib.util.find_spec("triton")) and triton.origin:  # which does not import it
        folder = Path(triton.origin).parent / "backends" / "nvidia" / "bin"
        places += [folder / name for name in _PROGRAM_NAMES]
    for place in places:
        if place.is_file():
            return place
    raise GemmEvalError(f"reading machine code needs nvdisasm: pip install {_PACKAGE}")


@cache
def nvdisasm_version() -> str:
    """Version of the disassembler, such as "13.5.37".

    Raises:
        GemmEvalError: there is none.
    """
    text = _run("--version")
    match = re.search(r"\bV(\d+[\d.]*)", text)
    return match[1] if match else text.strip().splitlines()[-1]


def disassemble(cubin: bytes) -> str:
    """Return what nvdisasm writes about the code of a cubin.

    Raises:
        GemmEvalError: there is no nvdisasm, or it does not read this.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(_whole(cubin))
        return _run("-c", "-ndf", str(file))  # without data flow: the same text, a third sooner


def disassemble_code(code: bytes, target: str) -> str:
    """Return what nvdisasm writes about instructions without the file around them.

    It takes a third of a second to start, whatever it reads: put the code of many kernels one after the other.

    Args:
        code: instructions.
        target: what they are for, such as "sm_90a".

    Raises:
        GemmEvalError: there is no nvdisasm, or it does not read this.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "code.bin"
        file.write_bytes(code)
        return _run("-b", target.replace("sm_", "SM"), "-ndf", str(file))


def _run(*arguments: str) -> str:
    try:
        done = subprocess.run(
            [str(_nvdisasm()), *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GemmEvalError(f"nvdisasm does not run: {error}") from None
    if done.returncode:
        raise GemmEvalError(f"nvdisasm fails: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def _whole(cubin: bytes) -> bytes:
    """The cubin up to the end of its program headers: CuPy drops a last byte of 0, which nvdisasm insists on."""
    if cubin[:5] != b"\x7fELF\x02":
        raise GemmEvalError("not a cubin: no 64-bit ELF file")
    program_headers, section_headers = struct.unpack_from("<QQ", cubin, 0x20)
    size_p, num_p, size_s, num_s = struct.unpack_from("<HHHH", cubin, 0x36)
    end = max(program_headers + size_p * num_p, section_headers + size_s * num_s)
    return cubin + bytes(max(0, end - len(cubin)))


def parse_sass(text: str) -> tuple[Instruction, ...]:
    """Return the instructions of the only kernel in what nvdisasm, cuobjdump or Triton wrote.

    Raises:
        GemmEvalError: there are none, or a branch goes nowhere.
    """
    found: list[tuple[int, re.Match[str]]] = []
    labels: dict[str, int] = {}
    waiting: list[str] = []
    for line in text.splitlines():
        if match := _INSTRUCTION.match(line):
            address = int(match["address"], 16) if match["address"] else INSTRUCTION_BYTES * len(found)
            if waiting:
                labels.update(dict.fromkeys(waiting, address))
                waiting.clear()
            found.append((address, match))
        elif match := _LABEL.match(line):
            waiting.append(match[1])
    if not found:
        raise GemmEvalError("no instructions in what should be machine code as text")
    addresses = {address for address, _ in found}
    instructions = []
    for address, match in found:
        guard, opcode, operands = match.group("guard", "opcode", "operands")
        operands, target = operands.strip(), None
        if opcode.partition(".")[0] in _BRANCHES and (to := _TARGET.search(operands)):
            name = to["label"] or to["triton"] or to["address"]
            target = int(name, 16) if to["address"] else labels.get(name)
            if target not in addresses:
                raise GemmEvalError(f"a branch goes to {name}, which is not there")
        instructions.append(Instruction(address, guard or "", opcode, operands, target))
    return tuple(instructions)


def count_instructions(instructions: Sequence[Instruction]) -> InstructionCounts:
    """Count instructions by class."""
    counts = dict.fromkeys(InstructionCounts._fields, 0)
    for instruction in instructions:
        counts[class_of(instruction)] += 1
    return InstructionCounts(**counts)


def class_of(instruction: Instruction) -> str:
    """Return the class that `InstructionCounts` counts an instruction in."""
    if instruction.guard == _NEVER:
        return "other"
    if instruction.opcode.startswith("HADD2.F32"):  # adds nothing: one half of a pair becomes fp32
        return "convert"
    known = _CLASS_OF.get(instruction.name)
    return known or ("uniform" if instruction.name.startswith("U") else "other")


def find_main_loop(
    instructions: Sequence[Instruction], is_work: Callable[[Instruction], bool]
) -> tuple[Instruction, ...]:
    """Return what a warp issues in one steady iteration of the innermost loop that does (most of) the work.

    Of ways through the loop that is the longest: copies for a later iteration are taken to be made. Code that the
    compiler moved behind the loop is left out: there a warp spins on a barrier, or collects lanes that diverged. Loops
    over lanes (`BRA.U.ANY`) are gone through once: for one lane, or lanes with the same operands.

    Raises:
        GemmEvalError: no loop does such work, or there is no straight way through it.
    """
    blocks = _Blocks(instructions)
    loops = blocks.natural_loops()
    work = {entry: sum(map(is_work, blocks.instructions_of(body))) for entry, body in loops.items()}
    working = [entry for entry in loops if work[entry]]
    innermost = [entry for entry in working if not any(loops[other] < loops[entry] for other in working)]
    if not innermost:
        raise GemmEvalError("no loop of this kernel does the work that was asked for")
    entry = max(innermost, key=work.__getitem__)
    return blocks.longest_way(entry, loops[entry])


class _Blocks:
    """Basic blocks, numbered in the order of their addresses; the first is the entry of the kernel."""

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        self._instructions = instructions
        index = {instruction.address: i for i, instruction in enumerate(instructions)}
        starts = {0}
        for i, instruction in enumerate(instructions):
            if instruction.target is not None:
                starts.add(index[instruction.target])
            if instruction.name in _BRANCHES | _ENDS and i + 1 < len(instructions):
                starts.add(i + 1)
        self._starts = [*sorted(starts), len(instructions)]
        number = {start: block for block, start in enumerate(self._starts)}
        self._after: list[set[int]] = []
        for block in range(len(self._starts) - 1):
            last = instructions[self._starts[block + 1] - 1]
            following = {number[index[last.target]]} if last.target is not None else set()
            if last.may_fall_through and block + 2 < len(self._starts):
                following.add(block + 1)
            self._after.append(following)
        self._order, found = [0], {0}  # blocks that can be reached
        for block in self._order:
            fresh = sorted(self._after[block] - found)
            self._order += fresh
            found.update(fresh)
        self._before: dict[int, set[int]] = {block: set() for block in self._order}
        for block in self._order:
            for after in self._after[block]:
                self._before[after].add(block)

    def instructions_of(self, blocks: Iterable[int]) -> list[Instruction]:
        return [self._instructions[i] for b in sorted(blocks) for i in range(self._starts[b], self._starts[b + 1])]

    def natural_loops(self) -> dict[int, set[int]]:
        """Blocks of each loop, by the one block that it is entered at."""
        dominators = self._dominators()
        loops: dict[int, set[int]] = {}
        for block in self._order:
            if self._instructions[self._starts[block + 1] - 1].opcode == _PER_LANE_BRANCH:
                continue
            for entry in self._after[block] & dominators[block]:
                body, waiting = loops.setdefault(entry, {entry}), [block]
                while waiting:
                    if (inside := waiting.pop()) not in body:
                        body.add(inside)
                        waiting.extend(self._before[inside])
        return loops

    def _dominators(self) -> dict[int, set[int]]:
        """For each block: the blocks on all ways to it."""
        dominators = {block: set(self._order) for block in self._order} | {0: {0}}
        is_done = False
        while not is_done:
            is_done = True
            for block in self._order[1:]:
                now = set.intersection(*(dominators[before] for before in self._before[block])) | {block}
                if now != dominators[block]:
                    dominators[block], is_done = now, False
        return dominators

    def longest_way(self, entry: int, loop: set[int]) -> tuple[Instruction, ...]:
        """From the loop's entry to the last branch back to it, forwards only."""
        last = max(block for block in loop if entry in self._after[block])
        ways = {entry: (self._size(entry), frozenset({entry}))}
        for block in sorted(inside for inside in loop if entry <= inside <= last):
            if block not in ways:  # it is come to from behind the loop only
                continue
            size, way = ways[block]
            for after in self._after[block] & loop:
                if block < after and (after not in ways or size + self._size(after) > ways[after][0]):
                    ways[after] = size + self._size(after), way | {after}
        if last not in ways:
            raise GemmEvalError("no way through the main loop goes forwards only")
        return tuple(self.instructions_of(ways[last][1]))

    def _size(self, block: int) -> int:
        return self._starts[block + 1] - self._starts[block]
