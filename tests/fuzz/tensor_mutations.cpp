// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>

#include "fuzz/mutations.h"

namespace packattn::test::fuzz {
namespace {

using Names = std::vector<std::string>;

bool is_one_of(const std::string& name, const Names& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}
bool required(const std::string& name) {
  return is_one_of(name, {"q", "k", "v", "out", "g", "beta", "out_a", "out_b", "lse_a", "lse_b",
                          "padded", "packed"});
}
std::int64_t numel(const Tensor& t) {
  std::int64_t count = 1;
  for (const std::int64_t size : t.shape) count = times(count, size);
  return count;
}
std::vector<std::int64_t> contiguous(const Tensor& t) {
  std::vector<std::int64_t> strides(t.shape.size(), 1);
  for (std::size_t d = t.shape.size(); d-- > 1;) strides[d - 1] = times(strides[d], t.shape[d]);
  return strides;
}

/// Changes the tensor that `wanted` finds.
template <class Wanted, class Change>
auto change(const Wanted& wanted, Change apply) {
  return [wanted, apply](Call& call, Random& random) {
    const std::string name = pick_tensor(call, random, wanted);
    if (name.empty()) return false;
    apply(call.tensors[name], random);
    return true;
  };
}
const auto any = [](const std::string&, const Tensor&) { return true; };
const auto filled = [](const std::string&, const Tensor& t) { return numel(t) > 0; };
const auto filled_output = [](const std::string& name, const Tensor& t) {
  return is_output(name) && numel(t) > 0;
};
auto named(const Names& names) {
  return [names](const std::string& name, const Tensor& t) {
    return is_one_of(name, names) && !t.shape.empty();
  };
}

std::int64_t& any_of(std::vector<std::int64_t>& values, Random& random) {
  return values[static_cast<std::size_t>(
      random.between(0, static_cast<std::int64_t>(values.size()) - 1))];
}

void change_rank(Tensor& t, Random& random) {
  t.strides.clear();
  switch (random.between(0, 4)) {
    case 0: t.shape.insert(t.shape.begin(), 1); break;
    case 1:
      if (!t.shape.empty()) t.shape.erase(t.shape.begin());
      break;
    case 2:
      if (!t.shape.empty()) t.shape.pop_back();
      break;
    case 3: t.shape.clear(); break;
    default: t.shape.assign(9, 1);
  }
}

void change_size(Tensor& t, Random& random) {
  if (t.shape.empty()) return;
  std::int64_t& size = any_of(t.shape, random);
  size = random.pick(
      std::vector<std::int64_t>{plus(size, 1), size > 0 ? size - 1 : 0, times(2, size), 0});
  t.strides.clear();
}

void change_stride(Tensor& t, Random& random) {
  t.strides = contiguous(t);
  if (t.strides.empty()) return;
  std::int64_t& stride = any_of(t.strides, random);
  stride = random.pick(
      std::vector<std::int64_t>{0, 1, times(2, stride), times(-1, stride), plus(stride, 3)});
}

void everywhere(Call& call, Device device) {
  for (auto& [name, tensor] : call.tensors) tensor.device = device;
}

const Device cuda{DeviceType::cuda, 0};
const Device other_cuda{DeviceType::cuda, 1};
const Device foreign{static_cast<DeviceType>(12), 0};
const Device pinned{DeviceType::cuda_host, 0};

}  // namespace

std::vector<Mutation> tensor_mutations() {
  constexpr std::int64_t huge = std::numeric_limits<std::int64_t>::max() / 3;
  const auto tokens = [](const std::string& name, const Tensor& t) {
    return is_one_of(name, {"k", "v", "q", "beta", "g"}) && t.shape.size() > 1;
  };
  return {
      {"drop a required tensor", Code::tensor_missing,
       [](Call& call, Random& random) {
         const std::string name = pick_tensor(
             call, random, [](const std::string& n, const Tensor&) { return required(n); });
         if (name.empty()) return false;
         call.tensors.erase(name);
         return true;
       }},
      {"drop any tensor", Code::tensor_missing,
       [](Call& call, Random& random) {
         const std::string name = any_tensor(call, random);
         if (name.empty()) return false;
         call.tensors.erase(name);
         return true;
       }},
      {"rank", Code::tensor_rank, change(any, change_rank)},
      {"rank of q, k, v or out", Code::tensor_rank,
       change(named({"q", "k", "v", "out", "lse"}), change_rank)},
      {"size", Code::tensor_shape, change(any, change_size)},
      {"stride", Code::last_stride, change(any, change_stride)},
      {"type", Code::tensor_dtype,
       change(any,
              [](Tensor& t, Random& random) {
                t.dtype = random.pick(std::vector{DType::f32, DType::f16, DType::bf16, DType::f64,
                                                  DType::i32, DType::u8, DType::other});
              })},
      {"type of k or v", Code::tensor_dtype_mismatch,
       change(
           named({"k", "v", "out_b"}),
           [](Tensor& t, Random&) { t.dtype = t.dtype == DType::f16 ? DType::bf16 : DType::f16; })},
      {"type of all", Code::tensor_dtype,
       [](Call& call, Random&) {
         for (auto& [name, tensor] : call.tensors) tensor.dtype = DType::f64;
         return !call.tensors.empty();
       }},
      {"one on a GPU", Code::tensor_device,
       change(any, [](Tensor& t, Random&) { t.device = cuda; })},
      {"q on a foreign device", Code::device_unsupported,
       change(named({"q", "out_a"}), [](Tensor& t, Random&) { t.device = foreign; })},
      {"all on a GPU", Code::cuda_absent,
       [](Call& call, Random& random) {
         everywhere(call, random.chance(0.8) ? cuda : pinned);
         return call.kind == Kind::attention || call.is_kda();
       }},
      {"all on a GPU, boundaries on another", Code::boundaries_device,
       [](Call& call, Random&) {
         Integers* cu = call.ints("cu_seqlens_q");
         if (cu == nullptr || call.ints("host_q") != nullptr || call.ints("lengths_q") != nullptr) {
           return false;
         }
         everywhere(call, cuda);
         for (auto& [name, values] : call.integers) values.device = other_cuda;
         return call.kind == Kind::attention || call.is_kda();
       }},
      {"rows", Code::tokens_mismatch,
       change(tokens,
              [](Tensor& t, Random&) {
                std::int64_t& rows = t.shape[t.shape.size() > 3 ? 1 : 0];
                rows = plus(rows, 1);
              })},
      {"heads of v or k", Code::heads_mismatch,
       change(named({"v", "k"}),
              [](Tensor& t, Random&) {
                if (t.shape.size() > 1)
                  t.shape[t.shape.size() - 2] = times(2, t.shape[t.shape.size() - 2]);
              })},
      {"head size of k", Code::head_size_mismatch,
       change(named({"k"}), [](Tensor& t, Random&) { t.shape.back() = plus(t.shape.back(), 8); })},
      {"heads that do not divide", Code::heads_ratio,
       [](Call& call, Random&) {
         Tensor* q = call.tensor(call.is_kda() ? "v" : "q");
         if (q == nullptr || q->shape.size() < 3 || call.kind == Kind::merge) return false;
         for (const char* name : {"k", call.is_kda() ? "q" : "v"}) {
           Tensor* t = call.tensor(name);
           if (t == nullptr || t->shape.size() < 3) return false;
           t->shape[t->shape.size() - 2] = plus(q->shape[q->shape.size() - 2], 1);
         }
         return true;
       }},
      {"shape of an output", Code::tensor_shape,
       change(named({"out", "lse", "packed"}),
              [](Tensor& t, Random&) { t.shape.back() = plus(t.shape.back(), 1); })},
      {"last stride", Code::last_stride,
       change(
           [](const std::string&, const Tensor& t) {
             return !t.shape.empty() && t.shape.back() > 1 && numel(t) > 0;
           },
           [](Tensor& t, Random&) {
             t.strides = contiguous(t);
             t.strides.back() = 2;
           })},
      {"no heads or channels", Code::zero_size,
       change(named({"q", "k", "v", "out_a"}),
              [](Tensor& t, Random& random) {
                if (t.shape.size() > 2) t.shape[t.shape.size() - (random.chance(0.5) ? 1 : 2)] = 0;
              })},
      {"negative size", Code::negative_size,
       change(any,
              [](Tensor& t, Random& random) {
                if (!t.shape.empty()) any_of(t.shape, random) = -1;
              })},
      {"null", Code::null_data, change(filled, [](Tensor& t, Random&) { t.null = true; })},
      {"misaligned", Code::misaligned,
       change(filled, [](Tensor& t, Random& random) { t.byte_offset = random.between(-1, 3); })},
      {"read-only", Code::read_only_output,
       change([](const std::string& name, const Tensor&) { return is_output(name); },
              [](Tensor& t, Random&) { t.read_only = true; })},
      {"an output over itself", Code::outputs_overlap,
       change(filled_output,
              [](Tensor& t, Random&) {
                t.strides = contiguous(t);
                for (std::size_t d = 0; d + 1 < t.shape.size(); ++d) {
                  if (t.shape[d] > 1) t.strides[d] = 0;
                }
              })},
      {"in another tensor's memory", Code::outputs_overlap,
       [](Call& call, Random& random) {
         const std::string name = pick_tensor(call, random, filled_output);
         const std::string other = any_tensor(call, random);
         if (name.empty() || name == other ||
             call.tensors[other].dtype != call.tensors[name].dtype) {
           return false;
         }
         call.tensors[name].alias = other;
         return true;
       }},
      {"two inputs in one memory", Code::tensor_shape,
       [](Call& call, Random& random) {
         const auto input = [](const std::string& n, const Tensor&) { return !is_output(n); };
         const std::string name = pick_tensor(call, random, input);
         const std::string other = pick_tensor(call, random, input);
         if (name.empty() || call.tensors[other].dtype != call.tensors[name].dtype || name == "g" ||
             name == "beta" || name == "packed" || name == "padded") {
           return false;
         }
         if (name != other) call.tensors[name].alias = other;
         return true;
       }},
      {"absurd size", Code::tensor_shape,
       [](Call& call, Random& random) {
         call.absurd = true;
         change(any, [](Tensor& t, Random& r) {
           if (!t.shape.empty()) any_of(t.shape, r) = huge;
         })(call, random);
         return call.kind != Kind::pack && call.kind != Kind::unpack;
       }},
      {"absurd stride", Code::outputs_overlap,
       [](Call& call, Random& random) {
         call.absurd = true;
         change(any, [](Tensor& t, Random& r) {
           if (t.shape.empty()) return;
           t.strides = contiguous(t);
           any_of(t.strides, r) = r.pick(
               std::vector<std::int64_t>{huge, -huge, std::numeric_limits<std::int64_t>::min()});
         })(call, random);
         return call.kind != Kind::pack && call.kind != Kind::unpack;
       }},
  };
}

}  // namespace packattn::test::fuzz
