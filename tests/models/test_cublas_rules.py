"""What the GPU model says of cuBLAS's choices, held against the timings of its proposals in arch/measured."""

import numpy as np
import pytest

from gemm_eval.arch import GpuSpec, load_arch
from gemm_eval.models.gpu.libraries import LIBRARIES, cluster_grid_sms
from gemm_eval.validation.tables import measured_root

pd = pytest.importorskip("pandas")

H200 = load_arch("h200-sxm", GpuSpec)
STEP = 64  # fp16 elements of K


@pytest.fixture(scope="module")
def proposals() -> pd.DataFrame:
    frame = pd.read_parquet(measured_root("h200-sxm") / "cublaslt" / "fp16-candidates.parquet")
    parts = frame["kernel"].str.extract(r"_(\d+)x(\d+)_64x\d+_(\d+)x(\d+)_").astype(int)
    return frame.assign(cta_n=parts[0], cta_m=parts[1], cluster_n=parts[2], cluster_m=parts[3])


def test_k_is_split_wherever_the_rule_allows_it(proposals: pd.DataFrame) -> None:
    rule = LIBRARIES["cublas"].split_rules["sm90_wgmma"]
    padded_n = -(-proposals["N"] // (proposals["cta_n"] * proposals["cluster_n"])) * proposals["cluster_n"]
    padded_m = -(-proposals["M"] // (proposals["cta_m"] * proposals["cluster_m"])) * proposals["cluster_m"]
    cluster = proposals["cluster_n"] * proposals["cluster_m"]
    room = cluster.map(lambda ctas: cluster_grid_sms(H200, ctas) - (ctas > 2))
    most = np.minimum(-(-proposals["K"] // STEP) // rule.min_steps, room // (padded_n * padded_m))
    can_split = most >= 2

    assert can_split.sum() == 1690
    assert (proposals.loc[can_split, "split_k"] > 1).all()
    assert (proposals["split_k"] == most)[can_split].mean() == pytest.approx(0.927, abs=0.001)
    assert (proposals.loc[~can_split, "split_k"] > 1).mean() < 0.05


def test_the_first_choice_loses_three_percent_in_the_mean(proposals: pd.DataFrame) -> None:
    best_us = proposals.groupby(["G", "M", "K", "N"])["latency_us"].transform("min")
    loss = (proposals["latency_us"] / best_us - 1.0)[proposals["rank"] == 0]

    assert len(loss) == 652
    assert loss.mean() == pytest.approx(0.032, abs=0.001)
    assert loss.quantile(0.95) == pytest.approx(0.148, abs=0.001)
