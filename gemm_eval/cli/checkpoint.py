"""The commands on checkpoints with 4-bit weights: `checkpoint convert` and `checkpoint show`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from gemm_eval.cli.options import JsonOption, argument, command, give, group, option

if TYPE_CHECKING:
    from gemm_eval.kernels import PackedLayer


app = group(
    "Checkpoints with 4-bit weights (AWQ, GPTQ, gpt-oss's MXFP4, NVFP4): pack them for our W4A16 kernels, and show "
    "packed files."
)


@command(app)
def convert(
    folder: Annotated[
        Path, argument("Checkpoint in Hugging Face's format: *.safetensors, config.json.", "FOLDER")
    ],
    out: Annotated[Path, option("New or empty folder.", "--out", "-o")],
    activation: Annotated[str | None, option(
        "Type of activations, fp16 or bf16. Default: the type of their scales, or of four-bit "
        "floats that of their bias or of the model."
    )] = None,
    gptq_version: Annotated[
        int | None, option("How zero points are stored, 1 (z - 1) or 2 (z), where the checkpoint's own setting is "
        "wrong.")
    ] = None,
    replace: Annotated[
        bool, option("Replace an earlier conversion in the folder, complete or not.", "--replace")
    ] = False,
    json: JsonOption = False,
) -> None:  # fmt: skip
    """Pack all quantized layers of a checkpoint, layer by layer, without torch; other tensors and files are copied.

    The result loads by `gemm_eval.kernels.load_packed`, and its tensors by W4Linear.load_state_dict.

    Examples:

    gemm-eval checkpoint convert llama-3-8b-awq --out packed
    """
    from gemm_eval.cli.output import print_line
    from gemm_eval.kernels import convert_checkpoint

    made = convert_checkpoint(folder, out, activation=activation, version=gptq_version, replace=replace)
    order = f", {made.num_permuted} of them with act-order" if made.num_permuted else ""
    line = (
        f"{made.folder}: {made.num_layers} layers{order}, {made.num_other} other tensors, {made.num_files} files, "
        f"{_mb(made.num_bytes)} MB"
    )
    give(json, lambda: made._asdict() | {"folder": str(made.folder)}, lambda: print_line(line))


@command(app)
def show(
    path: Annotated[Path, argument("Folder made by `convert`, or a file of packed layers.", "PATH")],
    json: JsonOption = False,
) -> None:
    """List the packed layers of a folder or file: sizes, quantization mode, act-order, bias.

    Each layer is loaded, so damage is detected.

    Examples:

    gemm-eval checkpoint show packed
    """
    from gemm_eval.kernels import load_packed

    rows = [_row(name, layer) for name, layer in load_packed(path)]
    give(json, lambda: {"path": str(path), "layers": rows}, lambda: _print_table(rows))


def _row(name: str, layer: PackedLayer) -> dict[str, Any]:
    packed, bias = layer
    return {
        "name": name, "K": packed.K, "N": packed.N, "mode": packed.mode.name.lower(), "group_size": packed.group_size,
        "activation": str(packed.activation), "act_order": packed.permutation is not None, "bias": bias is not None,
        "num_bytes": packed.nbytes + (0 if bias is None else int(bias.nbytes)),
    }  # fmt: skip


def _print_table(rows: list[dict[str, Any]]) -> None:
    from gemm_eval.cli.output import make_console, rows_table

    columns = (
        ("layer", "name", ""), "K", "N", ("weights", "mode", ""), ("A", "activation", ""),
        ("act-order", "act_order", _yes), ("bias", "bias", _yes), ("MB", "num_bytes", _mb),
    )  # fmt: skip
    cells = [row | {"mode": f"{row['mode']} {row['group_size'] or ''}".rstrip()} for row in rows]
    console = make_console()
    console.print(rows_table(cells, columns))
    console.print(f"{len(rows)} layers, {_mb(sum(row['num_bytes'] for row in rows))} MB")


def _mb(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f}"


def _yes(value: bool) -> str:
    return "yes" if value else "-"
