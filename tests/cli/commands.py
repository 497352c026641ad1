"""What the tests of commands share: a GEMM, an arch, and a run of a command in this process."""

import io
import json
import os
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import typer

from gemm_eval import GEMMEvaluator, GEMMResult
from gemm_eval.cli.app import app

APPLICATION = typer.main.get_command(app)
"""Made once: all commands take a tenth of a second."""

SIZES = (1, 512, 4096, 1024)
WORDS = tuple(map(str, SIZES))
DEMO = ("--arch", "demo-8core")
BARE_CHIP = """
name: bare
num_cores: 1
frequency_ghz: 1.0
cube_m: 16
cube_k: 16
cube_n: 16
cube_steps_per_cycle: {fp16: 1.0}
sram_bytes: SRAM
dram_gb_per_s: 100.0
reduction: none
"""


class Ran:
    """Exit code, stdout and stderr of one run."""

    def __init__(self, *words: str | Path, columns: int = 80) -> None:
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), patch.dict(os.environ, COLUMNS=str(columns), TERM="dumb"):
            for name in ("FORCE_COLOR", "NO_COLOR"):
                os.environ.pop(name, None)
            try:
                APPLICATION.main(list(map(str, words)), prog_name="gemm-eval")
            except SystemExit as done:
                self.code = int(done.code or 0)
        self.out, self.err = out.getvalue(), err.getvalue()

    def json(self) -> Any:
        assert (self.code, self.err) == (0, "")
        return json.loads(self.out, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))


def plain(document: Any) -> Any:
    return json.loads(json.dumps(document))


def demo(**options: Any) -> GEMMResult:
    return GEMMEvaluator("demo-8core").evaluate(*SIZES, **options)


def chip_file(folder: Path, sram_bytes: int = 1 << 20, more: str = "") -> str:
    path = folder / "bare.yaml"
    path.write_text(BARE_CHIP.replace("SRAM", str(sram_bytes)) + more)
    return str(path)
