// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <tvm/ffi/tvm_ffi.h>

#include "packattn/packattn.h"

namespace packattn::python {

namespace ffi = tvm::ffi;

/// Reads the positional arguments of one call in order. What Python passed in a type that an
/// argument does not take becomes a fault, so that it is reported beside all the others. Arguments
/// that are not passed have the value `missing`: a call with few options is a short one.
///
/// A tensor arrives as nothing, as anything with DLPack, as a description (an array of integers:
/// address, DLPack code, bits, lanes, device type, device index, read-only, then sizes, then
/// strides) for what DLPack cannot say, or as a string that names the type of something that is
/// no tensor at all.
class CallReader {
 public:
  explicit CallReader(ffi::PackedArgs args) : args_(args) {}

  TensorView tensor(const char* name);
  bool flag(const char* name, bool missing = false);
  std::int64_t integer(const char* name, std::int64_t missing = 0);
  std::optional<std::int64_t> optional_integer(const char* name);
  double number(const char* name, double missing = 0);
  std::optional<double> optional_number(const char* name);
  std::string string(const char* name);
  /// A number that Python's table made of a word; any other string is refused, naming `words`.
  std::int64_t choice(const char* name, std::string_view words, std::int64_t missing = 0);
  /// A Python function, which takes the interpreter's lock whenever a worker calls it.
  std::function<void(std::int64_t, std::int64_t)> callback(const char* name);
  /// Rows of six strings: code, argument, position, value, limit, note. Faults found in Python; a
  /// row without a code names an output that Python makes for the call, its first size and shape.
  void faults();
  bool planned(std::string_view output) const { return planned_size(output).has_value(); }
  std::optional<std::int64_t> planned_size(std::string_view output) const;
  /// Faults found while reading, then those of `more` that do not repeat them. What Python makes
  /// itself is not missing; it just could not be made from such inputs.
  std::vector<Fault> faults_and(std::vector<Fault> more) const;
  /// The same for a call that cannot run. If nothing else is wrong with it, then Python has no way
  /// to make its outputs, and the caller has to.
  std::vector<Fault> refusing_faults(std::vector<Fault> more) const;
  ffi::AnyView any() { return done() ? ffi::AnyView() : args_[next_++]; }
  bool done() const { return next_ >= args_.size(); }

  /// Whether every argument had its type and Python found nothing to report.
  bool clean() const { return faults_.empty() && planned_.empty(); }

 private:
  void wrong_type(const char* name, const ffi::AnyView& value, std::string_view allowed);

  ffi::PackedArgs args_;
  int next_ = 0;
  std::vector<Fault> faults_;
  struct Planned {
    std::string name;
    std::int64_t size;  ///< of the first dimension, where no input tells it; -1 if nothing does
    std::string shape;  ///< in words
  };
  std::vector<Planned> planned_;
};

/// A tensor for checks alone, at an address that no process maps.
TensorView phantom(int number, DType dtype, Device device, TensorView::Dims shape);

}  // namespace packattn::python
