"""Write arch/measured/<gpu>/aiter from a table of aiter's tuned GEMMs: `python -m tools.amd_tables gemm.parquet`.

Of a GEMM that was tuned on several days its fastest time is kept. Of an (N, K) pair with more than `MOST_ROWS` values
of M, so many are, evenly by rank, so that no pair drowns the others. Kernels got faster within a year: rows whose best
tuning is of 2025 are a table apart, which is held back, where there are enough of 2026.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from gemm_eval.arch import data_root

MOST_ROWS = 120
_DTYPES = {"fp8_row": ("fp8", "aiter"), "bf16": ("bf16", "hipblaslt")}  # of gemm_eval, and its library
_FEWEST_ROWS, _FEWEST_OLD = 200, 50
_NEW, _OLD = "2026", "-2025"
_TILE = re.compile(
    r"_256x(\d+x\d+)x\d+_|_128x(\d+x\d+)x\d+_|cktile_(?:[0-9x]+x\d+_)?(\d+x\d+)x\d+_|Shuffle_(\d+x\d+)E|_tn_(\d+x\d+)|"
    r"_t(\d+x\d+)x\d+|(?:bpreshuflle|mxpsh)_(\d+x\d+)x\d+_"
)


def tables(tuned: pd.DataFrame) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Yield GPU, type and rows of each table."""
    best = tuned.sort_values("us", kind="stable").drop_duplicates(["chip", "type", "M", "N", "K"])
    for (chip, dtype), rows in best.groupby(["chip", "type"]):
        if len(rows) < _FEWEST_ROWS or dtype == "mxfp6":
            continue
        kept = [thinned(of_pair.sort_values("M")) for _, of_pair in rows.groupby(["N", "K"])]
        frame = pd.concat(kept).sort_values(["N", "K", "M"])
        found = {name: _TILE.search(name) for name in frame["kernel"].unique()}
        tile_of = {name: next(filter(None, match.groups()), "") if match else "" for name, match in found.items()}
        table = pd.DataFrame(
            {
                **{name: frame[name].to_numpy(np.int64) for name in ("M", "K", "N")},
                "latency_us": frame["us"].round(3).to_numpy(),
                "kernel": pd.Categorical(frame["libtype"].fillna("ck")),
                "tile": pd.Categorical(frame["kernel"].map(tile_of)),
                "date": pd.Categorical(frame["date"]),
            }
        )
        is_old = table["date"].astype(str) < _NEW
        if is_old.sum() >= _FEWEST_OLD and (~is_old).sum() >= _FEWEST_ROWS:
            yield str(chip), f"{dtype}{_OLD}", table[is_old]
            table = table[~is_old]
        yield str(chip), str(dtype), table


def thinned(rows: pd.DataFrame) -> pd.DataFrame:
    """Return at most `MOST_ROWS`, the first and the last among them."""
    places = np.unique(np.linspace(0, len(rows) - 1, min(len(rows), MOST_ROWS)).round().astype(int))
    return rows.iloc[places]


def main() -> None:
    """Write all tables; each meta file is there once and is left alone."""
    for chip, dtype, frame in tables(pd.read_parquet(sys.argv[1])):
        path = data_root() / "measured" / chip / "aiter" / f"{dtype}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        frame.to_parquet(path, index=False, compression="zstd")
        meta = Path(f"{path.with_suffix('')}.meta.yaml")
        kind = dtype.removesuffix(_OLD)
        word, library = _DTYPES.get(kind, (kind, "aiter"))
        pairs = frame[["N", "K"]].drop_duplicates()
        if not meta.exists():
            text = _META.format(dtype=kind, pairs=len(pairs), gpu=chip, library=library, word=word)
            meta.write_text(text + _HELD_BACK * dtype.endswith(_OLD))
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

if __name__ == "__main__":
    main()
