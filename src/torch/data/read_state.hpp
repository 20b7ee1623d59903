#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include <nlohmann/json.hpp>

namespace kolo::tensors {

/// Parses the text of a state and passes its object to `read`, which reads the fields with at().
/// Throws InvalidArgument, with a text that begins with `what`, if it is damaged, or `read` throws.
void read_state(const std::string& what, const std::string& text,
                const std::function<void(const nlohmann::json& fields)>& read);

/// An epoch number, which is not the largest possible one.
std::int64_t to_epoch(const nlohmann::json& value);

}  // namespace kolo::tensors
