"""What the W4A16 kernels do with a packed weight, lane by lane, on numpy: slow truth for layout and arithmetic.

Written from gemm_eval/kernels/KERNELS.md, the dequantization of cuda/common.cuh and the fragment layouts of the PTX ISA
(mma.m16n8k16 with 16-bit types; wgmma.m64nNk16 with A in registers). Nothing of gemm_eval/kernels is imported.

A register of a warp is a uint32 [32], one value for each lane. Pairs of 16-bit values are handled as float64 [32, 2],
with one rounding to the type after each instruction, as the hardware does.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

U32 = npt.NDArray[np.uint32]
F64 = npt.NDArray[np.float64]
Registers = tuple[U32, U32, U32, U32]

LANE = np.arange(32)
ROW, TIG = LANE // 4, LANE % 4  # "groupID" and "threadID_in_group" of the PTX ISA
COLUMN, GROUP, GROUP_ZERO, MXFP4, NVFP4 = 0, 1, 2, 3, 4

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
# Where a half of a word has the four bits of a weight, sign first, by whether activations are bf16 and by register of
# the operand; -1 - b: bit b of the other half.
FP4_BITS = {
    False: ((15, 11, 10, 9), (7, 3, 2, 1), (8, 14, 13, 12), (0, 6, 5, 4)),
    True: ((15, 8, 7, 6), (11, 4, 3, 2), (9, -15, 1, 0), (5, -11, -14, -13)),
}
FP4_UNIT = {False: 2.0**-14, True: 2.0**-126}  # of weights in registers


class Packed(NamedTuple):
    """Packed weights, by the names of KERNELS.md."""

    qweight: U32
    scales: npt.NDArray[Any]
    N: int
    K: int
    mode: int
    group_size: int
    is_bf16: bool
    unit: float  # of stored scales


class Params(NamedTuple):
    """GroupParams of common.cuh."""

    s0: U32
    s1: U32
    b0: U32
    b1: U32


UNITS = {False: 2.0**24, True: 2.0**16}
"""What sums of mode GROUP lack in the end, by whether activations are bf16."""

FP4_SUM_UNIT = 2.0**7
"""What sums of the fp4 modes lack."""


# ---- 16-bit types --------------------------------------------------------------------------------------------------


def bf16_bits(values: npt.NDArray[Any]) -> npt.NDArray[np.uint16]:
    """Round to bf16, nearest even; values that fp32 holds."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    low, high = bits & 0xFFFF, bits >> 16
    is_up = (low > 0x8000) | ((low == 0x8000) & (high % 2 == 1))
    rounded: npt.NDArray[np.uint16] = (high + is_up).astype(np.uint16)
    return rounded


def bf16_values(bits: npt.NDArray[np.uint16]) -> F64:
    return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def pairs(register: U32, is_bf16: bool) -> F64:
    """Both halves of a register, low half first: [32] to [32, 2]."""
    halves = np.ascontiguousarray(register).view(np.uint16).reshape(32, 2)
    return bf16_values(halves) if is_bf16 else halves.view(np.float16).astype(np.float64)


def as_register(values: F64, is_bf16: bool) -> U32:
    """The inverse of `pairs`, with rounding."""
    bits = bf16_bits(values) if is_bf16 else values.astype(np.float16).view(np.uint16)
    register: U32 = np.ascontiguousarray(bits).view(np.uint32)[:, 0]  # little-endian, as a GPU is
    return register


def fma2(a: U32, b: U32, c: U32, is_bf16: bool) -> U32:
    # All that is added here is exact in float64, so this rounds once. A pure product has c = -0.
    x, y, z = (pairs(r, is_bf16) for r in (a, b, c))
    return as_register(x * y + z, is_bf16)


def everywhere(bits: int) -> U32:
    return np.full(32, bits, np.uint32)


def both_halves(word: U32) -> tuple[U32, U32]:
    """The low half twice, and the high half twice."""
    twice = np.uint32(0x10001)
    return (word & np.uint32(0xFFFF)) * twice, (word >> np.uint32(16)) * twice


# ---- dequantization ------------------------------------------------------------------------------------------------


def make_params(scale_word: U32, bias_word: U32 | None, mode: int, is_bf16: bool) -> Params:
    """Spread a lane's words over both halves: low halves are for column g, high halves for g + 8."""
    s0, s1 = both_halves(scale_word)
    if mode == GROUP:
        # scales as they meet u 2^-24 and 16 u 2^-24 (bf16: 2^-133), and -8 times that
        to_s0, to_s1, to_b = (0x7A007A00, 0x78007800, 0xB900B900) if is_bf16 else (0x3C003C00, 0x2C002C00, 0x80088008)
        factors = ((s0, to_s0), (s1, to_s1), (s0, to_b), (s1, to_b))
        return Params(*(fma2(s, everywhere(bits), everywhere(0x80008000), is_bf16) for s, bits in factors))
    if bias_word is not None:
        return Params(s0, s1, *both_halves(bias_word))
    b0, b1 = (0xC308C308, 0xC308C308) if is_bf16 else (0xE408E408, 0xD480D480)  # -136; -1032 and -72
    return Params(s0, s1, everywhere(b0), everywhere(b1))


def dequantize(q: U32, params: Params, mode: int, is_bf16: bool) -> Registers:
    """One packed word of each lane to the operand registers of a k16 step."""
    if mode == GROUP:
        low, high = q, q >> np.uint32(8)
        bare = [(word & np.uint32(mask)) for word in (low, high) for mask in (0x000F000F, 0x00F000F0)]
        weights = [
            fma2(bare[i], (params.s0, params.s1)[i % 2], (params.b0, params.b1)[i % 2], is_bf16) for i in range(4)
        ]
        return weights[0], weights[1], weights[2], weights[3]
    if is_bf16:
        shifts, masks, magic = (0, 4, 8, 12), (0x000F000F,) * 2, 0x43004300
        factors = [everywhere(0x3F803F80)] * 2  # 1
    else:
        shifts, masks, magic = (0, 0, 8, 8), (0x000F000F, 0x00F000F0), 0x64006400
        factors = [everywhere(0x3C003C00), everywhere(0x2C002C00)]  # 1 and 1 / 16
    raw = [((q >> np.uint32(shifts[i])) & np.uint32(masks[i % 2])) | np.uint32(magic) for i in range(4)]
    added = [fma2(raw[i], factors[i % 2], (params.b0, params.b1)[i % 2], is_bf16) for i in range(4)]
    if mode != COLUMN:
        negative_zero = everywhere(0x80008000)
        added = [fma2(added[i], (params.s0, params.s1)[i % 2], negative_zero, is_bf16) for i in range(4)]
    return added[0], added[1], added[2], added[3]


def fp4_codes(q: U32, is_bf16: bool) -> list[npt.NDArray[np.int64]]:
    """Codes of e2m1 of each lane's word, [32, 2] for each register of the operand."""
    halves = np.stack([q & np.uint32(0xFFFF), q >> np.uint32(16)], axis=1).astype(np.int64)
    found = []
    for places in FP4_BITS[is_bf16]:
        bits = [(halves if b >= 0 else halves[:, ::-1]) >> (b if b >= 0 else -1 - b) & 1 for b in places]
        found.append(bits[0] * 8 + bits[1] * 4 + bits[2] * 2 + bits[3])
    return found


def fp4_scale(stored: npt.NDArray[Any], mode: int, is_bf16: bool) -> U32:
    """Bytes of scales as the 16-bit numbers that weights are multiplied with, in both halves."""
    byte = stored.astype(np.uint32)
    if mode == MXFP4:
        bits = byte << np.uint32(7) if is_bf16 else byte << np.uint32(8)
    else:
        bits = np.uint32(0x7000) | byte << np.uint32(4) if is_bf16 else byte << np.uint32(7)
    both: U32 = (bits * np.uint32(0x10001)).astype(np.uint32)
    return both


def fp4_operand(packed: Packed, nb: int, kb: int, j: int, warp: int) -> Registers:
    """Codes times their unit, times the scale, rounded once."""
    group = 16 * j // packed.group_size
    stored = packed.scales[nb, kb, 8 * warp + ROW, 2 * group : 2 * group + 2]
    scales = [fp4_scale(stored[:, h], packed.mode, packed.is_bf16) for h in range(2)]
    registers = []
    for i, codes in enumerate(fp4_codes(packed.qweight[nb, kb, warp, :, j], packed.is_bf16)):
        values = np.where(codes >= 8, -1.0, 1.0) * E2M1[codes % 8] * FP4_UNIT[packed.is_bf16]
        bare = as_register(values, packed.is_bf16)
        registers.append(fma2(bare, scales[i % 2], everywhere(0x80008000), packed.is_bf16))
    return registers[0], registers[1], registers[2], registers[3]


def operand(packed: Packed, nb: int, k16: int, warp: int) -> Registers:
    """Operand registers of a warp for k = 16 k16 and up, as it would load and make them."""
    kb, j = divmod(k16, 4)
    if packed.mode in (MXFP4, NVFP4):
        return fp4_operand(packed, nb, kb, j, warp)
    scale_word, bias_word = np.zeros(32, np.uint32), None
    if packed.mode != COLUMN:
        words = packed.scales[nb, 16 * k16 // packed.group_size].view(np.uint32)
        pair = 8 * warp + ROW
        scale_word = words[pair] if packed.mode == GROUP else words[pair, 0]
        bias_word = words[pair, 1] if packed.mode == GROUP_ZERO else None
    params = make_params(scale_word, bias_word, packed.mode, packed.is_bf16)
    return dequantize(packed.qweight[nb, kb, warp, :, j], params, packed.mode, packed.is_bf16)


# ---- tensor core ---------------------------------------------------------------------------------------------------


def a_matrix(registers: Registers, is_bf16: bool) -> F64:
    """A [16, 16] of m16n8k16: a_i, two in a register, is at row g + 8 ((i / 2) % 2), k = 2 t + i % 2 + 8 (i / 4)."""
    matrix = np.full((16, 16), np.nan)
    for i in range(8):
        matrix[ROW + 8 * ((i // 2) % 2), 2 * TIG + i % 2 + 8 * (i // 4)] = pairs(registers[i // 2], is_bf16)[:, i % 2]
    return matrix


def b_registers(tokens: F64, is_bf16: bool) -> tuple[U32, U32]:
    """B of m16n8k16 from 8 rows of activations [8, 16]: b_i is at k = 2 t + i % 2 (+ 8 for i >= 2), column g."""
    low, high = (np.stack([tokens[ROW, 2 * TIG + 8 * r + p] for p in range(2)], axis=1) for r in range(2))
    return as_register(low, is_bf16), as_register(high, is_bf16)


def b_matrix(registers: tuple[U32, U32], is_bf16: bool) -> F64:
    """B [16, 8] of the registers."""
    matrix = np.full((16, 8), np.nan)
    for i in range(4):
        matrix[2 * TIG + i % 2 + 8 * (i // 2), ROW] = pairs(registers[i // 2], is_bf16)[:, i % 2]
    return matrix


def loaded_b(tokens: F64, is_bf16: bool) -> F64:
    return b_matrix(b_registers(tokens, is_bf16), is_bf16)


def c_fragment(matrix: F64) -> F64:
    """C [16, 8] as the accumulators of each lane [32, 4]: c_i is at row g (+ 8 for i >= 2), column 2 t + i % 2."""
    return np.stack([matrix[ROW + 8 * (i // 2), 2 * TIG + i % 2] for i in range(4)], axis=1)


def finish(fragment: F64, packed: Packed, nb: int, warp: int) -> F64:
    """The epilogue: in mode COLUMN, c_0 and c_1 have the scale of column g, c_2 and c_3 that of g + 8."""
    if packed.mode in (MXFP4, NVFP4):
        return fragment * (FP4_SUM_UNIT * packed.unit)
    if packed.mode == GROUP:
        return fragment * (UNITS[packed.is_bf16] * packed.unit)
    if packed.mode != COLUMN:
        return fragment
    stored = packed.scales[64 * nb + 16 * warp + np.stack([ROW, ROW, ROW + 8, ROW + 8], axis=1)]
    return fragment * (bf16_values(stored) if packed.is_bf16 else stored.astype(np.float64))


def padded_tokens(a: F64, packed: Packed, multiple: int) -> F64:
    """Activations with zeros up to whole tiles of tokens and whole blocks of K."""
    num_tokens, K = a.shape
    shape = -(-num_tokens // multiple) * multiple, 64 * packed.qweight.shape[1]
    result = np.zeros(shape)
    result[:num_tokens, :K] = a
    return result


def mma_gemm(a: F64, packed: Packed) -> F64:
    """C [M, N] of activations [M, K], by mma.sync.m16n8k16: weights are its A, 8 tokens its B."""
    tokens = padded_tokens(a, packed, 8)
    num_n = packed.qweight.shape[0]
    c = np.full((len(tokens), 64 * num_n), np.nan)
    b = {
        (first, step): loaded_b(tokens[first : first + 8, 16 * step : 16 * step + 16], packed.is_bf16)
        for first in range(0, len(tokens), 8)
        for step in range(tokens.shape[1] // 16)
    }
    for nb in range(num_n):
        for warp in range(4):
            weights = [
                a_matrix(operand(packed, nb, step, warp), packed.is_bf16) for step in range(tokens.shape[1] // 16)
            ]
            for first in range(0, len(tokens), 8):
                total = np.zeros((32, 4))
                for step, matrix in enumerate(weights):
                    total += c_fragment(matrix @ b[first, step])
                total = finish(total, packed, nb, warp)
                for i in range(4):
                    c[first + 2 * TIG + i % 2, 64 * nb + 16 * warp + ROW + 8 * (i // 2)] = total[:, i]
    return c[: len(a), : packed.N]


def wgmma_gemm(a: F64, packed: Packed) -> F64:
    """C [M, N] by wgmma.m64nNk16: a warpgroup's registers are 64 columns, tokens come from shared memory as they are.

    Warp w of the four holds rows 16 w .. 16 w + 15 of A and D, each as in m16n8k16. Accumulator d_i of a lane is at
    row 16 w + g + 8 ((i / 2) % 2), token 8 (i / 4) + 2 t + i % 2.
    """
    tokens = padded_tokens(a, packed, 8)
    num_n, num_d = packed.qweight.shape[0], len(tokens) // 2
    c = np.full((len(tokens), 64 * num_n), np.nan)
    for nb in range(num_n):
        d = np.zeros((4, 32, num_d))
        for step in range(tokens.shape[1] // 16):
            warps = [a_matrix(operand(packed, nb, step, warp), packed.is_bf16) for warp in range(4)]
            product = np.concatenate(warps) @ tokens[:, 16 * step : 16 * step + 16].T
            for warp in range(4):
                for i in range(num_d):
                    d[warp, :, i] += product[16 * warp + ROW + 8 * ((i // 2) % 2), 8 * (i // 4) + 2 * TIG + i % 2]
        for warp in range(4):
            scaled = [finish(d[warp, :, i : i + 4], packed, nb, warp) for i in range(0, num_d, 4)]
            for i in range(num_d):
                columns = 64 * nb + 16 * warp + ROW + 8 * ((i // 2) % 2)
                c[8 * (i // 4) + 2 * TIG + i % 2, columns] = scaled[i // 4][:, i % 4]
    return c[: len(a), : packed.N]
