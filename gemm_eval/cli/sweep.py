"""The commands of design-space exploration: `sweep` and `pareto`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gemm_eval.cli.options import JsonOption
from gemm_eval.cli.tables import OutOption, check_out, write_records
from gemm_eval.cli.words import refuse_others
from gemm_eval.errors import UnsupportedError

if TYPE_CHECKING:
    import pandas as pd

    from gemm_eval.sweep import SweepResult

__all__ = ["pareto", "sweep"]

_HEADER_CHARS = 9

FolderArgument = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="Where `gemm-eval sweep` has put its points.", show_default=False)
]
ObjectiveOption = Annotated[
    list[str] | None,
    typer.Option("--objective", "-o", help="A column that counts; repeat for several. Default: those of the sweep."),
]
LimitOption = Annotated[
    int | None,
    typer.Option(
        min=1, help="Points of the front to print. Default: 20; all with --json and --out.", show_default=False
    ),
]
_LIMIT = 20


def sweep(
    space: Annotated[
        Path, typer.Argument(metavar="SPACE.yaml", help="Chips, workloads, objectives; see below.", show_default=False)
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            metavar="FOLDER",
            help="Folder for the points, as parquet. If it has some of them, the sweep goes on where it was.",
            show_default=False,
        ),
    ],
    limit: LimitOption = None,
    json: JsonOption = False,
) -> None:
    """Evaluate a design space of chips against workloads, and print the Pareto front.

    SPACE.yaml says what varies: base (an arch), fields (lists, ranges, or "= expression" in other fields), workloads
    (models or GEMMs), objectives, constraints (area_mm2 <= 200) and sampling; gemm_eval.sweep.read_sweep_file
    documents it, and examples/chip_space.yaml is one. Models run with fused attention unless they say fused: false. The
    points stay in FOLDER, for `pareto` and `report`. A sweep that leaves no point is an error.

    Examples:

    gemm-eval sweep examples/chip_space.yaml --out points
    """  # fmt: skip
    from gemm_eval.sweep import read_sweep_file
    from gemm_eval.sweep import sweep as run

    asked = read_sweep_file(space)
    result = run(asked.space, asked.workloads, path=out, **asked.options)
    _print_front(result, None, limit, json=json)
    if len(result) and not result.is_feasible.any():
        reason = result.excluded().iloc[0]
        raise UnsupportedError(
            f"no point is left: all {len(result):,} are excluded, most as {reason['reason']} (point "
            f"{reason['first_point']}: {reason['example']})"
        )


def pareto(
    ctx: typer.Context,
    folder: FolderArgument,
    objective: ObjectiveOption = None,
    limit: LimitOption = None,
    explain: Annotated[
        int | None, typer.Option(metavar="POINT", help="Explain a point instead, GEMM by GEMM.", show_default=False)
    ] = None,
    out: OutOption = None,
    json: JsonOption = False,
) -> None:
    """Print the Pareto front of a sweep: the points that no other beats in every objective.

    Examples:

    gemm-eval pareto points -o energy_pj -o area_mm2

    gemm-eval pareto points --explain 3

    gemm-eval pareto points --out front.csv
    """
    from gemm_eval.sweep import load_sweep

    check_out(out)
    if explain is not None:
        refuse_others(ctx, "--explain", {"explain", "folder", "json"})
    result = load_sweep(folder)
    if explain is not None:
        text = result.explain(explain)
        if json:
            from gemm_eval.cli.output import print_json

            print_json({"point": explain, "explanation": text})
        else:
            from gemm_eval.cli.output import print_line

            print_line(text)
    elif out is not None:
        front, columns, _ = _front_of(result, objective)
        write_records(out, _plain(front[columns].head(len(front) if limit is None else limit)), json=json)
    else:
        _print_front(result, objective, limit, json=json)


def _front_of(result: SweepResult, objectives: list[str] | None) -> tuple[pd.DataFrame, list[str], pd.DataFrame]:
    """The front, the columns of it that are shown, and why points were excluded."""
    names = [*result.field_names, *(objectives or result.objectives)]
    columns = list(dict.fromkeys(["point", *(["arch"] if len(result.bases) > 1 else []), *names]))
    return result.pareto(objectives), columns, result.excluded()


def _print_front(result: SweepResult, objectives: list[str] | None, limit: int | None, *, json: bool) -> None:
    front, columns, reasons = _front_of(result, objectives)
    if json:
        from gemm_eval.cli.output import print_json

        print_json({
            "num_points": len(result),
            "num_points_asked": result.description["num_points"],
            "num_excluded": int(reasons["num_points"].sum()),
            "excluded": reasons.to_dict("records"),
            "front": _plain(front[columns].head(len(front) if limit is None else limit)),
        })  # fmt: skip
        return
    from gemm_eval.cli.output import make_console, make_table, widest

    console = make_console()
    headers = [_header(name) for name in columns]
    table = make_table(headers, title=f"Pareto front: {len(front)} of {len(result):,} points", right=headers)
    limit = limit or _LIMIT
    for row in front[columns].head(limit).itertuples(index=False):
        table.add_row(*(_format(value) for value in row))
    console.width = max(console.width, widest(console, table))  # a digit on a line of its own says nothing
    console.print(table)
    if len(front) > limit:
        console.print(f"{len(front) - limit} more: --limit")
    if len(result) < result.description["num_points"]:
        console.print(f"unfinished: {len(result):,} of {result.description['num_points']:,} points are done")
    for row in reasons.itertuples(index=False):
        console.print(f"excluded: {row.num_points:,} points, {row.reason} (point {row.first_point}: {row.example})")


def _header(name: str) -> str:
    """A column's name on lines of its words, so that a narrow table cuts no word."""
    lines = [""]
    for word in name.split("_"):
        if lines[-1] and len(lines[-1]) + len(word) >= _HEADER_CHARS:
            lines[-1] += "_"
            lines.append(word)
        else:
            lines[-1] += f"_{word}" if lines[-1] else word
    return "\n".join(lines)


def _plain(frame: pd.DataFrame) -> list[dict[str, Any]]:
    return [
        {str(key): None if value != value else value for key, value in row.items()}  # noqa: PLR0124  nan
        for row in frame.to_dict("records")
    ]


def _format(value: Any) -> str:
    if isinstance(value, float) and value == value:  # noqa: PLR0124  nan
        return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:,.4g}"
    if value is None or isinstance(value, float):
        return "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
