"""How large the project is: Python files and lines of each package, and megabytes of a core install.

python tools/size.py                    # lines and files of the checkout
python tools/size.py --against HEAD~1   # what changed since a commit
python tools/size.py --install          # installs the checkout into an environment of its own, and removes it
python tools/size.py --install table plot   # the same with each of these extras
python tools/size.py --install --json
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sysconfig
import tarfile
import tempfile
import venv
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("gemm_eval", "tests", "tools", "examples")
_MB = 1_000_000


class Size(NamedTuple):
    """Python files of a package, and their lines."""

    files: int = 0
    lines: int = 0

    def plus(self, other: Size, sign: int = 1) -> Size:
        """Return the sum of both, or with sign -1 the difference."""
        return Size(self.files + sign * other.files, self.lines + sign * other.lines)


def sizes_now() -> dict[str, Size]:
    """Return the size of each package of the checkout, and of each folder in all."""
    paths = (path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return _summed({path.relative_to(ROOT).as_posix(): path.read_bytes() for path in paths})


def sizes_of(commit: str) -> dict[str, Size]:
    """Return the same of a commit; empty where git does not have it."""
    done = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=False)
    if done.returncode:
        return {}
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        members = [member for member in archive if member.name.endswith(".py") and member.name.startswith(FOLDERS)]
        return _summed({member.name: archive.extractfile(member).read() for member in members})  # type: ignore[union-attr]


def _summed(texts: dict[str, bytes]) -> dict[str, Size]:
    sizes: dict[str, Size] = {}
    for name, text in texts.items():
        folder, *inner = name.split("/")
        package = f"{folder}/{inner[0] if len(inner) > 1 else '(top)'}"
        for key in (folder, package):
            sizes[key] = sizes.get(key, Size()).plus(Size(1, text.count(b"\n")))
    return dict(sorted(sizes.items()))


def lines_of(sizes: dict[str, Size], form: str) -> list[str]:
    """Return a line for each package, the sum of a folder first."""
    return [
        f"{format(size.lines, form):>9} lines {format(size.files, form):>6} files  {name}"
        for name, size in sizes.items()
    ]


def installed(extra: str | None = None) -> dict[str, Any]:
    """Return megabytes of a core install, or of one with an extra, without what a fresh environment holds."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        venv.create(folder, with_pip=True)
        packages = Path(sysconfig.get_path("purelib", "venv", {"base": name}))
        before = _bytes_by_package(packages)
        pip = (str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet")
        subprocess.run([*pip, f"{ROOT}[{extra}]" if extra else str(ROOT)], check=True)
        after = _bytes_by_package(packages)
    added_mb = {name: (num - before.get(name, 0)) / _MB for name, num in after.items()}
    largest = max(added_mb, key=lambda name: added_mb[name])
    return {"mb": sum(added_mb.values()), "largest": largest, "largest_mb": added_mb[largest]}


def _bytes_by_package(packages: Path) -> dict[str, int]:
    """Bytes of files by the first folder, or file, that they lie in."""
    sizes: dict[str, int] = {}
    for path in packages.rglob("*"):
        if path.is_file():
            top = path.relative_to(packages).parts[0]
            sizes[top] = sizes.get(top, 0) + path.stat().st_size
    return sizes


def main() -> None:
    """Print what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="COMMIT", help="what changed since a commit")
    parser.add_argument("--install", nargs="*", metavar="EXTRA", help="megabytes of a core install, or with extras")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    if options.install is not None:
        for extra in options.install or [None]:
            size = installed(extra)
            name = f"install with [{extra}]" if extra else "core install"
            text = f"{name}: {size['mb']:.0f} MB, of which {size['largest']} {size['largest_mb']:.0f}"
            print(json.dumps(size) if options.json else text)
        return
    now, form = sizes_now(), ","
    if options.against:
        before, form = sizes_of(options.against), "+,"
        now = {name: now.get(name, Size()).plus(before.get(name, Size()), -1) for name in sorted({*now, *before})}
        now = {name: size for name, size in now.items() if size != Size() and before}
    print(json.dumps(now) if options.json else "\n".join(lines_of(now, form)) or "no Python file changed its size")


if __name__ == "__main__":
    main()
