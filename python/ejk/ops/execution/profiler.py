# SPDX-License-Identifier: Apache-2.0
"""Times of compiled functions from a trace of JAX's profiler."""

from __future__ import annotations

import pathlib
import re
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ejk import _jax

_FUNCTION = re.compile(r"jit_autotune_fn_(\d+)")


class ProfilingError(Exception):
    """A trace could not be made or read."""


class Profiler:
    """Seconds by compiled function, as JAX's profiler saw them.

    Functions count whose name begins with `prefix_filter`; of what they run, operations that take `min_duration_ns` at
    least and, with `event_filter_regex`, whose name it matches. The other options are taken for compatibility: no
    TensorFlow is needed.
    """

    def __init__(
        self,
        *,
        prefix_filter: str = "jit_",
        event_filter_regex: str | None = None,
        min_duration_ns: float = 1000.0,
        max_events_per_profile: int | None = 10000,
        verbose: bool = False,
        require_tf: bool = False,
        silence_tf_cpp_logs: bool = True,
    ) -> None:
        self.prefix_filter, self.event_filter_regex = prefix_filter, event_filter_regex
        self.min_duration_ns, self.max_events_per_profile = min_duration_ns, max_events_per_profile
        self.verbose, self.require_tf = verbose, require_tf
        try:
            self._wanted = re.compile(event_filter_regex or "")
        except re.error as error:
            raise ProfilingError(
                f"[Profiler] got event_filter_regex={event_filter_regex!r}; expected a regular expression ({error}); "
                "correct it"
            ) from None

    @staticmethod
    def parse_profile_from_bytes(profile_bytes: bytes) -> Any:
        """The trace that a file `*.xplane.pb` holds."""
        try:
            return _jax.required().profiler.ProfileData.from_serialized_xspace(profile_bytes)
        except Exception as error:
            raise ProfilingError(f"[Profiler] got {len(profile_bytes)} bytes that are no trace: {error}") from error

    @staticmethod
    def find_device_plane_ids(p: Any, device_str: str) -> list[int]:
        """The places of the planes whose name holds `device_str`, in any case."""
        names = [plane.name for plane in p.planes]
        found = [i for i, name in enumerate(names) if device_str.lower() in name.lower()]
        if not found:
            raise ProfilingError(f"[Profiler] got device {device_str!r}; expected one of {names}; pass one of these")
        return found

    def get_events_from_plane(self, p: Any, plane_idx: int) -> dict[str, float]:
        """{function: seconds that its operations cover}; what overlaps counts once."""
        planes = list(p.planes)
        if not 0 <= plane_idx < len(planes):
            raise ProfilingError(f"[Profiler] got plane {plane_idx}; expected 0 to {len(planes) - 1}; pass one of these")
        spans: dict[str, list[tuple[float, float]]] = {}
        for name, begin, end in self._events_of(planes[plane_idx]):
            spans.setdefault(name, []).append((begin, end))
        return {name: _covered(sorted(found)) / 1e9 for name, found in spans.items()}

    def _events_of(self, plane: Any) -> Iterator[tuple[str, float, float]]:
        count = 0
        for event in (event for line in plane.lines for event in line.events):
            if event.duration_ns < self.min_duration_ns:
                continue
            name = str(dict(event.stats).get("hlo_module", event.name))
            if not name.startswith(self.prefix_filter or "") or not self._wanted.search(event.name):
                continue
            if self.max_events_per_profile is not None and count >= self.max_events_per_profile:
                return
            count += 1
            yield name, event.start_ns, event.start_ns + event.duration_ns

    def profile_time_by_function_id(
        self, timing_closure: Callable[[], None], platform: str, total_calls_number: int
    ) -> dict[int, tuple[float, float]]:
        """{N: (mean, standard deviation)} in seconds of the functions autotune_fn_N that the closure runs.

        The closure runs `total_calls_number` times and must wait for its results; of three runs and more, the fastest and
        the slowest of a function do not count.
        """
        seconds: dict[int, list[float]] = {}
        for _ in range(total_calls_number):
            for number, taken in self._profiled_once(timing_closure, platform).items():
                seconds.setdefault(number, []).append(taken)
        counted = {number: sorted(taken)[1:-1] if len(taken) > 2 else taken for number, taken in seconds.items()}
        return {number: (statistics.fmean(taken), statistics.pstdev(taken)) for number, taken in counted.items()}

    def _profiled_once(self, closure: Callable[[], None], platform: str) -> dict[int, float]:
        jax = _jax.required()
        with tempfile.TemporaryDirectory() as folder:
            with jax.profiler.trace(folder):
                closure()
            files = sorted(pathlib.Path(folder).glob("**/*.xplane.pb"))
            if not files:
                raise ProfilingError("[Profiler] JAX's profiler wrote no trace")
            trace = self.parse_profile_from_bytes(files[-1].read_bytes())
        found: dict[int, float] = {}
        for plane in self.find_device_plane_ids(trace, platform):
            for name, seconds in self.get_events_from_plane(trace, plane).items():
                if match := _FUNCTION.match(name):
                    found[int(match[1])] = found.get(int(match[1]), 0.0) + seconds
        return found


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """The length of what spans, in order of their begin, cover."""
    covered, until = 0.0, float("-inf")
    for begin, end in spans:
        covered += max(0.0, end - max(begin, until))
        until = max(until, end)
    return covered


__all__ = ["Profiler", "ProfilingError"]
