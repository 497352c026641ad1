"""SCALE-Sim (`scalesim`): a systolic array cycle by cycle, and an SRAM in two halves for each operand.

Samajdar et al., "A systematic methodology for characterizing scalability of DNN accelerators using SCALE-Sim", 2020. It
has no search: weights stand still, in folds of the array, and every other mapping choice follows. IFMAP, FILTER and
OFMAP are our A, B and C. It counts words, of one width an operand; bytes are ours.
"""

from __future__ import annotations

import configparser
import csv
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks.simulators.chips import INPUT_BYTES, OUTPUT_BYTES, Chip, Counted, Gemm, Traffic
from gemm_eval.errors import GemmEvalError
from gemm_eval.words import check_extra

WORD_BYTES = {"IFMAP": INPUT_BYTES, "FILTER": INPUT_BYTES, "OFMAP": OUTPUT_BYTES}
"""Bytes of one word of each operand."""
_NAMES = {"IFMAP": "IFMAP", "FILTER": "Filter", "OFMAP": "OFMAP"}
_OFFSETS = {"IFMAP": 0, "FILTER": 100_000_000, "OFMAP": 200_000_000}
_KIBI = 1024  # it takes sizes in these
_MODES = ("CALC", "USER")
"""CALC never waits and says what must be moved; USER waits for DRAM of a given bandwidth."""
LIMIT_S = 45
"""Limit of a run that waits. USER keeps a trace and copies it at each prefetch: thousands of them take hours."""
_FREE_LIMIT_S = 900
"""Limit of a run that does not wait, which takes seconds where the machine does nothing else."""
_PROGRAM = """
from scalesim.scale_sim import scalesim
simulation = scalesim(save_disk_space=True, verbose=False, input_type_gemm=True, config="chip.cfg",
                      topology="gemm.csv", layout="layout.csv")
simulation.run_scale(top_path="results")
"""


def count_scalesim(chip: Chip, gemm: Gemm) -> Counted:
    """Return what SCALE-Sim counts: traffic and computation without waiting, and cycles with it.

    Where it does not finish waiting within `LIMIT_S`, as with many weights and few rows, there are no cycles.

    Raises:
        GemmEvalError: the packages of the extra are missing, or SCALE-Sim fails.
    """
    check_extra("comparing with SCALE-Sim", "simulators", "scalesim")
    free, waiting = (_count(chip, gemm, mode) for mode in _MODES)
    if free is None:
        raise GemmEvalError(f"SCALE-Sim does not finish {gemm} on {chip.name} within {_FREE_LIMIT_S} s")
    return free._replace(cycles=None) if waiting is None else waiting._replace(least=free.moved)


def _count(chip: Chip, gemm: Gemm, mode: str) -> Counted | None:
    with tempfile.TemporaryDirectory() as name:
        if not _run(Path(name), chip, gemm, mode, _FREE_LIMIT_S if mode == "CALC" else LIMIT_S):
            return None
        return read_reports(*(_row(Path(name), report) for report in ("COMPUTE", "DETAILED_ACCESS")))


def read_reports(compute: Mapping[str, str], access: Mapping[str, str]) -> Counted:
    """Read the rows of one layer of ``COMPUTE_REPORT.csv`` and ``DETAILED_ACCESS_REPORT.csv``."""
    words = [float(access[f"DRAM {_NAMES[name]} {'Writes' if name == 'OFMAP' else 'Reads'}"]) for name in WORD_BYTES]
    moved = Traffic(*(count * size for count, size in zip(words, WORD_BYTES.values(), strict=True)))
    cycles, all_cycles = float(compute["Total Cycles"]), float(compute["Total Cycles (incl. prefetch)"])
    return Counted(
        least=moved,
        compute_cycles=cycles - float(compute["Stall Cycles"]),
        cycles=all_cycles,
        moved=moved,
        exposed_cycles=all_cycles - cycles,
        mapping="ws",
    )


def buffer_words(chip: Chip, operand: str) -> int:
    """Return words of IFMAP, FILTER or OFMAP in SRAM, both halves: an operand has a third of the chip's bytes."""
    return chip.sram_bytes // len(WORD_BYTES) // WORD_BYTES[operand] // _KIBI * _KIBI


def _row(folder: Path, report: str) -> dict[str, str]:
    with (folder / "results" / "gemm" / f"{report}_REPORT.csv").open(encoding="utf-8") as file:
        return next(csv.DictReader(file, skipinitialspace=True))


def _run(folder: Path, chip: Chip, gemm: Gemm, mode: str, limit_s: float) -> bool:
    """Write its inputs into a folder and run it there, in a process of its own; False where that takes too long."""
    with (folder / "chip.cfg").open("w", encoding="utf-8") as file:
        _config(chip, mode).write(file)
    M, K, N = gemm
    (folder / "gemm.csv").write_text(f"Layer,M,N,K,\ngemm,{M},{N},{K},\n", "utf-8")
    (folder / "layout.csv").write_text("Layer,\n", "utf-8")  # asked for, and not used
    command = [sys.executable, "-c", _PROGRAM]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return False
    if done.returncode:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise GemmEvalError(f"SCALE-Sim cannot run {gemm} on {chip.name}: {last}")
    return True


def _config(chip: Chip, mode: str) -> configparser.ConfigParser:
    """Return its config: a third of SRAM for each operand, and all bandwidth of DRAM on each one's port."""
    config = configparser.ConfigParser()
    config.optionxform = str  # type: ignore[assignment, method-assign]
    rates = {name: chip.dram_bytes_per_cycle // size for name, size in WORD_BYTES.items()}
    kib = {name: buffer_words(chip, name) // _KIBI for name in WORD_BYTES}
    config["general"] = {"run_name": "gemm"}
    config["run_presets"] = {"InterfaceBandwidth": mode, "UseRamulatorTrace": "False"}
    config["architecture_presets"] = {
        "ArrayHeight": str(chip.rows), "ArrayWidth": str(chip.columns), "Dataflow": "ws",
        **{f"{_NAMES[name]}SramSzkB": str(size) for name, size in kib.items()},
        **{f"{_NAMES[name]}Offset": str(offset) for name, offset in _OFFSETS.items()},
        "Bandwidth": ",".join([str(rates["OFMAP"])] * len(rates)),  # of writes; reads have theirs under layout
        "MemoryBanks": "1", "ReadRequestBuffer": "32", "WriteRequestBuffer": "32",
    }  # fmt: skip
    config["layout"] = {
        key: value
        for name in ("Ifmap", "Filter")
        for key, value in {
            f"{name}CustomLayout": "False", f"{name}SRAMBankBandwidth": str(rates[name.upper()]),
            f"{name}SRAMBankNum": "1", f"{name}SRAMBankPort": "2",
        }.items()
    }  # fmt: skip
    config["sparsity"] = {"SparsitySupport": "false"}
    return config
