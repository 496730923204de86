// SPDX-License-Identifier: Apache-2.0
#include "description.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "fault.h"

namespace packattn::cli {
namespace {

using nlohmann::json;

constexpr std::pair<std::string_view, DType> dtype_names[] = {
    {"fp32", DType::f32},      {"float32", DType::f32}, {"f32", DType::f32},
    {"fp16", DType::f16},      {"half", DType::f16},    {"float16", DType::f16},
    {"f16", DType::f16},       {"bf16", DType::bf16},   {"fp8", DType::f8},
    {"bfloat16", DType::bf16}, {"fp64", DType::f64},    {"float64", DType::f64},
    {"int64", DType::i64},     {"int32", DType::i32},   {"int16", DType::i16},
    {"int8", DType::i8},       {"uint8", DType::u8},    {"bool", DType::boolean},
};

// The checks never look at the elements of these, so that they may be of any size.
constexpr std::string_view only_shapes[] = {
    "q", "k",    "v",        "g",      "beta", "state", "initial_state",
    "x", "gate", "residual", "weight", "bias"};
// Any other tensor is small; one that is not is a slip of the pen.
constexpr std::int64_t most_elements = 1 << 20;

class Reader {
 public:
  explicit Reader(std::string path) : path_(std::move(path)) {}

  Description read(const json& call) {
    if (!call.is_object()) refuse("it is not a JSON object");
    for (const auto& [key, value] : call.items()) {
      if (key == "op") description_.options["op"] = text_of(value);
      else if (key == "tensors") read_tensors(value);
      else if (key == "options") read_options(value);
      else refuse(fmt::format("it has {}; known are op, tensors, options", key));
    }
    return std::move(description_);
  }

 private:
  [[noreturn]] void refuse(const std::string& problem) const {
    fail(Code::command_line, {.argument = path_, .value = problem});
  }

  static std::string text_of(const json& value) {
    return value.is_string() ? value.get<std::string>() : value.dump();
  }

  void read_options(const json& options) {
    if (!options.is_object()) refuse("options is not an object");
    for (const auto& [name, value] : options.items()) description_.options[name] = text_of(value);
  }

  void read_tensors(const json& tensors) {
    if (!tensors.is_object()) refuse("tensors is not an object");
    for (const auto& [name, tensor] : tensors.items()) {
      if (tensor.is_array()) {
        const auto values = integers(tensor, name);
        const auto size = static_cast<std::int64_t>(values.size());
        description_.tensors[name] = with_memory(DType::i64, {}, {&size, 1}, values);
      } else if (tensor.is_object()) {
        description_.tensors[name] = read_tensor(name, tensor);
      } else {
        refuse(fmt::format("{} is neither an object nor a list", name));
      }
    }
  }

  TensorView read_tensor(const std::string& name, const json& tensor) {
    for (const auto& field : tensor.items()) {
      const auto known = {"dtype", "shape", "strides", "device", "values"};
      if (std::ranges::find(known, field.key()) == known.end()) {
        refuse(fmt::format("{} has the unknown field {}", name, field.key()));
      }
    }
    const DType dtype = dtype_of(tensor, name);
    const Device device = device_of(tensor, name);
    const auto shape = integers(tensor.value("shape", json()), "shape of " + name);
    const auto strides = strides_of(tensor, name, shape.size());
    const TensorView view(next_address(), dtype, device, shape, strides);
    if (std::ranges::count(only_shapes, name) != 0 || !device.is_host()) return view;

    const std::int64_t count =
        std::ranges::any_of(shape, [](auto size) { return size < 0; }) ? 0 : view.numel();
    if (count > most_elements)
      refuse(fmt::format("{} has more than {} elements", name, most_elements));
    if (!strides.empty()) refuse(fmt::format("{} has values, so it cannot have strides", name));
    std::vector<std::int64_t> values;
    if (tensor.contains("values")) values = integers(tensor["values"], "values of " + name);
    // Elements of floating-point side tensors are zeros: their shapes are what can be wrong.
    const bool whole = dtype != DType::f32 && dtype != DType::f16 && dtype != DType::bf16;
    if (!whole && !values.empty()) refuse(fmt::format("values of {} cannot be given", name));
    if (whole && static_cast<std::int64_t>(values.size()) != count) {
      refuse(fmt::format("{} needs {} values", name, count));
    }
    return with_memory(dtype, device, shape, values);
  }

  // Little-endian, so that the low bytes of a value are its value in a narrower type.
  TensorView with_memory(DType dtype, Device device, TensorView::Dims shape,
                         const std::vector<std::int64_t>& values) {
    const std::size_t width = size_of(dtype);
    std::size_t count = 1;
    for (const std::int64_t size : shape)
      count *= static_cast<std::size_t>(std::max<std::int64_t>(size, 0));
    auto& memory = description_.memory.emplace_back(count * width / 8 + 1, 0);
    auto* bytes = reinterpret_cast<std::byte*>(memory.data());
    for (std::size_t i = 0; i < values.size(); ++i)
      std::memcpy(bytes + i * width, &values[i], width);
    return {bytes, dtype, device, shape};
  }

  // Aligned, and far enough apart that no two tensors overlap.
  void* next_address() {
    address_ += std::uintptr_t{1} << 50;
    return std::bit_cast<void*>(address_);
  }

  std::vector<std::int64_t> integers(const json& list, const std::string& what) const {
    const auto whole = [](const json& number) { return number.is_number_integer(); };
    if (!list.is_array() || !std::ranges::all_of(list, whole)) {
      refuse(fmt::format("{} is not a list of whole numbers", what));
    }
    return list.get<std::vector<std::int64_t>>();
  }

  std::vector<std::int64_t> strides_of(const json& tensor, const std::string& name,
                                       std::size_t rank) const {
    if (!tensor.contains("strides")) return {};
    auto strides = integers(tensor["strides"], "strides of " + name);
    if (strides.size() != rank) {
      refuse(fmt::format("{} has {} sizes but {} strides", name, rank, strides.size()));
    }
    return strides;
  }

  DType dtype_of(const json& tensor, const std::string& name) const {
    const json text = tensor.value("dtype", json());
    std::string wanted = text.is_string() ? text.get<std::string>() : "";
    if (wanted.starts_with("torch.")) wanted.erase(0, 6);
    std::string known;
    for (const auto& [dtype_name, dtype] : dtype_names) {
      if (dtype_name == wanted) return dtype;
      if (dtype_name == to_string(dtype)) known += fmt::format(" {}", dtype_name);
    }
    refuse(fmt::format("dtype of {} is none of{}", name, known));
  }

  Device device_of(const json& tensor, const std::string& name) const {
    const json text = tensor.value("device", json("cpu"));
    const std::string wanted = text.is_string() ? text.get<std::string>() : "";
    if (wanted == "cpu") return {};
    Device device{DeviceType::cuda, 0};
    if (wanted == "cuda") return device;
    if (wanted.starts_with("cuda:")) {
      const char* end = wanted.data() + wanted.size();
      const auto [stop, error] = std::from_chars(wanted.data() + 5, end, device.index);
      if (error == std::errc{} && stop == end && device.index >= 0) return device;
    }
    refuse(fmt::format("device of {} is not cpu, cuda or cuda:<index>", name));
  }

  std::string path_;
  Description description_;
  std::uintptr_t address_ = 0;
};

}  // namespace

Description read_description(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  if (!stream.is_open() || stream.bad()) {
    fail(Code::file_unreadable, {.argument = path.string(), .value = "it does not open"});
  }
  return Reader(path.string()).read(json::parse(text, nullptr, false));
}

}  // namespace packattn::cli
