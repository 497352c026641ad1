"""How large a core install is, without what a fresh virtual environment holds: ``make size`` prints it.

python -m tools.install_size            # installs the checkout into an environment of its own, and removes it
python -m tools.install_size --json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
_MB = 1_000_000


def main() -> None:
    """Install, measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder, with_pip=True)
        packages = Path(sysconfig.get_path("purelib", "venv", {"base": name}))
        before = _bytes_by_package(packages)
        pip = (str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
        subprocess.run([*pip, str(ROOT)], check=True)
        after = _bytes_by_package(packages)
    added_mb = {name: (num - before.get(name, 0)) / _MB for name, num in after.items()}
    largest = max(added_mb, key=lambda name: added_mb[name])
    found = {"mb": sum(added_mb.values()), "largest": largest, "largest_mb": added_mb[largest]}
    if options.json:
        print(json.dumps(found))
    else:
        print(f"core install: {found['mb']:.0f} MB, of which {largest} {added_mb[largest]:.0f}")


def _bytes_by_package(packages: Path) -> dict[str, int]:
    """Bytes of files by the first folder, or file, that they lie in."""
    found: dict[str, int] = {}
    for path in packages.rglob("*"):
        if path.is_file():
            top = path.relative_to(packages).parts[0]
            found[top] = found.get(top, 0) + path.stat().st_size
    return found


if __name__ == "__main__":
    main()
