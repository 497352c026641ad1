"""Some fuzzed inputs of each kind, the same in every run; ``make fuzz`` runs many."""

import shutil
from pathlib import Path

import pytest

from tools.fuzz.harness import kind_names, load_kind, peak_bytes, run_case


def test_kinds_are_found() -> None:
    assert "asm_text" in kind_names()


NUM_CASES = 20
SEED = "test"


@pytest.mark.parametrize("name", kind_names())
def test_fuzzed_inputs(name: str, tmp_path: Path) -> None:
    try:
        kind = load_kind(name)
    except ModuleNotFoundError as error:
        pytest.skip(f"needs {error.name or error}")
    most_bytes, failed = peak_bytes(), []
    for index in range(NUM_CASES):
        folder = tmp_path / str(index)
        folder.mkdir()
        outcome = run_case(kind, SEED, index, folder, most_bytes=most_bytes)
        shutil.rmtree(folder)
        if outcome.violations:
            failed.append((outcome.index, outcome.violations))
    assert not failed, f"python -m tools.fuzz {name} --seed {SEED} --only {failed[0][0]}: {failed}"
