"""Timing of candidate configs: what is asked of the device, on one that only pretends; and CuPy's, without a GPU."""

import contextlib
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemm_eval.arch import load_arch
from gemm_eval.device import Call, bench, compiler_version, num_calls
from gemm_eval.device.bench import ReadPass
from gemm_eval.dtypes import DType
from gemm_eval.errors import GemmEvalError, InvalidOptionError
from gemm_eval.kernels import Sizes, WeightMode, legal_configs, limits_of_spec
from gemm_eval.kernels import tune as tuning
from gemm_eval.kernels.families.base import Launch, Operands
from gemm_eval.kernels.tune import MAX_COPIES_BYTES, CupyTuneDevice, num_copies, protocol_of, time_configs
from gemm_eval.mapping import KernelConfig

LIMITS = limits_of_spec(load_arch("h200-sxm"))  # type: ignore[arg-type]
CONFIGS = list(legal_configs(Sizes(16, 512, 256), LIMITS))[:6]
L2_BYTES = 60 << 20
COLD, WARM = protocol_of("cold"), protocol_of("warm")
OVERHEAD_US = 4.0


class FakeDevice:
    """Configs take what `latencies_us` says; what is queued is written down in `log`."""

    weight_bytes, l2_bytes = 8 << 20, L2_BYTES

    def __init__(self, latencies_us: dict[KernelConfig, float], is_capturing: bool = False) -> None:
        self.latencies_us, self.is_capturing = latencies_us, is_capturing
        self.log: list[Any] = []
        self.now_us, self.copies, self.is_held, self.room = 0.0, 0, False, 1 << 36
        self.refused_plans: set[KernelConfig] = set()
        self.refused_launches: set[KernelConfig] = set()
        self.refused_replays: set[KernelConfig] = set()

    def check_idle(self) -> None:
        if self.is_capturing:
            raise InvalidOptionError("a CUDA graph is being captured on this stream")

    def plan(self, config: KernelConfig) -> None:
        if config in self.refused_plans:
            raise GemmEvalError("no such kernel")

    def room_bytes(self) -> int:
        return self.room

    def allocate(self, num_copies: int) -> None:
        self.copies, self.is_held = num_copies, True

    def bind(self, config: KernelConfig) -> Sequence[Call]:
        def call(copy: int) -> None:
            if config in self.refused_launches:
                raise RuntimeError("CUDA_ERROR_INVALID_VALUE")
            self.log.append((config, copy))
            self.now_us += self.latencies_us[config]

        return [lambda copy=copy: call(copy) for copy in range(self.copies)]  # type: ignore[misc]

    def capture(self, enqueue: Call) -> Call:
        before, length = self.now_us, len(self.log)
        enqueue()
        took_us, nodes = self.now_us - before, self.log[length:]
        self.now_us = before
        del self.log[length:]

        def replay() -> None:
            if nodes and nodes[0][0] in self.refused_replays:
                raise RuntimeError("launch failure")
            self.log.append(("replay", *nodes))
            self.now_us += took_us

        return replay

    def idle(self) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def flush_l2(self) -> None:
        self.log.append("flush")

    def elapsed_us(self, call: Call) -> float:
        before = self.now_us
        self.log.append("begin")
        call()
        return self.now_us - before + OVERHEAD_US

    def release(self) -> None:
        self.is_held = False
        self.log.append("release")

    def replays(self) -> list[tuple[KernelConfig, int]]:
        """Of those that were timed behind a flush: config and number of calls."""
        return [
            (replay[1][0], len(replay) - 1)
            for flush, begin, replay in zip(self.log, self.log[1:], self.log[2:], strict=False)
            if (flush, begin, replay[0]) == ("flush", "begin", "replay") and len(replay) > 1
        ]


def device_of(*latencies_us: float) -> Any:
    return FakeDevice(dict(zip(CONFIGS, latencies_us, strict=False)))


def test_the_fastest_comes_first() -> None:
    device = device_of(30.0, 10.0, 20.0)
    tuning = time_configs(device, CONFIGS[:3], 16)

    assert [one.config for one in tuning.timed] == [CONFIGS[1], CONFIGS[2], CONFIGS[0]]
    assert [one.latency_us for one in tuning.timed] == pytest.approx([10.0, 20.0, 30.0])
    assert tuning.skipped == ()
    assert device.log[-1] == "release"
    assert not device.is_held


def test_replays_take_turns_and_each_follows_a_call_and_a_flush() -> None:
    device = device_of(5.0, 5.0)
    time_configs(device, [*CONFIGS[:2], CONFIGS[0]], 16)

    assert device.replays() == [(config, 200) for config in CONFIGS[:2]] * 5
    for index, entry in enumerate(device.log):
        if entry[0] == "replay" and len(entry) == 201 and device.log[index - 1] == "begin":
            assert device.log[index - 3 : index - 1] == [(entry[1][0], device.copies - 1), "flush"]


def test_calls_of_a_graph_go_round_the_copies() -> None:
    device = device_of(5.0)
    time_configs(device, CONFIGS[:1], 16)
    graph = max((entry[1:] for entry in device.log if entry[0] == "replay"), key=len)

    assert len(graph) == num_calls(5.0, COLD) == 200
    assert (device.copies - 1) * device.weight_bytes > 4 * L2_BYTES
    assert [copy for _, copy in graph] == [index % device.copies for index in range(200)]


def test_warm_weights_are_one_copy_and_nothing_flushes_l2() -> None:
    device = device_of(5.0)
    tuning = time_configs(device, CONFIGS[:1], 16, "warm")

    assert device.copies == 1
    assert device.replays() == []
    assert tuning.timed[0].latency_us == pytest.approx(5.0)


@pytest.mark.parametrize(("M", "pauses"), [(256, []), (257, [0.008] * 10)])
def test_large_gemms_pause_before_each_replay(M: int, pauses: list[float]) -> None:
    slept: list[float] = []
    time_configs(device_of(5.0, 6.0), CONFIGS[:2], M, sleep=slept.append)

    assert slept == pauses


def test_configs_that_fail_are_skipped_with_a_reason(caplog: pytest.LogCaptureFixture) -> None:
    device = device_of(4.0, 3.0, 2.0, 1.0)
    device.refused_plans, device.refused_launches, device.refused_replays = {CONFIGS[1]}, {CONFIGS[2]}, {CONFIGS[3]}
    with caplog.at_level("INFO", "gemm_eval"):
        tuning = time_configs(device, CONFIGS[:4], 16)

    assert [one.config for one in tuning.timed] == CONFIGS[:1]
    assert dict(tuning.skipped) == {
        CONFIGS[1]: "no such kernel", CONFIGS[2]: "CUDA_ERROR_INVALID_VALUE", CONFIGS[3]: "launch failure",
    }  # fmt: skip
    assert len(caplog.records) == 3
    assert device.replays() == [(CONFIGS[0], 250)] * 5


@pytest.mark.parametrize("where", ["refused_plans", "refused_launches", "refused_replays"])
def test_none_that_works_is_an_error_that_says_why(where: str) -> None:
    device = device_of(1.0, 2.0)
    setattr(device, where, set(CONFIGS[:2]))
    with pytest.raises(GemmEvalError, match=r"none of 2 configs could be timed: .*CTA"):
        time_configs(device, CONFIGS[:2], 16)

    assert device.log[-1] == "release"


def test_memory_is_freed_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    device = device_of(1.0)
    monkeypatch.setattr(device, "capture", lambda enqueue: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        time_configs(device, CONFIGS[:1], 16)

    assert not device.is_held


def test_nothing_is_timed_while_a_graph_is_captured() -> None:
    device: Any = FakeDevice({}, is_capturing=True)
    with pytest.raises(InvalidOptionError, match="is being captured"):
        time_configs(device, CONFIGS[:1], 16)

    assert device.log == []


def test_options_are_checked() -> None:
    with pytest.raises(InvalidOptionError, match="at least one config"):
        time_configs(device_of(), [], 16)
    with pytest.raises(InvalidOptionError, match=r"must be one of .*, got 'hot'"):
        time_configs(device_of(1.0), CONFIGS[:1], 16, "hot")


@given(st.integers(1, 1 << 34), st.integers(1 << 20, 1 << 28), st.integers(0, 1 << 38))
def test_copies_exceed_l2_and_stay_within_memory(weight_bytes: int, l2_bytes: int, room_bytes: int) -> None:
    copies = num_copies(weight_bytes, l2_bytes, room_bytes, COLD)
    new_bytes = (copies - 1) * weight_bytes

    assert copies >= 1
    assert new_bytes <= min(MAX_COPIES_BYTES, room_bytes // 2)
    has_room = new_bytes + weight_bytes <= min(MAX_COPIES_BYTES, room_bytes // 2)
    assert not has_room or copies >= 400 or (copies >= 2 and (copies - 1) * weight_bytes > 4 * l2_bytes - weight_bytes)
    assert num_copies(weight_bytes, l2_bytes, room_bytes, WARM) == 1


# ---- CuPy's device, on a CuPy that only pretends -------------------------------------------------------------------


class FakeStream(contextlib.AbstractContextManager["FakeStream"]):
    ptr = 77

    def __init__(self, **_: Any) -> None:
        self.done: list[str] = []

    def __exit__(self, *_: object) -> None:
        return None

    def synchronize(self) -> None:
        self.done.append("synchronize")

    def begin_capture(self) -> None:
        self.done.append("begin")

    def end_capture(self) -> Any:
        self.done.append("end")
        return SimpleNamespace(upload=lambda stream: None, launch=lambda stream: self.done.append("launch"))


USER = Operands(
    a=1 << 20, lda=512, qweight=2 << 20, scales=3 << 20, bias=4 << 20, c=5 << 20, workspace=6 << 20, counters=7 << 20,
    alpha=1.5, num_column_blocks=4, num_k_blocks=8, num_groups=4,
)  # fmt: skip


class FakeGpu:
    """CuPy's device with the calls that it makes written down."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free_bytes: int = 1 << 34) -> None:
        self.launches: list[tuple[Any, ...]] = []
        self.copied: list[tuple[int, ...]] = []
        self.cleared: list[tuple[int, ...]] = []
        self.waits: list[tuple[int, int]] = []
        self.reads: list[tuple[int, int]] = []
        self.capturing: set[int] = set()
        self.next_address, self.free_bytes = 1 << 32, free_bytes

        class Memory:
            def __init__(memory, size: int) -> None:  # noqa: N805
                memory.ptr = self.new(size)

        runtime = SimpleNamespace(
            cudaDevAttrL2CacheSize=38, deviceGetAttribute=lambda *_: L2_BYTES, CUDARuntimeError=RuntimeError,
            memGetInfo=lambda: (self.free_bytes, 1 << 40), memcpyDeviceToDevice=3,
            memcpyAsync=lambda *args: self.copied.append(args),
        )  # fmt: skip
        event = lambda: SimpleNamespace(record=lambda s: None, synchronize=lambda: None)  # noqa: E731
        cuda = SimpleNamespace(
            runtime=runtime, Stream=FakeStream, Event=event, Memory=Memory, get_elapsed_time=lambda a, b: 0.25
        )
        fakes: dict[str, Callable[..., Any]] = {
            "import_cupy": lambda: SimpleNamespace(cuda=cuda), "limits_of_device": lambda device: LIMITS,
            "on_device": lambda device: contextlib.nullcontext(), "stream_handle": lambda stream: 0,
            "wait_for_stream": lambda *handles: self.waits.append(handles),
            "clear_bytes": lambda *args: self.cleared.append(args), "refuse_capture": self.refuse_capture,
            "load_function": lambda *_: lambda *args: self.launches.append(args),
        }  # fmt: skip
        for name, fake in fakes.items():
            monkeypatch.setattr(tuning.runtime, name, fake)
        monkeypatch.setattr(bench, "ReadPass", lambda device, stream: SimpleNamespace(queue=self.read))
        monkeypatch.setattr(tuning, "plan_on_device", self.plan)
        packed: Any = SimpleNamespace(
            qweight=SimpleNamespace(nbytes=65_536), scales=SimpleNamespace(nbytes=2_000),
            activation=DType.FP16, mode=WeightMode.GROUP, group_size=128,
        )  # fmt: skip
        self.device = CupyTuneDevice(Sizes(16, 512, 256), packed, USER, 0, 9)

    def new(self, size: int) -> int:
        if size > self.free_bytes:
            raise RuntimeError("out of memory")
        self.free_bytes -= size
        self.next_address += 1 << 24
        return self.next_address

    def read(self, address: int, num_bytes: int) -> None:
        self.reads.append((address, num_bytes))

    def refuse_capture(self, stream: int, remedy: str) -> None:
        if stream in self.capturing:
            raise InvalidOptionError(f"a CUDA graph is being captured on this stream: {remedy}")

    @staticmethod
    def plan(sizes: Sizes, activation: Any, mode: Any, group_size: int, config: KernelConfig, device: int) -> Any:
        needs = CONFIGS.index(config) % 2  # as if every other one cut K
        launch = Launch((4, 1, 1), 128, 1000, 4096 if needs else 0, 8 if needs else 0)
        return SimpleNamespace(
            launch=launch, compiled=None, arguments=lambda operands: operands, workspace_bytes=4352 * needs
        )


def test_kernels_never_get_the_output_or_the_workspace_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch)
    for config in CONFIGS:
        gpu.device.plan(config)
    gpu.device.allocate(3)
    calls = [gpu.device.bind(config) for config in CONFIGS]
    assert gpu.launches == []
    for of_config in calls:
        assert len(of_config) == 3
        for call in of_config:
            call()

    given_to = [operands for _, _, operands, _, _ in gpu.launches]
    assert {(o.a, o.lda, o.bias, o.alpha, o.num_groups) for o in given_to} == {(1 << 20, 512, 4 << 20, 1.5, 4)}
    for name in ("c", "workspace", "counters"):
        assert getattr(USER, name) not in {getattr(operands, name) for operands in given_to}
    assert all(handle.ptr == FakeStream.ptr for *_, handle in gpu.launches)
    assert given_to[0].qweight == USER.qweight
    assert [copy[:2] for copy in gpu.copied] == [
        (getattr(given_to[i], name), getattr(USER, name)) for i in (1, 2) for name in ("qweight", "scales")
    ]
    assert [copy[2] for copy in gpu.copied] == [65_536, 2_000] * 2
    assert gpu.waits == [(FakeStream.ptr, 9)]
    assert gpu.cleared == [(max(o.counters for o in given_to), 32, FakeStream.ptr)]


@pytest.mark.parametrize("stream", [0, 9])
def test_a_capture_on_the_callers_or_the_current_stream_is_refused(
    monkeypatch: pytest.MonkeyPatch, stream: int
) -> None:
    gpu = FakeGpu(monkeypatch)
    gpu.device.check_idle()
    gpu.capturing = {stream}
    with pytest.raises(InvalidOptionError, match="profile this GEMM once before the capture"):
        gpu.device.check_idle()


def test_a_full_gpu_is_an_error_with_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch, free_bytes=1000)
    assert gpu.device.room_bytes() == 0
    with pytest.raises(GemmEvalError, match="8,192 more bytes of GPU memory"):
        gpu.device.allocate(1)
    with pytest.raises(GemmEvalError, match="256,000,000 more bytes of GPU memory"):
        gpu.device.flush_l2()


def test_a_capture_that_fails_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch)
    gpu.device.allocate(1)

    def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        gpu.device.capture(fail)
    gpu.device.capture(lambda: None)()
    assert gpu.device.elapsed_us(lambda: None) == 250.0
    gpu.device.release()

    assert gpu.device.stream.done == ["begin", "end", "begin", "end", "synchronize", "launch", "synchronize"]
    assert gpu.device._memory == []


def test_a_flush_reads_the_same_memory_of_its_own_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch)
    gpu.device.allocate(2)
    held, free_bytes = len(gpu.device._memory), gpu.free_bytes
    gpu.device.flush_l2()
    gpu.device.flush_l2()
    gpu.device.idle()

    flushed = COLD.cold_bytes_of(L2_BYTES)
    assert len(gpu.device._memory) == held + 1
    assert free_bytes - gpu.free_bytes == flushed
    assert gpu.reads == [(gpu.next_address, flushed)] * 2 + [(0, 0)]


def test_a_read_pass_is_launched_over_whole_16_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        compiler_version()
    except GemmEvalError as error:
        pytest.skip(str(error))
    launches: list[tuple[Any, ...]] = []
    loaded: list[Any] = []

    def load(compiled: Any, *_: Any) -> Callable[..., None]:
        loaded.append(compiled)
        return lambda *args: launches.append(args)

    monkeypatch.setattr(tuning.runtime, "limits_of_device", lambda device: LIMITS)
    monkeypatch.setattr(tuning.runtime, "load_function", load)
    read_pass = ReadPass(0, 7)
    read_pass.queue(1 << 20, 1000)
    read_pass.queue(0, 0)

    assert (loaded[0].target, loaded[0].spill_store_bytes) == ("sm_90", 0)
    assert [(grid, block, tuple(map(int, args))) for grid, block, args, _, _ in launches] == [
        ((4 * 132, 1, 1), (512, 1, 1), (1 << 20, 62, 1 << 20)), ((1, 1, 1), (32, 1, 1), (0, 0, 0)),
    ]  # fmt: skip
    assert all(handle.ptr == 7 for *_, handle in launches)
