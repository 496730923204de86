// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace packattn::cli {

/// A line of a chart. Ceilings are drawn dashed, without marks.
struct Series {
  std::string name;
  std::vector<std::pair<double, double>> points;
  bool ceiling = false;
  bool marks_only = false;
};

struct Chart {
  std::string title, x_label, y_label;
  bool log_y = false;  ///< x is always logarithmic
  std::vector<Series> series;
};

/// The chart as an SVG document of its own, readable on light and dark pages. Points that a
/// logarithm does not take are left out.
std::string svg(const Chart& chart);

}  // namespace packattn::cli
