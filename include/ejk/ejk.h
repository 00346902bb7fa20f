// SPDX-License-Identifier: Apache-2.0
// The whole public interface.
#pragma once

#include <ejk/argument.h>
#include <ejk/autotune.h>
#include <ejk/batch.h>
#include <ejk/bucket.h>
#include <ejk/cache.h>
#include <ejk/candidates.h>
#include <ejk/compiled.h>
#include <ejk/config.h>
#include <ejk/device.h>
#include <ejk/error.h>
#include <ejk/executor.h>
#include <ejk/invocation.h>
#include <ejk/kernel.h>
#include <ejk/labels.h>
#include <ejk/names.h>
#include <ejk/offline.h>
#include <ejk/open_store.h>
#include <ejk/parallel.h>
#include <ejk/quarantine.h>
#include <ejk/record.h>
#include <ejk/registry.h>
#include <ejk/search.h>
#include <ejk/selector.h>
#include <ejk/space.h>
#include <ejk/stopwatch.h>
#include <ejk/store.h>
#include <ejk/tensor.h>
#include <ejk/tuner.h>
#include <ejk/value.h>
#include <ejk/version.h>
#include <ejk/worker.h>
