# SPDX-License-Identifier: Apache-2.0
"""`import ejk.under_ejkernel` before `import ejkernel` puts `ejk.ops` in the place of `ejkernel.ops`.

Modules, kernels and types of an installed ejkernel stay its own. EJK_UNDER_EJKERNEL=1 in the environment does the same
in every Python process of an environment that this package is installed in.
"""

import sys

from ejk._alias import Alias


def _put_under() -> None:
    present = sys.modules.get("ejkernel.ops")
    if present is not None and present is not sys.modules.get("ejk.ops"):
        raise ImportError(
            "[under_ejkernel] ejkernel.ops is imported already; expected it not to be; "
            "import ejk.under_ejkernel before ejkernel, or set EJK_UNDER_EJKERNEL=1"
        )
    sys.meta_path.insert(0, Alias("ejkernel.ops", "ejk.ops"))  # before the finder of files, which has the original's


_put_under()
