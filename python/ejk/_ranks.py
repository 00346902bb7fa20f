# SPDX-License-Identifier: Apache-2.0
"""JAX's coordination service as the place where the ranks of a run agree on configs.

It is there in every job of several JAX processes. Its client has no public name: what is used of it is checked.
"""

from __future__ import annotations

from typing import Any

from ejk import _jax

_PREFIX = "ejk/pins/"
_USED = ("key_value_set", "key_value_try_get", "key_value_dir_get")


class Service:
    """Numbered texts, each of which is written once."""

    where = "JAX's coordination service"

    def __init__(self, client: Any) -> None:
        self._client = client

    def add(self, number: int, text: str) -> bool:
        """False if there is one already."""
        try:
            self._client.key_value_set(_name(number), text)  # refused if it exists
        except Exception as error:
            if "ALREADY_EXISTS" in str(error):
                return False
            raise OSError(_away(error)) from error
        return True

    def texts_from(self, number: int) -> list[str]:
        """All from this number on, in their order."""
        try:
            if number == 0:
                return [text for _, text in sorted(self._client.key_value_dir_get(_PREFIX))]
        except Exception as error:
            raise OSError(_away(error)) from error
        texts: list[str] = []
        while (text := self._text(number + len(texts))) is not None:
            texts.append(text)
        return texts

    def _text(self, number: int) -> str | None:
        try:
            return str(self._client.key_value_try_get(_name(number)))
        except Exception as error:
            if "NOT_FOUND" in str(error):
                return None
            raise OSError(_away(error)) from error


def service() -> Service | None:
    """That of this job; None if this is not one of several JAX processes."""
    if not _jax.several_processes():
        return None
    client = _client()
    if client is None:  # jax.distributed.initialize was not called: all ranks use the store
        return None
    missing = [name for name in _USED if not hasattr(client, name)]
    if missing:
        raise RuntimeError(
            f"got JAX {_jax.required().__version__}, whose coordination service has no {', '.join(missing)}; expected "
            "them, to agree with the other processes on configs; use another version of JAX, or launch with a "
            "snapshot (ejk snapshot publish) and without EJKERNEL_PERSISTENT_CACHE_PIN"
        )
    return Service(client)


def _client() -> Any:
    try:
        from jax._src.distributed import global_state
    except ImportError:
        return object()  # it has moved: none of the names is there
    return getattr(global_state, "client", object())


def _name(number: int) -> str:
    return f"{_PREFIX}{number:08}"


def _away(error: Exception) -> str:
    return (
        f"got no answer of {Service.where}: {error}; expected it, because without it ranks could take different "
        "configs. Start the job again, or launch with a snapshot (ejk snapshot publish)"
    )
