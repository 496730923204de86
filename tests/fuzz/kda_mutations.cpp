// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include "fuzz/mutations.h"

namespace packattn::test::fuzz {
namespace {

using Names = std::vector<std::string>;

const Names pools{"state", "initial_state", "final_state"};
const Names slot_names{"slots", "read_slots", "write_slots"};

Tensor* any_of(Call& call, Random& random, const Names& names) {
  std::vector<Tensor*> found;
  for (const std::string& name : names) {
    if (Tensor* t = call.tensor(name); t != nullptr) found.push_back(t);
  }
  const bool fits = call.is_kda() || call.kind == Kind::short_convolution;
  return found.empty() || !fits ? nullptr : random.pick(found);
}
Integers* any_slots(Call& call, Random& random, const Names& names) {
  std::vector<Integers*> found;
  for (const std::string& name : names) {
    Integers* t = call.ints(name);
    if (t != nullptr && !t->values.empty()) found.push_back(t);
  }
  return found.empty() ? nullptr : random.pick(found);
}

auto change_tensor(const Names& names, void (*apply)(Tensor&, Random&)) {
  return [=](Call& call, Random& random) {
    Tensor* t = any_of(call, random, names);
    if (t == nullptr || t->shape.empty()) return false;
    apply(*t, random);
    return true;
  };
}
auto change_slots(const Names& names, void (*apply)(Integers&, Random&)) {
  return [=](Call& call, Random& random) {
    Integers* t = any_slots(call, random, names);
    if (t != nullptr) apply(*t, random);
    return t != nullptr;
  };
}
auto change_options(void (*apply)(KdaOptions&, Random&)) {
  return [=](Call& call, Random& random) {
    apply(call.kda, random);
    return call.is_kda();
  };
}

bool has_pool(Call& call) {
  for (const std::string& name : pools) {
    if (call.tensor(name) != nullptr) return true;
  }
  return false;
}

}  // namespace

std::vector<Mutation> kda_mutations() {
  return {
      {"two batch rows beside boundaries", Code::batch_not_one,
       [](Call& call, Random& random) {
         Tensor* t = any_of(call, random, {"q", "k", "v", "g", "beta"});
         if (t == nullptr || !call.boundaries || t->shape.empty()) return false;
         t->shape[0] = random.between(0, 1) * 2;
         return true;
       }},
      {"boundaries taken or left", Code::batch_not_one,
       [](Call& call, Random&) {
         call.boundaries = !call.boundaries;
         return call.is_kda();
       }},
      {"gate shape", Code::gate_shape,
       change_tensor({"g"},
                     [](Tensor& t, Random& random) {
                       if (random.chance(0.5)) t.shape.back() = plus(t.shape.back(), 1);
                       else t.shape = {t.shape[0], 5};
                     })},
      {"beta shape", Code::beta_shape,
       change_tensor({"beta"},
                     [](Tensor& t, Random& random) {
                       if (random.chance(0.5)) t.shape.push_back(1);
                       else t.shape = {t.shape.front()};
                     })},
      {"beta per channel", Code::beta_per_channel,
       [](Call& call, Random&) {
         const Tensor* v = call.tensor("v");
         if (call.kind != Kind::kda_chunk || v == nullptr) return false;
         call.tensors["beta"] = {DType::f32, v->shape};
         return true;
       }},
      {"state of the other layout", Code::state_shape,
       change_tensor(pools,
                     [](Tensor& t, Random&) {
                       if (t.shape.size() == 4) std::swap(t.shape[2], t.shape[3]);
                       if (t.shape.size() == 4 && t.shape[2] == t.shape[3]) {
                         t.shape[3] = plus(t.shape[3], 1);
                       }
                     })},
      {"no state layout", Code::state_layout_missing,
       [](Call& call, Random&) {
         call.kda.state_layout = {};
         return has_pool(call);
       }},
      {"another state layout", Code::state_shape,
       change_options([](KdaOptions& o, Random&) { o.state_layout = StateLayout::v_first; })},
      {"one state fewer", Code::state_count,
       change_tensor(
           pools,
           [](Tensor& t, Random&) { t.shape[0] = plus(t.shape[0], t.shape[0] > 1 ? -1 : 1); })},
      {"one slot fewer", Code::slot_count,
       change_slots(slot_names,
                    [](Integers& t, Random&) {
                      if (t.shape.size() == 2) ++t.shape[0];
                      else t.values.pop_back();
                    })},
      {"slot outside the pool", Code::slot_range,
       change_slots(slot_names,
                    [](Integers& t, Random& random) {
                      t.values[0] = random.pick(std::vector<std::int64_t>{-2, -1, 1000, 1 << 30});
                    })},
      {"one slot twice", Code::slot_duplicate,
       change_slots(
           {"slots", "write_slots"},
           [](Integers& t, Random&) { std::fill(t.values.begin(), t.values.end(), t.values[0]); })},
      {"a slot read by one and written by another", Code::slot_read_and_written,
       [](Call& call, Random&) {
         Integers* read = call.ints("read_slots");
         Integers* write = call.ints("write_slots");
         if (read == nullptr || write == nullptr || call.tensor("state") == nullptr ||
             read->values.size() < 2 || read->values.size() != write->values.size()) {
           return false;
         }
         *write = *read;
         std::rotate(write->values.begin(), write->values.begin() + 1, write->values.end());
         return true;
       }},
      {"accepted tokens", Code::accepted_tokens_range,
       change_slots({"num_accepted_tokens"},
                    [](Integers& t, Random& random) {
                      t.values[0] = random.pick(std::vector<std::int64_t>{0, -1, 5, 1 << 20});
                    })},
      {"accepted tokens without columns", Code::accepted_without_columns,
       [](Call& call, Random& random) {
         const Integers* t = any_slots(call, random, {"slots", "read_slots"});
         if (t == nullptr || t->shape.size() == 2) return false;
         call.integers["num_accepted_tokens"] = {
             .values = std::vector<std::int64_t>(t->values.size(), 1)};
         return true;
       }},
      {"too few columns", Code::slot_columns,
       [](Call& call, Random& random) {
         Integers* t = any_slots(call, random, {"slots", "write_slots"});
         if (t == nullptr || t->shape.size() != 2) return false;
         t->shape[1] = random.between(0, 1);
         return true;
       }},
      {"columns in the chunked form", Code::option_unsupported,
       [](Call& call, Random& random) {
         Integers* t = any_slots(call, random, {"slots", "write_slots"});
         if (t == nullptr || call.kind != Kind::kda_chunk || t->shape.size() == 2) return false;
         t->shape = {static_cast<std::int64_t>(t->values.size()), 1};
         return true;
       }},
      {"no A_log", Code::A_log_missing,
       [](Call& call, Random&) {
         call.tensors.erase("A_log");
         call.kda.gate = GateKind::softplus;
         return call.is_kda();
       }},
      {"A_log beside given gates", Code::options_conflict,
       [](Call& call, Random&) {
         const Tensor* v = call.tensor("v");
         if (!call.is_kda() || v == nullptr || v->shape.size() < 3) return false;
         call.tensors["A_log"] = {DType::f32, {v->shape[2]}};
         call.kda.gate = GateKind::given;
         return true;
       }},
      {"lower bound", Code::lower_bound_invalid, change_options([](KdaOptions& o, Random& random) {
         o.gate = GateKind::bounded;
         o.lower_bound = random.pick(
             std::vector{0.0, 1.0, std::nan(""), -std::numeric_limits<double>::infinity(), -3.0});
       })},
      {"dt_bias shape", Code::dt_bias_shape,
       [](Call& call, Random& random) {
         if (!call.is_kda() || call.tensor("v") == nullptr) return false;
         call.tensors["dt_bias"] = {DType::f32, {random.between(1, 5)}};
         call.kda.gate = GateKind::bounded;
         return true;
       }},
      {"two states", Code::state_sources,
       [](Call& call, Random& random) {
         const Tensor* t = any_of(call, random, pools);
         if (t == nullptr) return false;
         const Tensor copy = *t;
         for (const std::string& name : pools) call.tensors.try_emplace(name, copy);
         return true;
       }},
      {"growing gates", Code::gate_positive,
       [](Call& call, Random&) {
         if (call.tensor("g") == nullptr || call.tensor("v") == nullptr ||
             call.tensor("g")->dtype != call.tensor("v")->dtype) {
           return false;
         }
         call.kda.gate = GateKind::given;
         call.tensors.erase("A_log");
         call.tensors.erase("dt_bias");
         call.tensors["g"].alias = std::string("v");  // numbers of both signs
         call.level = CheckLevel::full;
         return call.is_kda();
       }},
      {"chunk size", Code::chunk_size_invalid, change_options([](KdaOptions& o, Random& random) {
         o.chunk_size = random.pick(std::vector<std::int64_t>{0, -1, 48, std::int64_t{1} << 40});
       })},
      {"slots without a state", Code::slots_without_state,
       [](Call& call, Random& random) {
         if (any_slots(call, random, slot_names) == nullptr) return false;
         for (const std::string& name : pools) call.tensors.erase(name);
         return true;
       }},
      {"separate key boundaries", Code::keys_boundaries,
       [](Call& call, Random&) {
         if (!call.is_kda() || !call.boundaries) return false;
         const Integers* ends = call.ints("cu_seqlens_q");
         if (ends == nullptr) return false;
         call.integers["cu_seqlens_k"] = *ends;
         return true;
       }},
      {"chunk states of the recurrence", Code::chunk_states_unsupported,
       [](Call& call, Random& random) {
         const Tensor* t = any_of(call, random, pools);
         if (t == nullptr || call.kind != Kind::kda_recurrent) return false;
         call.tensors["chunk_states"] = *t;
         return true;
       }},
      {"kinds", Code::A_log_missing, change_options([](KdaOptions& o, Random& random) {
         o.gate = random.pick(std::vector{GateKind::given, GateKind::softplus, GateKind::bounded});
         o.beta =
             random.pick(std::vector{BetaKind::given, BetaKind::sigmoid, BetaKind::two_sigmoid});
         o.null_slot = random.between(-1, 3);
       })},
  };
}

}  // namespace packattn::test::fuzz
