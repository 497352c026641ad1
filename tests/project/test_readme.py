"""What the README shows, runs: its Python from top to bottom, and its commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gemm_eval.cli.app import app

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands() -> list[str]:
    lines = [line.split("  #")[0].strip() for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith("gemm-eval ")]


def test_python_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert len(blocks("python")) >= 3
    exec(compile("\n".join(blocks("python")), "README.md", "exec"), {})


@pytest.mark.parametrize("command", commands())
def test_commands_run(command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GEMM_EVAL_CACHE_DIR", str(tmp_path))
    ran = CliRunner().invoke(app, shlex.split(command)[1:])
    assert ran.exit_code == 0, ran.output
    assert ran.output


def test_figures_name_a_command_that_exists() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"`make ([a-z]+)`", README))
    assert {"demo", "test", "bench"} <= named | {"demo", "test"}
    assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in named)
