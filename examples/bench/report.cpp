#include "bench/report.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <iomanip>
#include <limits>
#include <map>
#include <sstream>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/chart.hpp"

namespace bench {
namespace {

__attribute__((format(printf, 1, 2))) std::string format(const char* pattern, ...) {
  std::va_list arguments;
  va_start(arguments, pattern);
  std::string text(256, '\0');
  const int length = std::vsnprintf(text.data(), text.size(), pattern, arguments);
  va_end(arguments);
  text.resize(std::min(static_cast<std::size_t>(std::max(length, 0)), text.size() - 1));
  return text;
}

std::string placement_of(const Label& label) {
  std::string text = label.placement;
  if (!label.in_place) text += ", out of place";
  if (label.compression != "none") text += ", " + label.compression;
  return text;
}

std::string collective_of(const Options& options) {
  return options.is_gradients() ? "gradients" : std::string(name_of(options.operation));
}

nlohmann::ordered_json to_json(const Row& row) {
  nlohmann::ordered_json json{{"bytes", row.bytes},
                              {"count", row.count},
                              {"algorithm", row.label.algorithm},
                              {"placement", row.label.placement},
                              {"in_place", row.label.in_place},
                              {"compression", row.label.compression},
                              {"is_baseline", !row.label.reference.empty()},
                              {"calls", row.calls},
                              {"min_us", row.min_us},
                              {"median_us", row.median_us},
                              {"p99_us", row.p99_us},
                              {"host_us", row.host_us},
                              {"algbw_gbps", row.algbw_gbps},
                              {"busbw_gbps", row.busbw_gbps},
                              {"wrong", row.wrong},
                              {"cpu_s", row.cpu_s},
                              {"ratio", nullptr},
                              {"ratio_low", nullptr},
                              {"ratio_high", nullptr}};
  std::string name = "ratio";  // the second reference's is ratio_to_<reference>
  for (const auto& [reference, ratio] : row.ratios) {
    if (&reference != &row.ratios.front().first) name = "ratio_to_" + reference;
    json[name] = ratio.median;
    json[name + "_low"] = ratio.interval.low;
    json[name + "_high"] = ratio.interval.high;
  }
  return json;
}

nlohmann::ordered_json to_json(const Machine& machine) {
  return {{"cpu", machine.cpu},     {"system", machine.system},
          {"cpus", machine.cpus},   {"cores", machine.cores},
          {"quota", machine.quota}, {"memory_bytes", machine.memory_bytes}};
}

nlohmann::ordered_json to_json(const GpuDescription& gpu) {
  return {{"name", gpu.name},
          {"driver", gpu.driver},
          {"cuda", gpu.cuda},
          {"nccl", gpu.nccl},
          {"nccl_algo", gpu.nccl_algo}};
}

bool has_mpi_baseline(const Report& report) { return report.baseline.starts_with("mpi"); }

std::string describe(const MpiDescription& mpi) {
  return "MPI: " + mpi.library + ", single copy inside the node: " + mpi.single_copy;
}

std::string describe(const GpuDescription& gpu) {
  return gpu.name + ", driver " + gpu.driver + ", CUDA " + gpu.cuda + ", NCCL " + gpu.nccl +
         " with NCCL_ALGO=" + gpu.nccl_algo;
}

/// The column heads of the ratios, in the order of their references.
std::vector<const char*> ratio_columns(const Report& report) {
  if (report.baseline.empty()) return {};
  if (report.baseline == "nccl") return {"x ring", "x auto"};
  return {report.options.is_on_gpu() ? "x NCCL" : "x MPI"};
}

using examples::Drawing;

constexpr double kLeft = 90;
constexpr double kTop = 50;
constexpr double kWidth = 620;
constexpr double kHeight = 440;
constexpr double kLegendLeft = kLeft + kWidth + 20;
constexpr double kLegendStep = 20;
constexpr double kTotalWidth = 1010;

struct Line {
  bool is_baseline = false;
  std::vector<std::pair<double, double>> points{};
};

/// Maps values to positions on a logarithmic scale.
class Axis {
 public:
  Axis(double low, double high, double begin, double end)
      : low_(std::log(low)), scale_((end - begin) / (std::log(high) - low_)), begin_(begin) {}
  double at(double value) const { return begin_ + (std::log(value) - low_) * scale_; }

 private:
  double low_;
  double scale_;
  double begin_;
};

/// The range of all values, widened to powers of a base.
struct Range {
  double low = std::numeric_limits<double>::max();
  double high = 0;

  void add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  void widen(double base) {
    const double step = std::log(base);
    low = std::pow(base, std::floor(std::log(low) / step));
    high = std::pow(base, std::ceil(std::log(high) / step));
    if (high <= low) high = low * base;
  }
};

std::string scaled(double value, double base, const std::array<const char*, 4>& units) {
  std::size_t unit = 0;
  for (; value >= base && unit + 1 < units.size(); ++unit) value /= base;
  std::ostringstream text;
  text << std::setprecision(4) << value << ' ' << units[unit];
  return text.str();
}

std::string name_of(const Row& row) {
  std::string name = row.label.algorithm;
  if (row.label.reference.empty()) name += ", " + row.label.placement;
  if (!row.label.in_place) name += ", out of place";
  if (row.label.compression != "none") name += ", " + row.label.compression;
  return name;
}

constexpr double kBytesStep = 4;
constexpr double kTimeStep = 10;

void draw_axes(Drawing& drawing, const Axis& x, const Range& bytes, const Axis& y,
               const Range& times) {
  const std::string grid = "stroke=\"#dddddd\"";
  for (double value = bytes.low; value <= bytes.high * 1.01; value *= kBytesStep) {
    drawing.line(x.at(value), kTop, x.at(value), kTop + kHeight, grid);
    drawing.text(x.at(value), kTop + kHeight + 20, scaled(value, 1024, {"B", "KB", "MB", "GB"}),
                 "text-anchor=\"middle\" font-size=\"11\"");
  }
  for (double value = times.low; value <= times.high * 1.01; value *= kTimeStep) {
    drawing.line(kLeft, y.at(value), kLeft + kWidth, y.at(value), grid);
    drawing.text(kLeft - 8, y.at(value) + 4, scaled(value, 1000, {"µs", "ms", "s", "ks"}),
                 "text-anchor=\"end\"");
  }
  drawing.text(kLeft + kWidth / 2, kTop + kHeight + 45, "bytes", "text-anchor=\"middle\"");
  drawing.text(0, 0, "median time of a call",
               "text-anchor=\"middle\" transform=\"translate(22 " +
                   std::to_string(kTop + kHeight / 2) + ") rotate(-90)\"");
}

void draw_line(Drawing& drawing, const std::string& name, const Line& line, std::size_t number,
               const Axis& x, const Axis& y) {
  const std::string colour = Drawing::kColours[number % Drawing::kColours.size()];
  const bool is_second_time = number >= Drawing::kColours.size();
  const std::string stroke = "stroke=\"" + colour + "\" stroke-width=\"2\"" +
                             (line.is_baseline ? " stroke-dasharray=\"7 4\""
                              : is_second_time ? " stroke-dasharray=\"2 3\""
                                               : "");
  std::vector<std::pair<double, double>> places;
  for (const auto& [bytes, time] : line.points) places.emplace_back(x.at(bytes), y.at(time));
  drawing.curve(places, stroke);
  for (const auto& [left, top] : places) drawing.dot(left, top, colour);
  const double height = kTop + 10 + kLegendStep * static_cast<double>(number);
  drawing.line(kLegendLeft, height, kLegendLeft + 28, height, stroke);
  drawing.text(kLegendLeft + 36, height + 4, name, "font-size=\"12\"");
}

}  // namespace

std::string table_head(const Report& report) {
  const Options& options = report.options;
  std::string text = collective_of(options);
  if (options.is_gradients()) text += " of " + options.model;
  if (is_reduction(options.operation)) text += ", sum";
  text += " of " + std::string(kolo::name_of(options.dtype)) + ", " + std::to_string(report.ranks) +
          (report.ranks == 1 ? " rank" : " ranks");
  if (options.group > 1) text += ", groups of " + std::to_string(options.group) + " tensors";
  if (report.baseline == "mpi") {
    text += "; x MPI: time / that of plain MPI in processes of its own, with its 95 % interval";
  } else if (report.baseline == "nccl") {
    text +=
        "; x ring, x auto: time / that of NCCL's own calls in processes of its own, with rings "
        "and with what NCCL chooses, with its 95 % interval";
  } else if (options.is_on_gpu() && !report.baseline.empty()) {
    text += "; x NCCL: time / that of NCCL's own calls on the same memory, with its 95 % interval";
  } else if (!report.baseline.empty()) {
    text += "; x MPI: time / that of MPI in the same processes, with its 95 % interval";
  }
  text += '\n';
  if (options.is_on_gpu()) text += describe(report.gpu) + '\n';
  if (has_mpi_baseline(report)) text += describe(report.mpi) + '\n';
  text +=
      format("%11s %11s  %-24s %-14s %11s %11s %11s %8s %8s %6s %7s", "bytes", "count", "algorithm",
             "placement", "min us", "median us", options.is_on_gpu() ? "host us" : "p99 us",
             "alg GB/s", "bus GB/s", "wrong", "cpu s");
  for (const char* const column : ratio_columns(report)) {
    text += format(" %7s %15s", column, "interval");
  }
  if ((options.is_gradients() || options.group > 1) && !report.baseline.empty()) {
    text += format(" %8s %15s", "x flat", "interval");
  }
  return text + '\n';
}

std::string table_line(const Report& report, const Row& row) {
  std::string text =
      format("%11zu %11zu  %-24s %-14s %11.1f %11.1f %11.1f %8.3f %8.3f %6llu %7.2f", row.bytes,
             row.count, row.label.algorithm.c_str(), placement_of(row.label).c_str(), row.min_us,
             row.median_us, report.options.is_on_gpu() ? row.host_us : row.p99_us, row.algbw_gbps,
             row.busbw_gbps, static_cast<unsigned long long>(row.wrong), row.cpu_s);
  for (const auto& [reference, ratio] : row.ratios) {
    text += format(" %7.2f %7.2f -%6.2f", ratio.median, ratio.interval.low, ratio.interval.high);
  }
  return text + '\n';
}

std::string to_json(const Report& report) {
  const Options& options = report.options;
  nlohmann::ordered_json json{{"collective", collective_of(options)},
                              {"ranks", report.ranks},
                              {"dtype", kolo::name_of(options.dtype)},
                              {"baseline", nullptr},
                              {"machine", to_json(report.machine)},
                              {"device", kolo::name_of(options.device)},
                              {"gpu", nullptr},
                              {"mpi", nullptr},
                              {"rounds", options.rounds},
                              {"warmup", options.warmup},
                              {"group", options.group},
                              {"rows", nlohmann::ordered_json::array()}};
  if (options.is_gradients()) json["model"] = options.model;
  if (!report.baseline.empty()) json["baseline"] = report.baseline;
  if (options.is_on_gpu()) json["gpu"] = to_json(report.gpu);
  if (has_mpi_baseline(report)) {
    json["mpi"] = {{"library", report.mpi.library}, {"single_copy", report.mpi.single_copy}};
  }
  for (const Row& row : report.rows) json["rows"].push_back(to_json(row));
  return json.dump(2) + '\n';
}

std::string to_csv(const Report& report) {
  std::ostringstream text;
  for (const Row& row : report.rows) {
    const nlohmann::ordered_json json = to_json(row);
    std::ostringstream head;
    std::ostringstream line;
    const char* comma = "";
    for (const auto& [name, value] : json.items()) {
      head << comma << name;
      line << comma;
      if (value.is_string()) {
        line << value.get<std::string>();
      } else if (!value.is_null()) {
        line << value.dump();
      }
      comma = ",";
    }
    if (&row == &report.rows.front()) text << head.str() << '\n';
    text << line.str() << '\n';
  }
  return text.str();
}

std::string to_svg(const Report& report) {
  std::vector<std::string> names;
  std::map<std::string, Line> lines;
  Range bytes;
  Range times;
  for (const Row& row : report.rows) {
    const std::string name = name_of(row);
    if (!lines.contains(name)) names.push_back(name);
    Line& line = lines[name];
    line.is_baseline = !row.label.reference.empty();
    line.points.emplace_back(static_cast<double>(row.bytes), row.median_us);
    bytes.add(static_cast<double>(row.bytes));
    times.add(row.median_us);
  }
  bytes.widen(kBytesStep);
  times.widen(kTimeStep);
  const Axis x(bytes.low, bytes.high, kLeft, kLeft + kWidth);
  const Axis y(times.low, times.high, kTop + kHeight, kTop);
  Drawing drawing;
  const std::string head = table_head(report);
  drawing.text(kLeft, 28, head.substr(0, head.find_first_of(";\n")), "font-size=\"15\"");
  draw_axes(drawing, x, bytes, y, times);
  for (std::size_t i = 0; i < names.size(); ++i) {
    draw_line(drawing, names[i], lines[names[i]], i, x, y);
  }
  const double legend = kTop + kLegendStep * static_cast<double>(names.size() + 1);
  return drawing.finish(kTotalWidth, std::max(kTop + kHeight + 60, legend));
}

}  // namespace bench
