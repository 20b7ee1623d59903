#include "gpt/evaluation.hpp"

#include <algorithm>
#include <vector>

#include <ATen/core/grad_mode.h>

#include "common/agreement.hpp"
#include "gpt/batch.hpp"
#include "kolo/runtime.hpp"

namespace gpt {
namespace {

constexpr std::size_t kBatch = 64;

}  // namespace

double validation_loss(Gpt& model, std::string_view text, std::span<const std::size_t> starts) {
  const auto rank = static_cast<std::size_t>(kolo::rank());
  const auto size = static_cast<std::size_t>(kolo::size());
  std::vector<std::size_t> mine;
  for (std::size_t i = rank; i < starts.size(); i += size) mine.push_back(starts[i]);

  const at::NoGradGuard no_gradients;
  const auto length = static_cast<std::size_t>(model->options().context) + 1;
  double sum = 0;
  for (std::size_t i = 0; i < mine.size(); i += kBatch) {
    const auto batch = std::span(mine).subspan(i, std::min(kBatch, mine.size() - i));
    const at::Tensor loss = next_byte_loss(model, read_windows(text, batch, length));
    sum += loss.item<double>() * static_cast<double>(batch.size());
  }
  // The mean over ranks times their number is the sum over all windows.
  return examples::mean_over_ranks(sum) * kolo::size() / static_cast<double>(starts.size());
}

}  // namespace gpt
