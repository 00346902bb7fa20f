# SPDX-License-Identifier: Apache-2.0
"""Where a call runs: the kind and model of device that its hooks, its key and stores depend on.

The scope `for_device` says it; else the arrays that are committed to a device; else the call around it,
`jax.default_device`, and JAX's first device.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterable, Iterator
from typing import Any

from ejk import _core, _jax, _scopes

_KINDS = {"cuda": "gpu", "rocm": "gpu"}
_WAYS = {"gpu": "triton", "tpu": "pallas"}


class Site:
    """A model of device. Of each that can run here there is one object."""

    def __init__(
        self, kind: str, name: str, device: Any, core: _core.Device, can_run: bool, lowered_as: str = ""
    ) -> None:
        self.kind = kind  # "cpu", "gpu", "tpu"
        self.name = name  # as messages call it
        self.device = device  # one of JAX's; None if only a platform is known
        self.core = core
        self.can_run = can_run  # False: it can only be compiled for
        self.lowered_as = lowered_as  # without a device: JAX's name of the platform

    @property
    def platform(self) -> str:
        """How kernels are written for it: "triton", "pallas" or "xla"."""
        return _WAYS.get(self.kind, "xla")

    def is_like(self, other: Site) -> bool:
        """Whether the same configs are for both."""
        return self is other or self.core.fingerprint == other.core.fingerprint

    def __repr__(self) -> str:
        return f"Site({self.core.fingerprint!r})"


# ---- sites of devices ----------------------------------------------------------------------------

_known: dict[Any, Site] = {}  # of devices that can run; JAX keeps these as long as the process lives
_without_jax: list[Site] = []
_only: list[Site | None] = []


def site_of(device: Any) -> Site:
    """The site of a device of JAX, which may be one to compile for only."""
    found = _known.get(device)
    if found is None:
        found = _made(device)
        if found.can_run:
            same = [known for known in list(_known.values()) if known.is_like(found)]
            found = _known[device] = same[0] if same else found
    return found


def of_platform(platform: str) -> Site:
    """The site of a platform: that of its first device, else one of which nothing else is known."""
    kind, device = _KINDS.get(platform, platform), _first_device(platform)
    if device is not None:
        return site_of(device)
    if kind == "cpu":
        return _cpu_without_jax()
    core = _core.make_device(f"{kind}|any", {"kind": kind}, _environment())
    return Site(kind, kind, None, core, can_run=False, lowered_as="cuda" if platform == "gpu" else platform)


def _made(device: Any) -> Site:
    kind, model, more = described(device)
    if kind == "cpu":
        core = _core.cpu_device(_environment())
    else:
        version = str(getattr(device.client, "platform_version", ""))
        identity = {"kind": kind, "model": model, **more}
        core = _core.make_device(f"{kind}|{model}", identity, _environment() | {"platform_version": version})
    return Site(kind, model, device, core, can_run=_is_here(device))


def described(device: Any) -> tuple[str, str, dict[str, Any]]:
    """Kind and model of a device, and what else configs depend on."""
    platform = device.platform.lower()
    found = {name: getattr(device, name, None) for name in ("compute_capability", "core_count", "num_cores")}
    more = {name: value for name, value in found.items() if value is not None}
    return _KINDS.get(platform, platform), str(getattr(device, "device_kind", platform)), more


def _environment() -> dict[str, Any]:
    jax = _jax.loaded()
    return {} if jax is None else {"jax": jax.__version__}


def _is_here(device: Any) -> bool:
    """Whether it is one of JAX's own devices, and not one of a topology."""
    try:
        return device in _jax.required().devices(device.platform)
    except RuntimeError:  # there is no such platform
        return False


def _first_device(platform: str) -> Any:
    if not _jax.available():
        return None
    try:
        return _jax.required().devices(platform)[0]
    except RuntimeError:
        return None


def _cpu_without_jax() -> Site:
    if not _without_jax:
        _without_jax.append(Site("cpu", "cpu", None, _core.cpu_device({}), can_run=True))
    return _without_jax[0]


def the_only_one() -> Site | None:
    """The site of all arrays that there can be in this process; None if its devices are of several kinds."""
    if not _only:
        from jax.extend.backend import backends

        sites = {site_of(device) for client in backends().values() for device in client.devices()}
        _only.append(sites.pop() if len(sites) == 1 else None)
    return _only[0]


# ---- sites of calls ------------------------------------------------------------------------------

_running: contextvars.ContextVar[Site | None] = contextvars.ContextVar("ejk_site", default=None)


def scoped() -> Site | None:
    """What the innermost `for_device` says."""
    return next((s.what for s in reversed(_scopes.current.get()) if isinstance(s.what, Site)), None)


def current() -> Site:
    """Of a call that has no arrays."""
    return scoped() or _running.get() or of_default_device()


def of_default_device() -> Site:
    """Where JAX computes with what is committed to no device."""
    jax = _jax.loaded()
    if jax is None:
        return _cpu_without_jax()
    default = jax.config.jax_default_device
    if isinstance(default, str):
        default = jax.devices(default)[0]
    return site_of(jax.devices()[0] if default is None else default)


def of_arrays(arrays: Iterable[Any]) -> Site | None:
    """Where arrays are committed to be, None if they are not, or are not known yet. Raises ValueError if that is in
    several kinds of places."""
    if _jax.loaded() is None:
        return None
    found: list[Site] = []
    for array in arrays:
        device = _committed_to(array)
        site = None if device is None else site_of(device)
        if site is not None and not any(map(site.is_like, found)):
            found.append(site)
    if len(found) > 1:
        names = " and on ".join(site.name for site in found)
        raise ValueError(f"got arrays on {names}; expected all on one kind of device; move them with jax.device_put")
    return found[0] if found else None


def _committed_to(array: Any) -> Any:
    """A device; None if JAX may put the array, or one like it, anywhere."""
    array = _jax.concrete(array)
    sharding = getattr(array, "sharding", None)
    if sharding is None or not getattr(array, "committed", True):
        return None
    devices = getattr(sharding, "device_set", ())
    return min(devices, key=lambda device: device.id) if devices else None


def where(*arrays: Any) -> Site:
    """Of a call with these arrays under no scope, as warm calls are."""
    return of_arrays(arrays) or _running.get() or of_default_device()


def for_arrays(*arrays: Any) -> Site:
    """Of a call with these arrays."""
    return scoped() or where(*arrays)


@contextlib.contextmanager
def running_at(site: Site) -> Iterator[None]:
    """Inside, a call's hooks and methods run: what they ask and call is for the same site."""
    before = _running.set(site)
    try:
        yield
    finally:
        _running.reset(before)


class for_device:
    """While it is entered, calls are for this device: hooks, keys and stored configs are those of its model.

    For functions that are traced to be compiled for a device, and for offline work. Takes a device of JAX, one of
    `jax.experimental.topologies` too, a platform ("cpu", "gpu", "cuda", "rocm", "tpu"), or a model that can be
    compiled for ("A100", "H100", "B200", "v4", "v5e", "v5p", "v6e"). Functions that are jitted already are traced
    again inside, and as they were outside. What is not in this machine is never tuned for: stored configs and
    heuristics answer. Arrays elsewhere cannot be computed with inside.
    """

    def __init__(self, device: Any) -> None:
        self.site = _named(device) if isinstance(device, str) else _checked(device)
        self._scope = _scopes.Scope(
            self.site, is_for_selectors=False, token=lambda: ("for_device", self.site.core.fingerprint)
        )

    def __enter__(self) -> for_device:
        self._scope.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self._scope.__exit__(*exc)


_PLATFORMS = ("cpu", "gpu", "cuda", "rocm", "tpu")


def _named(name: str) -> Site:
    if name.lower() in _PLATFORMS:
        return of_platform(name.lower())
    from ejk._models import MODELS, device_of, model_named

    model = model_named(name)
    if model is None:
        raise ValueError(
            f"[for_device] got {name!r}; expected a platform ({', '.join(_PLATFORMS)}), {', '.join(MODELS)}, or the kind "
            "of such a device; pass one of these"
        )
    return site_of(device_of(model))


def _checked(device: Any) -> Site:
    if not (hasattr(device, "platform") and hasattr(device, "device_kind")):
        raise TypeError(
            f"[for_device] got {device!r}; expected a device of JAX, or the name of a platform or of a model; pass one, "
            "as jax.devices()[0]"
        )
    return site_of(device)
