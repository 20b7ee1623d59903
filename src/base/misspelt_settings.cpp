#include "base/misspelt_settings.hpp"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <unistd.h>
#include <utility>

#include "kolo/config.hpp"

namespace kolo {
namespace {

constexpr std::size_t kLargestDistance = 2;

/// Levenshtein distance: the letters to insert, delete or replace.
std::size_t edit_distance(std::string_view from, std::string_view to) {
  std::vector<std::size_t> row(to.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (const char letter : from) {
    std::size_t diagonal = row[0]++;
    for (std::size_t i = 0; i < to.size(); ++i) {
      const std::size_t replaced = diagonal + (letter == to[i] ? 0 : 1);
      diagonal = std::exchange(row[i + 1], std::min({row[i] + 1, row[i + 1] + 1, replaced}));
    }
  }
  return row.back();
}

}  // namespace

std::vector<std::string> misspelt_settings() {
  const std::vector<ConfigEntry> settings = describe(Config());
  std::vector<std::string> texts;
  for (char* const* entry = environ; *entry != nullptr; ++entry) {
    std::string_view name(*entry);
    name = name.substr(0, name.find('='));
    if (!name.starts_with("KOLO_")) continue;
    const auto distance = [&](const ConfigEntry& setting) {
      return edit_distance(name, setting.variable);
    };
    const auto nearest = std::ranges::min_element(settings, {}, distance);
    if (distance(*nearest) == 0 || distance(*nearest) > kLargestDistance) continue;
    texts.push_back(std::string(name) + " is not a setting and has no effect. Is " +
                    nearest->variable + " meant? kolo-bench --config lists all settings.");
  }
  return texts;
}

}  // namespace kolo
