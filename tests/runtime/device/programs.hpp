// Ranks whose programs use fake GPUs, which report missing synchronization.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "kolo/collectives.hpp"
#include "runtime/runtimes.hpp"
#include "support/fake_world/fault_world.hpp"

namespace kolo::test {

/// The place of this thread's programs; null: the fake GPU of the rank.
inline thread_local std::shared_ptr<TensorPlace> program_place;

/// One rank's program: a stream, and floats on its GPU.
class GpuProgram {
 public:
  explicit GpuProgram(FakeWorld& world)
      : hub_(world.hub()),
        place_(program_place != nullptr
                   ? program_place
                   : std::make_shared<FakeTensorPlace>(hub_, world.topology().rank,
                                                       world.topology().local_rank)),
        gpu_(world.gpus()->open(place_->device().index)),
        stream_(gpu_->make_stream()) {}

  CUstream_st* stream() const { return stream_.get(); }
  std::shared_ptr<std::byte> allocate(std::size_t floats) {
    return gpu_->allocate(floats * sizeof(float));
  }
  TensorView view(const std::shared_ptr<std::byte>& memory, std::size_t floats) const {
    return {memory.get(), DType::Float32, {static_cast<std::int64_t>(floats)}, place_->device()};
  }
  /// Sets elements behind the work on the program's stream.
  void write(const std::shared_ptr<std::byte>& memory, std::size_t floats, float value) {
    write(memory, std::vector<float>(floats, value));
  }
  void write(const std::shared_ptr<std::byte>& memory, const std::vector<float>& values) {
    place_->upload_on(stream(), std::as_bytes(std::span(values)), memory.get());
  }
  /// The elements once the work on the program's stream has ended.
  std::vector<float> read(const std::shared_ptr<std::byte>& memory, std::size_t floats) {
    std::vector<float> values(floats);
    place_->download_on(stream(), memory.get(), std::as_writable_bytes(std::span(values)));
    return values;
  }
  void synchronize() { place_->download_on(stream(), nullptr, {}); }

 private:
  std::shared_ptr<FakeGpuHub> hub_;
  std::shared_ptr<TensorPlace> place_;
  std::shared_ptr<comm::Gpu> gpu_;
  std::shared_ptr<CUstream_st> stream_;
};

/// Sums ones over the ranks of `set` in new GPU memory. All of these ranks call it.
inline void expect_sum_of_ones(GpuProgram& program, ProcessSet& set) {
  constexpr std::size_t kCount = 8;
  const auto memory = program.allocate(kCount);
  const TensorView view = program.view(memory, kCount);
  program.write(memory, kCount, 1.0F);
  allreduce(view, view,
            {.op = ReduceOp::Sum, .name = "x", .process_set = &set, .stream = program.stream()});
  EXPECT_EQ(program.read(memory, kCount),
            std::vector<float>(kCount, static_cast<float>(set.size())));
}

/// A program's tensors, each with its own number of floats.
class Tensors {
 public:
  Tensors(GpuProgram& program, std::vector<std::size_t> counts)
      : program_(program), counts_(std::move(counts)) {
    for (const std::size_t count : counts_) memory_.push_back(program.allocate(count));
  }

  std::size_t size() const { return counts_.size(); }
  TensorView view(std::size_t i) const { return program_.view(memory_[i], counts_[i]); }
  std::byte* data(std::size_t i) const { return memory_[i].get(); }
  /// Writes value, value + 1, … to the tensors, one number per tensor.
  void write(float value) {
    for (std::size_t i = 0; i < size(); ++i) {
      program_.write(memory_[i], counts_[i], value + static_cast<float>(i));
    }
  }
  void expect(std::size_t i, const std::vector<float>& values) {
    EXPECT_EQ(program_.read(memory_[i], counts_[i]), values) << "tensor " << i;
  }
  void expect_all(std::size_t i, float value) { expect(i, std::vector<float>(counts_[i], value)); }

  std::vector<InputOutput> in_place() const {
    std::vector<InputOutput> pairs;
    for (std::size_t i = 0; i < size(); ++i) pairs.push_back({view(i), view(i)});
    return pairs;
  }

 private:
  GpuProgram& program_;
  std::vector<std::size_t> counts_;
  std::vector<std::shared_ptr<std::byte>> memory_;
};

inline Setting setting_with_gpus(int size) {
  return {.size = size, .network = {.gpus_per_rank = 1, .late_launches = true}};
}

inline std::vector<int> everybody(int size) {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(rank);
  return ranks;
}

/// Runs `body` on every rank, in a world with this setting and these faults; expects no hazard.
inline void run_programs(const Setting& requested,
                         const std::function<void(Runtime&, FakeWorld&)>& body,
                         const std::vector<Fault>& faults = {}) {
  const Setting setting = with_gpus(requested);
  std::shared_ptr<FakeGpuHub> hub;
  run_ranks(
      setting.size,
      [&](FakeWorld& world) {
        if (world.topology().rank == 0) hub = world.hub();
        FaultWorld with_faults(std::shared_ptr<FakeWorld>(std::shared_ptr<void>(), &world), faults);
        Runtime runtime(options_in(with_faults, setting.config));
        Runtime::set_thread_current(&runtime);
        program_place = setting.place;
        body(runtime, world);
        program_place = nullptr;
      },
      setting.network);
  if (hub == nullptr) return;
  for (const std::string& hazard : hub->hazards()) ADD_FAILURE() << hazard;
}

}  // namespace kolo::test
