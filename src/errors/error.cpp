// SPDX-License-Identifier: Apache-2.0
#include "packattn/error.h"

#include <algorithm>
#include <array>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "errors/catalogue.h"
#include "errors/fault_list.h"
#include "errors/reference.h"

namespace packattn {
namespace {

constexpr CatalogueEntry catalogue[] = {
#define PACKATTN_CODE(number, name, message, help) {Code::name, #name, message, help},
#include "packattn/catalogue.def"
#undef PACKATTN_CODE
};

static_assert(std::ranges::is_sorted(catalogue, {}, &CatalogueEntry::code),
              "errors/catalogue.def is kept in numerical order");
static_assert(std::ranges::adjacent_find(catalogue, {}, &CatalogueEntry::code) ==
                  std::end(catalogue),
              "a number is used twice in errors/catalogue.def");

// An Error always has a first fault, so that code() is safe to call.
std::vector<Fault> at_least_one(std::vector<Fault> faults) {
  if (faults.empty()) {
    faults.push_back(
        make_fault(Code::internal, {.argument = "Error", .value = "thrown without a fault"}));
  }
  return faults;
}

/// What to do about a fault; a line that says the same for another one is the same text.
std::vector<std::string> advice_lines(const Fault& fault) {
  std::vector<std::string> lines;
  if (!fault.help.empty()) lines.push_back(fmt::format("  = help: {}", fault.help));
  for (const KnownWording& known : known_wordings(fault.code)) {
    lines.push_back(fmt::format("  = {}: {}", known.library, fill_template(known.text, fault)));
  }
  lines.push_back(fmt::format("  explain: packattn explain {}", code_id(fault.code)));
  return lines;
}

// Fields carry what callers and files hold: names with terminal sequences, texts of megabytes.
// A fault stays readable, and one line, whatever they are.
std::string shown(std::string&& text) {
  constexpr std::size_t longest = 1000;
  const auto unprintable = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  const bool cut = text.size() > longest;
  if (!cut && std::ranges::none_of(text, unprintable)) return std::move(text);
  if (cut) {
    std::size_t end = longest;
    while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
    text.resize(end);
  }
  std::string escaped;
  for (const char c : text) {
    if (c == '\n') escaped += "\\n";
    else if (c == '\t') escaped += "\\t";
    else if (unprintable(static_cast<unsigned char>(c))) escaped += fmt::format("\\x{:02x}", c);
    else escaped += c;
  }
  return cut ? escaped + "..." : escaped;
}

}  // namespace

const CatalogueEntry& catalogue_entry(Code code) {
  const auto* entry = std::ranges::lower_bound(catalogue, code, {}, &CatalogueEntry::code);
  if (entry != std::end(catalogue) && entry->code == code) return *entry;
  // Only a cast can make such a code; it is reported as what it is.
  return *std::ranges::lower_bound(catalogue, Code::internal, {}, &CatalogueEntry::code);
}

std::string fill_template(std::string_view text, const Fault& fault) {
  const std::array<std::pair<std::string_view, const std::string*>, 4> fields{{
      {"{argument}", &fault.argument},
      {"{position}", &fault.position},
      {"{value}", &fault.value},
      {"{limit}", &fault.limit},
  }};
  std::string filled;
  while (!text.empty()) {
    const auto* field = std::ranges::find_if(
        fields, [&](const auto& candidate) { return text.starts_with(candidate.first); });
    if (field != fields.end()) {
      filled += *field->second;
      text.remove_prefix(field->first.size());
    } else {
      filled += text.front();
      text.remove_prefix(1);
    }
  }
  return filled;
}

Fault make_fault(Code code, FaultFields fields) {
  const CatalogueEntry& entry = catalogue_entry(code);
  Fault fault{.code = entry.code,
              .argument = shown(std::move(fields.argument)),
              .position = shown(std::move(fields.position)),
              .value = shown(std::move(fields.value)),
              .limit = shown(std::move(fields.limit)),
              .message = {},
              .note = shown(std::move(fields.note)),
              .help = {},
              .more = 0};
  fault.message = fill_template(entry.message, fault);
  fault.help = fill_template(entry.help, fault);
  return fault;
}

std::string code_id(Code code) { return fmt::format("PA{:04}", static_cast<unsigned>(code)); }

std::string render(const Fault& fault) { return render(std::span(&fault, 1)); }

std::string render(std::span<const Fault> faults) {
  std::string text;
  std::set<std::string> advice;
  for (const Fault& fault : faults) {
    if (!text.empty()) text += "\n\n";
    text += fmt::format("error[{}]: {}", code_id(fault.code), fault.message);
    if (!fault.note.empty()) text += fmt::format("\n  = note: {}", fault.note);
    if (fault.more > 0) {
      text += fmt::format("\n  = and {} more of {}", fault.more, code_id(fault.code));
    }
    // Five tensors with one mistake need the advice once.
    for (const std::string& line : advice_lines(fault)) {
      if (advice.insert(line).second) text += "\n" + line;
    }
  }
  if (faults.size() > 1) text += fmt::format("\n\n{} faults in this call", count(faults));
  return text;
}

std::uint64_t count(std::span<const Fault> faults) {
  std::uint64_t all = faults.size();
  for (const Fault& fault : faults) all += fault.more;
  return all;
}

std::string to_json(std::span<const Fault> faults) {
  auto array = nlohmann::ordered_json::array();
  for (const Fault& fault : faults) {
    array.push_back({{"code", code_id(fault.code)},
                     {"argument", fault.argument},
                     {"position", fault.position},
                     {"value", fault.value},
                     {"limit", fault.limit},
                     {"message", fault.message},
                     {"note", fault.note},
                     {"help", fault.help},
                     {"more", fault.more}});
  }
  // Names can come from a caller in any encoding; a fault has to be reportable all the same.
  return array.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

Error::Error(std::vector<Fault> faults)
    : faults_(at_least_one(std::move(faults))), text_(render(faults_)) {}

Error::~Error() = default;

bool FaultList::has_room(Code code) {
  Tally& tally = tallies_[code];
  if (tally.listed == most_of_a_code) {
    ++faults_[tally.last].more;
    return false;
  }
  ++tally.listed;
  tally.last = faults_.size();
  return true;
}

void FaultList::add(std::vector<Fault> faults) {
  for (Fault& fault : faults) {
    const Code code = fault.code;
    const std::uint64_t more = std::exchange(fault.more, 0);
    if (has_room(code)) faults_.push_back(std::move(fault));
    faults_[tallies_[code].last].more += more;
  }
}

void FaultList::throw_if_any() && {
  if (!faults_.empty()) throw Error(std::move(faults_));
}

void fail(Code code, FaultFields fields) { throw Error({make_fault(code, std::move(fields))}); }

}  // namespace packattn
