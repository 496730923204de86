// SPDX-License-Identifier: Apache-2.0
#include "call_reader.h"

#include <algorithm>
#include <span>

#include "faults.h"

namespace packattn::python {

namespace {

using Index = ffi::TypeIndex;

bool is_string(const ffi::AnyView& value) {
  const auto type = value.type_index();
  return type == Index::kTVMFFIStr || type == Index::kTVMFFISmallStr ||
         type == Index::kTVMFFIRawStr;
}

// How Python calls what it passed. Objects of other classes arrive as their class's name.
std::string type_name(const ffi::AnyView& value) {
  switch (value.type_index()) {
    case Index::kTVMFFINone: return "None";
    case Index::kTVMFFIInt: return std::to_string(value.cast<std::int64_t>());
    case Index::kTVMFFIBool: return value.cast<bool>() ? "True" : "False";
    case Index::kTVMFFIFloat: return std::to_string(value.cast<double>());
    case Index::kTVMFFIDLTensorPtr:
    case Index::kTVMFFITensor: return "a tensor";
    case Index::kTVMFFIArray: return "a sequence";
    default: return is_string(value) ? value.cast<std::string>() : "an object";
  }
}

TensorView described(const ffi::Array<std::int64_t>& d) {
  constexpr std::size_t head = 7;
  const auto rank = (d.size() - head) / 2;
  std::vector<std::int64_t> dims(d.begin() + head, d.end());
  const std::span all(dims);
  return {reinterpret_cast<void*>(static_cast<std::uintptr_t>(d[0])),
          detail::dtype_from_dlpack(static_cast<unsigned>(d[1]), static_cast<unsigned>(d[2]),
                                    static_cast<unsigned>(d[3])),
          Device{static_cast<DeviceType>(d[4]), static_cast<std::int32_t>(d[5])},
          all.first(rank),
          all.last(rank),
          d[6] != 0};
}

}  // namespace

void CallReader::wrong_type(const char* name, const ffi::AnyView& value, std::string_view allowed) {
  faults_.push_back(
      make_fault(Code::option_value,
                 {.argument = name, .value = type_name(value), .limit = std::string(allowed)}));
}

TensorView CallReader::tensor(const char* name) {
  const auto value = any();
  switch (value.type_index()) {
    case Index::kTVMFFINone: return {};
    case Index::kTVMFFIDLTensorPtr:
    case Index::kTVMFFITensor: return TensorView::from_dlpack(*value.cast<DLTensor*>());
    case Index::kTVMFFIArray: return described(value.cast<ffi::Array<std::int64_t>>());
    default:
      faults_.push_back(
          make_fault(Code::option_value,
                     {.argument = name,
                      .value = is_string(value) ? value.cast<std::string>() : type_name(value),
                      .limit = "a NumPy array or any tensor with DLPack"}));
      return {};
  }
}

bool CallReader::flag(const char* name, bool missing) {
  if (done()) return missing;
  const auto value = any();
  if (value.type_index() == Index::kTVMFFIBool) return value.cast<bool>();
  wrong_type(name, value, "True or False");
  return false;
}

std::optional<std::int64_t> CallReader::optional_integer(const char* name) {
  const auto value = any();
  if (value.type_index() == Index::kTVMFFINone) return {};
  if (value.type_index() == Index::kTVMFFIInt) return value.cast<std::int64_t>();
  wrong_type(name, value, "an integer or None");
  return {};
}

std::int64_t CallReader::integer(const char* name, std::int64_t missing) {
  if (done()) return missing;
  const auto value = any();
  if (value.type_index() == Index::kTVMFFIInt) return value.cast<std::int64_t>();
  wrong_type(name, value, "an integer");
  return missing;
}

std::optional<double> CallReader::optional_number(const char* name) {
  const auto value = any();
  const auto type = value.type_index();
  if (type == Index::kTVMFFINone) return {};
  if (type == Index::kTVMFFIFloat || type == Index::kTVMFFIInt) return value.cast<double>();
  wrong_type(name, value, "a number or None");
  return {};
}

double CallReader::number(const char* name, double missing) {
  if (done()) return missing;
  const auto value = any();
  const auto type = value.type_index();
  if (type == Index::kTVMFFIFloat || type == Index::kTVMFFIInt) return value.cast<double>();
  wrong_type(name, value, "a number");
  return missing;
}

std::string CallReader::string(const char* name) {
  const auto value = any();
  if (value.type_index() == Index::kTVMFFINone) return {};
  if (is_string(value)) return value.cast<std::string>();
  wrong_type(name, value, "a name or None");
  return {};
}

std::int64_t CallReader::choice(const char* name, std::string_view words, std::int64_t missing) {
  if (done()) return missing;
  const auto value = any();
  if (value.type_index() == Index::kTVMFFIInt) return value.cast<std::int64_t>();
  wrong_type(name, value, words);
  return missing;
}

std::function<void(std::int64_t, std::int64_t)> CallReader::callback(const char* name) {
  const auto value = any();
  if (value.type_index() == Index::kTVMFFINone) return {};
  if (value.type_index() == Index::kTVMFFIFunction) {
    return [function = value.cast<ffi::Function>()](std::int64_t done, std::int64_t total) {
      function(done, total);
    };
  }
  wrong_type(name, value, "a function of (done, total) or None");
  return {};
}

void CallReader::faults() {
  const auto value = any();
  if (value.type_index() == Index::kTVMFFINone) return;
  for (const auto& row : value.cast<ffi::Array<ffi::Array<ffi::String>>>()) {
    if (row[0].empty()) {
      planned_.push_back(
          {.name = row[1], .size = row[2].empty() ? -1 : std::stoll(row[2]), .shape = row[4]});
      continue;
    }
    const auto number = std::stoi(std::string(row[0]).substr(2));  // "PA3008"
    faults_.push_back(make_fault(static_cast<Code>(number), {.argument = row[1],
                                                             .position = row[2],
                                                             .value = row[3],
                                                             .limit = row[4],
                                                             .note = row[5]}));
  }
}

std::optional<std::int64_t> CallReader::planned_size(std::string_view output) const {
  for (const auto& p : planned_) {
    if (p.name == output) return p.size;
  }
  return {};
}

std::vector<Fault> CallReader::faults_and(std::vector<Fault> more) const {
  auto all = faults_;
  const auto reported = [&](const std::string& argument) {
    return planned(argument) || std::any_of(faults_.begin(), faults_.end(),
                                            [&](const Fault& f) { return f.argument == argument; });
  };
  for (auto& fault : more) {
    const bool absent =
        fault.code == Code::tensor_missing || fault.code == Code::boundaries_missing;
    if (!(absent && reported(fault.argument))) all.push_back(std::move(fault));
  }
  return all;
}

std::vector<Fault> CallReader::refusing_faults(std::vector<Fault> more) const {
  auto all = faults_and(std::move(more));
  if (!all.empty()) return all;
  for (const auto& p : planned_) {
    all.push_back(make_fault(Code::tensor_missing,
                             {.argument = p.name,
                              .limit = p.shape,
                              .note = "NumPy arrays and torch tensors are made as outputs, no "
                                      "others on a device"}));
  }
  return all;
}

TensorView phantom(int number, DType dtype, Device device, TensorView::Dims shape) {
  const auto address = (std::uintptr_t{1} << 61) + (static_cast<std::uintptr_t>(number) << 48);
  return {reinterpret_cast<void*>(address), dtype, device, shape};
}

}  // namespace packattn::python
