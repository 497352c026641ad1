"""Golden answers of the multi-core model: the best mapping of typical GEMMs on every preset, to the bit.

``make golden`` writes them anew and says what changed. Do that only after a change that is meant to change answers,
raise MODEL_VERSION, and read what it says: it is the change as users will see it.
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

from gemm_eval import GEMMEvaluator, MulticoreSpec, UnsupportedError, list_archs, load_arch
from tests.golden import changes

__all__ = ["GOLDEN"]

_SHAPES = (
    (1, 1, 4096, 4096),
    (1, 1, 8192, 57344),
    (1, 16, 4096, 6144),
    (1, 17, 14336, 4096),
    (1, 64, 8192, 10240),
    (1, 256, 4096, 28672),
    (1, 1000, 3584, 37888),
    (1, 2048, 4096, 6144),
    (1, 2048, 14336, 4096),
    (1, 4096, 4096, 4096),
    (1, 8192, 8192, 57344),
    (128, 4, 128, 2048),
    (8, 8192, 128, 2048),
    (8, 8192, 2048, 128),
    (1, 127, 1009, 4093),
    (1, 33, 7, 5),
)
_KEY = ("arch", "dtype", "G", "M", "K", "N")
_COLUMNS = (
    *(*_KEY, "latency_us", "dram_bytes", "bound"),
    *("P_G", "P_M", "P_N", "P_K", "tile_m", "tile_n", "tile_k", "loop_order"),
)
_DTYPES = (None, "w4a16", "int8")


def _text() -> str:
    """Return the file's content as the code computes it now; floats in full precision."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for name in list_archs():
        arch = load_arch(name)
        if not isinstance(arch, MulticoreSpec):
            continue
        evaluator = GEMMEvaluator(arch)
        for dtype in _DTYPES:
            for shape in _SHAPES:
                try:
                    r = evaluator.evaluate(*shape, dtype=dtype)
                except UnsupportedError:
                    continue
                row = [name, r.problem.input_dtype if dtype is None else dtype, *shape, repr(r.latency_us)]
                row += [r.dram_bytes, r.bound, *r.mapping.partition, *r.mapping.tile, r.mapping.loop_order.name]
                writer.writerow(row)
    return out.getvalue()


GOLDEN = changes.Golden(
    Path(__file__).with_name("multicore_best.csv"), _KEY, _text, changes.first_change, "MODEL_VERSION"
)

if __name__ == "__main__":
    changes.rewrite(GOLDEN)
