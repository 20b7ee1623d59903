#include "torch/data/read_state.hpp"

#include <exception>
#include <limits>

#include "kolo/error.hpp"
#include "torch/checkpoint/json_fields.hpp"
#include "torch/checkpoint/printable.hpp"

namespace kolo::tensors {

void read_state(const std::string& what, const std::string& text,
                const std::function<void(const nlohmann::json& fields)>& read) {
  try {
    read(parse_json(text));
  } catch (const std::exception& error) {
    throw InvalidArgument(what + ": the state is damaged: " + printable(error.what()) +
                          ". Give the text that state() has returned, or begin anew.");
  }
}

std::int64_t to_epoch(const nlohmann::json& value) {
  const std::int64_t epoch = to_count(value);
  if (epoch == std::numeric_limits<std::int64_t>::max()) {
    throw InvalidArgument("no epoch follows number " + std::to_string(epoch));
  }
  return epoch;
}

}  // namespace kolo::tensors
