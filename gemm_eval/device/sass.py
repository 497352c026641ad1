"""Machine code as text: its instructions, as nvdisasm, cuobjdump and Triton write them, and their classes.

A warp takes one issue slot for each instruction, also for one whose predicate is false. What a class costs beyond that
depends on the GPU: classes are cut so that instructions of one class go to one execution unit.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from gemm_eval.errors import GemmEvalError
from gemm_eval.words import one_line

__all__ = [
    "INSTRUCTION_BYTES",
    "Instruction",
    "InstructionCounts",
    "class_of",
    "count_instructions",
    "parse_sass",
]

INSTRUCTION_BYTES = 16
"""Of each instruction since compute capability 7.0."""

# Possessive, so that a line of any length is gone through once.
_LABEL = re.compile(r"\s*+(\.L_\w++|LBB\d++):")
_INSTRUCTION = re.compile(  # Triton writes stalls and barriers where others write the address
    r"\s*+(?:/\*(?P<address>[0-9a-f]{4,16})\*/|[\d-]{2}:[\d-]:[\d-]:[Y-]:[\da-f])\s++"
    r"(?:(?P<guard>@!?U?P\w++)\s++)?+(?P<opcode>[A-Z][\w.]*+)\s*+(?P<operands>[^;]*+);"
)
_TARGET = re.compile(r"(?:^|,\s*+)(?:`\((?P<label>\.L_\w+)\)|(?P<triton>LBB\d+)|(?P<address>0x[\da-f]+))$")
_BRANCHES = {"BRA", "BRX", "JMP", "JMX", "bra", "brx"}  # in small letters: of PTX
_ENDS = {"EXIT", "RET", "exit", "ret", "trap"}
_NEVER = "@!PT"


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
    def is_branch(self) -> bool:
        """Whether it may go elsewhere: a jump."""
        return self.name in _BRANCHES

    @property
    def is_end(self) -> bool:
        """Whether the kernel, or the function, may end with it."""
        return self.name in _ENDS

    @property
    def may_fall_through(self) -> bool:
        """Whether the next instruction may follow: all but jumps and ends without a condition."""
        has_condition = bool(self.guard) or self.target is None or "," in self.operands  # BRA P1, `(.L_x_1)
        return not (self.is_branch or self.is_end) or (has_condition and (self.is_branch or bool(self.guard)))


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


def parse_sass(text: str) -> tuple[Instruction, ...]:
    """Return the instructions of the only kernel in what nvdisasm, cuobjdump or Triton wrote.

    Raises:
        GemmEvalError: there are none, their addresses do not rise, or a branch goes nowhere.
    """
    found: list[Instruction] = []
    labels: dict[str, int] = {}
    waiting: list[str] = []
    for line in text.splitlines():
        if match := _INSTRUCTION.match(line):
            guard, opcode, operands = match.group("guard", "opcode", "operands")
            address = int(match["address"], 16) if match["address"] else INSTRUCTION_BYTES * len(found)
            if found and address <= found[-1].address:
                raise GemmEvalError(
                    f"an instruction at 0x{address:x} follows one at 0x{found[-1].address:x}: the code of one kernel "
                    "has rising addresses"
                )
            labels.update(dict.fromkeys(waiting, address))
            waiting.clear()
            found.append(Instruction(address, guard or "", opcode, operands.strip(), None))
        elif match := _LABEL.match(line):
            waiting.append(match[1])
    if not found:
        raise GemmEvalError("no instructions in what should be machine code as text")
    addresses = {one.address for one in found}
    return tuple(one._replace(target=_target(one, labels, addresses)) if one.is_branch else one for one in found)


def _target(branch: Instruction, labels: dict[str, int], addresses: set[int]) -> int | None:
    to = _TARGET.search(branch.operands)
    if to is None:  # a register says it
        return None
    name = to["label"] or to["triton"] or to["address"]
    target = int(name, 16) if to["address"] else labels.get(name)
    if target not in addresses:
        raise GemmEvalError(f"a branch goes to {one_line(name)}, which is not there")
    return target


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
