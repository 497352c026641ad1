"""Gathered columns of A: the kernel's own text, run on this CPU by one thread, and what compilers say of it."""

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemm_eval.kernels import call, limits_of
from gemm_eval.kernels.call import compile_gather, gather_bytes, gather_launch

GPUS = ["h200-sxm", "a100-sxm-80gb", "l40s"]
ON_A_CPU = Path(__file__).with_name("gather_on_cpu.cpp")


@pytest.fixture(scope="module", params=[0, 1], ids=["from_caches", "staged"])
def kernel(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    folder = tmp_path_factory.mktemp("gather")
    options = ["-std=c++17", "-O1", "-w", "-fno-strict-aliasing", "-shared", "-fPIC", f"-DSTAGED={request.param}"]
    options += ["-I", str(Path(call.__file__).parent), "-o", "gather.so"]
    subprocess.run([compiler, *options, str(ON_A_CPU)], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "gather.so")).run


def run(kernel: Any, a: Any, M: int, K: int, permutation: Any, grid: tuple[int, int]) -> Any:
    """What the kernel makes of the first K columns of `a`, whose rows may be longer; NaN around it has to stay."""
    guarded = np.full((M + 2, K), 0x7E01, np.uint16)
    pointers = [x.ctypes.data_as(ctypes.c_void_p) for x in (a, permutation, guarded[1:])]
    kernel(*grid, *pointers, M, K, ctypes.c_longlong(a.strides[0] // 2))
    assert (guarded[[0, -1]] == 0x7E01).all()
    return guarded[1:-1]


@pytest.mark.parametrize("grid", [(1, 1), (3, 2), (5, 100)])
@pytest.mark.parametrize(("M", "K", "lda"), [(1, 8, 8), (2, 16, 24), (5, 328, 328), (8, 136, 1024)])
def test_columns_come_in_the_order_of_the_permutation(
    kernel: Any, M: int, K: int, lda: int, grid: tuple[int, int]
) -> None:
    random = np.random.default_rng(M + K)
    a = random.integers(0, 1 << 16, (M, lda)).astype(np.uint16)
    permutation = random.permutation(K).astype(np.int32)

    np.testing.assert_array_equal(run(kernel, a, M, K, permutation, grid), a[:, permutation])


def test_no_permutation_reads_beyond_a_row(kernel: Any) -> None:
    a = np.arange(24, dtype=np.uint16).reshape(3, 8)
    order = np.array([-1, 8, 1 << 30, -(1 << 31), 0, 1, 2, 3], np.int32)

    np.testing.assert_array_equal(run(kernel, a, 3, 8, order, (1, 1)), a[:, [7, 7, 7, 7, 0, 1, 2, 3]])


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("M", [1, 2, 3, 16, 131, 4096, 1 << 20])
@pytest.mark.parametrize("K", [8, 136, 4096, 28672, 65536])
def test_launches_fit_the_gpu_and_fill_it_once(name: str, M: int, K: int) -> None:
    of_gpu = limits_of(name)
    (parts, rows, _), smem_bytes = gather_launch(M, K, of_gpu)

    assert smem_bytes in {0, 4 * K}
    assert smem_bytes <= of_gpu.smem_per_cta_bytes
    assert 1 <= parts <= max(1, -(-K // 2048))  # no part without a vector for some thread
    assert 1 <= rows <= min(-(-M // 2), 65_535)
    assert parts == 1 or parts * rows <= of_gpu.num_sms
    resident = of_gpu.smem_per_sm_bytes // (smem_bytes + of_gpu.smem_reserved_bytes) if smem_bytes else 4
    assert rows <= of_gpu.num_sms * max(1, min(4, resident))


def test_rows_too_long_for_shared_memory_are_not_staged() -> None:
    assert gather_launch(16, 28672, limits_of("h200-sxm")).smem_bytes == 4 * 28672
    assert gather_launch(16, 28672, limits_of("l40s")).smem_bytes == 0


@pytest.mark.parametrize(("M", "K"), [(1, 8), (3, 136), (64, 4096)])
def test_gathered_activations_have_their_memory(M: int, K: int) -> None:
    assert 2 * M * K <= gather_bytes(M, K) < 2 * M * K + 256
    assert gather_bytes(M, K) % 256 == 0


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize("is_staged", [True, False])
def test_compiles_without_spills(name: str, is_staged: bool) -> None:
    pytest.importorskip("cupy")
    compiled = compile_gather(limits_of(name), is_staged=is_staged)

    assert compiled.spill_store_bytes == compiled.spill_load_bytes == compiled.static_smem_bytes == 0
    assert compiled.warnings == ()
    assert compiled.registers <= 64
