#include "kolo/torch/training_report.hpp"

#include <array>
#include <cstdio>

namespace kolo {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

void print_row(std::ostream& stream, const char* what, double now, double expected) {
  std::array<char, 96> line{};
  std::snprintf(line.data(), line.size(), "  %-24s%12.2f%12.2f\n", what, now / kMiB,
                expected / kMiB);
  stream << line.data();
}

void print_row(std::ostream& stream, const char* what, double now) {
  std::array<char, 96> line{};
  std::snprintf(line.data(), line.size(), "  %-24s%12.2f\n", what, now / kMiB);
  stream << line.data();
}

}  // namespace

std::ostream& operator<<(std::ostream& stream, const TrainingReport& report) {
  const TrainingReport::Kept& now = report.now;
  const TrainingReport::Kept& expected = report.expected;
  const auto row = [&](const char* what, auto measured, auto formula) {
    print_row(stream, what, static_cast<double>(measured), static_cast<double>(formula));
  };
  stream << "shard = " << name_of(report.shard) << ", sharded over " << report.sharers << " of "
         << report.ranks << " ranks\n  MiB on this rank                 now     formula\n";
  row("parameters", now.parameters, expected.parameters);
  row("gradients", now.gradients, expected.gradients);
  row("optimizer state", now.optimizer_state, expected.optimizer_state);
  row("buckets", now.buckets, expected.buckets);
  if (now.residuals > 0) row("error feedback", now.residuals, expected.residuals);
  row("total", now.total(), expected.total());
  row("sent in a step", report.sent_per_step, report.expected_sent_per_step);
  print_row(stream, "process, peak", static_cast<double>(report.peak_resident));
  print_row(stream, "  at construction", static_cast<double>(report.peak_at_construction));
  if (report.gpu_seconds_per_step > 0.0) {
    std::array<char, 96> line{};
    std::snprintf(line.data(), line.size(), "  %-24s%12.3f ms\n", "reductions on the GPU",
                  report.gpu_seconds_per_step * 1e3);
    stream << line.data();
  }
  return stream;
}

}  // namespace kolo
