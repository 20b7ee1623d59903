#include "comm/mpi_communicator.hpp"

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>

#include "comm/message_bounds.hpp"
#include "comm/mpi_environment.hpp"
#include "kolo/error.hpp"

namespace kolo::comm {
namespace {

// How long to wait for the rest of a message that has begun to arrive, and how often to poll.
constexpr auto kLongestArrival = std::chrono::milliseconds(100);
constexpr auto kPollInterval = std::chrono::microseconds(50);

}  // namespace

MpiCommunicator::MpiCommunicator(Options options) : options_(std::move(options)) {
  const auto calls = mpi_environment::lock_calls();
  int self = 0;
  mpi().comm_rank(options_.base, &self);
  const auto member = std::find(options_.ranks.begin(), options_.ranks.end(), self);
  rank_ = static_cast<int>(member - options_.ranks.begin());

  const int highest = mpi_environment::highest_tag();
  if (options_.channel >= highest / kTagCount) {
    throw InvalidArgument(
        "this MPI has tags up to " + std::to_string(highest) +
        " only, too few for the process sets added so far. Removed sets count too, since a late "
        "message of a removed set must not be taken for a message of another one");
  }
}

Transfer MpiCommunicator::send(std::span<const std::byte> data, int destination, int tag) {
  check_message(*this, data.size(), destination, tag);
  const auto calls = mpi_environment::lock_calls();
  MpiHandle request;
  mpi().isend(data.data(), static_cast<int>(data.size()), mpi().byte, base_rank(destination),
              mpi_tag(tag), options_.base, &request);
  bytes_sent_ += data.size();
  return start(request, kNotReceiving, destination);
}

Transfer MpiCommunicator::receive(std::span<std::byte> data, int source, int tag) {
  check_message(*this, data.size(), source, tag);
  const auto calls = mpi_environment::lock_calls();
  MpiHandle request;
  const int size = static_cast<int>(data.size());
  mpi().irecv(data.data(), size, mpi().byte, base_rank(source), mpi_tag(tag), options_.base,
              &request);
  return start(request, size, source);
}

std::optional<Communicator::Envelope> MpiCommunicator::probe(int tag) {
  check_message(*this, 0, rank_, tag);
  const auto calls = mpi_environment::lock_calls();
  int is_there = 0;
  MpiStatus status;
  mpi().iprobe(mpi().any_source, mpi_tag(tag), options_.base, &is_there, &status);
  if (is_there == 0) return std::nullopt;
  int size = 0;
  mpi().get_count(&status, mpi().byte, &size);
  const auto member =
      std::lower_bound(options_.ranks.begin(), options_.ranks.end(), mpi().source(status));
  return Envelope{static_cast<int>(member - options_.ranks.begin()),
                  static_cast<std::size_t>(size)};
}

Transfer MpiCommunicator::start(MpiHandle request, int expected_bytes, int peer) {
  if (free_.empty()) {
    free_.push_back(slots_.size());
    slots_.emplace_back();
  }
  const std::uint64_t token = free_.back();
  free_.pop_back();
  slots_[token] = {.request = request, .expected_bytes = expected_bytes, .peer = peer};
  return {*this, token};
}

bool MpiCommunicator::test(std::uint64_t token) {
  const auto calls = mpi_environment::lock_calls();
  Slot& slot = slots_[token];
  int is_done = 0;
  MpiStatus status;
  const int code = mpi().test.code(&slot.request, &is_done, &status);
  if (code == 0 && is_done == 0) {
    awaited_ = slot.peer;
    return false;
  }
  free_.push_back(token);
  const int expected = slot.expected_bytes;
  if (expected == kNotReceiving) {
    if (code != 0) throw_mpi_error(code, "MPI_Test");
    return true;
  }
  int received = 0;
  if (code == 0) mpi().get_count(&status, mpi().byte, &received);
  if (code == 0 && received == expected) return true;
  int error_class = code;
  mpi().error_class.code(code, &error_class);
  if (code != 0 && error_class != mpi().error_truncate) throw_mpi_error(code, "MPI_Test");
  throw BackendError("receive from rank " + std::to_string(base_rank(slot.peer)) + ": expected " +
                     std::to_string(expected) + " bytes, got " +
                     (code == 0 ? std::to_string(received) : std::string("more")));
}

// --- after a failure ---

/// Local. A receive whose message has begun to arrive continues; any other ends.
void MpiCommunicator::cancel(Slot& receive) noexcept {
  if (receive.request == mpi().request_null || std::exchange(receive.is_cancelled, true)) return;
  const auto calls = mpi_environment::lock_calls();
  mpi().cancel.code(&receive.request);
}

/// True also after a failure: MPI no longer uses the memory.
bool MpiCommunicator::has_ended(Slot& slot) noexcept {
  const auto calls = mpi_environment::lock_calls();
  int is_done = 0;
  MpiStatus ignored;
  const int code = mpi().test.code(&slot.request, &is_done, &ignored);
  return code != 0 || is_done != 0;
}

Communicator::UnderWay MpiCommunicator::give_up_receives() {
  for (Slot& slot : slots_) {
    if (slot.is_receive()) cancel(slot);
  }
  UnderWay under_way;
  for (Slot& slot : slots_) {
    if (has_ended(slot)) continue;
    std::vector<int>& ranks = slot.is_receive() ? under_way.from : under_way.to;
    if (std::find(ranks.begin(), ranks.end(), slot.peer) == ranks.end()) {
      ranks.push_back(slot.peer);
    }
  }
  return under_way;
}

void MpiCommunicator::abandon(std::uint64_t token) noexcept {
  Slot& slot = slots_[token];
  // MPI may continue a send, so its slot is never reused.
  if (!slot.is_receive()) return;
  cancel(slot);
  const auto give_up_at = std::chrono::steady_clock::now() + kLongestArrival;
  while (!has_ended(slot)) {
    if (std::chrono::steady_clock::now() > give_up_at) return;
    std::this_thread::sleep_for(kPollInterval);
  }
  free_.push_back(token);
}

}  // namespace kolo::comm
