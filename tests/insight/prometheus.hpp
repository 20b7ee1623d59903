#pragma once

#include <cstdlib>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>

#include <gtest/gtest.h>

namespace kolo::test {

/// Reads Prometheus' text format, as strictly as a scraper: the values by series,
/// `kolo_late_seconds_total{rank="0",peer="2"}`. Fails the test if the text breaks a rule.
inline std::map<std::string, double> parse_prometheus(const std::string& text) {
  static const std::regex help_line(R"(# HELP ([a-z_]+) ([^\\\n]+\.))");
  static const std::regex type_line(R"(# TYPE ([a-z_]+) (counter|gauge|histogram))");
  static const std::regex sample_line(
      R"re((([a-z_]+)\{(?:[a-z]+="[^"\\\n]*")(?:,([a-z]+)="([^"\\\n]*)")?)re"
      R"re((?:,[a-z_]+="[^"\\\n]*")*\}) ([0-9.]+))re");
  std::map<std::string, double> values;
  std::set<std::string> families;
  std::string family, type;
  double bound = 0.0, count = 0.0;  // of the last bucket
  EXPECT_TRUE(text.ends_with('\n'));
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_match(line, match, help_line)) {
      family = match[1];
      type.clear();
      bound = count = 0.0;
      EXPECT_TRUE(families.insert(family).second) << line;
    } else if (std::regex_match(line, match, type_line)) {
      EXPECT_EQ(match[1], family);
      type = match[2];
      EXPECT_TRUE(family.ends_with(type == "counter" ? "_total" : "_seconds")) << line;
    } else if (std::regex_match(line, match, sample_line)) {
      const double value = std::strtod(match.str(5).c_str(), nullptr);
      EXPECT_TRUE(values.emplace(match[1], value).second) << line;
      const std::string name = match[2];
      if (type != "histogram") {
        EXPECT_EQ(name, family) << line;
      } else if (name == family + "_bucket") {
        EXPECT_EQ(match[3], "le") << line;
        const double next = std::strtod(match.str(4).c_str(), nullptr);  // reads "+Inf", too
        EXPECT_GT(next, bound) << line;
        EXPECT_GE(value, count) << line;
        bound = next;
        count = value;
      } else if (name == family + "_count") {
        EXPECT_EQ(bound, HUGE_VAL) << line;
        EXPECT_EQ(value, count) << line;
      } else {
        EXPECT_EQ(name, family + "_sum") << line;
      }
    } else {
      ADD_FAILURE() << "not of the format: " << line;
    }
  }
  return values;
}

/// Lets Prometheus' own parser read the file, where it is installed.
inline void expect_promtool_accepts(const std::string& path) {
  if (std::system("command -v promtool > /dev/null 2>&1") != 0) return;
  EXPECT_EQ(std::system(("promtool check metrics < " + path).c_str()), 0);
}

}  // namespace kolo::test
