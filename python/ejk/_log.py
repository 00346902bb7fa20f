# SPDX-License-Identifier: Apache-2.0
"""Where warnings of the core go: the logger `ejk`, which prints them unless it is told otherwise."""

import logging
import os

logger = logging.getLogger("ejk")
_said = set()


def warn(message: str) -> None:
    if os.environ.get("EJKERNEL_LOG") != "0":
        logger.warning("ejk: %s", _one_line(message))


def printable(text: str) -> str:
    """What documents of others say may be quoted: no control characters, no changes of direction."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _one_line(message: str) -> str:
    return printable(message)[:1000]


def warn_once(subject, message: str) -> None:
    if subject not in _said:
        _said.add(subject)
        warn(message)
