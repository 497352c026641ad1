"""Serving engines as values: which kernels run, what is fused, and what the host takes beside the kernels.

An engine is data, ``arch/engines/<name>.yaml``, in which every number has its kind and source. What was fitted on
served models stands in ``arch/calibration/engines.yaml``, which `gemm-eval calibrate served` writes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from gemm_eval.arch import (
    GFX_ARCHS,
    SM_ARCHS,
    ArchSpec,
    ClockState,
    Frozen,
    GpuSpec,
    Provenance,
    Table,
    build_spec,
    data_root,
    preset_files,
    read_yaml,
    split_provenance,
)
from gemm_eval.dtypes import DType
from gemm_eval.errors import InvalidInputError, InvalidOptionError, UnsupportedError
from gemm_eval.models.gpu import ENGINES, LIBRARIES, OTHER_MAKER
from gemm_eval.models.gpu.attention import ATTENTION_LIBRARIES
from gemm_eval.models.gpu.collective import COLLECTIVE_LIBRARIES
from gemm_eval.transformer import CHUNK_TOKENS, MEMORY_FRAC, Fusions, MemoryShare
from gemm_eval.words import refusal, shown

Text = Annotated[str, Field(max_length=4000)]
HostTime = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Spread = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]

_IDEAL = "ideal"

HOST_TIMES = ("step_us", "seq_us", "request_us")
"""The fields of an engine that are fitted on served models."""


class Engine(Frozen):
    """A serving engine, in a version.

    `gemm_library` and `expert_libraries` name libraries of `gemm_eval.models.gpu.LIBRARIES`; types that a library has
    no kernels for run on the default. Of `expert_libraries` the first counts that has kernels for the types; a
    generation of SMs that it does not list has those of `gemm_eval.models.gpu.engine_libraries`.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="name in answers")]
    title: Text = Field(default="", description="the engine, on a line")
    version: Text = Field(default="", description="the release that its numbers are of")
    gemm_library: Text | None = Field(default=None, description="whose kernels run GEMMs; null: the default")
    attention_library: Text | None = Field(default=None, description="whose kernels run attention; null: the default")
    collective_library: Text | None = Field(default=None, description="library of collectives; null: the default")
    expert_libraries: Table[str, Annotated[tuple[Text, ...], Field(strict=False)]] = Field(
        default={}, description="generation of SMs -> whose kernels run experts, in the order in which they are tried"
    )
    wide_expert_libraries: Table[str, Annotated[tuple[Text, ...], Field(strict=False)]] = Field(
        default={}, description="the same instead where experts lie on more devices than a node of x86 servers has, 8"
    )
    fusions: Table[str, bool] = Field(default={}, description="fields of Fusions that differ from its defaults")
    writes_cache: bool = Field(default=True, description="attention turns positions and writes the cache in its call")
    clock: Annotated[ClockState, Field(strict=False)] = Field(default=ClockState.BURST, description="of GEMMs")
    gemm_frac: Table[str, Table[str, Annotated[float, Field(gt=0, le=4)]]] = Field(
        default={}, description="generation of SMs, type of A -> time of GEMMs over that of the kernels that were timed"
    )
    chunk_tokens: int = Field(default=CHUNK_TOKENS, ge=1, le=1 << 24, description="most tokens of prompts in a step")
    max_seqs: int = Field(default=1024, ge=1, le=1 << 24, description="most sequences in decode")
    has_mixed_steps: bool = Field(default=True, description="prompts share steps with decodes; else own steps, first")
    reserves_output: bool = Field(
        default=False, description="a request is admitted only with room for its whole output"
    )
    memory_frac: float = Field(default=MEMORY_FRAC, gt=0, le=1, description="share of a device's memory, by default")
    memory_of: Literal["device", "static", "free"] = Field(default="device", description="see `MemoryShare.of`")
    reserve_bytes: int = Field(default=0, ge=0, le=1 << 40, description="see `MemoryShare.reserve_bytes`")
    block_size: int = Field(default=1, ge=1, le=1 << 24, description="positions of a block of the cache")
    logit_bytes: int = Field(
        default=4, ge=1, le=1 << 10, description="of a logit while tokens are sampled, at the peak"
    )
    expert_multiples: Table[str, Table[str, Annotated[tuple[int, int], Field(strict=False)]]] = Field(
        default={}, description="generation of SMs, `WeightPart.types` -> multiples that experts are padded to"
    )
    sends_chunks: bool = Field(
        default=False, description="of pools: the cache of each chunk is sent when it is read; else all after the last"
    )
    on_amd: bool = Field(
        default=False, description="it also runs on AMD's GPUs, where its host times are those of NVIDIA's, less sure"
    )
    step_us: HostTime = Field(default=0.0, description="host time of a step that the GPU waits for")
    seq_us: HostTime = Field(default=0.0, description="the same for each sequence in it")
    request_us: HostTime = Field(default=0.0, description="time of a request before its first step: HTTP, tokens")
    tpot_spread: Spread = Field(default=0.0, description="half of the 80% interval of TPOT in log, beside the kernels'")
    ttft_spread: Spread = Field(default=0.0, description="the same of TTFT")
    sources: Table[str, Text] = Field(default={}, description="short name -> full reference")
    provenance: Table[str, Provenance] = Field(default={}, description="field -> kind and source")

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            Fusions(**self.fusions)
        except TypeError:
            unknown = [name for name in self.fusions if name not in Fusions.__slots__]
            raise ValueError(refusal("fusions", unknown[0], Fusions.__slots__)) from None
        names = [name for of in (*self.expert_libraries.values(), *self.wide_expert_libraries.values()) for name in of]
        for name in (*names, *filter(None, [self.gemm_library])):
            if name not in (*LIBRARIES, *ENGINES):
                raise ValueError(refusal("library", name, (*LIBRARIES, *ENGINES)))
        for field, known in (("attention", ATTENTION_LIBRARIES), ("collective", COLLECTIVE_LIBRARIES)):
            name = getattr(self, f"{field}_library")
            if name is not None and name not in known:
                raise ValueError(refusal(f"{field}_library", name, known))
        for word in (word for of in self.gemm_frac.values() for word in of):
            if word not in tuple(DType):
                raise ValueError(refusal("gemm_frac", word, tuple(map(str, DType))))
        return self

    def __str__(self) -> str:
        return f"{self.name} {self.version}".strip()

    def host_us(self, num_seqs: int) -> float:
        """Return the host time of a step of so many sequences that the GPU waits for, in microseconds."""
        return self.step_us + self.seq_us * num_seqs

    def memory_share(self, frac: float | None = None) -> MemoryShare:
        """Return the share of a device's memory that the engine fills; `frac` None: its own."""
        return MemoryShare(self.memory_frac if frac is None else frac, self.memory_of, self.reserve_bytes)

    def host_spread(self, arch: ArchSpec) -> float:
        """Return the factor from the host time of a step to both ends of its interval: 1 where it was fitted."""
        return math.exp(OTHER_MAKER) if isinstance(arch, GpuSpec) and arch.sm_arch in GFX_ARCHS else 1.0

    def check(self, arch: ArchSpec) -> None:
        """Raise `UnsupportedError` where an engine is asked for on an arch whose kernels it is not known by."""
        known = (*SM_ARCHS, *(GFX_ARCHS if self.on_amd else ()))
        if self.name != _IDEAL and not (isinstance(arch, GpuSpec) and arch.sm_arch in known):
            makers = "NVIDIA and AMD GPUs" if self.on_amd else "NVIDIA GPUs"
            raise UnsupportedError(
                f"engine {self.name} is known on {makers} alone, and {arch.name} is none: use engine={_IDEAL!r}"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, ready for JSON."""
        return self.model_dump(mode="json", exclude={"sources"})

    def explain(self) -> str:
        """Return sentences on what an answer for this engine rests on."""
        if self.name == _IDEAL:
            host = f"{self.step_us:,.0f} us of the host a step" if self.step_us else "no time of the host"
            return f"Engine: ideal, the sum of the kernels; {host}."
        host = f"{self.step_us:,.0f} us a step and {self.seq_us:,.1f} us a sequence of it"
        kind = self.provenance["step_us"].kind if "step_us" in self.provenance else "assumed"
        return (
            f"Engine: {self}; the GPU waits {host} for the host, a request {self.request_us / 1e3:,.1f} ms before its "
            f"first step ({kind}); clock of GEMMs {self.clock}."
        )


IDEAL = Engine(name=_IDEAL, title="the sum of the kernels, with the default libraries and no time of the host")
"""The engine that adds nothing to its kernels: default libraries, all fusions of `Fusions`, no host."""


def list_engines() -> tuple[str, ...]:
    """Return the names of the engines that come with the library, sorted."""
    return tuple(sorted((_IDEAL, *preset_files("engines"))))


def engine_calibration_path() -> Path:
    """Return where fitted numbers of engines lie."""
    return data_root() / "calibration" / "engines.yaml"


def load_engine(engine: Engine | str | os.PathLike[str]) -> Engine:
    """Return an engine by name or from a YAML file; an `Engine` is returned as it is.

    >>> load_engine("ideal").step_us
    0.0

    Raises:
        InvalidOptionError: no engine of this name.
        InvalidInputError: `engine` is something else.
        ArchError: the file is missing or malformed; the message names file and field.
    """
    if isinstance(engine, Engine):
        return engine
    if not isinstance(engine, str | os.PathLike):
        raise InvalidInputError(f"engine must be an Engine, its name or path, got {shown(engine)}")
    text = os.fspath(engine)
    if isinstance(engine, str) and not text.endswith((".yaml", ".yml")):
        if text not in list_engines():
            raise InvalidOptionError(refusal("engine", text, list_engines()))
        return IDEAL if text == _IDEAL else _load_preset(text, data_root())
    return _load(Path(text))


@cache
def _load_preset(name: str, root: Path) -> Engine:  # noqa: ARG001  another root has other presets
    return _load(preset_files("engines")[name], fitted_numbers().get(name, {}))


def fitted_numbers() -> Mapping[str, Mapping[str, Any]]:
    """Return the fitted numbers of engines by name, as entries with value, kind and source."""
    path = engine_calibration_path()
    engines: Mapping[str, Mapping[str, Any]] = read_yaml(path)["engines"] if path.is_file() else {}
    source = f"calibration/{path.name}: served models, `gemm-eval calibrate served`"
    return {
        name: {field: {"value": float(value), "kind": "fitted", "source": source} for field, value in fields.items()}
        for name, fields in engines.items()
    }


def _load(path: Path, fitted: Mapping[str, Any] | None = None) -> Engine:
    data = split_provenance({"name": path.stem} | read_yaml(path) | dict(fitted or {}), str(path))
    return build_spec(Engine, data, origin=str(path))


_SERVED_SMS = ("sm_90", "sm_100", "sm_103")


def default_engine(arch: ArchSpec) -> str:
    """Return the name of the engine that most served runs of a chip's generation were timed with, else vLLM.

    ``"ideal"`` on archs whose engines are not known.
    """
    if not (isinstance(arch, GpuSpec) and arch.sm_arch.startswith("sm_")):
        return _IDEAL
    return "trtllm" if arch.sm_arch in _SERVED_SMS else "vllm"
