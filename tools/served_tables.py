"""Write arch/measured/<gpu>/served from NVIDIA's runs of served models: `python -m tools.served_tables runs.parquet`.

`runs.parquet` has the columns of aiconfigurator-core 0.12.0, systems/silicon_sample.csv. Many runs stand there twice or
three times, under ids of several exports that describe layouts differently. What is left out, by rules that look at no
prediction:

- Equal runs: all but one.
- DeepSeek: ids of 2026 also name runs with speculation (MTP), which no column tells: the same layout has half the time
  per token. Only runs of an export without speculation (`dsr1_`) are kept.
- Runs whose time per token falls, by more than `_MOST_FALL`, where concurrency grows and all else is equal.
- Runs whose id does not say how many requests were in flight.
- Disaggregated runs that do not say how many workers each pool has (their layouts are those of one pool), and runs of
  data-parallel attention whose experts are cut by tensor parallelism, which no layout here is.

`delays_prompts`: the script of the run asked the engine to hold prompts back, so that its TTFT is not the engine's own:
TensorRT-LLM's `batch_wait_timeout_iters` (Llama at 1,024 in and out on fewer than 8 GPUs; DeepSeek in fp8 on a B200
there, from 64 requests on), SGLang's `--scheduler-recv-interval` of 10 or 30 steps (DeepSeek on a B200). Source:
benchmarks/ of https://github.com/SemiAnalysisAI/InferenceX (70b_fp8_h200_trt_slurm.sh, dsr1_fp8_b200_trt.sh,
dsr1_fp8_b200.sh, dsr1_fp4_b200.sh), whose clients draw lengths from 0.8 to 1 of the longest (README of InferenceMAX).
"""

import random
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gemm_eval.arch import data_root

_MODELS = {
    "deepseek-ai/DeepSeek-R1": "deepseek-v3", "deepseek-ai/DeepSeek-V3": "deepseek-v3",
    "meta-llama/Llama-3.1-70B": "llama-3-70b", "Qwen/Qwen3-32B": "qwen3-32b",
}  # fmt: skip
_GPUS = {"b200_sxm": "b200", "gb200": "gb200", "h100_sxm": "h100-sxm", "h200_sxm": "h200-sxm"}
_ID = re.compile(r"_(?:agg|disagg)_\d+x\d+_c(\d+)_")
_MOST_FALL = 1.4
_SEED = 45
_DRAWN = ("deepseek-v3", "llama-3-70b")  # of InferenceMAX, whose lengths are drawn from 0.8 to 1 of the longest
SERIES = [
    "engine", "version", "model", "dtype", "prompt_len", "output_len", "tp", "ep", "groups", "replicas",
    "prefill_workers", "prefill_tp", "prefill_ep", "prefill_groups",
]  # fmt: skip
"""Columns that are equal in runs of one configuration, which differ in concurrency alone."""


def _layout(run: Any, model: str, pool: str = "") -> tuple[int, int, int]:
    """Return tensor and expert parallelism and the groups of data-parallel attention of a run, or of its pool."""
    names = ("tp_size", "attention_dp_size", "moe_tp_size", "moe_ep_size")
    sizes = (getattr(run, pool + name) for name in names)
    tp, groups, moe_tp, moe_ep = (1 if np.isnan(size) or size < 1 else int(size) for size in sizes)
    if model != "deepseek-v3":
        return tp, 1, 1
    if moe_tp == moe_ep > 1:  # these exports write the product of both where one is meant
        return (moe_ep, moe_ep, 1) if tp > 1 else (1, moe_ep, moe_ep)
    return tp, moe_ep, groups


def _row(run: Any) -> dict[str, Any]:
    """Return a run in the words of gemm_eval."""
    model, precision = _MODELS[run.model_path], run.precision if isinstance(run.precision, str) else None
    is_split = run.mode == "disagg"
    tp, ep, groups = _layout(run, model, "decode_" if is_split else "")
    replicas, workers, reading = 1, 0, (0, 0, 0)
    if is_split:
        replicas, workers = int(run.decode_num_workers), int(run.prefill_num_workers)
        reading = _layout(run, model, "prefill_")
    concurrency = _ID.search(run.id)
    # fp8 of DeepSeek and of Qwen/Qwen3-32B-FP8 is published in blocks of 128 x 128, of nvidia/Llama-3.1-70B by tensor
    of_precision = {None: "bf16", "fp8": "fp8" if model == "llama-3-70b" else "fp8_block", "fp4": "nvfp4"}
    # the scripts of InferenceMAX ask for a cache of fp8, but for SGLang's on Hopper
    kv_dtype = "bf16" if precision is None or (run.backend == "sglang" and "h" in _GPUS[run.system][:1]) else "fp8"
    return {
        "id": run.id, "engine": run.backend, "version": run.backend_version, "model": model,
        "gpu": _GPUS[run.system], "dtype": of_precision[precision], "kv_dtype": kv_dtype, "prompt_len": int(run.isl),
        "output_len": int(run.osl), "least_len_frac": 0.8 if model in _DRAWN else 1.0, "tp": tp, "ep": ep,
        "groups": groups, "replicas": replicas, "prefill_workers": workers,
        **dict(zip(("prefill_tp", "prefill_ep", "prefill_groups"), reading, strict=True)),
        "concurrency": int(concurrency[1] if concurrency else 0), "ttft_us": round(run.silicon_ttft_ms * 1e3, 1),
        "tpot_us": round(run.silicon_tpot_ms * 1e3, 1),
    }  # fmt: skip


def tables(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that are kept, and in `part` which are for fits and which for the report."""
    runs = runs[(runs["mode"] == "agg") | runs["prefill_num_workers"].notna()]
    is_deepseek = runs["model_path"].str.startswith("deepseek-ai/")
    runs = runs[~is_deepseek | runs["id"].str.startswith("dsr1_")]
    rows = pd.DataFrame([_row(run) for run in runs.itertuples()])
    rows["version"] = rows["version"].fillna("")
    is_cut = (rows["groups"] > rows["ep"]) | (rows["prefill_groups"] > rows["prefill_ep"])
    rows = rows[~(is_cut & (rows["prefill_workers"] > 0))]
    rows = rows.drop_duplicates([name for name in rows.columns if name != "id"])
    rows = rows.sort_values([*SERIES, "gpu", "concurrency"], ignore_index=True)
    rows = rows[~rows.groupby(["gpu", *SERIES])["tpot_us"].transform(_falls)]
    draws = random.Random(_SEED)
    kept: set[Any] = set()
    for _, group in rows.groupby([rows["prefill_workers"] > 0, "model", "gpu"]):
        series = sorted(set(group[SERIES].itertuples(index=False, name=None)))
        draws.shuffle(series)
        kept |= {(group["gpu"].iloc[0], *names) for names in series[::2]}
    keys = rows[["gpu", *SERIES]].itertuples(index=False, name=None)
    rows = rows.assign(part=["fit" if key in kept else "report" for key in keys], delays_prompts=_delays(rows))
    # dsr1_fp8_b200.sh asks for these on four GPUs (--mem-fraction-static, --chunked-prefill-size)
    is_asked = (rows["engine"] == "sglang") & (rows["gpu"] == "b200") & (rows["dtype"] == "fp8_block")
    is_asked &= rows["tp"] == 4
    rows["memory_frac"] = pd.Series(0.95, rows.index).where(is_asked)
    rows["chunk_tokens"] = pd.Series(8192, rows.index, dtype="Int64").where(is_asked)
    return rows[rows["concurrency"] > 0]


def _delays(rows: pd.DataFrame) -> pd.Series:
    """Return which runs were told to hold prompts back, [rows]."""
    is_short = (rows["prompt_len"] == 1024) & (rows["output_len"] == 1024)
    is_b200_deepseek = (rows["model"] == "deepseek-v3") & (rows["gpu"] == "b200")
    waits = is_short & (rows["model"] == "llama-3-70b") & (rows["tp"] < 8)
    waits |= is_short & is_b200_deepseek & (rows["dtype"] == "fp8_block") & (rows["concurrency"] >= 64)
    return (waits & (rows["engine"] == "trtllm")) | (is_b200_deepseek & (rows["engine"] == "sglang"))


def _falls(tpot_us: pd.Series) -> bool:
    times = tpot_us.to_numpy()
    return bool((np.maximum.accumulate(times) > _MOST_FALL * times).any())


if __name__ == "__main__":
    for gpu, rows in tables(pd.read_parquet(sys.argv[1])).groupby("gpu"):
        path = data_root() / "measured" / str(gpu) / "served" / "runs.csv"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows.drop(columns="gpu").to_csv(Path(path), index=False, lineterminator="\n")
        print(f"{path}: {len(rows)} runs, {(rows['part'] == 'fit').sum()} for fits")
