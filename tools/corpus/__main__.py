"""Answer the corpus, print digests, keep the answers or compare them with those kept before."""

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import tools.corpus
from tools.corpus.answer import Answers, differences, digest, read_answers, write_answers
from tools.corpus.commands import SLOW_KINDS
from tools.corpus.drawn import DRAWN_KINDS
from tools.corpus.gemms import GEMM_KINDS
from tools.corpus.models import MODEL_KINDS
from tools.corpus.texts import TEXT_KINDS

KINDS: dict[str, Callable[[bool], Answers]] = {**GEMM_KINDS, **DRAWN_KINDS, **MODEL_KINDS, **TEXT_KINDS}
"""Name of a kind of question -> what asks all questions of it; True: a few of them, for kernels in plain Python."""


def main(arguments: list[str] | None = None) -> int:
    """Run the command; 1 if an answer differs from those kept before."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.corpus", description=tools.corpus.__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join((*KINDS, *SLOW_KINDS))}")
    parser.add_argument("--slow", action="store_true", help="also what takes minutes a command")
    parser.add_argument("--small", action="store_true", help="a few questions of each kind")
    parser.add_argument("--only", default="", help="slow kinds: commands that contain this")
    parser.add_argument("--write", type=Path, metavar="FOLDER", help="keep the answers")
    parser.add_argument("--against", type=Path, metavar="FOLDER", help="compare with answers that --write kept")
    parser.add_argument("--show", type=int, default=5, help="differing answers shown of each kind (default: 5)")
    options = parser.parse_args(arguments)

    known = KINDS | {name: lambda _, name=name: SLOW_KINDS[name](options.only) for name in SLOW_KINDS}
    if unknown := [name for name in options.kinds if name not in known]:
        parser.error(f"no kind {', '.join(unknown)}: there are {', '.join(known)}")
    kinds = options.kinds or [*KINDS, *(SLOW_KINDS if options.slow else ())]
    digests, num_changed = [], 0
    for name in kinds:
        start = time.monotonic()
        answers = {answer.question: answer.text for answer in known[name](options.small)}
        seconds = time.monotonic() - start
        digests.append(digest(answers))
        print(f"{name:12} {digests[-1]} {len(answers):7,} answers {seconds:6.1f} s", flush=True)
        if options.write:
            write_answers(options.write, name, answers)
        if options.against:
            num_changed += _compare(options.against, name, answers, options.show)
    print(f"{'all':12} {hashlib.sha256(''.join(digests).encode()).hexdigest()[:16]}")
    return int(num_changed > 0)


def _compare(folder: Path, kind: str, after: dict[str, str], num_shown: int) -> int:
    """Print which answers of a kind differ from those kept before; return how many."""
    try:
        before = read_answers(folder, kind)
    except FileNotFoundError:
        print(f"  not kept before: {folder / kind}.jsonl")
        return 1
    changed = [question for question in {**before, **after} if before.get(question) != after.get(question)]
    for question in changed[:num_shown]:
        print(f"  {question}")
        old, new = (json.loads(answers.get(question, '"not asked"')) for answers in (before, after))
        for line in list(differences(old, new))[:num_shown]:
            print(f"    {line}")
    if changed:
        print(f"  {len(changed):,} of {len(after):,} answers differ")
    return len(changed)


if __name__ == "__main__":
    sys.exit(main())
