"""Run targets of the Makefile one after the other, whatever becomes of each, and print how long each took.

python -m tools.parts test slow nojit
"""

import subprocess
import sys
import time


def main(parts: list[str]) -> int:
    """Run the parts; return 1 if one failed."""
    lines, has_failed = [], False
    for part in parts:
        start = time.monotonic()
        code = subprocess.run(["make", "--no-print-directory", part], check=False).returncode
        lines.append(f"{part:16} {(time.monotonic() - start) / 60.0:6.1f} min  {'failed' if code else 'passed'}")
        has_failed |= code != 0
    print("\n".join(lines))
    return int(has_failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
