// SPDX-License-Identifier: Apache-2.0
// What Python asks of the library besides its operations: the error reference, implementations.
#include <algorithm>
#include <cstdint>
#include <span>

#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/reflection/registry.h>

#include "call_reader.h"
#include "faults.h"

namespace packattn::python {

namespace {

using Strings = ffi::Array<ffi::String>;

ffi::String text(std::string_view s) { return ffi::String(s.data(), s.size()); }

// Rows of [id, repo, code, slug, message, severity, tags...].
ffi::Array<ffi::Any> record_rows() {
  ffi::Array<ffi::Any> rows;
  for (const auto& r : records()) {
    Strings row{text(r.id),   text(r.repo),    text(r.code),
                text(r.slug), text(r.message), text(r.severity)};
    for (const auto tag : r.tags) row.push_back(text(tag));
    rows.push_back(row);
  }
  return rows;
}

// Rows of [id, score, [placeholder, capture, ...]].
ffi::Array<ffi::Any> find(const std::string& asked, std::int64_t limit) {
  ffi::Array<ffi::Any> rows;
  for (const auto& m : find_records(asked, static_cast<std::size_t>(limit))) {
    Strings captures;
    for (std::size_t i = 0; i < m.placeholders.size() && i < m.captures.size(); ++i) {
      captures.push_back(m.placeholders[i]);
      captures.push_back(m.captures[i]);
    }
    rows.push_back(ffi::Array<ffi::Any>{text(m.id), m.score, captures});
  }
  return rows;
}

Strings implementation_names(std::int64_t op) {
  Strings names;
  for (const auto& name : implementations(static_cast<Op>(op))) names.push_back(name);
  return names;
}

/// A number of the catalogue, or 0 for none.
std::optional<Code> code_of(std::int64_t number) {
  if (number == 0) return {};
  return static_cast<Code>(number);
}

void inject(bool fail_allocations, bool hide_simd, bool hide_cuda, std::int64_t device_fault,
            std::int64_t decline) {
  inject_faults({.fail_allocations = fail_allocations,
                 .hide_simd = hide_simd,
                 .hide_cuda = hide_cuda,
                 .device_fault = code_of(device_fault),
                 .decline = code_of(decline)});
}

/// JSON of the fault that the device's current stream reported, or null.
ffi::Any status(std::int64_t index) {
  const Device device{DeviceType::cuda, static_cast<std::int32_t>(index)};
  void* stream = TVMFFIEnvGetStream(static_cast<std::int32_t>(device.type), device.index);
  const auto fault = last_status(device, stream);
  if (!fault) return nullptr;
  return text(to_json(std::span(&*fault, 1)));
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::GlobalDef()
      .def("packattn.version", [] { return text(version()); })
      .def("packattn.records", record_rows)
      .def("packattn.record_json", [](const std::string& id) { return text(record_json(id)); })
      .def("packattn.record_page", [](const std::string& id) { return text(record_page(id)); })
      .def("packattn.find_records", find)
      .def("packattn.implementations", implementation_names)
      .def("packattn.inject_faults", inject)
      .def("packattn.limit_threads",
           [](std::int64_t most) {
             limit_threads(static_cast<int>(std::clamp<std::int64_t>(most, 0, INT32_MAX)));
           })
      .def("packattn.last_status", status)
      .def_packed("packattn.refuse", [](ffi::PackedArgs args, ffi::Any* result) {
        CallReader call(args);
        call.faults();
        *result = refusal(call.faults_and({}));
      });
}

}  // namespace packattn::python
