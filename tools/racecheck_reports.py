"""Name what racecheck reports, as the table of docs/checks/racecheck.md: `python -m tools.racecheck_reports FILE`.

The file is what `compute-sanitizer --tool racecheck python -m tools.sanitize` printed. Kernels are compiled anew by
the same compiler, so that the addresses of a report are those of their machine code.
"""

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.device.sass import disassemble
from gemm_eval.kernels import compile_for, limits_of_spec, make_variant
from gemm_eval.kernels.families import Fusion, Variant, families, fp8_families, grouped_families

_FIRST = re.compile(r"=+ Error: Race reported between (\w+) access at \w+\+0x(\w+)")
_OTHER = re.compile(r"=+\s+and (\w+) access at \w+\+0x(\w+) \[\d+ hazards\]")
_CASE = re.compile(r"\d\.\de-\d+  (?:(\w+)  )?(\w+ CTA .*)")
_INSTRUCTION = re.compile(r"/\*(\w{4,5})\*/\s+(?:@!?\w+ )?([A-Z][\w.]*)")
_GROUP_SIZES = {"group_zero": 32, "mxfp4": 32, "nvfp4": 16, "group": 32}
_EXPERTS = {"experts": "group"}  # the mode of what runs two fused kernels
_MEMORY = ("LD", "ST", "UBLKCP", "UTMALDG", "ATOM")
_OPERATIONS = {
    "LDS.128": "weights of the ring", "LDS.64": "scales of the ring, or sums", "LDS": "scales of the ring, or sums",
    "LDSM": "tokens of the ring", "UBLKCP": "bulk copy of weights", "UTMALDG": "copy of tokens",
    "LDGSTS": "copy of scales", "STS": "sums of a team", "ATOMS": "count",
}  # fmt: skip


class Report(NamedTuple):
    """Accesses, each Read or Write and its address."""

    first: tuple[str, int]
    others: list[tuple[str, int]]


def read_reports(text: str) -> Iterator[tuple[str, str, list[Report]]]:
    """Yield mode, config and reports of each case that has any: they stand before its line."""
    reports: list[Report] = []
    for line in text.splitlines():
        if match := _FIRST.match(line):
            reports.append(Report((match[1], int(match[2], 16)), []))
        elif match := _OTHER.match(line):
            reports[-1].others.append((match[1], int(match[2], 16)))
        elif match := _CASE.match(line):
            if reports:
                yield match[1] or "group_zero", match[2], reports
            reports = []


@cache
def instructions_of(mode: str, config: str) -> list[dict[int, str]]:
    """Return the instructions of a kernel by address; of both kernels of a layer of experts."""
    plain = re.sub(r", (split-K \d+|stream-K)", "", config)
    limits = limits_of_spec(load_arch("h200-sxm", GpuSpec))
    for family in (families() | fp8_families() | grouped_families()).values():
        for known in family.configs():
            if str(known) in (config, plain):
                of_gemm = _EXPERTS.get(mode, mode)
                group_size = 128 if config.startswith("w4a8") else _GROUP_SIZES[of_gemm]
                variant: Variant = make_variant(known, "fp16", of_gemm, group_size)
                fusions = getattr(family, "fusions", (Fusion.NONE,)) if mode in _EXPERTS else (Fusion.NONE,)
                texts = [disassemble(compile_for(variant._replace(fusion=one), limits).cubin) for one in fusions]
                return [{int(at, 16): name for at, name in _INSTRUCTION.findall(text)} for text in texts]
    raise SystemExit(f"no such kernel: {config}")


def code_of(report: Report, codes: list[dict[int, str]]) -> dict[int, str]:
    """Return the instructions among which all addresses of a report are accesses of memory."""
    addresses = [address for _, address in (report.first, *report.others)]
    return next((code for code in codes if all(code.get(at, "").startswith(_MEMORY) for at in addresses)), codes[0])


def say(access: tuple[str, int], code: dict[int, str]) -> str:
    """Name an access: its address, instruction and what it moves."""
    name = code.get(access[1], "?")
    what = next((text for prefix, text in _OPERATIONS.items() if name == prefix or name.startswith(f"{prefix}.")), "?")
    return f"{access[1]:#x} `{name}` ({what})"


def order_of(report: Report, config: str, code: dict[int, str]) -> str:
    """Say what orders the accesses of a report."""
    if "sm90" in config:
        return "full and empty mbarriers of the stage"
    low, high = (edge(address for _, address in (report.first, *report.others)) for edge in (min, max))
    barriers = [hex(at) for at, name in code.items() if low < at < high and name.startswith("BAR.SYNC")]
    return f"`__syncthreads` at {', '.join(barriers)}" if barriers else "?"


def main(path: Path) -> None:
    """Print a table."""
    print("| kernel | access | and | ordered by |\n|---|---|---|---|")
    for mode, config, reports in read_reports(path.read_text("utf-8")):
        for report in reports:
            code = code_of(report, instructions_of(mode, config))
            others = list(dict.fromkeys(say(other, code).partition(" ")[2] for other in report.others))
            places = ", ".join(hex(address) for _, address in report.others)
            print(
                f"| {mode} {config.replace(' (m x n x k), cluster 1x1', '')} | {say(report.first, code)} | "
                f"{'; '.join(others)}: {places} | {order_of(report, config, code)} |"
            )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
