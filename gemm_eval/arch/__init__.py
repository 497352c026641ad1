"""Architecture specs: frozen models, loaded from YAML by name or path."""

from typing import TYPE_CHECKING

from gemm_eval.lazy import lazy_names

if TYPE_CHECKING:
    from gemm_eval.arch.common import (
        MEASURED_L2_STATES,
        ClockState,
        Frozen,
        L2State,
        Provenance,
        ProvenanceKind,
        Published,
        Table,
        read_value,
        read_yaml,
        with_entry,
    )
    from gemm_eval.arch.gpu import (
        GFX_ARCHS,
        LINKS,
        PCIE_BOXES,
        SM_ARCHS,
        THREADS_PER_WARP,
        TWO_SOCKETS,
        DeviceLimits,
        GpuSpec,
        Interconnect,
        Network,
        Occupancy,
        check_carried,
        check_nvidia,
        cluster_sms,
        ctas_per_sm,
        gpu_slug,
        ladder_of,
        least_registers_per_sm,
        limits_of_spec,
        occupancy_of_cta,
        smem_taken_bytes,
    )
    from gemm_eval.arch.loader import (
        ArchSpec,
        CheckFinding,
        build_spec,
        check_arch,
        list_archs,
        load_arch,
        split_provenance,
    )
    from gemm_eval.arch.multicore import (
        MAX_CORES,
        ChipLink,
        LibraryPath,
        LibraryRules,
        MulticoreCalibration,
        MulticoreErrors,
        MulticoreSpec,
        calibration_file,
        held_out_p90_frac,
        place_values,
    )
    from gemm_eval.arch.paths import data_root, preset_files

__all__ = [
    "GFX_ARCHS", "LINKS", "MAX_CORES", "MEASURED_L2_STATES", "PCIE_BOXES", "SM_ARCHS", "THREADS_PER_WARP",
    "TWO_SOCKETS", "ArchSpec", "CheckFinding", "ChipLink", "ClockState", "DeviceLimits", "Frozen", "GpuSpec",
    "Interconnect", "L2State", "LibraryPath", "LibraryRules", "MulticoreCalibration", "MulticoreErrors",
    "MulticoreSpec", "Network", "Occupancy", "Provenance", "ProvenanceKind", "Published", "Table", "build_spec",
    "calibration_file", "check_arch", "check_carried", "check_nvidia", "cluster_sms", "ctas_per_sm", "data_root",
    "gpu_slug", "held_out_p90_frac", "ladder_of", "least_registers_per_sm", "limits_of_spec", "list_archs", "load_arch",
    "occupancy_of_cta", "place_values", "preset_files", "read_value", "read_yaml", "smem_taken_bytes",
    "split_provenance", "with_entry",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__)
