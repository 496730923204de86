// SPDX-License-Identifier: Apache-2.0
#include "support/boundaries.h"

#include <algorithm>

#include "support/random.h"

namespace packattn::test {

Guarded integers(DType dtype, const std::vector<std::int64_t>& values) {
  Guarded tensor(dtype, {static_cast<std::int64_t>(values.size())});
  for (std::size_t i = 0; i < values.size(); ++i) {
    tensor.set_integer(static_cast<std::int64_t>(i), values[i]);
  }
  return tensor;
}

Guarded strided_integers(DType dtype, const std::vector<std::int64_t>& values) {
  Guarded pairs(dtype, {static_cast<std::int64_t>(values.size()), 2});
  for (std::size_t i = 0; i < values.size(); ++i) {
    pairs.set_integer(2 * static_cast<std::int64_t>(i), values[i]);
  }
  return pairs;
}

TensorView strided_view(const Guarded& pairs) {
  const TensorView all = pairs.view();
  const std::int64_t size = all.size(0);
  const std::int64_t stride = 2;
  return {all.data(), all.dtype(), all.device(), {&size, 1}, {&stride, 1}};
}

std::vector<std::int64_t> running_ends(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> ends{0};
  for (const std::int64_t length : lengths) ends.push_back(ends.back() + length);
  return ends;
}

Gaps with_gaps(const std::vector<std::int64_t>& lengths, std::uint64_t seed) {
  Random random(seed);
  Gaps gaps{.starts = std::vector<std::int64_t>(lengths.size()), .rows = 2};
  for (const std::int64_t n : random.permutation(static_cast<std::int64_t>(lengths.size()))) {
    gaps.starts[static_cast<std::size_t>(n)] = gaps.rows;
    gaps.rows += lengths[static_cast<std::size_t>(n)] + random.between(0, 3);
  }
  gaps.rows += 2;
  return gaps;
}

Guarded padding_mask(const std::vector<std::int64_t>& lengths) {
  const std::int64_t width =
      2 + (lengths.empty() ? 0 : *std::max_element(lengths.begin(), lengths.end()));
  Guarded mask(DType::boolean, {static_cast<std::int64_t>(lengths.size()), width});
  for (std::size_t b = 0; b < lengths.size(); ++b) {
    const std::int64_t first = b % 2 == 0 ? width - lengths[b] : 0;
    for (std::int64_t s = 0; s < width; ++s) {
      const bool token = s >= first && s < first + lengths[b];
      mask.set(static_cast<std::int64_t>(b) * width + s, token ? 1 : 0);
    }
  }
  return mask;
}

Guarded position_ids(const std::vector<std::int64_t>& lengths) {
  std::vector<std::int64_t> ids;
  for (const std::int64_t length : lengths) {
    for (std::int64_t i = 0; i < length; ++i) ids.push_back(i);
  }
  return integers(DType::i64, ids);
}

}  // namespace packattn::test
