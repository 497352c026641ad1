"""The report on deployments: the front of throughput over speed, what starts the best one, and what was left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gemm_eval.report.page import Page, Section
from gemm_eval.report.parts import Cell, Chart, Column, Facts, Part, Text, Verdict, table_of, text_column, time_column
from gemm_eval.report.runs import trust_in_estimate
from gemm_eval.serving import Deployments, LeftOut, ServingEstimate
from gemm_eval.units import time_text

_USER, _DEVICE = "tok/s/user", "tok/s/GPU"
_COLUMNS: tuple[tuple[Column, Callable[[ServingEstimate], Cell]], ...] = (
    (text_column("layout"), lambda e: e.layout),
    (Column(_DEVICE, digits=3), lambda e: e.tokens_per_s_per_device),
    (Column(_USER, digits=3), lambda e: e.tokens_per_s_per_user),
    (time_column("TTFT"), lambda e: e.ttft_us),
    (time_column("TTFT p99"), lambda e: e.ttft_p99_us),
    (time_column("TPOT"), lambda e: e.tpot_us),
    (time_column("ITL p99"), lambda e: e.itl_p99_us),
    (Column("requests in flight"), lambda e: e.concurrency),
    (Column("GPUs"), lambda e: e.num_devices),
    (text_column("arch"), lambda e: e.arch_name),
    (text_column("engine"), lambda e: e.engine),
    (text_column("types"), lambda e: e.options["dtype"] or "of the checkpoint"),
    (Column("requests/s", digits=3), lambda e: e.requests_per_s),
    (Column("sequences in decode", digits=3), lambda e: e.mean_seqs),
    (Column("of at most"), lambda e: e.max_seqs),
)


def deployments_report(deployments: Deployments, commands: Sequence[str] = ()) -> Page:
    """Return the page on `Deployments`, with `engine_commands` of the best; InfeasibleError: none is in the limits."""
    best = deployments.best
    columns = [column for column, _ in _COLUMNS]
    rows = [[say(estimate) for _, say in _COLUMNS] for estimate in deployments.front]
    chart = Chart(
        columns, rows, _USER, _DEVICE, log_y=True, highlight=[True] * len(rows), joined="before",
        caption="Throughput of a GPU over the rate of one client; no deployment is above the line",
    )  # fmt: skip
    start: list[Part] = [Text(text, is_code=True) for text in commands]
    left: list[tuple[Column, Callable[[LeftOut], Cell]]] = [
        (text_column("layout"), lambda item: str(item.layout)),
        (text_column("why"), lambda item: item.reason),
        (text_column("arch"), lambda item: item.arch_name),
        (text_column("engine"), lambda item: item.engine),
        (text_column("types"), lambda item: item.dtype or "of the checkpoint"),
    ]
    front = table_of(deployments.front, _COLUMNS, "Deployments on the Pareto front of both rates")
    sections = [
        Section("Pareto front", [Facts(_facts(deployments)), front]),
        Section("Best deployment", [Text(best.explain()), *start]),
        Section("Excluded layouts", [table_of(deployments.left_out, left, "Layouts that cannot serve these requests")]),
    ]
    lead: list[Part] = [_verdict(deployments, best), chart]
    return Page(f"Serving {deployments.model_name}", "deployments and their loads", sections, lead)


def _verdict(deployments: Deployments, best: ServingEstimate) -> Verdict:
    fastest = deployments.front[-1]
    headline = (
        f"{best.layout} on {best.num_devices} x {best.arch_name} gives {best.tokens_per_s_per_device:,.0f} "
        f"tok/s/GPU at {best.tokens_per_s_per_user:,.0f} tok/s/user."
    )
    caveat = "All requests have one size: bursts and long tails of lengths queue longer."
    if best.is_full:
        caveat = "Requests queue here: trust the throughput, not TTFT."
    rates = f"TTFT {time_text(best.ttft_us)}, TPOT {time_text(best.tpot_us)}"
    points = [("The best deployment has", f"{best.concurrency:,} requests in flight, {rates}")]
    if fastest is not best:
        text = f"{fastest.tokens_per_s_per_user:,.0f} tok/s/user, {fastest.concurrency:,} requests in flight"
        points.append(("Fastest for a client", f"{fastest.layout}: {text}"))
    return Verdict(headline, points + trust_in_estimate(best, caveat))


def _facts(deployments: Deployments) -> list[tuple[str, str]]:
    limits = ((name, getattr(deployments, f"{name.lower()}_limit_us")) for name in ("TTFT", "TPOT"))
    return [
        ("model", deployments.model_name),
        ("tokens of a request", f"{deployments.prompt_len:,} in, {deployments.output_len:,} out"),
        *((f"{name} at most", time_text(limit)) for name, limit in limits if limit is not None),
        ("deployments", f"{deployments.num_points:,}, {deployments.num_within:,} of them within the limits"),
    ]
