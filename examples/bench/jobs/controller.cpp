#include "bench/jobs/controller.hpp"

#include <cstdio>

#include "bench/jobs/measure.hpp"
#include "bench/report/plot.hpp"
#include "bench/workload/model_gradients.hpp"
#include "kolo/error.hpp"

namespace bench {
namespace {

std::vector<Workload> workloads_of(const Options& options, int ranks) {
  if (options.is_gradients()) {
    return {{Operation::AllReduce, options.dtype, gradient_counts(options.model)}};
  }
  std::vector<Workload> workloads;
  for (const std::size_t bytes : sizes_of(options)) {
    workloads.push_back(workload_of(options.operation, options.dtype, bytes, options.group, ranks));
  }
  return workloads;
}

void print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

}  // namespace

OutputFiles::OutputFiles(const Options& options)
    : json_(options.json), csv_(options.csv), plot_(options.plot) {
  for (const auto* file : {&json_, &csv_, &plot_}) {
    if (!file->error().empty()) throw kolo::InvalidArgument(file->error());
  }
}

void OutputFiles::write(const Report& report) {
  if (json_.is_wanted()) json_.write(to_json(report));
  if (csv_.is_wanted()) csv_.write(to_csv(report));
  if (plot_.is_wanted()) plot_.write(to_svg(report));
}

int control(const Options& options, const std::string& baseline, const std::vector<Job*>& jobs,
            OutputFiles* files) {
  const bool prints = files != nullptr;
  const int ranks = jobs.front()->ranks();
  Report report{options,           ranks, baseline, describe_machine(), {}, jobs.front()->gpu(),
                jobs.back()->mpi()};
  if (prints) print(table_head(report));
  std::uint64_t wrong = 0;
  for (const Workload& workload : workloads_of(options, ranks)) {
    const Repetition repetition{options.warmup, options.rounds,
                                iterations_of(options, size_bytes(workload, ranks))};
    for (Row& row : measure(jobs, workload, repetition)) {
      wrong += row.wrong;
      if (prints) print(table_line(report, row));
      report.rows.push_back(std::move(row));
    }
  }
  if (prints) files->write(report);
  return wrong == 0 ? 0 : kSomeWrong;
}

}  // namespace bench
