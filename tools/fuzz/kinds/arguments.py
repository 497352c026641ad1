"""Python objects of all kinds as arguments of the public functions."""

import itertools
import math
import random
from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gemm_eval import (
    DType,
    GEMMEvaluator,
    GemmProblem,
    LoopOrder,
    kernels,
    load_arch,
    load_model,
    prewarm,
    prewarm_for_transformer,
    select_config,
    transformer_gemms,
    w4a16_crossover,
)
from gemm_eval.arch import GpuSpec
from gemm_eval.dtypes import DtypeScheme
from gemm_eval.errors import GemmEvalError
from gemm_eval.kernels.config_records import ConfigKey
from gemm_eval.mapping import KernelConfig, enumerate_partitions
from tools.fuzz.kinds import label_of

_CHIP, _GPU = "demo-8core", "h100-sxm"
_MANY = 0.15  # of the arguments that are not left as they are


class _Torch:
    """Looks like a type or a tensor of torch."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


class _Index:
    """An integer that is no int."""

    def __index__(self) -> int:
        return 64


def _endless() -> dict[str, Any]:
    loop: dict[str, Any] = {}
    loop["fp16"] = loop
    return loop


def _odd(rng: random.Random) -> Any:
    """Something that a user may give by mistake."""
    return rng.choice(_ODD)()


_LISTS: Any = [[]] * 13
_ODD: tuple[Callable[[], Any], ...] = (
    lambda: None, lambda: True, lambda: 0, lambda: -1, lambda: 3, lambda: 1 << 62, lambda: 1 << 70, lambda: 10**400,
    lambda: -(10**5000), lambda: 64.0, lambda: 0.5, lambda: math.nan, lambda: math.inf, lambda: 1e308, lambda: 1j,
    lambda: Fraction(64), lambda: Decimal("NaN"), lambda: _Index(), lambda: np.int64(64), lambda: np.uint8(8),
    lambda: np.float32("nan"), lambda: np.bool_(True), lambda: np.array(64), lambda: np.array([64]),
    lambda: np.array([64, 64]), lambda: np.array("fp16"), lambda: np.array(["fp16", "cold"]), lambda: np.ma.masked,
    lambda: np.ma.array(64, mask=True), lambda: np.ma.array([1, 2, 3, 4], mask=[False, True, False, False]),
    lambda: np.array([1, 2, 3, None], object), lambda: np.timedelta64(5, "s"), lambda: np.datetime64("NaT"),
    lambda: np.dtype("float16"), lambda: np.float16, lambda: np.zeros((3, 4)), lambda: np.zeros((2, 4), np.int64),
    lambda: pd.NA, lambda: pd.NaT, lambda: pd.Series([1, 2, 3, 4]), lambda: pd.DataFrame({"G": [1], "M": [2]}),
    lambda: pd.DataFrame({"G": [1], "M": [2], "K": [pd.NA], "N": [4]}), lambda: pd.DataFrame({pd.NA: [1]}),
    lambda: pd.DataFrame({"G": [1], "M": [2], "K": [3], "N": [4], "dtype": [[]], "l2": [b"cold"]}),
    lambda: _Torch("torch.float16"), lambda: "", lambda: "fp16", lambda: "float16", lambda: "w4a16", lambda: "cold",
    lambda: "64", lambda: "nan", lambda: "a\0b", lambda: "\ud800", lambda: "x" * 100_000, lambda: "\x1b[2J\n",
    lambda: b"fp16", lambda: Path("demo-8core"), lambda: Path("/dev/zero"), lambda: object(), lambda: object,
    lambda: len,
    lambda: [], lambda: [[]], lambda: [1, 2, 3, 4], lambda: [(1, 2, 3, 4)], lambda: [(1, 2, 3)], lambda: (), lambda: {},
    lambda: {"fp16": 1.0}, lambda: _endless(), lambda: {1, 2}, lambda: range(4), lambda: itertools.count(1),
    lambda: iter([1]),
    lambda: [GemmProblem(1, 2, 3, 4), 5], lambda: DType.INT32, lambda: LoopOrder.MNK,
    lambda: DtypeScheme(1, 2, 3, 4),  # type: ignore[arg-type]
    lambda: KernelConfig(*_LISTS), lambda: GemmProblem(1, 64, 64, 64), lambda: load_arch(_CHIP),
)  # fmt: skip


@cache
def _evaluator(arch: str) -> GEMMEvaluator:
    return GEMMEvaluator(arch, disk_cache=False)


@cache
def _shared(name: str) -> Any:
    """Return a value that takes long to make and is not changed."""
    rows = np.arange(64 * 64, dtype=np.uint8).reshape(64, 64) % 16
    make: dict[str, Callable[[], Any]] = {
        "config": lambda: select_config(GemmProblem(1, 16, 4096, 4096, "fp16", "int4", group_size=128), _GPU)[0],  # type: ignore[arg-type]
        "limits": lambda: kernels.limits_of_spec(load_arch(_GPU, GpuSpec)),
        "weights": lambda: rows.astype(np.float32),
        "integers": lambda: rows,
        "packed": lambda: kernels.pack_w4(rows.astype(np.float32)),
        "words": lambda: rows.astype(np.int32)[:, :8].copy(),
        "model": lambda: load_model("mixtral-8x7b"),
    }
    return make[name]()


_SIZES = {"G": 1, "M": 16, "K": 64, "N": 128}
_TYPES = {
    "dtype": "w4a16", "input_dtype": None, "weight_dtype": None, "output_dtype": None, "group_size": 32,
    "zero_dtype": None,
}  # fmt: skip
_OPTIONS = {"library": None, "l2": "cold", "clock": "burst"}
_PROBLEM = GemmProblem(1, 16, 64, 128)
_W4A16 = GemmProblem(1, 16, 4096, 4096, DType.FP16, DType.INT4, group_size=128)
_MAPPING = ((1, 1, 8, 1), (16, 16, 64), "mnk")

_Call = tuple[Callable[..., Any], Mapping[str, Any]]


def _calls(rng: random.Random) -> list[Callable[[], _Call]]:
    """Public functions, each with arguments that it takes."""
    chip, gpu = _evaluator(_CHIP), _evaluator(_GPU)
    ev = rng.choice((chip, gpu))
    dense = {**_TYPES, "dtype": "fp16", "group_size": None}
    words = {} if ev is chip else _OPTIONS
    many: Any = [(1, 16, 64, 128), (1, 8, 64, 128)]
    row = {**_SIZES, "dtype": "fp16", "group_size": None}
    return [
        lambda: (GemmProblem, {**_SIZES, "input_dtype": "fp16", "weight_dtype": "int4", "output_dtype": None,
                               "accumulator_dtype": None, "group_size": 32, "scale_dtype": None, "zero_dtype": None}),
        lambda: (ev.evaluate, {**_SIZES, **dense, **words}),
        lambda: (gpu.evaluate, {**_SIZES, **_TYPES, **_OPTIONS}),
        lambda: (ev.evaluate_many, {"problems": many, **dense, **words, "errors": "mark", "progress": False}),
        lambda: (ev.evaluate_many, {"problems": [tuple(_odd(rng) if rng.random() < _MANY else size for size in row)
                                                 for row in many]}),
        lambda: (ev.evaluate_many, {"problems": np.ma.array(many, mask=rng.random() < 0.5)}),
        lambda: (ev.evaluate_many, {"problems": pd.DataFrame({
            name: pd.Series([_cell(rng, value) for _ in range(2)], dtype=object) for name, value in row.items()})}),
        lambda: (ev.evaluate_problem, {"problem": _PROBLEM, **words}),
        lambda: (ev.top, {"problem": _PROBLEM, "k": 2, "distinct": "mapping", **words}),
        lambda: (chip.evaluate_mapping, {"problem": _PROBLEM, "mapping": _MAPPING}),
        lambda: (chip.evaluate_mapping, {"problem": _PROBLEM, "mapping": _spoiled(rng, _MAPPING)}),
        lambda: (gpu.evaluate_mapping, {
            "problem": _W4A16,
            "mapping": KernelConfig(*(_spoiled(rng, part) for part in _shared("config"))), **_OPTIONS}),
        lambda: (ev.save_to_disk, {"table": ev.evaluate_many(many)}),
        lambda: (ev.on, {"arch": _CHIP}),
        lambda: (GEMMEvaluator, {"arch": _CHIP, "plan": "exact", "allow_idle_cores": True, "disk_cache": False,
                                 "library": None, "l2": None, "clock": None}),
        lambda: (select_config, {"problem": _PROBLEM, "arch": _GPU, "k": 2, **_OPTIONS}),
        lambda: (w4a16_crossover, {"arch": gpu, "K": 64, "N": 64, "group_size": 32, "dense_dtype": "fp16", "l2": "cold",
                                   "clock": "burst", "max_M": 8, "min_speedup": 1.0}),
        lambda: (load_arch, {"name_or_path": _CHIP, "expect": None}),
        lambda: (load_model, {"name_or_path": "llama-3-8b"}),
        lambda: (load_arch(rng.choice((_CHIP, _GPU))).with_, {"dram_gb_per_s": 100.0, "name": "mine", "published": None,
                                                             "default_dtype": "fp16"}),
        lambda: (load_arch(_CHIP).with_, {"num_cores": 4, "cube_m": 16, "cube_steps_per_cycle": {"fp16": 1.0},
                                          "mac_pj": {"fp16": 1.0}, "timing": "overlap", "provenance": {}}),
        lambda: (_shared("model").with_, {"hidden_size": 64, "attention": {"kind": "gqa", "num_heads": 4,
                                          "num_kv_heads": 4, "head_dim": 16}}),
        lambda: (transformer_gemms, {
            "config": _shared("model"), "phase": "decode", "batch_size": 2, "seq_len": 8, "tensor_parallel": 1,
            "expert_parallel": 1, "dtype": "fp16", "dense_dtype": None, "quantize_lm_head": False,
            "quantize_router": False, "expert_imbalance": 1.0, "absorb_mla": None}),
        lambda: (prewarm, {"evaluator": chip, "model": "llama-3-8b", "batch_sizes": [1], "seq_lens": [16],
                           "phases": ["decode"], "tensor_parallel": (1,), "expert_parallel": (1,), "dtypes": [None]}),
        lambda: (prewarm_for_transformer, {
            "evaluator": chip, "hidden_size": 256, "intermediate_size": 512, "batch_size": 1, "seq_len": 8,
            "num_heads": None, "num_kv_heads": None, "head_dim": 128, "vocab_size": 8, "is_gated": True,
            "dtype": "fp16"}),
        lambda: (enumerate_partitions, {"num_cores": 8}),
        lambda: (kernels.limits_of_spec, {"arch": load_arch(_GPU)}),
        lambda: (kernels.list_kernels, {"limits": _shared("limits"), "activation": "fp16", "mode": "group",
                                        "group_size": 128, "sizes": None}),
        lambda: (_first_legal, {"sizes": kernels.Sizes(*[_spoiled(rng, size) for size in (16, 64, 64)]),
                                "limits": _shared("limits"), "activation": "fp16", "mode": "group", "group_size": 128}),
        lambda: (kernels.quantize_w4, {"weights": _shared("weights"), "group_size": 32, "mode": "group",
                                       "activation": "fp16"}),
        lambda: (kernels.pack_w4, {"weights": _shared("weights"), "group_size": None, "mode": "column", "scales": None,
                                   "zeros": None, "activation": "bf16"}),
        lambda: (kernels.pack_w4, {"weights": _shared("integers"), "group_size": 64, "mode": "group_zero",
                                   "scales": np.ones((1, 64)), "zeros": np.ones((1, 64), np.uint8)}),
        lambda: (kernels.unpack_w4, {"packed": _shared("packed")}),
        lambda: (kernels.dequantize, {"packed": _shared("packed"), "dtype": np.float32}),
        lambda: (kernels.from_awq, {"qweight": _shared("words"), "qzeros": np.zeros((2, 8), np.int32),
                                    "scales": np.ones((2, 64)), "group_size": 32, "activation": "fp16"}),
        lambda: (kernels.from_gptq, {"qweight": _shared("words").T.copy(), "qzeros": np.zeros((2, 8), np.int32),
                                     "scales": np.ones((2, 64)), "g_idx": np.arange(64)[::-1] // 32,
                                     "group_size": 32, "version": 1, "sym": None, "activation": "fp16"}),
        lambda: (ConfigKey.of, {"gpu": "h200-sxm", "sizes": kernels.Sizes(1, 64, 64), "activation": "fp16",
                                "mode": "group", "group_size": 32, "l2": "cold"}),
    ]  # fmt: skip


def _cell(rng: random.Random, value: Any) -> Any:
    return _odd(rng) if rng.random() < _MANY else value


def _first_legal(**arguments: Any) -> Any:
    return next(kernels.legal_configs(**arguments), None)


def _spoiled(rng: random.Random, value: Any) -> Any:
    """Nested tuples of which some parts are odd."""
    if isinstance(value, tuple) and rng.random() > _MANY:
        return tuple(_spoiled(rng, part) for part in value)
    return _odd(rng) if rng.random() < _MANY else value


def prepare() -> None:
    """Compile and load what all calls use."""
    _evaluator(_GPU).evaluate_mapping(_W4A16, _shared("config"))
    for make in _calls(random.Random(0)):
        function, arguments = make()
        if function not in (_evaluator(_CHIP).save_to_disk,):
            try:
                function(**arguments)
            except GemmEvalError:
                continue


def run_one(rng: random.Random, folder: Path) -> str:
    """Call a function with one or more odd arguments."""
    function, arguments = rng.choice(_calls(rng))()
    spoiled = set(rng.sample(sorted(arguments), k=min(len(arguments), rng.choice((0, 1, 1, 1, 2)))))
    given = {name: _odd(rng) if name in spoiled else value for name, value in arguments.items()}
    try:
        found = function(**given)
    except GemmEvalError as error:
        return label_of(error)
    assert len(repr(found)) < 100_000
    return "ok"
