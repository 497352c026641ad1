"""Times many configs of the Triton kernels in this folder on many GEMMs: the data that the Triton model is fitted on.

    python examples/measure_triton.py --out FOLDER          # timings; a GPU, PyTorch, Triton, pandas and pyarrow
    python examples/measure_triton.py --codes --out FOLDER  # machine code; Triton and pandas, no GPU, no PyTorch

`gemm-eval calibrate triton --data FOLDER/timings.parquet` fits the model on what these two write. How it is timed:
triton_timings.py; what: triton_pool.py.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from triton_pool import DATA_SETS


def main() -> None:
    """Time all data sets, or compile their kernels, and write a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for the table and its meta file")
    parser.add_argument("--only", nargs="*", default=[data.name for data in DATA_SETS])
    parser.add_argument("--limit-s", type=float, default=3600.0, help="stop timing after so many seconds")
    parser.add_argument(
        "--codes", action="store_true", help="time nothing: compile all kernels and write what their machine code says"
    )
    options = parser.parse_args()
    if options.codes:
        from triton_codes import write_pool

        write_pool(options.out, options.only)
    else:
        from triton_timings import write_timings

        write_timings(options.out, options.only, options.limit_s)


if __name__ == "__main__":
    main()
