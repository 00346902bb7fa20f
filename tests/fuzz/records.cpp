// SPDX-License-Identifier: Apache-2.0
// Any bytes as a record, and as the arguments of a recorded call that is made again.
#include <cmath>
#include <complex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ejk/ejk.h>
#include <ejk/registry.h>

#include "fuzz.h"

namespace {

// One parameter of each kind that can be recorded.
struct Kinds {
  static constexpr std::string_view op_id = "fuzz.kinds", version = "1";
  enum class Mode { fast, exact };
  struct Config {
    int block = 1;
  };
  void run(const Config&, std::span<const float> a, ejk::StridedView<const int32_t, 2> b,
           std::optional<std::span<const double>> c, std::vector<ejk::Tensor> d, Mode mode,
           const std::string& name, std::complex<float> z, std::pair<int8_t, bool> pair,
           ejk::Out<std::span<float>> out) const {
    static_cast<void>(mode), static_cast<void>(name), static_cast<void>(z);
    static_cast<void>(pair);
    float sum = 0;
    for (const float v : a) sum += v;
    for (int64_t i = 0; i < b.shape[0]; ++i)
      for (int64_t j = 0; j < b.shape[1]; ++j) sum += static_cast<float>(b(i, j));
    if (c)
      for (const double v : *c) sum += static_cast<float>(v);
    sum += static_cast<float>(d.size());
    for (float& v : *out) v = sum;
  }
  Config heuristic_cfg(const ejk::Invocation&) const { return {}; }
};
EJK_REGISTER(Kinds);

// Arrays of megabytes up to the machine's memory are made, which takes longer than a fuzzer has.
bool is_soon_done(const ejk::Value& value) {
  const double size = value.is_number() ? std::abs(value.as_double()) : 0;
  if (size > 1e3 && size < 1e13) return false;
  if (value.is_array())
    for (const ejk::Value& item : value.as_array())
      if (!is_soon_done(item)) return false;
  if (value.is_object())
    for (const auto& [name, member] : value.as_object().members)
      if (name != "data" && !is_soon_done(member)) return false;
  return true;
}

void make_again(const ejk::Value& document) {
  ejk::RecordedCall call;
  call.id.op = "fuzz.kinds@v1";
  call.arguments = document;
  if (!is_soon_done(document)) return;
  const auto made = ejk::rebuild_call(call);
  made->run(ejk::make_config(Kinds::Config{}));
}

}  // namespace

void fuzz::check(std::string_view bytes) {
  ejk::Value document;
  try {
    document = ejk::parse_json(bytes);
  } catch (const ejk::Error&) {
    return;
  }
  try {
    const auto call = ejk::record_from_document(document);
    demand(std::isfinite(call.seconds()) && call.seconds() >= 0, "a record took no time");
    const ejk::Value again = ejk::record_to_document(call);
    demand(ejk::record_to_document(ejk::record_from_document(again)) == again,
           "a record comes back changed");
  } catch (const ejk::Error&) {
  }
  try {
    make_again(document);
  } catch (const ejk::Error&) {
  }
}
