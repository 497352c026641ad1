"""`Interconnect`: what joins the GPUs of one node, as far as messages between them need it."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field

from gemm_eval.arch.common import Frozen, Positive

__all__ = ["LINKS", "Interconnect"]

Link = Literal["nvlink2", "nvlink3", "nvlink4", "nvlink5", "pcie3", "pcie4", "pcie5"]
LINKS: tuple[str, ...] = get_args(Link)
"""Generations of links that specs know."""


class Interconnect(Frozen):
    """The link of a GPU to the others of its node. What libraries reach on it is not part of a spec."""

    link: Link = Field(description="generation: coefficients of collectives carry over within one")
    topology: Literal["switch", "mesh", "host"] = Field(
        description="switch: any two GPUs at full rate, at once; mesh: direct links between some; host: all traffic "
        "goes through the host's PCIe bridges and memory"
    )
    gb_per_s: Positive = Field(description="out of a GPU, one direction, all its links together, as published")
    num_gpus: Annotated[int, Field(ge=2, le=1024)] = Field(description="GPUs that it joins, at most")
    has_multicast: bool = Field(
        default=False, description="the switch copies stores and adds up loads (NVLink SHARP), so that NCCL's NVLS runs"
    )

    @property
    def is_nvlink(self) -> bool:
        """Whether GPUs read and write each other's memory without the host."""
        return self.link.startswith("nvlink")
