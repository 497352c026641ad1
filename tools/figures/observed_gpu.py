"""What templates quote of arch/measured and arch/calibration: ratios and times of committed timings, and fits."""

from __future__ import annotations

import functools
from typing import Any

import pandas as pd
import yaml

from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.models.gpu import switches
from tools.figures.documents import ROOT

_MEASURED = ROOT / "arch" / "measured"
_CALIBRATION = ROOT / "arch" / "calibration"
_GEMM = ["K", "N"]


def ratio_of_rows(gpu: str, data: str, more: int, fewer: int) -> float:
    """How many times as long `more` rows take as `fewer`: median over the (N, K) that were timed with both."""
    by_rows = _table(gpu, data).pivot_table(index=_GEMM, columns="M", values="latency_us")
    return float((by_rows[more] / by_rows[fewer]).median())


def rows_differ(gpu: str, data: str, most: int) -> float:
    """How far numbers of rows up to `most` are from what a GEMM takes with any of them: the worst of their medians."""
    rows = _table(gpu, data)
    rows = rows[rows["M"] <= most]
    ratio = rows["latency_us"] / rows.groupby(_GEMM)["latency_us"].transform("median")
    return float((ratio.groupby(rows["M"]).median() - 1.0).abs().max())


def weight_rates(gpu: str, least_mib: int, of_l2: tuple[float, float]) -> dict[str, float]:
    """Rates at which 2 to 16 rows of bf16 get their weights.

    Args:
        gpu: whose.
        least_mib: of one copy of the weights.
        of_l2: range of all copies together, over L2.

    Returns:
        Least and most, over the DRAM bandwidth of the data sheet; and the most in TB/s.
    """
    arch, rows = load_arch(gpu, GpuSpec), _table(gpu, "aiconfigurator-0.12/bf16")
    num_bytes = 2 * rows["K"] * rows["N"]
    is_asked = (
        rows["M"].between(2, 16)
        & (num_bytes >= least_mib << 20)
        & (num_bytes * rows["weight_copies"] / arch.l2_bytes).between(*of_l2)
    )
    gb_per_s = (num_bytes / rows["latency_us"] / 1e3)[is_asked]
    least, most = float(gb_per_s.min()), float(gb_per_s.max())
    return {"least": least / arch.dram_gb_per_s, "most": most / arch.dram_gb_per_s, "most_tb_per_s": most / 1e3}


def neighbour_takes(data: str, one: tuple[int, int], other: tuple[int, int], most_rows: int) -> list[float]:
    """How many times as long GEMMs of an H200 of one (N, K) take as those of another, by rows."""
    rows = _table("h200-sxm", data)
    rows = rows[(rows["G"] == 1) & (rows["M"] <= most_rows)]
    times = rows.pivot_table(index="M", columns=["N", "K"], values="latency_us")
    found: list[float] = (times[one] / times[other]).dropna().tolist()
    return found


def odd_columns_take(least_rows: int) -> list[float]:
    """How many times as long fp16 GEMMs of an H200 with N odd take as those of the next N that is a multiple of 8."""
    off, padded = (_table("h200-sxm", f"cublas/{name}") for name in ("fp16-unaligned", "fp16"))
    off = off[(off["N"] % 2 == 1) & (off["M"] >= least_rows)]
    off = off.assign(odd_us=off["latency_us"], N=-(-off["N"] // 8) * 8)[["G", "M", "K", "N", "odd_us"]]
    both = off.merge(padded, on=["G", "M", "K", "N"])
    found: list[float] = (both["odd_us"] / both["latency_us"]).tolist()
    return found


def message_us(gpu: str, table: str, **wanted: Any) -> list[float]:
    """Times of messages between GPUs, by types."""
    rows = _table(gpu, f"collective-aiconfigurator-0.12/{table}")
    for column, value in wanted.items():
        rows = rows[rows[column] == value]
    found: list[float] = rows["latency_us"].tolist()
    return found


def gather_us(width: int) -> float:
    """Time of a gather of one row on an H200."""
    rows = _memory_bound("gather")
    (found,) = rows.loc[(rows["rows"] == 1) & (rows["width"] == width), "latency_us"]
    return float(found)


def sort_us(most_rows: int) -> list[float]:
    """Times of a sort of 64, 128 and 256 experts on an H200: medians over few rows."""
    rows = _memory_bound("sort")
    rows = rows[rows["rows"] <= most_rows]
    found: list[float] = rows["latency_us"].groupby(rows.groupby("rows").cumcount()).median().tolist()
    return found


def switch_us(gpu: str, num_rows: int) -> float:
    """What a GEMM takes more in a step."""
    return float(switches.switch_us(load_arch(gpu, GpuSpec), num_rows))


def fitted(gpu: str, name: str) -> Any:
    """Coefficients of a calibration."""
    return _calibration(gpu, name)["coefficients"]


def fit_errors(gpu: str, name: str) -> list[float]:
    """MAPE in percent of the sets of a calibration, held out."""
    return [of["mape_percent"] for of in _calibration(gpu, name)["errors"]]


def quantization_errors() -> list[float]:
    """MAPE of what a pass takes that quantizes A, of each set of each GPU, held out."""
    gpus = sorted(path.parent.name for path in _CALIBRATION.glob("*/trtllm-quantize.yaml"))
    return [percent / 100.0 for gpu in gpus for percent in fit_errors(gpu, "trtllm-quantize")]


def _memory_bound(what: str) -> pd.DataFrame:
    rows = _table("h200-sxm", "memory-bound/kernels")
    return rows[rows["what"] == what]


@functools.cache
def _table(gpu: str, data: str) -> pd.DataFrame:
    path = _MEASURED / gpu / f"{data}.parquet"
    return pd.read_parquet(path) if path.exists() else pd.read_csv(path.with_suffix(".csv"))


@functools.cache
def _calibration(gpu: str, name: str) -> Any:
    return yaml.safe_load((_CALIBRATION / gpu / f"{name}.yaml").read_text(encoding="utf-8"))
