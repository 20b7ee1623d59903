// A c10d backend over Kolo: each call does what c10d documents, on every rank, in every world.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "kolo/algorithm.hpp"
#include "kolo/error.hpp"
#include "kolo/extras/c10d_backend.hpp"
#include "ops/algorithms.hpp"
#include "support/errors.hpp"
#include "support/mpi/mpi_ranks.hpp"
#include "support/mpi/variants.hpp"
#include "train/training_fixture.hpp"

namespace kolo::test::c10d_backend_test {

const AlsoIn also_in({"messages"});

using namespace std::chrono_literals;
using Tensors = std::vector<at::Tensor>;
using BackendPointer = c10::intrusive_ptr<c10d::Backend>;
using Op = c10d::ReduceOp;

class C10dBackendTest : public TrainingTest {
 protected:
  C10dBackendTest() {
    const std::string own =
        std::filesystem::temp_directory_path() / "kolo-c10d-" / std::to_string(::getpid());
    std::string path = own;
    path.erase(path.rfind('/'), 1);
    path_ = MpiRanks::instance().broadcast(path, 0, "store");
    store_ = c10::make_intrusive<c10d::FileStore>(path_, size());
    group_ = make("world", all_ranks());
  }
  void TearDown() override {
    group_->shutdown();
    barrier();
    if (rank() == 0) std::filesystem::remove(path_);
  }

  BackendPointer make(const std::string& name, const std::vector<int>& ranks) {
    return extras::make_c10d_backend(runtime_, c10::make_intrusive<c10d::PrefixStore>(name, store_),
                                     ranks, 60s);
  }

  std::int64_t ranks() const { return size(); }
  std::vector<int> all_ranks() { return runtime_.world().ranks(); }

  at::Tensor of(int rank, const Shape& shape, at::ScalarType type = at::kFloat) const {
    return values(rank, shape, type);
  }

  std::string path_;
  c10::intrusive_ptr<c10d::Store> store_;
  BackendPointer group_;
};

void expect_equal(const at::Tensor& actual, const at::Tensor& expected) {
  EXPECT_TRUE(at::equal(actual, expected)) << actual << "\nexpected\n" << expected;
}

TEST_F(C10dBackendTest, AllreduceReducesInPlace) {
  for (const at::ScalarType type : kNumbers) {
    Tensors tensors{of(rank(), {3, 5}, type)};
    const at::Tensor same = tensors[0];
    EXPECT_TRUE(group_->allreduce(tensors, {.reduceOp = Op::SUM})->wait());
    at::Tensor sum = at::zeros({3, 5}, type);
    for (int r = 0; r < size(); ++r) sum += of(r, {3, 5}, type);
    expect_equal(same, sum);
  }
  const auto reduced = [&](Op::RedOpType op) {
    Tensors tensors{of(rank(), {7}, at::kDouble)};
    group_->allreduce(tensors, {.reduceOp = op})->wait();
    return tensors[0];
  };
  Tensors all;
  for (int r = 0; r < size(); ++r) all.push_back(of(r, {7}, at::kDouble));
  const at::Tensor stacked = at::stack(all);
  EXPECT_TRUE(at::allclose(reduced(Op::AVG), stacked.mean(0)));
  expect_equal(reduced(Op::PRODUCT), stacked.prod(0));
  expect_equal(reduced(Op::MIN), stacked.amin(0));
  expect_equal(reduced(Op::MAX), stacked.amax(0));
  Tensors scaled{of(rank(), {7}, at::kDouble)};
  group_->allreduce(scaled, {.reduceOp = c10d::makeNCCLPreMulSum(0.5)})->wait();
  expect_equal(scaled[0], stacked.sum(0) * 0.5);
}

TEST_F(C10dBackendTest, AllreduceTakesAnyDenseTensor) {
  const auto sum_of = [&](const auto& make_tensor) {
    at::Tensor sum = make_tensor(0).clone();
    for (int r = 1; r < size(); ++r) sum += make_tensor(r);
    return sum;
  };
  // Ranks may have other strides.
  const auto transposed = [&](int r) {
    return r % 2 == 0 ? of(r, {3, 4}).t() : of(r, {3, 4}).t().contiguous();
  };
  const auto gaps = [&](int r) { return of(r, {4, 6}).slice(1, 0, 6, 2); };
  const auto complex = [&](int r) { return at::complex(of(r, {6}), -of(r, {6})); };
  const auto scalar = [&](int r) { return of(r, {1}).squeeze(0); };
  const auto empty = [&](int r) { return of(r, {0}); };
  for (const std::function<at::Tensor(int)>& make_tensor :
       std::initializer_list<std::function<at::Tensor(int)>>{transposed, gaps, complex, scalar,
                                                             empty}) {
    Tensors tensors{make_tensor(rank())};
    group_->allreduce(tensors)->wait();
    expect_equal(tensors[0], sum_of(make_tensor));
  }
  Tensors several{of(rank(), {3}), of(rank(), {2, 2})};
  group_->allreduce_coalesced(several)->wait();
  expect_equal(several[0], sum_of([&](int r) { return of(r, {3}); }));
  expect_equal(several[1], sum_of([&](int r) { return of(r, {2, 2}); }));
}

TEST_F(C10dBackendTest, AllreduceCombinesBits) {
  using Combine = at::Tensor (*)(const at::Tensor&, const at::Tensor&);
  const std::pair<Op::RedOpType, Combine> all[] = {
      {Op::BAND, at::bitwise_and}, {Op::BOR, at::bitwise_or}, {Op::BXOR, at::bitwise_xor}};
  for (const at::ScalarType type :
       {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kBool}) {
    const auto bits_of = [&](int r) {
      const at::Tensor bits = of(r, {11}, at::kLong);
      return (type == at::kBool ? bits.bitwise_and(1) : bits + 64).to(type);
    };
    for (const auto& [op, combine] : all) {
      Tensors tensors{bits_of(rank())};
      group_->allreduce(tensors, {.reduceOp = op})->wait();
      at::Tensor expected = bits_of(0);
      for (int r = 1; r < size(); ++r) expected = combine(expected, bits_of(r));
      expect_equal(tensors[0], expected);
    }
  }
}

// Rank r has r + 1 entries, two of them for one place; or rank 1 alone has any.
TEST_F(C10dBackendTest, AllreduceOfSparseTensors) {
  const auto sparse_of = [&](int r, const Shape& dense, bool is_empty) {
    const std::int64_t count = is_empty ? 0 : r + 1;
    const at::Tensor rows = at::arange(count).clamp_max(std::max(r - 1, 0));
    Shape shape{count};
    shape.insert(shape.end(), dense.begin(), dense.end());
    Shape sizes{ranks() + 1, 3};
    sizes.insert(sizes.end(), dense.begin(), dense.end());
    return at::sparse_coo_tensor(at::stack({rows, at::full({count}, 2, at::kLong)}),
                                 of(r, shape, at::kDouble), sizes);
  };
  for (const Shape& dense : {Shape{}, Shape{4}}) {
    for (const bool is_empty : {false, true}) {
      for (const bool is_asked_for : {false, true}) {
        const auto tensor_of = [&](int r) { return sparse_of(r, dense, is_empty && r != 1); };
        Tensors tensors{tensor_of(rank())};
        const at::Tensor same = tensors[0];
        const auto work =
            is_asked_for ? group_->allreduce_sparse(tensors) : group_->allreduce(tensors);
        EXPECT_TRUE(work->wait());
        at::Tensor sum = tensor_of(0).to_dense();
        for (int r = 1; r < size(); ++r) sum += tensor_of(r).to_dense();
        EXPECT_TRUE(same.is_coalesced());
        expect_equal(same.to_dense(), sum);
      }
    }
  }
}

// Ranks on one node access each other's, wherever it lies, if all have such memory.
std::atomic<int> zero_copies{0};

template <Task (*kRun)(CollectiveCall)>
Task counted(CollectiveCall call) {
  ++zero_copies;
  return kRun(call);
}

/// Settings and algorithms that count what moves without a copy between ranks.
InitOptions counting() {
  Config config = config_from_environment();
  config.algorithm = "allreduce:counted,reduce_scatter:counted,allgather:counted";
  InitOptions options = in_test_world(config);
  const auto add = [&](Collective collective, Task (*task)(CollectiveCall)) {
    options.algorithms.push_back({"counted", collective, Needs::PeerBuffers, true, task});
  };
  add(Collective::AllReduce, counted<ops::allreduce_zero_copy>);
  add(Collective::ReduceScatter, counted<ops::reduce_scatter_zero_copy>);
  add(Collective::AllGather, counted<ops::allgather_zero_copy>);
  return options;
}

TEST_F(C10dBackendTest, AllocatedTensorsMoveWithoutCopiesFromAnyPlace) {
  Runtime runtime(counting());
  const BackendPointer group = extras::make_c10d_backend(
      runtime, c10::make_intrusive<c10d::PrefixStore>("counting", store_), all_ranks(), 60s);
  const auto allocate = [&](std::int64_t count) {
    return group->allocateTensor(count, at::TensorOptions(at::kFloat));
  };
  EXPECT_TRUE(group->supportsTensorAlloc(-1));
  zero_copies = 0;
  const int expected_zero_copies = size() > 1 && runtime.config().shared_memory ? 3 : 0;
  const at::Tensor gap = allocate(1 + 5000 * rank());  // places differ between ranks
  const std::int64_t part = 3000;
  for (const bool is_everywhere : {true, false}) {
    const auto tensor_of = [&](std::int64_t count) {
      const bool is_allocated = is_everywhere || rank() != size() - 1;
      return is_allocated ? allocate(count) : at::empty({count}, at::kFloat);
    };
    at::Tensor sum = at::zeros({part * ranks()});
    for (int r = 0; r < size(); ++r) sum += of(r, {part * ranks()});

    Tensors reduced{tensor_of(part * ranks()).copy_(of(rank(), {part * ranks()}))};
    group->allreduce(reduced)->wait();
    expect_equal(reduced[0], sum);

    at::Tensor input = tensor_of(part * ranks()).copy_(of(rank(), {part * ranks()}));
    at::Tensor output = tensor_of(part);
    group->_reduce_scatter_base(output, input)->wait();
    expect_equal(output, sum.narrow(0, rank() * part, part));
    expect_equal(input, of(rank(), {part * ranks()}));

    at::Tensor all = tensor_of(part * ranks());
    at::Tensor own = all.narrow(0, rank() * part, part).copy_(of(rank(), {part}));
    group->_allgather_base(all, own)->wait();
    for (int r = 0; r < size(); ++r) expect_equal(all.narrow(0, r * part, part), of(r, {part}));
    EXPECT_EQ(zero_copies, expected_zero_copies) << "allocated everywhere: " << is_everywhere;
  }
  group->shutdown();
}

TEST_F(C10dBackendTest, AllocatedTensorsOutliveTheGroup) {
  const BackendPointer other = make("other", all_ranks());
  at::Tensor tensor = other->allocateTensor(100, at::TensorOptions(at::kDouble)).fill_(2);
  other->shutdown();
  EXPECT_EQ(tensor.sum().item<double>(), 200);
  EXPECT_EQ(other->allocateTensor(0, at::TensorOptions(at::kDouble)).numel(), 0);
}

TEST_F(C10dBackendTest, BroadcastMovesEveryDtypeFromEveryRoot) {
  for (const at::ScalarType type : {at::kFloat, at::kBool, at::kUInt16, at::kComplexDouble}) {
    for (int root = 0; root < size(); ++root) {
      Tensors tensors{of(rank(), {5}, at::kInt).to(type)};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      group_->broadcast(tensors, options)->wait();
      expect_equal(tensors[0], of(root, {5}, at::kInt).to(type));
    }
  }
}

TEST_F(C10dBackendTest, ReduceGivesTheRootTheResult) {
  for (int root = 0; root < size(); ++root) {
    Tensors tensors{of(rank(), {2, 3}).t()};
    c10d::ReduceOptions options;
    options.rootRank = root;
    group_->reduce(tensors, options)->wait();
    at::Tensor expected = of(rank(), {2, 3}).t();
    for (int r = 0; r < size() && rank() == root; ++r) {
      if (r != root) expected += of(r, {2, 3}).t();
    }
    expect_equal(tensors[0], expected);
  }
}

TEST_F(C10dBackendTest, AllgatherInBothForms) {
  for (const at::ScalarType type : {at::kFloat, at::kUInt16}) {
    const auto input_of = [&](int r) { return of(r, {3, 2}, at::kInt).to(type).t(); };
    std::vector<Tensors> outputs(1);
    for (int r = 0; r < size(); ++r) outputs[0].push_back(at::zeros({3, 2}, type).t());
    Tensors inputs{input_of(rank())};
    group_->allgather(outputs, inputs)->wait();
    at::Tensor output = at::zeros({ranks() * 2, 3}, type);
    group_->_allgather_base(output, inputs[0])->wait();
    for (int r = 0; r < size(); ++r) {
      expect_equal(outputs[0][static_cast<std::size_t>(r)], input_of(r));
      expect_equal(output.narrow(0, std::int64_t{2} * r, 2), input_of(r));
    }
  }
  Tensors inputs{of(rank(), {2}), of(rank(), {3})};
  std::vector<Tensors> lists;
  for (int r = 0; r < size(); ++r) lists.push_back({at::zeros({2}), at::zeros({3})});
  group_->allgather_coalesced(lists, inputs)->wait();
  for (int r = 0; r < size(); ++r) {
    expect_equal(lists[static_cast<std::size_t>(r)][0], of(r, {2}));
    expect_equal(lists[static_cast<std::size_t>(r)][1], of(r, {3}));
  }
  Tensors outputs{at::zeros({2 * ranks()}), at::zeros({3 * ranks()})};
  group_->allgather_into_tensor_coalesced(outputs, inputs)->wait();
  for (int r = 0; r < size(); ++r) {
    expect_equal(outputs[0].narrow(0, std::int64_t{2} * r, 2), of(r, {2}));
    expect_equal(outputs[1].narrow(0, std::int64_t{3} * r, 3), of(r, {3}));
  }
}

TEST_F(C10dBackendTest, ReduceScatterInBothForms) {
  const auto input_of = [&](int r) { return of(r, {size(), 5}); };
  at::Tensor sum = at::zeros({size(), 5});
  for (int r = 0; r < size(); ++r) sum += input_of(r);
  at::Tensor whole = input_of(rank());
  at::Tensor output = at::zeros({5});
  group_->_reduce_scatter_base(output, whole)->wait();
  expect_equal(output, sum[rank()]);
  std::vector<Tensors> inputs(1);
  for (int r = 0; r < size(); ++r) inputs[0].push_back(whole[r].clone());
  Tensors outputs{at::zeros({5})};
  c10d::ReduceScatterOptions options;
  options.reduceOp = Op::AVG;
  group_->reduce_scatter(outputs, inputs, options)->wait();
  EXPECT_TRUE(at::allclose(outputs[0], sum[rank()] / size()));
  expect_equal(whole, input_of(rank()));
  Tensors several_in{whole, whole * 2};
  Tensors several_out{at::zeros({5}), at::zeros({5})};
  group_->reduce_scatter_tensor_coalesced(several_out, several_in)->wait();
  expect_equal(several_out[1], 2 * sum[rank()]);
}

// Rank s sends s + r rows to rank r.
TEST_F(C10dBackendTest, AlltoallInBothForms) {
  for (const at::ScalarType type : {at::kFloat, at::kUInt16}) {
    const auto rows = [&](int from, int to) {
      return (at::arange((from + to) * 2, at::kInt) + 10 * from + to).to(type).view({-1, 2});
    };
    Tensors sent, expected, received;
    std::vector<std::int64_t> input_splits, output_splits;
    for (int r = 0; r < size(); ++r) {
      sent.push_back(rows(rank(), r));
      expected.push_back(rows(r, rank()));
      received.push_back(at::zeros({r + rank(), 2}, type));
      input_splits.push_back(rank() + r);
      output_splits.push_back(r + rank());
    }
    const at::Tensor all_expected = at::cat(expected);
    at::Tensor output = at::zeros_like(all_expected);
    at::Tensor input = at::cat(sent);
    group_->alltoall_base(output, input, output_splits, input_splits)->wait();
    expect_equal(output, all_expected);
    group_->alltoall(received, sent)->wait();
    for (std::size_t r = 0; r < received.size(); ++r) expect_equal(received[r], expected[r]);
  }
  at::Tensor even = at::arange(size() * 3) + 100 * rank();
  at::Tensor output = at::zeros_like(even);
  std::vector<std::int64_t> none;
  group_->alltoall_base(output, even, none, none)->wait();
  for (int r = 0; r < size(); ++r) {
    expect_equal(output.narrow(0, std::int64_t{3} * r, 3),
                 at::arange(3 * rank(), 3 * rank() + 3) + 100 * r);
  }
}

TEST_F(C10dBackendTest, AlltoallInPlace) {
  at::Tensor rows = of(rank(), {ranks(), 2});
  std::vector<std::int64_t> even;
  group_->alltoall_base(rows, rows, even, even)->wait();
  for (int r = 0; r < size(); ++r) expect_equal(rows[r], of(r, {ranks(), 2})[rank()]);
}

TEST_F(C10dBackendTest, GatherAndScatterOfEveryRoot) {
  for (int root = 0; root < size(); ++root) {
    std::vector<Tensors> gathered;
    std::vector<Tensors> scattered;
    if (rank() == root) {
      gathered.emplace_back();
      scattered.emplace_back();
      for (int r = 0; r < size(); ++r) {
        gathered[0].push_back(at::zeros({3}));
        scattered[0].push_back(of(r, {4}) + root);
      }
    }
    Tensors input{of(rank(), {3})};
    Tensors output{at::zeros({4})};
    c10d::GatherOptions gather;
    gather.rootRank = root;
    c10d::ScatterOptions scatter;
    scatter.rootRank = root;
    const auto first = group_->gather(gathered, input, gather);
    const auto second = group_->scatter(output, scattered, scatter);
    second->wait();
    first->wait();
    expect_equal(output[0], of(rank(), {4}) + root);
    for (int r = 0; r < size() && rank() == root; ++r) {
      expect_equal(gathered[0][static_cast<std::size_t>(r)], of(r, {3}));
    }
  }
}

TEST_F(C10dBackendTest, MessagesAreMatchedByTag) {
  const int next = (rank() + 1) % size();
  const int previous = (rank() + size() - 1) % size();
  Tensors first{of(rank(), {4})};
  Tensors second{of(rank(), {100'000})};
  const auto sent_first = group_->send(first, next, 1);
  const auto sent_second = group_->send(second, next, 2);
  Tensors long_one{at::zeros({100'000})};
  Tensors short_one{at::zeros({4})};
  const auto received = group_->recvAnysource(long_one, 2);
  received->wait();
  EXPECT_EQ(received->sourceRank(), previous);
  group_->recv(short_one, previous, 1)->wait();
  sent_first->wait();
  sent_second->wait();
  expect_equal(long_one[0], of(previous, {100'000}));
  expect_equal(short_one[0], of(previous, {4}));
}

TEST_F(C10dBackendTest, CoalescedCallsAreOneWork) {
  const int next = (rank() + 1) % size();
  const int previous = (rank() + size() - 1) % size();
  Tensors sent{of(rank(), {50'000})};
  Tensors received{at::zeros({50'000})};
  Tensors sum{of(rank(), {3})};
  group_->startCoalescing();
  group_->recv(received, previous, 0);
  group_->send(sent, next, 0);
  group_->allreduce(sum);
  const auto work = group_->endCoalescing();
  EXPECT_TRUE(work->wait());
  EXPECT_EQ(work->result().size(), 2U);
  expect_equal(received[0], of(previous, {50'000}));
  at::Tensor expected = of(0, {3});
  for (int r = 1; r < size(); ++r) expected += of(r, {3});
  expect_equal(sum[0], expected);
  EXPECT_THROW(group_->endCoalescing(), InvalidArgument);
}

TEST_F(C10dBackendTest, MonitoredBarrierNamesWhoIsMissing) {
  c10d::BarrierOptions options;
  group_->monitoredBarrier(options);
  options.timeout = 0ms;
  if (size() > 1) {
    const std::string text =
        text_thrown_by<TimeoutError>([&] { group_->monitoredBarrier(options, false); });
    expect_contains(text, rank() == 0 ? "Rank 0 timed out in monitoredBarrier after 0 ms"
                                      : "successfully reached monitoredBarrier");
  }
  if (size() < 3) GTEST_SKIP() << "the rest: two ranks are missing";
  options.timeout = 200ms;
  for (const bool waits_for_all : {false, true}) {
    if (rank() == 0) {
      const std::string text =
          text_thrown_by<TimeoutError>([&] { group_->monitoredBarrier(options, waits_for_all); });
      expect_contains(text, std::string(waits_for_all ? "Ranks 1, 2" : "Rank 1") +
                                " failed to pass monitoredBarrier in 200 ms");
    } else if (rank() > 2) {
      EXPECT_THROW(group_->monitoredBarrier(options, waits_for_all), TimeoutError);
    }
    barrier();
  }
}

TEST_F(C10dBackendTest, FuturesAreCompletedWithoutAWait) {
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures;
  Tensors all;
  for (int i = 0; i < 5; ++i) {
    Tensors one{at::full({3}, rank() + i)};
    all.push_back(one[0]);
    futures.push_back(group_->allreduce(one)->getFuture());
  }
  for (int i = 0; i < 5; ++i) {
    auto& future = futures[static_cast<std::size_t>(i)];
    future->waitAndThrow();
    const double sum = size() * (size() - 1) / 2.0 + i * size();
    const auto result = future->value().toTensorVector();
    ASSERT_EQ(result.size(), 1U);
    expect_equal(result[0], at::full({3}, sum, at::kLong));
  }
}

// As communication hooks of DDP do.
TEST_F(C10dBackendTest, CallbacksOfFuturesMayWaitForFutures) {
  Tensors tensors{at::full({2}, rank() + 1)};
  Tensors next{at::full({2}, 10)};
  const auto future = group_->allreduce(tensors)->getFuture()->then(
      [&](c10::ivalue::Future&) {
        group_->allreduce(next)->getFuture()->waitAndThrow();
        return c10::IValue(next[0]);
      },
      c10::TensorType::get());
  future->waitAndThrow();
  expect_equal(future->value().toTensor(), at::full({2}, 10 * size()));
}

// Also for futures that the program asked for earlier; here the one whose message comes last.
TEST_F(C10dBackendTest, CallbacksOfFuturesMayWaitForEarlierOnes) {
  const int next = (rank() + 1) % size();
  const int previous = (rank() + size() - 1) % size();
  Tensors first{at::zeros({3})};
  Tensors second{at::zeros({3})};
  const auto of_second = group_->recv(second, previous, 2)->getFuture();
  const auto both = group_->recv(first, previous, 1)
                        ->getFuture()
                        ->then(
                            [&](c10::ivalue::Future&) {
                              of_second->waitAndThrow();
                              return c10::IValue(first[0] + second[0]);
                            },
                            c10::TensorType::get());
  barrier();
  for (const int tag : {1, 2}) {
    Tensors sent{of(rank() + tag, {3})};
    group_->send(sent, next, tag)->wait();
    barrier();
  }
  both->waitAndThrow();
  expect_equal(both->value().toTensor(), of(previous + 1, {3}) + of(previous + 2, {3}));
}

// As of a Python program whose callback alone still has the group.
TEST_F(C10dBackendTest, AGroupMayEndInACallback) {
  if (size() == 1) GTEST_SKIP() << "nobody else sends the message";
  BackendPointer group = make("ends in a callback", all_ranks());
  std::atomic<bool> has_ended = rank() != 0;
  const auto note_end = [&](void*) { has_ended = true; };
  Tensors tensors{of(rank(), {3})};
  if (rank() == 0) {
    group->recv(tensors, 1, 0)
        ->getFuture()
        ->addCallback([after = std::shared_ptr<void>(nullptr, note_end),
                       group = std::move(group)](c10::ivalue::Future&) {});
    EXPECT_FALSE(has_ended);
  }
  barrier();
  if (rank() == 1) group->send(tensors, 0, 0)->wait();
  while (!has_ended) std::this_thread::yield();
  if (rank() == 0) expect_equal(tensors[0], of(1, {3}));
}

// A receive whose message comes last.
TEST_F(C10dBackendTest, FuturesDoNotWaitForOneAnother) {
  const int next = (rank() + 1) % size();
  const int previous = (rank() + size() - 1) % size();
  Tensors received{at::zeros({3})};
  const auto first = group_->recv(received, previous, 7)->getFuture();
  Tensors sum{at::ones({2})};
  group_->allreduce(sum)->getFuture()->waitAndThrow();
  EXPECT_FALSE(first->completed());
  barrier();
  Tensors sent{of(rank(), {3})};
  group_->send(sent, next, 7)->wait();
  first->waitAndThrow();
  expect_equal(received[0], of(previous, {3}));
}

TEST_F(C10dBackendTest, TruthValues) {
  Tensors any{at::full({2}, is_last(), at::kBool)};
  group_->allreduce(any)->wait();
  EXPECT_TRUE(any[0].all().item<bool>());
  Tensors all{at::full({2}, size() == 1 || !is_last(), at::kBool)};
  group_->allreduce(all, {.reduceOp = Op::PRODUCT})->wait();
  EXPECT_EQ(all[0].any().item<bool>(), size() == 1);
}

TEST_F(C10dBackendTest, OutputsOfOtherSizesAreErrorsOnAllRanks) {
  if (size() == 1) GTEST_SKIP() << "one rank has nobody to disagree with";
  const BackendPointer group = make("sizes", all_ranks());
  const std::int64_t count = is_last() ? 9 : 5;
  Tensors inputs{at::ones({count})};
  std::vector<Tensors> outputs(1);
  for (int r = 0; r < size(); ++r) outputs[0].push_back(at::ones({count}));
  EXPECT_THROW(group->allgather(outputs, inputs)->wait(), Error);
}

TEST_F(C10dBackendTest, SizesThatDifferBetweenTwoRanksNameBoth) {
  if (size() == 1) GTEST_SKIP() << "one rank has nobody to disagree with";
  const std::string last = "rank " + std::to_string(size() - 1);
  Tensors sent;
  Tensors received;
  for (int r = 0; r < size(); ++r) {
    sent.push_back(at::ones({is_last() ? 3 : 2}));
    received.push_back(at::zeros({2}));
  }
  expect_contains(
      text_thrown_by<MismatchError>([&] { group_->alltoall(received, sent)->wait(); }),
      last + " sends 3 elements of float32, rank " + std::to_string(rank()) + " has room for 2");
  std::vector<Tensors> gathered;
  if (rank() == 0) gathered.push_back(received);
  const auto work = group_->gather(gathered, sent = {sent.front()});
  if (rank() == 0) {
    expect_contains(text_thrown_by<MismatchError>([&] { work->wait(); }),
                    "rank 0 receives 2 elements of float32, " + last + " sends 3");
  } else {
    work->wait();
  }
  group_->barrier()->wait();  // the group is as usable as before
}

TEST_F(C10dBackendTest, ARankThatLeavesIsNamed) {
  if (size() == 1) GTEST_SKIP() << "one rank has nobody to wait for";
  const BackendPointer group = make("left", all_ranks());
  Tensors tensors{of(rank(), {4})};
  if (is_last()) return group->shutdown();
  const std::string text =
      text_thrown_by<ShutdownError>([&] { group->allreduce(tensors)->wait(); });
  expect_contains(text, "rank " + std::to_string(size() - 1) + " has closed the process set");
  expect_contains(text, "allreduce (Sum) of 4 elements of float32 on rank ");
}

TEST_F(C10dBackendTest, WorksThatWaitInVainGoOn) {
  if (size() == 1) GTEST_SKIP() << "one rank waits for nobody";
  Tensors tensors{of(rank(), {3})};
  if (is_last()) {
    barrier();  // of the world
    group_->allreduce(tensors)->wait();
  } else {
    const auto work = group_->allreduce(tensors);
    EXPECT_FALSE(work->isCompleted());
    EXPECT_THROW(work->wait(20ms), TimeoutError);
    barrier();
    EXPECT_TRUE(work->wait());
    EXPECT_TRUE(work->isCompleted());
    EXPECT_TRUE(work->isSuccess());
  }
  at::Tensor sum = of(0, {3});
  for (int r = 1; r < size(); ++r) sum += of(r, {3});
  expect_equal(tensors[0], sum);
}

TEST_F(C10dBackendTest, TimeoutsMayBeOfAnyLength) {
  const BackendPointer group = extras::make_c10d_backend(
      runtime_, c10::make_intrusive<c10d::PrefixStore>("for ever", store_), all_ranks(),
      std::chrono::milliseconds::max());
  for (const auto timeout : {c10d::kUnsetTimeout, std::chrono::milliseconds::max()}) {
    if (is_last()) std::this_thread::sleep_for(50ms);
    Tensors tensors{at::ones({2})};
    group->allreduce(tensors, {.timeout = timeout})->wait();
    expect_equal(tensors[0], at::full({2}, static_cast<double>(size())));
  }
  group->shutdown();
}

TEST_F(C10dBackendTest, AnInterruptEndsTheWaitAlone) {
  if (size() == 1) GTEST_SKIP() << "one rank waits for nobody";
  static bool is_interrupted = false;
  const auto check = [] {
    if (is_interrupted) throw std::runtime_error("Ctrl-C");
  };
  const auto group = extras::make_c10d_backend(
      runtime_, c10::make_intrusive<c10d::PrefixStore>("interrupts", store_), all_ranks(), 60s,
      {.check = check});
  Tensors tensors{of(rank(), {3})};
  if (is_last()) barrier();  // of the world
  const auto work = group->allreduce(tensors);
  if (!is_last()) {
    is_interrupted = true;
    EXPECT_THROW(work->wait(), std::runtime_error);
    is_interrupted = false;
    EXPECT_FALSE(work->isCompleted());
    barrier();
  }
  EXPECT_TRUE(work->wait());
  at::Tensor sum = of(0, {3});
  for (int r = 1; r < size(); ++r) sum += of(r, {3});
  expect_equal(tensors[0], sum);
  group->shutdown();
}

TEST_F(C10dBackendTest, GroupsOfSomeRanks) {
  std::vector<int> own;
  for (int r = rank() % 2; r < size(); r += 2) own.push_back(r);
  for (const BackendPointer& group :
       {make("halves" + std::to_string(rank() % 2), own),
        group_->split(
            c10::make_intrusive<c10d::PrefixStore>("split" + std::to_string(rank() % 2), store_),
            own, nullptr)}) {
    EXPECT_EQ(group->getSize(), static_cast<int>(own.size()));
    EXPECT_EQ(group->getRank(), rank() / 2);
    Tensors tensors{of(rank(), {3})};
    c10d::BroadcastOptions options;
    options.rootRank = group->getSize() - 1;
    group->broadcast(tensors, options)->wait();
    expect_equal(tensors[0], of(own.back(), {3}));
    group->shutdown();
    EXPECT_THROW(group->broadcast(tensors, options), ShutdownError);
  }
}

// As c10d::ProcessGroup does, for the CPU and for CUDA.
TEST_F(C10dBackendTest, SplitsOfOneStoreAreOneGroup) {
  const auto store = c10::make_intrusive<c10d::PrefixStore>("split twice", store_);
  const BackendPointer group = group_->split(store, all_ranks(), nullptr);
  EXPECT_EQ(group_->split(store, all_ranks(), nullptr), group);
  group->shutdown();
}

TEST_F(C10dBackendTest, RefusesOnThisRankWhatItCannotDo) {
  const auto text = [](const auto& call) { return text_thrown_by<InvalidArgument>(call); };
  Tensors two{at::ones({2}), at::ones({2})};
  expect_contains(text([&] { group_->allreduce(two); }), "there are 2 tensors. Pass one");
  Tensors mixed{at::ones({2}, at::kBool), at::ones({2})};
  expect_contains(text([&] { group_->allreduce_coalesced(mixed); }), "Reduce them separately");
  Tensors nothing;
  expect_contains(text([&] { group_->allreduce_coalesced(nothing); }), "there are no tensors");
  Tensors sparse{at::ones({2, 2}).to_sparse()};
  expect_contains(text([&] { group_->broadcast(sparse); }), "to_dense()");
  expect_contains(text([&] { group_->allreduce(sparse, {.reduceOp = Op::MAX}); }),
                  "support Sum and Average only");
  Tensors lazy{at::complex(at::ones({2}), at::ones({2})).conj()};
  expect_contains(text([&] { group_->allreduce(lazy); }), "resolve_conj()");
  Tensors odd{at::ones({3}).to(at::kUInt16)};
  expect_contains(text([&] { group_->allreduce(odd); }), "UInt16 cannot be reduced");
  Tensors ints{at::ones({3}, at::kInt)};
  expect_contains(text([&] { group_->allreduce(ints, {.reduceOp = Op::UNUSED}); }),
                  "does not have this reduction");
  Tensors halves{at::ones({3}, at::kHalf)};
  expect_contains(text([&] { group_->allreduce(halves, {.reduceOp = Op::BAND}); }),
                  "BitAnd is for integers and bool, not float16");
  at::Tensor bytes = at::ones({3 * ranks()}, at::kByte);
  at::Tensor floats = at::ones({3 * ranks()});
  std::vector<std::int64_t> none;
  expect_contains(text([&] { group_->alltoall_base(bytes, floats, none, none); }),
                  "of Float, the output of Byte");
  std::vector<std::int64_t> splits(static_cast<std::size_t>(size()), 4);
  expect_contains(text([&] { group_->alltoall_base(floats, floats, splits, splits); }),
                  "add up to " + std::to_string(4 * size()) + " rows, the tensor has");
  at::Tensor output = at::ones({3 * ranks() + 1}, at::kInt);
  expect_contains(text([&] { group_->_allgather_base(output, ints[0]); }), "parts of all ranks");
  c10d::BroadcastOptions options;
  options.rootRank = size();
  expect_contains(text([&] { group_->broadcast(ints, options); }), "is not in the process group");
  expect_contains(text([&] { group_->reduce(ints, {.rootRank = -1}); }), "rank -1 is not in the");
  if (size() > 1) {
    EXPECT_THROW(make("descends", {1, 0}), InvalidArgument);
  }
  group_->barrier()->wait();  // the group is as usable as before
}

TEST_F(C10dBackendTest, ACallInAnotherOrderIsAnErrorOnAllRanks) {
  if (size() == 1) GTEST_SKIP() << "one rank has nobody to disagree with";
  Tensors tensors{of(rank(), {4})};
  const BackendPointer group = make("disagree", all_ranks());
  const auto call = [&] {
    if (is_last()) {
      group->barrier()->wait();
    } else {
      group->allreduce(tensors)->wait();
    }
  };
  const std::string text = text_thrown_by<MismatchError>(call);
  expect_contains(text, "barrier");
  expect_contains(text, "allreduce (Sum) of 4 elements of float32");
}

}  // namespace kolo::test::c10d_backend_test
