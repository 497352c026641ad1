"""`prune_inductor` in the Inductor of the torch that is installed: its own candidates, before and after."""

import math
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest

pytest.importorskip("torch", reason="torch is not installed: make test-torch")
pytest.importorskip("triton", reason="triton is not installed: make test-torch")
import torch
from torch._inductor import config, select_algorithm
from torch._inductor.choices import InductorChoices
from torch._inductor.virtualized import V

from gemm_eval import load_arch
from gemm_eval.arch import GpuSpec
from gemm_eval.errors import ArchNotFoundError, GemmEvalError, InvalidOptionError
from gemm_eval.models.gpu.triton import TritonConfig
from gemm_eval.torch import prune_inductor
from gemm_eval.torch.inductor import missing_interface
from gemm_eval.torch.inductor_ranking import KernelTraits, rank_times
from gemm_eval.workload import GemmProblem
from tests.torch.inductor_without_gpu import (
    columns,
    externs,
    fake_gpu,
    lower,
    lower_mm_of_any_rows,
    rows,
    templates,
    tile,
)

if missing_interface() is not None:
    pytest.skip(f"this torch has another Inductor: {missing_interface()}", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, of what it imports late
BF16, FP8, INT8, FP32 = torch.bfloat16, torch.float8_e4m3fn, torch.int8, torch.float32
SCALAR = ((), (), FP32)
MM = (rows(512, 4096), columns(4096, 6144))
ADDMM = (((6144,), (1,), BF16), *MM)
EXPERTS = (rows(512, 2048), ((8, 2048, 1024), (2048 * 1024, 1, 2048), BF16), ((8,), (1,), torch.int32))


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    with fake_gpu():
        yield


@pytest.fixture(scope="module")
def h100() -> GpuSpec:
    return load_arch("h100-sxm", GpuSpec)


def ranked(top_k: int | float) -> Any:
    """Pruned by rank alone, whatever libraries do."""
    return prune_inductor(top_k, drop_slower=False)


def problem(*sizes: int, dtype: str = "bf16", output: str = "bf16") -> GemmProblem:
    return GemmProblem(*sizes, dtype, dtype, output)  # type: ignore[arg-type]


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], GemmProblem, KernelTraits]] = {
    "mm": (torch.mm, MM, problem(1, 512, 4096, 6144), KernelTraits()),
    "mm, one row": (torch.mm, (rows(1, 4096), columns(4096, 6144)), problem(1, 1, 4096, 6144), KernelTraits()),
    "mm, 8 bytes": (torch.mm, (rows(17, 4100), columns(4100, 1000)), problem(1, 17, 4100, 1000),
        KernelTraits(a_copy_bytes=8, b_copy_bytes=8)),
    "mm, 2 bytes": (torch.mm, (rows(512, 4096), rows(4096, 1001)), problem(1, 512, 4096, 1001),
        KernelTraits(a_copy_bytes=16, b_copy_bytes=2)),
    "addmm": (torch.addmm, ADDMM, problem(1, 512, 4096, 6144), KernelTraits()),
    "bmm": (torch.bmm, (((8, 512, 300), (512 * 300, 300, 1), BF16), ((8, 300, 500), (150000, 500, 1), BF16)),
        problem(8, 512, 300, 500), KernelTraits(a_copy_bytes=8, b_copy_bytes=8)),
    "baddbmm": (torch.baddbmm, (((4, 64, 128), (8192, 128, 1), BF16), ((4, 64, 512), (32768, 512, 1), BF16),
        ((4, 512, 128), (65536, 128, 1), BF16)), problem(4, 64, 512, 128), KernelTraits()),
    "int8": (torch._int_mm, (rows(512, 4096, INT8), columns(4096, 1024, INT8)),
        problem(1, 512, 4096, 1024, dtype="int8", output="int32"), KernelTraits()),
    "fp8": (lambda a, b, a_scale, b_scale: torch._scaled_mm(a, b, a_scale, b_scale, out_dtype=BF16),
        (rows(512, 4096, FP8), columns(4096, 1024, FP8), SCALAR, SCALAR), problem(1, 512, 4096, 1024, dtype="fp8"),
        KernelTraits()),
}  # fmt: skip


def best(choices: list[Any], arch: GpuSpec, gemm: GemmProblem, traits: KernelTraits, k: int) -> list[tuple[int, ...]]:
    """Tiles of the first k by the model, in the order of the choices."""
    tiles = [tile(one) for one in templates(choices)]
    assert len(set(tiles)) == len(tiles) > 10
    configs = [TritonConfig(*one, group_m=8) for one in tiles]
    times = rank_times(arch, gemm, configs, traits).times_us
    order = sorted(range(len(tiles)), key=lambda i: (times[i], i))
    return [tiles[i] for i in sorted(order[:k])]


@pytest.mark.parametrize("name", CASES)
def test_the_models_best_stay_and_all_of_libraries(name: str, h100: GpuSpec) -> None:
    function, tensors, gemm, traits = CASES[name]
    (before,) = lower(function, *tensors)
    with ranked(top_k=4) as pruned:
        (after,) = lower(function, *tensors)

    assert [tile(one) for one in templates(after)] == best(before, h100, gemm, traits, 4)
    assert externs(after) == externs(before) != []
    assert len(after) == 4 + len(externs(before))
    assert [one.problem for one in pruned.gemms] == [gemm]
    assert (pruned.num_before, pruned.num_kept) == (len(templates(before)), 4)
    (found,) = pruned.gemms[0].templates
    assert found.ranked_by == "model"
    kept_us = [one.time_us for one in found.kept]
    assert kept_us == sorted(one.time_us for one in found.candidates)[:4]  # type: ignore[type-var]


def test_dynamic_rows_are_ranked_by_their_hint(h100: GpuSpec) -> None:
    (before,) = lower_mm_of_any_rows(300, 4096, 6144)
    with ranked(top_k=3) as pruned:
        (after,) = lower_mm_of_any_rows(300, 4096, 6144)

    gemm = problem(1, 300, 4096, 6144)
    assert [one.problem for one in pruned.gemms] == [gemm]
    assert [tile(one) for one in templates(after)] == best(before, h100, gemm, KernelTraits(), 3)


def test_grouped_gemms_pass_the_handler_by_and_are_pruned_too(h100: GpuSpec) -> None:
    def grouped(a: Any, b: Any, offsets: Any) -> Any:
        return torch._grouped_mm(a, b, offs=offsets)

    (before,) = lower(grouped, *EXPERTS)
    with prune_inductor(top_k=5) as pruned:
        (after,) = lower(grouped, *EXPERTS)

    assert len(templates(after)) == 5 < len(templates(before))
    assert externs(after) == externs(before)
    gemm = problem(8, 64, 2048, 1024)
    assert [(one.op_name, one.problem) for one in pruned.gemms] == [("grouped_mm", gemm)]
    tiles = [tile(one) for one in templates(before)]
    configs = [TritonConfig(*one, group_m=math.ceil(64 / one[0])) for one in tiles]
    times = rank_times(h100, gemm, configs, KernelTraits(is_persistent=True, is_tma=True)).times_us
    order = sorted(range(len(tiles)), key=lambda i: (times[i], i))
    assert [tile(one) for one in templates(after)] == [tiles[i] for i in sorted(order[:5])]


def test_each_template_keeps_its_own(h100: GpuSpec) -> None:
    """Persistent kernels with TMA beside plain ones."""
    with config.patch({"triton.enable_persistent_tma_matmul": True}):
        (before,) = lower(torch.mm, *MM)
        with ranked(top_k=2) as pruned:
            (after,) = lower(torch.mm, *MM)

    names = [one.name for one in pruned.gemms[0].templates]
    assert len(names) == 2
    assert [one.num_kept for one in pruned.gemms[0].templates] == [2, 2]
    (tma,) = [one for one in pruned.gemms[0].templates if "tma" in one.name]
    assert tma.ranked_by == "model"
    traits = KernelTraits(is_persistent=True, is_tma=True)
    configs = [one.config for one in tma.candidates]
    assert [one.time_us for one in tma.candidates] == list(
        rank_times(h100, problem(1, 512, 4096, 6144), configs, traits).times_us
    )
    assert len(templates(after)) == 4 < len(templates(before))


def test_decompose_k_has_no_tiles_and_keeps_inductors_first() -> None:
    tensors = (rows(16, 65536), columns(65536, 16))
    (before,) = lower(torch.mm, *tensors)
    with prune_inductor(top_k=2) as pruned:
        (after,) = lower(torch.mm, *tensors)

    assert len(before) > len(after) == 3
    assert [one.description for one in after] == [one.description for one in before[:3]]
    (found,) = pruned.gemms[0].templates
    assert (found.ranked_by, found.num_kept) == ("order", 2)


def state() -> tuple[Any, ...]:
    functions = select_algorithm.get_algorithm_selector_cache().preprocessing_fns
    return V.choices, list(functions), config.inductor_choices_class


def test_all_is_undone_on_leaving_by_an_exception_too() -> None:
    before = state()
    num_candidates = len(lower(torch.mm, *MM)[0])
    with prune_inductor(top_k=1) as pruned:
        assert pruned.is_active
        assert state() != before
    assert state() == before
    with pytest.raises(KeyError), prune_inductor(top_k=1):
        raise KeyError
    assert state() == before
    assert not pruned.is_active
    assert len(lower(torch.mm, *MM)[0]) == num_candidates
    assert pruned.gemms == []


def test_nested_the_innermost_counts() -> None:
    def num_kept() -> tuple[int, int]:
        (mm,), (grouped,) = lower(torch.mm, *MM), lower(lambda a, b, offs: torch._grouped_mm(a, b, offs=offs), *EXPERTS)
        return len(templates(mm)), len(templates(grouped))

    with ranked(top_k=2) as outer:
        assert num_kept() == (2, 2)
        with ranked(top_k=5) as inner:
            assert num_kept() == (5, 5)
        assert num_kept() == (2, 2)
    assert (len(outer.gemms), len(inner.gemms)) == (4, 2)


def test_a_handler_of_the_users_own_stays_what_it_is() -> None:
    class OnlySmallTiles(InductorChoices):
        def _finalize_template_configs(self, *args: Any, **kwargs: Any) -> Any:
            found = super()._finalize_template_configs(*args, **kwargs)
            return [one for one in found if one.params.to_kwargs().get("BLOCK_M", 0) <= 64]

        def hello(self) -> str:
            return "hello"

    own = OnlySmallTiles()
    with V.set_choices_handler(own):
        with ranked(top_k=3):
            assert V.choices.hello() == "hello"
            assert isinstance(V.choices, OnlySmallTiles)
            (after,) = lower(torch.mm, *MM)
        assert V.choices is own
    assert [one[0] <= 64 for one in map(tile, templates(after))] == [True] * 3


def test_a_thread_that_outlives_the_context_is_not_pruned_after_it() -> None:
    inside, leave, counts = threading.Event(), threading.Event(), list[int]()

    def work() -> None:
        with config.patch(max_autotune=True, fx_graph_cache=False):
            V.choices  # noqa: B018  its first use of Inductor's choices is within
            inside.set()
            leave.wait(60)
            counts.append(len(templates(lower(torch.mm, *MM)[0])))

    thread = threading.Thread(target=work)
    with prune_inductor(top_k=1):
        thread.start()
        assert inside.wait(60)
    leave.set()
    thread.join()

    assert counts == [len(templates(lower(torch.mm, *MM)[0]))] != [1]


def test_another_thread_has_its_own_handler_and_report() -> None:
    counts: dict[str, int] = {}
    ready, done = threading.Event(), threading.Event()

    def work() -> None:
        with config.patch(max_autotune=True, fx_graph_cache=False):
            V.choices  # noqa: B018  before anyone prunes
            ready.set()
            done.wait(60)
            counts["plain"] = len(templates(lower(torch.mm, *MM)[0]))
            with ranked(top_k=2) as own:
                counts["own"] = len(templates(lower(torch.mm, *MM)[0]))
            counts["own report"] = own.num_kept

    thread = threading.Thread(target=work)
    thread.start()
    assert ready.wait(60)
    with ranked(top_k=3) as pruned:
        done.set()
        thread.join()
        assert len(templates(lower(torch.mm, *MM)[0])) == 3

    assert counts == {"plain": len(templates(lower(torch.mm, *MM)[0])), "own": 2, "own report": 2}
    assert len(pruned.gemms) == 1


def test_compiled_graphs_are_cached_apart() -> None:
    """What Inductor's caches of graphs have of its config in their keys."""

    def key(*args: Any, **options: Any) -> bytes:
        with prune_inductor(*args, **options):
            return pickle.dumps(config.save_config_portable(ignore_private_configs=False))

    plain = pickle.dumps(config.save_config_portable(ignore_private_configs=False))
    keys = [plain, key(3), key(4), key(3, "a100-sxm-80gb"), key(3, drop_slower=False)]

    assert len(set(keys)) == len(keys)
    assert key(3) == key(3, "h100-sxm") == keys[1]
    assert pickle.dumps(config.save_config_portable(ignore_private_configs=False)) == plain


def test_a_handler_is_not_sent_to_processes_that_compile_graphs() -> None:
    """Where Inductor would compile in another process, it compiles in this one: these errors it expects."""
    pickle.dumps(V.choices)
    with prune_inductor(), pytest.raises((AttributeError, pickle.PicklingError)):
        pickle.dumps(V.choices)


@pytest.mark.parametrize(
    ("where", "name", "value", "reason"),
    [
        (InductorChoices, "_finalize_template_configs", None, "InductorChoices has no _finalize_template_configs"),
        (InductorChoices, "_finalize_template_configs", lambda self, choices: choices, "takes choices"),
        (select_algorithm, "get_algorithm_selector_cache", None, "has no get_algorithm_selector_cache"),
    ],
)
def test_an_unknown_interface_warns_and_changes_nothing(
    where: Any, name: str, value: Any, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if value is None:
        monkeypatch.delattr(where, name)
    else:
        monkeypatch.setattr(where, name, value)
    before = (V.choices, config.inductor_choices_class)

    context = prune_inductor()
    with pytest.warns(UserWarning, match=f"Inductor is left as it is: .*{reason}"):
        pruned = context.__enter__()
    assert not pruned.is_active
    assert (V.choices, config.inductor_choices_class) == before
    assert len(pruned.notes) == 1
    assert not context.__exit__(None, None, None)


def test_candidates_that_cannot_be_read_all_stay_with_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    num_candidates = len(lower(torch.mm, *MM)[0])
    monkeypatch.setattr("torch._inductor.kernel_inputs.MMKernelInputs.mnk_hinted", lambda _: (512, 6144))
    expected = "all candidates of this mm stay, for they cannot be read: ValueError"
    with prune_inductor() as pruned, pytest.warns(UserWarning, match=expected):
        (after,) = lower(torch.mm, *MM)

    assert len(after) == num_candidates
    assert pruned.gemms == []
    assert len(pruned.notes) == 1


def test_the_gpu_that_runs_is_found_by_name_and_has_as_many_sms() -> None:
    with prune_inductor() as pruned:
        assert (pruned.gpu, pruned.notes) == ("h100-sxm", [])
    with fake_gpu(num_sms=114), prune_inductor() as fewer:
        assert fewer.notes == ["NVIDIA H100 80GB HBM3 has 114 SMs, the preset h100-sxm 132: ranked for 114"]
    with fake_gpu("NVIDIA Nameless"), pytest.raises(ArchNotFoundError, match="give arch"), prune_inductor():
        pass
    with mock.patch("torch.cuda.is_available", return_value=False):
        with pytest.raises(GemmEvalError, match="give arch"), prune_inductor():
            pass
        with prune_inductor(arch="a100-sxm-80gb") as offline:
            assert offline.gpu == "a100-sxm-80gb"


@pytest.mark.parametrize("top_k", [0, -1, 1.5, 0.0, True, "3"])
def test_bad_options_are_refused(top_k: Any) -> None:
    with pytest.raises(InvalidOptionError, match="top_k"), prune_inductor(top_k=top_k):
        pass
    with pytest.raises(InvalidOptionError, match="demo-8core"), prune_inductor(arch="demo-8core"):
        pass
