"""Sweep descriptions in YAML, as `gemm-eval sweep` reads them; what is small enough is also run."""

import random
import tempfile
from pathlib import Path

import pandas  # noqa: F401  a sweep needs it
import pyarrow  # noqa: F401

from gemm_eval.errors import GemmEvalError
from gemm_eval.sweep import Adaptive, Choices, SweepFile, read_sweep_file, sweep
from tools.fuzz.kinds import label_of
from tools.fuzz.mutate import mutate_text

_MOST_POINTS, _MOST_GEMMS, _MOST_CORES = 64, 16, 64
_TEXTS = (
    """base: demo-8core
fields:
  num_cores: [2, 4]
  sram_bytes: {log_range: [262144, 1048576], num: 3}
  dram_gb_per_s: {range: [100, 400], step: 100}
  mac_pj.fp16: [0.4, 0.5]
  reduction: [noc, dram]
  area_mm2: = num_cores * cost + 1
variables:
  cost: [1.0, 2.5]
  half: = cost / 2
workloads:
  - {name: one, gemms: [[1, 16, 128, 256], [2, 16, 128, 256, 5]], num_tokens: 16, dtype: int8}
  - {name: two, gemms: [[1, 16, 128, 256]]}
objectives: [latency_us, area_mm2]
constraints: [area_mm2 <= 200, num_cores > 2]
sampling: {method: random, num_points: 10, seed: 3}
""",
    """base: [demo-8core, sg2260e]
fields: {launch_us: [0.0, 1.5], cube_steps_per_cycle: [{fp16: 1.0}, {fp16: 2.0, int8: 4.0}]}
workloads: [{model: llama-3-8b, name: m, phases: [decode], batch_size: 4, seq_len: 128, dtype: fp16}]
objectives: [latency_us]
allow_idle_cores: false
sampling: {method: latin_hypercube, num_points: 6}
""",
    """base: h100-sxm
variables: {flavour: [plain, "with salt"], x: {range: [0.0, 1.0], num: 3}}
workloads: [{name: one, gemms: [[1, 64, 1024, 1024]]}]
objectives: [tflop_per_s]
library: cublas
l2: warm
clock: sustained
sampling: {method: grid}
""",
)
_WORDS = (
    "fields:", "variables:", "{range: [0, 1000000000000], step: 1}", "{log_range: [1, 2], num: 1000000000}",
    "num_cores",
    "= 10 ** 10 ** 10", "= x + x", "- ", "null", "true", "[]", "{}", "adaptive", "num_points: 1000000000000",
    '"\\e[31m"', '"\\0"', "seed: -1", "demo-8core", "h100-sxm", "llama-3-8b", "&a [*a]", "!!python/name:os.system",
    "latency_us <= 1e999", "area_mm2 >= nan", "count: 3", ": ", "\n  ",
)  # fmt: skip


def prepare() -> None:
    """Run what the files are made of, which compiles kernels."""
    with tempfile.TemporaryDirectory() as folder:
        for text in _TEXTS:
            file = Path(folder) / "space.yaml"
            file.write_text(text, encoding="utf-8")
            asked = read_sweep_file(file)
            sweep(asked.space, asked.workloads, progress=False, **asked.options).pareto()


def run_one(rng: random.Random, folder: Path) -> str:
    """Read a file, and run its sweep if that is small."""
    file = folder / "space.yaml"
    file.write_bytes(mutate_text(rng, rng.choice(_TEXTS), words=_WORDS, others=_TEXTS).encode("utf-8", "replace"))
    try:
        asked = read_sweep_file(file)
        if not _is_small(asked):
            return "ok, not run"
        sweep(asked.space, asked.workloads, progress=False, **asked.options).pareto()
    except GemmEvalError as error:
        return label_of(error, 20_000)
    return "ok"


def _is_small(asked: SweepFile) -> bool:
    """Return whether a sweep is over in milliseconds: that more takes longer is no finding."""
    sampling = asked.options["sampling"]
    if isinstance(sampling, Adaptive) or sum(len(one.gemms) for one in asked.workloads) > _MOST_GEMMS:
        return False
    num_cores = [getattr(arch, "num_cores", 1) for arch in asked.space.bases.values()]
    if asked.options["allow_idle_cores"] or max(num_cores) > _MOST_CORES or "num_cores" in asked.space.dependent:
        return False
    if "num_cores" in asked.space.drawn and not set(_first_values(asked)) <= {1, 2, 4, 8}:
        return False
    return bool(sampling.num_points_of(asked.space) <= _MOST_POINTS)


def _first_values(asked: SweepFile) -> list[object]:
    field = asked.space.drawn["num_cores"]
    return list(field.values) if isinstance(field, Choices) else [None]
