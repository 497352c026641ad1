"""SCALE-Sim (`scalesim`): a systolic array cycle by cycle, and an SRAM in two halves for each operand.

Samajdar et al., "A systematic methodology for characterizing scalability of DNN accelerators using SCALE-Sim", 2020. It
has no search: weights stand still, in folds of the array, and every other mapping choice follows. IFMAP, FILTER and
OFMAP are our A, B and C. It counts words, of one width an operand; bytes are ours.
"""

from __future__ import annotations

import configparser
import contextlib
import csv
import io
import tempfile
from collections.abc import Mapping
from pathlib import Path

from gemm_eval.extras import needs_extra
from gemm_eval.validation.simulators.work import INPUT_BYTES, OUTPUT_BYTES, Chip, Counted, Gemm, Traffic

__all__ = ["WORD_BYTES", "buffer_words", "count_scalesim", "read_reports"]

WORD_BYTES = {"IFMAP": INPUT_BYTES, "FILTER": INPUT_BYTES, "OFMAP": OUTPUT_BYTES}
"""Of one word of each operand."""
_NAMES = {"IFMAP": "IFMAP", "FILTER": "Filter", "OFMAP": "OFMAP"}
_OFFSETS = {"IFMAP": 0, "FILTER": 100_000_000, "OFMAP": 200_000_000}
_KIBI = 1024  # it takes sizes in these
_MODES = ("CALC", "USER")
"""CALC never waits and says what must be moved; USER waits for DRAM of a given bandwidth."""


def count_scalesim(chip: Chip, gemm: Gemm) -> Counted:
    """Return what SCALE-Sim counts: traffic and computation without waiting, and cycles with it.

    Raises:
        GemmEvalError: the packages of the extra are missing.
    """
    counts = []
    for mode in _MODES:
        with tempfile.TemporaryDirectory() as name:
            _run(Path(name), chip, gemm, mode)
            counts.append(read_reports(*(_row(Path(name), report) for report in ("COMPUTE", "DETAILED_ACCESS"))))
    free, waiting = counts
    return waiting._replace(least=free.moved)


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
    """Words of IFMAP, FILTER or OFMAP in SRAM, both halves: an operand has a third of the chip's bytes."""
    return chip.sram_bytes // len(WORD_BYTES) // WORD_BYTES[operand] // _KIBI * _KIBI


def _row(folder: Path, report: str) -> dict[str, str]:
    with (folder / "results" / "gemm" / f"{report}_REPORT.csv").open(encoding="utf-8") as file:
        return next(csv.DictReader(file, skipinitialspace=True))


def _run(folder: Path, chip: Chip, gemm: Gemm, mode: str) -> None:
    with needs_extra("comparing with SCALE-Sim", "simulators"), contextlib.redirect_stdout(io.StringIO()):
        from scalesim.scale_sim import scalesim

    with (folder / "chip.cfg").open("w", encoding="utf-8") as file:
        _config(chip, mode).write(file)
    M, K, N = gemm
    (folder / "gemm.csv").write_text(f"Layer,M,N,K,\ngemm,{M},{N},{K},\n", "utf-8")
    (folder / "layout.csv").write_text("Layer,\n", "utf-8")  # asked for, and not used
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        simulation = scalesim(
            save_disk_space=True, verbose=False, input_type_gemm=True, config=str(folder / "chip.cfg"),
            topology=str(folder / "gemm.csv"), layout=str(folder / "layout.csv"),
        )  # fmt: skip
        simulation.run_scale(top_path=str(folder / "results"))


def _config(chip: Chip, mode: str) -> configparser.ConfigParser:
    """A third of SRAM for each operand, and the whole bandwidth of DRAM on the port that each of them has."""
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
