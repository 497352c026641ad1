"""The stamp of costs on disk: it covers all that an answer depends on, and changes with every part of it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import gemm_eval
from gemm_eval.arch import data_root
from gemm_eval.evaluate import disk as _disk
from gemm_eval.evaluate import stamp as _stamp
from gemm_eval.storage.cache import DiskCache

PACKAGE = Path(gemm_eval.__file__).parent
# (in the copy, what a change of it is)
CHANGES = [
    ("gemm_eval/models/gpu/libraries.py", "a tile of a library"),
    ("gemm_eval/models/gpu/candidates.py", "a rule of legality"),
    ("gemm_eval/models/gpu/w4a16/candidates.py", "how a table is read"),
    ("gemm_eval/models/multicore/params.py", "how a spec is packed"),
    ("gemm_eval/models/gpu/cost_kernels.py", "a cost"),
    ("gemm_eval/search/multicore.py", "a search"),
    ("gemm_eval/dtypes.py", "bits of a type"),
    ("gemm_eval/units.py", "a unit"),
    ("gemm_eval/arch/gpu.py", "what a spec derives"),
    ("gemm_eval/workload/problem.py", "a default type"),
    ("gemm_eval/mapping/multicore.py", "the order of partitions"),
    ("gemm_eval/evaluate/gpu.py", "what is kept of an answer"),
    ("arch/kernels/w4a16/sm_90a-fp16.csv", "a line of a kernel table"),
    ("arch/calibration/h200-sxm/cublas-sm90_wgmma.yaml", "a coefficient"),
    ("arch/gpu/h200-sxm.yaml", "which GPU a calibration is of"),
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(PACKAGE, folder / "gemm_eval", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("kernels", "calibration", "gpu"):
        shutil.copytree(data_root() / name, folder / "arch" / name)
    return folder


def test_it_changes_with_all_that_decides_an_answer(copy: Path) -> None:
    seen = {stamp := _stamp._digest(copy / "gemm_eval", copy / "arch")}
    assert stamp == _stamp.answers_stamp(), "where the library lies does not matter"
    for name, what in CHANGES:
        path = copy / name
        text = path.read_bytes()
        for changed in (text + b"#", text.replace(b"1", b"2", 1)):
            assert changed != text
            path.write_bytes(changed)
            stamp = _stamp._digest(copy / "gemm_eval", copy / "arch")
            assert stamp not in seen, what
            seen.add(stamp)
        path.write_bytes(text)
    assert _stamp._digest(copy / "gemm_eval", copy / "arch") == _stamp.answers_stamp()


def test_it_changes_with_names_and_not_with_what_is_no_source(copy: Path) -> None:
    before = _stamp._digest(copy / "gemm_eval", copy / "arch")
    cached = copy / "gemm_eval" / "models" / "__pycache__"
    cached.mkdir()
    (cached / "x.cpython-311.pyc").write_bytes(b"code")
    assert _stamp._digest(copy / "gemm_eval", copy / "arch") == before
    calibrations = copy / "arch" / "calibration"
    (calibrations / "h200-sxm").rename(calibrations / "h100-pcie")
    assert _stamp._digest(copy / "gemm_eval", copy / "arch") != before


EVALUATE = """
import json, os, sys
read = set()

def note(event, args):
    if event == "open" and isinstance(args[0], (str, os.PathLike)):
        read.add(os.fspath(args[0]))

sys.addaudithook(note)
from gemm_eval import GEMMEvaluator, GemmProblem
for arch, dtypes in (("demo-8core", ("fp16", "w4a16")), ("h100-sxm", ("fp16", "w4a16"))):
    evaluator = GEMMEvaluator(arch, disk_cache=sys.argv[1])
    for dtype in dtypes:
        evaluator.save_to_disk(evaluator.evaluate_many([(1, 16, 256, 256), (1, 3, 7, 5)], dtype))
        GEMMEvaluator(arch, disk_cache=sys.argv[1]).evaluate(1, 16, 256, 256, dtype)
evaluator = GEMMEvaluator("demo-8core", plan="balanced", disk_cache=False).evaluate(1, 16, 256, 256)
files = [module.__file__ for name, module in sys.modules.items() if name.startswith("gemm_eval")]
print(json.dumps([files, sorted(read)]))
"""


def test_it_covers_every_module_and_table_that_an_evaluation_uses(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EVALUATE, tmp_path / "costs.sqlite3"],
        capture_output=True, text=True, check=True, cwd=PACKAGE.parent,
    )  # fmt: skip
    modules, read = json.loads(done.stdout)
    covered = set(_stamp._files(PACKAGE, _stamp._CODE)) | set(_stamp._files(data_root(), _stamp._DATA))

    assert len(modules) > 40
    assert {Path(name) for name in modules} <= covered
    data = {Path(name) for name in read if Path(name).is_relative_to(data_root())}
    assert len(data) > 5
    # the spec of a multi-core chip stands in the key itself
    assert {path for path in data - covered if path.parent.name != "multicore"} == set()


def test_it_is_part_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def name() -> str:
        cache = _disk._cache_at.__wrapped__(tmp_path / "costs.sqlite3")
        assert isinstance(cache, DiskCache)
        return repr(cache)

    before = name()
    assert _stamp.answers_stamp() in before
    monkeypatch.setattr(_disk, "answers_stamp", lambda: "of another library")
    assert name() != before
