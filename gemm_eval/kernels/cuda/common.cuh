// What all W4A16 kernels share. See KERNELS.md for the packed layout. A kernel is compiled for one variant:
//   ACT_BF16  0: fp16 activations, 1: bf16
//   MODE      0: scale a column, 1: scale a group, 2: scale and zero a group, 3: MXFP4, 4: NVFP4
//   GROUP     k that a row of scales is for: those of a group (32, 64, 128); 0 in mode 0; 64 in modes 3 and 4, where a
//             row has the scales of two groups of 32 or four of 16
// No headers: NVRTC finds everything here on any machine.
typedef unsigned int u32;
typedef unsigned long long u64;
typedef unsigned short u16;

#define DEVICE __device__ __forceinline__

typedef u16 act_t;  // bits of an activation
#if ACT_BF16
#define MMA_TYPE "bf16"
#else
#define MMA_TYPE "f16"
#endif

// ---- two-wide arithmetic on packed pairs -------------------------------------------------------------------------

DEVICE u32 fma2(u32 a, u32 b, u32 c) {
  u32 d;
#if ACT_BF16
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
#else
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
#endif
  return d;
}

DEVICE u32 mul2(u32 a, u32 b) {
#if ACT_BF16
  return fma2(a, b, 0x80008000u);  // -0: sm_80 has no mul.bf16x2
#else
  u32 d;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
#endif
}

DEVICE u32 add2(u32 a, u32 b) {
#if ACT_BF16
  return fma2(a, 0x3f803f80u, b);  // 1.0: sm_80 has no add.bf16x2
#else
  u32 d;
  asm("add.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
#endif
}

template <u32 mask, u32 magic>
DEVICE u32 and_or(u32 q) {  // (q & mask) | magic, one LOP3
  u32 d;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(q), "n"(mask), "n"(magic));
  return d;
}

template <u32 mask>
DEVICE u32 select_bits(u32 a, u32 b) {  // (a & mask) | (b & ~mask), one LOP3
  u32 d;
  asm("lop3.b32 %0, %1, %2, %3, 0xe4;" : "=r"(d) : "r"(a), "r"(b), "n"(mask));
  return d;
}

DEVICE u32 pack2(float lo, float hi) {  // lo in the low half
  u32 d;
#if ACT_BF16
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
#else
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(hi), "f"(lo));
#endif
  return d;
}

DEVICE act_t to_act(float x) {
  act_t d;
#if ACT_BF16
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(d) : "f"(x));
#else
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(d) : "f"(x));
#endif
  return d;
}

DEVICE float to_float(act_t x) {
#if ACT_BF16
  return __uint_as_float((u32)x << 16);
#else
  float d;
  asm("cvt.f32.f16 %0, %1;" : "=f"(d) : "h"(x));
  return d;
#endif
}

DEVICE float low_float(u32 pair) {
#if ACT_BF16
  return __uint_as_float(pair << 16);
#else
  return to_float((act_t)(pair & 0xffffu));
#endif
}

DEVICE float high_float(u32 pair) {
#if ACT_BF16
  return __uint_as_float(pair & 0xffff0000u);
#else
  return to_float((act_t)(pair >> 16));
#endif
}

// ---- dequantization ----------------------------------------------------------------------------------------------

// Mode 1: the bits of u alone are a subnormal number, u units of 2^-24 (fp16) or 2^-133 (bf16); those of 16 u, 16 times
// that. One fused multiply-add makes (u - 8) * scale of it, rounded once, where scales are brought to the other end of
// the range: in fp16 they are stored so (KERNELS.md), in bf16 multiplied. What the sums lack in the end is UNIT.
// Modes 3, 4: weights and scales are both at an end of the range, and their product, which is exact, is in the middle.
// Otherwise: u stands below a power of 2 that is subtracted, and the scale, if there is one, comes after.
#if MODE == 1 && ACT_BF16
#define UNIT 65536.0f
#elif MODE == 1
#define UNIT 16777216.0f
#elif MODE >= 3
#define UNIT 128.0f
#else
#define UNIT 1.0f
#endif

#if MODE == 4
#define PARAM_STEPS 1  // k16 steps of a block that share scales
#elif MODE == 3 || GROUP == 32
#define PARAM_STEPS 2
#else
#define PARAM_STEPS 4
#endif

// Scales and zero points of the two columns of a lane, each twice in a register.
struct GroupParams {
  u32 s0, s1;  // columns g and g + 8
  u32 b0, b1;  // what is added to 1024 + u and 64 + u (fp16), or 128 + u (bf16); mode 1: to the product
};

DEVICE u32 low_twice(u32 word) { return __byte_perm(word, word, 0x1010); }
DEVICE u32 high_twice(u32 word) { return __byte_perm(word, word, 0x3232); }

#if MODE == 2 || MODE == 4
#define PARAM_BYTES 4  // of a column and row of scales
#else
#define PARAM_BYTES 2
#endif
#define GROUP_BYTES (64 * PARAM_BYTES)  // of 64 columns and a row of scales

// What is stored for a lane's two columns is pair 8 w + g of the 32 pairs of a group (KERNELS.md): one word, in mode 2
// a second one with the zero points. Mode 1 ignores `zero_word`, mode 0 both.
#if MODE < 3
DEVICE GroupParams make_params(u32 scale_word, u32 zero_word) {
  GroupParams p;
  p.s0 = low_twice(scale_word);
  p.s1 = high_twice(scale_word);
#if MODE == 2
  p.b0 = low_twice(zero_word);
  p.b1 = high_twice(zero_word);
#elif MODE == 1 && ACT_BF16
  p.b0 = mul2(p.s0, 0xb900b900u);  // -2^-13
  p.b1 = mul2(p.s1, 0xb900b900u);
  p.s0 = mul2(p.s0, 0x7a007a00u);  // 2^117
  p.s1 = mul2(p.s1, 0x78007800u);  // 2^113
#elif MODE == 1
  p.b0 = mul2(p.s0, 0x80088008u);  // -2^-21
  p.b1 = mul2(p.s1, 0x80088008u);
  p.s1 = mul2(p.s1, 0x2c002c00u);  // 2^-4
#elif ACT_BF16
  p.b0 = p.b1 = 0xc308c308u;  // -136
#else
  p.b0 = 0xe408e408u;  // -1032
  p.b1 = 0xd480d480u;  // -72
#endif
  return p;
}
#endif

// Scales of k16 step j of a block, from the lane's words of the row (modes 3, 4: bytes h = 0, h = 1 of the first group,
// then of the next; KERNELS.md says what a byte means). Asked for where j is a multiple of PARAM_STEPS.
DEVICE GroupParams params_of_step(u32 first_word, u32 second_word, int j) {
#if MODE < 3
  return make_params(first_word, second_word);
#else
  const u32 word = MODE == 4 && j >= 2 ? second_word : first_word;
  const bool is_second = MODE == 4 ? j % 2 : j / 2;  // group of the word
  GroupParams p;
#if MODE == 3 && !ACT_BF16  // bytes are the high ones of fp16 numbers
  p.s0 = __byte_perm(word, 0, is_second ? 0x2424 : 0x0404);
  p.s1 = __byte_perm(word, 0, is_second ? 0x3434 : 0x1414);
#else
#if MODE == 4 && ACT_BF16
  const u32 of_h0 = and_or<0x0ff00ff0u, 0x70007000u>(word << 4), of_h1 = and_or<0x0ff00ff0u, 0x70007000u>(word >> 4);
#else
  const u32 of_h0 = (word << 7) & 0x7f807f80u, of_h1 = (word >> 1) & 0x7f807f80u;
#endif
  p.s0 = is_second ? high_twice(of_h0) : low_twice(of_h0);
  p.s1 = is_second ? high_twice(of_h1) : low_twice(of_h1);
#endif
  return p;
#endif
}

#if MODE >= 3
// The four pairs of e2m1 of a word, in the order of `dequantize`: sign and bits where a 16-bit number has its sign, low
// exponent and high mantissa. That is the value times 2^-14 (fp16) or 2^-126 (bf16), exactly: 0.5 is a subnormal number.
// The order of the bits (KERNELS.md) is such that this takes 9 instructions, or 8.
DEVICE void spread_fp4(u32 q, u32 (&a)[4]) {
#if ACT_BF16
  const u32 wanted = 0x81c081c0u, turned = __funnelshift_l(q, q, 4);
  const u32 mixed = select_bits<0x40044004u>(turned, q);
  a[0] = q & wanted;
  a[1] = turned & wanted;
  a[2] = (mixed << 6) & wanted;
  a[3] = __funnelshift_l(mixed, mixed, 10) & wanted;
#else
  const u32 wanted = 0x8e008e00u, mixed = select_bits<0x80808080u>(q << 7, q >> 3);
  a[0] = q & wanted;
  a[1] = (q << 8) & wanted;
  a[2] = mixed & wanted;
  a[3] = (mixed << 8) & wanted;
#endif
}
#endif

// One packed word to the operand registers of a k16 step: a[0], a[2] are column g, a[1], a[3] column g + 8;
// a[0], a[1] are k, k+1 and a[2], a[3] k+8, k+9.
DEVICE void dequantize(u32 q, const GroupParams& p, u32 (&a)[4]) {
#if MODE < 3
  const u32 high = q >> 8;
#endif
#if MODE >= 3
  spread_fp4(q, a);
#elif MODE == 1
  a[0] = fma2(q & 0x000f000fu, p.s0, p.b0);
  a[1] = fma2(q & 0x00f000f0u, p.s1, p.b1);
  a[2] = fma2(high & 0x000f000fu, p.s0, p.b0);
  a[3] = fma2(high & 0x00f000f0u, p.s1, p.b1);
#elif ACT_BF16
  a[0] = add2(and_or<0x000f000fu, 0x43004300u>(q), p.b0);
  a[1] = add2(and_or<0x000f000fu, 0x43004300u>(q >> 4), p.b1);
  a[2] = add2(and_or<0x000f000fu, 0x43004300u>(high), p.b0);
  a[3] = add2(and_or<0x000f000fu, 0x43004300u>(q >> 12), p.b1);
#else
  const u32 sixteenth = 0x2c002c00u;
  a[0] = add2(and_or<0x000f000fu, 0x64006400u>(q), p.b0);
  a[1] = fma2(and_or<0x00f000f0u, 0x64006400u>(q), sixteenth, p.b1);
  a[2] = add2(and_or<0x000f000fu, 0x64006400u>(high), p.b0);
  a[3] = fma2(and_or<0x00f000f0u, 0x64006400u>(high), sixteenth, p.b1);
#endif
#if MODE >= 2
  a[0] = mul2(a[0], p.s0);
  a[1] = mul2(a[1], p.s1);
  a[2] = mul2(a[2], p.s0);
  a[3] = mul2(a[3], p.s1);
#endif
}

// Word j of the 16 bytes of a lane: its k16 step j.
DEVICE u32 word_of(const uint4& q, int j) { return j == 0 ? q.x : j == 1 ? q.y : j == 2 ? q.z : q.w; }

// d = a x b + c; a from `dequantize` (or integers in its order), b0 and b1 from `load_matrices`.
DEVICE void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, const float (&c)[4]) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32." MMA_TYPE "." MMA_TYPE ".f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
}

// ---- memory ------------------------------------------------------------------------------------------------------

DEVICE u32 smem_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

DEVICE u32 load_shared_4(u32 address) {
  u32 v;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}

DEVICE uint2 load_shared_8(u32 address) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
  return v;
}

DEVICE uint4 load_shared_16(u32 address) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
  return v;
}

// Four 8 x 8 matrices: lane l names row l % 8 of matrix l / 8, and gets elements 2 (l % 4), + 1 of row l / 4 of each.
// Two of tokens are an operand of `mma`.
DEVICE void load_matrices(u32 address, u32 (&a)[2], u32 (&b)[2]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(b[0]), "=r"(b[1]) : "r"(address) : "memory");
}

// Copies to shared memory. Not `inside`: zeros are written and nothing is read; not `wanted`: nothing is done.
DEVICE void copy_async_16(u32 to, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" : : "r"(to), "l"(from) : "memory");
}

DEVICE void copy_async_16_or_zeros(u32 to, const void* from, bool inside) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
               : : "r"(to), "l"(from), "r"(inside ? 16 : 0) : "memory");
}

DEVICE void copy_async_16_if(u32 to, const void* from, bool wanted) {
  asm volatile("{.reg .pred p; setp.ne.s32 p, %2, 0; @p cp.async.cg.shared.global [%0], [%1], 16;}"
               : : "r"(to), "l"(from), "r"((int)wanted) : "memory");
}

DEVICE void copy_async_16_or_zeros_if(u32 to, const void* from, bool wanted, bool inside) {
  asm volatile("{.reg .pred p; setp.ne.s32 p, %2, 0; @p cp.async.cg.shared.global [%0], [%1], 16, %3;}"
               : : "r"(to), "l"(from), "r"((int)wanted), "r"(inside ? 16 : 0) : "memory");
}

DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" : : : "memory"); }

template <int pending>
DEVICE void wait_copies() {
  asm volatile("cp.async.wait_group %0;" : : "n"(pending) : "memory");
}

// 1: for compute-sanitizer's racecheck, which does not follow one lane that signals for its warp: all lanes signal, and it
// has nothing to report of sm90.cu (docs/checks/racecheck.md).
#ifndef RACECHECK
#define RACECHECK 0
#endif
#define SIGNAL_LANES (RACECHECK ? 32 : 1)

DEVICE void named_barrier(u32 id, u32 threads) {
  asm volatile("bar.sync %0, %1;" : : "r"(id), "r"(threads) : "memory");
}
