#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "gpt/model.hpp"

namespace gpt {

/// Mean of next_byte_loss in nats a byte over the windows of `text` that begin at `starts`. Each
/// rank takes every size()-th of them. Collective; the same value on all ranks.
double validation_loss(Gpt& model, std::string_view text, std::span<const std::size_t> starts);

}  // namespace gpt
