// SPDX-License-Identifier: Apache-2.0
// Writes what a worker needs, and makes a trial of it there.
//
// The file: the size of a header, the header as JSON, then its blobs one after the other:
// environment, directory, kernel, arrays.
#include "guard/parcel_file.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <ejk/detail/parcel.h>
#include <ejk/error.h>

#include "base/format.h"
#include "platform/place.h"

extern char** environ;

namespace ejk::detail {
namespace {

[[noreturn]] void refuse(const std::string& why) { throw Error(ErrorKind::invalid_argument, why); }

int64_t address(auto* pointer) {
  return static_cast<int64_t>(reinterpret_cast<uintptr_t>(pointer));
}
template <class T>
T* pointer(const Value& address) {
  return std::bit_cast<T*>(address.as_int());
}

// The file that has this code, and where it lies.
Value module_of(int64_t code) {
  Dl_info info{};
  if (::dladdr(std::bit_cast<void*>(code), &info) == 0) return {};
  return Value::object({{"file", info.dli_fname}, {"at", address(info.dli_fbase)}});
}

const Device& listed_device(const Trial& trial) {
  const Device* device = trial.device();
  if (device == nullptr) refuse("it runs on no device");
  if (!is_listed(*device))
    refuse(fmt::format("{} is not a device that ejk::devices() lists", device->fingerprint));
  return *device;
}

// ---- writing -----------------------------------------------------------------------------------

class Writer {
 public:
  Writer() : file_(static_cast<int>(::memfd_create("ejk-trial", MFD_CLOEXEC))) {}

  void add(std::string_view bytes) {
    if (const auto error = base::write_at(file_, bytes, at_, "the data of a trial"))
      refuse(error.text());
    at_ += static_cast<off_t>(bytes.size());
  }
  base::Fd take() { return std::move(file_); }

 private:
  base::Fd file_;
  off_t at_ = 0;
};

std::string environment() {
  std::string all;
  for (char** one = environ; *one != nullptr; ++one) all += *one, all += '\0';
  return all;
}

Value header_of(const Parcel& parcel, const Device& device) {
  Value arrays = Value::array();
  for (const auto& [array, has_data] : parcel.arrays) {
    const AnyView view = array.any();
    if (!view.packed()) refuse("an array that is not packed cannot be made again");
    Value shape = Value::array();
    for (const int64_t size : array.shape) shape.push_back(size);
    arrays.push_back(Value::object({{"dtype", dtype_name(array.dtype)},
                                    {"shape", std::move(shape)},
                                    {"on_device", array.device != nullptr},
                                    {"bytes", has_data ? static_cast<int64_t>(view.bytes()) : 0}}));
  }
  return Value::object({{"open", address(parcel.open)},
                        {"config", address(parcel.config)},
                        {"code", module_of(address(parcel.open))},
                        {"platform", static_cast<int64_t>(device.platform)},
                        {"index", device.index},
                        {"device", device.fingerprint},
                        {"backward", parcel.backward},
                        {"arguments", parcel.arguments},
                        {"kernel", static_cast<int64_t>(parcel.kernel.size())},
                        {"arrays", std::move(arrays)}});
}

// ---- reading -----------------------------------------------------------------------------------

class Reader {
 public:
  explicit Reader(int file) : file_(file) {}

  void read(void* to, size_t bytes) {
    for (auto* next = static_cast<char*>(to); bytes > 0;) {
      const ssize_t n = base::retry_interrupted([&] { return ::pread(file_, next, bytes, at_); });
      if (n <= 0) refuse("the data of the trial ends too early");
      next += n, at_ += n, bytes -= static_cast<size_t>(n);
    }
  }
  std::string text(size_t bytes) {
    std::string out(bytes, '\0');
    read(out.data(), bytes);
    return out;
  }
  std::string sized_text() {
    uint64_t bytes = 0;
    read(&bytes, sizeof bytes);
    return text(bytes);
  }

 private:
  int file_;
  off_t at_ = 0;
};

void add_sized(Writer& to, const std::string& text) {
  const uint64_t bytes = text.size();
  to.add({reinterpret_cast<const char*>(&bytes), sizeof bytes});
  to.add(text);
}

void take_environment(const std::string& all) {
  ::clearenv();
  for (size_t at = 0; at < all.size();) {
    const std::string one = all.substr(at, all.find('\0', at) - at);
    at += one.size() + 1;
    const size_t end = one.find('=');
    if (end != one.npos) ::setenv(one.substr(0, end).c_str(), one.c_str() + end + 1, 1);
  }
}

const Device& device_of(const Value& header) {
  const auto platform = static_cast<Platform>(header.find("platform")->as_int());
  const auto index = static_cast<size_t>(header.find("index")->as_int());
  const DeviceList all = devices(platform);
  if (index < all.size() && all[index].fingerprint == header.find("device")->as_string())
    return all[index];
  refuse(fmt::format("a worker finds no {}", header.find("device")->as_string()));
}

Tensor make_array(const Value& header, const Device& device, Reader& data) {
  std::vector<int64_t> shape;
  for (const Value& size : header.find("shape")->as_array()) shape.push_back(size.as_int());
  Tensor here(dtype_from_name(header.find("dtype")->as_string()), std::move(shape));
  data.read(here.any().data, static_cast<size_t>(header.find("bytes")->as_int()));
  return header.find("on_device")->as_bool() ? here.to(device) : here;
}

}  // namespace

base::Fd write_parcel(Trial& trial) {
  const Device& device = listed_device(trial);
  const auto parcel = trial.parcel();
  if (parcel == nullptr)
    refuse("the kernel's members cannot be copied to another process byte by byte");
  const Value header = header_of(*parcel, device);
  const std::string text = to_json(header);
  if (parse_json(text) != header) refuse("a value among the arguments cannot be written down");
  std::error_code ignored;
  Writer writer;
  add_sized(writer, text);
  add_sized(writer, environment());
  add_sized(writer, std::filesystem::current_path(ignored).string());
  writer.add(parcel->kernel);
  for (const auto& [array, has_data] : parcel->arrays) {
    if (!has_data) continue;
    const OutputBytes bytes = packed_bytes(array.any());
    writer.add({reinterpret_cast<const char*>(bytes.bytes.data()), bytes.bytes.size()});
  }
  return writer.take();
}

OpenedParcel open_parcel(int file) {
  Reader reader(file);
  const Value header = parse_json(reader.sized_text());
  take_environment(reader.sized_text());
  const std::string directory = reader.sized_text();
  std::error_code ignored;
  std::filesystem::current_path(directory, ignored);
  const Value& open = *header.find("open");
  if (const Value* code = header.find("code"); code->is_null() || module_of(open.as_int()) != *code)
    refuse("the kernel's code was loaded after devices were first looked for");
  Parcel parcel;
  parcel.open = pointer<std::remove_pointer_t<decltype(parcel.open)>>(open);
  parcel.config = pointer<const ConfigType>(*header.find("config"));
  parcel.backward = header.find("backward")->as_bool();
  parcel.arguments = *header.find("arguments");
  parcel.kernel = reader.text(static_cast<size_t>(header.find("kernel")->as_int()));
  const Device& device = device_of(header);
  std::vector<Tensor> arrays;
  for (const Value& one : header.find("arrays")->as_array())
    arrays.push_back(make_array(one, device, reader));
  return {parcel.open(parcel, std::move(arrays)), parcel.config};
}

}  // namespace ejk::detail
