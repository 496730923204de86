// SPDX-License-Identifier: Apache-2.0
#include <sstream>

#include "fuzz/call.h"

namespace packattn::test::fuzz {
namespace {

const char* name_of(Kind kind) {
  switch (kind) {
    case Kind::merge: return "merge_states";
    case Kind::pack: return "pack";
    case Kind::unpack: return "unpack";
    default: return "?";
  }
}

std::string list(const std::vector<std::int64_t>& values) {
  std::string text;
  for (const std::int64_t value : values)
    text += (text.empty() ? "" : ", ") + std::to_string(value);
  return "[" + text + "]";
}

void describe(std::ostream& to, const std::string& name, const Tensor& t) {
  to << "\n  " << name << ": " << to_string(t.dtype) << ' ' << list(t.shape);
  if (!t.strides.empty()) to << " strides " << list(t.strides);
  if (t.byte_offset != 0) to << " offset " << t.byte_offset << " bytes";
  if (!(t.device == Device{})) to << " on " << to_string(t.device);
  if (t.read_only) to << " read-only";
  if (t.null) to << " null";
  if (!t.alias.empty()) to << " in the memory of " << t.alias;
}

void describe(std::ostream& to, const std::string& name, const Integers& t) {
  to << "\n  " << name << ": " << to_string(t.dtype) << ' ' << list(t.values);
  if (!t.shape.empty()) to << " shape " << list(t.shape);
  if (!(t.device == Device{})) to << " on " << to_string(t.device);
  if (t.null) to << " null";
}

}  // namespace

std::string describe(const Call& call) {
  std::ostringstream to;
  to << (call.op() ? to_string(*call.op()) : name_of(call.kind)) << " by \"" << call.implementation
     << "\", threads " << call.threads << ", level " << static_cast<int>(call.level)
     << ", workspace " << static_cast<int>(call.workspace);
  for (const auto& [name, tensor] : call.tensors) describe(to, name, tensor);
  for (const auto& [name, values] : call.integers) describe(to, name, values);
  if (!call.boundaries) to << "\n  no boundaries";
  if (call.capacity) to << "\n  capacity";
  const AttentionOptions& a = call.attention;
  if (call.kind == Kind::attention) {
    to << "\n  scale " << a.softmax_scale.value_or(-1) << " causal " << a.causal << " align "
       << static_cast<int>(a.align) << " left " << a.window.left.value_or(-1) << " right "
       << a.window.right.value_or(-1) << " softcap " << a.softcap;
  }
  const KdaOptions& k = call.kda;
  if (call.is_kda()) {
    to << "\n  scale " << k.scale.value_or(-1) << " gate " << static_cast<int>(k.gate) << " beta "
       << static_cast<int>(k.beta) << " lower_bound " << k.lower_bound << " chunk " << k.chunk_size
       << " null_slot " << k.null_slot << " v_first " << (k.state_layout == StateLayout::v_first);
  }
  if (call.is_layer()) {
    to << "\n  gate " << static_cast<int>(k.gate) << " lower_bound " << k.lower_bound << " eps "
       << call.eps << " silu " << call.silu << " activation " << static_cast<int>(call.activation)
       << " null_slot " << k.null_slot;
  }
  return to.str();
}

}  // namespace packattn::test::fuzz
