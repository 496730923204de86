// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdio>

#include <fmt/format.h>
#include <unistd.h>

namespace packattn::cli {

/// One line on standard error that shows how far a call is; silent where that is no terminal.
class Progress {
 public:
  explicit Progress(bool wanted) : shown_(wanted && ::isatty(STDERR_FILENO) != 0) {}
  ~Progress() {
    if (drawn_) fmt::print(stderr, "\r\x1b[K");
  }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void operator()(std::int64_t done, std::int64_t total) {
    const auto now = std::chrono::steady_clock::now();
    // The first call of a short run draws nothing; later ones draw ten times a second.
    if (!shown_ || total <= 0 || now - last_ < std::chrono::milliseconds(100)) return;
    last_ = now;
    drawn_ = true;
    fmt::print(stderr, "\r{:3} %", 100 * done / total);
    std::fflush(stderr);
  }

 private:
  bool shown_;
  bool drawn_ = false;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}  // namespace packattn::cli
