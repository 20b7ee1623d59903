#include "gpt/sample.hpp"

#include <algorithm>
#include <array>
#include <cctype>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/softmax.h>

#include "gpt/batch.hpp"

namespace gpt {
namespace {

constexpr double kTemperature = 0.7;  // below one: fewer unlikely bytes than in the text

}  // namespace

std::string sample(Gpt& model, std::string_view prompt, std::size_t bytes) {
  const at::NoGradGuard no_gradients;
  const auto context = static_cast<std::size_t>(model->options().context);
  std::string text(prompt);
  while (text.size() < prompt.size() + bytes) {
    const std::size_t length = std::min(context, text.size());
    const std::array<std::size_t, 1> start{text.size() - length};
    const at::Tensor window = read_windows(text, start, length).to(model->device());
    const at::Tensor logits = model(window).select(1, -1);
    const at::Tensor next = at::multinomial(at::softmax(logits / kTemperature, -1), 1);
    text.push_back(static_cast<char>(next.item<std::int64_t>()));
  }
  return text;
}

std::string printable(std::string text) {
  std::ranges::replace_if(
      text,
      [](unsigned char byte) { return std::isprint(byte) == 0 && byte != '\n' && byte != '\t'; },
      '?');
  return text;
}

}  // namespace gpt
