"""Write arch/measured/<gpu>/aiter and moe-aiter: `python -m tools.amd_tables gemm.parquet moe.parquet`.

Of a GEMM that was tuned on several days its fastest time is kept. Of an (N, K) pair with more than `MOST_ROWS` values
of M, so many are, evenly by rank, so that no pair drowns the others. Kernels got faster within a year: rows whose best
tuning is of 2025 are a table apart, which is held back, where there are enough of 2026. Block-scaled fp8 has a table
for each version of its kernels, as the same GEMM takes 1.2 to 2 times as long by what its tuner chose among; their rows
are of 2026.

Of layers of experts a time that stands for several numbers of tokens is left out: all but one of them are copies. A
layer that takes `MOST_SLOWER` times as long as one of the same model with more tokens is left out, and so is one below
`LEAST_RATE_FRAC` of the data sheet's rates, `OVERHEAD_US` apart, and what `_OTHERS` names. So are `impossible` layers.
"""

import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gemm_eval.arch import GpuSpec, data_root, load_arch
from gemm_eval.workload import GemmTypes

MOST_ROWS = 120
_DTYPES = {"fp8_row": ("fp8", "aiter"), "bf16": ("bf16", "hipblaslt")}  # of gemm_eval, and its library
_FEWEST_ROWS, _FEWEST_OLD, _FEWEST_PAIRS = 200, 50, 5
_NEW, _OLD = "2026", "-2025"
_TILE = re.compile(
    r"_256x(\d+x\d+)x\d+_|_128x(\d+x\d+)x\d+_|cktile_(?:[0-9x]+x\d+_)?(\d+x\d+)x\d+_|Shuffle_(\d+x\d+)E|_tn_(\d+x\d+)|"
    r"_t(\d+x\d+)x\d+|(?:bpreshuflle|mxpsh)_(\d+x\d+)x\d+_"
)


_VERSIONED = "fp8_block"
_SINCE, _LEAST_FRAC = "2026-06", 0.01
_SPLIT, _LEAST_SPLIT_FRAC, _TILE_SIZE = "-split", 0.1, (64, 128)


def with_versions(tuned: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with a column `version`: that of aiter's kernels of block-scaled fp8, else empty.

    A commit brought kernels of CK-Tile if they win `_LEAST_FRAC` of its rows, or if it is of June 2026 or later. Its
    tuner was told to split K if split kernels win `_LEAST_SPLIT_FRAC` of those GEMMs whose tiles of 64 x 128 fill less
    than half of the compute units: no tuner's share is near it (0 to 0.05, or 0.25 and more).
    """
    of_type = tuned[tuned["type"] == _VERSIONED]
    is_shuffled = of_type["kernel"].str.contains("preshuffle", case=False)
    by_date = [of_type["chip"], of_type["date"]]
    is_other = (of_type["libtype"] != "ck") & ~is_shuffled
    has_others = is_other.astype(float).where(~is_shuffled).groupby(by_date).transform("mean") >= _LEAST_FRAC
    of_plain = np.where(has_others | (of_type["date"] >= _SINCE), "ck-tile", "ck")
    version = pd.Series(np.where(is_shuffled, "preshuffled", of_plain), of_type.index)
    num_tiles = -(-of_type["M"] // _TILE_SIZE[0]) * -(-of_type["N"] // _TILE_SIZE[1])
    is_split = (num_parts(of_type) > 1).astype(float).where(2 * num_tiles <= of_type["cu_num"])
    has_splits = is_split.groupby([*by_date, version]).transform("mean") >= _LEAST_SPLIT_FRAC
    return tuned.assign(version=(version + np.where(has_splits, _SPLIT, "")).reindex(tuned.index, fill_value=""))


def num_parts(rows: pd.DataFrame) -> Any:
    """Return the parts of K of each row: CK has their logarithm, assembly and Triton the number."""
    split = rows["splitK"].fillna(0.0)
    return (2**split).where(rows["libtype"].fillna("ck").isin(["ck", "cktile"]), split.clip(lower=1))


def repeats(tuned: pd.DataFrame) -> pd.DataFrame:
    """Return, by GPU and version, GEMMs that were tuned on several dates, and by how much the slowest took longer."""
    of_gemm = (
        tuned[tuned["version"] != ""].groupby(["chip", "version", "M", "N", "K"])["us"].agg(["min", "max", "size"])
    )
    several = of_gemm[of_gemm["size"] > 1]
    longer = several["max"] / several["min"] - 1.0
    return longer.groupby(["chip", "version"]).agg(["size", "mean"]).rename(columns={"mean": "longer_frac"})


def tables(tuned: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Yield GPU, type and rows of each table."""
    for (chip, dtype), rows in tuned.groupby(["chip", "type"]):
        table = table_of(rows)
        if len(table) < _FEWEST_ROWS or dtype == "mxfp6":
            continue
        is_old = table["date"].astype(str) < _NEW
        if is_old.sum() >= _FEWEST_OLD and (~is_old).sum() >= _FEWEST_ROWS:
            yield str(chip), f"{dtype}{_OLD}", table[is_old]
            table = table[~is_old]
        if dtype == _VERSIONED:
            for version, of_version in rows[rows["date"] >= _NEW].groupby("version"):
                yield str(chip), f"{dtype}-{version}", table_of(of_version)
        else:
            yield str(chip), str(dtype), table


def table_of(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the fastest row of each GEMM, thinned out, as a table of timings."""
    best = rows.sort_values("us", kind="stable").drop_duplicates(["M", "N", "K"])
    frame = pd.concat([thinned(of_pair.sort_values("M")) for _, of_pair in best.groupby(["N", "K"])])
    frame = frame.sort_values(["N", "K", "M"])
    found = {name: _TILE.search(name) for name in frame["kernel"].unique()}
    tile_of = {name: next(filter(None, match.groups()), "") if match else "" for name, match in found.items()}
    return pd.DataFrame(
        {
            **{name: frame[name].to_numpy(np.int64) for name in ("M", "K", "N")},
            "latency_us": frame["us"].round(3).to_numpy(),
            "kernel": pd.Categorical(frame["libtype"].fillna("ck")),
            "tile": pd.Categorical(frame["kernel"].map(tile_of)),
            "date": pd.Categorical(frame["date"]),
        }
    )


_STEP = re.compile(
    r"_(?:256|128)x(\d+)x(\d+)x(\d+)_|cktile_(?:[0-9x]+x\d+_)?(\d+)x(\d+)x(\d+)_|_MT(\d+)x(\d+)x(\d+)_|"
    r"bpreshuflle_(\d+)x(\d+)x(\d+)_|hgemm_bf16_(\d+)x(\d+)x(\d+)|(?:Shuffle|_tn)_(\d+)x(\d+)"
)
"""Rows, columns and, but of assembly, the k-step of a tile in names of kernels."""
_ASM_STEP = {"bf16": 64, "fp8_block": 128}
_ORIGAMI_TYPES = {"bf16": "bf16", "fp8_row": "f8", "fp8_block": "f8"}


def choice_tables(tuned: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield GPU and rows of GEMMs that several kernels ran on one date, of kernels whose tile their names tell.

    `origami_cycles` is what AMD's origami predicts (`pip download rocm-origami`, version 0.0.3; its model needs no GPU,
    and its build no more of HIP than a header with `hipDeviceProp_t`).
    """
    import origami  # type: ignore[import-not-found]

    tiles = {name: [int(part) for part in match.groups() if part] for name in tuned["kernel"].unique()
             if (match := _STEP.search(name))}  # fmt: skip
    rows = tuned[tuned["kernel"].isin(tiles) & tuned["type"].isin(_ORIGAMI_TYPES)].copy()
    steps = [[*tiles[name], _ASM_STEP.get(dtype, 128)][:3] for name, dtype in rows[["kernel", "type"]].to_numpy()]
    rows[["cta_m", "cta_n", "cta_k"]] = steps
    rows["split_k"] = num_parts(rows).astype(np.int64)
    of_blas = rows["libtype"] == "hipblaslt"  # whose C has columns first; it cuts K as it likes
    rows.loc[of_blas, ["cta_m", "cta_n"]] = rows.loc[of_blas, ["cta_n", "cta_m"]].to_numpy()
    key = ["chip", "type", "M", "N", "K", "date"]
    rows = rows.sort_values("us", kind="stable").drop_duplicates([*key, "cta_m", "cta_n", "split_k", "version"])
    rows = rows[rows.groupby(key)["us"].transform("size") > 1]
    rows.loc[rows["libtype"] == "hipblaslt", "split_k"] = 0
    for chip, of_chip in rows.groupby("chip"):
        spec = load_arch(str(chip), GpuSpec)
        hardware = origami.get_hardware_for_arch(
            getattr(origami.architecture_t, spec.sm_arch), spec.num_sms, spec.smem_per_sm_bytes,
            spec.l2_bytes // spec.num_l2_caches, round(spec.max_clock_ghz * 1e6),
        )  # fmt: skip
        cycles = []
        columns = ["M", "N", "K", "type", "split_k", "cta_m", "cta_n", "cta_k"]
        for M, N, K, dtype, split_k, *tile in of_chip[columns].itertuples(index=False):
            if split_k == 0:
                M, N, tile = N, M, [tile[1], tile[0], tile[2]]
            problem, config = origami.problem_t(), origami.config_t()
            word = origami.string_to_datatype(_ORIGAMI_TYPES[dtype])
            problem.size, problem.batch = origami.dim3_t(M, N, K), 1
            problem.a_transpose, problem.b_transpose = origami.transpose_t.T, origami.transpose_t.N
            problem.a_dtype = problem.b_dtype = problem.mi_dtype = word
            problem.c_dtype = problem.d_dtype = origami.string_to_datatype("bf16")
            config.mt, config.occupancy = origami.dim3_t(*tile), 1
            config.mi = hardware.get_recommended_matrix_instruction(word)
            least = math.inf
            for config.cache_hints_a, config.cache_hints_b in ((0, 0), (4, 0), (0, 4)):  # it knows which may run
                least = min(least, origami.compute_total_latency(problem, hardware, config, spec.num_sms))
            cycles.append(least)
        kept = ["M", "N", "K", "cta_m", "cta_n", "cta_k", "split_k"]
        frame = of_chip[kept].assign(
            **{name: pd.Categorical(of_chip[name]) for name in ("type", "version", "date")},
            latency_us=of_chip["us"].round(3), origami_cycles=np.round(cycles),
        )  # fmt: skip
        yield str(chip), frame.sort_values(["type", "N", "K", "M", "date", "latency_us"])


EXPERT_DTYPES = {
    ("bfloat16", "bfloat16", "No"): "bf16",
    ("float8_e4m3fn", "float8_e4m3fn", "per_Token"): "fp8",
    ("float8_e4m3fn", "float8_e4m3fn", "per_Tensor"): "fp8",
    ("float8_e4m3fn", "float8_e4m3fn", "per_1x128"): "fp8_block",
    ("float8_e4m3fn", "float4_e2m1fn_x2", "per_1x32"): "w4a8_mxfp4",
    ("bfloat16", "float4_e2m1fn_x2", "per_1x32"): "w4a16_mxfp4",
    ("float4_e2m1fn_x2", "float4_e2m1fn_x2", "per_1x32"): "mxfp4",
}
"""Types of tokens and weights, and how they are scaled, in words of gemm_eval; int4, nvfp4 and mxfp8 have few rows."""

MOST_SLOWER = 1.3
LEAST_RATE_FRAC, OVERHEAD_US = 1.0 / 12.0, 50.0
_OTHERS = (("mxfp4", 7168, 2048, 32), "2026-06-10")
"""Layers and the date of timings that tell of something else: 79% of the peak at 4,096 tokens, where no other layer
reaches 34%, as if the 32 experts were those of one rank of eight."""
_LAYER = ["dtype", "model_dim", "inter_dim", "expert", "topk"]


def expert_tables(tuned: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the type and the rows of each table of layers of an MI355X."""
    keys: Any = tuned[["q_dtype_a", "q_dtype_w", "q_type"]].itertuples(index=False, name=None)
    tuned = tuned.assign(dtype=[EXPERT_DTYPES.get(key, "") for key in keys])
    tuned = tuned[(tuned["chip"] == "mi355x") & (tuned["dtype"] != "")]
    tuned = tuned[tuned.groupby([*_LAYER, "us1", "us2"])["token"].transform("nunique") == 1]
    tuned = tuned[~impossible(tuned)]
    best = tuned.sort_values("us", kind="stable").drop_duplicates([*_LAYER, "token"])
    for dtype, rows in best.groupby("dtype"):
        frame = rows.sort_values([*_LAYER, "token"])
        least_of_more = frame[::-1].groupby(_LAYER)["us"].cummin()[::-1]
        is_other = (frame[_LAYER[:4]].apply(tuple, axis=1) == _OTHERS[0]) & (frame["date"] == _OTHERS[1])
        roof_us = data_sheet_us(str(dtype), frame)
        is_slow = frame["us"] - OVERHEAD_US > roof_us / LEAST_RATE_FRAC
        frame = frame[(frame["us"] <= MOST_SLOWER * least_of_more) & ~is_slow & ~is_other]
        sizes = {"num_tokens": "token", "hidden_size": "model_dim", "inter_size": "inter_dim", "topk": "topk",
                 "num_experts": "expert"}  # fmt: skip
        one = np.ones(len(frame), np.int64)
        models = [f"hidden {hidden}, {experts // 2 * 2} experts" for hidden, experts in
                  frame[["model_dim", "expert"]].itertuples(index=False, name=None)]  # fmt: skip
        yield str(dtype), pd.DataFrame(
            {
                **{name: frame[column].to_numpy(np.int64) for name, column in sizes.items()},
                "moe_tp_size": one, "moe_ep_size": one, "distribution": pd.Categorical(["uniform"] * len(frame)),
                "gated": frame["use_g1u1"].to_numpy(np.int64), "latency_us": frame["us"].round(3).to_numpy(),
                "is_fused": (frame["run_1stage"] == "1").to_numpy(np.int64), "model": pd.Categorical(models),
                "date": pd.Categorical(frame["date"]),
            }
        )  # fmt: skip


def impossible(frame: pd.DataFrame) -> Any:
    """Return a mask of layers whose times contradict themselves.

    A GEMM that reads its weights faster than DRAM gives them did not run experts chosen at random, or ran them from a
    cache: all tokens of that layer on that date are left out. So is a layer with one time for two kernels.
    """
    dram_us = 0.0 * frame["us"]
    for dtype, rows in frame.groupby("dtype"):
        types, bytes_per_us = GemmTypes.parse(str(dtype)), load_arch("mi355x", GpuSpec).dram_gb_per_s * 1e3
        dram_us[rows.index] = weight_elems(rows) * types.b.dtype.bits / 8 / bytes_per_us
    has_two = frame["us2"] > 0
    num_gemms = 2 + frame["use_g1u1"].astype(int)
    is_fast = has_two & ((frame["us1"] < dram_us * (1 - 1 / num_gemms)) | (frame["us2"] < dram_us / num_gemms))
    is_lone = ~has_two & (frame["run_1stage"] != "1") & (frame["kernelName1"] != frame["kernelName2"])
    return is_fast.groupby([frame[name] for name in (*_LAYER, "date")]).transform("any") | is_lone


def weight_elems(frame: pd.DataFrame) -> Any:
    """Return the elements of weights that the experts of a layer's tokens read, where tokens choose at random."""
    active = frame["expert"] * (1 - (1 - frame["topk"] / frame["expert"]) ** frame["token"])
    return active * (2 + frame["use_g1u1"].astype(int)) * frame["model_dim"] * frame["inter_dim"]


def data_sheet_us(dtype: str, frame: pd.DataFrame) -> Any:
    """Return the time of the GEMMs of layers by the data sheet: of products, or of the weights of active experts."""
    arch, types = load_arch("mi355x", GpuSpec), GemmTypes.parse(dtype)
    weights = 3 * frame["model_dim"] * frame["inter_dim"]
    products_us = 2 * weights * frame["token"] * frame["topk"] / arch.peak_tflop_per_s(types.a.dtype) / 1e6
    weights_us = weight_elems(frame) * types.b.dtype.bits / 8 / arch.dram_gb_per_s / 1e3
    return products_us.clip(lower=weights_us)


def thinned(rows: pd.DataFrame) -> pd.DataFrame:
    """Return at most `MOST_ROWS`, the first and the last among them."""
    places = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), MOST_ROWS)).round().astype(int))
    return rows.iloc[places]


def main() -> None:
    """Write all tables; each meta file is there once and is left alone."""
    for dtype, frame in expert_tables(pd.read_parquet(sys.argv[2])):
        path = data_root() / "measured" / "mi355x" / "moe-aiter" / f"aiter-{dtype}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        frame.to_parquet(path, index=False, compression="zstd")
        meta = Path(f"{path.with_suffix('')}.meta.yaml")
        if not meta.exists():
            meta.write_text(_EXPERTS_META.format(dtype=dtype, rows=len(frame), models=frame["model"].nunique()))
        print(f"{path}: {len(frame)} rows, {path.stat().st_size:,} bytes")
    tuned = with_versions(pd.read_parquet(sys.argv[1]))
    print(repeats(tuned).to_string())
    for chip, frame in choice_tables(tuned):
        path = data_root() / "measured" / chip / "aiter" / "choice.parquet"
        frame.to_parquet(path, index=False, compression="zstd")
        print(f"{path}: {len(frame)} rows, {path.stat().st_size:,} bytes")
    for chip, dtype, frame in tables(tuned):
        path = data_root() / "measured" / chip / "aiter" / f"{dtype}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        frame.to_parquet(path, index=False, compression="zstd")
        meta = Path(f"{path.with_suffix('')}.meta.yaml")
        kind, _, version = dtype.removesuffix(_OLD).partition("-")
        word, library = _DTYPES.get(kind, (kind, "aiter"))
        pairs = frame[["N", "K"]].drop_duplicates()
        if not meta.exists():
            text = _META.format(dtype=kind, pairs=len(pairs), gpu=chip, library=library, word=word)
            text += _HELD_BACK * dtype.endswith(_OLD) + (f"library_version: {version}\n" if version else "")
            meta.write_text(text + _FEW_PAIRS * (len(pairs) < _FEWEST_PAIRS))
        print(f"{path}: {len(frame)} rows, {len(pairs)} pairs, {path.stat().st_size:,} bytes")


_META = """\
# {dtype} GEMMs as aiter's tuner left them: {pairs} (N, K) pairs. What each key means: gemm_eval/validation/tables.py.
gpu: {gpu}
library: {library}
dtype: {word}
output_dtype: bf16
l2: cold
clock: burst
source: ROCm/aiter, aiter/configs (commit e404860 and before); measured by its authors and users
license: MIT (see NOTICE)
protocol: >-
  The fastest of all kernels that aiter's tuner tried for a GEMM (`kernel`: whose; `tile`: rows x columns, where the
  name tells; `date`: of the commit that brought it), the least where it was tuned more than once. Device time by
  torch.profiler, the mean of about 100 calls without outliers; each call has operands of its own, of up to 101 copies,
  so weights above 2.6 MB are in neither L2 nor the Infinity Cache, nor is A. No launch is in it, and no quantization
  of A. Of pairs with many values of M 120 are kept.
"""
_HELD_BACK = """\
held_back: >-
  tuned in 2025 and never again: kernels of today are faster, on some of these GEMMs by half
"""
_FEW_PAIRS = """\
held_back: >-
  two to four (N, K) pairs, which tell too little of others
is_corrected: true
"""
_EXPERTS_META = """\
# {rows} layers of {models} models. What each key means: gemm_eval/validation/subjects/experts_tables.py.
has_no_timings: of GEMMs alone, but of layers of a mixture of experts
gpu: mi355x
library: aiter-moe
dtype: {dtype}
framework: aiter
l2: cold
outside: [routing_us, permute_us, quantize_us]
source: ROCm/aiter, aiter/configs (commit e404860 and before); measured by its authors and users
license: MIT (see NOTICE)
protocol: >-
  The two GEMMs of a layer on one rank, the activation and the sum over experts included; sorting of tokens and
  quantization are not in it, nor is any launch. The fastest kernels that aiter's tuner tried (CK, aiter's assembly,
  FlyDSL), the least where a layer was tuned more than once; `is_fused`: one kernel runs both GEMMs. Each token takes
  experts at random, all alike; inter_size is of the rank. `model`: layers of the same hidden size and number of
  experts, a fused shared expert left out, are held out together, however many ranks share them. Device time by
  torch.profiler, the mean of about 100 calls without outliers; each call has operands of its own.
"""

if __name__ == "__main__":
    main()
