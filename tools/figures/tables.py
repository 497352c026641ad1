"""Functions that the templates of docs/figures.md and of README's tables call: rows, and numbers in words."""

import inspect
import statistics
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jinja2
import pandas as pd
import yaml

from gemm_eval.units import time_text
from gemm_eval.validation.crossover import CLEAR_FRAC
from tools.figures.documents import BENCH, COMMANDS, FOLDER, ROOT, load

TEMPLATE = FOLDER / "figures.md.jinja"
PAGE = ROOT / "docs" / "figures.md"
README = ROOT / "README.md"
README_ROWS = FOLDER / "readme.md.jinja"
"""The rows of README's tables."""
_REGIMES = ("decode", "mid", "prefill")
_COMPARED = ROOT / "arch" / "compared"
_TORCH = ROOT / "arch" / "measured" / "h200-sxm"


def environment() -> jinja2.Environment:
    """Return what the templates may use; a name that is not there is an error."""
    functions = inspect.getmembers(sys.modules[__name__], inspect.isfunction)
    made = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True,
        autoescape=False,
    )  # fmt: skip
    made.filters |= {"pct": percent, "count": "{:,}".format}
    made.globals |= {name: function for name, function in functions if function.__module__ == __name__}
    made.globals |= {"document": load}
    return made


def render(template: Path = TEMPLATE) -> str:
    """Return docs/figures.md, or README's rows, as the documents have them."""
    return environment().from_string(template.read_text(encoding="utf-8")).render()


def render_readme() -> str:
    """Return README.md with the rows of its tables as the documents have them; a row is known by its first cell."""
    text = README.read_text(encoding="utf-8")
    rows = {row.split(" | ")[0]: row for row in render(README_ROWS).splitlines()}
    return "\n".join(rows.get(line.split(" | ")[0], line) for line in text.split("\n"))


def percent(frac: float, digits: int = 1, sign: bool = False, unit: bool = True) -> str:
    """Write a fraction as a percentage."""
    return f"{frac:{'+' if sign else ''}.{digits}%}".removesuffix("" if unit else "%")


def bench(name: str) -> Any:
    """Return the figures of a benchmark: ``median_us``, and what it adds."""
    return load(BENCH)["benchmarks"][name]


def slower_with_levels(test: str) -> str:
    """Return how many times as long GEMMs take on chips with every optional field."""
    found = load(BENCH)["benchmarks"]
    start = f"test_multicore_speed.py::{test}["
    with_all = {name: of["median_us"] for name, of in found.items() if name.startswith(start) and "all]" in name}
    return widest((us / found[name.replace("all]", "one]")]["median_us"] for name, us in with_all.items()), "{:.1f}")


def times(*us: float) -> str:
    """Write times that belong together: two digits, and a unit once where all have the same."""
    texts = [time_text(float(f"{one:.2g}")) for one in us]
    numbers, units = zip(*(text.split() for text in texts), strict=True)
    plain = [f"{float(number.replace(',', '')):g}" for number in numbers]
    if len(set(units)) == 1:
        return f"{' / '.join(plain)} {units[0]}"
    return " / ".join(f"{number} {unit}" for number, unit in zip(plain, units, strict=True))


def dense_row(name: str, gpu: str, data: str) -> str:
    """A row of a set of a library's own choices."""
    by_regime = {line["regime"]: line["errors"] for line in _lines("gpu", gpu=gpu, data=data)}
    of_all = by_regime["all"]
    last = list(of_all.values())[-1]
    table = f"{of_all['interpolation']['mape_frac']:.1%}" if "interpolation" in of_all else "-"
    cells = (
        name, f"{last['num']:,}", percent(of_all["fitted roofline"]["mape_frac"]), table,
        percent(of_all["physics"]["mape_frac"]), *_scores(last, by_regime, list(of_all)[-1]),
    )  # fmt: skip
    return _row(cells)


def dense(gpu: str, data: str, who: str) -> Any:
    """Errors on all rows of a set of a library's own choices."""
    (line,) = _lines("gpu", gpu=gpu, data=data, regime="all")
    return line["errors"][who]


def moe_row(name: str, gpu: str, data: str) -> str:
    """A row of layers of experts."""
    by_regime = {line["group"]: line["errors"] for line in _lines("moe", gpu=gpu, data=data)}
    of_all = by_regime["all"]
    last = of_all["gemm_eval"]
    roofline = percent(of_all["fitted roofline"]["mape_frac"])
    return _row((name, f"{last['num']:,}", roofline, *_scores(last, by_regime, "gemm_eval")))


def chip_row(name: str, chip: str, *parts: tuple[Sequence[str], str]) -> str:
    """A row of a multi-core chip: of one part also median, p90 and bias.

    Args:
        name: what stands first.
        chip: document and arch name, or the arch name alone in the document of all.
        parts: sets of timings that are taken together, and which of their rows: a type, a regime, or "all".
    """
    whos = ("naive roofline", "fitted roofline", "interpolated table", "gemm_eval")
    pooled = [[chip_mape(chip, sets, rows, who) for who in whos] for sets, rows in parts]
    counts = "; ".join(f"{_chip_num(chip, sets, rows):,}" for sets, rows in parts)
    errors = ("; ".join(percent(part[place]) for part in pooled) for place in range(len(whos)))
    return _row((name, counts, *errors, "; ".join(dict.fromkeys(_chip_rest(chip, sets, rows) for sets, rows in parts))))


def chip_short_row(name: str, chip: str, of_set: str) -> str:
    """A row of a multi-core chip in the short table."""
    roofline, model = (percent(chip_mape(chip, (of_set,), who=who)) for who in ("fitted roofline", "gemm_eval"))
    num = _chip_num(chip, (of_set,), "all")
    return _row((name, f"{num:,}", roofline, f"**{model}**", "`gemm-eval validate multicore all`"))


def chip_mape(chip: str, sets: Sequence[str], rows: str = "all", who: str = "gemm_eval") -> float:
    """MAPE on rows of some sets of a multi-core chip taken together."""
    found = [line["errors"][who] for line in _chip_lines(chip, sets, rows)]
    mape: float = sum(of["num"] * of["mape_frac"] for of in found) / sum(of["num"] for of in found)
    return mape


def num_fitted(chip: str) -> int:
    """Return how many numbers of a chip are fitted."""
    return len(load(_chip_document(chip))["coefficients"][chip])


def repeats(chip: str, of_set: str) -> Any:
    """Return how far timings of the same GEMM are from one another."""
    return load(_chip_document(chip))["repeats"][chip][of_set]


def _chip_num(chip: str, sets: Sequence[str], rows: str) -> int:
    return sum(line["errors"]["gemm_eval"]["num"] for line in _chip_lines(chip, sets, rows))


def _chip_rest(chip: str, sets: Sequence[str], rows: str) -> str:
    lines = _chip_lines(chip, sets, rows)
    if len(lines) > 1:
        return "by set in the command"
    of = lines[0]["errors"]["gemm_eval"]
    rest = (percent(of[name], unit=False) for name in ("median_frac", "p90_frac"))
    return ", ".join([*rest, percent(of["bias_frac"], sign=True)])


def _chip_lines(chip: str, sets: Sequence[str], rows: str) -> list[Any]:
    found = _lines(_chip_document(chip), chip=chip, rows=rows)
    return [line for line in found if line["set"] in sets]


def _chip_document(chip: str) -> str:
    return chip if chip in COMMANDS else "multicore"


def _scores(last: Any, by_regime: dict[str, Any], who: str) -> Iterable[str]:
    errors = (by_regime.get(regime, {}).get(who) for regime in _REGIMES)
    regimes = " / ".join("-" if of is None else percent(of["mape_frac"], unit=False) for of in errors)
    yield f"**{percent(last['mape_frac'])}**"
    yield f"{regimes}%"
    yield percent(last["median_frac"])
    yield percent(last["p90_frac"])
    yield percent(last["bias_frac"], sign=True)
    yield _tau(last)


def _tau(errors: Any) -> str:
    return "-" if errors["kendall_tau"] is None else f"{errors['kendall_tau']:.3f}"


def short_row(row: str, command: str, mape: int, name: str = "") -> str:
    """A row of the short table: what, timings, roofline, model.

    Args:
        row: of the page of all figures.
        command: that prints it.
        mape: the place of the model's MAPE in it; a roofline's stands before, or last, where it is of two.
        name: instead of the row's.
    """
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    roofline = cells[2] if mape > 2 else cells[-1].split(" / ")[0]
    return _row((name or cells[0], cells[1], roofline, f"**{cells[mape].strip('*')}**", f"`{command}`"))


def held_out(name: str, **wanted: Any) -> list[Any]:
    """Lines of all rows of a document, with these values."""
    return _lines(name, group="all", **wanted)


def held_out_row(name: str, errors: Any, others: Sequence[str]) -> str:
    """A row of a document's line: rows, MAPE of others, then the errors of the model."""
    of = errors["gemm_eval"]
    return _row(
        (
            name, f"{of['num']:,}", *(percent(errors[other]["mape_frac"]) for other in others),
            f"**{percent(of['mape_frac'])}**", percent(of["median_frac"]), percent(of["p90_frac"]),
            percent(of["bias_frac"], sign=True), _tau(of),
        )
    )  # fmt: skip


def part(table: str) -> Any:
    """The part of `validate w4a16` that begins with a table's name; empty: the one that is fitted."""
    parts = load("w4a16")["parts"]
    return next(of for of in parts if of["title"].startswith(f"{table}:")) if table else parts[0]


def w4a16_errors(table: str, predictor: str, family: str, regime: str) -> Any:
    """Errors on configs of our kernels; None where there are none."""
    wanted = (predictor, family, regime)
    found = (of for of in part(table)["errors"] if (of["predictor"], of["family"], of["regime"]) == wanted)
    return next(found, None)


def w4a16_row(name: str, table: str = "", family: str = "all", regime: str = "all") -> str:
    """A row of configs of our W4A16 kernels."""
    of = w4a16_errors(table, "model", family, regime)
    others = (w4a16_errors(table, who, family, regime) for who in ("fitted roofline", "naive roofline"))
    return _row(
        (
            name, f"{of['num']:,}", percent(of["mape_frac"]), percent(of["median_frac"]), percent(of["p90_frac"]),
            percent(of["bias_frac"], sign=True), f"{of['tau_within_gemms']:.3f}",
            " / ".join("-" if other is None else percent(other["mape_frac"]) for other in others),
        )
    )  # fmt: skip


def choice(table: str, method: str, regime: str = "all") -> Any:
    """Return the loss and cost of choosing by a method."""
    found = [of for of in part(table)["choices"] if (of["method"], of["regime"]) == (method, regime)]
    return found[0]


def triton_errors(predictor: str, regime: str, data_set: str = "all") -> Any:
    """Errors on configs of Triton kernels."""
    (found,) = (
        of for of in load("triton")["errors"]
        if (of["predictor"], of["regime"], of["data_set"]) == (predictor, regime, data_set)
    )  # fmt: skip
    return found


def triton_choice(regime: str, top: str, data_set: str = "all", method: str = "model") -> Any:
    """Speed of what is chosen among the first of a ranking."""
    (found,) = (
        of for of in load("triton")["choices"]
        if (of["method"], of["regime"], of["top"], of["data_set"]) == (method, regime, top, data_set)
    )  # fmt: skip
    return found


def pruned(method: str) -> list[Any]:
    """Summaries of a method of pruning, by kernel: fp16, bf16, fp8, and W4A16 in fp16 and bf16."""
    order = [("gemm", "fp16"), ("gemm", "bf16"), ("gemm", "fp8"), ("w4a16", "fp16"), ("w4a16", "bf16")]
    found = {(of["kernel"], of["dtype"]): of["methods"][method] for of in load("asm-aware")["kernels"]}
    return [found[kind] for kind in order]


def sweep_rate() -> str:
    """Evaluations a second of sweeps, to hundreds."""
    return widest((round(of["threads_per_s"], -2) for of in load("rates")["runs"]), "{:,.0f}")


def dask_share() -> str:
    """Return the part of that rate that Dask reaches."""
    return widest((of["dask_per_s"] / of["threads_per_s"] for of in load("rates")["runs"]), "{:.0%}")


def host(rows: str, who: str) -> float:
    """MAPE on this machine's CPU."""
    (line,) = (line for line in load("host")["lines"] if line["rows"] == rows)
    mape: float = line["errors"][who]["mape_frac"]
    return mape


def bytes_beside(simulator: str) -> dict[str, int]:
    """In how many cases our best mapping moves fewer bytes than a simulator's, as many, more, and over 5% more."""
    lines = [line for line in load("simulators")["lines"] if line["simulator"] == simulator]
    ours, theirs = ([sum(line[who]["least"].values()) for line in lines] for who in ("ours", "theirs"))
    pairs = list(zip(ours, theirs, strict=True))
    return {
        "num": len(pairs), "fewer": sum(our < their for our, their in pairs),
        "same": sum(our == their for our, their in pairs), "more": sum(our > their for our, their in pairs),
        "far_more": sum(our > 1.05 * their for our, their in pairs),
    }  # fmt: skip


def beside(gpu: str, data: str, who: str, regime: str = "all") -> Any:
    """Errors of `validate dense` on a set, of whoever predicts."""
    return load("dense")[gpu][data][who][regime]


def quantization_errors() -> list[float]:
    """MAPE of what a pass takes that quantizes A, of each set of each GPU, held out."""
    files = sorted((ROOT / "arch" / "calibration").glob("*/trtllm-quantize.yaml"))
    calibrations = (yaml.safe_load(path.read_text(encoding="utf-8")) for path in files)
    return [errors["mape_percent"] / 100.0 for calibration in calibrations for errors in calibration["errors"]]


def coverages(least: int = 0) -> list[float]:
    """The share of rows of each set of at least so many, fitted and held out, that lie in their intervals."""
    sets = [of.get("corrected", of["gemm_eval"])["all"] for sets in load("dense").values() for of in sets.values()]
    return [of["coverage_frac"] for of in sets if of["num"] >= least]


def widest(values: Iterable[float], form: str) -> str:
    """The least and the largest of some numbers, or one where both look alike."""
    values = list(values)
    least, most = form.format(min(values)), form.format(max(values))
    return least if least == most else f"{least} to {most}"


def compared(table: str, engine: str, by: str, keys: Sequence[str], value: Any = None) -> dict[str, Any]:
    """Return an engine's times over ours: geometric mean, worst, number, and where it is clearly ahead.

    Args:
        table: of arch/compared.
        engine: whose times.
        by: column of `value`.
        keys: columns that say which GEMM.
        value: only rows of it; None: all.
    """
    rows = pd.read_csv(_COMPARED / f"{table}.csv")
    times = rows.pivot_table(index=[*keys], columns="engine", values="latency_us")
    if value is not None:
        times = times[times.index.get_level_values(by) == value]
    ratios = (times[engine] / times["ours"]).dropna()
    gains = (1.0 / ratios - 1.0).rename("frac").sort_values(ascending=False)
    ahead = gains[gains > CLEAR_FRAC].reset_index().to_dict("records")
    return {"mean": statistics.geometric_mean(ratios), "worst": ratios.min(), "num": len(ratios), "ahead": ahead}


def stacks() -> dict[str, float]:
    """Errors of steps of stacks of layers, and of the roofline of the data sheet."""
    rows = load("stacks")["gpus"]["h200-sxm"]
    ours, roofline = ([abs(row[name]) for row in rows] for name in ("error_frac", "roofline_error_frac"))
    memory = [abs(row["memory_error_frac"]) for row in rows if row["memory_error_frac"] is not None]
    return {
        "mean": statistics.mean(ours), "most": max(ours), "roofline_mean": statistics.mean(roofline),
        "roofline_most": max(roofline), "memory_mean": statistics.mean(memory), "memory_most": max(memory),
        "num": len(rows),
    }  # fmt: skip


def modules(fusion: str) -> dict[str, float]:
    """Errors of whole modules of torch, eager or as Inductor fuses them."""
    errors = [abs(row["error_frac"]) for row in load("modules")["modules"] if row["fusion"] == fusion]
    return {"mean": statistics.mean(errors), "most": max(errors), "num": len(errors)}


def training() -> dict[str, float]:
    """Errors of training steps of stacks, and of the memory of eager ones."""
    steps = load("training")["steps"]
    times = [abs(step["error_frac"]) for step in steps]
    memory = [abs(step["memory_error_frac"]) for step in steps]
    return {
        "num": len(times), "mean": statistics.mean(times), "most": max(times),
        "memory_mean": statistics.mean(memory), "memory_most": max(memory),
    }  # fmt: skip


def served(figure: str, group: str = "all", part: str = "errors") -> Any:
    """Errors of TPOT or TTFT of served runs by predictor, of an engine or of all; or another part of the line."""
    (line,) = [line for line in load("served")["lines"] if (line["figure"], line["group"]) == (figure, group)]
    return line[part]


def served_row(figure: str, group: str) -> str:
    """A row of served runs: ideal sum, fitted roofline and model."""
    errors = served(figure, group)
    model = errors["gemm_eval"]
    roofline = percent(errors["fitted roofline"]["mape_frac"]) if "fitted roofline" in errors else "-"
    cells = f"{figure}, {group}", f"{model['num']:,}", percent(errors["ideal"]["mape_frac"]), roofline
    rest = (percent(model[f"{name}_frac"], sign=name == "bias") for name in ("median", "p90", "bias"))
    inside = f"{served(figure, group, 'coverage_frac'):.0%}"
    return _row((*cells, f"**{percent(model['mape_frac'])}**", *rest, f"{model['kendall_tau']:.3f}", inside))


def published() -> dict[str, float]:
    """Errors of tokens a second of published training runs."""
    document = load("published")
    (hours,) = [run for run in document["runs"] if run["name"] == "deepseek-v3-h800"]
    return {
        "num": len(document["runs"]), "median": document["median_error_frac"], "hours": hours["error_frac"],
        "inside": document["num_inside"],
    }  # fmt: skip


def inductor() -> dict[str, float]:
    """Return what pruning saves torch.compile, and what it costs."""
    compiled, layers = (pd.read_csv(_TORCH / "inductor" / f"{name}.csv") for name in ("compile", "layers"))
    return {
        "num": len(layers), "all_s": compiled["all_s"].sum(), "pruned_s": compiled["pruned_s"].sum(),
        "frac": compiled["pruned_s"].sum() / compiled["all_s"].sum(),
        "speed": statistics.geometric_mean(layers["speed"]), "worst": layers["speed"].min(),
    }  # fmt: skip


def _lines(name: str, **wanted: Any) -> list[Any]:
    return [line for line in load(name)["lines"] if all(line[key] == value for key, value in wanted.items())]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
