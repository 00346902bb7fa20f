# SPDX-License-Identifier: Apache-2.0
"""What is needed of JAX, which is imported only when a call or a question brings it in."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any

_scopes_in_traces: dict[str, Any] = {}  # "context": what tells JAX of our scopes


def loaded() -> Any:
    """The module jax if the program has imported it, else None."""
    return sys.modules.get("jax")


def required() -> Any:
    try:
        import jax
    except ImportError as error:
        raise ImportError("this needs JAX: pip install jax") from error
    return jax


def available() -> bool:
    if loaded() is not None:
        return True
    import importlib.util

    return importlib.util.find_spec("jax") is not None


def is_array(x: object) -> bool:
    jax = loaded()
    return jax is not None and isinstance(x, jax.Array)


def is_tracer(x: object) -> bool:
    jax = loaded()
    return jax is not None and isinstance(x, jax.core.Tracer)


def concrete(x: Any) -> Any:
    """What a tracer of jax.grad has outside of jax.jit, None if it is one that has no numbers; else the same."""
    return getattr(x, "to_concrete_value", lambda: None)() if is_tracer(x) else x


def is_numpy(x: object) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(x, numpy.ndarray)


def several_processes() -> bool:
    jax = loaded()
    return jax is not None and jax.process_count() > 1


def any_is_inside(threads: Iterable[int]) -> bool:
    """Whether one of these threads (of threading.get_ident) is in Python code of JAX."""
    jax = loaded()
    if jax is None:
        return False
    place, frames = jax.__path__[0], sys._current_frames()
    for frame in map(frames.get, threads):
        while frame is not None:
            if frame.f_code.co_filename.startswith(place):
                return True
            frame = frame.f_back
    return False


@contextlib.contextmanager
def outside_of_any_trace() -> Iterator[None]:
    """Inside, functions of JAX compute at once, even while another function is being traced."""
    jax = loaded()
    if jax is None:
        yield
        return
    with contextlib.ExitStack() as stack:
        stack.enter_context(jax.core.eval_context())
        if hasattr(jax.sharding, "use_abstract_mesh") and hasattr(jax.sharding, "AbstractMesh"):
            stack.enter_context(jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())))
        yield


def retrace_under(token: object) -> None:
    """From now on this thread's jitted functions are those traced under `token` (None: no overlay)."""
    if loaded() is None:
        if token is None or not available():
            return
        required()
    jax = loaded()
    context = _scopes_in_traces.get("context")
    if context is None:
        if token is None:
            return
        # Of two threads that make one the first one's is kept: with two, what is entered in one may be left in the other.
        context = _scopes_in_traces.setdefault("context", jax.make_user_context(None))
    # Entered for good: what is in force is set anew whenever it changes, so scopes may end in any order.
    context(token).__enter__()


def example_data(aval: Any, index: int) -> Any:
    """An array like `aval`: seeded normal floats, small whole numbers, both signs of a bool."""
    jax = required()
    import numpy

    jnp = jax.numpy
    dtype, shape = aval.dtype, tuple(int(d) for d in aval.shape)
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        flat = jax.random.split(jax.random.key(index, impl=_key_impl(dtype)), max(1, numpy.prod(shape, dtype=int)))
        return flat[: numpy.prod(shape, dtype=int)].reshape(shape)
    return jnp.asarray(example_numbers(dtype, shape, index))


def example_numbers(dtype: Any, shape: tuple[int, ...], index: int) -> Any:
    """The same as an array of NumPy."""
    import numpy

    random = numpy.random.default_rng(index)
    if dtype.kind == "c":
        data = random.standard_normal(shape) + 1j * random.standard_normal(shape)
    elif dtype.kind == "f" or dtype.name.startswith(("float", "bfloat")):  # those of JAX are not a kind
        data = random.standard_normal(shape, dtype=numpy.float32)
    elif dtype == numpy.bool_:
        data = random.random(shape) < 0.5
    else:
        # Zeros and ones are indices of anything that has two elements.
        data = random.integers(0, 2, shape)
    return numpy.asarray(data).astype(dtype)


def example_bytes(dtype: Any) -> int:
    """What an element of such an array takes while it is made: of 64 bits first, then of its own type."""
    return 40 if dtype.kind == "c" else max(dtype.itemsize, 8) + dtype.itemsize


def _key_impl(dtype: Any) -> str:
    return dtype.name[len("key<") : -1] if dtype.name != "key<fry>" else "threefry2x32"
