"""Golden answers, which `make golden` writes into `tests/golden` and `tests/golden/test_golden.py` compares."""

from pathlib import Path

FOLDER = Path(__file__).parents[2] / "tests" / "golden"
