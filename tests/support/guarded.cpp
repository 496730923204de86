// SPDX-License-Identifier: Apache-2.0
#include "support/guarded.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "support/scalar.h"

namespace packattn::test {
namespace {

constexpr std::size_t guard_bytes = 512;
constexpr std::byte poison_byte{0xff};
constexpr unsigned char poison_element[] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};

std::vector<std::int64_t> strides_for(Form form, const std::vector<std::int64_t>& shape) {
  const std::size_t rank = shape.size();
  std::vector<std::int64_t> strides(rank, 1);
  if (rank < 2) return strides;
  // Innermost first: the order in which the dimensions are laid out.
  std::vector<std::size_t> order;
  for (std::size_t d = rank; d-- > 0;) order.push_back(d);
  if (form == Form::heads_first && rank > 2) {
    order.erase(order.begin() + 1);
    order.push_back(rank - 2);
  }
  std::int64_t stride = 1;
  for (const std::size_t d : order) {
    strides[d] = stride;
    stride *= std::max<std::int64_t>(shape[d], 1);
    if (form == Form::wide) stride += 8;
  }
  if (form == Form::odd_unit) {
    for (std::size_t d = 0; d + 1 < rank; ++d) {
      if (shape[d] == 1) strides[d] = 1;
    }
  }
  return strides;
}

}  // namespace

std::string to_string(Form form) {
  switch (form) {
    case Form::contiguous: return "contiguous";
    case Form::wide: return "wide";
    case Form::heads_first: return "heads_first";
    case Form::odd_base: return "odd_base";
    case Form::odd_unit: return "odd_unit";
  }
  return "?";
}

Guarded::Guarded(DType dtype, std::vector<std::int64_t> shape, Form form)
    : dtype_(dtype),
      shape_(std::move(shape)),
      strides_(strides_for(form, shape_)),
      numel_(1),
      element_(size_of(dtype)) {
  std::int64_t last = 0;
  for (std::size_t d = 0; d < shape_.size(); ++d) {
    numel_ *= shape_[d];
    last += std::max<std::int64_t>(shape_[d] - 1, 0) * strides_[d];
  }
  const std::size_t body = numel_ == 0 ? 0 : static_cast<std::size_t>(last + 1) * element_;
  // 128 more, so that element 0 can be put on a 64-byte boundary and one element past it.
  memory_.assign(guard_bytes + body + guard_bytes + 128, poison_byte);
  const auto address = reinterpret_cast<std::uintptr_t>(memory_.data()) + guard_bytes;
  base_ = guard_bytes + (64 - address % 64) % 64 + (form == Form::odd_base ? element_ : 0);
}

TensorView Guarded::view(bool read_only) const {
  if (!present()) return {};
  // Inputs are handed out writable too: a kernel that writes to them has to be caught.
  auto* data = const_cast<std::byte*>(memory_.data()) + base_;
  return {data, dtype_, Device{}, shape_, strides_, read_only};
}

TensorView Guarded::view_as_if_on_device() const {
  if (!present()) return {};
  auto* data = const_cast<std::byte*>(memory_.data()) + base_;
  return {data, dtype_, Device{DeviceType::cuda, 0}, shape_, strides_};
}

TensorView Guarded::send() {
  if (!present()) return {};
  if (device_ == nullptr) {
    device_ = std::make_shared<DeviceMemory>(memory_.size() + 64);
    device_offset_ = reinterpret_cast<std::uintptr_t>(memory_.data()) % 64;
  }
  device_->put(memory_, device_offset_);
  return {device_->data() + device_offset_ + base_, dtype_, Device{DeviceType::cuda, 0}, shape_,
          strides_};
}

void Guarded::fetch() {
  if (device_ != nullptr) device_->get(memory_, device_offset_);
}

std::size_t Guarded::offset(std::int64_t flat) const {
  std::int64_t elements = 0;
  for (std::size_t d = shape_.size(); d-- > 0;) {
    elements += flat % shape_[d] * strides_[d];
    flat /= shape_[d];
  }
  return base_ + static_cast<std::size_t>(elements) * element_;
}

template <class Visit>
void Guarded::for_each_run(std::int64_t from, std::int64_t count, Visit visit) const {
  const std::int64_t width = shape_.empty() ? 1 : shape_.back();
  while (count > 0) {
    const std::int64_t run = std::min(count, width - from % width);
    visit(offset(from), static_cast<std::size_t>(run));
    from += run;
    count -= run;
  }
}

void Guarded::set(std::int64_t flat, double value) {
  encode(dtype_, memory_.data() + offset(flat), value);
}

void Guarded::set_integer(std::int64_t flat, std::int64_t value) {
  const auto narrow = static_cast<std::int32_t>(value);
  const void* from = dtype_ == DType::i32 ? static_cast<const void*>(&narrow) : &value;
  std::memcpy(memory_.data() + offset(flat), from, element_);
}

double Guarded::get(std::int64_t flat) const {
  return decode(dtype_, memory_.data() + offset(flat));
}

void Guarded::fill(std::span<const float> values, std::int64_t from) {
  const float* next = values.data();
  for_each_run(from, static_cast<std::int64_t>(values.size()),
               [&](std::size_t at, std::size_t count) {
                 for (std::size_t i = 0; i < count; ++i) {
                   encode(dtype_, memory_.data() + at + i * element_, *next++);
                 }
               });
}

std::vector<float> Guarded::values(std::int64_t from, std::int64_t count) const {
  if (count < 0) count = numel_ - from;
  std::vector<float> out(static_cast<std::size_t>(count));
  float* next = out.data();
  for_each_run(from, count, [&](std::size_t at, std::size_t run) {
    const std::byte* element = memory_.data() + at;
    if (dtype_ == DType::f32) {
      std::memcpy(next, element, run * element_);
      next += run;
      return;
    }
    for (std::size_t i = 0; i < run; ++i) {
      *next++ = static_cast<float>(decode(dtype_, element + i * element_));
    }
  });
  return out;
}

void Guarded::poison() {
  for_each_run(0, numel_, [&](std::size_t at, std::size_t count) {
    std::memset(memory_.data() + at, 0xff, count * element_);
  });
}

bool Guarded::is_poison(std::int64_t flat) const {
  const std::byte* at = memory_.data() + offset(flat);
  return std::all_of(at, at + element_, [](std::byte b) { return b == poison_byte; });
}

bool Guarded::unchanged(std::int64_t from, std::int64_t count) const {
  bool same = true;
  for_each_run(from, count, [&](std::size_t at, std::size_t run) {
    same = same && std::memcmp(memory_.data() + at, frozen_.data() + at, run * element_) == 0;
  });
  return same;
}

std::int64_t Guarded::unwritten(std::int64_t from, std::int64_t count) const {
  if (count < 0) count = numel_ - from;
  std::int64_t unwritten = 0;
  for_each_run(from, count, [&](std::size_t at, std::size_t run) {
    const std::byte* byte = memory_.data() + at;
    for (std::size_t i = 0; i < run; ++i, byte += element_) {
      unwritten += std::memcmp(byte, poison_element, element_) == 0 ? 1 : 0;
    }
  });
  return unwritten;
}

std::int64_t Guarded::damaged() const {
  std::vector<std::byte> rest = memory_;
  for_each_run(0, numel_, [&](std::size_t at, std::size_t count) {
    std::memset(rest.data() + at, 0xff, count * element_);
  });
  return static_cast<std::int64_t>(rest.size()) - std::count(rest.begin(), rest.end(), poison_byte);
}

}  // namespace packattn::test
