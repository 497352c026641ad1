"""Render docs/figures.md and the rows of README's tables from their documents, or make documents anew.

python -m tools.figures                       # renders
python -m tools.figures --run gpu w4a16       # runs their commands first; some take minutes
"""

import argparse

from tools.figures.documents import BENCH, COMMANDS, DENSE, keep, run
from tools.figures.tables import PAGE, README, render, render_readme


def main() -> None:
    """Do what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = (*COMMANDS, BENCH, DENSE)
    parser.add_argument("--run", nargs="+", choices=names, default=(), metavar="NAME", help=", ".join(names))
    options = parser.parse_args()
    for name in options.run:
        keep(name, run(name))
    PAGE.write_text(render(), encoding="utf-8")
    README.write_text(render_readme(), encoding="utf-8")


if __name__ == "__main__":
    main()
