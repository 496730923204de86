// SPDX-License-Identifier: Apache-2.0
#include "core/check_kda.h"

#include <array>
#include <cmath>

#include <fmt/format.h>

#include "core/check_attention.h"

namespace packattn {
namespace {

class Checker {
 public:
  Checker(Op op, const KdaArgs& args, const detail::BatchState* batch, const KdaOptions& options,
          CheckLevel level, FaultList& faults)
      : op_(op),
        args_(args),
        batch_(batch),
        options_(options),
        level_(level),
        faults_(faults),
        checks_(faults) {}

  CheckedKda run() {
    check_qkv();
    check_gate();
    check_beta();
    check_gate_parameters();
    check_options();
    resolve_sequences();
    check_kda_states(op_, args_, options_, q_ok_ && v_ok_, checked_, faults_);
    check_kda_output(args_, q_ok_, v_ok_, checked_, faults_);
    if (level_ == CheckLevel::full && faults_.empty()) check_gate_sign(args_, checked_, faults_);
    return std::move(checked_);
  }

 private:
  void check_qkv() {
    q_ok_ = checks_.given(q(), 4, "[B, T, H, K]");
    k_ok_ = checks_.given(k(), 4, "[B, T, H, K]");
    v_ok_ = checks_.given(v(), 4, "[B, T, HV, V]");
    if (args_.q.present()) check_device("q", args_.q.device(), faults_);
    if (q_ok_) {
      p().device = args_.q.device();
      p().tokens = args_.q.size(1);
      p().heads = args_.q.size(2);
      p().key_dim = args_.q.size(3);
      if (checks_.dtype(q(), {DType::f32, DType::f16, DType::bf16})) p().dtype = args_.q.dtype();
    }
    if (v_ok_) {
      p().value_heads = args_.v.size(2);
      p().value_dim = args_.v.size(3);
    }
    for (const NamedView& t : {k(), v()}) {
      if (!t.view.present() || !args_.q.present()) continue;
      checks_.same_device(t, q());
      checks_.same_dtype(t, q());
    }
    if (q_ok_ && k_ok_) {
      mismatch(Code::heads_mismatch, k(), args_.k.size(2), p().heads);
      mismatch(Code::head_size_mismatch, k(), args_.k.size(3), p().key_dim);
    }
    if (q_ok_ && v_ok_ && p().heads > 0 && p().value_heads % p().heads != 0) {
      mismatch(Code::heads_ratio, v(), p().value_heads, p().heads);
    }
    const std::array<std::pair<NamedView, bool>, 3> tensors{
        {{q(), q_ok_}, {k(), k_ok_}, {v(), v_ok_}}};
    for (const auto& [t, ok] : tensors) {
      if (!ok) continue;
      if (t.view.size(2) == 0) zero_size(t, "its heads");
      if (t.view.size(3) == 0) zero_size(t, "its head size");
      check_rows_of(t);
      checks_.readable(t);
    }
  }

  /// Batch and token dimensions: one batch row beside boundaries, the same rows as q.
  void check_rows_of(const NamedView& t) {
    if (batch_ != nullptr && t.view.size(0) != 1) {
      faults_.add(
          Code::batch_not_one,
          {.argument = std::string(t.name), .value = std::to_string(t.view.size(0)), .limit = "1"});
    } else if (batch_ == nullptr && q_ok_) {
      mismatch(Code::tokens_mismatch, t, t.view.size(0), args_.q.size(0), "batch rows: [B, ...]");
    }
    if (q_ok_) mismatch(Code::tokens_mismatch, t, t.view.size(1), args_.q.size(1));
  }

  /// g and beta: `shape_ok` says whether the dimensions after B and T are among the accepted ones.
  void check_per_token(const NamedView& t, Code shape_code, bool shape_ok,
                       const std::string& accepted) {
    if (!shape_ok) {
      faults_.add(
          shape_code,
          {.argument = std::string(t.name), .value = t.view.shape_string(), .limit = accepted});
    } else {
      check_rows_of(t);
    }
    if (q_ok_) {
      checks_.same_device(t, q());
      if (t.view.dtype() != args_.q.dtype()) checks_.dtype(t, {DType::f32, args_.q.dtype()});
    }
    if (t.view.rank() <= 4) checks_.readable(t);
  }

  void check_gate() {
    const TensorView& x = args_.g;
    if (!x.present()) {
      checks_.given(g(), 4, "[B, T, HV, K]");
      return;
    }
    p().gate_dtype = x.dtype();
    p().gate_per_head = x.rank() == 3;
    if (!q_ok_ || !v_ok_) return;
    const bool channels = x.rank() == 4 && x.size(2) == p().value_heads && x.size(3) == p().key_dim;
    const bool heads = x.rank() == 3 && x.size(2) == p().value_heads;
    check_per_token(g(), Code::gate_shape, channels || heads,
                    fmt::format("[B, T, {0}, {1}] or [B, T, {0}]", p().value_heads, p().key_dim));
  }

  void check_beta() {
    const TensorView& x = args_.beta;
    if (!x.present()) {
      checks_.given(beta(), 3, "[B, T, HV]");
      return;
    }
    p().beta_dtype = x.dtype();
    p().beta_per_channel = x.rank() == 4;
    if (v_ok_) {
      const bool heads = x.rank() == 3 && x.size(2) == p().value_heads;
      const bool channels =
          x.rank() == 4 && x.size(2) == p().value_heads && x.size(3) == p().value_dim;
      check_per_token(
          beta(), Code::beta_shape, heads || channels,
          fmt::format("[B, T, {0}] or [B, T, {0}, {1}]", p().value_heads, p().value_dim));
    }
    if (p().beta_per_channel && op_ == Op::kda_chunk) {
      faults_.add(Code::beta_per_channel, {.argument = "beta", .position = "kda_chunk"});
    }
  }

  void check_gate_parameters() {
    p().has_A_log = options_.gate != GateKind::given && args_.A_log.present();
    p().has_dt_bias = options_.gate != GateKind::given && args_.dt_bias.present();
    check_gate_arguments({options_.gate, options_.lower_bound, args_.A_log, args_.dt_bias, q()},
                         v_ok_ ? p().value_heads : -1, q_ok_ ? p().key_dim : -1, faults_);
  }

  void check_options() {
    if (options_.scale && !is_finite_float(*options_.scale)) {
      faults_.add(
          Code::scale_invalid,
          {.argument = "scale", .value = number_text(*options_.scale), .limit = "finite fp32"});
    }
    if (op_ == Op::kda_chunk && check_chunk_size(options_.chunk_size, faults_)) {
      p().chunk_size = options_.chunk_size;
    }
    const auto K = static_cast<double>(std::max<std::int64_t>(1, p().key_dim));
    p().scale = options_.scale.value_or(1 / std::sqrt(K));
    p().gate = options_.gate;
    p().beta = options_.beta;
    p().lower_bound = options_.gate == GateKind::bounded ? options_.lower_bound : 0;
    p().l2norm = options_.l2norm;
  }

  void resolve_sequences() {
    if (batch_ == nullptr) {
      if (!q_ok_) return;
      checked_.count = args_.q.size(0);
      // A size that no other tensor shares is a mistake, perhaps of any magnitude: no list of it.
      const bool shared =
          k_ok_ && v_ok_ && args_.k.size(0) == checked_.count && args_.v.size(0) == checked_.count;
      if (!shared) return;
      for (std::int64_t row = 0; row < args_.q.size(0); ++row) {
        checked_.sequences.push_back({.row = row, .start = 0, .length = args_.q.size(1)});
      }
      return;
    }
    checked_.count = batch_->q.count;
    if (!batch_->shared) {
      faults_.add(Code::keys_boundaries, {.argument = to_string(op_)});
    }
    if (q_ok_) {
      check_batch_device(*batch_, args_.q.device(), faults_);
      // A padded batch's rows are T each, which says nothing about the packed rows to come.
      if (batch_->host_known && args_.q.size(0) == 1) {
        check_rows("q", args_.q.size(1), batch_->q, batch_->capacity, faults_);
      }
    }
    for (const Sequence& s : batch_->sequences) {
      checked_.sequences.push_back({.row = 0, .start = s.q_start, .length = s.q_length});
    }
  }

  void mismatch(Code code, const NamedView& t, std::int64_t value, std::int64_t limit,
                const char* note = "") {
    if (value == limit) return;
    faults_.add(code, {.argument = std::string(t.name),
                       .position = "q",
                       .value = std::to_string(value),
                       .limit = std::to_string(limit),
                       .note = note});
  }

  void zero_size(const NamedView& t, const char* what) {
    faults_.add(Code::zero_size, {.argument = std::string(t.name), .position = what});
  }

  KdaProblem& p() { return checked_.problem; }
  NamedView q() const { return {args_.q, "q"}; }
  NamedView k() const { return {args_.k, "k"}; }
  NamedView v() const { return {args_.v, "v"}; }
  NamedView g() const { return {args_.g, "g"}; }
  NamedView beta() const { return {args_.beta, "beta"}; }

  Op op_;
  const KdaArgs& args_;
  const detail::BatchState* batch_;
  const KdaOptions& options_;
  CheckLevel level_;
  FaultList& faults_;
  TensorChecks checks_;
  CheckedKda checked_;
  bool q_ok_ = false, k_ok_ = false, v_ok_ = false;
};

}  // namespace

CheckedKda check_kda_call(Op op, const KdaArgs& args, const detail::BatchState* batch,
                          const KdaOptions& options, CheckLevel level, FaultList& faults) {
  return Checker(op, args, batch, options, level, faults).run();
}

bool check_chunk_size(std::int64_t chunk_size, FaultList& faults) {
  if (chunk_size == 16 || chunk_size == 32 || chunk_size == 64) return true;
  faults.add(
      Code::chunk_size_invalid,
      {.argument = "chunk_size", .value = std::to_string(chunk_size), .limit = "16, 32 or 64"});
  return false;
}

std::int64_t count_chunks(std::int64_t length, std::int64_t chunk_size) {
  return length / chunk_size + (length % chunk_size != 0 ? 1 : 0);
}

}  // namespace packattn
