"""`GpuSpec`: what a GPU's model needs to know of it, its link to others, names of GPUs, and limits of an SM."""

from __future__ import annotations

import re
from typing import Annotated, ClassVar, Literal, NamedTuple, Self, get_args

from pydantic import Field, model_validator

from gemm_eval.arch.common import (
    BaseSpec,
    ClockState,
    Dim,
    DTypeKey,
    Frac,
    Frozen,
    NonNegative,
    Positive,
    Table,
    Text,
    check_rules,
)
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidOptionError, UnsupportedError
from gemm_eval.units import cycles_per_us, tflop_per_s
from gemm_eval.words import check_word, shown

Link = Literal["nvlink2", "nvlink3", "nvlink4", "nvlink5", "xgmi3", "xgmi4", "pcie3", "pcie4", "pcie5"]
LINKS: tuple[str, ...] = get_args(Link)
"""Generations of links that specs know."""

ONE_SOCKET = "pcie-one-socket"
TWO_SOCKETS = "pcie-two-sockets"
PCIE_BOXES = (ONE_SOCKET, TWO_SOCKETS)
"""Ways in which servers join GPUs over PCIe; see `Interconnect.topology`.

Presets say `ONE_SOCKET`: eight RTX 5090 of two sockets, but with peer-to-peer access, were timed at 28 GB/s of bus
bandwidth and four at 35 (https://github.com/NVIDIA/nccl/issues/1639), where one socket is predicted to have 42. Only
L40S says `TWO_SOCKETS`, the server in which it was timed: there eight GPUs have 1.2 to 2.2 GB/s, two have 20.
"""


class Network(Frozen):
    """The network between nodes, rail-optimized: GPUs of one index in all nodes share switches, a rail.

    What libraries reach on it is not part of a spec.
    """

    kind: Literal["infiniband-hdr", "infiniband-ndr", "infiniband-xdr", "roce"] = Field(
        description="kind and generation"
    )
    gb_per_s: Positive = Field(description="out of a GPU, one direction: its NICs, or its share of those of a node")
    latency_us: Positive = Field(description="from a GPU to one of another node, of a few bytes")


class Interconnect(Frozen):
    """The link of a GPU to the others of its node. What libraries reach on it is not part of a spec."""

    link: Link = Field(description="generation: coefficients of collectives carry over within one")
    topology: Literal["switch", "mesh", "all-to-all", "pcie-one-socket", "pcie-two-sockets"] = Field(
        description="switch: any two GPUs at full rate, at once; mesh: direct links between some; all-to-all: a link "
        "between any two; pcie-one-socket: all GPUs behind the bridges or PCIe switches of one CPU; pcie-two-sockets: "
        "traffic also crosses two CPUs"
    )
    gb_per_s: Positive = Field(description="out of a GPU, one direction, all its links together, as published")
    num_gpus: Annotated[int, Field(ge=2, le=1024)] = Field(description="GPUs that it joins, at most")
    has_multicast: bool = Field(
        default=False, description="the switch copies stores and adds up loads (NVLink SHARP), so that NCCL's NVLS runs"
    )
    network: Network | None = Field(
        default=None, description="what joins nodes; absent: collectives of more GPUs than the link joins are refused"
    )

    @property
    def has_peer_memory(self) -> bool:
        """True if GPUs read and write each other's memory without the host."""
        return not self.link.startswith("pcie")

    def in_box(self, box: str) -> Interconnect:
        """Return the link of the same GPUs in a server of another kind.

        Args:
            box: of `PCIE_BOXES`.

        Raises:
            InvalidOptionError: no such kind of server.
            UnsupportedError: the GPUs are not joined by PCIe.
        """
        check_word("interconnect", box, PCIE_BOXES)
        if self.topology not in PCIE_BOXES:
            raise UnsupportedError(
                f"interconnect says how a server joins GPUs over PCIe; these are joined by {self.link}"
            )
        return self.model_copy(update={"topology": box})


_INSTINCT = ("mi355x", "mi350x", "mi325x", "mi308x", "mi300x", "mi300a", "mi250x", "mi210")
_SLUGS = {
    "b300-sxm6-ac": "b300", "rtx-pro-6000-blackwell-server-edition": "rtx-pro-6000-server",
    "geforce-rtx-5090": "rtx-5090", "geforce-rtx-5070": "rtx-5070", "geforce-rtx-4090": "rtx-4090",
    "h200": "h200-sxm", "h100-80gb-hbm3": "h100-sxm", "h20": "h20-sxm", "a100-sxm4-80gb": "a100-sxm-80gb",
    "a100-sxm4-40gb": "a100-sxm-40gb", "a100-80gb-pcie": "a100-pcie-80gb", "tesla-t4": "t4",
    "tesla-v100-sxm2-16gb": "v100", "tesla-v100-sxm2-32gb": "v100",
    **{f"amd-instinct-{name}": name for name in _INSTINCT},
    "amd-instinct-mi300x-vf": "mi300x", "amd-instinct-mi250x-mi250": "mi250x",
}  # fmt: skip
"""Names of drivers, without the "NVIDIA" that some leave out, that are not those of presets."""

ALIASES = {"mi300": "mi300x", "mi308": "mi308x", "mi325": "mi325x", "mi350": "mi350x", "mi355": "mi355x"}
"""What else people call presets."""


def gpu_slug(name: str) -> str:
    """Return the name that files and archs use for a GPU as its driver calls it."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower().removeprefix("nvidia ")).strip("-")
    return _SLUGS.get(slug, slug)


_Nvidia = Literal["sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120"]
_Amd = Literal["gfx90a", "gfx942", "gfx950"]
SmArch = Literal[_Nvidia, _Amd]
SM_ARCHS: tuple[str, ...] = get_args(_Nvidia)
"""NVIDIA's generations of SMs that the model knows, the oldest first."""
GFX_ARCHS: tuple[str, ...] = get_args(_Amd)
"""AMD's generations of compute units (CDNA 2, 3 and 4), the oldest first."""


def ladder_of(sm_arch: str) -> tuple[str, ...]:
    """Return all generations of the maker of one, the oldest first: what carries over stays among them."""
    return next((ladder for ladder in (SM_ARCHS, GFX_ARCHS) if sm_arch in ladder), (sm_arch,))


THREADS_PER_WARP = 32
"""Threads of a warp of every NVIDIA GPU."""

_Bytes = Annotated[int, Field(ge=1, le=1 << 50)]
_ClockTable = Annotated[Table[DTypeKey, Positive], Field(min_length=1)]


def check_nvidia(arch: BaseSpec, model: str) -> None:
    """Raise `UnsupportedError` where a GPU of another maker would take what was modelled on NVIDIA's alone."""
    if isinstance(arch, GpuSpec) and arch.sm_arch not in SM_ARCHS:
        raise UnsupportedError(f"{model}: modelled on NVIDIA GPUs alone, and {arch.name} is {arch.sm_arch}")


def check_carried(arch: BaseSpec, model: str) -> None:
    """Raise `UnsupportedError` as `check_nvidia`, unless the spec names the GPU whose shares hold (`carried_from`)."""
    if isinstance(arch, GpuSpec) and arch.carried_from is None:
        check_nvidia(arch, f"{model} without carried_from in the spec")


class GpuSpec(BaseSpec):
    """A GPU: the hardware that a GEMM kernel meets. What kernels reach on it is not part of a spec.

    Fields have NVIDIA's words: an SM is a compute unit of other makers, a warp a wave.

    Load one with `load_arch`. `with_` gives a changed copy for sweeps. Every field's unit is its suffix; a cycle is an
    SM clock cycle, `num_sms` and what is called "whole chip" apart every number is that of one SM.

    Raises:
        pydantic.ValidationError: on direct construction; `load_arch` and `with_` raise `ArchValidationError`.
    """

    _shown: ClassVar = ("sm_arch", "num_sms", "boost_clock_ghz", "l2_bytes", "dram_bytes", "dram_gb_per_s")

    type: Literal["gpu"] = Field(default="gpu", description="the kind of chip; a file of a GPU has to say it")
    sm_arch: SmArch = Field(description="generation of the SM")
    carried_from: Text | None = Field(
        default=None,
        description="preset of another maker that gives attention, collectives and memory-bound kernels their shares "
        "of rates, as none of this maker's GPUs was timed; absent: none does",
    )
    num_sms: Dim = Field(description="SMs that are enabled")

    # clocks and power
    max_clock_ghz: Positive = Field(description="what an SM runs at with light load; the unit of L2 cycles")
    boost_clock_ghz: Positive = Field(description="clock in the maker's peak arithmetic")
    tensor_clock_burst_ghz: _ClockTable = Field(
        description="SM clock under full tensor load and random data for at most 10 ms, by input type"
    )
    tensor_clock_sustained_ghz: _ClockTable = Field(
        description="the same for as long as you like: where the power limit holds the clock"
    )
    power_limit_w: Positive = Field(description="power limit of the module or board, as sold")

    # tensor cores
    tensor_flop_per_cycle: Table[DTypeKey, Positive] = Field(
        min_length=1, description="dense FLOP with fp32 (int32) accumulation; a type that is missing cannot run"
    )
    default_dtype: DTypeKey = Field(default=DType.FP16, description="input type when a call names none")
    mma_m: Dim = Field(description="rows of C of one tensor-core instruction")
    mma_n_max: Dim = Field(description="most columns of C of one instruction")
    mma_n_step: Dim = Field(description="columns of C are a multiple of this")
    mma_k_bytes: Dim = Field(description="reduction length of one instruction, in bytes of the input type")
    warps_per_mma: Dim = Field(description="warps that issue one instruction together")
    mma_operands_from: Literal["smem", "registers"] = Field(
        description="smem: read by the tensor core itself, at smem_bytes_per_cycle; registers: loaded before, by warps"
    )
    mma_accumulators_in: Literal["registers", "tensor_memory"] = Field(
        default="registers", description="where the accumulators of a CTA lie"
    )
    mma_floor_cycles: NonNegative = Field(description="least time between two instructions of an SM, however small")

    # shared memory, registers, occupancy
    smem_per_sm_bytes: _Bytes = Field(description="shared memory of an SM, the system's part included")
    smem_per_cta_bytes: _Bytes = Field(description="most that one CTA can opt into")
    smem_reserved_bytes: Annotated[int, Field(ge=0, le=1 << 20)] = Field(
        description="taken from each CTA by the system"
    )
    smem_bytes_per_cycle: Positive = Field(description="read or written without bank conflicts")
    registers_per_sm: _Bytes = Field(description="32-bit registers")
    max_registers_per_thread: Dim = Field(description="most that a thread can have")
    register_alloc_per_warp: Dim = Field(description="a warp's registers are a multiple of this")
    threads_per_warp: Dim = Field(default=THREADS_PER_WARP, description="threads that execute an instruction together")
    max_threads_per_sm: Dim = Field(description="most that an SM holds at once")
    max_ctas_per_sm: Dim = Field(description="most that an SM holds at once, however small")
    max_cluster_ctas: Dim = Field(description="CTAs of a portable cluster; 1: no clusters")
    has_cp_async: bool = Field(description="copies to shared memory that bypass registers")
    has_tma: bool = Field(description="bulk tensor copies issued by one thread")
    has_multicast: bool = Field(description="one L2 read can fill the shared memory of all CTAs of a cluster")

    # instruction issue and ALUs
    issue_slots_per_cycle: Positive = Field(description="warp instructions issued: one a scheduler")
    fp32_ops_per_cycle: Positive = Field(description="lanes of fp32 add, multiply, FMA")
    half2_ops_per_cycle: Positive = Field(description="lanes of two-wide fp16 add, multiply, FMA (two results each)")
    int32_ops_per_cycle: Positive = Field(description="lanes of 32-bit integer add, shift, lop3, prmt")
    conversion_ops_per_cycle: Positive = Field(description="lanes of conversion from integer to floating point")
    exps_per_cycle: Positive = Field(
        default=16.0, description="exponentials (CUDA C++ Programming Guide: 16 special functions of every generation)"
    )

    # L2 and DRAM, whole chip
    l2_bytes: _Bytes = Field(description="L2 of all partitions together")
    l2_bytes_per_cycle: Positive = Field(description="read hits, whole chip, in cycles of max_clock_ghz")
    l2_latency_cycles: Positive = Field(description="from a load to its data where L2 has them, of max_clock_ghz")
    num_l2_partitions: Dim = Field(description="2: a line whose home is the far partition crosses a bridge")
    num_l2_caches: Dim = Field(
        default=1, description="dies (XCDs) with an L2 each, of l2_bytes in all: what two of them read lies in both"
    )
    l3_bytes: _Bytes | None = Field(default=None, description="cache between L2 and DRAM, whole chip; absent: none")
    l3_gb_per_s: Positive | None = Field(default=None, description="read hits of that cache, 1e9 bytes/s")
    dram_bytes: _Bytes = Field(description="memory of the GPU that its driver reports (nvidia-smi)")
    dram_gb_per_s: Positive = Field(description="as published")
    dram_efficiency_frac: Frac = Field(description="share of dram_gb_per_s that a large read reaches")
    dram_latency_ns: Positive = Field(description="from a load to its data where L2 does not have them")

    # fixed costs
    launch_us: NonNegative = Field(description="an empty kernel in a CUDA graph")
    graph_node_us: NonNegative = Field(
        description="fixed part of a node with real work in a CUDA graph, launch and all"
    )

    # other GPUs
    interconnect: Interconnect | None = Field(
        default=None, description="what joins it to the other GPUs of a node; absent: messages between GPUs are refused"
    )

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        clock_tables = ("tensor_clock_burst_ghz", "tensor_clock_sustained_ghz")
        self._check_types("tensor_flop_per_cycle", *clock_tables)
        for field in clock_tables:
            clocks = getattr(self, field)
            if self.default_dtype not in clocks:
                raise ValueError(f"{field} must have an entry for default_dtype {self.default_dtype}")
            for dtype, clock in clocks.items():
                if clock > self.max_clock_ghz:
                    raise ValueError(f"{field}: {dtype} must be <= max_clock_ghz {self.max_clock_ghz}, got {clock}")
        check_rules(
            (self.boost_clock_ghz > self.max_clock_ghz,
             f"boost_clock_ghz must be <= max_clock_ghz {self.max_clock_ghz}, got {self.boost_clock_ghz}"),
            (self.smem_per_cta_bytes + self.smem_reserved_bytes > self.smem_per_sm_bytes,
             "smem_per_cta_bytes and smem_reserved_bytes together must fit into smem_per_sm_bytes"),
            (self.mma_n_max % self.mma_n_step,
             f"mma_n_max must be a multiple of mma_n_step {self.mma_n_step}, got {self.mma_n_max}"),
            ((self.l3_bytes is None) != (self.l3_gb_per_s is None), "l3_bytes and l3_gb_per_s go together"),
            (self.max_cluster_ctas == 1 and self.has_multicast,
             "has_multicast needs clusters: max_cluster_ctas above 1"),
        )  # fmt: skip
        return self

    def multiplies(self, dtype: DType | str) -> bool:
        """Say whether it multiplies matrices of a type: its tensor cores take it, or it is fp32, of the CUDA cores."""
        return dtype in self.tensor_flop_per_cycle or dtype == DType.FP32

    def flop_per_cycle(self, dtype: DType | str) -> float:
        """Return what an SM does with inputs of `dtype` in a cycle: its tensor cores, or its CUDA cores for fp32.

        Raises:
            KeyError: it multiplies no such type.
        """
        if dtype == DType.FP32 and DType.FP32 not in self.tensor_flop_per_cycle:
            return 2.0 * self.fp32_ops_per_cycle
        return self.tensor_flop_per_cycle[DType(dtype)]

    def peak_tflop_per_s(self, dtype: DType | str | None = None) -> float:
        """Peak of the whole chip as its maker states it: dense, for inputs of `dtype` (default: the arch's), 1e12/s.

        Raises:
            KeyError: the tensor cores do not take that type.
        """
        dtype = self.default_dtype if dtype is None else DType(dtype)
        return self._tflop_per_s(dtype, self.boost_clock_ghz)

    def highest_tflop_per_s(self, dtype: DType | str | None = None) -> float:
        """Return the rate that no GEMM can beat, 1e12/s: the peak, or that at the burst clock where it is higher.

        Raises:
            KeyError: the tensor cores do not take that type.
        """
        return max(self.peak_tflop_per_s(dtype), self.tensor_tflop_per_s(dtype, ClockState.BURST))

    def tensor_clock_ghz(self, dtype: DType | str | None = None, clock: str = ClockState.BURST) -> float:
        """SM clock under full tensor load: that of `dtype` where it is known, else that of the default type.

        Raises:
            InvalidOptionError: `clock` is no `ClockState`.
            KeyError: the tensor cores do not take that type.
        """
        check_word("clock", clock, ClockState)
        dtype = self.default_dtype if dtype is None else DType(dtype)
        if not self.multiplies(dtype):
            raise KeyError(dtype)
        table = self.tensor_clock_burst_ghz if clock == ClockState.BURST else self.tensor_clock_sustained_ghz
        return table.get(dtype, table[self.default_dtype])

    def tensor_tflop_per_s(self, dtype: DType | str | None = None, clock: str = ClockState.BURST) -> float:
        """Return the rate of all tensor cores, busy in every cycle, at the clock that they have under load.

        Raises:
            InvalidOptionError: `clock` is no `ClockState`.
            KeyError: the tensor cores do not take that type.
        """
        dtype = self.default_dtype if dtype is None else DType(dtype)
        return self._tflop_per_s(dtype, self.tensor_clock_ghz(dtype, clock))

    def _tflop_per_s(self, dtype: DType, clock_ghz: float) -> float:
        return tflop_per_s(self.flop_per_cycle(dtype) * self.num_sms * cycles_per_us(clock_ghz), 1.0)

    @property
    def max_warps_per_sm(self) -> int:
        """Warps that an SM can hold."""
        return self.max_threads_per_sm // self.threads_per_warp

    @property
    def dram_achievable_gb_per_s(self) -> float:
        """Bandwidth that a large read reaches."""
        return self.dram_gb_per_s * self.dram_efficiency_frac

    @property
    def l2_gb_per_s(self) -> float:
        """L2 read bandwidth at the highest clock."""
        return self.l2_bytes_per_cycle * self.max_clock_ghz


# How an SM hands out registers and shared memory: CUDA occupancy calculator.
_REGISTER_ALLOC_PER_WARP = 256
_SMEM_UNIT_BYTES = 128
_SM_QUARTERS = 4  # each has its own registers, and a warp lives in one

# A cluster lies within one graphics processing cluster. Those of 18 SMs leave 2 without a cluster of 4: cuBLAS's
# persistent grids on an H200 have 132 CTAs in clusters of 2, and 120 in those of 4 and 8. Of our own kernels there, 102
# CTAs in clusters of 3 or 6 always ran at once, 108 and 114 now and then, and 120 took two waves.
_FREE_CLUSTER = 2
_LARGE_CLUSTER_SMS = (10, 11)
_ODD_CLUSTER_SMS = (17, 22)  # of a size that is no power of 2


class DeviceLimits(NamedTuple):
    """Limits of a GPU that decide whether a kernel can run, and how many of its CTAs at once.

    Attributes:
        compute_capability: (9, 0) for Hopper.
        num_sms: SMs of the chip.
        smem_per_cta_bytes, smem_per_sm_bytes, smem_reserved_bytes: shared memory; the last is taken from each CTA.
        registers_per_sm: of 32 bits.
        max_threads_per_sm, max_ctas_per_sm: scheduler limits.
        threads_per_warp, register_alloc_per_warp: as in `GpuSpec`.
    """

    compute_capability: tuple[int, int]
    num_sms: int
    smem_per_cta_bytes: int
    smem_per_sm_bytes: int
    smem_reserved_bytes: int
    registers_per_sm: int
    max_threads_per_sm: int
    max_ctas_per_sm: int
    threads_per_warp: int = THREADS_PER_WARP
    register_alloc_per_warp: int = _REGISTER_ALLOC_PER_WARP


class Occupancy(NamedTuple):
    """CTAs of a kernel that an SM holds at once, and the resources that they take.

    Attributes:
        ctas_per_sm: 0 if not even one fits.
        limited_by: what runs out first: "registers", "shared memory", "threads" or "CTAs".
        num_threads: of a CTA.
        registers: of a thread.
        smem_bytes: of a CTA, static and dynamic.
        spill_bytes: registers stored to local memory and loaded from it, of a thread.
    """

    ctas_per_sm: int
    limited_by: str
    num_threads: int
    registers: int
    smem_bytes: int
    spill_bytes: int


def limits_of_spec(arch: GpuSpec) -> DeviceLimits:
    """Return the limits of an NVIDIA GPU that a spec describes.

    Raises:
        InvalidOptionError: `arch` is no such spec.
        UnsupportedError: it is of another maker.
    """
    if not isinstance(arch, GpuSpec):
        raise InvalidOptionError(f"arch must be a GpuSpec, got {shown(arch)}")
    if arch.sm_arch not in SM_ARCHS:
        raise UnsupportedError(f"CUDA kernels need an NVIDIA GPU, {arch.name} is {arch.sm_arch}")
    capability = divmod(int(arch.sm_arch.removeprefix("sm_")), 10)
    return DeviceLimits(capability, *(getattr(arch, name) for name in DeviceLimits._fields[1:8]))


def ctas_by_resource(
    limits: DeviceLimits | GpuSpec, num_threads: int, registers: int, smem_bytes: int
) -> dict[str, int]:
    """Return how many CTAs the registers, shared memory, threads and CTA slots of an SM have room for.

    Args:
        limits: of the GPU.
        num_threads: of a CTA.
        registers: of a thread.
        smem_bytes: of a CTA, static and dynamic.
    """
    warps_of_quarter = limits.registers_per_sm // _SM_QUARTERS // _registers_of_warp(limits, registers)
    smem_taken = smem_taken_bytes(limits, smem_bytes)
    is_too_large = smem_bytes > limits.smem_per_cta_bytes
    return {
        "registers": warps_of_quarter * _SM_QUARTERS // -(-num_threads // limits.threads_per_warp),
        "shared memory": 0 if is_too_large else limits.smem_per_sm_bytes // max(1, smem_taken),
        "threads": limits.max_threads_per_sm // num_threads,
        "CTAs": limits.max_ctas_per_sm,
    }


def _registers_of_warp(limits: DeviceLimits | GpuSpec, registers: int) -> int:
    unit = limits.register_alloc_per_warp
    return -(-max(1, registers) * limits.threads_per_warp // unit) * unit


def least_registers_per_sm(limits: DeviceLimits | GpuSpec, num_threads: int, registers: int) -> int:
    """Return the registers that an SM must have for one CTA, whose warps lie in all quarters as evenly as can be."""
    warps_of_quarter = -(-num_threads // (limits.threads_per_warp * _SM_QUARTERS))
    return _SM_QUARTERS * warps_of_quarter * _registers_of_warp(limits, registers)


def smem_taken_bytes(limits: DeviceLimits | GpuSpec, smem_bytes: int) -> int:
    """Return what a CTA with so much shared memory takes of that of its SM."""
    return -(-(smem_bytes + limits.smem_reserved_bytes) // _SMEM_UNIT_BYTES) * _SMEM_UNIT_BYTES


def ctas_per_sm(limits: DeviceLimits | GpuSpec, num_threads: int, registers: int, smem_bytes: int) -> int:
    """Return how many CTAs an SM holds at once; arguments as for `ctas_by_resource`."""
    return min(ctas_by_resource(limits, num_threads, registers, smem_bytes).values())


def cluster_sms(num_sms: int, cluster_ctas: int) -> int:
    """Return the SMs, of `num_sms`, that CTAs in clusters of this size can lie on."""
    if cluster_ctas <= _FREE_CLUSTER:
        return num_sms
    part, whole = _ODD_CLUSTER_SMS if cluster_ctas & (cluster_ctas - 1) else _LARGE_CLUSTER_SMS
    return num_sms * part // whole


def occupancy_of_cta(
    num_threads: int, registers: int, smem_bytes: int, spill_bytes: int, limits: DeviceLimits
) -> Occupancy:
    """Return how many CTAs an SM holds at once; the arguments are the attributes of `Occupancy`."""
    rooms = ctas_by_resource(limits, num_threads, registers, smem_bytes)
    limited_by = min(rooms, key=rooms.__getitem__)
    return Occupancy(rooms[limited_by], limited_by, num_threads, registers, smem_bytes, spill_bytes)
