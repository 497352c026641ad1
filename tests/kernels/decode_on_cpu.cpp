// What CUDA has and C++ has not, around the decoder, which the test cuts out of the kernels' common header.
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

#include "decode.cuh"

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
