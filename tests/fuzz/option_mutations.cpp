// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include "fuzz/mutations.h"

namespace packattn::test::fuzz {
namespace {

double odd_number(Random& random) {
  return random.pick(std::vector{std::nan(""), std::numeric_limits<double>::infinity(),
                                 -std::numeric_limits<double>::infinity(), -1.0, 0.0, 2.0});
}

bool computes(const Call& call) { return call.op().has_value(); }

/// The last implementation of the call's operation whose name starts like this: the first ones want
/// more of the machine and of the types.
bool force(Call& call, const std::string& prefix) {
  if (!computes(call)) return false;
  bool found = false;
  for (const std::string& name : implementations(*call.op())) {
    if (!name.starts_with(prefix)) continue;
    call.implementation = name;
    found = true;
  }
  return found;
}

/// Every tensor on a GPU that is in this state.
Mutation gpu_that(const std::string& how, Code code) {
  return {"a GPU that " + how, code, [code](Call& call, Random&) {
            for (auto& [name, tensor] : call.tensors) tensor.device = {DeviceType::cuda, 0};
            call.injection.device_fault = code;
            return computes(call);
          }};
}

}  // namespace

std::vector<Mutation> option_mutations() {
  return {
      {"scale", Code::scale_invalid,
       [](Call& call, Random& random) {
         call.attention.softmax_scale = call.kda.scale = odd_number(random);
         return computes(call) && !call.is_layer();
       }},
      {"softcap", Code::softcap_invalid,
       [](Call& call, Random& random) {
         call.attention.softcap = odd_number(random);
         return call.kind == Kind::attention;
       }},
      {"window", Code::window_negative,
       [](Call& call, Random& random) {
         auto& bound =
             random.chance(0.5) ? call.attention.window.left : call.attention.window.right;
         bound = random.pick(std::vector<std::int64_t>{-1, 0, 3,
                                                       std::numeric_limits<std::int64_t>::max(),
                                                       std::numeric_limits<std::int64_t>::min()});
         return call.kind == Kind::attention;
       }},
      {"causal", Code::window_negative,
       [](Call& call, Random&) {
         call.attention.causal = !call.attention.causal;
         return call.kind == Kind::attention;
       }},
      {"unknown implementation", Code::implementation_unknown,
       [](Call& call, Random&) {
         call.implementation = "gpu/everything";
         return computes(call);
       }},
      {"implementation of another operation", Code::implementation_unknown,
       [](Call& call, Random&) {
         call.implementation = call.kind == Kind::attention ? "ref/kda_chunk" : "ref/attention";
         return computes(call);
       }},
      {"any implementation", Code::implementation_declined,
       [](Call& call, Random& random) {
         if (!computes(call)) return false;
         call.implementation = random.pick(implementations(*call.op()));
         return true;
       }},
      {"forced without instructions", Code::implementation_declined,
       [](Call& call, Random&) {
         call.injection.hide_simd = true;
         return force(call, "cpu/");
       }},
      {"forced without instructions for them", Code::simd_missing,
       [](Call& call, Random&) {
         call.injection.hide_simd = true;
         return force(call, "cpu/");
       }},
      {"without instructions", Code::simd_missing,
       [](Call& call, Random&) {
         call.injection.hide_simd = true;
         return computes(call);
       }},
      {"head sizes declined", Code::head_size_unsupported,
       [](Call& call, Random&) {
         call.injection.decline = Code::head_size_unsupported;
         return force(call, "cpu/");
       }},
      {"dtypes declined", Code::dtype_unsupported,
       [](Call& call, Random&) {
         call.injection.decline = Code::dtype_unsupported;
         return force(call, "cpu/");
       }},
      gpu_that("has no CUDA", Code::cuda_absent),
      gpu_that("cannot be used", Code::cuda_unavailable),
      gpu_that("fails", Code::cuda_failed),
      gpu_that("is too old", Code::capability_low),
      gpu_that("has no memory", Code::device_memory),
      {"threads", Code::threads_invalid,
       [](Call& call, Random& random) {
         call.threads = static_cast<int>(random.pick(std::vector<std::int64_t>{-1, -100, 0, 200}));
         return computes(call);
       }},
      {"no memory", Code::out_of_memory,
       [](Call& call, Random&) {
         call.injection.fail_allocations = true;
         return computes(call);
       }},
      {"no memory for a vector kernel", Code::out_of_memory,
       [](Call& call, Random&) {
         call.injection.fail_allocations = true;
         return call.kind == Kind::attention && force(call, "cpu/");
       }},
      {"small workspace", Code::workspace_small,
       [](Call& call, Random&) {
         call.workspace = Call::Workspace::small;
         return call.kind == Kind::attention && force(call, "cpu/");
       }},
      {"misaligned workspace", Code::workspace_misaligned,
       [](Call& call, Random&) {
         call.workspace = Call::Workspace::misaligned;
         return computes(call);
       }},
      {"full checks", Code::gate_positive,
       [](Call& call, Random&) {
         call.level = CheckLevel::full;
         return computes(call);
       }},
  };
}

}  // namespace packattn::test::fuzz
