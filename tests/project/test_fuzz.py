"""The harness of `tools.fuzz`, and some inputs of each kind, the same in every run; ``make fuzz`` runs many."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.project import fake_fuzz_kind
from tools.fuzz.harness import Limits, Outcome, fuzz, kind_names, load_kind, peak_bytes, run_case
from tools.fuzz.mutate import mutate_bytes, mutate_text

KIND = fake_fuzz_kind.__name__
LIMITS = Limits(cpu_s=0.4, wall_s=5.0, growth_bytes=50 << 20)
SAID = {
    "nothing": "", "raises": "KeyError at fake_fuzz_kind.py:", "burns": "s of CPU time", "grows": "memory grew by",
    "runs_away": "MemoryError at", "writes_elsewhere": "open outside of its folders: ", "opens_a_link_itself": "",
    "writes_through_a_link": "open outside of its folders: ",
    "renames_elsewhere": "os.rename outside of its folders: ", "lets_others_write_at_home": "left behind: ",
    "forgets_a_temporary_file": "left behind: ", "dies": "its worker died of SIGSEGV",
    "hangs": "its worker was killed",
}  # fmt: skip


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    names = [misdeed.__name__ for misdeed in fake_fuzz_kind.MISDEEDS]
    root = tmp_path_factory.mktemp("cases")
    report = fuzz(KIND, "seed", range(len(names)), jobs=2, root=root, limits=LIMITS)
    assert report.num_cases == len(names)
    return {names[outcome.index]: outcome for outcome in report.failed}


@pytest.mark.parametrize(("misdeed", "text"), SAID.items())
def test_misdeeds_are_noticed(outcomes: dict[str, Outcome], misdeed: str, text: str) -> None:
    if text:
        assert any(text in violation for violation in outcomes[misdeed].violations)
    else:
        assert misdeed not in outcomes


def test_every_misdeed_is_tried() -> None:
    assert set(SAID) == {misdeed.__name__ for misdeed in fake_fuzz_kind.MISDEEDS}


def test_a_case_is_what_its_seed_and_number_say(tmp_path: Path) -> None:
    labels = []
    for place, seed in (("a-0", "1"), ("b-0", "1"), ("c-0", "2")):
        (tmp_path / place).mkdir()
        outcome = run_case(fake_fuzz_kind, seed, 0, tmp_path / place, most_bytes=peak_bytes())
        assert outcome.violations == ()
        labels.append(outcome.label)

    assert labels[0] == labels[1] != labels[2]


def test_mutations_are_repeatable_and_take_all_inputs() -> None:
    for seed in range(300):
        one, two = random.Random(seed), random.Random(seed)
        assert mutate_text(one, "a 12\nb") == mutate_text(two, "a 12\nb")
        assert mutate_bytes(one, b"x") == mutate_bytes(two, b"x")


def test_kinds_are_found() -> None:
    assert "sass" in kind_names()


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
