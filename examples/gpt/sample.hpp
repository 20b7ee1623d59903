#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "gpt/model.hpp"

namespace gpt {

/// Returns `prompt`, which is not empty, followed by `bytes` that are drawn one by one from `model`
/// with torch's global generator.
std::string sample(Gpt& model, std::string_view prompt, std::size_t bytes);

/// `text` with '?' for every byte that is neither printable nor a newline or tab.
std::string printable(std::string text);

}  // namespace gpt
