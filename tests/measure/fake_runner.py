"""A runner without a GPU: a clock that its calls advance."""

from collections.abc import Mapping, Sequence
from typing import Any

from gemm_eval.device import Call
from gemm_eval.errors import GemmEvalError
from gemm_eval.measure import GemmShape
from gemm_eval.measure.runner import Runner

OVERHEAD_US = 5.0


class FakeRunner(Runner):
    """Every call takes `latency_us`; events and the launch of a graph cost `OVERHEAD_US` more."""

    kernel, input_dtype, weight_dtype, output_dtype, gpu_name = "fake", "fp16", "fp16", "fp16", "NVIDIA H200"
    l2_bytes = 60 << 20

    def __init__(self, latency_us: float = 10.0, refused: Sequence[GemmShape] = (), pool_bytes: int = 1 << 30) -> None:
        self.latency_us, self.refused, self.pool_bytes = latency_us, set(refused), pool_bytes
        self.now_us = 0.0
        self.weights_read: list[int] = []
        self.log: list[str] = []

    def allocate(self, shapes: Sequence[GemmShape], pool_bytes: int) -> None:
        self.pool_bytes = pool_bytes

    def weight_bytes(self, shape: GemmShape) -> int:
        return 2 * shape.G * shape.K * shape.N

    def bind(self, shape: GemmShape, weight_offsets: Sequence[int]) -> Sequence[Call]:
        self.log.append(f"bind {tuple(shape)}")

        def call(offset: int) -> None:
            if shape in self.refused:
                raise GemmEvalError("refused")
            self.now_us += self.latency_us
            self.weights_read.append(offset)

        return [lambda offset=offset: call(offset) for offset in weight_offsets]  # type: ignore[misc]

    def check(self) -> Mapping[str, float]:
        return {"2-D": 1e-4}

    def capture(self, enqueue: Call) -> Call:
        def launch() -> None:
            self.log.append("launch")
            enqueue()

        return launch

    def elapsed_us(self, enqueue: Call) -> float:
        begin = self.now_us
        enqueue()
        return self.now_us - begin + OVERHEAD_US

    def flush_l2(self) -> None:
        self.log.append("flush")

    def mark(self, index: int) -> None:
        self.log.append(f"mark {index}")

    def idle(self) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def describe(self) -> dict[str, Any]:
        return {"library": "none"}
