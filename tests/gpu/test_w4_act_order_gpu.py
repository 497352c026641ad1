"""Weights whose rows were sorted by group, on a real GPU: A's columns are gathered, and the kernels read those."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from gemm_eval import kernels
from gemm_eval.device import Rows, runtime
from gemm_eval.errors import InvalidOptionError
from gemm_eval.kernels.call import gather_bytes, gather_columns
from gemm_eval.kernels.families import Variant, families
from gemm_eval.mapping import Decomposition, KernelConfig
from tests.kernels.checkpoint_samples import make_layer

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]  # the vendor's packages warn as they like

POISON = 0x7E01
GUARD_ELEMS = 4096


@pytest.mark.parametrize(
    ("M", "K", "lda"),
    [
        (1, 8, 8), (1, 4096, 4096), (2, 136, 144), (3, 14336, 14336), (16, 28672, 28680), (33, 328, 1024),
        (5, 65536, 65536), (300, 8192, 8192), (4097, 2048, 2056),
    ],
)  # fmt: skip
def test_columns_are_gathered(cupy: Any, M: int, K: int, lda: int) -> None:
    random = np.random.default_rng(M + K)
    a = cupy.asarray(random.integers(0, 1 << 16, (M, lda)).astype(np.uint16))
    order = cupy.asarray(random.permutation(K).astype(np.int32))
    num_elems = gather_bytes(M, K) // 2
    memory = cupy.full(num_elems + 2 * GUARD_ELEMS, POISON, cupy.uint16)
    found = memory[GUARD_ELEMS : GUARD_ELEMS + M * K].reshape(M, K)
    stream = cupy.cuda.get_current_stream().ptr
    rows = gather_columns(Rows(a.data.ptr, M, K, lda), order.data.ptr, found.data.ptr, a.device.id, stream)

    assert rows == Rows(found.data.ptr, M, K, K)
    assert bool((found == a[:, order]).all())
    assert bool((memory[:GUARD_ELEMS] == POISON).all())
    assert bool((memory[GUARD_ELEMS + M * K :] == POISON).all())


def weights_of(cupy: Any, K: int, N: int, mode: str = "group", activation: str = "fp16") -> kernels.PackedW4:
    random = np.random.default_rng(K + N)
    packed = kernels.pack_w4(0.1 * random.standard_normal((K, N)).astype(np.float32), 64, mode, activation=activation)
    return dataclasses.replace(packed, permutation=random.permutation(K).astype(np.int32)).to_gpu()


def tokens_of(cupy: Any, M: int, K: int, lda: int | None = None) -> Any:
    return cupy.asarray(np.random.default_rng(M).standard_normal((M, lda or K)).astype(np.float16))[:, :K]


MODE = "fp16", "group_zero", 64
SIZES = [(1, 1032, 264), (7, 328, 136), (64, 2048, 1024), (300, 1024, 520)]


def one_of_each(sizes: kernels.Sizes, limits: kernels.DeviceLimits) -> list[KernelConfig]:
    """The first config of each family and way to cut K."""
    first: dict[tuple[str, Decomposition], KernelConfig] = {}
    for config in kernels.legal_configs(sizes, limits, *MODE):
        first.setdefault((config.family, config.decomposition), config)
    return list(first.values())


def variants_ahead(test: str, limits: kernels.DeviceLimits, params: Mapping[str, Any]) -> Iterator[Variant]:
    """Yield kernels that a test runs, for `conftest.py` to compile."""
    if test == "test_every_family_reads_what_was_gathered":
        for config in one_of_each(kernels.Sizes(params["M"], params["K"], params["N"]), limits):
            yield kernels.make_variant(families()[config.family].compiled(config), *MODE)


@pytest.mark.parametrize(("M", "K", "N"), SIZES)
def test_every_family_reads_what_was_gathered(cupy: Any, M: int, K: int, N: int) -> None:
    """To the bit what the same kernel makes of A whose columns were gathered before, and right."""
    packed, A = weights_of(cupy, K, N, "group_zero"), tokens_of(cupy, M, K, K + 24)
    in_order = dataclasses.replace(packed, permutation=None)
    gathered = cupy.ascontiguousarray(A[:, packed.permutation])
    expected = A.astype(cupy.float64) @ kernels.dequantize(packed)
    seen = set()
    for config in one_of_each(kernels.Sizes(M, K, N), runtime.limits_of_device(0)):
        seen.add((config.family, config.decomposition))
        found = kernels.w4a16_gemm(A, packed, config=config)
        plain = kernels.w4a16_gemm(gathered, in_order, config=config)
        assert bool((found.view(cupy.uint16) == plain.view(cupy.uint16)).all()), config
        error = float(cupy.linalg.norm(found - expected) / cupy.linalg.norm(expected))
        assert error < 1e-3, (config, error)
    assert {family for family, _ in seen} <= set(families())
    assert {decomposition for _, decomposition in seen} >= {Decomposition.DATA_PARALLEL}


@pytest.mark.parametrize("activation", ["fp16", "bf16"])
def test_the_models_choice_and_a_bias(cupy: Any, activation: str) -> None:
    packed = weights_of(cupy, 2056, 648, "group", activation)
    random = np.random.default_rng(0)
    A, bias = random.integers(-4, 5, (2, 9, 2056)), random.integers(-4, 5, 648)  # exact in both types
    stored = [
        cupy.asarray(x.astype(np.float16) if activation == "fp16" else (x.astype(np.float32).view(np.uint32) >> 16))
        for x in (A, bias)
    ]
    a, b = (x if activation == "fp16" else x.astype(cupy.uint16) for x in stored)
    found = kernels.w4a16_gemm(a, packed, b, alpha=0.5)
    values = found if activation == "fp16" else (found.astype(cupy.uint32) << 16).view(cupy.float32)
    expected = 0.5 * (cupy.asarray(A, dtype=cupy.float64) @ kernels.dequantize(packed)) + cupy.asarray(bias)

    assert found.shape == (2, 9, 648)
    error = float(cupy.linalg.norm(values - expected) / cupy.linalg.norm(expected))
    assert error < (1e-3 if activation == "fp16" else 5e-3)


def test_profile_takes_it(cupy: Any, own_cache: Any) -> None:
    packed, A = weights_of(cupy, 4096, 4096), tokens_of(cupy, 16, 4096)
    expected = A.astype(cupy.float64) @ kernels.dequantize(packed)
    found = kernels.w4a16_gemm(A, packed, config="profile")

    assert float(cupy.linalg.norm(found - expected) / cupy.linalg.norm(expected)) < 1e-3


@pytest.mark.parametrize("is_given", [True, False])
def test_a_graph_gathers_what_is_there_when_it_is_replayed(cupy: Any, is_given: bool) -> None:
    packed, A = weights_of(cupy, 4096, 1280), tokens_of(cupy, 24, 4096).copy()
    out = cupy.empty((24, 1280), cupy.float16)
    workspace = cupy.empty(kernels.workspace_bytes(24, packed), cupy.uint8) if is_given else None
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.runtime.deviceSynchronize()
    if not is_given:
        with stream:
            stream.begin_capture()
            with pytest.raises(InvalidOptionError, match="a CUDA graph is being captured"):
                kernels.w4a16_gemm(A, packed, out=out, stream=stream)
            stream.end_capture()
    kernels.w4a16_gemm(A, packed, out=out, stream=stream, workspace=workspace)
    with stream:
        stream.begin_capture()
        kernels.w4a16_gemm(A, packed, out=out, stream=stream, workspace=workspace)
        graph = stream.end_capture()
    for seed in range(3):
        A[...] = cupy.asarray(np.random.default_rng(seed).standard_normal(A.shape).astype(np.float16))
        cupy.cuda.runtime.deviceSynchronize()
        graph.launch(stream)
        stream.synchronize()
        expected = kernels.w4a16_gemm(A, packed)
        assert bool((out.view(cupy.uint16) == expected.view(cupy.uint16)).all())


def test_two_streams_at_once(cupy: Any) -> None:
    packed = weights_of(cupy, 4096, 1280)
    inputs = [tokens_of(cupy, 40 + i, 4096) for i in range(2)]
    expected = [kernels.w4a16_gemm(A, packed) for A in inputs]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in inputs]
    outs = [cupy.empty((len(A), 1280), cupy.float16) for A in inputs]
    cupy.cuda.runtime.deviceSynchronize()
    for _ in range(50):
        for A, out, stream in zip(inputs, outs, streams, strict=True):
            kernels.w4a16_gemm(A, packed, out=out, stream=stream)
    cupy.cuda.runtime.deviceSynchronize()
    for out, right in zip(outs, expected, strict=True):
        assert bool((out.view(cupy.uint16) == right.view(cupy.uint16)).all())


@pytest.mark.parametrize("version", [1, 2])
def test_a_checkpoint_is_sorted_on_the_gpu_as_on_the_host(cupy: Any, version: int) -> None:
    sample = make_layer("gptq", 1032, 264, 128, 5, is_sorted=False, version=version)
    tensors = {name: tensor.array for name, tensor in sample.tensors.items()}
    host = kernels.from_gptq(**tensors, version=version)
    packed = kernels.from_gptq(**{name: cupy.asarray(array) for name, array in tensors.items()}, version=version)
    for name in ("qweight", "scales", "permutation"):
        assert np.array_equal(cupy.asnumpy(getattr(packed, name)), getattr(host, name))
    np.testing.assert_array_equal(cupy.asnumpy(kernels.dequantize(packed)), sample.meant)
