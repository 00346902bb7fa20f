// SPDX-License-Identifier: Apache-2.0
// ejk doctor --selftest: the library's own kernels on the devices of this machine, against their
// references.
#include <ejk/candidates.h>
#include <ejk/device.h>
#include <ejk/names.h>

#include "base/format.h"
#include "doctor.h"
#include "ops/device_cases.h"
#include "tune/reference_check.h"

namespace ejk::cli {
namespace {

// Of each call, besides the heuristic's: enough to see other ways through a source.
constexpr uint64_t samples = 3;

std::vector<AnyConfig> configs_of(const ops::DeviceCase& c) {
  std::vector<AnyConfig> configs;
  if (auto guess = c.kernel.heuristic_cfg(c.call)) configs.push_back(*guess);
  const auto offered = c.kernel.candidate_cfgs(c.call);
  for (const uint64_t point : sample_points(*offered, samples, 1)) {
    const AnyConfig config = offered->config(point);
    if (c.kernel.is_valid(config, c.call)) configs.push_back(config);
  }
  return configs;
}

struct Tested {
  Table table{{{"OP"}, {"CALL"}, {"RIGHT", Table::Align::right}, {"FOUND"}}};
  Value calls = Value::array();
  size_t right = 0, wrong = 0;
};

// One call with its configs. A device that fails, fails this call.
void test_call(std::string_view op, const ops::DeviceCase& c, Tested& out) {
  size_t right = 0, tried = 0;
  Value problems = Value::array();
  std::string first;
  const auto add_problem = [&](const Value& config, const std::string& what) {
    problems.push_back(Value::object({{"config", config}, {"problem", what}}));
    if (first.empty()) first = (config.is_null() ? "" : config_text(config) + ": ") + what;
  };
  const auto run = [&](detail::ReferenceCheck& check, const AnyConfig& config,
                       const std::string& prefix) {
    ++tried;
    if (const auto problem = check.problem_with(config))
      add_problem(config.to_value(), prefix + *problem);
    else ++right;
  };
  try {
    const std::vector<AnyConfig> configs = configs_of(c);
    const auto trial = c.kernel.trial(c.call);
    detail::ReferenceCheck check(*trial);
    for (const AnyConfig& config : configs) run(check, config, "");
    if (c.gradient) {
      Invocation call = c.call;
      call.backward = true;
      const auto backward = c.kernel.trial(call);
      detail::ReferenceCheck gradient(*backward, c.gradient());
      run(gradient, configs.at(0), "gradient: ");
    }
  } catch (const Error& error) {
    ++tried;
    add_problem({}, error.what());
  }
  out.right += right, out.wrong += tried - right;
  out.table.add(
      {std::string(op), c.name, fmt::format("{}/{}", right, tried), first.empty() ? "ok" : first});
  out.calls.push_back(Value::object({{"op", op},
                                     {"call", c.name},
                                     {"configs", tried},
                                     {"right", right},
                                     {"problems", std::move(problems)}}));
}

Tested test_device(const Device& device) {
  Tested out;
  Progress progress;
  for (const ops::DeviceOp& op : ops::device_ops) try {
      op.cases(device, [&](const ops::DeviceCase& c) {
        progress.show(fmt::format("{} {}: {} {}", platform_name(device.platform), device.index,
                                  op.name, c.name));
        test_call(op.name, c, out);
      });
    } catch (const Error& error) {  // not even the arrays could be made
      ++out.wrong;
      out.table.add({std::string(op.name), "-", "0/0", error.what()});
      out.calls.push_back(
          Value::object({{"op", op.name}, {"call", {}}, {"problem", error.what()}}));
    }
  return out;
}

}  // namespace

int doctor_selftest(const std::string& only, Output& out) {
  size_t right = 0, wrong = 0;
  Value list = Value::array(), absent = Value::object();
  for (const Platform platform : {Platform::opencl, Platform::cuda}) {
    if (!only.empty() && only != platform_name(platform)) continue;
    if (devices(platform).empty()) {
      const std::string why = why_no_devices(platform);
      absent[platform_name(platform)] = why;
      out.line(fmt::format("no {} device: {}", platform_name(platform), why));
    }
    for (const Device& device : devices(platform)) {
      Tested tested = test_device(device);
      out.line(fmt::format("{} {}  {}", platform_name(platform), device.index, device.fingerprint));
      out.table(tested.table);
      out.line();
      right += tested.right, wrong += tested.wrong;
      list.push_back(Value::object({{"platform", platform_name(platform)},
                                    {"index", device.index},
                                    {"fingerprint", device.fingerprint},
                                    {"environment", device.environment},
                                    {"right", tested.right},
                                    {"wrong", tested.wrong},
                                    {"calls", std::move(tested.calls)}}));
    }
  }
  const bool fit = right > 0 && wrong == 0;
  out.line(right + wrong == 0 ? "nothing ran: there is no device"
           : fit              ? fmt::format("all {} runs are right", right)
                              : fmt::format("{} of {} runs are wrong", wrong, right + wrong));
  out.document(
      Value::object({{"fit", fit}, {"devices", std::move(list)}, {"absent", std::move(absent)}}));
  return fit ? exit_ok : exit_unfit;
}

}  // namespace ejk::cli
