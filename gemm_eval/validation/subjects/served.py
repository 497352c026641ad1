"""The exam of served models: TPOT and TTFT of runs of engines on servers, as clients measured them.

Runs are predicted by the call that a user makes (`gemm_eval.serving.estimate_serving`): model, GPU, engine, layout,
types, lengths and requests in flight. Half of the configurations of each (model, GPU) are for fits, and the other half
for the report. The numbers of an engine that predict a run are fitted on other (model, GPU) alone.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml
from rich.table import Table

from gemm_eval.arch import GpuSpec, load_arch, read_yaml
from gemm_eval.errors import InvalidOptionError
from gemm_eval.estimate import (
    HOST_TIMES,
    Engine,
    ModelEstimate,
    Replica,
    engine_calibration_path,
    estimate_model,
    list_engines,
    load_engine,
)
from gemm_eval.evaluate import GEMMEvaluator
from gemm_eval.measure import read_frame
from gemm_eval.progress import progress_note
from gemm_eval.serving import Requests, ServingEstimate, StepTimes, serve
from gemm_eval.units import bytes_per_us
from gemm_eval.validation.baselines import fit_rate
from gemm_eval.validation.exam import FITTED, MODEL, Line, chosen_gpus, lines_of, lines_table
from gemm_eval.validation.fit import Ranges, Search, provenance, rounded
from gemm_eval.validation.metrics import ALL
from gemm_eval.validation.subjects import Fitted, Report
from gemm_eval.validation.tables import Floats, Mask, measured_root
from gemm_eval.words import check_word

IDEAL_STEP = "ideal"
"""The baseline without an engine: `estimate_model`, a prompt alone and a decode step of all requests."""

_AICONFIGURATOR = (
    "AIConfigurator 0.12 itself, on 347 random runs of the same file, parts of which it is tuned on: TPOT 30.3% in the "
    "mean, 19.2% median, 57% p90; TTFT 60% in the mean"
)
_POOLS = (
    "pools: nothing is fitted on them; their TTFT falls where requests in flight grow (25 s at 7 of them), so that it "
    "has starts of the engines and their router in it, which no column tells"
)
_ROOF = (2000.0, 0.6), (10.0, 0.05), (30_000.0, 2.0)  # start and ends: overhead in microseconds, share of the rate
_NUM_REQUESTS = 10  # a client sends so many times its concurrency (num-prompts of InferenceMAX)
_SEARCH = Search(loss_scale=0.1, difference=0.01, off_bounds=1e-3, evaluations=100)
_TTFT_WEIGHT = 0.5  # of a log error of TTFT, beside one of TPOT: queues add noise
_INSIDE_FRAC = 0.8  # of runs, that an interval holds
_ROUNDS = 2  # of the fit, each of which takes times as linear in the host times
_LEAST_FRAC = 0.1  # of a time that is left where the linear form falls below


class _HostTime(NamedTuple):
    name: str
    low: float
    high: float
    default: float


_ITEMS = (
    _HostTime("step_us", 0.0, 10_000.0, 500.0), _HostTime("seq_us", 0.0, 200.0, 10.0),
    _HostTime("request_us", 0.0, 1e6, 20_000.0),
)  # fmt: skip


class ServedRun(NamedTuple):
    """A run of a served model: what ran, and mean latencies that clients saw, in microseconds.

    Attributes:
        dtype, kv_dtype: types of weights and cache; None: those of the checkpoint.
        least_len_frac: lengths are drawn from this share of `prompt_len` and `output_len` on; 1: all are equal.
        groups: of data-parallel attention.
        replicas: that decode; of one pool they read, too.
        prefill_workers: of a pool for prompts, with `prefill_tp`, `prefill_ep` and `prefill_groups`; 0: no pools.
        memory_frac, chunk_tokens: what the command of the server asked for; None: the defaults of the engine.
        part: ``"fit"`` or ``"report"``.
        delays_prompts: the run asked the engine to hold prompts back, so that its TTFT is not scored.
    """

    gpu: str
    engine: str
    model: str
    prompt_len: int
    output_len: int
    concurrency: int
    ttft_us: float
    tpot_us: float
    version: str = ""
    dtype: str | None = None
    kv_dtype: str | None = None
    least_len_frac: float = 1.0
    tp: int = 1
    ep: int = 1
    groups: int = 1
    replicas: int = 1
    prefill_workers: int = 0
    prefill_tp: int = 1
    prefill_ep: int = 1
    prefill_groups: int = 1
    memory_frac: float | None = None
    chunk_tokens: int | None = None
    part: str = "report"
    delays_prompts: bool = False

    @property
    def system(self) -> str:
        """Model and GPU, which are held out together."""
        return f"{self.model} on {self.gpu}"

    @property
    def requests(self) -> Requests:
        share = (1.0 + self.least_len_frac) / 2.0
        prompt_len, output_len = round(share * self.prompt_len), round(share * self.output_len)
        return Requests(prompt_len, output_len, has_fixed_lengths=self.least_len_frac == 1.0)

    @property
    def layout(self) -> dict[str, Any]:
        """Degrees and types, as `estimate_serving` takes them.

        DeepSeek's nvfp4 is of experts and networks alone: the published checkpoint keeps attention in bf16.
        """
        is_mixed = self.model.startswith("deepseek") and self.dtype == "nvfp4"
        types: dict[str, Any] = {"dtype": "bf16", "expert_dtype": "nvfp4"} if is_mixed else {"dtype": self.dtype}
        if self.memory_frac is not None:
            types["memory_frac"] = self.memory_frac
        if self.chunk_tokens is not None:
            types["chunk_tokens"] = int(self.chunk_tokens)
        return types | {"tensor_parallel": self.tp, "expert_parallel": self.ep, "kv_dtype": self.kv_dtype}

    @property
    def pools(self) -> dict[str, Any]:
        """Replicas and the pool that reads prompts, as `estimate_serving` takes them."""
        prefill = {"tensor_parallel": self.prefill_tp, "expert_parallel": self.prefill_ep}
        return {"num_replicas": self.replicas, "num_prefill_replicas": self.prefill_workers, "prefill": prefill}


def list_served_runs(gpus: Sequence[str] = ()) -> list[ServedRun]:
    """Return the runs on some GPUs, or on all; InvalidOptionError: a GPU has none."""
    known = sorted(path.parent.name for path in measured_root("").glob("*/served"))
    return [
        run
        for gpu in chosen_gpus(gpus, known)
        for run in read_served_runs(measured_root(gpu) / "served" / "runs.csv", gpu=gpu)
    ]


def read_served_runs(path: Path, **values: Any) -> list[ServedRun]:
    """Return the runs of a CSV file with the fields of `ServedRun` as columns; `values` are those of all its runs.

    Columns that it lacks, and empty cells, have the default of the field. InvalidOptionError: it has none.
    """
    table = read_frame(path).assign(**values)
    missing = [name for name in ServedRun._fields if name not in table and name not in ServedRun._field_defaults]
    if missing:
        raise InvalidOptionError(f"{path} has no column {missing[0]}; runs have {', '.join(ServedRun._fields)}")
    rows = table.reindex(columns=list(ServedRun._fields)).astype(object)
    return [ServedRun(**{str(name): value for name, value in row.dropna().items()}) for _, row in rows.iterrows()]


class Predictor:
    """Predicts runs; work that runs share is priced once, for all host times of an engine."""

    def __init__(self) -> None:
        self._evaluator = cache(GEMMEvaluator)
        self._replicas: dict[Any, Replica] = {}
        self._times: dict[Any, StepTimes] = {}

    def estimate(self, run: ServedRun, engine: Engine) -> ServingEstimate:
        pools = run.pools
        reader = self._steps_of(run, engine, run.layout | pools["prefill"]) if run.prefill_workers else None
        return serve(
            self._steps_of(run, engine, run.layout), run.requests, run.concurrency,
            num_requests=_NUM_REQUESTS * run.concurrency, **pools | {"prefill": reader},
        )  # fmt: skip

    def serving_us(self, run: ServedRun, engine: Engine) -> tuple[float, float]:
        estimate = self.estimate(run, engine)
        return estimate.tpot_us, estimate.ttft_us

    def _steps_of(self, run: ServedRun, engine: Engine, options: Mapping[str, Any]) -> StepTimes:
        layout = (run.gpu, run.model, engine.name, *options.items())
        if layout not in self._replicas:
            self._replicas[layout] = Replica(run.model, self._evaluator(run.gpu), engine=engine, **options)
        key = layout, run.requests
        if key not in self._times:
            self._times[key] = run.requests.times_on(self._replicas[layout])
        self._times[key].replica.engine = engine
        return self._times[key]

    def ideal(self, run: ServedRun) -> ModelEstimate:
        """Return the estimate of a prompt alone and of a decode step of all requests, without an engine."""
        prompt_len, output_len, *_ = run.requests
        return estimate_model(
            run.model, self._evaluator(run.gpu), max(1, run.concurrency // (run.replicas * run.groups)),
            prompt_len=prompt_len, output_len=output_len, ignore_memory=True, **run.layout,
        )  # fmt: skip

    def predict(self, runs: Sequence[ServedRun], engine: Engine) -> Floats:
        """Return TPOT and TTFT of runs, [runs, 2]."""
        return np.array([self.serving_us(run, engine) for run in runs])


def _linear_times(
    predictor: Predictor, engine: Engine, runs: Sequence[ServedRun], start: Mapping[str, float]
) -> Callable[[Mask, Mapping[str, float]], Floats]:
    """Return TPOT and TTFT of some runs, one after the other, by host times: as linear around `start`."""
    base_us = predictor.predict(runs, _with(engine, start))
    slopes = {}
    for item in _ITEMS:
        step = max(0.1 * start[item.name], 0.01 * item.default)
        moved = _with(engine, {**start, item.name: start[item.name] + step})
        slopes[item.name] = (predictor.predict(runs, moved) - base_us) / step

    def times_us(rows: Mask, values: Mapping[str, float]) -> Floats:
        more_us = sum(slopes[name][rows] * (value - start[name]) for name, value in values.items())
        return np.maximum(base_us[rows] + more_us, _LEAST_FRAC * base_us[rows]).ravel()

    return times_us


def fit_host_times(
    predictor: Predictor, engine: Engine, runs: Sequence[ServedRun], left_out: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return the host times of an engine, fitted without the runs of each system of `left_out`; "": on all runs.

    Times are taken as linear in the host times, around what the round before fitted on all runs.
    """
    measured_us = np.array([[run.tpot_us, run.ttft_us] for run in runs])
    systems = np.array([run.system for run in runs])
    weights = np.array([[1.0, 0.0 if run.delays_prompts else _TTFT_WEIGHT] for run in runs])
    start = {item.name: item.default for item in _ITEMS}
    fitted: dict[str, dict[str, float]] = {}
    for _ in range(_ROUNDS):
        times_us = _linear_times(predictor, engine, runs, start)
        for system in ("", *left_out):
            kept = systems != system
            fitted[system] = Ranges(_ITEMS).fit(
                partial(times_us, kept), measured_us[kept].ravel(), _SEARCH, start, weights[kept].ravel()
            )
        start = fitted[""]
    return fitted


def fit_spreads(estimates: Sequence[ServingEstimate], runs: Sequence[ServedRun]) -> dict[str, float]:
    """Return `tpot_spread` and `ttft_spread` of an engine: with them intervals hold 80% of these runs."""

    def spread(figure: str, shown: Sequence[bool]) -> float:
        missed = []
        for estimate, run in itertools.compress(zip(estimates, runs, strict=True), shown):
            step = estimate.decode if figure == "tpot_us" else estimate.prefill
            error = math.log(getattr(run, figure) / getattr(estimate, figure))
            low, high = (math.log(end_us / step.latency_us) for end_us in step.interval_us)
            missed.append(math.sqrt(max(0.0, error**2 - (high if error > 0.0 else low) ** 2)))
        return float(np.quantile(missed, _INSIDE_FRAC))

    shown = [not run.delays_prompts for run in runs]
    return {"tpot_spread": spread("tpot_us", [True] * len(runs)), "ttft_spread": spread("ttft_us", shown)}


def _with(engine: Engine, values: Mapping[str, float]) -> Engine:
    return engine.model_copy(update={name: values[name] for name in HOST_TIMES})


def held_out_engine(run: ServedRun) -> Engine:
    """Return the engine of a run with the host times that were fitted on other systems."""
    path = engine_calibration_path()
    engine = load_engine(run.engine)
    held_out = _held_out(path.stat().st_mtime_ns) if path.is_file() else {}
    values = held_out.get(run.system, {}).get(run.engine)
    return engine if values is None else _with(engine, values)


@cache
def _held_out(_stamp: int) -> Mapping[str, Any]:
    return read_yaml(engine_calibration_path())["held_out"]


def score_served(
    runs: Sequence[ServedRun], fits: Sequence[ServedRun], engine_of: Callable[[ServedRun], Engine] = held_out_engine
) -> dict[str, list[Line]]:
    """Return the errors of TPOT and TTFT of runs by figure, and the share of runs that intervals hold.

    The roofline is fitted on `fits`, of other systems than that of the run.
    """
    predictor = Predictor()
    estimates = []
    for number, run in enumerate(runs, 1):
        progress_note(f"run {number:,} of {len(runs):,}")
        estimates.append(predictor.estimate(run, engine_of(run)))
    every = [*runs, *fits]
    ideals = [predictor.ideal(run) for run in every]
    moved_bytes = np.array([ideal.memory.weight_bytes + ideal.memory.kv_cache_bytes for ideal in ideals])
    moved_us = moved_bytes / [bytes_per_us(load_arch(run.gpu, GpuSpec).dram_gb_per_s) for run in every]
    systems = np.array([run.system for run in every])
    is_fit = np.arange(len(every)) >= len(runs)

    roofline_us, tpot_us = np.empty(len(every)), np.array([run.tpot_us for run in every])
    for system in dict.fromkeys(run.system for run in runs):
        others, rows = is_fit & (systems != system), systems == system
        roofline_us[rows] = fit_rate(moved_us, tpot_us, others, rows, *_ROOF)
    lines: dict[str, list[Line]] = {}
    has_pools = np.array([run.prefill_workers > 0 for run in runs])
    is_delayed = np.array([run.delays_prompts for run in runs])
    shown_by = {"TPOT": ~has_pools, "TTFT": ~has_pools & ~is_delayed}
    shown_by |= dict.fromkeys(("TPOT of pools", "TTFT of pools"), has_pools)
    for figure, shown in shown_by.items():
        if not shown.any():
            continue
        name = figure[: len("TPOT")].lower()
        measured_us, ideal_us, model_us = (
            np.array([getattr(item, f"{name}_us") for item in items])
            for items in (runs, ideals[: len(runs)], estimates)
        )
        ends = [getattr(estimate, f"{name}_interval_us") for estimate in estimates]
        inside = np.array([low <= us <= high for (low, high), us in zip(ends, measured_us, strict=True)])
        roof = {FITTED: roofline_us[: len(runs)]} if name == "tpot" else {}
        predicted = {IDEAL_STEP: ideal_us, **roof, MODEL: model_us}
        lines[figure] = [
            line._replace(more={"coverage_frac": float(inside[mask & shown].mean())})
            for labels, mask in _groups(runs)
            for line in lines_of({"figure": figure}, measured_us, predicted, [(labels, mask & shown)])
        ]
    return lines


def _groups(runs: Sequence[ServedRun]) -> Iterator[tuple[Mapping[str, Any], Mask]]:
    """Yield the rows of each line: by engine, by system, by requests in flight, and all."""
    labels: Mapping[str, Callable[[ServedRun], str]] = {
        "engine": lambda run: run.engine,
        "system": lambda run: f"{run.engine}, {run.system}, {run.dtype}",
        "requests": lambda run: f"{run.concurrency} in flight",
    }
    for label in labels.values():
        names = [label(run) for run in runs]
        for name in sorted(set(names), key=lambda name: (not name[0].isdigit() or int(name.split()[0]), name)):
            yield {"group": name}, np.array([name == other for other in names])
    yield {"group": ALL}, np.ones(len(runs), bool)


def validate(
    names: Sequence[str] | None, engines: Sequence[str] | None, fits: bool, data: Path | None = None
) -> Report:
    """Score served runs; parameters are the options of the command."""
    for name in engines or ():
        check_word("engine", name, list_engines())
    every = list_served_runs(names or ()) if data is None else read_served_runs(data)
    asked = [run for run in every if run.gpu in (names or [run.gpu]) and run.engine in (engines or [run.engine])]
    runs = [run for run in asked if fits or run.part == "report"]
    if not runs:
        raise InvalidOptionError("there are no served runs of these engines for these GPUs")
    lines = score_served(
        runs, [run for run in list_served_runs() if run.part == "fit" and not run.prefill_workers],
        held_out_engine if data is None else lambda run: load_engine(run.engine),
    )  # fmt: skip

    def document() -> dict[str, Any]:
        return {
            "num_runs": len(runs), "num_alone": sum(run.concurrency == 1 for run in runs),
            "part": ALL if fits else "report", "aiconfigurator": _AICONFIGURATOR,
            "lines": [line.to_dict() for of_figure in lines.values() for line in of_figure],
        }  # fmt: skip

    def parts() -> Iterator[Table | str]:
        yield (
            "held out: host times of engines are fitted on other (model, GPU); half of the configurations of each are "
            "for fits, and these are " + ("all" if fits else "the others")
            if data is None
            else f"runs of {data}, by the engines as they come"
        )
        baselines = {IDEAL_STEP: "ideal", FITTED: "roof", MODEL: "MAPE"}
        for figure, of_figure in lines.items():
            shares = {who: word for who, word in baselines.items() if who in of_figure[0].errors}
            title = f"{figure}: {of_figure[-1].errors[MODEL].num} runs" + " of NVIDIA" * (data is None)
            yield lines_table(of_figure, title, {"group": "runs of"}, shares)
        if not any(run.concurrency == 1 for run in runs):
            yield "TTFT with 1 in flight, of requests alone: no runs"
        yield "ideal: a prompt alone, and a decode step of all requests; roof: weights and KV bytes, fitted"
        if any(run.prefill_workers for run in runs):
            yield _POOLS
        yield _AICONFIGURATOR

    return Report(document, parts)


def calibrate() -> Iterator[Fitted]:
    """Fit the host times of engines on the fit half of the runs, all together and without each system."""
    runs = [run for run in list_served_runs() if run.part == "fit" and not run.prefill_workers]
    predictor = Predictor()
    engines: dict[str, dict[str, float]] = {}
    held_out: dict[str, dict[str, dict[str, float]]] = {}
    for name in sorted({run.engine for run in runs}):
        of_engine = [run for run in runs if run.engine == name]
        systems = sorted({run.system for run in of_engine})
        fitted = fit_host_times(predictor, load_engine(name), of_engine, systems if len(systems) > 1 else ())
        engine_of = {system: _with(load_engine(name), values) for system, values in fitted.items()}
        estimates = [predictor.estimate(run, engine_of.get(run.system, engine_of[""])) for run in of_engine]
        fitted[""] |= fit_spreads(estimates, of_engine)
        for system, values in fitted.items():
            (held_out.setdefault(system, {}) if system else engines)[name] = rounded(values)
    document = provenance(1, "runs", 0) | {
        "folds": "each (model, GPU) by a fit on the others, `held_out`; the half of the runs that is for fits",
        "num_runs": len(runs), "engines": engines, "held_out": dict(sorted(held_out.items())),
    }  # fmt: skip
    text = "# Written by `gemm-eval calibrate served`; not to be edited by hand. Microseconds.\n"
    text += yaml.safe_dump(document, sort_keys=False, width=120)
    words = {name: ", ".join(f"{key} {value:,.5g}" for key, value in of.items()) for name, of in engines.items()}
    shown = tuple(f"{name}: {of}" for name, of in words.items())
    yield Fitted(engine_calibration_path(), lambda path: path.write_text(text, encoding="utf-8"), shown)
