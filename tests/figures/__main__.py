"""Render docs/figures.md of its documents, or make documents anew.

python -m tests.figures                       # renders
python -m tests.figures --run gpu w4a16       # runs their commands first; some take minutes
"""

from __future__ import annotations

import argparse
from pathlib import Path

from tests.figures.documents import BENCH, COMMANDS, keep, run
from tests.figures.tables import PAGE, render


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = (*COMMANDS, BENCH)
    parser.add_argument("--run", nargs="+", choices=names, default=(), metavar="NAME", help=", ".join(names))
    parser.add_argument("--data", type=Path, help="timings of tpu-v4, which do not come along")
    options = parser.parse_args()
    for name in options.run:
        keep(name, run(name, options.data))
    PAGE.write_text(render(), encoding="utf-8")


if __name__ == "__main__":
    main()
