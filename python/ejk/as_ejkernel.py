# SPDX-License-Identifier: Apache-2.0
"""`import ejk.as_ejkernel` makes `import ejkernel` mean this package, where ejkernel is not installed."""

import importlib.util
import sys

from ejk._alias import Alias


def _installed() -> bool:
    try:
        return importlib.util.find_spec("ejkernel") is not None
    except (ImportError, ValueError):
        return False


if "ejkernel" not in sys.modules and not _installed():
    sys.meta_path.insert(0, Alias("ejkernel", "ejk"))  # before the finder of files, which would load a second copy
