"""Answers as plain values, equal exactly where the answers are equal to the bit."""

import enum
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gemm_eval.errors import GemmEvalError, InfeasibleError


class Answer(NamedTuple):
    """A question, in words, and its answer as a line of JSON with every digit of its floats."""

    question: str
    text: str


Answers = Iterator[Answer]


def ask(question: str, call: Callable[[], Any], read: Callable[[Any], Any]) -> Answer:
    """Ask one question; an error of the project, or any other that a mutant raises, is an answer too.

    Args:
        question: its words; unique in its kind.
        call: returns the result.
        read: picks what of the result is the answer.
    """
    try:
        value = read(call())
    except InfeasibleError:
        value = {"error": "InfeasibleError"}
    except Exception as error:
        value = {"error": type(error).__name__}
    return Answer(question, json.dumps(plain(value), ensure_ascii=False))


def ask_words(question: str, call: Callable[[], Any]) -> Answer:
    """Ask for a text or a dict as users see it; of an error its message."""
    try:
        value = call()
    except InfeasibleError as error:
        value = {"error": str(error), "demand": error.demand, "limit": error.limit, "levers": error.levers}
    except GemmEvalError as error:
        value = {"error": f"{type(error).__name__}: {error}"}
    return Answer(question, json.dumps(plain(value), ensure_ascii=False))


def plain(value: Any) -> Any:
    """Return a value as JSON has it: enums by name, tuples as lists, anything else by its text."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, int | float | str):
        return value if type(value) in (int, float, str) else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    return [plain(item) for item in value] if isinstance(value, list | tuple) else str(value)


def fields(*names: str) -> Callable[[Any], dict[str, Any]]:
    """Return a reader of these attributes; one that the result does not have is None."""
    return lambda result: {name: getattr(result, name, None) for name in names}


def digest(answers: Mapping[str, str]) -> str:
    """Return 16 hexadecimal digits that tell whether any question or answer is another one."""
    lines = (f"{question}\t{text}\n".encode() for question, text in answers.items())
    return hashlib.sha256(b"".join(lines)).hexdigest()[:16]


def write_answers(folder: Path, kind: str, answers: Mapping[str, str]) -> None:
    """Keep the answers of a kind: a line of JSON for each."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = (f"{{{json.dumps(question, ensure_ascii=False)}: {text}}}\n" for question, text in answers.items())
    (folder / f"{kind}.jsonl").write_text("".join(lines), encoding="utf-8")


def read_answers(folder: Path, kind: str) -> dict[str, str]:
    """Read question -> answer, as `write_answers` keeps them.

    Raises:
        FileNotFoundError: none are kept there.
    """
    lines = (folder / f"{kind}.jsonl").read_text(encoding="utf-8").splitlines()
    answers = {question: answer for line in lines for question, answer in json.loads(line).items()}
    return {question: json.dumps(answer, ensure_ascii=False) for question, answer in answers.items()}


def differences(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """Yield each leaf of two answers that differs: ``breakdown.dram_us: 1.5 -> 1.6``."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in dict.fromkeys((*before, *after)):
            yield from differences(before.get(name, "(none)"), after.get(name, "(none)"), f"{path}.{name}".strip("."))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, pair in enumerate(zip(before, after, strict=True)):
            yield from differences(*pair, f"{path}[{index}]")
    elif json.dumps(before) != json.dumps(after):  # nan is nan
        yield f"{path}: {_short(before)} -> {_short(after)}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:300]}..."
