# SPDX-License-Identifier: Apache-2.0
"""A call computes what its arguments are now, whatever callables and objects among them have captured."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from captures import KINDS, OF_CLASSES, WAYS, Apply, WithGradient, X, array, is_same, plain
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernels import without_tuning


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_a_call_computes_what_its_arguments_are_now(data):
    executor = without_tuning()
    kind = data.draw(st.sampled_from(KINDS), "kind")
    kernel = data.draw(st.sampled_from([Apply, WithGradient]), "kernel")()
    make = data.draw(st.sampled_from([array, lambda value: np.full(3, value, np.float32), float]), "values")
    head, put = kind(make(1))
    for _ in range(data.draw(st.integers(2, 6), "calls")):
        if data.draw(st.booleans(), "changes"):
            put(make(data.draw(st.integers(-3, 3), "value")))
        if data.draw(st.booleans(), "made anew"):
            w = make(data.draw(st.integers(-3, 3), "first value"))
            head, put = kind(w)
        way = data.draw(st.sampled_from(sorted(WAYS)), "way")
        got = WAYS[way](lambda x: executor(kernel, x, head), X)
        assert is_same(got, WAYS[way](lambda x: plain(x, head), X)), (kind.__name__, way)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("way", WAYS)
def test_every_kind_of_capture_is_followed(executor, kind, way):
    kernel = Apply()
    head, put = kind(array(1))
    for value in (2, 3, 3, 5):
        put(array(value))
        for run in (way, "eager"):
            got = WAYS[run](lambda x: executor(kernel, x, head), X)
            assert is_same(got, WAYS[run](lambda x: plain(x, head), X)), run


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("of", [Apply, WithGradient])
def test_captured_tracers_work_in_any_number_of_traces(executor, kind, of):
    if of is WithGradient and kind in OF_CLASSES:
        pytest.skip("JAX refuses a gradient that closes over what is differentiated")
    kernel = of()
    head, put = kind(array(1))

    def loss(call):
        def of(w):
            put(w)
            return call(X, head).sum()

        return of

    ours, theirs = loss(lambda x, f: executor(kernel, x, f)), loss(plain)
    for value in (2, 3):
        for way in (jax.jit, jax.grad, lambda f: jax.jit(jax.grad(f)), lambda f: jax.vmap(f)):
            w = jnp.stack([array(value)] * 2) if way(abs).__name__ == "vmap" else array(value)
            assert is_same(way(ours)(w), way(theirs)(w))
        put(array(value))
        assert is_same(executor(kernel, X, head), plain(X, head))


class WithOneFunction(Apply):
    op_id = "apply_with_one_function"

    def custom_vjp(self, args, cfg, kwargs, cotangents):
        return jax.vjp(lambda x: self.run(x, *args[1:], cfg=cfg, **kwargs), args[0])[1](cotangents[0])[0], None


class OnlyForward(WithGradient):
    """JAX finds no gradient of it."""

    op_id = "only_forward"

    def run(self, x, f, *, cfg, g=None):
        return jax.pure_callback(np.asarray, jax.ShapeDtypeStruct(x.shape, x.dtype), f(x))

    def fwd_with_residuals(self, x, f, *, cfg, g=None):
        return self.run(x, f, cfg=cfg), jax.vjp(f, x)[1]


@pytest.mark.parametrize("of", [Apply, WithGradient, WithOneFunction])
def test_gradients_reach_what_functions_hold(executor, of):
    kernel, ws = of(), jnp.stack([array(2), array(3)])

    def layers(call):
        def step(carry, w):
            return call(carry, lambda v: jnp.tanh(v * w) + carry), None

        return lambda x, ws: jax.lax.scan(step, x, ws)[0].sum()

    ours, theirs = layers(lambda x, f: executor(kernel, x, f)), layers(plain)
    for of_which in (0, 1, (0, 1)):
        a, b = jax.grad(ours, of_which), jax.grad(theirs, of_which)
        xs = jnp.stack([X, X + 1])
        pairs = [(a(X, ws), b(X, ws)), (jax.jit(a)(X, ws), b(X, ws))]
        pairs.append(tuple(jax.vmap(f, (0, None))(xs, ws) for f in (a, b)))
        for got, want in pairs:
            assert all(map(is_same, jax.tree.leaves(got), jax.tree.leaves(want)))


def test_a_gradient_of_its_own_is_asked_for_no_more_than_is_needed(executor):
    kernel = OnlyForward()

    def loss(x, w):
        return executor(kernel, x, lambda v: v * w).sum()

    assert is_same(jax.jit(jax.grad(loss))(X, array(2)), array(2))
    with pytest.raises(ValueError, match="callbacks do not support"):
        jax.grad(loss, 1)(X, array(2))
