// SPDX-License-Identifier: Apache-2.0
// Which blockings of a product a device can run, one good guess, and the launch.
#include "ops/matmul/device_product.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

#include <ejk_kernels/block_cl.h>
#include <ejk_kernels/device_cl.h>
#include <ejk_kernels/matmul_cl.h>
#include <ejk_kernels/sums_cl.h>
#include <ejk_kernels/tensor_core_cl.h>
#include <ejk_kernels/turn_cl.h>

#include "base/format.h"
#include "ops/common/device_arrays.h"
#include "ops/common/refuse.h"

namespace ejk::ops {
namespace {

using B = MatmulGpuBlocking;
using Way = B::Way;
using Pack = MatmulBlocking::Pack;
using Groups = ProductKind::Groups;

constexpr Source source{"matmul.cl", ejk_kernels::device_cl, ejk_kernels::block_cl,
                        ejk_kernels::matmul_cl};
constexpr Source tensor_core_source{"tensor_core.cl", ejk_kernels::device_cl, ejk_kernels::block_cl,
                                    ejk_kernels::tensor_core_cl};

bool is_short(DType dtype) { return dtype == DType::bfloat16; }

// The macros of the sources.
struct Program {
  Way way;
  int bm, bn, bk, tm, tn, width;
  Pack pack;
  int pad, stages;
  bool a_bf16, b_bf16, c_bf16, bias, a_across, b_across;
  Groups grouped;
};

Program program_of(const B& b, const ProductKind& kind) {
  return {.way = b.way,
          .bm = b.bm,
          .bn = b.bn,
          .bk = b.bk,
          .tm = b.tm,
          .tn = b.tn,
          .width = b.width,
          .pack = b.pack,
          .pad = b.pad,
          .stages = b.stages,
          .a_bf16 = is_short(kind.a),
          .b_bf16 = is_short(kind.b),
          .c_bf16 = is_short(kind.c),
          .bias = kind.bias,
          .a_across = kind.a_across,
          .b_across = kind.b_across,
          .grouped = kind.groups};
}

int64_t round_up(int64_t size, int64_t step) { return ceil_div(size, step) * step; }

// Columns of a tile.
int64_t tile_columns(const B& b) { return int64_t{b.tn} * (b.way == Way::direct ? b.width : 1); }

constexpr int warp = 32;

Extent items_of(const B& b) {
  if (b.way == Way::direct) return {};
  return {.x = int64_t{b.bn / b.tn} * (b.way == Way::tensor_core ? warp : 1), .y = b.bm / b.tm};
}
int64_t item_count(const B& b) { return items_of(b).x * items_of(b).y; }

// That many times that many groups, all along the first axis: CUDA takes no more than 65535 along
// the others. The sources count them as ints.
Extent in_one_line(std::string_view op, int64_t x, int64_t y, int64_t z) {
  constexpr int64_t most = std::numeric_limits<int32_t>::max();
  if (y > 0 && z > 0 && (x > most / y || x * y > most / z))
    refuse(op, fmt::format("work for {} x {} x {} groups", x, y, z),
           fmt::format("{} groups at most on a device", most));
  return {.x = x * y * z};
}

// What the sources are written for, on whatever device.
bool is_sound(const B& b) {
  constexpr int most = 1 << 13;
  for (const int size : {b.bm, b.bn, b.bk, b.tm, b.tn, b.width})
    if (size < 1 || size > most) return false;
  if (!is_power_of_two(b.width) || b.bm % b.tm != 0 || b.bn % tile_columns(b) != 0) return false;
  if (b.way == Way::direct) return b.width <= 16 && b.tm <= 64 && b.tn <= 64 && b.tm * b.tn <= 64;
  const bool tensor_core = b.way == Way::tensor_core;
  if (tensor_core && (b.tm % 16 != 0 || b.tn % 8 != 0 || b.bk % 16 != 0)) return false;
  const int64_t at_once = item_count(b) * b.width;
  return b.width <= 8 && int64_t{b.tm} * b.tn <= (tensor_core ? 256 * warp : 256) && b.pad >= 0 &&
         b.pad <= 64 && (b.stages == 1 || b.stages == 2) && b.bm % b.width == 0 &&
         b.bn % b.width == 0 && b.bk % b.width == 0 && int64_t{b.bm} * b.bk % at_once == 0 &&
         int64_t{b.bn} * b.bk % at_once == 0;
}

// Of compute capability 8 and later.
bool has_tensor_cores(const Device& device) {
  const Value* capability = device.identity.find("compute_capability");
  return device.platform == Platform::cuda && capability != nullptr &&
         std::atoi(capability->as_string().c_str()) >= 8;
}

}  // namespace

int64_t product_local_bytes(const B& b, const ProductKind& kind) {
  if (b.way == Way::tiled)
    return 4 * int64_t{b.stages} * b.bk * (int64_t{b.bm} + b.bn + int64_t{2} * b.pad);
  if (b.way == Way::tensor_core)
    return 2 * int64_t{b.stages} * (b.bk + b.pad) * (int64_t{b.bm} + b.bn);
  const int64_t a_block = b.pack == Pack::a_and_b ? int64_t{b.bm} * (b.bk + 16) : 0;
  const int64_t sums = is_short(kind.c) ? int64_t{b.bm} * b.bn : 0;
  return 4 * (b.bk * tile_columns(b) + a_block + sums);
}

bool product_can_run(const B& b, const ProductKind& kind, const Device& device) {
  const DeviceLimits& limits = device.limits;
  return is_sound(b) && item_count(b) <= std::max<int64_t>(1, limits.group_items) &&
         product_local_bytes(b, kind) <= limits.local_bytes &&
         (b.way != Way::tensor_core ||
          (has_tensor_cores(device) && is_short(kind.a) && is_short(kind.b)));
}

void run_on_device(std::string_view op, const B& b, const DeviceProduct& p) {
  const auto [batch, m, n, k, groups] = p.sizes;
  if (!is_sound(b))
    refuse(op, fmt::format("a config with {}", to_json(b)),
           "positive sizes, bm and bn in whole tiles, and but for direct ones as much to read for "
           "every item, width at a time");
  constexpr int64_t most = int64_t{1} << 30;  // sizes are ints there
  if (std::max({batch, m, n, k, groups}) > most)
    refuse(op, fmt::format("sizes batch = {}, m = {}, n = {}, k = {}", batch, m, n, k),
           "none beyond 2^30 on a device");
  // Every group of rows, and the rows behind them, can end with a block of its own.
  const int64_t more = p.kind.groups == Groups::of_rows ? groups + 1 : 0;
  const int64_t by_row = m == 0 ? 0 : ceil_div(m, b.bm) + more;
  launch(b.way == Way::tensor_core ? tensor_core_source : source, "matmul", program_of(b, p.kind),
         {.groups = in_one_line(op, by_row, ceil_div(n, b.bn), batch), .items = items_of(b)},
         static_cast<int>(m), static_cast<int>(n), static_cast<int>(k), static_cast<int>(by_row),
         p.a_serves_all ? 0 : 1, p.b_serves_all ? 0 : 1, static_cast<int>(groups), p.a, p.b,
         p.kind.bias ? p.bias : p.a, p.kind.groups == Groups::none ? p.a : p.group_sizes, p.c);
}

namespace {

constexpr Source sums_source{"sums.cl", ejk_kernels::device_cl, ejk_kernels::sums_cl};

constexpr Source turn_source{"turn.cl", ejk_kernels::turn_cl};

struct TurnProgram {
  int group, each;
  bool two_bytes;
};

struct SumsProgram {
  int group, columns;
  bool from_bf16, to_bf16;
};

}  // namespace

void sum_rows_on_device(int64_t rows, int64_t columns, const DeviceArray& from, DType from_type,
                        const DeviceArray& to, DType to_type) {
  const bool on_cpu = runs_on_cpu(*from.device);
  const SumsProgram program{.group = on_cpu ? 1 : 64,
                            .columns = on_cpu ? 64 : 1,
                            .from_bf16 = from_type == DType::bfloat16,
                            .to_bf16 = to_type == DType::bfloat16};
  launch(sums_source, "sum_rows", program,
         {.groups = {ceil_div(columns, int64_t{program.group} * program.columns)},
          .items = {program.group}},
         static_cast<int>(rows), static_cast<int>(columns), from, to);
}

void transpose_on_device(std::string_view op, int64_t batch, int64_t rows, int64_t columns,
                         DType dtype, const DeviceArray& from, const DeviceArray& to) {
  const bool on_cpu = runs_on_cpu(*from.device);
  const TurnProgram program{
      .group = on_cpu ? 1 : 64, .each = on_cpu ? 256 : 1, .two_bytes = is_short(dtype)};
  launch(turn_source, "turn", program,
         {.groups = in_one_line(op, rows, ceil_div(columns, int64_t{program.group} * program.each),
                                batch),
          .items = {program.group}},
         static_cast<int>(rows), static_cast<int>(columns), from, to);
}

// ---- guesses ------------------------------------------------------------------------------------

namespace {

int64_t units_of(const Device& device) { return std::max<int64_t>(1, device.limits.compute_units); }

int native_width(const Device& device) {
  return power_of_two_below(std::clamp<int64_t>(device.limits.vector_width, 4, 16));
}
// AVX-512 has as many as it is wide.
int vector_registers(const Device& device) { return native_width(device) >= 16 ? 32 : 16; }

// The size of `parts` blocks of about equal size, in steps.
int block_of(int64_t size, int64_t parts, int64_t step) {
  return static_cast<int>(round_up(std::max<int64_t>(1, ceil_div(size, parts)), step));
}

// Packed b is used from the second level of the cache, a block of a too where it is packed; a
// larger depth spares c's way there and back.
B direct_guess(const ProductKind& kind, const ProductSizes& s, const Device& device) {
  B b{.way = Way::direct, .width = native_width(device)};
  const int max_rows = vector_registers(device) >= 32 ? 8 : 6;
  const int64_t rows = kind.groups == Groups::of_rows ? ceil_div(s.m, s.groups + 1) : s.m;
  b.tm = static_cast<int>(std::clamp<int64_t>(rows, 1, max_rows));
  const int max_vectors = b.tm == 1 ? 8 : b.tm == 2 ? 4 : b.tm == 3 ? 3 : 2;
  // Of few columns one strip with as little as possible beside them: what is cut off is slow.
  if (s.n < int64_t{max_vectors} * b.width) {
    const auto vectors = [&](int width) { return ceil_div(std::max<int64_t>(1, s.n), width); };
    for (int width = b.width / 2; width >= 4; width /= 2)
      if (vectors(width) <= 4 && vectors(width) * width < vectors(b.width) * b.width)
        b.width = width;
    b.tn = static_cast<int>(vectors(b.width));
  } else {
    b.tn = max_vectors;
  }
  const int64_t strip = tile_columns(b), units = units_of(device);
  b.pack = rows <= 16 ? Pack::none : rows * s.k <= 1 << 18 ? Pack::b : Pack::a_and_b;
  const bool both = b.pack == Pack::a_and_b;
  b.bk = both ? 256 : 512;
  // As many blocks for one unit as for another.
  int64_t by_row = ceil_div(std::max<int64_t>(1, rows), both ? 512 : 1024);
  int64_t by_column = ceil_div(std::max<int64_t>(1, s.n), both ? 512 : 128);
  const auto is_fair = [&] { return s.batch * by_row * by_column % units == 0; };
  while (!is_fair() && s.n > by_column * strip) ++by_column;
  while (!is_fair() && rows > by_row * b.tm) ++by_row;
  b.bm = block_of(rows, by_row, b.tm);
  b.bn = block_of(s.n, by_column, strip);
  // A small device's local memory.
  while (!product_can_run(b, kind, device) && b.bk > 64) b.bk /= 2;
  while (!product_can_run(b, kind, device) && b.bm > b.tm)
    b.bm = static_cast<int>(round_up(b.bm / 2, b.tm));
  while (!product_can_run(b, kind, device) && b.bn > strip)
    b.bn = static_cast<int>(round_up(b.bn / 2, strip));
  return b;
}

// As large as leaves every unit something to do.
template <size_t N>
B largest_busy(const B (&all)[N], const ProductKind& kind, const ProductSizes& s,
               const Device& device) {
  const B* best = &all[N - 1];
  for (const B& b : all) {
    if (!product_can_run(b, kind, device)) continue;
    best = &b;
    if (s.batch * ceil_div(s.m, b.bm) * ceil_div(s.n, b.bn) >= 2 * units_of(device)) break;
  }
  return *best;
}

constexpr B tiled_guesses[] = {
    {.way = Way::tiled, .bm = 128, .bn = 128, .bk = 8, .tm = 8, .tn = 8, .stages = 2},
    {.way = Way::tiled, .bm = 64, .bn = 64, .bk = 16, .tm = 4, .tn = 4, .stages = 2},
    {.way = Way::tiled, .bm = 32, .bn = 64, .bk = 16, .tm = 4, .tn = 4, .stages = 2},
    {.way = Way::tiled, .bm = 32, .bn = 32, .bk = 16, .tm = 4, .tn = 2, .width = 2, .stages = 2},
    {.way = Way::tiled, .bm = 16, .bn = 32, .bk = 16, .tm = 2, .tn = 2, .width = 2},
    {.way = Way::tiled, .bm = 8, .bn = 8, .bk = 8, .tm = 1, .tn = 1, .width = 1},
};
// The pad keeps the lanes of a warp in different banks.
constexpr B on_tensor_cores(int block, int tm, int tn) {
  return {.way = Way::tensor_core,
          .bm = block,
          .bn = block,
          .bk = 32,
          .tm = tm,
          .tn = tn,
          .width = 8,
          .pad = 8,
          .stages = 2};
}
constexpr B tensor_core_guesses[] = {on_tensor_cores(128, 64, 32), on_tensor_cores(64, 32, 32),
                                     on_tensor_cores(32, 16, 16)};

bool can_use_tensor_cores(const ProductKind& kind, const Device& device) {
  return has_tensor_cores(device) && is_short(kind.a) && is_short(kind.b);
}

}  // namespace

B product_guess(const ProductKind& kind, const ProductSizes& sizes, const Device& device) {
  if (runs_on_cpu(device)) return direct_guess(kind, sizes, device);
  if (can_use_tensor_cores(kind, device))
    return largest_busy(tensor_core_guesses, kind, sizes, device);
  return largest_busy(tiled_guesses, kind, sizes, device);
}

std::vector<B> product_variations(const B& guess, const ProductKind& kind, const Device& device) {
  std::vector<B> all{guess};
  const bool direct = guess.way == Way::direct;
  const std::vector<Pack> packs =
      direct ? std::vector{Pack::none, Pack::b, Pack::a_and_b} : std::vector{guess.pack};
  for (const Pack pack : packs)
    for (const int bk : direct ? std::vector{128, 256, 512} : std::vector{8, 16, 32, 64}) {
      B other = guess;
      other.pack = pack;
      other.bk = bk;
      if (product_can_run(other, kind, device)) all.push_back(other);
    }
  return all;
}

// ---- spaces -------------------------------------------------------------------------------------

std::vector<Way> BlockingChoices::ways() const {
  if (runs_on_cpu(*device_)) return {Way::direct};
  if (can_use_tensor_cores(kind_, *device_)) return {Way::tensor_core, Way::tiled};
  return {Way::tiled};
}

std::vector<int> BlockingChoices::tm(const B& b) const {
  if (b.way == Way::direct) return {1, 2, 3, 4, 6, 8, 10, 12, 14};
  return b.way == Way::tiled ? std::vector{1, 2, 4, 8, 16} : std::vector{16, 32, 64};
}

std::vector<int> BlockingChoices::tn(const B& b) const {
  if (b.way == Way::direct) return {1, 2, 3, 4, 8};
  return b.way == Way::tiled ? std::vector{1, 2, 4, 8, 16} : std::vector{8, 16, 32, 64};
}

std::vector<int> BlockingChoices::width(const B& b) const {
  if (b.way == Way::direct) return {native_width(*device_), native_width(*device_) / 2};
  return b.way == Way::tiled ? std::vector{1, 2, 4} : std::vector{2, 4, 8};
}

bool BlockingChoices::has_sensible_tile(const B& b) const {
  // A tile, a line of b and a factor stay in registers; rows and columns behind the
  // end are calculated and thrown away.
  if (b.way == Way::direct)
    return b.tm * b.tn + b.tn + 1 <= vector_registers(*device_) &&
           (b.tm == 1 || b.tm < 2 * sizes_.m) &&
           (b.tn == 1 || int64_t{b.tn - 1} * b.width < sizes_.n);
  const int64_t most = b.way == Way::tiled ? 64 : 64 * warp;
  return int64_t{b.tm} * b.tn <= most && b.tm <= 8 * b.tn && b.tn <= 8 * b.tm;
}

std::vector<Pack> BlockingChoices::pack(const B& b) const {
  if (b.way == Way::direct) return {Pack::none, Pack::b, Pack::a_and_b};
  return {Pack::none};
}

std::vector<int> BlockingChoices::bm(const B& b) const {
  if (b.way != Way::direct) return {16, 32, 64, 128, 256};
  std::vector<int> all;
  for (const int rows : {64, 256, 512, 1024})
    all.push_back(block_of(std::min<int64_t>(rows, sizes_.m), 1, b.tm));
  return all;
}

std::vector<int> BlockingChoices::bn(const B& b) const {
  if (b.way != Way::direct) return {16, 32, 64, 128, 256};
  std::vector<int> all;
  for (const int columns : {64, 128, 512, 1024})
    all.push_back(block_of(std::min<int64_t>(columns, sizes_.n), 1, tile_columns(b)));
  return all;
}

std::vector<int> BlockingChoices::bk(const B& b) const {
  if (b.way == Way::direct) return {128, 256, 512};
  return b.way == Way::tiled ? std::vector{8, 16, 32} : std::vector{16, 32, 64};
}

std::vector<int> BlockingChoices::stages(const B& b) const {
  return b.way == Way::direct ? std::vector{1} : std::vector{1, 2};
}

std::vector<int> BlockingChoices::pad(const B& b) const {
  if (b.way == Way::direct) return {0};
  return b.way == Way::tiled ? std::vector{0, 1, 4} : std::vector{0, 8};
}

bool BlockingChoices::accepts(const B& b) const {
  if (!product_can_run(b, kind_, *device_)) return false;
  if (b.way == Way::direct)  // there must be work for every unit where there can be
    return sizes_.batch * ceil_div(sizes_.m, b.bm) * ceil_div(sizes_.n, b.bn) >=
           std::min<int64_t>(units_of(*device_), ceil_div(sizes_.n, tile_columns(b)));
  const int64_t items = item_count(b);
  const int64_t to_fetch = int64_t{b.bm + b.bn} * b.bk / items;
  const int64_t tile = b.way == Way::tiled ? b.tm * b.tn + b.tm + b.tn : b.tm * b.tn / warp;
  return items % warp == 0 && items <= 1024 && tile + to_fetch <= 200;
}

}  // namespace ejk::ops
