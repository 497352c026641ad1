"""The exam of served models: which runs are kept, how they are split, and that a fit finds host times again."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gemm_eval.errors import InvalidOptionError
from gemm_eval.estimate import HOST_TIMES, Engine, load_engine
from gemm_eval.serving import estimate_serving
from gemm_eval.validation.subjects import served
from tools.served_tables import tables

_SIZES = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
_POOLS = [f"{pool}_{name}" for pool in ("prefill", "decode") for name in ("num_workers", *_SIZES)]


def _run(name: str, tpot_ms: float, sizes=(8, 1, 8, 1), **more: object) -> dict[str, object]:
    row = {
        "id": name, "backend": "sglang", "backend_version": "0.5.9", "model_path": "deepseek-ai/DeepSeek-R1",
        "system": "b200_sxm", "precision": "fp8", "mode": "agg", "isl": 1024, "osl": 1024, "batch_size": 4.0,
        "silicon_ttft_ms": 100.0, "silicon_tpot_ms": tpot_ms, **dict(zip(_SIZES, map(float, sizes), strict=True)),
        **dict.fromkeys(_POOLS, np.nan),
    }  # fmt: skip
    return row | more


def _pools(workers: int, tp: int, replicas: int, moe_tp: int, moe_ep: int) -> dict[str, float]:
    groups = moe_tp * moe_ep  # of the workers that decode
    return dict(zip(_POOLS, (workers, tp, 1, tp, 1, replicas, 1, groups, moe_tp, moe_ep), strict=True))


def test_tables_keep_a_run_once_and_leave_out_what_no_column_tells() -> None:
    qwen = {"model_path": "Qwen/Qwen3-32B", "system": "gb200", "backend": "trtllm", "precision": np.nan}
    rows = tables(
        pd.DataFrame(
            [
                _run("dsr1_b200_sglang_fp8_agg_1024x1024_c4_cfg1", 9.0),
                _run("dsr1_b200_sglang_fp8_agg_1024x1024_c4_cfg2", 9.0),  # the same run
                _run("2026_03_25_deepseek_r1_b200_sxm_sglang_fp8_agg_1024x1024_c4_tp8_0_ep1_0_1", 5.0),  # speculation
                _run("dsr1_b200_sglang_fp8_agg_1024x1024_c8_cfg3", 11.0, (64, 1, 8, 8)),
                _run("dsr1_b200_trtllm_fp8_agg_1024x1024_c64_cfg4", 20.0, (1, 64, 8, 8), backend="trtllm"),
                _run("dsr1_b200_sglang_fp8_disagg_1024x1024_c8_cfg5", 11.0, mode="disagg"),  # how many workers?
                _run("dsr1_b200_sglang_fp8_disagg_1024x1024_c16_cfg6", 11.0, mode="disagg", **_pools(2, 4, 8, 1, 8)),
                _run("dsr1_b200_sglang_fp8_disagg_1024x1024_c32_cfg7", 11.0, mode="disagg", **_pools(2, 4, 8, 8, 1)),
                _run("qwen_qwen3_32b_gb200_trtllm_agg_2000x500_c2_tp2", 41.9, (2, 0, 0, 0), **qwen),
                _run("qwen_qwen3_32b_gb200_trtllm_agg_2000x500_c8_tp2", 27.6, (2, 0, 0, 0), **qwen),  # falls
                _run("qwen_qwen3_32b_gb200_trtllm_agg_4000x1000_c_tp1", 22.4, (1, 0, 0, 0), **qwen | {"isl": 4000}),
            ]
        )
    )
    has_pools = rows["prefill_workers"] > 0
    (pools,) = rows[has_pools].to_dict("records")
    assert [pools[f"prefill_{name}"] for name in ("workers", "tp", "ep", "groups")] == [2, 4, 1, 1]
    assert [pools[name] for name in ("replicas", "tp", "ep", "groups", "concurrency")] == [8, 1, 8, 8, 16]
    one_pool = rows[~has_pools].itertuples()
    kept = {(row.engine, row.tp, row.ep, row.groups, row.concurrency, row.delays_prompts) for row in one_pool}
    assert kept == {("sglang", 8, 1, 1, 4, True), ("sglang", 8, 8, 1, 8, True), ("trtllm", 1, 8, 8, 64, True)}
    assert set(rows["dtype"]) == {"fp8_block"}


def test_every_system_has_configurations_for_fits_and_others_for_the_report() -> None:
    runs = served.list_served_runs()
    series = {}
    for run in runs:
        assert run.groups == max(1, run.ep // run.tp)
        assert not run.prefill_workers or run.prefill_groups == max(1, run.prefill_ep // run.prefill_tp)
        series.setdefault(run._replace(concurrency=0, ttft_us=0, tpot_us=0, part="", delays_prompts=False), set()).add(
            run.part
        )
    assert all(len(parts) == 1 for parts in series.values())
    for system in {run.system for run in runs}:
        assert {run.part for run in runs if run.system == system} == {"fit", "report"}
    with pytest.raises(InvalidOptionError, match="gpu must be one of b200"):
        served.list_served_runs(["a100"])


class _Linear(served.Predictor):
    """Predicts times that are linear in host times, with decode steps of a batch and one step of a prompt."""

    def serving_us(self, run: served.ServedRun, engine: Engine) -> tuple[float, float]:
        kernels_us = 1000.0 * run.concurrency**0.5
        step_us = kernels_us + engine.step_us + engine.seq_us * run.concurrency
        return step_us, 3.0 * step_us + engine.request_us


def test_a_fit_finds_host_times_again_without_the_system_that_is_left_out() -> None:
    truth = {"step_us": 1200.0, "seq_us": 25.0, "request_us": 40_000.0}
    engine, predictor = load_engine("vllm"), _Linear()
    runs = []
    for run in served.list_served_runs():
        if run.engine == "vllm":
            known = engine.model_copy(update=truth | ({"step_us": 5000.0} if run.gpu == "b200" else {}))
            tpot_us, ttft_us = predictor.serving_us(run, known)
            runs.append(run._replace(tpot_us=tpot_us, ttft_us=ttft_us))
    system = "llama-3-70b on b200"
    fitted = served.fit_host_times(predictor, engine, runs, [system])
    assert set(fitted) == {"", system}
    assert fitted[system] == pytest.approx(truth, rel=1e-2)
    assert fitted[""]["step_us"] > 1.05 * truth["step_us"]


def test_the_exam_predicts_by_the_public_call_and_reports_both_figures(monkeypatch) -> None:
    every = served.list_served_runs()
    llama = [run for run in every if run.model.startswith("llama") and run.output_len == 1024 and run.tp == 8]
    few = [*llama[::8], *(run for run in every if run.part == "fit" and run.model.startswith("qwen"))][:24]
    monkeypatch.setattr(served, "list_served_runs", lambda gpus=(): [run for run in few if not gpus or run.gpu in gpus])
    report = served.validate(["h200-sxm", "b200"], ["trtllm"], fits=False)
    document = report.document()
    lines = {(line["figure"], line["group"]): line["errors"] for line in document["lines"]}
    tpot, ttft = (lines[figure, "all"] for figure in ("TPOT", "TTFT"))
    assert set(tpot) == {"ideal", "fitted roofline", "gemm_eval"}
    assert tpot["gemm_eval"]["num"] == document["num_runs"] >= ttft["gemm_eval"]["num"] > 0
    assert tpot["gemm_eval"]["median_frac"] < min(tpot["ideal"]["median_frac"], tpot["fitted roofline"]["median_frac"])
    assert tpot["gemm_eval"]["median_frac"] < 0.12
    shares = [line["coverage_frac"] for line in document["lines"] if line["group"] == "all"]
    assert all(0.4 < share <= 1.0 for share in shares)
    assert "TTFT with 1 in flight, of requests alone: no runs" in list(report.parts())
    assert all(part is not None for part in report.parts())
    with pytest.raises(InvalidOptionError, match="engine must be one of"):
        served.validate(None, ["tgi"], fits=False)
    held_out = [tuple(getattr(served.held_out_engine(run), name) for name in HOST_TIMES) for run in few]
    assert len(set(held_out)) > 1
    assert all(step_us > 0.0 for step_us, *_ in held_out)
    assert Path(served.engine_calibration_path()).is_file()


def test_intervals_hold_four_of_five_runs_of_a_fit() -> None:
    every = [run for run in served.list_served_runs() if run.part == "fit" and run.engine == "sglang"]
    runs, predictor = every[::4], served.Predictor()
    engine = load_engine("sglang").model_copy(update={"tpot_spread": 0.0, "ttft_spread": 0.0})
    spreads = served.fit_spreads([predictor.estimate(run, engine) for run in runs], runs)
    wider = [predictor.estimate(run, engine.model_copy(update=spreads)) for run in runs]
    inside = [e.tpot_interval_us[0] <= run.tpot_us <= e.tpot_interval_us[1] for e, run in zip(wider, runs, strict=True)]
    assert sum(inside) / len(runs) == pytest.approx(0.8, abs=1.5 / len(runs))
    assert min(spreads.values()) > 0.0


def test_runs_of_a_user_are_scored_with_a_row_for_requests_alone(tmp_path, monkeypatch) -> None:
    few = [run for run in served.list_served_runs() if run.model.startswith("qwen")][::20]
    monkeypatch.setattr(served, "list_served_runs", lambda: few)
    path = tmp_path / "runs.csv"
    path.write_text(
        "gpu,engine,model,prompt_len,output_len,tp,dtype,concurrency,ttft_us,tpot_us\n"
        "h200-sxm,vllm,llama-3-8b,1024,128,1,,1,60000,8000\n"
        "h200-sxm,vllm,llama-3-8b,1024,128,2,fp8,8,70000,7000\n"
    )
    first, second = served.read_served_runs(path)
    assert (first.dtype, first.ep, second.dtype, second.tp) == (None, 1, "fp8", 2)
    report = served.validate(None, None, fits=False, data=path)
    document = report.document()
    assert (document["num_runs"], document["num_alone"]) == (2, 1)
    assert {"1 in flight", "8 in flight"} < {line["group"] for line in document["lines"]}
    assert not any("no runs" in part for part in report.parts() if isinstance(part, str))
    path.write_text("gpu,engine,model\nh200-sxm,vllm,llama-3-8b\n")
    with pytest.raises(InvalidOptionError, match="has no column prompt_len; runs have gpu, engine, "):
        served.read_served_runs(path)


def test_the_exam_is_the_call_of_a_user() -> None:
    predictor = served.Predictor()
    runs = served.list_served_runs(["h200-sxm"])
    asked = [next(run for run in runs if run.engine == engine) for engine in ("vllm", "trtllm")]
    for run in (*asked, next(run for run in runs if run.prefill_workers)):
        requests = run.requests
        answer = estimate_serving(
            run.model, run.gpu, run.concurrency, prompt_len=requests.prompt_len, output_len=requests.output_len,
            has_fixed_lengths=requests.has_fixed_lengths, engine=run.engine, num_requests=10 * run.concurrency,
            **run.layout, **run.pools,
        )  # fmt: skip
        assert predictor.serving_us(run, load_engine(run.engine)) == (answer.tpot_us, answer.ttft_us)
