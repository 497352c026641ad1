"""`load_arch`: names, paths, inheritance, provenance, and hostile files."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from gemm_eval import ArchError, ArchNotFoundError, ArchValidationError, load_arch
from gemm_eval.arch import data_root
from tests.arch.hostile_yaml import GOOD, HOSTILE, with_line

MAX_SECONDS = 5.0


def write(folder: Path, text: str | bytes, name: str = "chip.yaml") -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    return path


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("demo8core", "did you mean demo-8core"),
        ("sg2260x", "did you mean sg2260e? or|did you mean sg2260"),
        ("DEMO-8CORE", "known: .*demo-8core|did you mean demo-8core"),
        ("zzzz", "known: .*demo-8core"),
        ("", "known: "),
        ("demo-8core\n", "demo-8core"),
        ("a\0b", "no arch of the name"),
        ("a\0b.yaml", "no arch of the name"),
        (Path("a\0b.yaml"), "no arch of the name"),
        ("../../../../../../etc/passwd.yaml", "cannot read"),
        ("..", "no arch of the name"),
        ("demo-8core.yaml", "cannot read"),
        ("nowhere/chip.yaml", "cannot read nowhere/chip.yaml: No such file"),
        ("\ud800.yaml", "cannot read"),
        ("x" * 300 + ".yaml", "cannot read"),
        (None, "an arch is given by name or path, got None"),
        (3, "an arch is given by name or path, got 3"),
        (b"demo-8core", "an arch is given by name or path"),
        (["demo-8core"], "an arch is given by name or path"),
    ],
)
def test_not_found(value: Any, words: str) -> None:
    with pytest.raises(ArchNotFoundError, match=words):
        load_arch(value)


def test_traversal_reads_no_secret_back(tmp_path: Path) -> None:
    secret = write(tmp_path, "root:x:0:0\n", "passwd")

    with pytest.raises(ArchError) as caught:
        load_arch(str(tmp_path / "sub" / ".." / secret.name))
    assert "root:x" not in str(caught.value)


@pytest.mark.parametrize("name", ["folder", "folder.yaml", "loop.yaml"])
def test_what_is_no_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "loop.yaml":
        path.symlink_to(path)
    else:
        path.mkdir()
    with pytest.raises(ArchNotFoundError, match="cannot read"):
        load_arch(path)


def test_a_named_pipe_does_not_hang(tmp_path: Path) -> None:
    path = tmp_path / "pipe.yaml"
    os.mkfifo(path)
    errors: list[Exception] = []

    def load() -> None:
        try:
            load_arch(path)
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=load, daemon=True)
    thread.start()
    thread.join(2.0)
    hung = thread.is_alive()
    if hung:
        os.close(os.open(path, os.O_WRONLY))  # lets the reader go
        thread.join()

    assert not hung
    assert [type(error) for error in errors] == [ArchNotFoundError]


def test_unreadable_file(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    with pytest.raises(ArchNotFoundError, match="Permission denied"):
        load_arch(path)


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_file_is_refused_in_words_and_in_time(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, HOSTILE[case])
    monkeypatch.chdir(tmp_path)
    start = time.perf_counter()

    with pytest.raises(ArchValidationError, match=r"chip\.yaml") as caught:
        load_arch(path)
    assert time.perf_counter() - start < MAX_SECONDS
    assert len(str(caught.value)) < 1000
    assert sorted(os.listdir(tmp_path)) == ["chip.yaml"]  # nothing was executed  # noqa: PTH208


@pytest.mark.parametrize(
    "base", ["nope.yaml", "demo-9core", "''", "../", '"a\\0.yaml"', '"\\x1b.yaml"', "x" * 300 + ".yaml"]
)
def test_missing_base(base: str, tmp_path: Path) -> None:
    with pytest.raises(ArchNotFoundError):
        load_arch(write(tmp_path, f"base: {base}\n"))


def test_numbers_as_people_write_them(tmp_path: Path) -> None:
    text = GOOD.replace("dram_gb_per_s: 10", "dram_gb_per_s: 1e2").replace("frequency_ghz: 1.0", "frequency_ghz: 15E-1")
    spec = load_arch(write(tmp_path, text.replace("100000", "0x10000") + "noc_gb_per_s: 1.5e+2\nlaunch_us: -0.0\n"))

    assert (spec.dram_gb_per_s, spec.frequency_ghz, spec.noc_gb_per_s, spec.sram_bytes) == (100.0, 1.5, 150.0, 65536)


def test_words_stay_words(tmp_path: Path) -> None:
    for word in ("1:30", "no"):  # base 60 and a truth value in YAML 1.1
        assert load_arch(write(tmp_path, with_line(f"title: {word}"))).title == word


def test_byte_order_mark_and_null_options(tmp_path: Path) -> None:
    assert load_arch(write(tmp_path, b"\xef\xbb\xbf" + with_line("noc_gb_per_s:").encode())).noc_gb_per_s is None


def test_inheritance_from_a_preset(tmp_path: Path) -> None:
    base = load_arch("demo-8core")
    child = load_arch(
        write(tmp_path, "base: demo-8core\nnum_cores: {value: 4, kind: spec, source: sheet}\nsram_bytes: 524288\n")
    )

    assert (child.name, child.num_cores, child.sram_bytes, child.cube_m) == ("chip", 4, 524288, base.cube_m)
    assert (child.provenance["num_cores"].kind, child.provenance["num_cores"].source) == ("spec", "sheet")
    assert "sram_bytes" not in child.provenance  # given bare: nobody vouches for it
    assert child.provenance["cube_m"] == base.provenance["cube_m"]
    assert child.published is None


def test_a_table_is_replaced_whole_with_its_provenance(tmp_path: Path) -> None:
    child = load_arch(write(tmp_path, "base: demo-8core\nmac_pj:\n  fp16: {value: 0.4, kind: fitted, source: us}\n"))

    assert child.mac_pj == {"fp16": 0.4}
    assert [key for key in child.provenance if key.startswith("mac_pj")] == ["mac_pj.fp16"]


def test_relative_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path, GOOD, "root.yaml")
    write(tmp_path / "sub", "base: ../root.yaml\nnum_cores: 4\n", "middle.yaml")
    leaf = write(tmp_path, "base: sub/middle.yaml\ncube_m: 8\n", "leaf.yaml")
    monkeypatch.chdir("/")
    spec = load_arch(leaf)

    assert (spec.name, spec.num_cores, spec.cube_m, spec.cube_n) == ("leaf", 4, 8, 16)
    assert spec.provenance == {}


def test_chain_bounds(tmp_path: Path) -> None:
    write(tmp_path, GOOD, "c0.yaml")
    for i in range(1, 12):
        write(tmp_path, f"base: c{i - 1}.yaml\n", f"c{i}.yaml")

    assert load_arch(tmp_path / "c7.yaml").num_cores == 2
    with pytest.raises(ArchValidationError, match=r"more than 8 levels of base .*: base\)"):
        load_arch(tmp_path / "c11.yaml")


def test_cycle(tmp_path: Path) -> None:
    write(tmp_path, "base: b.yaml\n", "a.yaml")
    write(tmp_path, "base: ./a.yaml\n", "b.yaml")
    with pytest.raises(ArchValidationError, match=r"circle.*base\)"):
        load_arch(tmp_path / "a.yaml")


def test_a_path_that_none_can_be_is_refused_before_it_is_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Walking it takes seconds."""
    monkeypatch.setattr(Path, "resolve", lambda path: pytest.fail("walked"))
    with pytest.raises(ArchNotFoundError, match="cannot read x/x/"):
        load_arch("x/" * 100_000 + "chip.yaml")


def test_a_generation_of_sms_is_a_base_from_everywhere(tmp_path: Path) -> None:
    text = (data_root() / "gpu" / "h200-sxm.yaml").read_text(encoding="utf-8")
    assert "base: _sm90.yaml" in text
    arch = load_arch(write(tmp_path, text + "name: mine\n"))
    assert arch == load_arch("h200-sxm").model_copy(update={"name": "mine"})
    with pytest.raises(ArchNotFoundError, match="_sm95"):
        load_arch(write(tmp_path, text.replace("_sm90", "_sm95")))
