#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fcntl.h>
#include <functional>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <vector>

#include <ATen/ops/randint.h>
#include <nlohmann/json.hpp>

#include "common/agreement.hpp"
#include "common/model.hpp"
#include "common/statistics.hpp"
#include "gpt/training.hpp"
#include "kolo/kolo.hpp"
#include "shard/benchmark.hpp"
#include "shard/process_memory.hpp"

namespace shard {
namespace {

constexpr double kMaxGrowthMiB = 8.0;  // of a rank's memory, which has 61.6 to save
constexpr double kMiB = 1024.0 * 1024.0;

void write_directly(const std::filesystem::path& path, const std::vector<char>& bytes) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  std::size_t done = 0;
  while (file >= 0 && done < bytes.size()) {
    const ssize_t written = ::write(file, bytes.data() + done, bytes.size() - done);
    if (written <= 0) break;
    done += static_cast<std::size_t>(written);
  }
  const bool is_written = done == bytes.size() && ::fsync(file) == 0;
  ::close(file);
  if (!is_written) throw std::runtime_error("cannot write " + path.string());
}

/// From when all ranks are ready until all have finished.
double seconds_of(const std::function<void()>& work) {
  kolo::barrier();
  const auto start = std::chrono::steady_clock::now();
  work();
  kolo::barrier();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void print_saving(const nlohmann::ordered_json& result, int rounds) {
  const auto number = [&](const char* key) { return result.at(key).get<double>(); };
  std::printf(
      "shard = %s, %d ranks, %.0f MiB: save %.3f s, write and fsync %.3f s, median ratio %.2f "
      "of %d rounds; while it saves, a rank's memory grows by %.1f MiB at most\n",
      result.at("shard").get<std::string>().c_str(), kolo::size(), number("mib"),
      number("save_s_median"), number("write_s_median"), number("ratio_median"), rounds,
      number("growth_mib"));
  std::fflush(stdout);
}

}  // namespace

nlohmann::ordered_json measure_saving(const Options& options, bool& is_met) {
  const gpt::Options preset = gpt::medium_preset();
  gpt::Gpt model = gpt::make_model(preset);
  const auto adamw = gpt::make_optimizer(model, preset);
  kolo::DistributedOptimizer optimizer(*adamw, *model, {.shard = options.shard});
  const at::Tensor windows =
      at::randint(256, {1, preset.context + 1}, at::TensorOptions(at::kLong));
  for (int step = 0; step < 2; ++step) gpt::train_step(model, optimizer, windows);

  const std::filesystem::path folder = *options.checkpoint;
  const std::size_t growth_bytes = growth_during([&] { optimizer.save(folder / "kolo"); });
  const double growth = examples::largest_over_ranks(static_cast<double>(growth_bytes) / kMiB);
  // All ranks' bytes: parameters once, and AdamW's two moments of each.
  const auto all_bytes =
      3 * sizeof(float) * static_cast<std::size_t>(examples::count_parameters(*model));
  const std::vector<char> bytes(all_bytes / static_cast<std::size_t>(kolo::size()), 'k');
  const std::filesystem::path plain = folder / ("plain-" + std::to_string(kolo::rank()) + ".bytes");

  std::vector<double> save;
  std::vector<double> write;
  std::vector<double> ratios;
  for (int round = 0; round < options.rounds; ++round) {
    write.push_back(seconds_of([&] { write_directly(plain, bytes); }));
    save.push_back(seconds_of([&] { optimizer.save(folder / "kolo"); }));
    ratios.push_back(save.back() / write.back());
  }
  std::filesystem::remove(plain);
  is_met = growth <= kMaxGrowthMiB;
  nlohmann::ordered_json result{{"ranks", kolo::size()},
                                {"shard", kolo::name_of(optimizer.report().shard)},
                                {"mib", static_cast<double>(all_bytes) / kMiB},
                                {"save_s_median", examples::median(save)},
                                {"write_s_median", examples::median(write)},
                                {"ratio_median", examples::median(ratios)},
                                {"growth_mib", growth}};
  if (kolo::rank() == 0) print_saving(result, options.rounds);
  return result;
}

}  // namespace shard
