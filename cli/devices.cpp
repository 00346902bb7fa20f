// SPDX-License-Identifier: Apache-2.0
// ejk devices: what is found here, and under which name its entries are kept.
#include <ejk/device.h>

#include "verbs.h"

namespace ejk::cli {
namespace {

int devices_verb(Output& out) {
  Value list = Value::array();
  for (const Device* device : devices()) {
    list.push_back(Value::object({{"name", device_name(*device)},
                                  {"platform", platform_name(device->platform)},
                                  {"kind", device_kind(*device)},
                                  {"index", device->index},
                                  {"fingerprint", device->fingerprint},
                                  {"identity", device->identity},
                                  {"environment", device->environment}}));
    out.line(device_name(*device) + "  " + device->fingerprint);
    std::vector<std::pair<std::string, std::string>> facts;
    for (const auto* part : {&device->identity, &device->environment})
      for (const auto& [name, value] : part->as_object().members)
        facts.emplace_back("  " + name, value.is_string() ? value.as_string() : stable_json(value));
    out.facts(facts);
  }
  Value absent = Value::object();
  for (const Platform platform : {Platform::opencl, Platform::cuda}) {
    if (!devices(platform).empty()) continue;
    const std::string why = why_no_devices(platform);
    absent[platform_name(platform)] = why;
    out.line("no " + std::string(platform_name(platform)) + " device: " + why);
  }
  out.document(Value::object({{"devices", std::move(list)}, {"absent", std::move(absent)}}));
  return exit_ok;
}

}  // namespace

void add_devices(Verbs& verbs) {
  verbs.add(
      {"devices", "List the devices of this machine, with the fingerprints that entries carry",
       "ejk devices"},
      devices_verb);
}

}  // namespace ejk::cli
