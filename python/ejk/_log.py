# SPDX-License-Identifier: Apache-2.0
"""Where warnings of the core go: the logger `ejk`, which prints them unless it is told otherwise."""

import logging
import os

logger = logging.getLogger("ejk")
_said = set()


def warn(message: str) -> None:
    if os.environ.get("EJKERNEL_LOG") != "0":
        logger.warning("ejk: %s", message)


def warn_once(subject, message: str) -> None:
    if subject not in _said:
        _said.add(subject)
        warn(message)
