// SPDX-License-Identifier: Apache-2.0
// A configuration of any type, as the compiled core passes it around.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <ejk/detail/export.h>
#include <ejk/value.h>

namespace EJK_EXPORT ejk {

// What the core must know of a config type. One static object per type (see config.h).
struct ConfigType {
  std::string_view name;  // of the C++ type, for messages
  Value (*to_value)(const void* config);
  // nullptr with the reason in `why` if the value does not describe such a config exactly.
  std::shared_ptr<const void> (*from_value)(const Value& value, std::string& why);
};

// A shared, immutable configuration and its type. Empty by default.
class AnyConfig {
 public:
  AnyConfig() = default;
  AnyConfig(std::shared_ptr<const void> config, const ConfigType* type)
      : config_(std::move(config)), type_(type) {}

  explicit operator bool() const noexcept { return config_ != nullptr; }
  // The config itself, its type, and its fields as a JSON-like value. Null if there is no config.
  const void* get() const noexcept { return config_.get(); }
  const ConfigType* type() const noexcept { return type_; }
  Value to_value() const { return config_ ? type_->to_value(config_.get()) : Value(); }
  // The caller knows the type: C must be the type this was made from.
  template <class C>
  const C& as() const noexcept {
    return *static_cast<const C*>(config_.get());
  }
  // By content, not by address.
  bool operator==(const AnyConfig& other) const { return to_value() == other.to_value(); }

 private:
  std::shared_ptr<const void> config_;
  const ConfigType* type_ = nullptr;
};

}  // namespace ejk
