"""Reading timings: what is committed, files of one's own, and what is wrong with them."""

from pathlib import Path

import pytest
import yaml

from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.arch import paths as _paths
from gemm_eval.errors import InvalidInputError, InvalidOptionError
from gemm_eval.measure.data_set import write_timings
from gemm_eval.validation.subjects.dense import calibration_out
from gemm_eval.validation.subjects.gemms import gpus_with_timings
from gemm_eval.validation.tables import find_timings, list_timings, measured_root, read_timings

SIZES = "M,K,N,latency_us\n"


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "mine.csv"
    path.write_text(SIZES + "1,64,128,2.5\n16,64,128,3\n")
    return path


def give_meta(path: Path, **meta: object) -> None:
    path.with_name(path.stem + ".meta.yaml").write_text(yaml.safe_dump(meta))


def test_committed_sets() -> None:
    sets = {timings.name: timings for timings in list_timings("h200-sxm")}
    fp16, int4 = sets["aiconfigurator/float16"], sets["aiconfigurator/int4_wo"]
    assert (len(fp16), len(fp16.frame[["N", "K"]].drop_duplicates())) == (2772, 132)
    assert (fp16.gpu, fp16.library, fp16.l2, fp16.clock) == ("h200-sxm", "cublas", "cold", "burst")
    assert set(fp16.frame["weight_dtype"]) == {"fp16"}
    assert (len(int4), int4.library, int4.in_band.sum()) == (1974, "trtllm", 4 * 94)
    assert set(int4.frame["weight_dtype"]) == {"int4"}
    assert str(int4.problems()[0]) == "G=1 M=1 K=2048 N=128 fp16 x int4 (per column) -> fp16"
    a100 = {timings.name: timings.timer_us for timings in list_timings("a100-sxm-80gb")}
    assert a100 == {
        f"aiconfigurator-0.12/{name}": 4.7 * (name != "bf16") for name in ("bf16", "int4_wo", "int8_wo", "int8")
    }
    burst, warm = sets["engines/w4a16/cublas-bf16-burst"], sets["engines/w4a16/cublas-bf16-warm"]
    assert (len(burst), burst.clock, set(burst.frame["input_dtype"])) == (54, "burst", {"bf16"})
    assert (len(warm), warm.l2) == (18, "warm")
    assert set(burst.frame["weight_dtype"]) == {"bf16"}


def test_gpus_with_timings_are_gpus_and_other_chips_have_timings_too() -> None:
    """What `gemm-eval validate gpu all` scores: chips of another kind have timings that are read in another way."""
    gpus = gpus_with_timings()
    assert {"a100-sxm-80gb", "b200", "h100-sxm", "h200-sxm", "l40s", "rtx-pro-6000-server"} <= set(gpus)
    assert all(isinstance(load_arch(name), GpuSpec) for name in gpus)
    assert measured_root("arc-pro-b60").is_dir()


def test_every_committed_table_says_where_it_comes_from() -> None:
    readme = (measured_root("") / "README.md").read_text()
    for gpu in (path.name for path in measured_root("").iterdir() if path.is_dir()):
        tables = [path for path in measured_root(gpu).rglob("*") if path.suffix in (".csv", ".parquet")]
        assert tables or gpu == "tpu-v4"  # whose timings have no licence: how they are read comes along
        for path in tables:
            assert path.with_name(path.stem + ".meta.yaml").is_file(), path
            assert f"`{gpu}/{path.relative_to(measured_root(gpu)).as_posix()}`" in readme, path
    notice = (measured_root("h200-sxm") / "aiconfigurator" / "NOTICE").read_text()
    assert "Apache" in notice
    assert "NVIDIA" in notice


def test_names_choose_sets_and_folders() -> None:
    assert [timings.name for timings in find_timings("h200-sxm", ["aiconfigurator"])] == [
        "aiconfigurator/float16",
        "aiconfigurator/int4_wo",
    ]
    assert len(find_timings("h200-sxm", ["aiconfigurator/float16", "aiconfigurator"])) == 2
    assert len(find_timings("h200-sxm", [])) == len(list_timings("h200-sxm"))
    for name in ("aiconf", "aiconfigurator/float1"):
        with pytest.raises(InvalidInputError, match=r"no timings named .* there are: aiconfigurator/float16"):
            find_timings("h200-sxm", [name])


def test_a_bare_table_takes_what_the_caller_says(table: Path) -> None:
    (timings,) = find_timings("h200-sxm", [str(table)], library="gemm-eval", dtype="w4a16")
    assert (timings.name, timings.gpu, timings.library, timings.l2) == ("mine", "h200-sxm", "gemm-eval", "cold")
    assert timings.measured_us.tolist() == [2.5, 3.0]
    assert [(p.G, p.M, p.K, p.N, p.group_size) for p in timings.problems()] == [
        (1, 1, 64, 128, 128),
        (1, 16, 64, 128, 128),
    ]


@pytest.mark.parametrize(("given", "missing"), [({"dtype": "fp16"}, "--library"), ({"library": "cublas"}, "--dtype")])
def test_what_nobody_says_is_asked_for(table: Path, given: dict[str, str], missing: str) -> None:
    with pytest.raises(InvalidInputError, match=missing):
        read_timings(table, **given)


def test_meta_file_and_columns_win_over_the_caller(table: Path) -> None:
    give_meta(table, gpu="l4", library="trtllm", dtype="bf16", l2="warm", source="me")
    (timings,) = find_timings("h200-sxm", [str(table)], library="cublas", dtype="fp16")
    assert (timings.gpu, timings.library, timings.l2, timings.source) == ("l4", "trtllm", "warm", "me")
    assert set(timings.frame["input_dtype"]) == {"bf16"}
    table.write_text("M,K,N,latency_us,G,input_dtype,weight_dtype,group_size\n1,64,128,2.5,7,fp16,int4,32\n")
    (timings,) = read_timings(table)
    problem = timings.problems()[0]
    assert (problem.G, problem.input_dtype, problem.weight_dtype, problem.group_size) == (7, "fp16", "int4", 32)


def test_sets_and_bands_of_a_meta_file(table: Path) -> None:
    table.write_text("M,K,N,latency_us,state\n1,64,64,1,a\n2,64,64,2,b\n3,64,64,3,c\n")
    common = {"library": "cublas", "dtype": "fp16"}
    sets = {"first": {"where": {"state": "a"}}, "warm": {"where": {"state": "b"}, "l2": "warm"}}
    give_meta(table, **common, sets=sets, bands={"two": {"min_rows": 2, "max_rows": 2, "why": "x"}})
    first, warm = read_timings(table)
    assert [timings.name for timings in (first, warm)] == ["mine/first", "mine/warm"]
    assert (first.l2, warm.l2) == ("cold", "warm")
    assert (first.in_band.tolist(), warm.in_band.tolist()) == ([False], [True])
    give_meta(table, **common, sets={"none": {"where": {"state": "z"}}})
    with pytest.raises(InvalidInputError, match="no row has"):
        read_timings(table)


def test_conditions_in_columns_are_sets_of_their_own(table: Path) -> None:
    table.write_text("M,K,N,latency_us,l2\n1,64,64,1,cold\n1,64,64,0.5,warm\n")
    sets = read_timings(table, library="cublas", dtype="fp16")
    assert [(timings.name, timings.l2) for timings in sets] == [
        ("mine/cublas-cold-burst", "cold"),
        ("mine/cublas-warm-burst", "warm"),
    ]


def test_what_measure_writes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "measured" / "h200-sxm" / "cublas" / "bf16.parquet"
    path.parent.mkdir(parents=True)
    types = {"input_dtype": "bf16", "weight_dtype": "bf16", "output_dtype": "bf16", "l2": "cold", "clock": "burst"}
    row = {"G": 2, "M": 17, "K": 64, "N": 128, "latency_us": 3.5, "min_us": 3.4, "kernel": "gemm_x", "grid_x": 4}
    write_timings(path, [row | types], {"gpu": {"name": "NVIDIA H200"}, "kernel": "cublas"})
    (timings,) = read_timings(path)
    assert (timings.name, timings.gpu, timings.library, timings.clock) == ("bf16", "h200-sxm", "cublas", "burst")
    assert timings.problems()[0].sizes == (2, 17, 64, 128)
    assert timings.frame.loc[0, "kernel"] == "gemm_x"
    assert timings.flop.tolist() == [2 * 2 * 17 * 64 * 128]
    assert timings.content_hash.startswith("sha256:")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("M,K,N\n1,2,3\n", "lacks latency_us; it has M, K, N"),
        (SIZES + "1,2,0,1\n", r"N must be >= 1, got .*0.* \(row 1\)"),
        (SIZES + "1,2,3,1\n1,2,3,-1\n", r"latency_us must be positive and finite, got .*-1.* \(row 2\)"),
        (SIZES + "1,2,3,1\n1,2,3,\n", "latency_us is missing in row 2"),
        (SIZES + "1,2,3,inf\n", "latency_us must be positive and finite"),
        (SIZES + "1.5,2,3,1\n", "sizes must be integers"),
        (SIZES + "1,2,3,fast\n", "latency_us numbers"),
        ("M,K,N,latency_us,input_dtype\n1,2,3,4,half\n", "input_dtype must be one of"),
        ("M,K,N,latency_us,l2\n1,2,3,4,tepid\n", "l2 must be one of cold, .*warm, got 'tepid'"),
    ],
)
def test_bad_tables_are_refused(table: Path, text: str, message: str) -> None:
    table.write_text(text)
    with pytest.raises(InvalidInputError, match=message):
        read_timings(table, library="cublas", dtype="fp16")


def test_calibrations_lie_in_a_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = calibration_out("h200-sxm", "cublas", "sm90_wgmma")
    assert path == _paths.data_root() / "calibration" / "h200-sxm" / "cublas-sm90_wgmma.yaml"
    monkeypatch.setattr("gemm_eval.validation.subjects.dense.data_root", lambda: tmp_path / "_arch_data")
    with pytest.raises(InvalidOptionError, match="--out must be given"):
        calibration_out("h200-sxm", "cublas", "sm90_wgmma")


def test_grouped_gemms_are_no_plain_ones() -> None:
    for has_candidates in (False, True):
        names = {timings.name for timings in list_timings("h200-sxm", has_candidates=has_candidates)}
        assert not any(name.startswith("grouped") for name in names)
