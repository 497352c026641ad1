"""What a GPU that runs no kernel is said to lack: the nearest kernel's demand, and a lever that holds."""

from __future__ import annotations

from typing import Any

import pytest

from gemm_eval import GEMMEvaluator, InfeasibleError, load_arch
from gemm_eval.arch import GpuSpec

H100 = load_arch("h100-sxm", GpuSpec)
A100 = load_arch("a100-sxm-80gb", GpuSpec)


@pytest.mark.parametrize("dtype", ["fp16", "w4a16", "w8a16"])
@pytest.mark.parametrize(
    ("arch", "changes", "resource"),
    [
        (H100, {"smem_per_cta_bytes": 2000}, "smem"),
        (A100, {"smem_per_cta_bytes": 600}, "smem"),
        (H100, {"registers_per_sm": 2048}, "registers"),
        (A100, {"max_threads_per_sm": 64}, "threads"),
    ],
    ids=lambda value: value.name if isinstance(value, GpuSpec) else str(value),
)
def test_its_levers_lead_to_a_chip_that_runs_it(arch: GpuSpec, dtype: str, changes: Any, resource: str) -> None:
    arch, seen = arch.with_(**changes), []
    while (error := what_it_lacks(arch, dtype)) is not None:
        assert error.gap > 0
        seen.append(error.resource)
        assert len(seen) < 5
        name, _, value = error.levers[0].partition(" >= ")
        arch = arch.with_(**{name: int(value.replace(",", ""))})
    assert resource in seen


def what_it_lacks(arch: GpuSpec, dtype: str) -> InfeasibleError | None:
    try:
        GEMMEvaluator(arch, disk_cache=False).evaluate(1, 64, 4096, 4096, dtype=dtype)
    except InfeasibleError as error:
        return error
    return None


def test_clusters_need_sms_that_lie_together() -> None:
    with pytest.raises(
        InfeasibleError, match=r"no kernel of library cublas for .* lacks SMs that lie together"
    ) as caught:
        GEMMEvaluator(H100.with_(num_sms=1), disk_cache=False).evaluate(1, 64, 4096, 4096)
    assert (caught.value.resource, caught.value.demand, caught.value.limit) == ("sms", 2, 1)
    assert caught.value.levers == ("num_sms >= 2",)
