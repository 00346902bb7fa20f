# SPDX-License-Identifier: Apache-2.0
"""Labels: which calls a lowered computation holds."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import typing

from ejk import _core, _jax

_F = typing.TypeVar("_F", bound=typing.Callable[..., typing.Any])

#: What the labels of this package begin with.
LABEL_PREFIXES = ("ejkernel_ops#",)
#: A label: the groups `op`, with its version, and `key`.
LABEL_RE = re.compile(r"ejkernel_ops#(?P<op>.+?@v[0-9A-Za-z_.-]+):(?P<key>[0-9a-f]{16})")


@typing.overload
def label(op_id: str, call_hash: None = None, prefix: str | None = None) -> typing.Callable[[_F], _F]: ...
@typing.overload
def label(op_id: str, call_hash: str, prefix: str | None = None) -> str: ...
def label(op_id: str, call_hash: str | None = None, prefix: str | None = None) -> typing.Any:
    """The label of a call, "PREFIX#OP:KEY"; with a name alone a decorator.

    `@label("attention")` marks what a function computes: its label, with a key made of the arguments,
    is found by `find_labels_in_lowered`.
    """
    if call_hash is None:
        return functools.partial(_labelled, op_id, prefix)
    return f"{prefix or os.getenv('EJKERNEL_OPS_PREFIX') or 'ejkernel_ops#'}{op_id}:{call_hash}"


def _labelled(name: str, prefix: str | None, function: _F) -> _F:
    @functools.wraps(function)
    def run(*args: typing.Any, **kwargs: typing.Any) -> typing.Any:
        from ejk.ops.core.kernel import Invocation

        op = name if "@v" in name else f"{name}@v0"
        text = label(op, Invocation(op_id=name, args=args, kwargs=kwargs).call_key, prefix)
        with stamped(text):
            return function(*args, **kwargs)

    return typing.cast(_F, run)


@contextlib.contextmanager
def stamped(text: str) -> typing.Iterator[None]:
    """What is traced inside carries the label: as an attribute, which every form of a computation keeps,
    and as a scope name for profilers."""
    jax = _jax.loaded()
    if jax is None:
        yield
        return
    from jax.experimental.xla_metadata import set_xla_metadata

    labelled = set_xla_metadata(**{_core.label_attribute: text})  # type: ignore[no-untyped-call]
    with jax.named_scope(_core.scope_label(text)), labelled:
        yield


def extract_labels_from_hlo_text(hlo_text: str) -> list[str]:
    """Every label in a text, as often as instructions carry it."""
    return [text for text, _, _, count in _core.find_labels(hlo_text) for _ in range(count)]


def find_labels_in_lowered(lowered: typing.Any) -> list[str]:
    """The labels in a computation, each once: lowered, compiled or exported, its IR, a text or bytes."""
    return [text for text, _, _, _ in _core.find_labels(_text_of(lowered))]


def _text_of(lowered: typing.Any) -> str | bytes:
    if isinstance(lowered, (str, bytes)):
        return lowered
    for method in ("as_text", "mlir_module", "as_hlo_text"):
        if hasattr(lowered, method):
            text: str | bytes = getattr(lowered, method)()
            return text
    if hasattr(lowered, "operation"):  # a module of MLIR, as lowered.compiler_ir() gives it
        return str(lowered)
    raise TypeError(
        f"[labels] got a {type(lowered).__name__}; expected a lowered, compiled or exported computation, "
        "its text or its bytes"
    )


def labels_to_configs(lowered: typing.Any, selector: typing.Any = None) -> list[tuple[str, typing.Any]]:
    """(label, config) of every label; the config that `selector` holds, None if it holds none.

    Takes a computation or a list of labels. Without a selector the default executor's is asked.
    """
    from ejk.ops.utils.fingerprint import device_fingerprint

    if selector is None:
        from ejk.ops.execution.executor import default_executor

        selector = default_executor().chooser
    labels = list(lowered) if isinstance(lowered, (list, tuple, set)) else find_labels_in_lowered(lowered)
    device = device_fingerprint()
    found = []
    for text in labels:
        parts = _core.parse_label(text)
        if parts is None:
            continue
        config = selector.cache.get(device, parts[1], parts[2])
        if config is None and selector.persistent is not None:
            config = selector.persistent.get(device, parts[1], parts[2])
        found.append((text, config))
    return found


__all__ = [
    "LABEL_PREFIXES",
    "LABEL_RE",
    "extract_labels_from_hlo_text",
    "find_labels_in_lowered",
    "label",
    "labels_to_configs",
]
