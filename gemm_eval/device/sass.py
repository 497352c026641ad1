"""Machine code: nvdisasm, the instructions that it writes and their classes, and the main loop among them.

A warp takes one issue slot for each instruction, also for one whose predicate is false. The further cost of a class
depends on the GPU: classes are cut so that instructions of one class go to one execution unit. Finding the main loop
takes time and memory nearly in proportion to the instructions, whatever loops they make.
"""

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
from threading import Thread, Timer
from typing import IO, NamedTuple

from gemm_eval.errors import GemmEvalError
from gemm_eval.words import install_command, one_line

_PACKAGE = "nvidia-cuda-nvdisasm"
_PROGRAM_NAMES = ("nvdisasm", "nvdisasm.exe")
_TIMEOUT_S = 120.0
_MIN_OUTPUT_BYTES = 1 << 20
_OUTPUT_PER_CODE = 64  # bytes of text for a byte of code: 5 are usual, a line of 80 for 16
_MAX_ERROR_BYTES = 256
_ELF_HEADER_BYTES = 64


@cache
def _nvdisasm() -> Path:
    """Find the disassembler: in its package, on the PATH, or in Triton's package."""
    try:
        files = importlib.metadata.files(_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    places = [Path(str(file.locate())) for file in files if file.name in _PROGRAM_NAMES]
    if program := shutil.which("nvdisasm"):
        places.append(Path(program))
    if (triton := importlib.util.find_spec("triton")) and triton.origin:  # which does not import it
        folder = Path(triton.origin).parent / "backends" / "nvidia" / "bin"
        places += [folder / name for name in _PROGRAM_NAMES]
    for path in places:
        if path.is_file():
            return path
    raise GemmEvalError(f"reading machine code needs nvdisasm: {install_command('asm')}")


@cache
def nvdisasm_version() -> str:
    """Return the version of the disassembler, such as "13.5.37"."""
    text = _run("--version")
    match = re.search(r"\bV(\d+[\d.]*)", text)
    return match[1] if match else text.strip().splitlines()[-1]


def disassemble(cubin: bytes) -> str:
    """Return what nvdisasm writes about the code of a cubin."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(_whole(cubin))
        # without data flow: the same text, a third sooner
        return _run("-c", "-ndf", str(file), num_code_bytes=len(cubin))


def disassemble_code(code: bytes, target: str) -> str:
    """Return what nvdisasm writes about bare code for a target such as "sm_90a"; it takes a third of a second."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "code.bin"
        file.write_bytes(code)
        return _run("-b", target.replace("sm_", "SM"), "-ndf", str(file), num_code_bytes=len(code))


def _run(*arguments: str, num_code_bytes: int = 0) -> str:
    """Return what nvdisasm prints; it is killed where it prints too much, or takes too long."""
    max_bytes = _MIN_OUTPUT_BYTES + _OUTPUT_PER_CODE * num_code_bytes
    errors: list[bytes] = []
    try:
        process = subprocess.Popen(
            [str(_nvdisasm()), *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    except OSError as error:
        raise GemmEvalError(f"nvdisasm does not run: {error}") from None
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        timer = Timer(_TIMEOUT_S, process.kill)
        reader = Thread(target=_drain, args=(process.stderr, errors))
        timer.start()
        reader.start()
        try:
            output = process.stdout.read(max_bytes + 1)
            if len(output) <= max_bytes:
                process.wait()
        finally:
            is_late = not timer.is_alive()
            timer.cancel()
            process.kill()
            reader.join()
    if len(output) > max_bytes:
        raise GemmEvalError(f"nvdisasm prints more than {max_bytes:,} bytes: this is no code that it understands")
    if is_late:
        raise GemmEvalError(f"nvdisasm does not finish within {_TIMEOUT_S:.0f} s")
    if process.returncode:
        message = one_line((errors[0] or output[:_MAX_ERROR_BYTES]).decode(errors="replace"), _MAX_ERROR_BYTES)
        raise GemmEvalError(f"nvdisasm fails: {message or f'exit code {process.returncode}'}")
    return output.decode(errors="replace")


def _drain(stream: IO[bytes], kept: list[bytes]) -> None:
    """Keep the begin of what comes, and let the rest go: it would wait with a full pipe."""
    kept.append(stream.read(_MAX_ERROR_BYTES))
    while stream.read(_MIN_OUTPUT_BYTES):
        pass


def _whole(cubin: bytes) -> bytes:
    """Return the cubin with its last byte of 0, which CuPy drops and nvdisasm insists on."""
    if cubin[:5] != b"\x7fELF\x02" or len(cubin) < _ELF_HEADER_BYTES:
        raise GemmEvalError("not a cubin: no 64-bit ELF file")
    program_headers, section_headers = struct.unpack_from("<QQ", cubin, 0x20)
    size_p, num_p, size_s, num_s = struct.unpack_from("<HHHH", cubin, 0x36)
    num_missing = max(program_headers + size_p * num_p, section_headers + size_s * num_s) - len(cubin)
    if num_missing > 1:
        raise GemmEvalError(f"not all of this cubin is there: its headers end {num_missing:,} bytes behind its end")
    return cubin + bytes(max(0, num_missing))


INSTRUCTION_BYTES = 16
"""Size of each instruction since compute capability 7.0."""

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
    """An instruction of machine code, or of PTX.

    Attributes:
        address: in bytes from the start of the kernel.
        guard: predicate that it is executed under, such as "@!P0"; empty: always.
        opcode: with its modifiers, such as "LDS.128".
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
        """True for a jump."""
        return self.name in _BRANCHES

    @property
    def is_end(self) -> bool:
        """True where the kernel, or the function, may end."""
        return self.name in _ENDS

    @property
    def may_fall_through(self) -> bool:
        """True where the next instruction may follow: all but jumps and ends without a condition."""
        has_condition = bool(self.guard) or self.target is None or "," in self.operands  # BRA P1, `(.L_x_1)
        return not (self.is_branch or self.is_end) or (has_condition and (self.is_branch or bool(self.guard)))


_CLASSES: dict[str, tuple[str, ...]] = {
    "tensor": ("HGMMA", "QGMMA", "HMMA"),
    "integer": (
        "LOP3", "LOP", "IADD3", "IADD", "VIADD", "SHF", "SHL", "SHR", "PRMT", "ISETP", "ICMP", "SEL", "FSEL", "LEA",
        "MOV", "IABS", "IMNMX", "VIMNMX", "FMNMX", "PLOP3", "P2R", "R2P", "FSETP", "HSETP2", "SGXT", "BMSK",
        "VABSDIFF4",
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

CLASSES = (*_CLASSES, "other")
"""Classes of instructions. `tensor` is HGMMA or QGMMA (one for a whole m64nNk16 or m64nNk32 in each of 4 warps) or HMMA
(m16n8k16); `imad` also moves and adds; `half` is for pairs of fp16 or bf16; `convert` has fp16 to fp32 by HADD2.F32
too; `copy` is from global memory, to registers or shared memory; `uniform` is of the uniform datapath; `control` has
the bookkeeping of diverged lanes too; `other` has what never does anything too (`@!PT LDS` before some LDGSTS)."""


def parse_sass(text: str) -> tuple[Instruction, ...]:
    """Return the instructions of the only kernel in what nvdisasm, cuobjdump or Triton wrote."""
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    waiting: list[str] = []
    for line in text.splitlines():
        if match := _INSTRUCTION.match(line):
            guard, opcode, operands = match.group("guard", "opcode", "operands")
            address = int(match["address"], 16) if match["address"] else INSTRUCTION_BYTES * len(instructions)
            if instructions and address <= instructions[-1].address:
                raise GemmEvalError(
                    f"an instruction at 0x{address:x} follows one at 0x{instructions[-1].address:x}: the code of one "
                    "kernel has rising addresses"
                )
            labels.update(dict.fromkeys(waiting, address))
            waiting.clear()
            instructions.append(Instruction(address, guard or "", opcode, operands.strip(), None))
        elif match := _LABEL.match(line):
            waiting.append(match[1])
    if not instructions:
        raise GemmEvalError("no instructions in what should be machine code as text")
    addresses = {one.address for one in instructions}
    return tuple(one._replace(target=_target(one, labels, addresses)) if one.is_branch else one for one in instructions)


def _target(branch: Instruction, labels: dict[str, int], addresses: set[int]) -> int | None:
    to = _TARGET.search(branch.operands)
    if to is None:  # a register says it
        return None
    name = to["label"] or to["triton"] or to["address"]
    target = int(name, 16) if to["address"] else labels.get(name)
    if target not in addresses:
        raise GemmEvalError(f"a branch goes to {one_line(name)}, which is not there")
    return target


def class_of(instruction: Instruction) -> str:
    """Return which of `CLASSES` an instruction belongs to."""
    if instruction.guard == _NEVER:
        return "other"
    if instruction.opcode.startswith("HADD2.F32"):  # adds nothing: one half of a pair becomes fp32
        return "convert"
    known = _CLASS_OF.get(instruction.name)
    return known or ("uniform" if instruction.name.startswith("U") else "other")


_PER_LANE_BRANCH = "BRA.U.ANY"  # back to an instruction that takes one lane's operands at a time


def find_main_loop(
    instructions: Sequence[Instruction], is_work: Callable[[Instruction], bool]
) -> tuple[Instruction, ...]:
    """Return what a warp issues in one steady iteration of the innermost loop that does (most of) the work.

    Of ways through the loop that is the longest: copies for a later iteration are taken to be made. Code that the
    compiler moved behind the loop is left out: there a warp spins on a barrier, or collects lanes that diverged. Loops
    over lanes (`BRA.U.ANY`) are gone through once: for one lane, or lanes with the same operands.
    """
    blocks = _Blocks(instructions)
    members = blocks.natural_loops()
    work: dict[int, int] = {}
    innermost: dict[int, bool] = {}
    for entry in members:  # inner ones first
        inner = [work[block] for block in members[entry] if block in work]
        own = (entry, *(block for block in members[entry] if block not in work))
        work[entry] = sum(inner) + sum(map(is_work, blocks.instructions_of(own)))
        innermost[entry] = work[entry] > 0 and not any(inner)
    candidates = [entry for entry in blocks.order_of_loops if innermost[entry]]
    if not candidates:
        raise GemmEvalError("no loop of this kernel does the work that was asked for")
    entry = max(candidates, key=work.__getitem__)
    return blocks.longest_way(entry, _all_blocks(entry, members))


def _all_blocks(entry: int, members: dict[int, list[int]]) -> set[int]:
    """Return the blocks of a loop and of all loops in it."""
    blocks, waiting = {entry}, [entry]
    while waiting:
        inside = members.get(waiting.pop(), [])
        blocks.update(inside)
        waiting += inside
    return blocks


class _Blocks:
    """Basic blocks, numbered in the order of their addresses; the first is the entry of the kernel."""

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        self._instructions = instructions
        self.order_of_loops: list[int] = []
        index = {instruction.address: i for i, instruction in enumerate(instructions)}
        starts = {0, len(instructions)}
        for i, instruction in enumerate(instructions):
            if instruction.target is not None:
                starts.add(index[instruction.target])
            if instruction.is_branch or instruction.is_end:
                starts.add(i + 1)
        self._starts = sorted(starts)
        number = {start: block for block, start in enumerate(self._starts)}
        num_blocks = len(self._starts) - 1
        self._after: list[tuple[int, ...]] = []
        for block in range(num_blocks):
            last = instructions[self._starts[block + 1] - 1]
            following = {number[index[last.target]]} if last.target is not None else set()
            if last.may_fall_through and block + 1 < num_blocks:
                following.add(block + 1)
            self._after.append(tuple(sorted(following)))
        self._order: list[int] = [0] if num_blocks else []  # blocks that can be reached
        reached = set(self._order)
        for block in self._order:
            fresh = [after for after in self._after[block] if after not in reached]
            self._order += fresh
            reached.update(fresh)
        self._before: list[list[int]] = [[] for _ in range(num_blocks)]
        for block in self._order:
            for after in self._after[block]:
                self._before[after].append(block)

    def instructions_of(self, blocks: Iterable[int]) -> list[Instruction]:
        return [self._instructions[i] for b in sorted(blocks) for i in range(self._starts[b], self._starts[b + 1])]

    def natural_loops(self) -> dict[int, list[int]]:
        """Return the loops by the one block that each is entered at, inner loops first.

        The blocks of a loop are those in it but in no loop inside it, and the entries of the loops inside it. Two loops
        have no block in common, or one lies in the other, so a block whose loop is known then stands for all of it.
        """
        first, last = self._depth_first()
        sources: dict[int, list[int]] = {}
        for block in self._order:
            if self._instructions[self._starts[block + 1] - 1].opcode == _PER_LANE_BRANCH:
                continue
            for entry in self._after[block]:
                if first[entry] <= first[block] <= last[entry]:
                    sources.setdefault(entry, []).append(block)
        outer = list(range(len(self._after)))
        members: dict[int, list[int]] = {}
        index_of = {block: index for index, block in enumerate(self._order)}
        begins: list[tuple[int, int]] = []  # of each loop: index of the first block that branches back, and the entry
        for entry in sorted(sources, key=first.__getitem__, reverse=True):
            for source in sources[entry]:
                body, waiting = {entry}, [_outermost(outer, source)]
                while waiting and first[entry] <= first[waiting[-1]] <= last[entry]:
                    if (block := waiting.pop()) not in body:
                        body.add(block)
                        waiting += [_outermost(outer, before) for before in self._before[block]]
                if waiting:  # there is a way to it past the entry: no natural loop
                    continue
                if entry not in members:
                    members[entry] = []
                    begins.append((index_of[source], entry))
                for block in body - {entry}:
                    outer[block] = entry
                    members[entry].append(block)
        self.order_of_loops = [entry for _, entry in sorted(begins)]
        return members

    def _depth_first(self) -> tuple[list[int], list[int]]:
        """Return the number of each block in a depth-first search, and the last one that it comes to by the block.

        They are -1 and -2 for blocks that it does not come to.
        """
        first, last = [-1] * len(self._after), [-2] * len(self._after)
        blocks: list[int] = []
        waiting = [(0, 0)] if self._after else []
        parent: list[int] = []
        while waiting:
            block, came_from = waiting.pop()
            if first[block] < 0:
                first[block] = last[block] = len(blocks)
                blocks.append(block)
                parent.append(came_from)
                waiting += [(after, block) for after in self._after[block]]
        for block, came_from in zip(reversed(blocks), reversed(parent), strict=True):
            last[came_from] = max(last[came_from], last[block])
        return first, last

    def longest_way(self, entry: int, loop: set[int]) -> tuple[Instruction, ...]:
        """Return the longest way from the loop's entry to the last branch back to it, forwards only."""
        last = max(block for block in loop if entry in self._after[block])
        ways = {entry: (self._size(entry), entry)}  # instructions so far, and the block before
        for block in sorted(inside for inside in loop if entry <= inside <= last):
            if block not in ways:  # it is come to from behind the loop only
                continue
            size = ways[block][0]
            for after in self._after[block]:
                if block < after and after in loop and (after not in ways or size + self._size(after) > ways[after][0]):
                    ways[after] = size + self._size(after), block
        if last not in ways:
            raise GemmEvalError("no way through the main loop goes forwards only")
        way = [last]
        while way[-1] != entry:
            way.append(ways[way[-1]][1])
        return tuple(self.instructions_of(way))

    def _size(self, block: int) -> int:
        return self._starts[block + 1] - self._starts[block]


def _outermost(outer: list[int], block: int) -> int:
    """Return the block that stands for a block; the path to it is halved for the next time."""
    while outer[block] != block:
        outer[block] = outer[outer[block]]
        block = outer[block]
    return block
