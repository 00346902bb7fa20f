# SPDX-License-Identifier: Apache-2.0
"""What tests of calls begin with: a kernel with one config, and an executor that does not tune."""

from ejk.ops import AutotunePolicy, ConfigCache, ConfigSelectorChain, Executor, Kernel


class OneConfig(Kernel):
    def heuristic_cfg(self, inv):
        return 1


def without_tuning():
    # No scope: inside of one no call is warm.
    policy = AutotunePolicy(allow_autotune=False, cache_miss_fallback="heuristics")
    return Executor(ConfigSelectorChain(ConfigCache(), policy=policy))
