#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "gpt/model.hpp"

namespace gpt {

/// `prompt`, which is not empty, and `bytes` more that `model` draws one by one with torch's global
/// generator.
std::string sample(Gpt& model, std::string_view prompt, std::size_t bytes);

/// `text` with every byte that neither prints nor moves to a new line or column shown as '?'.
std::string printable(std::string text);

}  // namespace gpt
