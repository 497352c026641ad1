"""`Interconnect`: what joins the GPUs of one node, as far as messages between them need it."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field

from gemm_eval.arch.common import Frozen, Positive
from gemm_eval.checks import check_word
from gemm_eval.errors import UnsupportedError

Link = Literal["nvlink2", "nvlink3", "nvlink4", "nvlink5", "pcie3", "pcie4", "pcie5"]
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


class Interconnect(Frozen):
    """The link of a GPU to the others of its node. What libraries reach on it is not part of a spec."""

    link: Link = Field(description="generation: coefficients of collectives carry over within one")
    topology: Literal["switch", "mesh", "pcie-one-socket", "pcie-two-sockets"] = Field(
        description="switch: any two GPUs at full rate, at once; mesh: direct links between some; pcie-one-socket: all "
        "GPUs behind the bridges or PCIe switches of one CPU; pcie-two-sockets: traffic also crosses two CPUs"
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
