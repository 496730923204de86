// SPDX-License-Identifier: Apache-2.0
#include "input.h"

#include <utility>

#include "fault.h"

namespace packattn::cli {
namespace {

constexpr std::string_view option_prefix = "packattn.";

/// Tensors of each argument group under the names that files use.
template <class Group>
using Field = std::pair<const char*, TensorView Group::*>;

constexpr Field<AttentionArgs> attention_fields[]{
    {"q", &AttentionArgs::q}, {"k", &AttentionArgs::k}, {"v", &AttentionArgs::v}};
constexpr Field<AttentionOptions> attention_option_fields[]{
    {"alibi_slopes", &AttentionOptions::alibi_slopes}, {"sinks", &AttentionOptions::sinks}};
constexpr Field<KdaArgs> kda_fields[]{{"q", &KdaArgs::q},
                                      {"k", &KdaArgs::k},
                                      {"v", &KdaArgs::v},
                                      {"g", &KdaArgs::g},
                                      {"beta", &KdaArgs::beta},
                                      {"A_log", &KdaArgs::A_log},
                                      {"dt_bias", &KdaArgs::dt_bias},
                                      {"state", &KdaArgs::state},
                                      {"initial_state", &KdaArgs::initial_state},
                                      {"slots", &KdaArgs::slots},
                                      {"read_slots", &KdaArgs::read_slots},
                                      {"write_slots", &KdaArgs::write_slots},
                                      {"num_accepted_tokens", &KdaArgs::num_accepted_tokens}};
constexpr Field<KdaGateArgs> gate_fields[]{
    {"g", &KdaGateArgs::g}, {"A_log", &KdaGateArgs::A_log}, {"dt_bias", &KdaGateArgs::dt_bias}};
constexpr Field<L2NormArgs> l2norm_fields[]{{"x", &L2NormArgs::x}};
constexpr Field<ShortConvolutionArgs> convolution_fields[]{
    {"x", &ShortConvolutionArgs::x},
    {"weight", &ShortConvolutionArgs::weight},
    {"bias", &ShortConvolutionArgs::bias},
    {"state", &ShortConvolutionArgs::state},
    {"initial_state", &ShortConvolutionArgs::initial_state},
    {"slots", &ShortConvolutionArgs::slots}};
constexpr Field<GatedRmsNormArgs> rms_norm_fields[]{{"x", &GatedRmsNormArgs::x},
                                                    {"gate", &GatedRmsNormArgs::gate},
                                                    {"weight", &GatedRmsNormArgs::weight},
                                                    {"bias", &GatedRmsNormArgs::bias},
                                                    {"residual", &GatedRmsNormArgs::residual}};
constexpr Field<BatchSpec> batch_fields[]{{"cu_seqlens_q", &BatchSpec::cu_seqlens_q},
                                          {"cu_seqlens_k", &BatchSpec::cu_seqlens_k},
                                          {"host_q", &BatchSpec::host_q},
                                          {"host_k", &BatchSpec::host_k},
                                          {"lengths_q", &BatchSpec::lengths_q},
                                          {"lengths_k", &BatchSpec::lengths_k},
                                          {"starts_q", &BatchSpec::starts_q},
                                          {"starts_k", &BatchSpec::starts_k},
                                          {"seqlens_k", &BatchSpec::seqlens_k},
                                          {"block_table", &BatchSpec::block_table},
                                          {"padding_mask_q", &BatchSpec::padding_mask_q},
                                          {"padding_mask_k", &BatchSpec::padding_mask_k},
                                          {"position_ids", &BatchSpec::position_ids}};

/// Tensors that a file has to have.
std::vector<const char*> needed(Op op) {
  switch (op) {
    case Op::attention: return {"q", "k", "v"};
    case Op::kda_recurrent:
    case Op::kda_chunk: return {"q", "k", "v", "g", "beta"};
    case Op::kda_gate: return {"g"};
    case Op::short_convolution: return {"x", "weight"};
    case Op::l2norm:
    case Op::gated_rms_norm: break;
  }
  return {"x"};
}

}  // namespace

Input::Input(const std::filesystem::path& path) {
  if (path.extension() == ".json") {
    description_ = read_description(path);
    options_ = description_.options;
    return;
  }
  file_.emplace(path);
  for (const auto& [key, value] : file_->metadata()) {
    if (key.starts_with(option_prefix)) options_[key.substr(option_prefix.size())] = value;
  }
}

std::vector<std::string> Input::names() const {
  if (file_) return file_->names();
  std::vector<std::string> names;
  names.reserve(description_.tensors.size());
  for (const auto& tensor : description_.tensors) names.push_back(tensor.first);
  return names;
}

TensorView Input::find(const std::string& name) const {
  if (file_) return file_->contains(name) ? file_->tensor(name) : TensorView{};
  const auto found = description_.tensors.find(name);
  return found == description_.tensors.end() ? TensorView{} : found->second;
}

void Input::bind(Call& call) const {
  std::vector<Fault> missing;
  const auto need = [&](const char* name) {
    if (!file_ || file_->contains(name)) return;
    try {
      static_cast<void>(file_->tensor(name));
    } catch (const Error& error) {
      missing.push_back(error.faults().front());
    }
  };
  for (const char* name : needed(call.op)) need(name);
  if (!missing.empty()) throw Error(std::move(missing));

  const auto fill = [&](auto& group, const auto& fields) {
    for (const auto& [name, field] : fields) group.*field = find(name);
  };
  switch (call.op) {
    case Op::attention:
      fill(call.attention, attention_fields);
      fill(call.attention_options, attention_option_fields);
      break;
    case Op::kda_recurrent:
    case Op::kda_chunk: fill(call.kda, kda_fields); break;
    case Op::kda_gate: fill(call.gate, gate_fields); break;
    case Op::l2norm: fill(call.l2norm, l2norm_fields); break;
    case Op::short_convolution: fill(call.convolution, convolution_fields); break;
    case Op::gated_rms_norm: fill(call.rms_norm, rms_norm_fields); break;
  }
  fill(call.spec, batch_fields);
  // Self-attention files often have one set of boundaries, without a suffix.
  if (!call.spec.cu_seqlens_q.present()) call.spec.cu_seqlens_q = find("cu_seqlens");
  for (const auto& [name, field] : batch_fields) {
    call.has_batch = call.has_batch || (call.spec.*field).present();
  }
}

std::vector<TensorView*> tensors_of(Call& call) {
  std::vector<TensorView*> tensors;
  const auto add = [&](auto& group, const auto& fields) {
    for (const auto& [name, field] : fields) {
      if ((group.*field).present()) tensors.push_back(&(group.*field));
    }
  };
  switch (call.op) {
    case Op::attention:
      add(call.attention, attention_fields);
      add(call.attention_options, attention_option_fields);
      break;
    case Op::kda_recurrent:
    case Op::kda_chunk: add(call.kda, kda_fields); break;
    case Op::kda_gate: add(call.gate, gate_fields); break;
    case Op::l2norm: add(call.l2norm, l2norm_fields); break;
    case Op::short_convolution: add(call.convolution, convolution_fields); break;
    case Op::gated_rms_norm: add(call.rms_norm, rms_norm_fields); break;
  }
  return tensors;
}

Op Input::usual_op() const {
  if (!find("q").present() && find("x").present()) {
    fail(Code::option_value, {.argument = "op",
                              .value = "missing, and x alone does not tell it",
                              .limit = "short_convolution, gated_rms_norm, l2norm"});
  }
  if (!find("g").present()) return Op::attention;
  return find("q").present() ? Op::kda_recurrent : Op::kda_gate;
}

}  // namespace packattn::cli
