"""`prune_inductor`: torch.compile's max-autotune benchmarks only what the model finds worth it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from gemm_eval.arch import GpuSpec
from gemm_eval.autotune.triton import gpu_spec, num_kept
from gemm_eval.extras import needs_extra
from gemm_eval.torch.inductor_handler import Pruning, PruningChoices, missing_interface
from gemm_eval.torch.inductor_report import PruneReport

__all__ = ["DEFAULT_TOP_K", "prune_inductor"]

DEFAULT_TOP_K = 3
"""Candidates of a template that are benchmarked unless the caller says otherwise.

The best of the model's first three is 99.3% as fast as the best of all over 730 GEMMs that were measured
(docs/figures.md, `gemm-eval validate triton`), and libraries' kernels are benchmarked beside them. Inductor has 20 to
105 candidates of a GEMM, each of which it renders, compiles and benchmarks.
"""


@contextmanager
def prune_inductor(
    top_k: int | float = DEFAULT_TOP_K, arch: GpuSpec | str | None = None, *, drop_slower: bool = True
) -> Iterator[PruneReport]:
    """Let Inductor compile and benchmark only the candidates of GEMMs that the model ranks best.

        with prune_inductor() as pruned:
            compiled = torch.compile(model, mode="max-autotune")
            compiled(x)  # compilation is what must happen within
        print(pruned)

    Of each template the `top_k` best for mm, addmm, bmm, baddbmm, mm_plus_mm, scaled and grouped GEMMs stay; so do all
    kernels of libraries. Inductor chooses among what is left, as ever.

    Of these, candidates go that cuBLAS surely beats: such that are predicted slower than it by more than what nine of
    ten predictions of either are off, together a quarter to a third. Where a kernel that may be fused follows, cuBLAS
    counts as slower by the reading and writing of C that a template saves. With no candidate left the library's kernel
    is taken without any timing, and nothing is fused into it but a bias, nor into its inputs. This is for mm, addmm,
    bmm and baddbmm in 16 bits, with rows that start on 16 bytes, on Hopper, whose Triton kernels were timed. The first
    time on a machine the model of libraries is compiled, which takes a while.

    What is left of these GEMMs, on any GPU, is timed in CUDA graphs, where this torch lets us: otherwise Inductor
    counts the host's time of a call as the kernel's, and below 50 us chooses by that. Timings that Inductor has in its
    cache are taken as they are.

    Templates with kernels that the model does not know (tensor memory, fp32 without tensor cores) are ranked by a
    roofline of their tiles, and those without tiles of their own (decompose_k) in Inductor's order. Convolutions and
    attention are as without.

    It holds for the thread that enters it, until it leaves; the innermost counts. Graphs that Inductor has in its cache
    are not compiled anew: they are cached apart for all arguments. It needs torch 2.10 or later; where the
    interface of Inductor is unknown, it warns and leaves Inductor as it is.

    Args:
        top_k: how many candidates of a template stay: a count, or a share of them, rounded down; at least one.
        arch: the GPU: a preset's name, a file, or a spec; None: torch's current one.
        drop_slower: whether candidates go that the library surely beats, down to none.

    Yields:
        What happened to each GEMM.

    Raises:
        InvalidOptionError: `top_k` is out of range, or `arch` is no GPU.
        ArchError: no such preset or file, or none for the GPU that runs.
        GemmEvalError: torch is missing, or `arch` is None, and there is no GPU.
    """
    num_kept(top_k, 1)
    with needs_extra("pruning of Inductor's candidates", "torch"):
        import torch
    spec = gpu_spec(arch)
    report = PruneReport(spec.name, top_k)
    if arch is None:
        spec = _as_it_runs(spec, torch.cuda.get_device_properties(torch.cuda.current_device()), report)
    missing = missing_interface()
    if missing is not None:
        text = f"Inductor is left as it is: torch {torch.__version__} has no interface that is known: {missing}"
        report.note(text)
        warnings.warn(text, stacklevel=3)
        yield report
        return
    with ExitStack() as stack:
        _install(stack, Pruning(spec, top_k, report, drop_slower))
        report.is_active = True
        stack.callback(setattr, report, "is_active", False)
        yield report


def _as_it_runs(spec: GpuSpec, properties: Any, report: PruneReport) -> GpuSpec:
    """The preset, with as many SMs as the device has: a partition of a GPU, or one with fewer."""
    num_sms = int(properties.multi_processor_count)
    if num_sms == spec.num_sms:
        return spec
    report.note(f"{properties.name} has {num_sms} SMs, the preset {spec.name} {spec.num_sms}: ranked for {num_sms}")
    return spec.model_copy(update={"num_sms": num_sms})


def _install(stack: ExitStack, pruning: Pruning) -> None:
    """Put it in Inductor's way until `stack` unwinds."""
    from torch._inductor import config, select_algorithm
    from torch._inductor.virtualized import V

    make_base = config.inductor_choices_class
    choices = PruningChoices(pruning, getattr(make_base, "make_base", make_base))
    handler = choices.around(V.choices)
    stack.enter_context(config.patch(inductor_choices_class=choices))
    stack.enter_context(V.set_choices_handler(handler))
    functions = select_algorithm.get_algorithm_selector_cache().preprocessing_fns
    functions.append(pruning.callers)
    stack.callback(lambda: functions.remove(pruning.callers) if pruning.callers in functions else None)
