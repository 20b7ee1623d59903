#include "bench/options.hpp"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace options_test {

using bench::Operation;

std::variant<bench::Options, examples::Exit> parse(std::vector<const char*> arguments) {
  arguments.insert(arguments.begin(), "kolo-bench");
  return bench::parse_options(static_cast<int>(arguments.size()), arguments.data());
}

bench::Options options(const std::vector<const char*>& arguments) {
  return std::get<bench::Options>(parse(arguments));
}

TEST(BenchOptions, AllReduceInPlaceIsTheDefault) {
  const bench::Options plain = options({});
  EXPECT_EQ(plain.operation, Operation::AllReduce);
  EXPECT_TRUE(plain.in_place);
  EXPECT_FALSE(plain.out_of_place);
  EXPECT_FALSE(plain.has_baseline());
  EXPECT_FALSE(plain.is_on_gpu());
  EXPECT_EQ(plain.ranks_to_start(), 2);
  EXPECT_EQ(plain.placements.size(), 2U);
  EXPECT_EQ(plain.rounds % 2, 1);
}

TEST(BenchOptions, CollectivesAreSelectedByName) {
  for (std::size_t i = 0; i < bench::kOperationNames.size(); ++i) {
    const std::string name(bench::kOperationNames[i]);
    EXPECT_EQ(options({name.c_str()}).operation, static_cast<Operation>(i)) << name;
  }
}

TEST(BenchOptions, OutOfPlaceAloneOrBoth) {
  const bench::Options apart = options({"--out-of-place"});
  EXPECT_FALSE(apart.in_place);
  EXPECT_TRUE(apart.out_of_place);
  const bench::Options both = options({"--in-place", "--out-of-place"});
  EXPECT_TRUE(both.in_place);
  EXPECT_TRUE(both.out_of_place);
}

TEST(BenchOptions, SizesArePowersOf1024AndGrowByTheFactor) {
  const bench::Options sized = options({"--min", "1KB", "--max", "1MB", "--factor", "16"});
  EXPECT_EQ(bench::sizes_of(sized), (std::vector<std::size_t>{1 << 10, 1 << 14, 1 << 18}));
}

TEST(BenchOptions, SmallerSizesGetMoreCallsPerBlock) {
  EXPECT_EQ(bench::iterations_of(options({}), 64), 200);
  EXPECT_EQ(bench::iterations_of(options({}), std::size_t{4} << 20), 4);
  EXPECT_EQ(bench::iterations_of(options({}), std::size_t{1} << 30), 1);
  EXPECT_EQ(bench::iterations_of(options({"--iterations", "7"}), 64), 7);
}

TEST(BenchOptions, ListsTakeCommasAndRepetition) {
  const bench::Options listed = options({"--algorithm", "window,kolo", "--algorithm", "ring",
                                         "--compression", "none,bf16", "--placement", "staged"});
  EXPECT_EQ(listed.algorithms, (std::vector<std::string>{"window", "kolo", "ring"}));
  EXPECT_EQ(listed.compressions, (std::vector<std::string>{"none", "bf16"}));
  EXPECT_EQ(listed.placements, (std::vector<std::string>{"staged"}));
}

TEST(BenchOptions, GradientsAreAllReducesOfAModel) {
  const bench::Options gradients = options({"gradients", "--model", "bert_base"});
  EXPECT_TRUE(gradients.is_gradients());
  EXPECT_EQ(gradients.operation, Operation::AllReduce);
}

TEST(BenchOptions, CudaTakesNcclAsItsBaseline) {
  const bench::Options on_gpu = options({"--device", "cuda", "--baseline", "nccl", "--dtype",
                                         "float16", "--max", "16GB", "--algorithm", "kolo"});
  EXPECT_TRUE(on_gpu.is_on_gpu());
  EXPECT_EQ(on_gpu.baseline, "nccl");
  EXPECT_FALSE(options({"--device", "cpu", "--baseline", "mpi"}).is_on_gpu());
  EXPECT_EQ(options({"--device", "cuda", "allgather", "--dtype", "int16"}).dtype,
            kolo::DType::Int16);
}

TEST(BenchOptions, BlocksOfAGpuAreLong) {
  const bench::Options on_gpu = options({"--device", "cuda"});
  EXPECT_EQ(bench::iterations_of(on_gpu, 64), 200);
  EXPECT_EQ(bench::iterations_of(on_gpu, std::size_t{64} << 20), 64);
  EXPECT_EQ(bench::iterations_of(on_gpu, std::size_t{1} << 30), 20);
  EXPECT_EQ(bench::iterations_of(options({"--device", "cuda", "--iterations", "7"}), 64), 7);
}

TEST(BenchOptions, InPlaceAndOutOfPlaceWherePossible) {
  const bench::Options plain = options({});
  EXPECT_TRUE(plain.wants(Operation::AllReduce, true));
  EXPECT_FALSE(plain.wants(Operation::AllReduce, false));
  EXPECT_FALSE(plain.wants(Operation::AllToAll, true));
  EXPECT_TRUE(plain.wants(Operation::AllToAll, false));
  const bench::Options apart = options({"--out-of-place"});
  EXPECT_FALSE(apart.wants(Operation::AllReduce, true));
  EXPECT_TRUE(apart.wants(Operation::AllReduce, false));
  EXPECT_TRUE(apart.wants(Operation::Broadcast, true));
  EXPECT_FALSE(apart.wants(Operation::Broadcast, false));
}

TEST(BenchOptions, MistakesAreReportedWithWhatIsValid) {
  struct Case {
    std::vector<const char*> arguments;
    const char* text;
  };
  for (const Case& tested : std::vector<Case>{
           {{"scatter"}, "reduce_scatter"},
           {{"gradients"}, "resnet50, bert_base, gpt2_small"},
           {{"--model", "resnet50"}, "go together"},
           {{"--model", "vgg"}, "bert_base"},
           {{"alltoall", "--algorithm", "ring"}, "choose from kolo, all, pairwise, window"},
           {{"gradients", "--model", "resnet50", "--algorithm", "kolo"},
            "tensors, buckets, copied_buckets, group"},
           {{"gradients", "--model", "resnet50", "--device", "cuda", "--algorithm",
             "copied_buckets"},
            "tensors, buckets, group"},
           {{"gradients", "--model", "resnet50", "--group", "2"}, "--group"},
           {{"--algorithm", "adasum"}, "has none of that name"},
           {{"--dtype", "bool"}, "booleans cannot be added"},
           {{"--dtype", "float16", "--baseline", "mpi"}, "MPI cannot reduce it"},
           {{"--dtype", "complex64"}, "float32"},
           {{"--min", "2"}, "one element, which has 4 bytes"},
           {{"--min", "2KB", "--max", "1KB"}, "--max is less than --min"},
           {{"--max", "16GB", "--baseline", "mpi"}, "more than MPI can count"},
           {{"--rounds", "4"}, "odd"},
           {{"broadcast", "--compression", "fp16"}, "--compression"},
           {{"--compression", "zip"}, "bf16"},
           {{"--baseline", "gloo"}, "mpi"},
           {{"--baseline", "nccl"}, "add --device cuda"},
           {{"--device", "rocm"}, "cuda"},
           {{"--device", "cuda", "--baseline", "mpi"}, "use --baseline nccl"},
           {{"--device", "cuda", "--placement", "window"}, "--placement"},
           {{"--device", "cuda", "--algorithm", "ring"}, "choose from kolo"},
           {{"--device", "cuda", "--dtype", "int16"}, "NCCL cannot reduce it"},
           {{"--device", "cuda", "--dtype", "bool"}, "booleans cannot be added"},
           {{"--np", "0"}, "--np"},
           {{"--bogus"}, "--bogus"}}) {
    const auto parsed = parse(tested.arguments);
    ASSERT_TRUE(std::holds_alternative<examples::Exit>(parsed)) << tested.text;
    const auto& exit = std::get<examples::Exit>(parsed);
    EXPECT_EQ(exit.code, 2) << tested.text;
    EXPECT_NE(exit.text.find(tested.text), std::string::npos) << exit.text;
  }
}

TEST(BenchOptions, HelpNamesEveryOption) {
  const auto parsed = parse({"--help"});
  const auto& exit = std::get<examples::Exit>(parsed);
  EXPECT_EQ(exit.code, 0);
  for (const char* const option :
       {"--np", "--device", "--baseline", "--model", "--plot", "--selfcheck", "--config"}) {
    EXPECT_NE(exit.text.find(option), std::string::npos) << option;
  }
}

}  // namespace options_test
