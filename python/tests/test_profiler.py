# SPDX-License-Identifier: Apache-2.0
"""Times of compiled functions: from planes made by hand, and from a trace of JAX."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from ejk.ops.execution.profiler import Profiler, ProfilingError


def event(name, begin, duration, module=None):
    stats = [("hlo_module", module)] if module else []
    return SimpleNamespace(name=name, start_ns=begin, duration_ns=duration, stats=stats)


def trace(*events, name="/host:CPU"):
    lines = [SimpleNamespace(name="line", events=[e]) for e in events]
    return SimpleNamespace(planes=[SimpleNamespace(name="/host:metadata", lines=[]), SimpleNamespace(name=name, lines=lines)])


TRACE = trace(
    event("dot", 10_000, 4_000, "jit_f"),
    event("sine", 12_000, 6_000, "jit_f"),
    event("sine", 30_000, 2_000, "jit_g"),
    event("tiny", 50_000, 10, "jit_g"),
    event("other", 60_000, 5_000, "eager"),
)


def test_planes_are_found_by_their_device():
    assert Profiler.find_device_plane_ids(TRACE, "cpu") == [1]
    with pytest.raises(ProfilingError, match=r"got device 'tpu'; expected one of \['/host:metadata', '/host:CPU'\]"):
        Profiler.find_device_plane_ids(TRACE, "tpu")


def test_overlapping_events_count_once():
    assert Profiler().get_events_from_plane(TRACE, 1) == pytest.approx({"jit_f": 8e-6, "jit_g": 2e-6})
    assert Profiler(prefix_filter="").get_events_from_plane(TRACE, 1).keys() == {"jit_f", "jit_g", "eager"}
    assert Profiler(event_filter_regex="^dot").get_events_from_plane(TRACE, 1) == pytest.approx({"jit_f": 4e-6})
    assert Profiler(max_events_per_profile=1).get_events_from_plane(TRACE, 1) == pytest.approx({"jit_f": 4e-6})


def test_a_file_that_is_not_a_trace_is_an_error():
    with pytest.raises(ProfilingError, match="got plane 2; expected 0 to 1"):
        Profiler().get_events_from_plane(TRACE, 2)
    with pytest.raises(ProfilingError, match="bytes that are no trace"):
        Profiler.parse_profile_from_bytes(b"\xff" * 9)
    with pytest.raises(ProfilingError, match="expected a regular expression"):
        Profiler(event_filter_regex="(")


def test_functions_with_a_number_are_timed_by_jax():
    def autotune_fn_3(x):
        return jnp.sin(x) @ x

    def not_one(x):
        return x @ x

    x = jnp.ones((200, 200))
    functions = [jax.jit(autotune_fn_3), jax.jit(not_one)]

    def closure():
        for function in functions:
            function(x).block_until_ready()

    closure()
    found = Profiler(min_duration_ns=0).profile_time_by_function_id(closure, "cpu", 3)
    assert list(found) == [3] and found[3][0] > 0 and found[3][1] == 0  # one of three is left
