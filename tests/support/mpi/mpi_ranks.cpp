#include "support/mpi/mpi_ranks.hpp"

#include <chrono>
#include <cstddef>
#include <cstdio>
#include <numeric>
#include <thread>
#include <utility>

#include <mpi.h>

#include "kolo/mpi.hpp"
#include "support/mpi/groups.hpp"
#include "support/mpi/test_world.hpp"

namespace kolo::test {

void mpi_wait(const std::function<void(MPI_Request*)>& start) {
  MPI_Request request = MPI_REQUEST_NULL;
  {
    const MpiLock lock;
    start(&request);
  }
  for (int is_done = 0; is_done == 0;) {
    {
      const MpiLock lock;
      MPI_Test(&request, &is_done, MPI_STATUS_IGNORE);
    }
    if (is_done == 0) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

Watchdog::Watchdog(std::string who, std::chrono::seconds limit)
    : who_(std::move(who)), limit_(limit), thread_([this] { loop(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard guard(lock_);
    is_stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void Watchdog::begin(const std::string& test) {
  {
    const std::lock_guard guard(lock_);
    test_ = test;
    place_ = "none";
    until_ = Clock::now() + limit_;
  }
  changed_.notify_one();
}

void Watchdog::end() {
  const std::lock_guard guard(lock_);
  until_ = Clock::time_point::max();
}

void Watchdog::note(const std::string& place) {
  const std::lock_guard guard(lock_);
  place_ = place;
}

void Watchdog::loop() {
  std::unique_lock guard(lock_);
  while (!is_stopping_) {
    if (until_ == Clock::time_point::max()) {
      changed_.wait(guard);
      continue;
    }
    changed_.wait_until(guard, until_);
    if (is_stopping_ || Clock::now() < until_) continue;
    const std::string text = who_ + "watchdog: " + test_ + " has run for more than " +
                             std::to_string(limit_.count()) +
                             " s; last meeting with the other ranks: " + place_ + "\n";
    std::fputs(text.c_str(), stderr);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}

namespace {

MpiRanks* current_instance = nullptr;

std::string describe_world_rank() {
  const MpiLock lock;
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return "[rank " + std::to_string(rank) + "/" + std::to_string(size) + "] ";
}

}  // namespace

MpiRanks::MpiRanks(std::chrono::seconds longest_test)
    : watchdog_(describe_world_rank(), longest_test) {
  int world_rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &world_rank);
  const bool are_in_groups = groups_of_environment() != Groups::One;
  MPI_Comm_split(MPI_COMM_WORLD, are_in_groups ? world_rank % 2 : 0, world_rank, &group_);
  MPI_Comm_set_errhandler(group_, MPI_ERRORS_RETURN);
  MPI_Comm_dup(group_, &communicator_);
  MPI_Comm_rank(communicator_, &rank_);
  MPI_Comm_size(communicator_, &size_);
  current_instance = this;
}

MpiRanks::~MpiRanks() {
  current_instance = nullptr;
  MPI_Comm_free(&communicator_);
  MPI_Comm_free(&group_);
}

std::optional<int> MpiRanks::group() const {
  return groups_of_environment() != Groups::One ? std::optional(mpi_handle(group_)) : std::nullopt;
}

MpiRanks& MpiRanks::instance() { return *current_instance; }

std::string MpiRanks::prefix() const { return describe_world_rank(); }

std::vector<int> MpiRanks::gather(int value, const std::string& place) {
  watchdog_.note(place);
  std::vector<int> values(static_cast<std::size_t>(size_));
  mpi_wait([&](MPI_Request* request) {
    MPI_Iallgather(&value, 1, MPI_INT, values.data(), 1, MPI_INT, communicator_, request);
  });
  return values;
}

std::vector<std::string> MpiRanks::gather_on_first(const std::string& text,
                                                   const std::string& place) {
  const std::vector<int> lengths = gather(static_cast<int>(text.size()), place);
  std::vector<int> offsets(lengths.size());
  std::exclusive_scan(lengths.begin(), lengths.end(), offsets.begin(), 0);
  std::string all(static_cast<std::size_t>(offsets.back() + lengths.back()), '\0');
  mpi_wait([&](MPI_Request* request) {
    MPI_Igatherv(text.data(), static_cast<int>(text.size()), MPI_CHAR, all.data(), lengths.data(),
                 offsets.data(), MPI_CHAR, 0, communicator_, request);
  });
  std::vector<std::string> texts;
  if (rank_ != 0) return texts;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    texts.push_back(
        all.substr(static_cast<std::size_t>(offsets[i]), static_cast<std::size_t>(lengths[i])));
  }
  return texts;
}

std::string MpiRanks::broadcast(std::string text, int root, const std::string& place) {
  const std::vector<int> lengths = gather(static_cast<int>(text.size()), place);
  text.resize(static_cast<std::size_t>(lengths[static_cast<std::size_t>(root)]));
  mpi_wait([&](MPI_Request* request) {
    MPI_Ibcast(text.data(), static_cast<int>(text.size()), MPI_CHAR, root, communicator_, request);
  });
  return text;
}

InitOptions in_test_world(Config config) {
  return {.config = std::move(config), .communicator = MpiRanks::instance().group()};
}

}  // namespace kolo::test
