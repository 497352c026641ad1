"""The pruner in Triton's own `Autotuner`, and configs that are really compiled, without a GPU."""

import math
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.autotune.triton import (
    CompiledConfig,
    KernelArguments,
    TensorArgument,
    TritonPruner,
    autotune,
    compile_offline,
    mfma,
)
from gemm_eval.autotune.triton.compile import compile_many_offline
from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.models.gpu import OTHER_MAKER
from gemm_eval.models.gpu.triton import KernelCode, TritonConfig
from gemm_eval.workload import GemmProblem
from tests.autotune.fake_triton import FakeDriver, FakeModel, area, code_of, tiles

triton = pytest.importorskip("triton")

ARGS = (*(TensorArgument("fp16"),) * 3, 4096, 4096, 4096, 4096, 4096, 4096)
NAMES = ("a_ptr", "b_ptr", "c_ptr", "M", "N", "K", "stride_am", "stride_bn", "stride_cm")
CALL = dict(zip(NAMES, ARGS, strict=True))
KEY = ["M", "N", "K"]
QUICK = (64, 32)  # tiles that compile in a fraction of a second


@pytest.fixture(autouse=True)
def _caches(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(Path(tmp_path_factory.getbasetemp()) / "triton"))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """Triton believes in a GPU of sm_90, on which nothing is launched."""
    from triton.runtime import driver

    from tests.autotune.triton_kernels import matmul

    fake = FakeDriver()
    monkeypatch.setattr(driver, "_active", fake)
    matmul.device_caches.clear()
    yield fake
    matmul.device_caches.clear()


@pytest.fixture
def compilations() -> Iterator[list[bool]]:
    """One entry of each call of Triton's compiler: whether its disk cache knew the kernel."""
    seen: list[bool] = []
    triton.knobs.compilation.listener = lambda cache_hit, **rest: seen.append(cache_hit)
    yield seen
    triton.knobs.compilation.listener = None


class FakeKernel(triton.KernelInterface):  # type: ignore[misc, name-defined]
    """A compiled-for-nothing kernel: it remembers its launches, and compiles as the one below it does."""

    def __init__(self, fn: Any) -> None:
        self.fn, self.arg_names = fn, fn.arg_names
        self.launched: list[int] = []

    def run(self, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if warmup:
            return self.fn.run(*args, grid=grid, warmup=True, **kwargs)
        return self.launched.append(kwargs["BLOCK_M"])


def kernel() -> FakeKernel:
    from tests.autotune.triton_kernels import matmul

    return FakeKernel(matmul)


def bench(call: Any, quantiles: Any) -> list[float]:
    call()
    return [1.0] * len(quantiles)


def read_code(compiled: Sequence[CompiledConfig], configs: Sequence[TritonConfig]) -> list[KernelCode | None]:
    assert all(one.cubin.startswith(b"\x7fELF") for one in compiled)
    return [
        code_of(config, smem_bytes=one.smem_bytes, is_compiled=True)
        for one, config in zip(compiled, configs, strict=True)
    ]


def pruner(arch: str = "h200-sxm", **options: Any) -> TritonPruner:
    return TritonPruner(arch, **{"model": FakeModel(area), "kernel": kernel(), "read_code": read_code, **options})


def quick() -> list[Any]:
    return tiles(triton.Config, QUICK)


def test_the_dict_plugs_into_the_stock_autotuner() -> None:
    chooser = TritonPruner("h200-sxm", model=FakeModel(area), top_k=2, bench=bench)
    fake = kernel()
    tuner = triton.autotune(
        tiles(triton.Config), KEY, prune_configs_by=chooser.prune_configs_by, do_bench=chooser.do_bench
    )(fake)

    tuner[(1,)](*ARGS)
    assert fake.launched == [32, 64, 32]  # two benchmarks, and the winner
    tuner[(1,)](*ARGS)
    assert fake.launched == [32, 64, 32, 32]


def test_top_k_of_one_benchmarks_nothing() -> None:
    fake = kernel()
    tuner = autotune(
        tiles(triton.Config), KEY, arch="h200-sxm", top_k=1, model=FakeModel(area), use_assembly=False,
        do_bench=pytest.fail,
    )(fake)  # fmt: skip
    tuner[(1,)](*ARGS)

    assert fake.launched == [32]
    assert tuner.best_config.kwargs["BLOCK_M"] == 32
    assert tuner.pruner.last.kept == [tuner.best_config]


def test_survivors_are_compiled_as_the_launch_will_find_them(on_gpu: FakeDriver, compilations: list[bool]) -> None:
    fake = kernel()
    tuner = autotune(
        quick(), KEY, arch="h200-sxm", top_k=1, model=FakeModel(area), read_code=read_code,
        do_bench=pytest.fail,
    )(fake)  # fmt: skip
    tuner[(1,)](*ARGS)
    assert len(compilations) == 2
    assert tuner.pruner.last.num_compiled == 2
    assert all(verdict.is_compiled for verdict in tuner.pruner.last.verdicts)

    fake.fn.run(*ARGS, grid=(1,), warmup=True, **tuner.best_config.all_kwargs())
    assert len(compilations) == 2  # the JIT's own memory had it


@pytest.mark.parametrize("threads", [1, 2])
def test_code_is_read_once_whatever_the_shape(on_gpu: FakeDriver, threads: int) -> None:
    read: list[TritonConfig] = []

    def count(compiled: Sequence[CompiledConfig], configs: Sequence[TritonConfig]) -> list[KernelCode | None]:
        read.extend(configs)
        return read_code(compiled, configs)

    chooser = pruner(read_code=count, num_compile_threads=threads)
    for rows in (4096, 2048, 8192):
        chooser.early_config_prune(quick(), CALL | {"M": rows})

    assert sorted(config.block_m for config in read) == [32, 64]


@pytest.mark.parametrize(("num_threads", "is_elsewhere"), [(1, False), (2, True)])
def test_configs_compile_in_threads_and_one_may_fail(
    on_gpu: FakeDriver, num_threads: int, is_elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()
    monkeypatch.setattr(triton.knobs.compilation, "listener", lambda **rest: threads.add(threading.get_ident()))
    bad = triton.Config({"BLOCK_M": 256, "BLOCK_N": 16, "BLOCK_K": 32, "GROUP_M": 8, "SPLIT_K": 1}, num_warps=8)
    tuner = triton.autotune([bad], KEY)(kernel())  # what an autotuner tunes may be given with it
    chooser = pruner(kernel=tuner, num_compile_threads=num_threads, top_k=2)
    kept = chooser.early_config_prune([bad, *quick()], CALL)

    assert [config.kwargs["BLOCK_M"] for config in kept] == [32, 64]
    assert chooser.last is not None
    assert "BLOCK_M too large for this kernel" in chooser.last.verdicts[-1].reason
    assert (threading.get_ident() not in threads) is is_elsewhere


def test_machine_code_overturns_the_estimate_offline() -> None:
    model = FakeModel(lambda config, is_compiled: -area(config, True) if is_compiled else area(config, False))
    configs = tiles(triton.Config, (256, *QUICK))  # the kernel asserts that 256 is too much
    configs[0].kwargs["BLOCK_N"] = 16
    configs[0].num_warps = 8
    ranking = pruner("a100-sxm-80gb", model=model, top_k=1).rank(configs, CALL)

    assert ranking.kept == [configs[1]]
    assert ranking.num_compiled == 3
    fallen = {verdict.config.block_m: verdict.reason for verdict in ranking.verdicts if not verdict.is_kept}
    assert "does not compile" in fallen[256]
    assert "BLOCK_M too large for this kernel" in fallen[256]
    assert fallen[32] == "number 2: the best 1 stay"


def test_code_that_cannot_be_read_is_noted_and_the_estimate_stands(on_gpu: FakeDriver) -> None:
    def refuse(compiled: Sequence[CompiledConfig], configs: Sequence[TritonConfig]) -> list[KernelCode | None]:
        raise GemmEvalError("no disassembler")

    ranking = pruner(read_code=refuse, top_k=1).rank(quick(), CALL)

    assert [verdict.config.block_m for verdict in ranking.verdicts] == [32, 64]
    assert ranking.notes == ("machine code was not read, the estimate stands: no disassembler",)


def test_the_model_is_given_what_the_machine_code_says() -> None:
    class Remembers(FakeModel):
        def triton_times(self, arch: Any, problem: Any, configs: Any, codes: Any) -> Any:
            self.codes = list(codes)
            return super().triton_times(arch, problem, configs, codes)

    model = Remembers(area)
    ranking = pruner(model=model, read_code=None).rank(quick(), CALL)
    if any("nvdisasm" in note for note in ranking.notes):
        pytest.skip(ranking.notes[0])

    assert [(code.is_compiled, code.loop.k, code.loop.spill) for code in model.codes] == [(True, 32, 0)] * 2
    assert {mma.m for code in model.codes for mma in code.loop.mma} == {16, 64}  # mma.sync for 32 rows, wgmma for 64


def test_pre_hooks_run_before_a_config_is_compiled(on_gpu: FakeDriver) -> None:
    hooked: list[int] = []
    configs = [
        triton.Config(config.kwargs, pre_hook=lambda values: hooked.append(values["BLOCK_M"] + values["M"]))
        for config in quick()
    ]
    pruner().early_config_prune(configs, CALL, grid=(1,), warmup=False)

    assert sorted(hooked) == [4096 + 32, 4096 + 64]


def test_offline_is_what_the_jit_compiles(on_gpu: FakeDriver, compilations: list[bool]) -> None:
    from tests.autotune.triton_kernels import matmul

    config = tiles(triton.Config, (32,))[0]
    compiled = compile_offline(matmul, config, CALL, arch="h200-sxm")
    again = matmul.warmup(*ARGS, grid=(1,), **config.all_kwargs())

    assert compilations[-1] is True  # Triton's disk cache knows it
    assert (compiled.key, compiled.cubin) == (again.hash, again.asm["cubin"])
    assert compiled.smem_bytes == again.metadata.shared


def test_heuristics_are_applied() -> None:
    from tests.autotune.triton_kernels import matmul_with_heuristics as fn

    config = triton.Config({"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32})
    chooser = pruner(arguments=KernelArguments(split_k=None), kernel=fn)
    for rows, group_m in ((4096, 8), (64, 1)):
        assert chooser.rank([config], CALL | {"M": rows}).verdicts[0].config.group_m == group_m
    assert len({compile_offline(fn, config, CALL | {"M": m}, arch="h200-sxm").key for m in (64, 80)}) == 2


def test_a_kernel_of_the_tutorial_needs_no_arguments() -> None:
    """Neither its names nor that it splits no K have to be said, as the guide has it."""
    from tests.autotune.triton_kernels import matmul_of_the_tutorial as fn

    configs = [
        triton.Config({"BLOCK_SIZE_M": m, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 8}, num_warps=4)
        for m in (32, 64)
    ]
    tuner = autotune(configs, KEY, arch="h200-sxm", top_k=1)(fn)
    ranking = tuner.pruner.rank(configs, CALL)
    assert {(one.config.block_m, one.config.group_m, one.config.split_k) for one in ranking.verdicts} == {
        (32, 8, 1), (64, 8, 1),
    }  # fmt: skip
    assert ranking.num_compiled == 2


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"arguments": KernelArguments(a="x_ptr")}, InvalidOptionError, r"a is 'x_ptr', but .*a_ptr"),
        ({"use_cuda_graph": True}, InvalidOptionError, "do_bench_cudagraph"),
        ({"prune_configs_by": {}}, InvalidOptionError, "TritonPruner"),
        ({"top_kk": 3}, TypeError, "top_kk"),
    ],
)
def test_the_decorator_checks_names_at_once(options: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        autotune(tiles(triton.Config), KEY, arch="h200-sxm", **options)(kernel())


def test_what_is_no_kernel_cannot_be_compiled() -> None:
    with pytest.raises(InvalidOptionError, match=r"@triton\.jit"):
        compile_offline(print, tiles(triton.Config)[0], {}, arch="h200-sxm")


@pytest.mark.parametrize("is_nested", [False, True])
def test_what_python_fails_at_in_threads_is_compiled_alone(monkeypatch: pytest.MonkeyPatch, is_nested: bool) -> None:
    """Its ast module counts the depth of what it reads for all threads together, also in functions of a kernel."""
    from tests.autotune.triton_kernels import matmul

    compile_one, failed = triton.compile, []

    def fail_in_threads(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            failed.append(args)
            error = SystemError("AST constructor recursion depth mismatch (before=33, after=28)")
            if is_nested:
                raise RuntimeError("at 34:4") from error
            raise error
        return compile_one(*args, **kwargs)

    monkeypatch.setattr(triton, "compile", fail_in_threads)
    results = compile_many_offline(matmul, quick(), CALL, load_arch("h200-sxm", GpuSpec), num_threads=2)
    assert len(failed) == len(results) == 2
    assert all(isinstance(one, CompiledConfig) for one in results), results


@pytest.mark.parametrize("gpu", ["mi300x", "mi355x"])
def test_configs_are_ranked_for_amd_by_what_compiles_without_a_gpu(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than 128 rows are too many for this kernel."""
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(Tensor=Path))  # Triton's back end asks for it
    from tests.autotune.triton_kernels import matmul

    sizes = ((32, 32), (64, 128), (256, 256))
    configs = [
        triton.Config({"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": 64, "GROUP_M": 1, "SPLIT_K": 1}, 4, 2) for m, n in sizes
    ]
    call = CALL | dict.fromkeys(NAMES[3:], 4096)
    ranking = TritonPruner(gpu, kernel=matmul, top_k=2, compile_k=4).rank(configs, call)
    best, *others = ranking.verdicts
    assert (best.given, best.is_compiled, ranking.source) == (configs[1], True, "analytic")
    assert best.high_us == pytest.approx(best.low_us * math.exp(2 * OTHER_MAKER))  # type: ignore[operator]
    assert [verdict.time_us is None for verdict in others] == [False, True]


def test_a_kernel_that_spills_takes_longer_on_amd() -> None:
    arch, problem, config = load_arch("mi300x", GpuSpec), GemmProblem(1, 512, 512, 512), TritonConfig(64, 64, 64, 4, 2)
    text = ".agpr_count: 64\n.vgpr_count: 300\n.vgpr_spill_count: {}"
    codes = [mfma.code_of_amdgcn(text.format(spills), config, 1024) for spills in (0, 9)]
    us = mfma.triton_times(arch, problem, [config, config], codes).latency_us
    assert (codes[0].registers, us[1]) == (300, pytest.approx(2.0 * us[0]))
