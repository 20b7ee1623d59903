#include "common/efficiency.hpp"

#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/agreement.hpp"
#include "kolo/runtime.hpp"
#include "runtime/runtimes.hpp"

namespace kolo::test::efficiency_test::efficiency_test {

constexpr double kFinish = 0.1;  // seconds for the end of a block

/// The mean step of two ranks that take `own` and `own` + `more` seconds per step.
double mean_step(double own, double more, int steps) { return own + more / 2 + kFinish / steps; }

TEST(Efficiency, IsTheTimeWithoutCommunicationOverTheTimeWithIt) {
  run_runtimes(2, [](Runtime& runtime) {
    const int rank = runtime.rank();
    double now = 7.0;
    const examples::Efficiency got = examples::measure_efficiency(
        [&] { now += 0.2 + 0.1 * rank; }, [&] { now += 0.8 + 0.4 * rank; }, [&] { now += kFinish; },
        3, [&] { return now; });
    constexpr int kSteps = 4;  // of 0.28 s each, in a block of one second
    const double without = mean_step(0.2, 0.1, kSteps);
    const double with = mean_step(0.8, 0.4, kSteps);
    for (const examples::Share& share : {got.of_independent, got.of_meeting}) {
      EXPECT_NEAR(share.median, without / with, 1e-9);
      EXPECT_NEAR(share.interval.low, without / with, 1e-9);
      EXPECT_NEAR(share.interval.high, without / with, 1e-9);
    }
    EXPECT_NEAR(got.step_ms_without, 1e3 * without, 1e-6);
    EXPECT_NEAR(got.step_ms_meeting, 1e3 * without, 1e-6);  // waiting costs no virtual time
    EXPECT_NEAR(got.step_ms_with, 1e3 * with, 1e-6);
  });
}

TEST(Efficiency, IsPrintedAndWrittenFieldByField) {
  const examples::Efficiency efficiency{.of_independent = {0.5, {0.25, 0.75}},
                                        .of_meeting = {0.625, {0.375, 0.875}},
                                        .step_ms_without = 10.0,
                                        .step_ms_meeting = 12.5,
                                        .step_ms_with = 20.0};
  EXPECT_EQ(examples::to_json(efficiency).dump(),
            R"({"efficiency":0.5,"efficiency_low":0.25,"efficiency_high":0.75,)"
            R"("efficiency_meeting":0.625,"efficiency_meeting_low":0.375,)"
            R"("efficiency_meeting_high":0.875,"step_ms_without":10.0,"step_ms_meeting":12.5,)"
            R"("step_ms_with":20.0})");
  std::ostringstream text;
  text << efficiency;
  EXPECT_EQ(text.str(),
            "efficiency 50.0 % (95 % interval 25.0 to 75.0 %): 20.0 ms a step, 10.0 ms without "
            "communication; 62.5 % (95 % interval 37.5 to 87.5 %) of steps after which the ranks "
            "only wait for one another, 12.5 ms\n");
}

examples::Digest digest(const std::string& text) {
  examples::Digest digest;
  digest.add(text);
  return digest;
}

TEST(TrainingError, TellsRanksThatDidNotTrainTogether) {
  run_runtimes(3, [](Runtime& runtime) {
    const examples::Digest one = digest("1");
    const examples::Digest own = digest("rank " + std::to_string(runtime.rank()));
    const examples::Digest of_two = digest(runtime.rank() == 2 ? "b" : "a");
    EXPECT_EQ(examples::training_error({digest("0"), one, own}), "");
    EXPECT_EQ(examples::training_error({one, one, own}), "the parameters did not change");
    EXPECT_EQ(examples::training_error({digest("0"), of_two, own}),
              "the parameters differ between ranks");
    EXPECT_EQ(examples::training_error({digest("0"), one, of_two}), "ranks had the same batches");
  });
}

}  // namespace kolo::test::efficiency_test::efficiency_test
