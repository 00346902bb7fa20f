# SPDX-License-Identifier: Apache-2.0
"""Where warnings of the core go: the logger `ejk`, which prints them unless it is told otherwise."""

import logging
import os

logger = logging.getLogger("ejk")
_said: set[object] = set()
_LONGEST_LINE = 1000  # as in C++


def warn(message: str) -> None:
    if os.environ.get("EJKERNEL_LOG") != "0":
        logger.warning("ejk: %s", _one_line(message))


def printable(text: str) -> str:
    """What documents of others say may be quoted: no control characters, no changes of direction."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _one_line(message: str) -> str:
    """At most so many bytes: of a longer message the beginning and the end, where the reason stands."""
    text = printable(message).encode()
    if len(text) <= _LONGEST_LINE:
        return text.decode()
    mark = f" ... [cut, {len(text)} bytes in all] ... "
    head = _LONGEST_LINE // 2
    tail = _LONGEST_LINE - head - len(mark)
    return text[:head].decode(errors="ignore") + mark + text[-tail:].decode(errors="ignore")


def warn_once(subject: object, message: str) -> None:
    if subject not in _said:
        _said.add(subject)
        warn(message)
