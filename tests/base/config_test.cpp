#include "kolo/config.hpp"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/error.hpp"

namespace kolo::config_test {

using namespace std::chrono_literals;

/// Sets an environment variable for the duration of a test.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { ::setenv(name, value, 1); }
  Variable(const Variable&) = delete;  // restored once
  Variable& operator=(const Variable&) = delete;
  ~Variable() { ::unsetenv(name_); }

 private:
  const char* name_;
};

template <class Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

std::string error_of(const char* name, const char* value) {
  const Variable variable(name, value);
  return error_of([] { static_cast<void>(Config::from_environment()); });
}

ConfigEntry entry_of(const Config& config, const std::string& variable) {
  for (const ConfigEntry& entry : describe(config)) {
    if (entry.variable == variable) return entry;
  }
  return {};
}

TEST(ConfigTest, MisspeltVariables_AreReportedWithTheLikelySetting) {
  const Variable setting("KOLO_TIMEOUT", "3s");
  const Variable other("KOLO_TEST_SEED", "1");
  EXPECT_TRUE(ignored_settings().empty());
  const Variable misspelt("KOLO_TIMOUT", "3s");
  EXPECT_EQ(ignored_settings(), std::vector<std::string>{
                                    "KOLO_TIMOUT is not a setting and has no effect. Is "
                                    "KOLO_TIMEOUT meant? kolo-bench --config lists all settings."});
}

TEST(ConfigTest, SettingsThatHaveGone_SayWhatToUseInstead) {
  const auto text_of = [](const char* name) {
    const Variable variable(name, "window");
    const std::vector<std::string> texts = ignored_settings();
    return texts.size() == 1 ? texts[0] : std::to_string(texts.size()) + " texts";
  };
  EXPECT_EQ(text_of("KOLO_REDUCE_SCATTER"),
            "KOLO_REDUCE_SCATTER is no longer a setting and has no effect: use "
            "KOLO_ALGORITHM=reduce_scatter:<name>.");
  for (const char* name : {"KOLO_ALLREDUCE", "KOLO_ALLGATHER", "KOLO_ALLTOALL", "KOLO_BROADCAST"}) {
    EXPECT_NE(text_of(name).find("use KOLO_ALGORITHM="), std::string::npos) << text_of(name);
  }
  EXPECT_NE(text_of("KOLO_PROTECT_PARAMETERS").find("in DistributedOptimizer::full_parameters()"),
            std::string::npos);
  for (const char* name : {"KOLO_PATIENCE", "KOLO_SPIN", "KOLO_SEGMENT_BYTES", "KOLO_STAGING_BYTES",
                           "KOLO_TABLE_CAPACITY", "KOLO_TREE_WIDTH"}) {
    EXPECT_EQ(text_of(name), std::string(name) +
                                 " is no longer a setting and has no effect: Kolo uses a value of "
                                 "its own; unset it.");
  }
}

TEST(ConfigTest, UnsetVariables_KeepTheirDefaults) {
  const Config config = Config::from_environment();
  EXPECT_EQ(config.timeout, 30min);
  EXPECT_EQ(config.fusion_bytes, 512u * 1024u);
  EXPECT_TRUE(config.fusion);
  EXPECT_EQ(config.algorithm, "");
}

/// The fields whose values differ from the defaults.
std::vector<std::string> changed_fields(const Config& config) {
  const Config defaults;
  std::vector<std::string> changed;
  const auto look = [&](const char* name, auto member) {
    if (config.*member != defaults.*member) changed.emplace_back(name);
  };
  look("timeout", &Config::timeout);
  look("stall_warn", &Config::stall_warn);
  look("lost_after", &Config::lost_after);
  look("start_timeout", &Config::start_timeout);
  look("fusion", &Config::fusion);
  look("shared_memory", &Config::shared_memory);
  look("fake_nodes", &Config::fake_nodes);
  look("share_gpu", &Config::share_gpu);
  look("nccl_algo", &Config::nccl_algo);
  look("launcher", &Config::launcher);
  look("mpi_library", &Config::mpi_library);
  look("rendezvous", &Config::rendezvous);
  look("algorithm", &Config::algorithm);
  look("shard", &Config::shard);
  look("log_level", &Config::log_level);
  look("record", &Config::record);
  look("timeline", &Config::timeline);
  look("metrics", &Config::metrics);
  look("metrics_labels", &Config::metrics_labels);
  look("fusion_bytes", &Config::fusion_bytes);
  return changed;
}

/// A valid value of the variable that is not its default.
std::string other_value(const ConfigEntry& entry) {
  if (entry.variable == "KOLO_SHARD") return "gradients";
  if (entry.variable == "KOLO_LAUNCHER") return "none";
  if (entry.variable == "KOLO_NCCL_ALGO") return "auto";
  if (entry.variable == "KOLO_LOG_LEVEL") return "debug";
  if (entry.variable == "KOLO_METRICS_LABELS") return "team=vision,run=42";
  if (entry.unit == "duration") return "7ms";
  if (entry.unit == "bytes") return "8KB";
  if (entry.unit == "number") return "3";
  if (entry.unit == "switch") return entry.default_value == "on" ? "off" : "on";
  return "allreduce:ring";
}

TEST(ConfigTest, EveryVariable_SetsItsFieldOnly) {
  for (const ConfigEntry& entry : describe(Config{})) {
    std::string field = entry.variable.substr(std::string("KOLO_").size());
    std::transform(field.begin(), field.end(), field.begin(),
                   [](char letter) { return static_cast<char>(std::tolower(letter)); });
    const std::string value = other_value(entry);
    const Variable variable(entry.variable.c_str(), value.c_str());
    const Config config = Config::from_environment();
    EXPECT_EQ(changed_fields(config), std::vector<std::string>{field}) << entry.variable;
    EXPECT_EQ(entry_of(config, entry.variable).value, value);
  }
}

TEST(ConfigTest, LabelsThatPrometheusOrKoloCannotHave_AreRejected) {
  for (const char* good : {"a=", "_b9=x y,job_id=7", "a=1,", "team=ü"}) {
    const Variable variable("KOLO_METRICS_LABELS", good);
    EXPECT_EQ(Config::from_environment().metrics_labels, good);
  }
  for (const char* bad : {"a", "=1", "a b=1", "9a=1", "__a=1", "rank=1", "le=1", "peer=1",
                          "a=1,a=2", "a=\"", "a=\\", "a=1,,b=2", "a=\n"}) {
    const Variable variable("KOLO_METRICS_LABELS", bad);
    EXPECT_THROW(Config::from_environment(), InvalidArgument) << bad;
  }
}

TEST(ConfigTest, FieldsOutOfRange_AreRejectedLikeVariables) {
  const auto error_with = [](auto field, auto value) -> std::string {
    Config config;
    config.*field = value;
    return error_of([&] { config.validate(); });
  };
  EXPECT_EQ(error_with(&Config::fake_nodes, -1), "KOLO_FAKE_NODES='-1': expected 0 to 1048576");
  EXPECT_EQ(error_with(&Config::lost_after, Config::Duration(-1)),
            "KOLO_LOST_AFTER='-1ns': expected 0s to 8760h");
  EXPECT_EQ(error_with(&Config::fusion_bytes, (std::size_t{1} << 30) + 1),
            "KOLO_FUSION_BYTES='1073741825B': expected 0 to 1GB");
  EXPECT_NE(error_with(&Config::fusion_bytes, ~std::size_t{0}), "accepted");
  EXPECT_NE(error_with(&Config::launcher, "mpirun"), "accepted");
  EXPECT_EQ(error_with(&Config::timeout, Config::Duration(1min)), "accepted");
}

TEST(ConfigTest, LaunchersThatDoNotExist_AreRejected) {
  const Variable variable("KOLO_LAUNCHER", "mpirun");
  EXPECT_THROW(Config::from_environment(), InvalidArgument);
}

TEST(ConfigTest, Durations_NeedAUnit) {
  {
    const Variable variable("KOLO_TIMEOUT", "250ms");
    EXPECT_EQ(Config::from_environment().timeout, 250ms);
  }
  {
    const Variable variable("KOLO_TIMEOUT", "5min");
    EXPECT_EQ(Config::from_environment().timeout, 5min);
  }
  {
    const Variable variable("KOLO_LOST_AFTER", "700ns");
    EXPECT_EQ(Config::from_environment().lost_after, 700ns);
  }
  {
    const Variable variable("KOLO_TIMEOUT", "2h");
    EXPECT_EQ(Config::from_environment().timeout, 2h);
  }
  for (const char* wrong : {"", "10", "ms", "-5s", "1.5s", " 5s", "5s ", "5 s", "5S", "5sec", "+5s",
                            "99999999999999999999s", "9223372036854775807s"}) {
    EXPECT_NE(error_of("KOLO_TIMEOUT", wrong), "accepted") << "'" << wrong << "'";
  }
}

TEST(ConfigTest, SizeUnits_ArePowersOf1024) {
  const auto fusion_bytes = [](const char* text) {
    const Variable variable("KOLO_FUSION_BYTES", text);
    return Config::from_environment().fusion_bytes;
  };
  EXPECT_EQ(fusion_bytes("0"), 0u);
  EXPECT_EQ(fusion_bytes("65536"), 65536u);
  EXPECT_EQ(fusion_bytes("64B"), 64u);
  EXPECT_EQ(fusion_bytes("256KB"), 256u * 1024u);
  EXPECT_EQ(fusion_bytes("64MB"), 64u * 1024u * 1024u);
  EXPECT_EQ(fusion_bytes("1GB"), 1024u * 1024u * 1024u);
  for (const char* wrong : {"", "MB", "-1", "1.5MB", "64mb", "64M", "64 MB", "0x40", "2GB",
                            "18446744073709551616", "9223372036854775807GB"}) {
    EXPECT_NE(error_of("KOLO_FUSION_BYTES", wrong), "accepted") << "'" << wrong << "'";
  }
}

TEST(ConfigTest, Switches_AreOnOrOff) {
  const Variable variable("KOLO_FUSION", "off");
  EXPECT_FALSE(Config::from_environment().fusion);
  for (const char* wrong : {"", "1", "0", "true", "ON", "yes"}) {
    EXPECT_NE(error_of("KOLO_FUSION", wrong), "accepted") << "'" << wrong << "'";
  }
}

TEST(ConfigTest, Numbers_StayInTheirRange) {
  const Variable variable("KOLO_FAKE_NODES", "3");
  EXPECT_EQ(Config::from_environment().fake_nodes, 3);
  for (const char* wrong : {"", "-1", "3.0", "three", "4294967297", "1048577"}) {
    EXPECT_NE(error_of("KOLO_FAKE_NODES", wrong), "accepted") << "'" << wrong << "'";
  }
}

TEST(ConfigTest, Errors_NameVariableValueAndForm) {
  const std::string unit = error_of("KOLO_TIMEOUT", "10");
  EXPECT_NE(unit.find("KOLO_TIMEOUT='10'"), std::string::npos) << unit;
  EXPECT_NE(unit.find("250ms"), std::string::npos) << unit;
  const std::string size = error_of("KOLO_FUSION_BYTES", "64mb");
  EXPECT_NE(size.find("KOLO_FUSION_BYTES='64mb'"), std::string::npos) << size;
  EXPECT_NE(size.find("64MB"), std::string::npos) << size;
  const std::string range = error_of("KOLO_FAKE_NODES", "1048577");
  EXPECT_NE(range.find("0 to 1048576"), std::string::npos) << range;
  const std::string level = error_of("KOLO_LOG_LEVEL", "loud");
  EXPECT_NE(level.find("KOLO_LOG_LEVEL: "), std::string::npos) << level;
  EXPECT_NE(level.find("'loud'"), std::string::npos) << level;
  EXPECT_NE(level.find("debug"), std::string::npos) << level;
  const std::string shard = error_of("KOLO_SHARD", "zero");
  EXPECT_NE(shard.find("KOLO_SHARD: "), std::string::npos) << shard;
  EXPECT_NE(shard.find("'zero'"), std::string::npos) << shard;
  EXPECT_NE(shard.find("none, optimizer, gradients"), std::string::npos) << shard;
}

TEST(ConfigTest, Describe_ListsEverySettingOnceWithItsValue) {
  Config config;
  config.timeout = 90s;
  config.stall_warn = 0s;
  config.fusion_bytes = 1536;
  config.fusion = false;
  config.fake_nodes = 2;
  config.algorithm = "allreduce:ring";
  std::set<std::string> variables;
  for (const ConfigEntry& entry : describe(config)) {
    EXPECT_EQ(entry.variable.rfind("KOLO_", 0), 0u);
    EXPECT_FALSE(entry.help.empty()) << entry.variable;
    EXPECT_FALSE(entry.range.empty()) << entry.variable;
    EXPECT_TRUE(variables.insert(entry.variable).second) << entry.variable << " twice";
  }
  EXPECT_EQ(variables.size(), 20u);
  EXPECT_EQ(entry_of(config, "KOLO_TIMEOUT").value, "90s");
  EXPECT_EQ(entry_of(config, "KOLO_TIMEOUT").default_value, "30min");
  EXPECT_EQ(entry_of(config, "KOLO_STALL_WARN").value, "0s");
  EXPECT_EQ(entry_of(config, "KOLO_FUSION_BYTES").value, "1536B");
  EXPECT_EQ(entry_of(config, "KOLO_FUSION").value, "off");
  EXPECT_EQ(entry_of(config, "KOLO_FAKE_NODES").value, "2");
  EXPECT_EQ(entry_of(config, "KOLO_ALGORITHM").value, "allreduce:ring");
}

/// Printed values can be set again.
TEST(ConfigTest, DescribedValues_AreAccepted) {
  for (const ConfigEntry& entry : describe(Config{})) {
    EXPECT_EQ(error_of(entry.variable.c_str(), entry.default_value.c_str()), "accepted")
        << entry.variable << "=" << entry.default_value;
  }
}

}  // namespace kolo::config_test
