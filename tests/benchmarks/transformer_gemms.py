"""GEMM shapes of public transformer models: what the speed promises are measured on."""

# hidden size, intermediate size, KV width, from the models' config.json
_MODELS = {
    "Llama-3-8B": (4096, 14336, 1024), "Llama-3-70B": (8192, 28672, 1024), "Llama-3.1-405B": (16384, 53248, 1024),
    "Qwen2.5-7B": (3584, 18944, 512), "Qwen2.5-72B": (8192, 29568, 1024), "Mistral-7B": (4096, 14336, 1024),
    "Gemma-2-9B": (3584, 14336, 2048), "GPT-3-175B": (12288, 49152, 12288),
}  # fmt: skip
_TOKENS = (
    1, 2, 4, 8, 16, 17, 32, 48, 64, 96, 128, 160, 256, 384, 512, 768, 1000, 1024, 1536, 2048, 3072, 4096, 6000, 8192,
)  # fmt: skip
_TENSOR_PARALLEL = (1, 2, 4, 8)


def transformer_gemms(limit: int) -> list[tuple[int, int, int, int]]:
    """Return `limit` distinct (G, M, K, N), decode to prefill, spread evenly over models and token counts.

    Raises:
        ValueError: there are not so many.
    """
    shapes: dict[tuple[int, int, int, int], None] = {}
    for hidden, intermediate, kv_width in _MODELS.values():
        for degree in _TENSOR_PARALLEL:
            for tokens in _TOKENS:
                shapes[1, tokens, hidden, (hidden + 2 * kv_width) // degree] = None
                shapes[1, tokens, hidden // degree, hidden] = None
                shapes[1, tokens, hidden, 2 * intermediate // degree] = None
                shapes[1, tokens, intermediate // degree, hidden] = None
    if limit > len(shapes):
        raise ValueError(f"only {len(shapes)} distinct shapes, {limit} asked for")
    every = list(shapes)
    return [every[i * len(every) // limit] for i in range(limit)]
