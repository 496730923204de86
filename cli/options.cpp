// SPDX-License-Identifier: Apache-2.0
#include "options.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <optional>
#include <utility>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace packattn::cli {
namespace {

/// Takes a text into its field; what is allowed if it does not fit, else empty.
using Text = const std::string&;
using Setter = std::string (*)(Call& call, Text text);

/// The operations that an option belongs to.
using Ops = std::initializer_list<Op>;
constexpr Ops attention_only{Op::attention};
constexpr Ops kda{Op::kda_recurrent, Op::kda_chunk};
constexpr Ops gates{Op::kda_recurrent, Op::kda_chunk, Op::kda_gate};
constexpr Ops states{Op::kda_recurrent, Op::kda_chunk, Op::short_convolution};
constexpr Ops norms{Op::l2norm, Op::gated_rms_norm};
constexpr Ops convolution{Op::short_convolution};
constexpr Ops rms_norm{Op::gated_rms_norm};
constexpr Ops packed{Op::attention, Op::kda_recurrent, Op::kda_chunk, Op::short_convolution};
constexpr Ops any{};

struct OptionRow {
  const char* name;
  Ops ops;    ///< empty: every one
  bool flag;  ///< true or false; the command line gives it without a value
  const char* help;
  Setter set;
};

template <class T>
std::string number(const std::string& text, T& target) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, target);
  if (error == std::errc{} && stop == end && !text.empty()) return {};
  return std::is_integral_v<T> ? "a whole number" : "a number";
}

template <class T>
std::string number(const std::string& text, std::optional<T>& target) {
  T value{};
  std::string allowed = number(text, value);
  if (allowed.empty()) target = value;
  return allowed;
}

template <class T>
std::string choice(const std::string& text, T& target,
                   std::initializer_list<std::pair<const char*, T>> choices) {
  std::vector<const char*> names;
  for (const auto& [name, value] : choices) {
    if (text == name) {
      target = value;
      return {};
    }
    names.push_back(name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

template <class T>
T chosen(const char* option, const std::string& text,
         std::initializer_list<std::pair<const char*, T>> choices) {
  T value{};
  const std::string allowed = choice(text, value, choices);
  if (!allowed.empty()) {
    throw Error(
        {make_fault(Code::option_value, {.argument = option, .value = text, .limit = allowed})});
  }
  return value;
}

template <class T>
std::string truth(const std::string& text, T& target) {
  return choice<bool>(text, target, {{"true", true}, {"false", false}});
}

constexpr OptionRow rows[] = {
    {"softmax_scale", attention_only, false, "factor of the scores (default 1 / sqrt(D))",
     [](Call& c, Text t) { return number(t, c.attention_options.softmax_scale); }},
    {"causal", attention_only, true, "a query sees no later key",
     [](Call& c, Text t) { return truth(t, c.attention_options.causal); }},
    {"align", attention_only, false, "bottom_right or top_left: where the diagonal runs into",
     [](Call& c, Text t) {
       return choice(t, c.attention_options.align,
                     {{"bottom_right", Align::bottom_right}, {"top_left", Align::top_left}});
     }},
    {"window_left", attention_only, false, "keys seen before the diagonal",
     [](Call& c, Text t) { return number(t, c.attention_options.window.left); }},
    {"window_right", attention_only, false, "keys seen after the diagonal",
     [](Call& c, Text t) { return number(t, c.attention_options.window.right); }},
    {"softcap", attention_only, false, "bound of the scores, 0 for none",
     [](Call& c, Text t) { return number(t, c.attention_options.softcap); }},
    {"lse", attention_only, true, "write lse too (default)",
     [](Call& c, Text t) { return truth(t, c.lse); }},
    {"scale", kda, false, "factor of q (default 1 / sqrt(K))",
     [](Call& c, Text t) { return number(t, c.kda_options.scale); }},
    {"gate", gates, false, "given, softplus or bounded: what g is",
     [](Call& c, Text t) {
       return choice(t, c.op == Op::kda_gate ? c.gate_options.gate : c.kda_options.gate,
                     {{"given", GateKind::given},
                      {"softplus", GateKind::softplus},
                      {"bounded", GateKind::bounded}});
     }},
    {"beta_kind", kda, false, "given, sigmoid or two_sigmoid: what beta is",
     [](Call& c, Text t) {
       return choice(t, c.kda_options.beta,
                     {{"given", BetaKind::given},
                      {"sigmoid", BetaKind::sigmoid},
                      {"two_sigmoid", BetaKind::two_sigmoid}});
     }},
    {"lower_bound", gates, false, "of the bounded gate (default -5)",
     [](Call& c, Text t) {
       return number(t,
                     c.op == Op::kda_gate ? c.gate_options.lower_bound : c.kda_options.lower_bound);
     }},
    {"l2norm", kda, true, "normalise q and k first",
     [](Call& c, Text t) { return truth(t, c.kda_options.l2norm); }},
    {"state_layout", kda, false, "k_first or v_first: order of a state's last dimensions",
     [](Call& c, Text t) {
       return choice(t, c.kda_options.state_layout,
                     {{"k_first", std::optional(StateLayout::k_first)},
                      {"v_first", std::optional(StateLayout::v_first)}});
     }},
    {"null_slot", states, false, "slot that skips its sequence (default -1)",
     [](Call& c, Text t) {
       return number(t, c.is_kda() ? c.kda_options.null_slot : c.convolution_options.null_slot);
     }},
    {"chunk_size", kda, false, "16, 32 or 64, of kda_chunk",
     [](Call& c, Text t) { return number(t, c.kda_options.chunk_size); }},
    {"final_state", states, true, "write the final states, also without initial ones",
     [](Call& c, Text t) { return truth(t, c.final_state); }},
    {"chunk_states", kda, true, "write the states at chunk starts (kda_chunk)",
     [](Call& c, Text t) { return truth(t, c.chunk_states); }},
    {"silu", convolution, true, "silu of the result",
     [](Call& c, Text t) { return truth(t, c.convolution_options.silu); }},
    {"eps", norms, false, "added inside the root (default 1e-6, of gated_rms_norm 1e-5)",
     [](Call& c, Text t) {
       return number(t, c.op == Op::l2norm ? c.l2norm_options.eps : c.rms_norm_options.eps);
     }},
    {"activation", rms_norm, false, "swish (also called silu) or sigmoid, of the gate",
     [](Call& c, Text t) {
       return choice(t, c.rms_norm_options.activation,
                     {{"swish", GateActivation::swish},
                      {"silu", GateActivation::swish},
                      {"sigmoid", GateActivation::sigmoid}});
     }},
    {"residual_out", rms_norm, true, "write x + residual too",
     [](Call& c, Text t) { return truth(t, c.residual_out); }},
    {"fp32_out", any, true, "out in fp32 instead of the input's dtype",
     [](Call& c, Text t) { return truth(t, c.fp32_out); }},
    {"max_seqlen_q", packed, false, "checked against the lengths",
     [](Call& c, Text t) { return number(t, c.spec.max_seqlen_q); }},
    {"max_seqlen_k", packed, false, "checked against the lengths",
     [](Call& c, Text t) { return number(t, c.spec.max_seqlen_k); }},
    {"capacity", packed, true, "rows that belong to no sequence are allowed",
     [](Call& c, Text t) { return truth(t, c.spec.capacity); }},
    {"threads", any, false, "CPU threads, 0 for all",
     [](Call& c, Text t) { return number(t, c.context.threads); }},
    {"device", any, false, "cpu, cuda or cuda:<index>: where run works (default cpu)",
     [](Call& c, Text t) -> std::string {
       constexpr std::string_view cuda = "cuda";
       if (t == "cpu") return c.device = {}, "";
       c.device = {DeviceType::cuda, 0};
       if (t == cuda) return "";
       const bool numbered = t.starts_with("cuda:") && t.size() > cuda.size() + 1;
       const bool whole = numbered && number(t.substr(cuda.size() + 1), c.device.index).empty();
       return whole && c.device.index >= 0 ? "" : "cpu, cuda or cuda:<index>";
     }},
    {"implementation", any, false, "run this one, or be told why not",
     [](Call& c, Text t) {
       c.context.implementation = t;
       return std::string{};
     }},
};

bool fits(const OptionRow& row, Op op) {
  return row.ops.size() == 0 || std::ranges::find(row.ops, op) != row.ops.end();
}

const char* group_of(const OptionRow& row) {
  if (row.ops.size() == 0 || row.ops.size() == packed.size()) return "Call";
  const auto has = [&](Op op) { return std::ranges::find(row.ops, op) != row.ops.end(); };
  return has(Op::attention) ? "Attention" : has(Op::kda_chunk) ? "KDA" : "Neighbours of KDA";
}

std::string names_of(std::span<const Op> ops) {
  std::vector<std::string> names;
  for (const Op op : ops) names.push_back(to_string(op));
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string dashed(std::string name) {
  std::ranges::replace(name, '_', '-');
  return name;
}

std::string known_options(Op op) {
  std::vector<const char*> names;
  for (const OptionRow& row : rows) {
    if (fits(row, op)) names.push_back(row.name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

void add_option_flags(CLI::App& command, OptionTexts& given) {
  command.add_option_function<std::string>(
      "--op", [&given](const std::string& text) { given["op"] = text; },
      names_of(all_ops) + " (default: what the tensors fit)");
  for (const OptionRow& row : rows) {
    const std::string name = row.name;
    CLI::Option* option = nullptr;
    if (row.flag) {
      const auto flag = [&given, name](std::int64_t count) {
        given[name] = count > 0 ? "true" : "false";
      };
      option =
          command.add_flag_function(fmt::format("--{0},!--no-{0}", dashed(name)), flag, row.help);
    } else {
      const auto take = [&given, name](const std::string& text) { given[name] = text; };
      option = command.add_option_function<std::string>("--" + dashed(name), take, row.help);
    }
    option->group(group_of(row));
  }
}

Op parse_op(const std::string& name, std::span<const Op> of) {
  for (const Op op : of) {
    if (name == to_string(op)) return op;
  }
  throw Error(
      {make_fault(Code::option_value, {.argument = "op", .value = name, .limit = names_of(of)})});
}

DType parse_dtype(const std::string& name) {
  return chosen<DType>("dtype", name,
                       {{"fp32", DType::f32}, {"fp16", DType::f16}, {"bf16", DType::bf16}});
}

void apply_options(Call& call, const OptionTexts& options) {
  std::vector<Fault> faults;
  for (const auto& [name, text] : options) {
    if (name == "op") continue;
    const auto* row =
        std::ranges::find(rows, name, [](const OptionRow& r) { return std::string(r.name); });
    if (row == std::end(rows) || !fits(*row, call.op)) {
      faults.push_back(make_fault(
          Code::option_unknown,
          {.argument = name, .position = to_string(call.op), .limit = known_options(call.op)}));
      continue;
    }
    const std::string allowed = row->set(call, text);
    if (!allowed.empty()) {
      faults.push_back(
          make_fault(Code::option_value, {.argument = name, .value = text, .limit = allowed}));
    }
  }
  if (!faults.empty()) throw Error(std::move(faults));
}

}  // namespace packattn::cli
