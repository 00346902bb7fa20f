// SPDX-License-Identifier: Apache-2.0
// The built-in operations: one header each under ejk/ops/.
#pragma once

#include <ejk/ops/decode_attention.h>
#include <ejk/ops/flash_attention.h>
#include <ejk/ops/grouped_matmul.h>
#include <ejk/ops/layer_norm.h>
#include <ejk/ops/matmul.h>
#include <ejk/ops/rms_norm.h>
#include <ejk/ops/softmax.h>
