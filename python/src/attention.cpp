// SPDX-License-Identifier: Apache-2.0
#include <array>

#include <tvm/ffi/reflection/registry.h>

#include "batch.h"
#include "faults.h"
#include "verdicts.h"

namespace packattn::python {

namespace {

struct AttentionCall {
  AttentionArgs args;
  AttentionOptions options;
  Context context;
  BatchArgument batch;
};

AttentionCall read_attention(CallReader& call) {
  AttentionCall c;
  call.faults();
  c.args.q = call.tensor("q");
  c.args.k = call.tensor("k");
  c.args.v = call.tensor("v");
  c.args.out = call.tensor("out");
  c.batch = read_batch(call);
  c.options.causal = call.flag("causal");
  c.args.lse = call.tensor("lse");
  c.options.alibi_slopes = call.tensor("alibi_slopes");
  c.options.sinks = call.tensor("sinks");
  c.options.align = static_cast<Align>(call.choice("align", "'bottom_right' or 'top_left'"));
  c.options.window.left = call.optional_integer("window left");
  c.options.window.right = call.optional_integer("window right");
  c.options.softmax_scale = call.optional_number("softmax_scale");
  c.options.softcap = call.number("softcap");
  c.context = read_context(call, c.args.q);
  const auto& q = c.args.q;
  if (q.rank() == 3 && call.planned("lse")) {
    c.args.lse = phantom(0, DType::f32, q.device(), std::array{q.size(1), q.size(0)});
  }
  if (q.rank() == 3 && c.args.v.rank() >= 3 && c.args.v.rank() <= 4 && call.planned("out")) {
    c.args.out =
        phantom(1, q.dtype(), q.device(), std::array{q.size(0), q.size(1), c.args.v.size(-1)});
  }
  return c;
}

std::vector<Fault> check(const AttentionCall& c) {
  return c.batch.batch ? check_attention(c.args, *c.batch.batch, c.options, c.context)
                       : check_attention(c.args, *c.batch.spec, c.options, c.context);
}

ffi::Any run(ffi::PackedArgs args) {
  return guarded([&]() -> ffi::Any {
    CallReader call(args);
    const auto c = read_attention(call);
    if (!call.clean()) return refusal(call.refusing_faults(check(c)));
    if (c.batch.batch) {
      attention(c.args, *c.batch.batch, c.options, c.context);
    } else {
      attention(c.args, *c.batch.spec, c.options, c.context);
    }
    return nullptr;
  });
}

ffi::Any merge(ffi::PackedArgs args, bool only_check) {
  return guarded([&]() -> ffi::Any {
    CallReader call(args);
    call.faults();
    MergeArgs m;
    m.out_a = call.tensor("out_a");
    m.lse_a = call.tensor("lse_a");
    m.out_b = call.tensor("out_b");
    m.lse_b = call.tensor("lse_b");
    m.out = call.tensor("out");
    m.lse = call.tensor("lse");
    const auto context = read_context(call, m.out_a);
    if (only_check) return refusal(call.faults_and(check_merge_states(m)));
    if (!call.clean()) return refusal(call.refusing_faults(check_merge_states(m)));
    merge_states(m, context);
    return nullptr;
  });
}

}  // namespace

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::GlobalDef()
      .def_packed("packattn.attention",
                  [](ffi::PackedArgs args, ffi::Any* result) { *result = run(args); })
      .def_packed("packattn.check_attention",
                  [](ffi::PackedArgs args, ffi::Any* result) {
                    CallReader call(args);
                    const auto c = read_attention(call);
                    *result = refusal(call.faults_and(check(c)));
                  })
      .def_packed(
          "packattn.why_attention",
          [](ffi::PackedArgs args, ffi::Any* result) {
            *result = guarded([&]() -> ffi::Any {
              CallReader call(args);
              const auto c = read_attention(call);
              const auto found = call.faults_and(check(c));
              if (!found.empty()) return refusal(found);
              return verdicts(why_attention(c.args, c.batch.checked(), c.options, c.context));
            });
          })
      .def_packed("packattn.attention_workspace_bytes",
                  [](ffi::PackedArgs args, ffi::Any* result) {
                    *result = guarded([&]() -> ffi::Any {
                      CallReader call(args);
                      const auto c = read_attention(call);
                      const auto found = call.faults_and(check(c));
                      if (!found.empty()) return refusal(found);
                      return static_cast<std::int64_t>(attention_workspace_bytes(
                          c.args, c.batch.checked(), c.options, c.context));
                    });
                  })
      .def_packed("packattn.merge_states",
                  [](ffi::PackedArgs args, ffi::Any* result) { *result = merge(args, false); })
      .def_packed("packattn.check_merge_states",
                  [](ffi::PackedArgs args, ffi::Any* result) { *result = merge(args, true); });
}

}  // namespace packattn::python
