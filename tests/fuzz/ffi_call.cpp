// SPDX-License-Identifier: Apache-2.0
// Any attribute of a custom call, with any arrays: "float32[4, 8] int32[2] -> float32[4, 8]", a new
// line, and the attribute. Each array is memory of its own, so that nothing beyond it is touched
// unseen.
#include <algorithm>
#include <charconv>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include <ejk/error.h>
#include <ejk/registry.h>

#include "custom_call.h"
#include "fuzz.h"

namespace {

// What a library could register: it trusts its arguments as far as is_valid has seen them.
struct Shifted {
  static constexpr std::string_view op_id = "shifted", version = "1";
  struct Config {
    int block = 1;
  };
  void run(const Config& c, float by, std::span<const float> x, std::span<float> y) const {
    for (size_t i = 0; i < x.size(); i += static_cast<size_t>(c.block)) y[i] += by * x[i];
  }
  bool is_valid(const Config& c, const ejk::Invocation& inv) const {
    return c.block > 0 && inv.args[1].shape == inv.args[2].shape;
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }

  struct Residuals {};
  Residuals fwd_with_residuals(const Config& c, float by, std::span<const float> x,
                               std::span<float> y) const {
    run(c, by, x, y);
    return {};
  }
  std::tuple<float, std::vector<float>, std::vector<float>> vjp(const Config&, const Residuals&,
                                                                std::span<const float> dy, float by,
                                                                std::span<const float>,
                                                                std::span<float>) const {
    std::vector<float> dx;
    for (const float d : dy) dx.push_back(by * d);
    return {0.f, dx, {dy.begin(), dy.end()}};
  }
};
EJK_REGISTER(Shifted);

struct Array {
  ejk::DType dtype;
  std::vector<int64_t> shape;
  std::unique_ptr<std::byte[]> data;
  size_t bytes;
};

// Of a few elements, small whole numbers.
std::optional<Array> read_array(std::string_view text) {
  const size_t open = text.find('[');
  if (open == text.npos || text.back() != ']') return std::nullopt;
  Array array{ejk::dtype_from_name(text.substr(0, open)), {}, nullptr, 0};
  int64_t elements = 1;
  for (const char *at = text.data() + open + 1, *end = &text.back(); at < end; ++at) {
    int64_t size = 0;
    const auto [next, error] = std::from_chars(at, end, size);
    if (error != std::errc() || size < 0 || size > 512 || (elements *= size) > 512)
      return std::nullopt;
    array.shape.push_back(size);
    at = next;
  }
  const size_t bits = ejk::dtype_bits(array.dtype);
  if (bits < 8) return std::nullopt;  // XLA has none
  array.bytes = static_cast<size_t>(elements) * bits / 8;
  array.data = std::make_unique<std::byte[]>(array.bytes);
  for (size_t i = 0; i < array.bytes; i += bits / 8) array.data[i] = std::byte(i / 4 % 3);
  return array;
}

std::vector<Array> read_arrays(std::string_view text) {
  std::vector<Array> arrays;
  while (!text.empty() && arrays.size() < 16) {
    const size_t end = std::min(text.find(' '), text.size());
    if (end > 0)
      if (auto array = read_array(text.substr(0, end))) arrays.push_back(std::move(*array));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return arrays;
}

std::vector<ejk::python::CallArray> as_given(const std::vector<Array>& arrays) {
  std::vector<ejk::python::CallArray> out;
  for (const Array& array : arrays) out.push_back({array.data.get(), array.dtype, array.shape});
  return out;
}

std::string elements(const std::vector<Array>& arrays) {
  std::string all;
  for (const Array& array : arrays)
    all.append(reinterpret_cast<const char*>(array.data.get()), array.bytes);
  return all;
}

}  // namespace

void fuzz::check(std::string_view bytes) {
  const size_t line = std::min(bytes.find('\n'), bytes.size());
  const std::string_view types = bytes.substr(0, line);
  const size_t arrow = std::min(types.find("->"), types.size());
  try {
    const std::vector<Array> inputs = read_arrays(types.substr(0, arrow));
    const std::vector<Array> results = read_arrays(types.substr(std::min(arrow + 2, types.size())));
    const std::string before = elements(inputs);
    try {
      ejk::python::run_custom_call(bytes.substr(std::min(line + 1, bytes.size())), as_given(inputs),
                                   as_given(results));
    } catch (const std::bad_alloc&) {
    } catch (const std::exception& error) {
      demand(*error.what() != '\0', "a call is refused without a reason");
    }
    demand(elements(inputs) == before, "a call writes its inputs");
  } catch (const ejk::Error&) {  // no such element type
  }
}
