"""PTX: its kernels, their instructions, and what each of them is.

PTX has no registers and no schedule yet, and not all of its instructions become one of the machine: moves vanish,
64-bit arithmetic doubles, loops are unrolled. What it copies and multiplies is what the machine will.
"""

import math
import re
from collections.abc import Iterator

from gemm_eval.autotune.asm.card import ScoreCard, check_instructions, check_kernels, check_name
from gemm_eval.device import INSTRUCTION_BYTES, Instruction
from gemm_eval.errors import InvalidInputError
from gemm_eval.models.gpu.triton import MmaCount
from gemm_eval.words import one_line, shown

# Nothing here goes back over what it has passed, nor starts again within it: time is in proportion to the text. Hence
# the possessive repeats, and spaces at the begin of a line without line ends among them.
_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.S)
_TARGET = re.compile(r"^[ \t]*+\.target\s++(sm_\w++)", re.M)
_ENTRY = re.compile(r"\.entry\s++([\w$%]++)([^.{;]*+(?:\.(?!entry\b)[^.{;]*+)*+)\{")
_STATEMENT_OF_MODULE = re.compile(r"[^;{}]++")
_SHARED = re.compile(r"^[ \t]*+(?:\.(?:visible|weak|common)\s++)?\.shared\b", re.M)  # not .extern
_ALIGNMENT = re.compile(r"\.align\s++\d++")
_VARIABLE = re.compile(r"\.[a-z]*+(\d{1,4})\s++[\w$%]++((?:\[\d++\])*+)")
_EXTENT = re.compile(r"\[(\d++)\]")
_SPACE = re.compile(r"\s*+")
_LABEL = re.compile(r"([\w$%]++)\s*+:(?!:)")
_STATEMENT = re.compile(r"(?:@(!?[%\w$]++)\s++)?+([a-z][\w.:]*+)\s*+(.*)", re.S)
_MAX_SCOPES = 64  # one within the other: inline assembly has one or two
_MAX_DIGITS = 10
_MAX_VARIABLE_BYTES = 1 << 40
_BRANCHES = ("bra",)

_TYPE_BITS = {
    "f16": 16, "bf16": 16, "tf32": 32, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1, "f64": 64,
    "f32": 32, "s32": 32,
}  # fmt: skip
_SHAPE = re.compile(r"\.m(\d{1,4})n(\d{1,4})k(\d{1,4})\b")
_A_IN_REGISTERS = re.compile(r"\{[^}]*+\}\s*+,\s*+\{")
_WIDTH = re.compile(r"\.[busf](8|16|32|64|128)\b")
_VECTOR = re.compile(r"\.[vx](\d)\b")
_COPY_BYTES = re.compile(r"\],\s*+(0x[\da-f]{1,2}|\d{1,2})\b", re.I)
_COPY_SIZES = {4, 8, 16}
_HALF = re.compile(r"\.b?f16(x2)?\b")
_SINGLE = re.compile(r"\.f(32|64)(x2)?\b")

_KINDS = {
    name: kind
    for kind, names in {
        "tensor": ("mma",),
        "ldmatrix": ("ldmatrix",),
        "store_shared": ("stmatrix",),
        "atomic": ("atom", "red", "multimem"),
        "barrier": ("bar", "barrier", "mbarrier"),
        "wait": ("fence", "membar", "griddepcontrol", "nanosleep"),
        "branch": ("bra", "brx", "ret", "exit", "call", "trap"),
        "convert": ("cvt",),
        "special": ("ex2", "lg2", "rcp", "sqrt", "rsqrt", "sin", "cos", "tanh", "div", "rem"),
        "integer": (
            "setp", "set", "selp", "min", "max", "and", "or", "xor", "not", "lop3", "shl", "shr", "shf", "prmt", "bfe",
            "bfi", "popc", "clz", "brev", "bfind", "szext", "bmsk", "sad", "cnot",
        ),
    }.items()
    for name in names
}  # fmt: skip
_ARITHMETIC = {"add", "sub", "mul", "mad", "fma", "neg", "abs", "addc", "subc", "madc", "mul24", "mad24", "dp4a"}
_MULTIPLIES = {"mul", "mad", "madc", "mul24", "mad24", "dp4a"}


def split_ptx(text: str) -> Iterator[tuple[ScoreCard, tuple[Instruction, ...]]]:
    """Yield cards without counts, and the instructions, numbered as machine code, of a module's kernels."""
    text = _COMMENT.sub(lambda comment: " " + "\n" * comment[0].count("\n"), text)
    target = _TARGET.search(text)
    entries, module_smem_bytes, at = [], 0, 0
    while entry := _ENTRY.search(text, at):
        module_smem_bytes += _smem_of_module(text[at : entry.start()])
        body = _Body(text, entry.end())
        entries.append((entry[1], entry[2], body))
        check_kernels(len(entries))
        at = body.end
    module_smem_bytes += _smem_of_module(text[at:])
    for name, words, body in entries:
        header = words.rpartition(")")[2]
        registers = _numbers(header, ".maxnreg")
        local, shared = (
            sum(_size_of(line) for line in body.variables if line.startswith(space)) for space in (".local", ".shared")
        )
        card = ScoreCard(
            check_name(name), target[1] if target else None, "ptx",
            _threads(header, ".reqntid") or _threads(header, ".maxntid"), None, registers[0] if registers else None,
            local, module_smem_bytes + shared,
        )  # fmt: skip
        yield card, body.resolved()


def _smem_of_module(text: str) -> int:
    """Return the shared memory that a part of a module without kernels declares, in bytes."""
    matches = (_SHARED.search(statement[0]) for statement in _STATEMENT_OF_MODULE.finditer(text))
    return sum(_size_of(match.string[match.start() :]) for match in matches if match)


def _numbers(header: str, name: str) -> list[int]:
    """Return the numbers after a directive, up to three."""
    match = re.search(rf"{re.escape(name)}\s++(\d[\d,\s]*+)", header)
    if match is None:
        return []
    words = match[1].replace(",", " ").split()
    if len(words) > 3 or any(len(word) > _MAX_DIGITS for word in words):
        raise InvalidInputError(f"{name} takes up to three numbers, not {one_line(match[1])}")
    return [int(word) for word in words]


def _threads(header: str, name: str) -> int | None:
    numbers = _numbers(header, name)
    if 0 in numbers:
        raise InvalidInputError(f"{name} must not be 0")
    return math.prod(numbers) if numbers else None


def _size_of(declaration: str) -> int:
    """Return the bytes of a variable such as ".shared .align 16 .b8 name[1024]"."""
    match = _VARIABLE.search(_ALIGNMENT.sub("", declaration))
    if match is None:
        return 0
    size = int(match[1]) // 8
    for extent in _EXTENT.finditer(match[2]):
        is_number = len(extent[1]) <= _MAX_DIGITS
        size *= int(extent[1]) if is_number else 0
        if not is_number or size > _MAX_VARIABLE_BYTES:
            raise InvalidInputError(f"a variable larger than any memory: {one_line(declaration)}")
    return size


class _Body:
    """The statements between the braces of a kernel; braces inside are scopes of names, labels included."""

    def __init__(self, text: str, start: int) -> None:
        self.variables: list[str] = []
        self._instructions: list[tuple[Instruction, tuple[int, ...]]] = []
        self._labels: dict[tuple[tuple[int, ...], str], int] = {}
        self.end = self._read(text, start)

    def _read(self, text: str, at: int) -> int:
        scope: tuple[int, ...] = (0,)
        num_scopes = 1
        while scope:
            at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
            if text.startswith("{", at):
                scope, num_scopes, at = (*scope, num_scopes), num_scopes + 1, at + 1
                if len(scope) > _MAX_SCOPES:
                    raise InvalidInputError(
                        f"line {_line_of(text, at)}: more than {_MAX_SCOPES} braces, one in another"
                    )
            elif text.startswith("}", at):
                scope, at = scope[:-1], at + 1
            elif label := _LABEL.match(text, at):
                self._labels[scope, label[1]] = INSTRUCTION_BYTES * len(self._instructions)
                check_instructions(len(self._labels))  # a module has no more of these than of those
                at = label.end()
            else:
                mark = "\n" if text.startswith((".loc", ".file"), at) else ";"
                end = text.find(mark, at)
                if end < 0:
                    raise InvalidInputError("this PTX ends inside a kernel")
                line = text[at:end].rstrip()
                if not self._add(line, scope):
                    raise InvalidInputError(f"line {_line_of(text, at)} is no PTX: {shown(line)}")
                at = end + 1
        return at

    def _add(self, line: str, scope: tuple[int, ...]) -> bool:
        """Keep a statement; return whether it may be PTX."""
        if line.startswith((".local", ".shared")):
            self.variables.append(line)
        elif match := _STATEMENT.fullmatch(line):
            guard = f"@{match[1]}" if match[1] else ""
            address = INSTRUCTION_BYTES * len(self._instructions)
            self._instructions.append((Instruction(address, guard, match[2], match[3], None), scope))
        else:
            return not line or line.startswith(".")
        return True

    def resolved(self) -> tuple[Instruction, ...]:
        """Return all instructions, branches with their targets, except a target at the very end of a kernel."""
        return tuple(
            one._replace(target=self._target(one.operands, scope)) if one.name in _BRANCHES else one
            for one, scope in self._instructions
        )

    def _target(self, name: str, scope: tuple[int, ...]) -> int | None:
        for depth in range(len(scope), 0, -1):
            if (address := self._labels.get((scope[:depth], name))) is not None:
                return address if address < INSTRUCTION_BYTES * len(self._instructions) else None
        raise InvalidInputError(f"a branch goes to {one_line(name)}, which is not there")


def _line_of(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def kind_of(instruction: Instruction) -> str:
    """Return the field of `OpCounts` that counts it."""
    name, opcode = instruction.name, instruction.opcode
    if name in {"wgmma", "tcgen05", "wmma"}:
        if ".mma" in opcode:
            return "tensor"
        return "ldmatrix" if name == "wmma" else "wait"
    if name == "cp":
        return _copy_kind(opcode)
    if name in {"ld", "ldu", "st"}:
        space = next((space for space in ("shared", "local") if f".{space}" in opcode), "global")
        is_constant = ".param" in opcode or ".const" in opcode
        return "other" if is_constant else f"{'store' if name == 'st' else 'load'}_{space}"
    if name == "bar" and ".warp" in opcode:
        return "wait"
    if kind := _KINDS.get(name):
        return "integer" if kind == "special" and not _SINGLE.search(opcode) and not _HALF.search(opcode) else kind
    if name not in _ARITHMETIC:
        return "other"
    if _HALF.search(opcode):
        return "half"
    if _SINGLE.search(opcode):
        return "single"
    return "imad" if name in _MULTIPLIES else "integer"


def _copy_kind(opcode: str) -> str:
    if "commit_group" in opcode or "wait_group" in opcode:
        return "wait"
    if "mbarrier.arrive" in opcode:
        return "barrier"
    if opcode.startswith("cp.reduce"):
        return "atomic"
    if ".bulk" in opcode:
        return "store_global" if ".global.shared" in opcode else "tma"
    return "cp_async"


def width_of(instruction: Instruction) -> int | None:
    """Return bytes that one lane loads or stores, or None for a bulk copy."""
    opcode = instruction.opcode
    if instruction.name == "cp":
        if ".bulk" in opcode:
            return None
        size = _COPY_BYTES.search(instruction.operands)
        num_bytes = int(size[1], 16 if size[1][:2] in {"0x", "0X"} else 10) if size else 0
        if num_bytes not in _COPY_SIZES:
            raise InvalidInputError(f"{opcode} copies 4, 8 or 16 bytes, not as in: {one_line(instruction.operands)}")
        return num_bytes
    vector = _VECTOR.search(opcode)
    count = int(vector[1]) if vector else 1
    if instruction.name in {"ldmatrix", "stmatrix"}:
        return 4 * count
    width = _WIDTH.search(opcode)
    return int(width[1]) // 8 * count if width else None


def is_mma_wait(instruction: Instruction) -> bool:
    """Return whether it waits until all wgmma before are done."""
    return instruction.opcode.startswith("wgmma.wait_group") and instruction.operands == "0"


def is_copy_wait(instruction: Instruction) -> bool:
    """Return whether it waits for cp.async."""
    return instruction.opcode.startswith("cp.async.wait")


def mma_of(instruction: Instruction) -> MmaCount | None:
    """Return a tensor-core instruction's shape; None where only a descriptor says it."""
    shape = _SHAPE.search(instruction.opcode)
    if shape is None:
        return None
    types = [word for word in instruction.opcode.split(".") if word in _TYPE_BITS]
    is_wmma = instruction.name == "wmma"
    if len(types) < 2:
        raise InvalidInputError(f"{one_line(instruction.opcode)} has no types of operands")
    bits = 16 if is_wmma and len(types) == 2 else _TYPE_BITS[types[1]]  # d and c only: a and b are fp16
    in_registers = instruction.name != "wgmma" or bool(_A_IN_REGISTERS.match(instruction.operands))
    return MmaCount(int(shape[1]), int(shape[2]), int(shape[3]), bits, in_registers, 1)
