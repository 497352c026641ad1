"""Laws of served models, on random small models, GPUs, engines, layouts, loads and lengths.

More requests never lower the throughput; a longer prompt never has its first token sooner; tensor-parallel groups never
beat perfect scaling; pools give no more than either of them alone; twice the replicas under twice the load are as fast.

Steps whose kernels change with their size (tiles, waves, the choice of a kernel) may miss a law by themselves, as those
of whole models do (`estimate`): such a miss is counted with its ratio, which must stay below a limit.
"""

import contextlib
import math
import random
from collections.abc import Callable

from gemm_eval import GEMMEvaluator, InfeasibleError, ServingEstimate
from gemm_eval.arch import GpuSpec
from gemm_eval.estimate import Replica
from gemm_eval.serving import Requests, StepTimes, serve
from tools.laws.draws import GPUS
from tools.laws.estimate import draw_model
from tools.laws.report import Report

ROUNDING = 1e-6  # of the closed form's bisection
LIMIT = 0.2
"""Largest share by which steps of kernels may miss a law."""

_CASES = 25  # of one GPU and model
_DEGREES = (1, 2, 4, 8)
_ENGINES = ("vllm", "sglang", "trtllm", "ideal")
_JOINED = tuple(
    arch
    for arch in GPUS
    if arch.interconnect is not None and arch.interconnect.num_gpus >= max(_DEGREES) and arch.sm_arch[:3] == "sm_"
)


def run(seed: int, count: int) -> Report:
    """Check laws on `count` random deployments, rounded up."""
    rng, report = random.Random(seed), Report()
    for start in range(0, count, _CASES):
        arch, config = rng.choice(_JOINED), draw_model(rng)
        evaluator = GEMMEvaluator(arch, disk_cache=False)
        engine = rng.choice(_ENGINES)
        replicas = {tp: Replica(config, evaluator, tensor_parallel=tp, engine=engine) for tp in _DEGREES}
        lengths = rng.choice((128, 1024, 4096)), rng.choice((64, 256, 1024))
        for _ in range(min(_CASES, count - start)):
            requests = Requests(*lengths, has_fixed_lengths=rng.random() < 0.3)
            with contextlib.suppress(InfeasibleError):  # does not fit
                _Case(replicas, requests, rng, report).check()
    return report


class _Case:
    """A deployment, and the laws that it is asked about."""

    def __init__(self, replicas: dict[int, Replica], requests: Requests, rng: random.Random, report: Report) -> None:
        self.replicas, self.requests, self.rng, self.report = replicas, requests, rng, report
        self.tp, self.concurrency = rng.choice(_DEGREES), rng.choice((1, 2, 8, 32, 100, 256))

    def times(self, tp: int, requests: Requests | None = None) -> StepTimes:
        return (requests or self.requests).times_on(self.replicas[tp])

    def check(self) -> None:
        base = serve(self.times(self.tp), self.requests, self.concurrency)
        self.more_requests(base)
        checks: tuple[Callable[[ServingEstimate], None], ...] = (
            self.longer_prompt, self.tensor_parallel, self.pools, self.twice_the_replicas
        )  # fmt: skip
        self.rng.choice(checks)(base)

    def more_requests(self, base: ServingEstimate) -> None:
        more = serve(self.times(self.tp), self.requests, 2 * self.concurrency)
        self.holds("throughput grows with requests", more.requests_per_s, base.requests_per_s)

    def longer_prompt(self, base: ServingEstimate) -> None:
        requests = self.requests._replace(prompt_len=2 * self.requests.prompt_len)
        longer = serve(self.times(self.tp, requests), requests, self.concurrency)
        self.holds("a longer prompt has its first token later, alone", longer.ttft_alone_us, base.ttft_alone_us)
        self.holds("a longer prompt has its first token later, under load", longer.ttft_us, base.ttft_us)

    def tensor_parallel(self, base: ServingEstimate) -> None:
        wide = self.rng.choice([tp for tp in _DEGREES if tp >= self.tp])
        group = serve(self.times(wide), self.requests, self.concurrency)
        if base.is_full or group.is_full:
            return  # more memory, not more speed
        law = "tensor parallelism is at most perfect scaling"
        self.holds(law, wide / self.tp * base.requests_per_s, group.requests_per_s)
        self.holds(law, wide / self.tp * group.tpot_us, base.tpot_us)

    def pools(self, _: ServingEstimate) -> None:
        reader, times = self.times(self.rng.choice(_DEGREES)), self.times(self.tp)
        num, num_readers = self.rng.choice((1, 2, 4)), self.rng.choice((1, 2, 4))
        devices = num * self.tp + num_readers * reader.replica.num_devices
        arch = times.replica.arch
        link = arch.interconnect if isinstance(arch, GpuSpec) else None
        if link is None or (link.network is None and devices > link.num_gpus):
            return  # refused: no network joins nodes
        pools = serve(
            times, self.requests, self.concurrency, num_replicas=num, prefill=reader, num_prefill_replicas=num_readers
        )
        chunks = reader.chunks_per_step
        service_us = reader.num_chunks * min(reader.chunk_us(num, 0.0) / num for num in (1.0, chunks))
        seqs = min(num * pools.max_seqs, self.concurrency)
        decode_us = (self.requests.output_len - 1) * times.decode_us(seqs / min(num, self.concurrency))
        law = "pools give no more than either of them alone"
        self.holds(law, num_readers / service_us * 1e6, pools.requests_per_s)
        self.holds(law, seqs / decode_us * 1e6, pools.requests_per_s)

    def twice_the_replicas(self, base: ServingEstimate) -> None:
        twice = serve(self.times(self.tp), self.requests, 2 * self.concurrency, num_replicas=2)
        law = "twice the replicas under twice the load are as fast"
        self.report.checked[law] += 1
        pairs = ((twice.tpot_us, base.tpot_us), (twice.ttft_us, base.ttft_us))
        is_same = all(math.isclose(one, other, rel_tol=ROUNDING) for one, other in pairs)
        if not (is_same and math.isclose(twice.requests_per_s, 2 * base.requests_per_s, rel_tol=ROUNDING)):
            self.report.violations.append(f"{law}: {self}: {twice!r} beside {base!r}")

    def holds(self, law: str, larger: float, smaller: float) -> None:
        """Count a law that says `larger` >= `smaller`."""
        self.report.checked[law] += 1
        missed = 1.0 - larger / smaller
        if not missed <= LIMIT:
            self.report.violations.append(f"{law}: {self}: missed by {missed:.4f}")
        elif missed > ROUNDING:
            self.report.except_(f"{law}: steps of kernels", missed)

    def __str__(self) -> str:
        replica = self.replicas[self.tp]
        config = replica.config.model_dump(exclude_none=True)
        return (
            f"{replica.arch.name} {replica.engine} TP{self.tp} {self.concurrency} in flight, {self.requests}: {config}"
        )
