// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "core/batch_state.h"
#include "core/check_attention.h"
#include "core/check_tensors.h"
#include "core/strided_copy.h"
#include "cuda/cuda.h"

namespace packattn {
namespace {

/// Refuses a pair that does not fit the batch; `padded` and `packed` are named as in the call.
void check(const TensorView& padded, const TensorView& packed, const PackedBatch& batch, Side side,
           const Context& context, bool packing) {
  FaultList faults;
  check_context_without_list(packing ? "pack" : "unpack", context, faults);
  TensorChecks checks(faults);
  const NamedView b{padded, "padded"};
  const NamedView t{packed, "packed"};
  const auto given = [&](NamedView x, const char* shape, int least) {
    if (x.view.present() && x.view.rank() >= least && x.view.rank() <= TensorView::max_rank) {
      return checks.given(x, x.view.rank(), shape);
    }
    return checks.given(x, least, shape);
  };
  const bool padded_ok = given(b, "[B, S, ...]", 2);
  const bool packed_ok = given(t, "[T, ...]", 1);
  if (padded_ok && packed_ok) {
    checks.same_dtype(t, b);
    checks.same_device(t, b);
    bool shapes = packed.rank() == padded.rank() - 1;
    for (int dim = 1; shapes && dim < packed.rank(); ++dim) {
      shapes = packed.size(dim) == padded.size(dim + 1);
    }
    if (!shapes) {
      faults.add(Code::tensor_shape, {.argument = "packed",
                                      .value = packed.shape_string(),
                                      .limit = fmt::format("[T, ...] with the trailing "
                                                           "dimensions of padded {}",
                                                           padded.shape_string())});
    }
    (packing ? checks.readable(b) : checks.writable(b));
    (packing ? checks.writable(t) : checks.readable(t));
    packing ? checks.disjoint(t, b) : checks.disjoint(b, t);
    if (size_of(padded.dtype()) == 0) {
      faults.add(Code::tensor_dtype, {.argument = "padded",
                                      .value = to_string(padded.dtype()),
                                      .limit = "a dtype of known size"});
    }
    check_device("padded", padded.device(), faults);
    const detail::BatchSide& rows = batch.state().side(side);
    if (batch.host_known()) {
      check_rows("packed", packed.size(0), rows, batch.capacity(), faults);
    }
    std::int64_t longest = side == Side::query ? batch.max_seqlen_q() : batch.max_seqlen_k();
    const bool masked = !rows.padded_rows.empty();
    const std::int64_t width = masked ? rows.padded_shape[1] : longest;
    if (padded.size(0) != batch.size() ||
        (masked ? padded.size(1) != width : padded.size(1) < width)) {
      faults.add(Code::tensor_shape, {.argument = "padded",
                                      .value = padded.shape_string(),
                                      .limit = fmt::format("[{}, {}{}, ...]", batch.size(), width,
                                                           masked ? "" : " or more")});
    }
    if (batch.is_paged() && side == Side::key) {
      faults.add(Code::key_rows_unused, {.argument = "the batch",
                                         .position = "packed",
                                         .value = std::to_string(packed.rank()),
                                         .limit = "[pages, page_size, Hk, D]"});
    }
  }
  check_batch_device(batch.state(), padded.device(), faults);
  std::move(faults).throw_if_any();
}

/// Calls fn(b, s, t) for every token: padded position [b, s], packed row t.
template <class F>
void for_each_token(const PackedBatch& batch, Side side, F&& fn) {
  const detail::BatchSide& rows = batch.state().side(side);
  if (!rows.padded_rows.empty()) {
    for (std::size_t t = 0; t < rows.padded_rows.size(); ++t) {
      const std::int64_t flat = rows.padded_rows[t];
      fn(flat / rows.padded_shape[1], flat % rows.padded_shape[1], static_cast<std::int64_t>(t));
    }
    return;
  }
  for (std::size_t n = 0; n < rows.lengths.size(); ++n) {
    for (std::int64_t s = 0; s < rows.lengths[n]; ++s) {
      fn(static_cast<std::int64_t>(n), s, rows.starts[n] + s);
    }
  }
}

}  // namespace

void pack(const TensorView& padded, const PackedBatch& batch, const TensorView& packed, Side side,
          const Context& context) {
  check(padded, packed, batch, side, context, /*packing=*/true);
  if (!padded.device().is_host()) {
    return cuda::copy_tokens(padded, batch, packed, side, /*packing=*/true, context.stream);
  }
  for_each_token(batch, side, [&](std::int64_t b, std::int64_t s, std::int64_t t) {
    copy_inner(padded, 2, at(padded, b, s), packed, 1, at(packed, t));
  });
}

void unpack(const TensorView& packed, const PackedBatch& batch, const TensorView& padded, Side side,
            const Context& context) {
  check(padded, packed, batch, side, context, /*packing=*/false);
  if (!padded.device().is_host()) {
    return cuda::copy_tokens(padded, batch, packed, side, /*packing=*/false, context.stream);
  }
  zero_inner(padded, 0, padded.as<std::byte>());
  for_each_token(batch, side, [&](std::int64_t b, std::int64_t s, std::int64_t t) {
    copy_inner(packed, 1, at(packed, t), padded, 2, at(padded, b, s));
  });
}

}  // namespace packattn
