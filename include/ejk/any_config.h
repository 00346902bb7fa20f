// SPDX-License-Identifier: Apache-2.0
// A configuration of any type, as the compiled core passes it around.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include <ejk/detail/export.h>
#include <ejk/value.h>

namespace EJK_EXPORT ejk {

// What the core must know of a config type. config_type<C>() in config.h has one for every struct;
// it outlives all configs of its type. Its functions may be called from several threads.
struct ConfigType {
  std::string_view name;  // of the C++ type, for messages
  // The fields of a config of this type. `config` is not null.
  Value (*to_value)(const void* config);
  // The config that the value describes. nullptr, with the reason in `why`, unless every field is
  // there and fits: defaults are not filled in.
  std::shared_ptr<const void> (*from_value)(const Value& value, std::string& why);
};

// A configuration and its type. Empty by default. Copies share the config, which never changes: it
// lives as long as the last of them, and several threads may read it.
class AnyConfig {
 public:
  AnyConfig() = default;
  // `config` points at a struct of that type; `type` outlives it. make_config does this for you.
  AnyConfig(std::shared_ptr<const void> config, const ConfigType* type)
      : config_(std::move(config)), type_(type) {}

  explicit operator bool() const noexcept { return config_ != nullptr; }
  // The config itself, its type, and its fields as a JSON-like value. Null if there is no config.
  const void* get() const noexcept { return config_.get(); }
  const ConfigType* type() const noexcept { return type_; }
  Value to_value() const { return config_ ? type_->to_value(config_.get()) : Value(); }
  // The config as the struct that it is; the reference lives as long as this or a copy of it.
  // Nothing is checked: C must be the type this was made from, and this must not be empty. Compare
  // type() where you do not know.
  template <class C>
  const C& as() const noexcept {
    return *static_cast<const C*>(config_.get());
  }
  // By the values of the fields; the types are not compared.
  bool operator==(const AnyConfig& other) const { return to_value() == other.to_value(); }

 private:
  std::shared_ptr<const void> config_;
  const ConfigType* type_ = nullptr;
};

}  // namespace ejk
