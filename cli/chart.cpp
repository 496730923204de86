// SPDX-License-Identifier: Apache-2.0
#include "chart.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>

#include <fmt/format.h>

namespace packattn::cli {
namespace {

constexpr double width = 860, height = 460;
constexpr double left = 76, right = 250, top = 46, bottom = 56;
// Told apart by the colour-blind too (Okabe and Ito).
constexpr std::array colours{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"};

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') out += "&amp;";
    else if (c == '<') out += "&lt;";
    else if (c == '>') out += "&gt;";
    else out += c;
  }
  return out;
}

/// Where a value lies between 0 and 1 of its axis.
class Axis {
 public:
  Axis(double low, double high, bool log) : log_(log), low_(at(low)), high_(at(high)) {
    if (!(high_ > low_)) high_ = low_ + 1;
  }
  double operator()(double value) const { return (at(value) - low_) / (high_ - low_); }

  std::vector<double> ticks() const {
    double step = high_ - low_ > 12 ? 2 : 1;  // powers of two
    if (!log_) {
      const double raw = (high_ - low_) / 5, power = std::pow(10, std::floor(std::log10(raw)));
      step = power * (raw / power < 2 ? 2 : raw / power < 5 ? 5 : 10);
    }
    const auto first = std::llround(std::ceil(low_ / step - 1e-9));
    const auto last = std::llround(std::floor(high_ / step + 1e-9));
    std::vector<double> ticks;
    for (auto i = first; i <= last; ++i) {
      const double at = static_cast<double>(i) * step;
      ticks.push_back(log_ ? std::exp2(at) : at);
    }
    return ticks;
  }

 private:
  double at(double value) const { return log_ ? std::log2(value) : value; }
  bool log_;
  double low_, high_;
};

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void include(double v) {
    low = std::min(low, v);
    high = std::max(high, v);
  }
};

/// Draws into one document; knows where its axes are.
class Drawing {
 public:
  Drawing(const Chart& chart, Axis x, Axis y) : chart_(chart), x_(x), y_(y) {}

  std::string document() {
    add("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\">\n", width,
        height);
    add("<style>text{{font:13px system-ui,sans-serif;fill:#222}}.grid{{stroke:#ddd}}"
        ".ceiling{{stroke-dasharray:6 4}}@media(prefers-color-scheme:dark){{text{{fill:#ddd}}"
        ".grid{{stroke:#444}}.page{{fill:#181a1b}}}}</style>\n");
    add("<title>{}</title>\n", escaped(chart_.title));
    add("<rect class=\"page\" width=\"{}\" height=\"{}\" fill=\"#fff\"/>\n", width, height);
    add("<text x=\"{}\" y=\"26\" font-weight=\"600\">{}</text>\n", left, escaped(chart_.title));
    axes();
    int index = 0;
    for (const Series& s : chart_.series) draw(s, index++);
    return out_ + "</svg>\n";
  }

 private:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }
  double px(double x) const { return left + x_(x) * (width - left - right); }
  double py(double y) const { return height - bottom - y_(y) * (height - top - bottom); }

  void axes() {
    for (const double t : x_.ticks()) {
      add("<line class=\"grid\" x1=\"{0:.1f}\" x2=\"{0:.1f}\" y1=\"{1}\" y2=\"{2}\"/>\n", px(t),
          top, height - bottom);
      add("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{:.4g}</text>\n", px(t),
          height - bottom + 20, t);
    }
    for (const double t : y_.ticks()) {
      add("<line class=\"grid\" x1=\"{1}\" x2=\"{2}\" y1=\"{0:.1f}\" y2=\"{0:.1f}\"/>\n", py(t),
          left, width - right);
      add("<text x=\"{}\" y=\"{:.1f}\" text-anchor=\"end\">{:.4g}</text>\n", left - 8, py(t) + 4,
          t);
    }
    add("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
        left + (width - left - right) / 2, height - 12, escaped(chart_.x_label));
    add("<text transform=\"translate(20 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
        top + (height - top - bottom) / 2, escaped(chart_.y_label));
  }

  void draw(const Series& series, int index) {
    const char* colour = colours[static_cast<std::size_t>(index) % colours.size()];
    std::string path;
    for (const auto& [x, y] : series.points) {
      if (!drawable(x, y)) continue;
      fmt::format_to(std::back_inserter(path), "{}{:.1f} {:.1f}", path.empty() ? "M" : "L", px(x),
                     py(y));
      if (!series.ceiling) {
        add("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\"><title>{}: {:.4g}, {:.4g}"
            "</title></circle>\n",
            px(x), py(y), colour, escaped(series.name), x, y);
      }
    }
    const char* style = series.ceiling ? " class=\"ceiling\"" : "";
    if (!series.marks_only && !path.empty()) {
      add("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"{}/>\n", path, colour,
          style);
    }
    const double y = top + 12 + 22.0 * index, x = width - right + 16;
    add("<line x1=\"{:.1f}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\" "
        "stroke-width=\"3\"{}/>\n",
        x, x + 24, y, y, colour, style);
    add("<text x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n", x + 32, y + 4, escaped(series.name));
  }

  bool drawable(double x, double y) const { return x > 0 && (y > 0 || !chart_.log_y); }

  const Chart& chart_;
  Axis x_, y_;
  std::string out_;
};

}  // namespace

std::string svg(const Chart& chart) {
  Range x, y;
  for (const Series& s : chart.series) {
    for (const auto& [at, value] : s.points) {
      if (at > 0) x.include(at);
      if (value > 0) y.include(value);
    }
  }
  if (!(x.high > 0 && y.high > 0)) x = y = {1, 2};
  const Axis across(x.low / 1.1, x.high * 1.1, /*log=*/true);
  const Axis up(chart.log_y ? y.low / 1.3 : 0, y.high * (chart.log_y ? 1.3 : 1.08), chart.log_y);
  return Drawing(chart, across, up).document();
}

}  // namespace packattn::cli
