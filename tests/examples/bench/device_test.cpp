// kolo-bench with a GPU, on the fake GPU: everything but the calls of CUDA and NCCL.
#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "bench/gpu.hpp"
#include "comm/gpu_ranks.hpp"
#include "kolo/error.hpp"
#include "runtime/runtimes.hpp"

namespace kolo::test::device_test {

using bench::Case;
using bench::Operation;
using bench::Workload;

constexpr int kFreeChannel = 2;  // the Runtime's world uses 0 and 1

class FakeRaw final : public bench::RawCollectives {
 public:
  FakeRaw(std::unique_ptr<comm::DeviceCommunicator> communicator, CUstream_st* stream)
      : communicator_(std::move(communicator)), stream_(stream) {}

  void start(Operation operation, DType dtype, const std::vector<bench::Tensor>& tensors,
             bool) override {
    for (const bench::Tensor& tensor : tensors) {
      call(operation, dtype, tensor);
      while (!communicator_->ready()) std::this_thread::yield();
    }
  }

 private:
  void call(Operation operation, DType dtype, const bench::Tensor& tensor) {
    const std::vector<std::size_t> counts(static_cast<std::size_t>(communicator_->size()),
                                          tensor.count);
    switch (operation) {
      case Operation::AllReduce:
        communicator_->all_reduce(tensor.input, tensor.output, tensor.count, dtype, ReduceOp::Sum,
                                  stream_);
        break;
      case Operation::ReduceScatter:
        communicator_->reduce_scatter(tensor.input, tensor.output, counts, dtype, ReduceOp::Sum,
                                      stream_);
        break;
      case Operation::AllGather:
        communicator_->all_gather(tensor.input, tensor.output, counts, dtype, stream_);
        break;
      case Operation::Broadcast:
        communicator_->broadcast(tensor.output, tensor.count, dtype, 0, stream_);
        break;
      case Operation::AllToAll:
        communicator_->all_to_all(tensor.input, counts, tensor.output, counts, dtype, stream_);
        break;
    }
  }

  std::unique_ptr<comm::DeviceCommunicator> communicator_;
  CUstream_st* stream_;
};

/// A rank's GPU, and a log: c clear, < and > the clock, s synchronise, e elapsed time.
class FakeBenchGpu final : public bench::Gpu {
 public:
  static constexpr double kElapsedUs = 120;

  explicit FakeBenchGpu(FakeWorld& world)
      : world_(world),
        hub_(*world.hub()),
        rank_(world.topology().rank),
        gpu_(world.gpus()->open(world.topology().local_rank)),
        stream_(gpu_->make_stream()) {}

  bench::GpuDescription description() const override { return {.name = "double"}; }
  Device device() const override { return {DeviceKind::Cuda, gpu_->index()}; }
  void* stream() const override { return stream_.get(); }
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override {
    // Freed as by cudaFree, which waits for the GPU.
    const std::shared_ptr<std::byte> memory = gpu_->allocate(bytes);
    return {memory.get(), [this, memory](std::byte*) { hub_.synchronize(rank_, stream_.get()); }};
  }

  void clear(std::byte* to, std::size_t bytes) override {
    log += 'c';
    hub_.kernel(rank_, stream_.get(),
                {.name = "clear", .writes = {ByteRange(to, bytes)}, .run = [=] {
                   std::fill_n(to, bytes, std::byte{0});
                 }});
  }
  void start_clock() override { log += '<'; }
  void stop_clock() override { log += '>'; }
  void synchronize() override {
    log += 's';
    hub_.synchronize(rank_, stream_.get());
  }
  double elapsed_us() override {
    log += 'e';
    hub_.synchronize(rank_, stream_.get());
    return kElapsedUs;
  }
  void upload(std::span<const std::byte> from, std::byte* to) override {
    hub_.synchronize(rank_, stream_.get());
    hub_.copy_to_device(rank_, from, to);
  }
  void download(const std::byte* from, std::span<std::byte> to) override {
    hub_.synchronize(rank_, stream_.get());
    hub_.copy_to_host(rank_, from, to);
  }
  std::unique_ptr<bench::RawCollectives> connect() override {
    return std::make_unique<FakeRaw>(
        test::connect(world_, *gpu_, all_ranks(world_.topology().size), kFreeChannel),
        stream_.get());
  }

  std::string log;

 private:
  FakeWorld& world_;
  FakeGpuHub& hub_;
  int rank_;
  std::shared_ptr<comm::Gpu> gpu_;
  std::shared_ptr<CUstream_st> stream_;
};

/// The objects with which one rank measures.
struct Rank {
  Rank(const bench::Options& wanted, Runtime& runtime, FakeWorld& world,
       bench::DeviceRole role = {true, bench::kNcclBesideKolo})
      : options(wanted),
        gpu(world),
        cases(options, std::move(role), runtime.rank(), runtime.size(), gpu),
        timer(gpu, cases.memory(), runtime.rank(), runtime.size(), [] { barrier(); }) {}

  bench::Options options;
  FakeBenchGpu gpu;
  bench::DeviceCases cases;
  bench::DeviceTimer timer;
};

bench::Options gpu_options() {
  bench::Options options;
  options.device = DeviceKind::Cuda;
  options.baseline = "nccl";
  return options;
}

/// Runs `body` on every rank, and expects no hazard.
void run_on(int size, const std::function<void(Runtime&, FakeWorld&)>& body,
            FakeOptions network = {.gpus_per_rank = 1, .late_launches = true}) {
  std::shared_ptr<FakeGpuHub> hub;
  run_ranks(
      size,
      [&](FakeWorld& world) {
        if (world.topology().rank == 0) hub = world.hub();
        Runtime runtime(options_in(world, test_config()));
        Runtime::set_thread_current(&runtime);
        body(runtime, world);
      },
      network);
  EXPECT_EQ(hub->hazards(), std::vector<std::string>());
}

std::string describe(const bench::Label& label) {
  std::string text = label.algorithm + (label.in_place ? "" : " apart");
  if (label.compression != "none") text += ' ' + label.compression;
  return label.reference.empty() ? text : text + " = " + label.reference;
}

/// Measures and checks all cases; returns their names.
std::multiset<std::string> try_all(Rank& rank, const Workload& workload) {
  std::multiset<std::string> names;
  for (const Case& bench_case : rank.cases.make(workload)) {
    const std::string name = describe(bench_case.label);
    EXPECT_EQ(bench_case.label.placement, bench::kDevice);
    const bench::Block block = rank.timer.run(workload, bench_case, 3);
    EXPECT_EQ(block.mean_us, FakeBenchGpu::kElapsedUs / 3) << name;
    EXPECT_EQ(rank.timer.count_wrong(workload, bench_case), 0U)
        << bench::name_of(workload.operation) << " by " << name;
    names.insert(name);
  }
  return names;
}

class BenchOnGpu : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(, BenchOnGpu, testing::Values(1, 2, 3));

TEST_P(BenchOnGpu, EveryOperationIsRightInEveryWay) {
  for (std::size_t number = 0; number < bench::kOperationNames.size(); ++number) {
    const auto operation = static_cast<Operation>(number);
    bench::Options options = gpu_options();
    options.operation = operation;
    options.out_of_place = true;
    if (bench::is_reduction(operation)) options.compressions = {"none", "fp16"};
    run_on(GetParam(), [&](Runtime& runtime, FakeWorld& world) {
      Rank rank(options, runtime, world);
      for (const DType dtype : {DType::Float32, DType::BFloat16, DType::UInt8}) {
        for (const std::vector<std::size_t>& counts :
             {std::vector<std::size_t>{33}, std::vector<std::size_t>{17, 1, 300}}) {
          const auto names = try_all(rank, {operation, dtype, counts});
          const std::size_t ways = static_cast<std::size_t>(bench::can_be_in_place(operation)) +
                                   static_cast<std::size_t>(bench::can_be_out_of_place(operation));
          const std::size_t raw = counts.size() > 1 ? 3 : 1;
          EXPECT_EQ(names.size(), ways * (options.compressions.size() + raw));
        }
      }
    });
  }
}

TEST_P(BenchOnGpu, GradientsAreReducedSinglyAsAGroupAndInBuckets) {
  bench::Options options = gpu_options();
  options.model = "resnet50";
  run_on(GetParam(), [&](Runtime& runtime, FakeWorld& world) {
    Rank rank(options, runtime, world);
    const Workload gradients{Operation::AllReduce, DType::Float32, {1000, 7, 33, 2000}};
    EXPECT_EQ(
        try_all(rank, gradients),
        (std::multiset<std::string>{"tensors", "group", "buckets", "ncclAllReduce each = NCCL",
                                    "ncclAllReduce group = NCCL", "ncclAllReduce flat = flat"}));
  });
}

TEST_P(BenchOnGpu, WithoutBaselineThereIsKoloAlone) {
  run_on(GetParam(), [&](Runtime& runtime, FakeWorld& world) {
    Rank rank(gpu_options(), runtime, world, {});
    EXPECT_EQ(try_all(rank, {Operation::AllReduce, DType::Float32, {5}}),
              std::multiset<std::string>{"kolo"});
  });
}

/// As in separate processes, which must not connect Kolo's GPUs.
TEST_P(BenchOnGpu, NcclAloneSaysWhichAlgorithmsItMayTake) {
  for (const char* const nccl : {bench::kNcclRing, bench::kNcclAuto}) {
    const std::string name = nccl;
    run_on(GetParam(), [&](Runtime& runtime, FakeWorld& world) {
      Rank rank(gpu_options(), runtime, world, {false, name});
      EXPECT_EQ(world.hub()->resources(runtime.rank()).communicators, 1);
      EXPECT_EQ(try_all(rank, {Operation::AllReduce, DType::Float32, {5}}),
                std::multiset<std::string>{"ncclAllReduce " + name + " = " + name});
      EXPECT_EQ(try_all(rank, {Operation::AllReduce, DType::Float32, {100, 7}}),
                (std::multiset<std::string>{"ncclAllReduce " + name + " each = " + name,
                                            "ncclAllReduce " + name + " group = " + name,
                                            "ncclAllReduce " + name + " flat = flat"}));
    });
  }
}

TEST_P(BenchOnGpu, NobodyWaitsInsideABlock) {
  run_on(GetParam(), [&](Runtime& runtime, FakeWorld& world) {
    Rank rank(gpu_options(), runtime, world);
    const Workload workload{Operation::AllReduce, DType::Float32, {5}};
    Case bench_case = rank.cases.make(workload).front();
    bench_case.run = [&rank, run = bench_case.run] {
      rank.gpu.log += 'r';
      run();
    };
    rank.gpu.log.clear();
    const bench::Block block = rank.timer.run(workload, bench_case, 20);
    EXPECT_EQ(rank.gpu.log, "crrs<" + std::string(20, 'r') + ">e");
    EXPECT_EQ(block.mean_us, FakeBenchGpu::kElapsedUs / 20);
    EXPECT_EQ(block.calls_us, std::vector<double>{block.mean_us});
    EXPECT_GT(block.host_us, 0);
    EXPECT_GT(block.cpu_s, 0);
  });
}

TEST_P(BenchOnGpu, MissingResultsCountAsWrong) {
  run_on(GetParam(), [&](Runtime& runtime, FakeWorld& world) {
    Rank rank(gpu_options(), runtime, world);
    const Workload workload{Operation::AllGather, DType::Float32, {100}};
    Case bench_case = rank.cases.make(workload).front();
    bench_case.run = [] {};
    const auto others = static_cast<std::size_t>(runtime.size() - 1);
    EXPECT_EQ(rank.timer.count_wrong(workload, bench_case), 100 * others);
  });
}

TEST(BenchOnOneGpu, KoloRefusesASharedGpuBeforeNcclIsCalled) {
  run_on(2,
         [](Runtime& runtime, FakeWorld& world) {
           const std::string text =
               text_thrown_by<InvalidArgument>([&] { Rank rank(gpu_options(), runtime, world); });
           expect_contains(text, "KOLO_SHARE_GPU=on");
         },
         {.gpus_per_rank = 1, .is_one_gpu = true});
}

}  // namespace kolo::test::device_test
