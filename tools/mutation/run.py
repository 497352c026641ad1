"""Judges one mutant in a scratch copy of the repository: does it change an answer, and does a test see it?"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tools.corpus.answer import read_answers
from tools.mutation.areas import area_of
from tools.mutation.mutants import Mutant

SAME, CAUGHT, SURVIVED = "changes no answer", "caught", "survived"

_COPIED = ("gemm_eval", "arch", "tests", "tools", "benchmarks", "examples", "pyproject.toml", "README.md", "docs")
_LEFT_OUT = shutil.ignore_patterns("__pycache__", ".*", "browser", "notebooks")
_PATIENCE = 15.0
"""A mutant that takes so many times as long as the code does hangs."""
_LEAST_PATIENCE_S = 120.0
_TESTS_S = 1800.0


class Verdict(NamedTuple):
    """Outcome of a mutant: `how` says which answer changed, and which test saw it."""

    name: str
    verdict: str
    how: str
    seconds: float


class Truth:
    """Answers of the code as it is, asked when they are first needed, and how long they took."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch
        self._known: dict[tuple[str, tuple[str, ...]], tuple[dict[str, str], float]] = {}
        self._lock = threading.Lock()

    def answers(self, size: str, kinds: tuple[str, ...]) -> tuple[dict[str, str], float]:
        """Return question -> answer, and seconds."""
        with self._lock:
            if (size, kinds) not in self._known:
                start = time.monotonic()
                answers = self._scratch.ask(size, kinds, _TESTS_S)
                if isinstance(answers, str):
                    raise RuntimeError(f"the code as it is does not answer: {answers}")
                self._known[size, kinds] = answers, time.monotonic() - start
            return self._known[size, kinds]


class Scratch:
    """A copy of the repository, with a cache folder of its own, in which mutants are tried one after another."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._tree, self._cache = folder / "tree", folder / "cache"
        self._tree.mkdir(parents=True)
        for name in _COPIED:
            if (root / name).is_dir():
                shutil.copytree(root / name, self._tree / name, ignore=_LEFT_OUT)
            elif (root / name).exists():
                shutil.copy(root / name, self._tree / name)

    def judge(self, mutant: Mutant, truth: Truth) -> Verdict:
        """Try one mutant, and put the file back."""
        start = time.monotonic()
        path = self._tree / mutant.path
        text = path.read_text(encoding="utf-8")
        shutil.rmtree(self._cache, ignore_errors=True)
        try:
            path.write_text(mutant.text, encoding="utf-8")
            changed = self._changed(area_of(mutant.path).asked, truth)
            verdict, how = (SAME, "") if changed is None else self._caught(mutant)
        finally:
            path.write_text(text, encoding="utf-8")
        how = "; ".join(filter(None, (changed, how)))
        return Verdict(mutant.name, verdict, how, round(time.monotonic() - start, 1))

    def _changed(self, kinds: tuple[str, ...], truth: Truth) -> str | None:
        """The first question whose answer is another one, None if there is none."""
        for size in ("small", "full"):
            expected, seconds = truth.answers(size, kinds)
            answers = self.ask(size, kinds, max(_LEAST_PATIENCE_S, _PATIENCE * seconds))
            if isinstance(answers, str):
                return answers
            for question, answer in expected.items():
                if answers.get(question) != answer:
                    return question
        return None

    def ask(self, size: str, kinds: tuple[str, ...], timeout_s: float) -> dict[str, str] | str:
        """Answers of the code in the copy, or what happened instead."""
        folder = self._tree.parent / "answers"
        shutil.rmtree(folder, ignore_errors=True)
        words = ["-m", "tools.corpus", *kinds, "--write", str(folder), *(["--small"] if size == "small" else [])]
        done = self._python(words, timeout_s, is_plain=size == "small")
        if done is None:
            return "hangs"
        if done.returncode:
            return "stops: " + (done.stderr.strip().splitlines() or ["?"])[-1]
        return {question: text for kind in kinds for question, text in read_answers(folder, kind).items()}

    def _caught(self, mutant: Mutant) -> tuple[str, str]:
        area = area_of(mutant.path)
        for is_plain, files in ((True, area.plain), (False, area.compiled)):
            command = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-n", "0", "-m", "not gpu and not slow"]
            command += [f"--hypothesis-profile={'nojit' if is_plain else 'thorough'}"]
            done = self._python([*command, *(f"tests/{file}" for file in files)], _TESTS_S, is_plain=is_plain)
            if done is None:
                return CAUGHT, "a test hangs"
            if done.returncode == pytest.ExitCode.USAGE_ERROR:
                raise RuntimeError(f"tests of {mutant.path} are not there: {done.stderr.strip()}")
            if done.returncode:
                failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
                return CAUGHT, (failed or done.stdout.strip().splitlines() or ["?"])[-1][:160]
        return SURVIVED, ""

    def _python(
        self, arguments: list[str], timeout_s: float, *, is_plain: bool
    ) -> subprocess.CompletedProcess[str] | None:
        """Run Python in the copy; None if it takes too long."""
        environment = os.environ | {
            "PYTHONPATH": str(self._tree), "PYTHONDONTWRITEBYTECODE": "1", "CI": "1",  # CI: no random examples
            "GEMM_EVAL_CACHE_DIR": str(self._cache), "NUMBA_DISABLE_JIT": "1" if is_plain else "0",
            "NUMBA_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        }  # fmt: skip
        try:
            return subprocess.run(
                [sys.executable, *arguments], cwd=self._tree, env=environment, timeout=timeout_s, check=False,
                capture_output=True, text=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return None
