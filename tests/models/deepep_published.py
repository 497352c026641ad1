"""Figures of DeepEP V1 on H800 with ConnectX-7 of 400 Gb/s, fp8 to experts and bf16 back, 7168 wide, 8 experts a token.

Source: docs/legacy.md of https://github.com/deepseek-ai/DeepEP ("Performance"). Bandwidths count a token once for each
node of its experts, its own node included.
"""

LOW_LATENCY = tuple(
    (ranks, 128, elem_bytes, us)
    for ranks, dispatch_us, combine_us in (
        (16, 118, 195), (32, 155, 273), (64, 173, 314), (128, 192, 369), (256, 194, 360),
    )
    for elem_bytes, us in ((1, dispatch_us), (2, combine_us))
)  # fmt: skip
"""Low-latency kernels: ranks, tokens of a rank, bytes of an element, microseconds."""

NORMAL = tuple(
    (ranks, 4096, elem_bytes, gb_per_s)
    for ranks, dispatch, combine in ((16, 43, 43), (32, 58, 57), (64, 51, 50))
    for elem_bytes, gb_per_s in ((1, dispatch), (2, combine))
)
"""Normal kernels, at most 4 groups a token: ranks, tokens of a rank, bytes of an element, 1e9 bytes/s."""
