// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "packattn/export.h"

namespace packattn {

/// Every error packattn can report. The numbers are stable and never reused:
/// 1xxx tensors and options, 2xxx packing, 3xxx unsupported, 4xxx device and driver,
/// 5xxx resources, 6xxx KDA, 7xxx command line and files, 9xxx a fault of packattn itself.
enum class Code : std::uint16_t {
#define PACKATTN_CODE(number, name, ...) name = number,
#include "packattn/catalogue.def"
#undef PACKATTN_CODE
};

/// One thing that is wrong with a call.
struct Fault {
  Code code;
  std::string argument;  ///< "cu_seqlens_q"
  std::string position;  ///< "index 3"; empty when the whole argument is meant
  std::string value;     ///< what was found: "12 then 5"
  std::string limit;     ///< what is allowed
  std::string message;   ///< one line with all of the above, without the code
  std::string note;      ///< context; may be empty
  std::string help;      ///< what to do about it
  /// Faults of this code that the call has beyond this one and that are not listed: a call lists
  /// the first 16 of a code.
  std::uint64_t more = 0;
};

/// The parts of a fault that its raise site knows.
struct FaultFields {
  std::string argument = {};
  std::string position = {};
  std::string value = {};
  std::string limit = {};
  std::string note = {};
};

/// A fault with its message and help worded by the catalogue; for programs that add checks of
/// their own, as the command line and the Python package do.
PACKATTN_EXPORT Fault make_fault(Code code, FaultFields fields);

/// "PA2007"
PACKATTN_EXPORT std::string code_id(Code code);

/// The fault as a compiler would print it; several lines, no trailing newline. Of several faults,
/// advice that is the same for two of them stands with the first.
PACKATTN_EXPORT std::string render(const Fault& fault);
PACKATTN_EXPORT std::string render(std::span<const Fault> faults);

/// All faults, those that are not listed too.
PACKATTN_EXPORT std::uint64_t count(std::span<const Fault> faults);

/// The faults as a JSON array of objects with the fields of Fault; `code` is "PA2007".
PACKATTN_EXPORT std::string to_json(std::span<const Fault> faults);

/// Thrown by every operation that refuses a call. Nothing has run and no output has been written
/// when it is thrown, except for PA4003, PA5xxx and PA9xxx, which can come later.
class PACKATTN_EXPORT Error : public std::exception {
 public:
  explicit Error(std::vector<Fault> faults);
  ~Error() override;

  const char* what() const noexcept override { return text_.c_str(); }
  const std::vector<Fault>& faults() const noexcept { return faults_; }
  Code code() const noexcept { return faults_.front().code; }

 private:
  std::vector<Fault> faults_;
  std::string text_;
};

// ---- the error reference --------------------------------------------------------------------

/// A record of the reference: one of packattn's own codes, or an error of another library.
struct RecordSummary {
  std::string_view id;    ///< 16 hex digits, never changes
  std::string_view repo;  ///< "packattn" or the other library's repository
  std::string_view code;  ///< "PA2007"; empty for an error of another library
  std::string_view slug;
  std::string_view message;   ///< the message pattern, with {placeholders}
  std::string_view severity;  ///< "error" or "warning"
  std::span<const std::string_view> tags;
};

/// All records, packattn's own first, in the order of their codes.
PACKATTN_EXPORT std::span<const RecordSummary> records();

/// The JSON document served under /api/errors/<id>; empty for an unknown id.
PACKATTN_EXPORT std::string_view record_json(std::string_view id);

/// The explanation page as Markdown; empty for an unknown id.
PACKATTN_EXPORT std::string_view record_page(std::string_view id);

struct Match {
  std::string_view id;
  double score;                           ///< 1 for an exact or pattern match, less for a near one
  std::vector<std::string> placeholders;  ///< names, in the order of the pattern
  std::vector<std::string> captures;      ///< what each placeholder stood for
};

/// Finds records by code, slug, id or a pasted message, best first.
PACKATTN_EXPORT std::vector<Match> find_records(std::string_view text, std::size_t limit = 5);

}  // namespace packattn
