#include "programs/rank_runner.hpp"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "programs/reference.hpp"

namespace kolo::programs {

namespace {

AllreduceOptions reduction_options(const Operation& operation, ProcessSet& set,
                                   std::shared_ptr<void> owner) {
  return {.op = operation.op,
          .prescale = operation.prescale,
          .postscale = operation.postscale,
          .compression = Compression::named(operation.compression),
          .custom = operation.custom,
          .join_divisor = operation.join_divisor,
          .name = operation.name,
          .timeout = operation.timeout,
          .process_set = &set,
          .keep_alive = std::move(owner)};
}

Handle reduce(const Operation& operation, OperationMemory& memory,
              const AllreduceOptions& options) {
  if (operation.buffer >= 0) {
    return allreduce_async(*memory.buffer(), operation.offset_bytes, operation.tensors[0].count(),
                           operation.tensors[0].dtype, options);
  }
  const bool is_scattered = operation.collective == Collective::ReduceScatter;
  if (memory.tensor_count() == 1) {
    return is_scattered ? reduce_scatter_async(memory.input(0), memory.output(0), options)
                        : allreduce_async(memory.input(0), memory.output(0), options);
  }
  std::vector<InputOutput> tensors;
  for (std::size_t i = 0; i < memory.tensor_count(); ++i) {
    tensors.push_back({memory.input(i), memory.output(i)});
  }
  return is_scattered ? grouped_reduce_scatter_async(tensors, options)
                      : grouped_allreduce_async(tensors, options);
}

Handle broadcast(const Operation& operation, OperationMemory& memory,
                 const OperationOptions& options) {
  if (memory.tensor_count() == 1) return broadcast_async(memory.input(0), operation.root, options);
  std::vector<TensorView> tensors;
  for (std::size_t i = 0; i < memory.tensor_count(); ++i) tensors.push_back(memory.input(i));
  return grouped_broadcast_async(tensors, operation.root, options);
}

Handle gather(OperationMemory& memory, const OperationOptions& options) {
  if (memory.tensor_count() == 1) {
    return allgather_async(memory.input(0), memory.allocate(0), options);
  }
  std::vector<InputRows> tensors;
  for (std::size_t i = 0; i < memory.tensor_count(); ++i) {
    tensors.push_back({memory.input(i), memory.allocate(i)});
  }
  return grouped_allgather_async(std::move(tensors), options);
}

}  // namespace

/// Submits this rank's `operation` on `set`. `owner` is passed along as the owner of its memory.
Handle submit(const Operation& operation, OperationMemory& memory, ProcessSet& set,
              std::shared_ptr<void> owner) {
  const OperationOptions options{operation.name, operation.timeout, &set, owner};
  switch (operation.collective) {
    case Collective::AllReduce:
    case Collective::ReduceScatter:
      return reduce(operation, memory, reduction_options(operation, set, std::move(owner)));
    case Collective::Broadcast: return broadcast(operation, memory, options);
    case Collective::AllGather: return gather(memory, options);
    case Collective::AllToAll: {
      std::vector<std::int64_t> splits;
      if (!operation.equal_splits) {
        splits =
            operation.given_splits.value_or(operation.split[static_cast<std::size_t>(set.rank())]);
      }
      return alltoall_async(memory.input(0), std::move(splits), memory.allocate(0), options);
    }
    default: return barrier_async(options);
  }
}

namespace {

using std::chrono::microseconds;

std::uint64_t hash(std::uint64_t seed, const std::vector<std::byte>& bytes) {
  for (const std::byte byte : bytes) {
    seed = (seed ^ static_cast<std::uint64_t>(byte)) * 0x100000001b3u;
  }
  return seed;
}

/// FNV-1a's initial value, for hashes of results that must be equal on all ranks.
constexpr std::uint64_t kHashStart = 0xcbf29ce484222325u;

bool gives_equal_results(Collective collective) {
  return collective == Collective::AllReduce || collective == Collective::Broadcast ||
         collective == Collective::AllGather;
}

}  // namespace

RankRunner::RankRunner(const Program& program, Runtime& runtime, Watch& watch, Arrivals* arrivals)
    : program_(program),
      runtime_(runtime),
      watch_(watch),
      arrivals_(arrivals),
      rank_(runtime.rank()),
      digests_(program.operations.size()),
      last_joined_(static_cast<std::size_t>(program.joinings), -1) {
  for (int number = 0; number <= program.static_sets; ++number) {
    sets_.push_back(&runtime.process_set(number));
  }
}

RankRunner::~RankRunner() {
  if (joiner_.joinable()) joiner_.join();
}

void RankRunner::run() {
  const std::vector<RoundPlan> plan = plan_of(program_, rank_);
  for (std::size_t round = 0; round < plan.size(); ++round) run_round(round, plan[round]);
  settle([](const Operation&) { return true; });
  note(Watch::Activity::Ended);
}

void RankRunner::run_round(std::size_t round, const RoundPlan& plan) {
  round_ = static_cast<int>(round);
  submit_all(plan.steps);
  if (const auto& call = program_.rounds[round].blocking_call) {
    note(Watch::Activity::BlockingCall);
    run_blocking_call(*call);
  }
  for (const int id : plan.waits) wait_for(id);
}

// --- submission ---

void RankRunner::submit_all(const std::vector<Step>& steps) {
  for (const Step& step : steps) {
    const Operation& operation = program_.operations[static_cast<std::size_t>(step.operation)];
    if (operation.is_refused) continue;
    settle_conflicts(operation);
    records_[step.operation];  // inserted here: threads only look up their own
  }
  std::vector<std::thread> threads;
  for (const int thread : {1, 2}) {
    if (std::any_of(steps.begin(), steps.end(),
                    [&](const Step& step) { return step.thread == thread; })) {
      threads.emplace_back([&, thread] { submit_on_thread(steps, thread); });
    }
  }
  submit_on_thread(steps, 0);
  for (std::thread& thread : threads) thread.join();
  for (const Step& step : steps) {  // some are rejected because of operations now in flight
    const Operation& operation = program_.operations[static_cast<std::size_t>(step.operation)];
    if (operation.is_refused) expect_refusal(operation);
  }
}

void RankRunner::submit_on_thread(const std::vector<Step>& steps, int thread) {
  for (const Step& step : steps) {
    const Operation& operation = program_.operations[static_cast<std::size_t>(step.operation)];
    if (step.thread != thread || operation.is_refused) continue;
    if (step.delay.count() > 0) std::this_thread::sleep_for(step.delay);
    submit(step);
  }
}

void RankRunner::submit(const Step& step) {
  const Operation& agreed = program_.operations[static_cast<std::size_t>(step.operation)];
  note(Watch::Activity::Submitting, agreed.id);
  const Operation& operation = agreed.on(rank_);
  Record& record = records_.find(agreed.id)->second;
  record.operation = &agreed;
  record.wait = step.wait;
  const SharedBuffer* const buffer =
      operation.buffer >= 0 ? &buffers_.at(operation.buffer) : nullptr;
  record.memory = std::make_shared<OperationMemory>(program_, operation, rank_, buffer);
  if (arrivals_ != nullptr) ++(*arrivals_)[static_cast<std::size_t>(agreed.id)];
  try {
    record.handle =
        programs::submit(operation, *record.memory, set(operation.set),
                         step.wait == Wait::Drop ? record.memory->make_owner() : nullptr);
  } catch (const std::exception& error) {
    fail(agreed, std::string("the call throws: ") + error.what());
    record.operation = nullptr;
    return;
  }
  if (step.wait == Wait::Drop) record.handle = {};
  if (step.wait == Wait::BlockAtOnce) {
    wait_for(record);
    record.operation = nullptr;
  }
}

void RankRunner::expect_refusal(const Operation& operation) {
  OperationMemory memory(program_, operation, rank_, nullptr);
  expect_end(describe(program_, operation), operation.error,
             [&] { programs::submit(operation, memory, set(operation.set), nullptr).wait(); });
}

// --- waiting ---

/// A name, or a part of a shared buffer, is for one operation at a time.
void RankRunner::settle_conflicts(const Operation& operation) {
  settle([&](const Operation& other) {
    const bool has_same_name =
        !operation.name.empty() && other.name == operation.name && other.set == operation.set;
    const bool has_same_place =
        operation.buffer >= 0 && other.buffer == operation.buffer && other.slot == operation.slot;
    return has_same_name || has_same_place;
  });
}

void RankRunner::settle(const std::function<bool(const Operation&)>& which) {
  std::vector<int> found;
  for (const auto& [id, record] : records_) {
    if (record.operation != nullptr && which(*record.operation)) found.push_back(id);
  }
  for (const int id : found) wait_for(id);
}

void RankRunner::wait_for(int id) {
  const auto found = records_.find(id);
  if (found == records_.end()) return;  // it has completed since
  if (found->second.operation != nullptr) {
    note(Watch::Activity::Waiting, id);
    wait_for(found->second);
  }
  records_.erase(found);
}

void RankRunner::wait_for(Record& record) {
  const Operation& operation = *record.operation;
  const auto wait = [&] {
    switch (record.wait) {
      case Wait::Poll:
        while (!record.handle.wait_for(microseconds(100))) {
        }
        break;
      case Wait::Look:
        while (!record.handle.is_ready()) std::this_thread::sleep_for(microseconds(50));
        break;
      default: break;
    }
    record.handle.wait();
  };
  if (record.wait == Wait::Drop) {
    wait_for_release(record);
  } else if (!expect_end(describe(program_, operation), operation.error, wait)) {
    return;
  }
  if (!operation.error) check_result(record);
}

void RankRunner::wait_for_release(const Record& record) {
  while (!record.memory->is_released()) std::this_thread::sleep_for(microseconds(50));
}

void RankRunner::check_result(const Record& record) {
  const Operation& operation = *record.operation;
  if (const std::string damage = record.memory->damage(); !damage.empty()) fail(operation, damage);
  if (operation.collective == Collective::Barrier && arrivals_ != nullptr) {
    const int arrived = (*arrivals_)[static_cast<std::size_t>(operation.id)];
    if (arrived != static_cast<int>(operation.submitters.size())) {
      fail(operation, "ended when " + std::to_string(arrived) + " ranks had come");
    }
  }
  std::uint64_t digest = kHashStart;
  for (std::size_t i = 0; i < operation.tensors.size(); ++i) {
    const Expected expected = expected_of(program_, operation, i, rank_);
    const std::vector<std::byte> result = record.memory->result(i);
    if (record.memory->rows(i) != expected.rows) {
      fail(operation, "tensor " + std::to_string(i) + ": other rows were announced");
    }
    if (const std::string text = difference(expected, result); !text.empty()) {
      fail(operation, "tensor " + std::to_string(i) + ", " + text);
    }
    digest = hash(digest, result);
  }
  if (gives_equal_results(operation.collective)) {
    digests_[static_cast<std::size_t>(operation.id)] = digest;
  }
}

// --- errors ---

bool RankRunner::is_member(int set) const {
  return is_among(rank_, program_.sets[static_cast<std::size_t>(set)]);
}

void RankRunner::fail(const Operation& operation, const std::string& text) {
  fail("round " + std::to_string(round_) + ", " + describe(program_, operation) + ": " + text);
}

bool RankRunner::expect_end(const std::string& what, const std::optional<ErrorKind>& error,
                            const std::function<void()>& action) {
  std::string ending = "nothing";
  std::string text;
  const auto caught = [&](ErrorKind kind, const std::exception& exception) {
    ending = name_of(kind);
    text = exception.what();
  };
  try {
    action();
  } catch (const InvalidArgument& exception) {
    caught(ErrorKind::InvalidArgument, exception);
  } catch (const MismatchError& exception) {
    caught(ErrorKind::Mismatch, exception);
  } catch (const TimeoutError& exception) {
    caught(ErrorKind::Timeout, exception);
  } catch (const PeerLostError& exception) {
    caught(ErrorKind::PeerLost, exception);
  } catch (const ShutdownError& exception) {
    caught(ErrorKind::Shutdown, exception);
  } catch (const std::exception& exception) {
    caught(ErrorKind::Backend, exception);
  }
  const std::string expected(error ? name_of(*error) : "nothing");
  if (ending == expected) return true;
  fail("round " + std::to_string(round_) + ", " + what + ": expected " + expected +
       " to be thrown, got " + ending + (text.empty() ? "" : ": " + text));
  return false;
}

// --- collective calls between rounds ---

namespace {

/// Leftovers end with the set or the Runtime.
bool is_leftover(const Operation& operation) { return operation.error == ErrorKind::Shutdown; }

}  // namespace

void RankRunner::run_blocking_call(const BlockingCall& call) {
  switch (call.kind) {
    case BlockingCall::Kind::AddSet: add_set(call); break;
    case BlockingCall::Kind::RemoveSet: remove_set(call); break;
    case BlockingCall::Kind::MakeBuffer: make_buffer(call); break;
    case BlockingCall::Kind::DropBuffer: buffers_.erase(call.buffer); break;
    case BlockingCall::Kind::Join: join(call); break;
    case BlockingCall::Kind::EndJoins:
      if (joiner_.joinable()) joiner_.join();
      break;
    case BlockingCall::Kind::Shutdown: shut_down(); break;
  }
}

void RankRunner::add_set(const BlockingCall& call) {
  std::vector<int> ranks = rank_ == call.outlier ? call.outlier_ranks : call.ranks;
  if (rank_ % 2 == 1) std::reverse(ranks.begin(), ranks.end());  // any order is valid
  expect_end("add_process_set", call.error, [&] {
    ProcessSet& set = runtime_.add_process_set(ranks);
    sets_.push_back(&set);
    const int place = set.included() ? static_cast<int>(member_of(rank_, call.ranks)) : -1;
    if (set.number() != call.set || set.ranks() != call.ranks ||
        set.included() != is_among(rank_, call.ranks) || set.rank() != place) {
      fail("add_process_set made " + set.name() + ", number " + std::to_string(set.number()));
    }
  });
}

void RankRunner::remove_set(const BlockingCall& call) {
  settle([&](const Operation& operation) {
    return operation.set == call.set && !is_leftover(operation);
  });
  expect_end("remove_process_set", call.error, [&] { runtime_.remove_process_set(set(call.set)); });
}

void RankRunner::make_buffer(const BlockingCall& call) {
  if (!is_member(call.set)) return;
  const bool is_outlier = rank_ == call.outlier;
  expect_end("SharedBuffer", call.error, [&] {
    const SharedBuffer buffer(is_outlier ? call.outlier_bytes : call.size_bytes,
                              {.process_set = &set(call.set)});
    const auto* const bytes = buffer.data();
    if (std::any_of(bytes, bytes + buffer.size_bytes(),
                    [](std::byte byte) { return byte != std::byte{0}; })) {
      fail("a new SharedBuffer is not zero");
    }
    buffers_.emplace(call.buffer, buffer);
  });
}

void RankRunner::join(const BlockingCall& call) {
  if (!is_among(rank_, call.ranks)) return;
  if (call.is_settled) {
    settle([&](const Operation& operation) { return operation.set == call.set; });
  }
  const auto act = [this, &call] {
    expect_end("join", call.error, [&] {
      const int last = kolo::join(&set(call.set));
      last_joined_[static_cast<std::size_t>(call.joining)] = last;
      if (!is_among(last, call.may_be_last)) {
        fail("join: rank " + std::to_string(last) + " cannot have been the last");
      }
    });
  };
  if (call.on_thread) {
    joiner_ = std::thread(act);
  } else {
    act();
  }
}

void RankRunner::shut_down() {
  settle([](const Operation& operation) { return !is_leftover(operation); });
  runtime_.shutdown();
}

}  // namespace kolo::programs
