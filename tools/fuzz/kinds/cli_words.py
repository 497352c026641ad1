"""Command lines: real commands with their own options, values and junk, cheap ones only."""

import io
import json
import os
import random
import re
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import typer

from gemm_eval.cli.app import app
from tools.fuzz.mutate import ODD_NUMBERS, ODD_TEXTS

_ARCHS = ("demo-8core", "sg2260", "tpu-v4", "h200-sxm", "a100-sxm-80gb", "l4", "h200", "chip.yaml", "bad.yaml")
_DTYPES = ("fp16", "bf16", "fp8", "int8", "int4", "w4a16", "w4a8", "w8a8", "fp32", "tf32", "half", "float16")
_COUNTS = ("1", "2", "4", "8", "64", "128", "-1")
_FILES = (*("chip.yaml", "bad.yaml", "config.json", "text", "folder", "nothing", "folder/new", "text/new", "new.csv"),)
_VALUES: dict[str, tuple[str, ...]] = {
    "arch": _ARCHS, "name": _ARCHS, "names": _ARCHS,
    "model": ("llama-3-8b", "mixtral-8x7b", "deepseek-v3", "gemma-2-9b", "config.json", "lama-3-8b", "text"),
    **dict.fromkeys(("dtype", "dtypes", "dense_dtype", "input_dtype", "weight_dtype", "output_dtype", "zero_dtype",
                     "activation"), _DTYPES),
    "library": ("cublas", "gemm-eval", "trtllm", "mkl"), "l2": ("cold", "warm"), "clock": ("burst", "sustained"),
    "mapping": ("1,4,2,1/16,16,16/mnk", "1,1,1,1/64,64,64/kmn", "1,4,2/16/mnk", "9,9,9,9/1,1,1/nmk",
                "sm90_wgmma/128,256,64/2,1/8,4,cooperative/data_parallel,1/along_m,8",
                "sm90_wgmma/64,8,64/1,1/4,2,basic/split_k,2/along_n,1", "///", "1,4,2,1/16,16,16/mmm"),
    "distinct": ("mapping", "partition", "tile"), "phase": ("prefill", "decode", "both"),
    "mode": ("group", "group_zero", "column", "mxfp4", "nvfp4"),
    "family": ("w4a16_sm90", "w4a16_gemv", "sm90_wgmma", "cutlass"),
    "kernel": ("cublas", "cublaslt", "w4a16"),
    "shape_sets": ("smoke", "batched", "w4a16-smoke", "zoo"), "data": ("text", "cublas/bf16", "nothing.csv"),
    "out": _FILES, "files": _FILES, "file": _FILES, "folder": _FILES, "timings": _FILES, "space": _FILES,
    "shapes": ("shapes.csv", "text", "nothing.csv"),
    "objective": ("latency_us", "area"), "target": ("sm_90a", "sm_80"),
}  # fmt: skip
_SIZES = (*_COUNTS, "7", "16", "100", "4096", "12288", "1,4", "1..8", "8..1", "1..64:16")
# What takes long, however right it is: compiling kernels, fits, plots, all timings.
_SLOW = {"compile_", "measured", "all_", "plot", "ablation", "refit"}
# Words that keep a command from work that takes minutes, or a GPU; they come first, where no option takes them.
_FIRST = {
    "measure": ("--list",), "profile": ("--dtype", "fp61"),
    **dict.fromkeys(("validate dense", "validate w4a16", "validate triton", "calibrate dense", "calibrate w4a16",
                     "calibrate triton"), ("--data", "nothing.csv")),
    "configs list": ("--json",), "configs build": ("nothing",), "validate training": ("--help",),
}  # fmt: skip
_CODES = {0, 1, 2, 3}
_ACTS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]")


@cache
def _commands() -> tuple[Any, dict[str, Any]]:
    application = typer.main.get_command(app)
    found: dict[str, Any] = {}
    for name, command in application.commands.items():  # type: ignore[attr-defined]
        for of, child in getattr(command, "commands", {"": command}).items():
            found[f"{name} {of}".strip()] = child
    return application, found


def prepare() -> None:
    """Compile and import what cases use."""
    for line in (
        "evaluate 1 64 64 64 --arch demo-8core --arch h200-sxm --arch a100-sxm-80gb",
        "evaluate 1 64 256 256 --arch demo-8core --dtype w4a16 --no-idle-cores",
        "evaluate 1 64 256 256 --arch h200-sxm --dtype w4a16",
        "evaluate 1 64 256 256 --arch h200-sxm --dtype w4a16 --library trtllm",
        "evaluate 1 64 256 256 --arch demo-8core --mapping 1,4,2,1/16,16,16/mnk",
        "evaluate 1 64 256 256 --arch h200-sxm "
        "--mapping sm90_wgmma/128,256,64/2,1/8,4,cooperative/data_parallel,1/along_m,8",
        "top 1 64 256 256 --arch demo-8core",
        "top 1 64 256 256 --arch demo-8core --distinct partition",
        "top 1 64 256 256 --arch h200-sxm",
        "top 1 64 255 255 --arch h200-sxm",
        "top 1 64 256 256 --arch h200-sxm --dtype w4a16",
        "model llama-3-8b --arch demo-8core --dtype w4a16",
        "prewarm llama-3-8b --arch h200-sxm",
        "crossover 4096 4096 --max-m 64",
        "kernels --arch h200-sxm",
        "arch list",
        "measure --out x --list",
        "measure --out x --list --kernel w4a16 --set w4a16-smoke --top 2",
        "validate dense --data cublas/bf16 --data nothing.csv",
        "validate w4a16 --data nothing.csv",
        "validate triton --data nothing.csv",
        "calibrate dense --arch h200-sxm --family sm90_wgmma --data nothing.csv",
        "calibrate w4a16 --arch h200-sxm --family w4a16_sm90 --data nothing.csv",
        "calibrate triton --arch h200-sxm --data nothing.csv",
        "configs list",
        "report folder",
        "pareto folder",
        "sweep text --out folder",
        "asm text",
    ):
        _run(line.split())


def run_one(rng: random.Random, folder: Path) -> str:
    """Run one command line in `folder`; return ok, or the type of its error."""
    os.chdir(folder)
    (folder / "chip.yaml").write_text('base: demo-8core\nname: odd\ntitle: "\\e[31m[red]\\u202e"\nnum_cores: 4\n')
    (folder / "bad.yaml").write_text("base: demo-8core\nname: bad\nsram_bytes: -1\n")
    (folder / "config.json").write_text('{"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4}')
    (folder / "text").write_text("hello\n")
    (folder / "shapes.csv").write_text("M,K,N,dtype\n1,64,64,\n16,64,64,w4a16\n")
    (folder / "folder").mkdir()
    words = _line(rng)
    code, out, err = _run(words)
    assert code in _CODES, f"exit code {code} of {words}"
    assert not _ACTS.search(out + err), f"a character that acts, of {words}"
    if not err:
        assert code in {0, 1} or "Usage: " in out, f"exit code {code} without a word, of {words}"
        return "ok" if code == 0 else "check failed" if code == 1 else "help"
    if code == 0:
        return "ok with notes"
    assert err.count("\n") == 1, f"{err.count(chr(10))} lines of errors, of {words}: {err[:200]}"
    assert not out, f"output beside an error, of {words}"
    if "--json" not in words:
        assert err.startswith("error: ")
        return f"exit {code}"
    return str(json.loads(err)["error"]["type"])


def _run(words: list[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    application, _ = _commands()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            application.main(words, prog_name="gemm-eval")
        except SystemExit as done:
            return int(done.code or 0), out.getvalue(), err.getvalue()
    raise AssertionError(f"no exit code of {words}")


def _line(rng: random.Random) -> list[str]:
    _, commands = _commands()
    path = rng.choice([*commands, "evaluate", "evaluate", "top", "top", "model", "prewarm", "kernels", "crossover"])
    params = commands[path].params
    words: list[str] = []
    for param in params:
        if param.name in _SLOW or param.name == "help":
            continue
        is_argument = param.param_type_name == "argument"
        if not is_argument and not param.required and rng.random() > 0.25:
            continue
        for _ in range(rng.choice((1, 1, 2, 3)) if param.nargs == -1 or getattr(param, "multiple", False) else 1):
            name = [] if is_argument else [rng.choice([*param.opts, *param.secondary_opts])]
            has_value = is_argument or not param.is_flag
            words += [*name, *([_value(rng, param)] if has_value else [])]
    for _ in range(rng.choice((0, 0, 0, 1, 1, 2, 4))):
        _damage(rng, words, params)
    first = _FIRST.get(path, ())
    if path == "measure" and "w4a16" in words:
        first = (*first, "--set", "w4a16-smoke")  # of all sets every config is listed
    return [*path.split(), *first, *(word for word in words if word != "--")]


def _value(rng: random.Random, param: Any) -> str:
    known = _VALUES.get(param.name, _SIZES)
    if rng.random() < 0.1:
        return rng.choice((rng.choice(ODD_NUMBERS), rng.choice(ODD_TEXTS).replace("\0", "0")))
    return rng.choice(known)


def _damage(rng: random.Random, words: list[str], params: list[Any]) -> None:
    at = rng.randrange(len(words) + 1)
    match rng.randrange(6):
        case 0 if words:
            del words[at - 1]
        case 1 if words:
            words.insert(at, rng.choice(words))
        case 2 if words:
            word = words[at - 1]
            place = rng.randrange(len(word) + 1)
            words[at - 1] = word[:place] + rng.choice("abz-=,/1 \x1b\u202e\udc80") + word[place + rng.randrange(2) :]
        case 3:
            name = rng.choice([opt for param in params for opt in param.opts])
            words.insert(at, name if name.startswith("-") else "--json")
        case 4:
            words.insert(at, rng.choice(("--help", "--json", "-h", "-", "", "--=", "-k", "--arch", "-1", "x" * 5000)))
        case _:
            words.insert(at, (rng.choice(ODD_TEXTS) + rng.choice(ODD_NUMBERS)).replace("\0", "0"))
