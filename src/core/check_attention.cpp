// SPDX-License-Identifier: Apache-2.0
#include "core/check_attention.h"

#include <cmath>

#include <fmt/format.h>

#include "core/check_tensors.h"

namespace packattn {
namespace {

/// Collects the problem while checking; `k_heads` and `k_dim` name the dimensions that packed
/// [Tk, Hk, D] and paged [pages, page_size, Hk, D] keys have in common.
class Checker {
 public:
  Checker(const AttentionArgs& args, const detail::BatchState* batch,
          const AttentionOptions& options, FaultList& faults)
      : args_(args), batch_(batch), options_(options), faults_(faults), checks_(faults) {}

  AttentionProblem run() {
    const bool paged = batch_ != nullptr && batch_->paged;
    problem_.paged = paged;
    check_inputs(paged);
    check_outputs();
    check_options();
    if (batch_ != nullptr && q_ok_) check_batch(paged);
    return problem_;
  }

 private:
  void check_inputs(bool paged) {
    // Batched tensors beside boundaries are the most common rank mistake, so it gets a note.
    const char* padded = "a padded batch [B, S, H, D] becomes packed rows with packattn::pack";
    q_ok_ = checks_.given(q(), 3, "[Tq, Hq, D]", args_.q.rank() == 4 ? padded : "");
    if (paged && args_.k.present() && args_.k.rank() == 3) {
      faults_.add(Code::key_rows_unused, {.argument = "the batch",
                                          .position = "k",
                                          .value = "3",
                                          .limit = "[pages, page_size, Hk, D]"});
    } else {
      const char* note = !paged && args_.k.rank() == 4 ? padded : "";
      k_ok_ = checks_.given(k(), paged ? 4 : 3, paged ? "[pages, page_size, Hk, D]" : "[Tk, Hk, D]",
                            note);
    }
    v_ok_ = checks_.given(v(), paged ? 4 : 3, paged ? "[pages, page_size, Hk, Dv]" : "[Tk, Hk, Dv]",
                          !paged && args_.v.rank() == 4 ? padded : "");
    if (args_.q.present()) check_device("q", args_.q.device(), faults_);
    if (q_ok_ && checks_.dtype(q(), {DType::f32, DType::f16, DType::bf16})) {
      problem_.dtype = args_.q.dtype();
    }
    for (const NamedView& t : {k(), v()}) {
      if (!t.view.present() || !args_.q.present()) continue;
      checks_.same_device(t, q());
      checks_.same_dtype(t, q());
    }
    check_heads();
    if (k_ok_ && v_ok_) check_key_rows(paged);
    if (q_ok_) checks_.readable(q());
    if (k_ok_) checks_.readable(k());
    if (v_ok_) checks_.readable(v());
  }

  void check_heads() {
    if (q_ok_) {
      problem_.device = args_.q.device();
      problem_.rows_q = args_.q.size(0);
      problem_.heads_q = args_.q.size(1);
      problem_.head_dim = args_.q.size(2);
      non_zero(q(), 1, "its heads");
      non_zero(q(), 2, "its head size");
    }
    if (k_ok_) {
      problem_.rows_k = args_.k.size(0);
      problem_.heads_k = args_.k.size(-2);
      non_zero(k(), -2, "its heads");
      if (q_ok_ && args_.k.size(-1) != args_.q.size(-1)) {
        faults_.add(Code::head_size_mismatch, {.argument = "k",
                                               .position = "q",
                                               .value = std::to_string(args_.k.size(-1)),
                                               .limit = std::to_string(args_.q.size(-1))});
      }
    }
    if (q_ok_ && k_ok_ && problem_.heads_k > 0 && problem_.heads_q % problem_.heads_k != 0) {
      faults_.add(Code::heads_ratio, {.argument = "q",
                                      .position = "k",
                                      .value = std::to_string(problem_.heads_q),
                                      .limit = std::to_string(problem_.heads_k)});
    }
    if (v_ok_) {
      problem_.value_dim = args_.v.size(-1);
      non_zero(v(), -1, "its head size");
    }
  }

  void check_key_rows(bool paged) {
    if (args_.k.size(-2) != args_.v.size(-2)) {
      faults_.add(Code::heads_mismatch, {.argument = "v",
                                         .position = "k",
                                         .value = std::to_string(args_.v.size(-2)),
                                         .limit = std::to_string(args_.k.size(-2))});
    }
    for (int dim = 0; dim < (paged ? 2 : 1); ++dim) {
      if (args_.k.size(dim) == args_.v.size(dim)) continue;
      faults_.add(Code::tokens_mismatch,
                  {.argument = "v",
                   .position = "k",
                   .value = std::to_string(args_.v.size(dim)),
                   .limit = std::to_string(args_.k.size(dim)),
                   .note = paged ? fmt::format("in dimension {} of the cache", dim) : ""});
    }
  }

  void check_outputs() {
    problem_.lse = args_.lse.present();
    const bool out_ok = checks_.given(out(), 3, "[Tq, Hq, Dv]");
    if (out_ok) {
      if (q_ok_) {
        problem_.out_dtype = args_.out.dtype();
        if (args_.out.dtype() != args_.q.dtype()) {
          checks_.dtype(out(), {args_.q.dtype(), DType::f32});
        }
        checks_.same_device(out(), q());
        if (v_ok_) checks_.shape(out(), {args_.q.size(0), args_.q.size(1), args_.v.size(-1)});
      }
      checks_.writable(out());
    }
    const bool lse_ok = checks_.optional(lse(), 2, "[Hq, Tq]");
    if (lse_ok) {
      checks_.dtype(lse(), {DType::f32});
      if (q_ok_) {
        checks_.same_device(lse(), q());
        checks_.shape(lse(), {args_.q.size(1), args_.q.size(0)});
      }
      checks_.writable(lse());
    }
    for (const NamedView& input : {q(), k(), v(), slopes(), sinks()}) {
      if (out_ok && input.view.rank() <= TensorView::max_rank) checks_.disjoint(out(), input);
      if (lse_ok && input.view.rank() <= TensorView::max_rank) checks_.disjoint(lse(), input);
    }
    if (out_ok && lse_ok) checks_.disjoint(lse(), out());
  }

  void check_options() {
    check_scale();
    if (!is_zero_or_positive_float(options_.softcap)) {
      faults_.add(Code::softcap_invalid, {.argument = "softcap",
                                          .value = number_text(options_.softcap),
                                          .limit = zero_or_positive_float});
    }
    problem_.softcap = options_.softcap;
    problem_.mask.align = options_.align;
    problem_.mask.left = bound("window.left", options_.window.left);
    problem_.mask.right = bound("window.right", options_.window.right);
    if (options_.causal) problem_.mask.right = 0;
    problem_.alibi = options_.alibi_slopes.present();
    problem_.sinks = options_.sinks.present();
    check_per_head(slopes(), options_.alibi_slopes.rank() == 2);
    check_per_head(sinks(), false);
  }

  void check_scale() {
    const auto scale = options_.softmax_scale;
    if (scale && !is_finite_float(*scale)) {
      faults_.add(
          Code::scale_invalid,
          {.argument = "softmax_scale", .value = number_text(*scale), .limit = "finite fp32"});
    }
    if (!scale && problem_.head_dim == 576 && problem_.value_dim == 512) {
      // Latent attention: the scale belongs to the head size before absorption, not to 576.
      faults_.add(Code::scale_invalid, {.argument = "softmax_scale",
                                        .value = "not given",
                                        .limit = "finite fp32",
                                        .note = "head sizes 576 / 512 have no default scale"});
    }
    const auto dim = static_cast<double>(std::max<std::int64_t>(1, problem_.head_dim));
    problem_.scale = scale.value_or(1 / std::sqrt(dim));
  }

  std::int64_t bound(const char* name, std::optional<std::int64_t> value) {
    if (!value) return MaskRule::unlimited;
    if (*value < 0) {
      faults_.add(Code::window_negative,
                  {.argument = name, .value = std::to_string(*value), .limit = "at least 0"});
    }
    return std::min(*value, MaskRule::unlimited);
  }

  /// Slopes and sinks: [Hq], or [N, Hq] where `per_sequence`.
  void check_per_head(NamedView t, bool per_sequence) {
    if (!t.view.present()) return;
    if (!checks_.given(t, per_sequence ? 2 : 1, per_sequence ? "[N, Hq]" : "[Hq]")) return;
    checks_.dtype(t, {DType::f32});
    checks_.readable(t);
    if (!q_ok_) return;
    checks_.same_device(t, q());
    if (!per_sequence) {
      checks_.shape(t, {problem_.heads_q});
    } else if (batch_ != nullptr) {
      checks_.shape(t, {batch_->size, problem_.heads_q});
    }
  }

  void check_batch(bool paged) {
    check_batch_device(*batch_, args_.q.device(), faults_);
    if (paged && k_ok_) {
      problem_.page_size = args_.k.size(1);
      if (!non_zero(k(), 1, "its pages")) return;
    }
    if (!batch_->host_known) return;
    check_rows("q", args_.q.size(0), batch_->q, batch_->capacity, faults_);
    if (!k_ok_) return;
    if (paged) {
      check_pages();
    } else {
      check_rows("k", args_.k.size(0), batch_->side(Side::key), batch_->capacity, faults_);
    }
  }

  void check_pages() {
    const std::int64_t pages = args_.k.size(0);
    const std::int64_t width = batch_->pages_per_sequence;
    for (std::size_t n = 0; n < batch_->k.lengths.size(); ++n) {
      const std::int64_t length = batch_->k.lengths[n];
      const std::int64_t needed =
          length / problem_.page_size + (length % problem_.page_size != 0 ? 1 : 0);
      if (needed > width) {
        faults_.add(Code::block_table_short, {.argument = "block_table",
                                              .position = fmt::format("sequence {}", n),
                                              .value = std::to_string(width),
                                              .limit = std::to_string(needed)});
        continue;
      }
      const auto* row = batch_->block_table.data() + static_cast<std::int64_t>(n) * width;
      for (std::int64_t i = 0; i < needed; ++i) {
        if (row[i] >= 0 && row[i] < pages) continue;
        faults_.add(Code::block_table_entry, {.argument = "block_table",
                                              .position = fmt::format("[{}, {}]", n, i),
                                              .value = std::to_string(row[i]),
                                              .limit = fmt::format("pages 0 to {}", pages - 1)});
        break;
      }
    }
  }

  bool non_zero(NamedView t, int dim, const char* what) {
    if (t.view.size(dim) > 0) return true;
    faults_.add(Code::zero_size, {.argument = std::string(t.name), .position = what});
    return false;
  }

  NamedView q() const { return {args_.q, "q"}; }
  NamedView k() const { return {args_.k, "k"}; }
  NamedView v() const { return {args_.v, "v"}; }
  NamedView out() const { return {args_.out, "out"}; }
  NamedView lse() const { return {args_.lse, "lse"}; }
  NamedView slopes() const { return {options_.alibi_slopes, "alibi_slopes"}; }
  NamedView sinks() const { return {options_.sinks, "sinks"}; }

  const AttentionArgs& args_;
  const detail::BatchState* batch_;
  const AttentionOptions& options_;
  FaultList& faults_;
  TensorChecks checks_;
  AttentionProblem problem_;
  bool q_ok_ = false;
  bool k_ok_ = false;
  bool v_ok_ = false;
};

}  // namespace

AttentionProblem check_attention_call(const AttentionArgs& args, const detail::BatchState* batch,
                                      const AttentionOptions& options, FaultList& faults) {
  return Checker(args, batch, options, faults).run();
}

}  // namespace packattn
