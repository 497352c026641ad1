"""What costs on disk hold for: this code, and the data that comes with it."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from gemm_eval.arch import data_root

# all that is at or below `evaluate`; layers above cannot change an answer, for imports go one way
_CODE = (
    "*.py",
    *(f"{name}/**/*.py" for name in ("arch", "workload", "mapping", "models", "search", "storage", "evaluate")),
)
# specs of GPUs too: whether a calibration is of this GPU depends on the preset of its name
_DATA = ("kernels/**/*.*", "calibration/**/*.*", "gpu/**/*.*")


@cache
def answers_stamp() -> str:
    """Return a digest of the code that finds answers and of the tables and coefficients that it reads.

    It takes a few milliseconds, once in a process, and does not depend on where the library lies, nor on the versions
    of Python, numpy and numba: answers are the same to the bit.

    Raises:
        ArchNotFoundError, OSError: the installation lost its data or its sources.
    """
    return _digest(Path(__file__).parent.parent, data_root())


def _digest(package: Path, data: Path) -> str:
    digest = hashlib.sha256()
    for root, patterns in ((package, _CODE), (data, _DATA)):
        for path in _files(root, patterns):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()


def _files(root: Path, patterns: tuple[str, ...]) -> list[Path]:
    return sorted(path for pattern in patterns for path in root.glob(pattern) if path.is_file())
