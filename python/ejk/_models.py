# SPDX-License-Identifier: Apache-2.0
"""Devices that JAX can compile for without having them, by the names of their models."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from ejk import _jax


class _Gpu(NamedTuple):
    """What XLA's compiler wants to know of a GPU, beside what all of these have in common."""

    kind: str
    capability: tuple[int, int]
    cores: int
    shared_memory: int  # of a core; a block may have 1024 bytes less
    bandwidth: int
    cache: int
    gigahertz: float
    memory: int

    def described(self) -> str:
        """As text of XLA's GpuTargetConfigProto."""
        major, minor = self.capability
        info = {
            "threads_per_block_limit": 1024,
            "threads_per_warp": 32,
            "shared_memory_per_block": 48 << 10,
            "shared_memory_per_block_optin": self.shared_memory - 1024,
            "shared_memory_per_core": self.shared_memory,
            "threads_per_core_limit": 2048,
            "core_count": self.cores,
            "fpus_per_core": 128 if major >= 9 else 64,
            "block_dim_limit_x": 2**31 - 1,
            "block_dim_limit_y": 65535,
            "block_dim_limit_z": 65535,
            "thread_dim_limit_x": 1024,
            "thread_dim_limit_y": 1024,
            "thread_dim_limit_z": 64,
            "memory_bandwidth": self.bandwidth,
            "l2_cache_size": self.cache,
            "clock_rate_ghz": self.gigahertz,
            "device_memory_size": self.memory,
            "registers_per_core_limit": 65536,
            "registers_per_block_limit": 65536,
        }
        toolkit = ("driver_version", "runtime_version", "compile_time_toolkit_version")
        lines = [f"{name}: {value}" for name, value in info.items()]
        lines += [f"cuda_compute_capability {{ major: {major} minor: {minor} }}"]
        lines += ['device_vendor: "NVIDIA Corporation"', f'name: "{self.kind}"', 'dnn_version: "9.10.0"']
        lines += [f'{name}: "13.0.0"' for name in toolkit]
        return "\n".join(
            ["gpu_device_info {", *lines, "}", 'platform_name: "CUDA"', f'device_description_str: "{self.kind}"']
            + ["dnn_version_info { major: 9 minor: 10 }", "runtime_version { major: 13 }"]
        )


_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
_GPUS = {
    "A100": _Gpu("NVIDIA A100-SXM4-80GB", (8, 0), 108, 164 * _KIB, 2_039 * 10**9, 40 * _MIB, 1.41, 80 * _GIB),
    "H100": _Gpu("NVIDIA H100 80GB HBM3", (9, 0), 132, 228 * _KIB, 3_352 * 10**9, 50 * _MIB, 1.98, 80 * _GIB),
    "B200": _Gpu("NVIDIA B200", (10, 0), 148, 228 * _KIB, 8_000 * 10**9, 126 * _MIB, 1.965, 180 * _GIB),
}
_TPUS = {  # the kind of device, and a small topology of such
    "v4": ("TPU v4", "v4:2x2x1"),
    "v5e": ("TPU v5 lite", "v5e:2x2"),
    "v5p": ("TPU v5", "v5p:2x2x1"),
    "v6e": ("TPU v6 lite", "v6e:2x2"),
}
MODELS = (*_GPUS, *_TPUS)


def model_named(name: str) -> str | None:
    """The model of this name or kind: "H100", "v5e", "TPU v5 lite"."""
    kinds = {gpu.kind: model for model, gpu in _GPUS.items()} | {kind: model for model, (kind, _) in _TPUS.items()}
    by_name = {known.lower(): model for known, model in (kinds | {model: model for model in MODELS}).items()}
    return by_name.get(name.lower())


def device_of(model: str) -> Any:
    """A device of this model to compile for, with JAX's plugin for it. Raises RuntimeError if there is none."""
    if model in _GPUS:
        return _of_gpu(model)
    _expect(model, {"libtpu": "libtpu"}, "tpu")
    return _of_topology("tpu", topology_name=_TPUS[model][1])


_CUDA = "jax_plugins.xla_cuda13"


def _of_gpu(model: str) -> Any:
    _expect(model, {"jax_cuda13_plugin": "jax-cuda13-plugin", _CUDA: "jax-cuda13-pjrt"}, "cuda13-local")
    topology = {"target_config": _GPUS[model].described(), "topology": "1x1x1"}
    try:
        return _of_topology("cuda", **topology)
    except NotImplementedError:  # JAX has begun without it, because there is no GPU
        with _without_devices():
            importlib.import_module(_CUDA).initialize()
        return _of_topology("cuda", **topology)


def _expect(model: str, packages: dict[str, str], extra: str) -> None:
    """Packages by their modules; the extra of JAX installs them in the version that belongs to it."""
    if not all(map(_is_installed, packages)):
        raise RuntimeError(
            f"[for_device] got {model!r}, for which JAX needs a plugin to compile; expected "
            f"{' and '.join(packages.values())}, in the version that belongs to it; "
            f'pip install "jax[{extra}]=={_jax.required().__version__}"'
        )


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # not even what it is a part of
        return False


def _of_topology(platform: str, **topology: str) -> Any:
    _jax.required()
    from jax.experimental import topologies

    with _without_devices():
        return topologies.get_topology_desc(platform=platform, **topology).devices[0]


_OF_PLUGINS = {
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # else JAX begins without its plugin where there is no driver
    "TPU_SKIP_MDS_QUERY": "1",  # else libtpu asks the network which machine this is, and waits for minutes
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",  # what it would have been told
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # any number of processes may compile
}


@contextlib.contextmanager
def _without_devices() -> Iterator[None]:
    """Inside, plugins are loaded without a look for the GPU or TPU of this machine."""
    added = {name: value for name, value in _OF_PLUGINS.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
