#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "checkpoint/checksums.hpp"

namespace kolo::test {

/// An index.json with a valid first line above `below`, which begins with the end of that line.
inline std::string signed_text(const std::string& below, const nlohmann::json& format,
                               const nlohmann::json& version) {
  const std::uint64_t checksum = checkpoints::checksum_of(below.data(), below.size());
  return R"({"format":)" + format.dump() + R"(,"version":)" + version.dump() + R"(,"checksum":)" +
         std::to_string(checksum) + "," + below;
}

/// An index.json with any content and a valid checksum.
inline std::string signed_index(const nlohmann::json& index) {
  std::string below;
  for (const auto& [key, value] : index.items()) {
    if (key == "format" || key == "version" || key == "checksum") continue;
    below += (below.empty() ? "\n\"" : ",\"") + key + "\":" + value.dump();
  }
  return signed_text(below + "}", index.at("format"), index.at("version"));
}

}  // namespace kolo::test
