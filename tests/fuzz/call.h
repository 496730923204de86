// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "packattn/packattn.h"

#include "support/random.h"

// A call as a value that mutations can spoil: every tensor is its numbers, not yet a view.

namespace packattn::test::fuzz {

/// A floating-point argument. Data comes from the tensor's own block of memory, which is large
/// enough for what any two mutations make of its sizes, strides and type.
struct Tensor {
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides = {};  ///< empty: contiguous
  std::ptrdiff_t byte_offset = 0;
  Device device = {};
  bool read_only = false;
  bool null = false;
  std::string alias = {};  ///< lies in this tensor's memory instead
};

/// An integer argument: boundaries, slots, masks, page numbers.
struct Integers {
  std::vector<std::int64_t> values;
  DType dtype = DType::i32;
  std::vector<std::int64_t> shape = {};  ///< empty: [values]
  Device device = {};
  bool null = false;
};

enum class Kind {
  attention,
  kda_recurrent,
  kda_chunk,
  kda_gate,
  l2norm,
  short_convolution,
  gated_rms_norm,
  merge,
  pack,
  unpack,
};

struct Call {
  Kind kind = Kind::attention;
  std::map<std::string, Tensor> tensors;     ///< by argument name; absent ones are not there
  std::map<std::string, Integers> integers;  ///< likewise
  bool boundaries = true;                    ///< false: the [B, T] form of KDA
  bool capacity = false;
  std::optional<std::int64_t> max_seqlen_q = {}, max_seqlen_k = {};
  AttentionOptions attention = {};  ///< without its tensors
  KdaOptions kda = {};              ///< gate, lower_bound and null_slot also of its neighbours
  double eps = 1e-5;
  bool silu = false;
  GateActivation activation = GateActivation::swish;
  Side side = Side::query;

  std::string implementation = {};
  int threads = 1;
  CheckLevel level = CheckLevel::host;
  enum class Workspace { own, small, misaligned } workspace = Workspace::own;
  Injection injection = {};
  /// Sizes or strides beyond any memory: the call is checked, not run.
  bool absurd = false;

  bool is_kda() const { return kind == Kind::kda_recurrent || kind == Kind::kda_chunk; }
  bool is_layer() const {
    return kind == Kind::kda_gate || kind == Kind::l2norm || kind == Kind::short_convolution ||
           kind == Kind::gated_rms_norm;
  }
  /// The operation, for what has implementations to choose from.
  std::optional<Op> op() const {
    switch (kind) {
      case Kind::attention: return Op::attention;
      case Kind::kda_recurrent: return Op::kda_recurrent;
      case Kind::kda_chunk: return Op::kda_chunk;
      case Kind::kda_gate: return Op::kda_gate;
      case Kind::l2norm: return Op::l2norm;
      case Kind::short_convolution: return Op::short_convolution;
      case Kind::gated_rms_norm: return Op::gated_rms_norm;
      default: return {};
    }
  }
  Tensor* tensor(const std::string& name) {
    const auto found = tensors.find(name);
    return found == tensors.end() ? nullptr : &found->second;
  }
  Integers* ints(const std::string& name) {
    const auto found = integers.find(name);
    return found == integers.end() ? nullptr : &found->second;
  }
};

/// A legal call of a random kind, form and size.
Call random_call(Random& random);
/// Fills in a call whose kind is a neighbour of KDA.
void random_layer(Random& random, Call& call);

/// Everything that reproduces the call, for the message of a failure.
std::string describe(const Call& call);

/// Arguments that the operation writes to.
bool is_output(const std::string& name);

struct Views;

/// Lays calls out and runs them, in memory that is kept from call to call.
class Bench {
 public:
  Bench();

  struct Outcome {
    std::vector<Fault> faults;  ///< empty: it ran
    bool wrote_after_refusal = false;
    bool touched_foreign_bytes = false;
    /// Elements of every output, in the order of their names.
    std::map<std::string, std::vector<float>> outputs = {};
  };
  Outcome run(const Call& call);

 private:
  std::vector<std::byte>& block(const std::string& name, DType dtype);
  TensorView view_of(const Call& call, const std::string& name);
  TensorView view_of_integers(const Call& call, const std::string& name);
  Views lay_out(const Call& call);
  void invoke(const Call& call, const Views& views);

  std::map<std::pair<std::string, DType>, std::vector<std::byte>> blocks_;
  std::map<std::string, std::vector<std::byte>> integers_;
  std::vector<std::byte> workspace_;
};

}  // namespace packattn::test::fuzz
