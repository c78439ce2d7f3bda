"""verl on a CPU, for tests: it has engines for GPUs only.

Loaded by verl itself through VERL_USE_EXTERNAL_MODULES, in every process. Upstream reasons, and when each part can go:

* `CpuPlatform`: verl 0.9.1 has platforms for CUDA, ROCm and Ascend. Registered through verl's own registry; goes when verl has one.
* VERL_ENGINE_DEVICE=cuda, verl's own variable, finds its FSDP engine, which is registered for "cuda" and "npu" alone and computes on
  any device. Goes with the platform.
* the process group is made beforehand: verl asks torch for "cpu:gloo,cpu:gloo", which torch refuses ("Duplicate device type"). Goes when
  verl names a device once.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from verl.plugin.platform.platform_base import PlatformBase
from verl.plugin.platform.platform_manager import PlatformRegistry


@PlatformRegistry.register("cpu")
class CpuPlatform(PlatformBase):  # type: ignore[misc]  # verl publishes no types
    """The processor as the only device."""

    device_name = "cpu"
    vendor_name = "cpu"

    @property
    def device_module(self) -> Any:
        return _DEVICE

    def is_available(self) -> bool:
        return True

    def current_device(self) -> Any:
        return torch.device("cpu")

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None: ...
    def synchronize(self, device_index: int | None = None) -> None: ...
    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None: ...
    def empty_cache(self) -> None: ...
    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    def nvtx_range(self, msg: str) -> Any:
        return nullcontext()

    def profiler_start(self) -> None: ...
    def profiler_stop(self) -> None: ...
    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> Any:
        return None


class _Device(ModuleType):
    """What verl asks of torch.cuda."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(torch.cpu, name, lambda *_, **__: 0)


_DEVICE = _Device("cpu_device")
_DEVICE.current_device = lambda: torch.device("cpu")  # type: ignore[attr-defined]
_DEVICE.get_device_properties = lambda *_: SimpleNamespace(total_memory=0)  # type: ignore[attr-defined]
_DEVICE.mem_get_info = lambda *_: (0, 0)  # type: ignore[attr-defined]


if os.environ.get("WG_BACKEND") == "ray":  # a worker of verl's on Ray
    torch.distributed.init_process_group(
        "cpu:gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"])
    )
