// SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "fuzz/mutations.h"

namespace packattn::test::fuzz {
namespace {

using Names = std::vector<std::string>;

const Names running_ends{"cu_seqlens_q", "cu_seqlens_k"};
const Names host_copies{"host_q", "host_k"};
const Names lengths{"lengths_q", "lengths_k", "seqlens_k"};
const Names starts{"starts_q", "starts_k"};
constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();

/// One of the named integer arguments that the call has and `wanted` accepts.
template <class Wanted>
Integers* pick(Call& call, Random& random, const Names& names, Wanted&& wanted) {
  std::vector<Integers*> found;
  for (const std::string& name : names) {
    Integers* values = call.ints(name);
    if (values != nullptr && wanted(*values)) found.push_back(values);
  }
  return found.empty() ? nullptr : random.pick(found);
}
bool any(const Integers&) { return true; }
bool filled(const Integers& t) { return !t.values.empty(); }

template <class Wanted, class Change>
auto change(const Names& names, Wanted wanted, Change apply) {
  return [=](Call& call, Random& random) {
    Integers* t = pick(call, random, names, wanted);
    if (t != nullptr) apply(*t, random);
    return t != nullptr;
  };
}

std::int64_t& any_value(Integers& t, Random& random) {
  return t.values[static_cast<std::size_t>(
      random.between(0, static_cast<std::int64_t>(t.values.size()) - 1))];
}

void change_form(Integers& t, Random& random) {
  switch (random.between(0, 3)) {
    case 0: t.shape = {1, static_cast<std::int64_t>(t.values.size())}; break;
    case 1: t.shape = {static_cast<std::int64_t>(t.values.size()), 1}; break;
    case 2:
      t.values = {0};
      t.shape.assign(random.chance(0.5) ? 9 : 3, 1);
      break;
    default: t.shape = {static_cast<std::int64_t>(t.values.size()) + 1}; break;
  }
}

const Names all_boundaries{"cu_seqlens_q", "cu_seqlens_k", "host_q",   "host_k",    "lengths_q",
                           "lengths_k",    "starts_q",     "starts_k", "seqlens_k", "position_ids"};
const Names all_integers{"cu_seqlens_q",       "cu_seqlens_k", "host_q",      "host_k",
                         "lengths_q",          "lengths_k",    "starts_q",    "starts_k",
                         "seqlens_k",          "position_ids", "block_table", "padding_mask_q",
                         "padding_mask_k",     "slots",        "read_slots",  "write_slots",
                         "num_accepted_tokens"};

bool drop(Call& call, Random& random, const Names& names) {
  Names present;
  for (const std::string& name : names) {
    if (call.ints(name) != nullptr) present.push_back(name);
  }
  if (present.empty()) return false;
  call.integers.erase(random.pick(present));
  return true;
}

}  // namespace

std::vector<Mutation> boundary_mutations() {
  const Device cuda{DeviceType::cuda, 0};
  return {
      {"drop boundaries", Code::boundaries_missing,
       [](Call& call, Random& random) { return drop(call, random, all_integers); }},
      {"rank of boundaries", Code::boundaries_rank, change(all_boundaries, any, change_form)},
      {"type of boundaries", Code::boundaries_dtype,
       change(all_boundaries, any,
              [](Integers& t, Random& random) {
                t.dtype = random.pick(std::vector{DType::f32, DType::i16, DType::u8, DType::f64});
              })},
      {"type of any integers", Code::tensor_dtype,
       change(all_integers, any,
              [](Integers& t, Random& random) {
                t.dtype = random.pick(std::vector{DType::i32, DType::i64, DType::f32, DType::i8});
              })},
      {"null integers", Code::null_data,
       change(all_integers, any, [](Integers& t, Random&) { t.null = true; })},
      {"no entries", Code::boundaries_empty,
       change(running_ends, any, [](Integers& t, Random&) { t.values.clear(); })},
      {"start", Code::boundaries_start,
       change(running_ends, filled,
              [](Integers& t, Random& random) { t.values[0] = random.between(-2, 2); })},
      {"end past the tensor", Code::boundaries_end,
       change(running_ends, filled,
              [](Integers& t, Random& random) {
                t.values.back() =
                    plus(t.values.back(), random.pick(std::vector<std::int64_t>{1, 1000, 1 << 30}));
              })},
      {"end before the tensor's", Code::rows_after_end,
       change(
           running_ends,
           [](const Integers& t) { return t.values.size() > 1 && t.values.back() > 0; },
           [](Integers& t, Random&) {
             const std::int64_t end = t.values.back() - 1;
             for (std::int64_t& value : t.values) value = std::min(value, end);
           })},
      {"any entry", Code::boundaries_decrease,
       change(all_integers, filled,
              [](Integers& t, Random& random) {
                std::int64_t& value = any_value(t, random);
                value = random.pick(std::vector<std::int64_t>{
                    plus(value, 1), plus(value, -1), -1, 0, 7, most, -most, std::int64_t{1} << 31});
              })},
      {"decrease", Code::boundaries_decrease,
       change(
           running_ends, [](const Integers& t) { return t.values.size() > 2; },
           [](Integers& t, Random& random) {
             const auto i = static_cast<std::size_t>(
                 random.between(1, static_cast<std::int64_t>(t.values.size()) - 2));
             t.values[i] = plus(t.values.back(), 1);
           })},
      {"one sequence fewer", Code::batch_size_mismatch,
       change(
           {"cu_seqlens_k", "lengths_k", "seqlens_k", "starts_q"},
           [](const Integers& t) { return t.values.size() > 1; },
           [](Integers& t, Random&) { t.values.erase(t.values.begin() + 1); })},
      {"host copy of another length", Code::host_copy_length,
       change(host_copies, any, [](Integers& t, Random&) { t.values.push_back(0); })},
      {"host copy of other values", Code::host_copy_values,
       change(host_copies, filled,
              [](Integers& t, Random&) { t.values.back() = plus(t.values.back(), 1); })},
      {"max_seqlen", Code::max_seqlen_small,
       [](Call& call, Random& random) {
         if (!call.boundaries) return false;
         auto& max = random.chance(0.5) ? call.max_seqlen_q : call.max_seqlen_k;
         max = random.pick(std::vector<std::int64_t>{-1, 0, 1, 100});
         return true;
       }},
      {"a second source", Code::sources_conflict,
       [](Call& call, Random& random) {
         if (!call.boundaries) return false;
         const Integers mask{.values = {1, 1}, .dtype = DType::boolean, .shape = {1, 2}};
         const std::string name = random.pick(
             Names{"padding_mask_q", "padding_mask_k", "position_ids", "seqlens_k", "starts_q"});
         if (call.ints(name) != nullptr) return false;
         call.integers[name] = name[1] == 'a' ? mask : Integers{.values = {0}};
         return true;
       }},
      {"a gap beside cu_seqlens", Code::boundaries_gap,
       [](Call& call, Random&) {
         Integers* t = call.ints("lengths_q");
         if (t == nullptr || call.ints("cu_seqlens_q") == nullptr || t->values.empty())
           return false;
         t->values[0] = t->values[0] > 0 ? t->values[0] - 1 : 3;
         return true;
       }},
      {"negative length", Code::length_negative,
       change(lengths, filled, [](Integers& t, Random& random) { any_value(t, random) = -3; })},
      {"overlapping starts", Code::ranges_overlap,
       change({"starts_q"}, filled,
              [](Integers& t, Random&) { std::fill(t.values.begin(), t.values.end(), 0); })},
      {"start past the tensor", Code::range_past_end,
       change(starts, filled,
              [](Integers& t, Random& random) {
                any_value(t, random) = plus(any_value(t, random), 50);
              })},
      {"overflowing lengths", Code::lengths_overflow,
       change({"lengths_q", "lengths_k"}, filled,
              [](Integers& t, Random& random) {
                t.dtype = DType::i64;
                any_value(t, random) = most;
                t.values.back() = most;
              })},
      {"jumping position ids", Code::position_ids_jump,
       change({"position_ids"}, filled,
              [](Integers& t, Random& random) {
                any_value(t, random) = random.pick(std::vector<std::int64_t>{9, -1, 2, most});
              })},
      {"page outside the cache", Code::block_table_entry,
       change({"block_table"}, filled,
              [](Integers& t, Random& random) {
                std::fill(t.values.begin(), t.values.end(),
                          random.pick(std::vector<std::int64_t>{-1, 7, 1 << 30}));
              })},
      {"too few pages a sequence", Code::block_table_short,
       change(
           {"block_table"}, [](const Integers& t) { return t.shape.size() == 2; },
           [](Integers& t, Random& random) { t.shape[1] = random.between(0, 1); })},
      {"boundaries on a GPU", Code::boundaries_on_device,
       [cuda](Call& call, Random& random) {
         Integers* t = pick(call, random, all_integers, any);
         if (t != nullptr) t->device = cuda;
         return t != nullptr;
       }},
      {"packed keys beside pages", Code::key_rows_unused,
       [](Call& call, Random&) {
         Tensor* k = call.tensor("k");
         if (k == nullptr || k->shape.size() != 4 || call.kind != Kind::attention) return false;
         k->shape.erase(k->shape.begin());
         return true;
       }},
      {"capacity", Code::rows_after_end,
       [](Call& call, Random&) { return call.capacity = !call.capacity, call.boundaries; }},
  };
}

}  // namespace packattn::test::fuzz
