"""How plain the prose is: mean length of sentences of each page, and phrases that this project does not use.

python -m tools.plain_words            # pages by mean words a sentence, longest first
python -m tools.plain_words --phrases  # where phrases of tools/plain_words.txt stand

Phrases are looked for in pages, and in the texts of the package: docstrings, help, messages, headers of tables.
"""

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_suffix(".txt")
MEAN_WORDS = 25
"""The most words that sentences of a page have in the mean."""

_FENCED = re.compile(r"^(`{3,}).*?^\1", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`]*`|\$[^$]*\$|\]\([^)]*\)|<[^>]+>")
_NOT_PROSE = re.compile(r"^\s*(\||#|!\[|\{%|[\w.\[\]]+ +=)|^ {4,}")  # tables, headings, formulas, code
_SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z`*\[(0-9])|\n\s*\n|\n\s*(?=[-*] |\d+\. )")


def pages() -> list[Path]:
    """Return the Markdown pages of the repository that people read."""
    names = subprocess.check_output(["git", "ls-files", "*.md"], cwd=ROOT, text=True).split()
    return [ROOT / name for name in names if not name.startswith("tests/")]


def sentences(text: str) -> list[str]:
    """Return the sentences of a page's prose: no tables, headings or blocks of code."""
    prose = _FENCED.sub("\n\n", text)
    lines = ("" if _NOT_PROSE.match(line) else line for line in prose.splitlines())
    parts = _SENTENCE_END.split(_CODE.sub("code", "\n".join(lines)))
    return [" ".join(part.split()) for part in parts if len(part.split()) > 2]


def mean_words(text: str) -> float:
    """Return the mean number of words of a page's sentences; 0.0 of a page without any."""
    return mean([len(sentence.split()) for sentence in sentences(text)] or [0])


def texts() -> Iterator[tuple[str, int, str]]:
    """Yield path, line and text of all pages, and of each string of the package that has several words."""
    for path in pages():
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            yield path.relative_to(ROOT).as_posix(), number, line
    for path in sorted((ROOT / "gemm_eval").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                for offset, line in enumerate(node.value.splitlines()):
                    yield path.relative_to(ROOT).as_posix(), node.lineno + offset, line


def banned() -> re.Pattern[str]:
    """Return a pattern of the phrases of the list."""
    lines = LIST.read_text(encoding="utf-8").splitlines()
    phrases = [line.partition("#")[0].strip() for line in lines]
    return re.compile("|".join(rf"(?<!\w){re.escape(phrase)}(?!\w)" for phrase in phrases if phrase), re.IGNORECASE)


def uses_of_banned() -> list[str]:
    """Return where phrases of the list stand: path, line and the phrase."""
    pattern = banned()
    return [f"{path}:{line}: {match[0]}" for path, line, text in texts() for match in pattern.finditer(text)]


def main() -> int:
    """Print what is asked for; return 1 where a page or a phrase breaks the rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phrases", action="store_true", help="where phrases of the list stand")
    if parser.parse_args().phrases:
        uses = uses_of_banned()
        print("\n".join(uses) or "none")
        return bool(uses)
    lengths = {path.relative_to(ROOT).as_posix(): mean_words(path.read_text(encoding="utf-8")) for path in pages()}
    for name, words in sorted(lengths.items(), key=lambda item: -item[1]):
        print(f"{words:5.1f}  {name}")
    return max(lengths.values()) > MEAN_WORDS


if __name__ == "__main__":
    sys.exit(main())
