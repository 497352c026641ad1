"""ZigZag (`zigzag-dse`): a search over orders of loop factors, each operand kept in SRAM as deep as it fits.

Symons et al., "LOMA: Fast auto-scheduling on DNN accelerators through loop-order-based memory allocation", 2021. Its
words differ: B is our M, C our K, K our N; I, W and O are our A, B and C.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import math
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from benchmarks.simulators.chips import INPUT_BYTES, OUTPUT_BYTES, Chip, Counted, Gemm, Traffic
from gemm_eval.errors import GemmEvalError
from gemm_eval.words import needs_extra

LOOP_FACTORS = 6
"""Factors into which the search cuts the loops at most, its own default; it tries every order of them. Each
more makes it about five times slower."""
_SRAM_BITS_PER_CYCLE = 1 << 24  # so many that SRAM never waits: none of the three models is asked about it
_DRAM_BITS = 10**13
_WAYS = {"I1": ("fh", "tl"), "I2": ("fh", "tl"), "O": ("fh", "tl", "fl", "th")}
"""Transfers of each operand: from the level above (fh) or below (fl), and what goes to it (th, tl), by operand."""


def count_zigzag(chip: Chip, gemm: Gemm) -> Counted:
    """Return what ZigZag's best mappings of a GEMM cost: the fastest one, and the one that moves least.

    Raises:
        GemmEvalError: the packages of the extra are missing, or ZigZag finds no mapping.
    """
    least = read_zigzag(_run(chip, gemm, "energy"), chip)
    fastest = read_zigzag(_run(chip, gemm, "latency"), chip)
    return fastest._replace(least=least.moved)


def read_zigzag(document: Mapping[str, Any], chip: Chip) -> Counted:
    """Read the file that ZigZag writes for a layer (`*_complete.json`): one mapping is both `least` and `moved`."""
    outputs, mapping = document["outputs"], document["inputs"]["temporal_mapping"]
    words = {name: sum(levels[-1].values()) for name, levels in outputs["memory"]["word_accesses"].items()}
    moved = Traffic(*(words[name] * chip.dram_bytes_per_cycle for name in "IWO"))
    sizes = [int(loop.strip("()").split(",")[1]) for level in mapping["O"] for loop in level]
    kept = ", ".join(f"{name} {_loops(mapping[name][0])}" for name in "IWO")
    order = _loops([loop for level in mapping["O"] for loop in level])
    cycles = outputs["latency"]
    return Counted(
        least=moved,
        compute_cycles=math.prod(sizes),
        cycles=sum(cycles.values()),
        moved=moved,
        exposed_cycles=cycles["data_onloading"] + cycles["data_offloading"],
        mapping=f"{order}; in SRAM: {kept}",
    )


def _loops(loops: list[str]) -> str:
    """Return the loops, innermost first: "B16 K2"."""
    return " ".join(loop.strip("()").replace(", ", "") for loop in loops) or "one step"


def _run(chip: Chip, gemm: Gemm, optimum: str) -> dict[str, Any]:
    with needs_extra("comparing with ZigZag", "simulators"):
        from zigzag.api import get_hardware_performance_zigzag

    with tempfile.TemporaryDirectory() as name, _quiet():
        folder = Path(name)
        for part, document in _inputs(chip, gemm).items():  # the order of memories is that of their levels
            (folder / f"{part}.yaml").write_text(yaml.safe_dump(document, sort_keys=False), "utf-8")
        try:
            get_hardware_performance_zigzag(
                *(str(folder / f"{part}.yaml") for part in ("workload", "accelerator", "mapping")),
                opt=optimum, dump_folder=str(folder / "out"), pickle_filename=str(folder / "out" / "all.pickle"),
                lpf_limit=LOOP_FACTORS, loma_show_progress_bar=False,
            )  # fmt: skip
        except Exception as error:  # of any type: it has no base of its own
            raise GemmEvalError(f"ZigZag cannot map {gemm} on {chip.name}: {error}") from error
        document = json.loads((folder / "out" / "gemm_complete.json").read_text("utf-8"))
    return dict(document)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Undo what it does to the root logger, and drop what it prints."""
    root = logging.getLogger()
    handlers, level, disabled = list(root.handlers), root.level, logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(disabled)
        root.handlers[:] = handlers
        root.setLevel(level)


def _inputs(chip: Chip, gemm: Gemm) -> dict[str, Any]:
    """Return its inputs. Energy is the words that DRAM moves, so that least energy is least traffic."""
    sram = {
        "size": chip.sram_bytes * 8, "r_cost": 0.0, "w_cost": 0.0, "area": 0, "latency": 1,
        "operands": list(_WAYS), "force_double_buffering": True,
        "ports": [_port(way, operand) for operand, ways in _WAYS.items() for way in ways],
        "served_dimensions": ["D1", "D2"],
    }  # fmt: skip
    rate = chip.dram_bytes_per_cycle * 8
    everything = [f"{operand}, {way}" for operand, ways in _WAYS.items() for way in ways]
    wire = {"name": "rw_port_1", "type": "read_write", "bandwidth_min": 8, "bandwidth_max": rate}
    dram = {
        "size": _DRAM_BITS, "r_cost": 1.0, "w_cost": 1.0, "area": 0, "latency": 1, "operands": list(_WAYS),
        "ports": [wire | {"allocation": everything}],
        "served_dimensions": ["D1", "D2"],
    }  # fmt: skip
    array = {"unit_energy": 0, "unit_area": 0, "dimensions": ["D1", "D2"], "sizes": [chip.rows, chip.columns]}
    links = {"O": "O", "W": "I2", "I": "I1"}
    spatial = {"D1": [f"C, {chip.rows}"], "D2": [f"K, {chip.columns}"]}
    bits = {"I": INPUT_BYTES * 8, "W": INPUT_BYTES * 8, "O": OUTPUT_BYTES * 8, "O_final": OUTPUT_BYTES * 8}
    layer = {
        "id": 0, "name": "gemm", "operator_type": "Gemm", "equation": "O[b][k]+=I[b][c]*W[c][k]",
        "loop_dims": ["B", "C", "K"], "loop_sizes": list(gemm), "operand_precision": bits,
        "dimension_relations": [], "operand_source": {"I": 0, "W": 0},
    }  # fmt: skip
    return {
        "accelerator": {
            "name": chip.name, "memories": {"sram": sram, "dram": dram}, "operational_array": array
        },
        "mapping": [{"name": "default", "spatial_mapping": spatial, "memory_operand_links": links}],
        "workload": [layer],
    }  # fmt: skip


def _port(way: str, operand: str) -> dict[str, Any]:
    """Return a port of SRAM for one operand and way; each transfer takes a whole cycle, however wide it is."""
    kind, name = ("write", "w_port") if way.startswith("f") else ("read", "r_port")
    number = 1 + [(operand_, way_) for operand_, ways in _WAYS.items() for way_ in ways].index((operand, way))
    return {
        "name": f"{name}_{number}", "type": kind, "bandwidth_min": 8, "bandwidth_max": _SRAM_BITS_PER_CYCLE,
        "allocation": [f"{operand}, {way}"],
    }  # fmt: skip
