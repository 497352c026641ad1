"""Layers of experts on a real GPU, against float64: right to rounding, repeatable, whatever the routing."""

from typing import Any, NamedTuple

import numpy as np
import pytest

from gemm_eval.dtypes import DType
from gemm_eval.kernels import dequantize, interleave_gate_up, pack_w4, stack_w4, w4a16_experts
from gemm_eval.kernels.families import GroupedSizes, grouped_families
from gemm_eval.kernels.plan import choose_for, spec_and_limits
from gemm_eval.mapping import Decomposition, KernelConfig
from tests.gpu.test_w4a16_gpu import GUARD_ELEMS, NAN_BITS, to_bits, to_float

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

WORST_ERROR = {DType.FP16: 2e-3, DType.BF16: 1.2e-2}  # of three roundings in turn
EXPERTS, HIDDEN, INNER = 12, 520, 264


class Layer(NamedTuple):
    """Packed weights, and in float64 what they are: [experts, K, N]."""

    gate_up: Any
    down: Any
    gate_up_bias: Any
    down_bias: Any
    exact: tuple[Any, Any, Any, Any]


_layers: dict[tuple[str, str], Layer] = {}


def layer_of(cupy: Any, activation: str, mode: str = "group") -> Layer:
    if (activation, mode) not in _layers:
        random, dtype = np.random.default_rng(5), DType(activation)

        def matrix(K: int, N: int) -> Any:
            return random.standard_normal((K, N)).astype(np.float32) / np.float32(np.sqrt(K))

        first = [interleave_gate_up(matrix(HIDDEN, INNER), matrix(HIDDEN, INNER)) for _ in range(EXPERTS)]
        packed = [
            stack_w4([pack_w4(w, None, mode, activation=activation) for w in matrices]).to_gpu()
            for matrices in (first, [matrix(INNER, HIDDEN) for _ in range(EXPERTS)])
        ]
        bits = [cupy.asarray(to_bits(random.standard_normal((EXPERTS, N)), dtype)) for N in (2 * INNER, HIDDEN)]
        exact = [cupy.stack([dequantize(one) for one in of_gemm]).astype(cupy.float64) for of_gemm in packed]
        first_bias, second_bias = (to_float(cupy, one, dtype).astype(cupy.float64) for one in bits)
        _layers[activation, mode] = Layer(
            packed[0], packed[1], bits[0], bits[1], (exact[0], exact[1], first_bias, second_bias)
        )
    return _layers[activation, mode]


def routing(num_tokens: int, choices: int, how: str) -> tuple[Any, Any]:
    """Return ids and weights of choices: at random, one busy expert in all, or some elsewhere."""
    random = np.random.default_rng(num_tokens)
    ids = np.argsort(random.random((num_tokens, EXPERTS)), axis=1)[:, :choices].astype(np.int32)
    if how == "busy":
        ids = np.where(ids == 7, ids[:, :1], ids)
        ids[:, 0] = 7
    if how == "elsewhere":
        ids[random.random(ids.shape) < 0.5] = random.choice([-1, EXPERTS, 1 << 30])
        ids[0] = -1
    return ids, random.random(ids.shape).astype(np.float32)


def expected(cupy: Any, layer: Layer, bits: Any, ids: Any, weights: Any) -> Any:
    """Return the layer in float64."""
    dtype, (first, second, first_bias, second_bias) = layer.gate_up.activation, layer.exact
    x = to_float(cupy, bits, dtype).astype(cupy.float64)
    result = cupy.zeros((len(ids), HIDDEN))
    for expert in range(EXPERTS):
        tokens, choice = np.nonzero(ids == expert)
        if len(tokens):
            both = (x[tokens] @ first[expert] + first_bias[expert]).reshape(len(tokens), -1, 2, 8)
            gate, up = (both[:, :, i].reshape(len(tokens), INNER) for i in (0, 1))
            product = (gate / (1 + cupy.exp(-gate)) * up) @ second[expert] + second_bias[expert]
            cupy.add.at(result, cupy.asarray(tokens), product * cupy.asarray(weights[tokens, choice])[:, None])
    return result


def check(
    cupy: Any, layer: Layer, num_tokens: int, choices: int, how: str, configs: Any = (None, None), **more: Any
) -> None:
    dtype = layer.gate_up.activation
    bits = cupy.asarray(to_bits(np.random.default_rng(num_tokens).standard_normal((num_tokens, HIDDEN)), dtype))
    ids, weights = routing(num_tokens, choices, how)
    reference = expected(cupy, layer, bits, ids, weights)
    results = []
    for _ in range(2):
        memory = cupy.full(2 * GUARD_ELEMS + num_tokens * HIDDEN, NAN_BITS[dtype], cupy.uint16)
        out = memory[GUARD_ELEMS : GUARD_ELEMS + num_tokens * HIDDEN].reshape(num_tokens, HIDDEN)
        typed = [array.view(cupy.float16) if dtype is DType.FP16 else array for array in (bits, out)]
        w4a16_experts(
            typed[0], cupy.asarray(ids), cupy.asarray(weights), layer.gate_up, layer.down, out=typed[1],
            gate_up_bias=layer.gate_up_bias, down_bias=layer.down_bias, configs=configs, **more,
        )  # fmt: skip
        cupy.cuda.runtime.deviceSynchronize()
        assert bool((memory[:GUARD_ELEMS] == NAN_BITS[dtype]).all())
        assert bool((memory[-GUARD_ELEMS:] == NAN_BITS[dtype]).all())
        results.append(out)
        error = cupy.linalg.norm(to_float(cupy, typed[1], dtype) - reference)
        assert float(error) <= WORST_ERROR[dtype] * float(cupy.linalg.norm(reference))
    assert bool((results[0] == results[1]).all())


@pytest.mark.parametrize("how", ["random", "busy", "elsewhere"])
@pytest.mark.parametrize(("num_tokens", "choices"), [(1, 1), (2, 8), (37, 4), (300, 6), (1500, 3)])
def test_the_models_choice(cupy: Any, num_tokens: int, choices: int, how: str) -> None:
    check(cupy, layer_of(cupy, "fp16"), num_tokens, choices, how)


@pytest.mark.parametrize(("activation", "mode"), [("bf16", "group_zero"), ("bf16", "mxfp4"), ("fp16", "nvfp4")])
def test_modes(cupy: Any, activation: str, mode: str) -> None:
    for num_tokens in (3, 200):
        check(cupy, layer_of(cupy, activation, mode), num_tokens, 4, "random")


def some_configs() -> list[KernelConfig]:
    """Return configs of every form: with and without stores through shared memory, ping-pong, three warpgroups."""
    found = {}
    for name in ("w4a16_gemv_mma_grouped", "w4a16_sm90_grouped"):
        for config in grouped_families()[name].configs():
            size = 0 if config.cta_m <= 16 else 1 if config.cta_m <= 40 else 2 if config.cta_m <= 96 else 3
            found[name, config.cta_n, config.num_warps, config.schedule, size] = config
    return list(found.values())


@pytest.mark.parametrize("config", some_configs(), ids=str)
def test_kernels(cupy: Any, config: KernelConfig) -> None:
    for decomposition in (Decomposition.DATA_PARALLEL, Decomposition.STREAM_K):
        given = config._replace(decomposition=decomposition)
        for num_tokens, how in ((5, "random"), (120, "busy")):
            check(cupy, layer_of(cupy, "fp16"), num_tokens, 4, how, (given, given))


def test_a_graph_is_replayed_with_other_choices(cupy: Any) -> None:
    layer, stream = layer_of(cupy, "fp16"), cupy.cuda.Stream(non_blocking=True)
    bits = cupy.asarray(to_bits(np.random.default_rng(0).standard_normal((40, HIDDEN)), DType.FP16))
    ids, weights = cupy.zeros((40, 4), cupy.int32), cupy.zeros((40, 4), cupy.float32)
    out = cupy.empty((40, HIDDEN), cupy.float16)
    cupy.cuda.runtime.deviceSynchronize()
    biases = {"gate_up_bias": layer.gate_up_bias, "down_bias": layer.down_bias, "out": out}
    with stream:
        w4a16_experts(bits.view(cupy.float16), ids, weights, layer.gate_up, layer.down, **biases)
        stream.begin_capture()
        w4a16_experts(bits.view(cupy.float16), ids, weights, layer.gate_up, layer.down, **biases)
        graph = stream.end_capture()
        for how in ("random", "busy", "elsewhere"):
            given = routing(40, 4, how)
            ids[...], weights[...] = map(cupy.asarray, given)
            out.fill(cupy.nan)
            graph.launch(stream)
            stream.synchronize()
            reference = expected(cupy, layer, bits, *given)
            error = cupy.linalg.norm(out.astype(cupy.float64) - reference) / cupy.linalg.norm(reference)
            assert float(error) < WORST_ERROR[DType.FP16]


def test_the_choice_is_of_a_kernel_that_fuses(cupy: Any) -> None:
    spec, limits = spec_and_limits(None)
    packed = layer_of(cupy, "fp16").gate_up
    for rows in (4, 4096):
        sizes = GroupedSizes(rows, packed.K, packed.N, packed.num_groups)
        config = choose_for(sizes, packed.activation, packed.mode, packed.group_size, spec, limits, rows)
        assert not config.family.startswith("w4a16_sm80")
