#pragma once

#include <concepts>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "kolo/objects.hpp"

#pragma GCC visibility push(default)
/// kolo/objects.hpp for nlohmann::json and nlohmann::ordered_json, for programs that link
/// nlohmann_json::nlohmann_json. Values are sent as CBOR, which preserves the bits of numbers and
/// accepts strings that are not UTF-8.
namespace kolo {

template <class Json>
concept JsonObject =
    std::same_as<Json, nlohmann::json> || std::same_as<Json, nlohmann::ordered_json>;

/// Sends a value from one rank to all others. Collective and blocking.
///
/// @param value ignored on all ranks but the root
/// @param root world rank that supplies the value, the same on all ranks
/// @return the root's value
template <JsonObject Json>
Json broadcast_object(const Json& value, int root, const OperationOptions& options = {}) {
  std::string bytes;
  Json::to_cbor(value, bytes);
  return Json::from_cbor(broadcast_object(std::move(bytes), root, options));
}

/// Gathers the values of all ranks. Collective and blocking.
///
/// @return the values of all ranks, in rank order; null for a rank that has joined
template <JsonObject Json>
std::vector<Json> allgather_object(const Json& value, const OperationOptions& options = {}) {
  std::string bytes;
  Json::to_cbor(value, bytes);
  std::vector<Json> values;
  for (const std::string& object : allgather_object(bytes, options)) {
    values.push_back(object.empty() ? Json() : Json::from_cbor(object));
  }
  return values;
}

}  // namespace kolo
#pragma GCC visibility pop
