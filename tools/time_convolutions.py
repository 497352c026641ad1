"""Times convolutions alone, forward and backward, as drawn modules have them, by type and layout.

    python -m tools.time_convolutions draw --calls CALLS.json                   # anywhere
    python -m tools.time_convolutions time --calls CALLS.json --out FOLDER      # with the GPU

Sizes are those of modules of seeds that are timed nowhere; the type is the module's or, of four in ten, another. Each
runs with channels last, as torch.compile mostly has it, some with channels first, and backward. FOLDER has
convolutions.csv.gz, with the columns of `tools.time_modules` and `seed`, `tf32`: medians of three runs under torch's
profiler, each behind a kernel that writes the first operand.
"""

import argparse
import json
import math
import multiprocessing
import random
import time
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tools.draw_modules import drawn
from tools.time_modules import _append, operators_of, profiled

SEEDS = tuple(range(41, 53))
_DRAWS, _CHUNK = 14, 25
_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "tf32": torch.float32}
_WORDS = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
_SHARES = {"last": 1.0, "first": 0.3, "last backward": 0.4, "first backward": 0.2}
_MAX_ELEMENTS, _MAX_FP32_MACS = 1 << 28, 2e11
_COLUMNS = ("seed", "tf32", "operator", "arguments", "results", "us", "kernels")


class _Calls(TorchDispatchMode):
    """Notes the convolutions that run."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution.default:
            x, weight, bias = args[:3]
            self.calls.append((list(x.shape), list(weight.shape), bias is not None, *args[3:9]))
        return func(*args, **(kwargs or {}))


def _calls_of(place: tuple[int, int]) -> list[dict[str, Any]]:
    seed, number = place
    chance = random.Random(f"{seed} {number}")
    draw = drawn(seed, number)
    dtype = "tf32" if draw.tf32 else _WORDS.get(draw.autocast or draw.dtype, "fp32")
    with torch.no_grad(), draw.settings(), _Calls() as calls:
        draw.module(**draw.tensors())
    result = []
    for call in {json.dumps(call): call for call in calls.calls}.values():
        kind = chance.choice(tuple(_TYPES)) if chance.random() < 0.4 else dtype
        outputs = torch.ops.aten.convolution(*_tensors(call, torch.float32, False, "meta"), *call[3:]).numel()
        macs = outputs * math.prod(call[1]) // (call[1][1] if call[6] else call[1][0])
        if max(math.prod(call[0]), outputs) > _MAX_ELEMENTS or (kind == "fp32" and macs > _MAX_FP32_MACS):
            continue
        for way, share in _SHARES.items():
            if chance.random() < share and (len(call[0]) == 4 or way.startswith("first")):
                result.append({"seed": seed, "dtype": kind, "way": way, "call": call})
    return result


def _tensors(call: Any, dtype: torch.dtype, is_last: bool, device: str) -> list[Any]:
    """Return input, weight and bias; on a GPU as parts of two buffers of random values."""
    tensors: list[Any] = []
    for shape in call[:2]:
        like = torch.empty(shape, device="meta")
        like = like.to(memory_format=torch.channels_last) if is_last else like
        tensors.append(_random(len(tensors), dtype, device)[: like.numel()].as_strided(like.shape, like.stride()))
    filters = call[1][1] * call[8] if call[6] else call[1][0]
    return [*tensors, _random(2, dtype, device)[:filters] if call[2] else None]


_buffers: dict[tuple[int, torch.dtype, str], Any] = {}


def _random(number: int, dtype: torch.dtype, device: str) -> Any:
    key = number, dtype, device
    if key not in _buffers:
        size = (_MAX_ELEMENTS, 1 << 26, 1 << 20, _MAX_ELEMENTS)[number]
        _buffers[key] = torch.empty(size, dtype=dtype, device=device)
        if device == "cuda":
            _buffers[key].normal_()
    return _buffers[key]


def _run(cases: list[dict[str, Any]]) -> None:
    for case in cases:
        call, dtype, way = case["call"], _TYPES[case["dtype"]], case["way"]
        x, weight, bias = _tensors(call, dtype, way.startswith("last"), "cuda")
        if way.endswith("backward"):
            like = torch.ops.aten.convolution(*_tensors(call, dtype, way.startswith("last"), "meta"), *call[3:])
            grad = _random(3, dtype, "cuda")[: like.numel()].as_strided(like.shape, like.stride())
            grad.mul_(1)
            torch.ops.aten.convolution_backward(grad, x, weight, None, *call[3:], [True, True, False])
        else:
            x.mul_(1)
            torch.ops.aten.convolution(x, weight, bias, *call[3:])


def _time(cases: list[dict[str, Any]], options: argparse.Namespace) -> None:
    until = time.time() + options.limit_s
    random.Random(0).shuffle(cases)
    cases.sort(key=lambda case: case["dtype"] == "tf32")
    chunks = [cases[at : at + _CHUNK] for at in range(0, len(cases), _CHUNK)]
    random.Random(1).shuffle(chunks)
    for chunk in chunks:
        if time.time() > until:
            return
        _time_chunk(chunk, options)


def _time_chunk(chunk: list[dict[str, Any]], options: argparse.Namespace) -> None:
    tf32 = chunk[0]["dtype"] == "tf32"
    torch.backends.cudnn.allow_tf32 = tf32
    good = []
    for case in chunk:
        try:
            if (case["dtype"] == "tf32") == tf32:
                _run([case])
                good.append(case)
        except RuntimeError as error:  # of cuDNN, which has no kernel, or of memory
            print(case, str(error)[:200], flush=True)
    profile = profiled(lambda: _run(good), marks=True)
    rows = [row for row in operators_of(*profile) if "convolution" in row[0]]
    if len(rows) != len(good):
        print(f"{len(good)} convolutions have {len(rows)} rows of kernels", flush=True)
        return
    _append(options.out / "convolutions.csv.gz", _COLUMNS, [
        {
            "seed": case["seed"], "tf32": int(tf32), "operator": operator, "arguments": arguments, "results": results,
            "us": round(sum(kernel[1] for kernel in kernels), 3), "kernels": json.dumps(kernels),
        }
        for case, (operator, arguments, results, kernels) in zip(good, rows, strict=True)
    ])  # fmt: skip


def main() -> None:
    """Draw convolutions, or time them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("draw", "time"))
    parser.add_argument("--calls", type=Path, required=True, help="JSON of the convolutions")
    parser.add_argument("--out", type=Path, help="folder of the table")
    parser.add_argument("--limit-s", type=float, default=290.0, help="stop after so long")
    options = parser.parse_args()
    if options.what == "time":
        _time(json.loads(options.calls.read_text()), options)
        return
    places = [(seed, number) for seed in SEEDS for number in range(_DRAWS)]
    with multiprocessing.Pool() as pool:
        calls = [call for some in pool.imap(_calls_of, places, chunksize=1) for call in some]
    options.calls.write_text(json.dumps(calls))
    print(f"{len(calls)} convolutions")


if __name__ == "__main__":
    main()
