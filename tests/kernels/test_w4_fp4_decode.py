"""The kernels' own decoding of four-bit floats, compiled for this machine: every code, every byte of a scale."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemm_eval.kernels.families import WeightMode
from gemm_eval.kernels.layout import E2M1_VALUES, parse_activation, stored_values, to_kernel_order
from gemm_eval.kernels.registry import COMMON, SOURCES
from tests.oracle import fragments

COMPILER = shutil.which("g++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="no g++")

BEGIN, END = "// Scales of k16 step j of a block", "// One packed word to the operand"
HOST = """
typedef unsigned u32;
#define DEVICE static inline
struct GroupParams { u32 s0, s1; };
template <u32 mask, u32 magic> DEVICE u32 and_or(u32 q) { return (q & mask) | magic; }
template <u32 mask> DEVICE u32 select_bits(u32 a, u32 b) { return (a & mask) | (b & ~mask); }
DEVICE u32 __funnelshift_l(u32 low, u32 high, u32 by) { return high << by | low >> (32 - by); }
DEVICE u32 __byte_perm(u32 x, u32 y, u32 selector) {
  const unsigned long long all = (unsigned long long)y << 32 | x;
  u32 found = 0;
  for (int i = 0; i < 4; i++) found |= (u32)(all >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
  return found;
}
DEVICE u32 low_twice(u32 word) { return (word & 0xffff) * 0x10001u; }
DEVICE u32 high_twice(u32 word) { return (word >> 16) * 0x10001u; }
"""
RUN = """
extern "C" void spread(const u32* words, u32 (*found)[4], int num) {
  for (int i = 0; i < num; i++) spread_fp4(words[i], found[i]);
}
extern "C" void scales(const u32 (*stored)[2], u32 (*found)[4][2], int num) {
  for (int i = 0; i < num; i++)
    for (int j = 0; j < 4; j++) {
      const GroupParams p = params_of_step(stored[i][0], stored[i][1], j);
      found[i][j][0] = p.s0, found[i][j][1] = p.s1;
    }
}
"""


@pytest.fixture(
    params=[(mode, activation) for mode in ("mxfp4", "nvfp4") for activation in ("fp16", "bf16")], ids="-".join
)
def decoder(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str, ctypes.CDLL]:
    mode, activation = request.param
    text = (SOURCES / COMMON).read_text("utf-8")
    source, library = tmp_path / "decode.cc", tmp_path / "decode.so"
    source.write_text(HOST + text[text.index(BEGIN) : text.index(END)] + RUN)
    macros = [f"-DMODE={int(WeightMode[mode.upper()])}", f"-DACT_BF16={int(activation == 'bf16')}"]
    subprocess.run([str(COMPILER), "-shared", "-fPIC", "-O1", *macros, "-o", library, source], check=True)
    return mode, activation, ctypes.CDLL(str(library))


def values_of(registers: Any, activation: str) -> Any:
    """Low and high halves, float64 [..., 2]."""
    halves = np.ascontiguousarray(registers).view(np.uint16).reshape(*registers.shape, 2)
    return fragments.bf16_values(halves) if activation == "bf16" else halves.view(np.float16).astype(np.float64)


def test_every_code_in_every_place(decoder: tuple[str, str, ctypes.CDLL]) -> None:
    _, activation, library = decoder
    natural = np.random.default_rng(1).integers(0, 2**32, 4096, dtype=np.uint32)
    words = to_kernel_order(natural, parse_activation(activation))
    found = np.zeros((len(words), 4), np.uint32)
    library.spread(words.ctypes.data_as(ctypes.c_void_p), found.ctypes.data_as(ctypes.c_void_p), len(words))

    unit = 2.0**-126 if activation == "bf16" else 2.0**-14
    for i in range(4):  # register: k + 8 (i / 2), column g + 8 (i % 2); halves: k, k + 1
        for p in range(2):
            codes = natural >> (16 * p + 8 * (i // 2) + 4 * (i % 2)) & 15
            expected = np.array(E2M1_VALUES)[codes] * unit
            assert set(codes.tolist()) == set(range(16))
            np.testing.assert_array_equal(values_of(found, activation)[:, i, p], expected)
            np.testing.assert_array_equal(np.signbit(values_of(found, activation)[:, i, p]), codes >= 8)


def test_products_are_exact_for_every_scale(decoder: tuple[str, str, ctypes.CDLL]) -> None:
    """Each byte that packing stores, at each of its places; its product with each code is exact in 16 bits."""
    mode, activation, library = decoder
    known = WeightMode[mode.upper()]
    every = stored_bytes(mode, activation)
    of_block = 64 // known.group_sizes[0]
    stored = np.random.default_rng(2).choice(every, (2048, 2 * of_block)).astype(np.uint8)
    assert all(set(column.tolist()) == set(every.tolist()) for column in stored.T)
    words = np.zeros((len(stored), 8), np.uint8)
    words[:, : 2 * of_block] = stored
    found = np.zeros((len(stored), 4, 2), np.uint32)
    library.scales(words.ctypes.data_as(ctypes.c_void_p), found.ctypes.data_as(ctypes.c_void_p), len(stored))

    unit = (2.0**-126 if activation == "bf16" else 2.0**-14) * 2.0**7
    meant = stored_values(stored, known, parse_activation(activation))
    for j in range(4):
        for h in range(2):
            expected = meant[:, j * of_block // 4 * 2 + h]
            scales = values_of(found, activation)[:, j, h]
            np.testing.assert_array_equal(scales[:, 0], scales[:, 1])
            np.testing.assert_array_equal(scales[:, 0] * unit, expected)
            for code in E2M1_VALUES:
                exact = expected * code / 2.0**7
                bits = fragments.bf16_bits(exact) if activation == "bf16" else exact.astype(np.float16)
                held = fragments.bf16_values(bits) if activation == "bf16" else bits.astype(np.float64)
                np.testing.assert_array_equal(held, exact)


def stored_bytes(mode: str, activation: str) -> Any:
    """All bytes of scales of groups that matter."""
    if mode == "mxfp4":
        return np.arange(6, 31) << 2 if activation == "fp16" else np.arange(121, 255)
    return np.arange((13 << 3), (30 << 3) + 7)
