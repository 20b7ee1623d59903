#pragma once

#include <concepts>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "kolo/objects.hpp"

/// kolo/objects.hpp for nlohmann::json and nlohmann::ordered_json. Values travel as CBOR, which
/// keeps numbers to the bit and takes strings that are not UTF-8.
namespace kolo {

template <class Json>
concept JsonObject =
    std::same_as<Json, nlohmann::json> || std::same_as<Json, nlohmann::ordered_json>;

/// Returns the value of the world rank `root` on all ranks; what the others give is ignored.
template <JsonObject Json>
Json broadcast_object(const Json& value, int root, const OperationOptions& options = {}) {
  std::string bytes;
  Json::to_cbor(value, bytes);
  return Json::from_cbor(broadcast_object(std::move(bytes), root, options));
}

/// Returns the values of all ranks, in the order of ranks; null for a rank that has joined.
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
