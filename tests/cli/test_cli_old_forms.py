"""Old forms of `validate` and `calibrate`: they do what the new ones do, and name them in a line on stderr."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.test_cli_words import ran

PLACES = {
    "validate_dense.validate_dense", "validate_kernels.validate_w4a16", "validate_kernels.validate_triton",
    "calibrate.calibrate_dense", "calibrate.calibrate_w4a16", "calibrate.calibrate_triton",
    "old_forms.calibrate_dense", "old_forms.calibrate_w4a16", "old_forms.calibrate_triton",
}  # fmt: skip
OF_KERNELS = "--arch h100-sxm --data a.csv --folds 3 --seed 1 --no-fit --ablation --worst 2 --csv c.csv --json"
FORMS = [
    ("validate", "validate dense", ""),
    ("validate", "validate dense", "--json"),
    (
        "validate",
        "validate dense",
        "--arch h100-sxm --data a.csv --data cublas --folds 3 --seed 1 --refit --joint --regime decode --regime all "
        "--worst 2 --library trtllm --dtype w4a16 --plots plots --csv c.csv --json",
    ),
    ("validate --w4a16", "validate w4a16", ""),
    ("validate --w4a16", "validate w4a16", f"--data b.csv --plots plots {OF_KERNELS}"),
    ("validate --triton", "validate triton", ""),
    ("validate --triton", "validate triton", OF_KERNELS),
    ("calibrate", "calibrate dense", "--arch h200-sxm --family sm90_wgmma"),
    (
        "calibrate",
        "calibrate dense",
        "--arch h200-sxm --family sm80_mma --library trtllm --data a.csv --data b.csv --dtype int8 --seed 1 "
        "--max-evaluations 2 --out x.yaml",
    ),
    (
        "calibrate --library gemm-eval --family w4a16_sm90",
        "calibrate w4a16 --family w4a16_sm90",
        "--arch h200-sxm --data a.csv --data b.csv --seed 1 --out x.yaml",
    ),
    ("calibrate --triton", "calibrate triton", "--arch h200-sxm"),
    ("calibrate --triton", "calibrate triton", "--arch h200-sxm --data a.csv --seed 1 --out x.yaml"),
]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the commands ask for, instead of the work."""
    calls: list[Any] = []
    for place in PLACES:
        name = place.rpartition(".")[2]
        monkeypatch.setattr(
            f"gemm_eval.cli.{place}", lambda *args, name=name, **options: calls.append((name, args, options))
        )
    return calls


@pytest.mark.parametrize(("old", "new", "options"), FORMS)
def test_an_old_form_is_the_new_one_with_a_note(asked: list[Any], old: str, new: str, options: str) -> None:
    assert ran(f"{new} {options}") == (0, "", "")
    assert ran(f"{old} {options}") == (0, "", f"note: gemm-eval {old} is now gemm-eval {new}\n")
    assert asked[0] == asked[1]


def test_options_come_in_any_order(asked: list[Any]) -> None:
    assert ran("validate --seed 3 --triton --worst 1") == ran("validate --triton --worst 1 --seed 3")
    assert asked[0] == asked[1]


def test_an_error_is_one_line_without_a_note() -> None:
    for line, message in {
        "calibrate --arch h200-sxm": "--family must be one of sm90_wgmma, sm80_mma",
        "calibrate --arch h200-sxm --family cublas": "--family must be one of sm90_wgmma, sm80_mma",
        "calibrate --arch h200-sxm --family sm90_wgmma --library mkl": "--library must be one of cublas",
        "calibrate --arch h200-sxm --triton --library cublas": "--triton does not go with --library",
        "calibrate --arch h200-sxm --family w4a16_sm90": "--family w4a16_sm90 is of --library gemm-eval, got cublas",
        "calibrate --arch h200-sxm --family w4a16_sm90 --library gemm-eval --dtype fp16": (
            "--family w4a16_sm90 does not go with --dtype; it goes with --arch, --family, --library"
        ),
        "calibrate --arch h200-sxm --family sm90_wgmma --dtype fp16": "--dtype goes with --data FILE",
        "calibrate --arch l4 --triton": "no timings of Triton kernels on l4",
        "calibrate --triton": "Missing option '--arch'; see gemm-eval calibrate --help",
        "validate --triton --w4a16": "--triton does not go with --w4a16",
        "validate --triton --joint": "--triton does not go with --joint; it goes with --arch, --data, --folds",
        "validate --triton --data a.parquet --data b.parquet": "takes one --data",
        "validate --w4a16 --regime decode": "--w4a16 does not go with --regime",
        "validate --w4a16 --w4a16": "--w4a16 is given 2 times",
        "validate --ablation": "--ablation goes with --w4a16 or --triton",
        "validate --arhc l4": "No such option: --arhc, did you mean --arch?; see gemm-eval validate --help",
        "validate --dtype fp16": "--library and --dtype go with --data FILE",
    }.items():
        code, out, err = ran(line)
        assert (code, out, err.count("\n")) == (2, "", 1), f"{line}: {err}"
        assert err.startswith("error: "), line
        assert message in err, line


def test_an_error_as_json_is_one_document() -> None:
    code, out, err = ran("validate --ablation --json")
    assert (code, out) == (2, "")
    assert json.loads(err)["error"]["type"] == "InvalidOptionError"


def test_help_is_that_of_the_new_forms() -> None:
    for line in ("validate --w4a16 --help", "validate -h", "validate --arch l4 --help"):
        assert ran(line) == ran("validate --help")
    code, out, _ = ran("calibrate --triton --help")
    assert code == 0
    assert all(f"\n│ {name} " in out for name in ("dense", "w4a16", "triton"))
