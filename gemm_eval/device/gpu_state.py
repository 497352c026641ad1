"""What a GPU is and how it feels: name, driver, clocks, temperature, power, throttling."""

from __future__ import annotations

import platform
import subprocess
from datetime import UTC, datetime
from typing import Any

__all__ = ["describe_gpu", "read_gpu_state"]

_STATE_FIELDS = ("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw")
_REASON_FIELDS = ("clocks_event_reasons.active", "clocks_throttle_reasons.active")  # new and old name


def _query(fields: tuple[str, ...]) -> dict[str, str]:
    command = ["nvidia-smi", "-i", "0", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    values = done.stdout.strip().splitlines()[0].split(", ")
    return dict(zip(fields, values, strict=True))


def read_gpu_state() -> dict[str, str]:
    """Return clocks (MHz), temperature (C), power (W), throttle reasons (bits) and time; or the `error` met."""
    state = {"time": datetime.now(UTC).isoformat(timespec="seconds")}
    error = ""
    for reasons in _REASON_FIELDS:
        try:
            return state | _query((*_STATE_FIELDS, reasons))
        except (OSError, subprocess.SubprocessError, ValueError, IndexError) as caught:
            error = str(caught)
    return state | {"error": error}


def describe_gpu(runner: Any) -> dict[str, Any]:
    """Return what the runner's GPU and its software are; runners without CuPy have nothing to say."""
    cupy = getattr(runner, "cupy", None)
    if cupy is None:
        return {}
    try:
        fixed: dict[str, Any] = dict(_query(("driver_version", "clocks.max.sm", "clocks.max.mem", "power.limit")))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        fixed = {"nvidia_smi_error": str(error)}
    runtime = cupy.cuda.runtime
    return {
        "name": runner.gpu_name,
        "num_sms": runner.num_sms,
        "l2_bytes": runner.l2_bytes,
        **fixed,
        "cuda_runtime": runtime.runtimeGetVersion(),
        "cuda_driver_api": runtime.driverGetVersion(),
        "cupy": cupy.__version__,
        "python": platform.python_version(),
    }
