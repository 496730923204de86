// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include <tvm/ffi/reflection/registry.h>

#include "batch.h"
#include "faults.h"
#include "verdicts.h"

namespace packattn::python {

namespace {

struct KdaCall {
  Op op;
  KdaArgs args;
  KdaOptions options;
  Context context;
  BatchArgument batch;
};

// Stands in for outputs that Python makes, so that a call can be checked as it would run.
void plan_outputs(const CallReader& call, KdaCall& c) {
  const auto& q = c.args.q;
  const auto& k = c.args.k;
  const auto& v = c.args.v;
  if (q.rank() != 4 || k.rank() != 4 || v.rank() != 4) return;
  const auto device = q.device();
  if (call.planned("out")) {
    c.args.out =
        phantom(0, q.dtype(), device, std::array{v.size(0), v.size(1), v.size(2), v.size(3)});
  }
  const bool v_first = c.options.state_layout == StateLayout::v_first;
  const auto states = [&](int number, std::int64_t count) {
    return phantom(number, DType::f32, device,
                   std::array{count, v.size(2), v_first ? v.size(3) : k.size(3),
                              v_first ? k.size(3) : v.size(3)});
  };
  if (const auto n = call.planned_size("final_state")) {
    c.args.final_state = states(1, std::max<std::int64_t>(0, *n));
  }
  // Without a chunk size nobody can say how many there would be.
  const auto n = call.planned_size("chunk_states");
  if (n && *n >= 0) c.args.chunk_states = states(2, *n);
}

KdaCall read_kda(CallReader& call) {
  KdaCall c;
  c.op = static_cast<Op>(call.choice("op", "'kda_recurrent' or 'kda_chunk'"));
  call.faults();
  c.args.q = call.tensor("q");
  c.args.k = call.tensor("k");
  c.args.v = call.tensor("v");
  c.args.g = call.tensor("g");
  c.args.beta = call.tensor("beta");
  c.args.out = call.tensor("out");
  c.args.A_log = call.tensor("A_log");
  c.args.dt_bias = call.tensor("dt_bias");
  c.args.state = call.tensor("state");
  c.args.initial_state = call.tensor("initial_state");
  c.args.final_state = call.tensor("final_state");
  c.args.slots = call.tensor("slots");
  c.args.read_slots = call.tensor("read_slots");
  c.args.write_slots = call.tensor("write_slots");
  c.args.num_accepted_tokens = call.tensor("num_accepted_tokens");
  c.args.chunk_states = call.tensor("chunk_states");
  c.options.scale = call.optional_number("scale");
  c.options.gate = static_cast<GateKind>(call.choice("gate", "'given', 'softplus' or 'bounded'"));
  c.options.beta =
      static_cast<BetaKind>(call.choice("beta_kind", "'given', 'sigmoid' or 'two_sigmoid'"));
  c.options.lower_bound = call.number("lower_bound", c.options.lower_bound);
  c.options.l2norm = call.flag("l2norm");
  const auto layout = call.choice("state_layout", "'k_first' or 'v_first'");
  if (layout >= 0) c.options.state_layout = static_cast<StateLayout>(layout);
  c.options.null_slot = call.integer("null_slot", c.options.null_slot);
  c.options.chunk_size = call.integer("chunk_size", c.options.chunk_size);
  c.context = read_context(call, c.args.q);
  c.batch = read_batch(call);
  plan_outputs(call, c);
  return c;
}

std::vector<Fault> check(const KdaCall& c) {
  if (c.batch.batch) return check_kda(c.op, c.args, *c.batch.batch, c.options, c.context);
  return check_kda(c.op, c.args, c.batch.spec ? &*c.batch.spec : nullptr, c.options, c.context);
}

// Asks `function`, why_kda or kda_workspace_bytes, about a call that has to be legal.
template <class Function>
auto ask(Function function, const KdaCall& c) {
  if (!c.batch.spec) return function(c.op, c.args, c.batch.batch, c.options, c.context);
  const PackedBatch batch(*c.batch.spec);
  return function(c.op, c.args, &batch, c.options, c.context);
}

ffi::Any run(ffi::PackedArgs args) {
  return guarded([&]() -> ffi::Any {
    CallReader call(args);
    const auto c = read_kda(call);
    if (!call.clean()) return refusal(call.refusing_faults(check(c)));
    const auto run_form = [&](auto&&... batch) {
      if (c.op == Op::kda_chunk) {
        kda_chunk(c.args, batch..., c.options, c.context);
      } else {
        kda_recurrent(c.args, batch..., c.options, c.context);
      }
    };
    if (c.batch.batch) {
      run_form(*c.batch.batch);
    } else if (c.batch.spec) {
      run_form(*c.batch.spec);
    } else {
      run_form();
    }
    return nullptr;
  });
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::GlobalDef()
      .def_packed("packattn.kda",
                  [](ffi::PackedArgs args, ffi::Any* result) { *result = run(args); })
      .def_packed("packattn.check_kda",
                  [](ffi::PackedArgs args, ffi::Any* result) {
                    CallReader call(args);
                    const auto c = read_kda(call);
                    *result = refusal(call.faults_and(check(c)));
                  })
      .def_packed("packattn.why_kda",
                  [](ffi::PackedArgs args, ffi::Any* result) {
                    *result = guarded([&]() -> ffi::Any {
                      CallReader call(args);
                      const auto c = read_kda(call);
                      const auto found = call.faults_and(check(c));
                      if (!found.empty()) return refusal(found);
                      return verdicts(ask(why_kda, c));
                    });
                  })
      .def_packed("packattn.kda_workspace_bytes",
                  [](ffi::PackedArgs args, ffi::Any* result) {
                    *result = guarded([&]() -> ffi::Any {
                      CallReader call(args);
                      const auto c = read_kda(call);
                      const auto found = call.faults_and(check(c));
                      if (!found.empty()) return refusal(found);
                      return static_cast<std::int64_t>(ask(kda_workspace_bytes, c));
                    });
                  })
      .def("packattn.kda_chunk_count", [](ffi::AnyView batch, std::int64_t chunk_size) {
        return kda_chunk_count(batch.as<BatchObject>()->batch, chunk_size);
      });
}

}  // namespace packattn::python
