#include "comm/mpi_duplicate.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/deadline.hpp"
#include "base/intentional_leak.hpp"
#include "base/mutex.hpp"
#include "comm/mpi_communicator.hpp"
#include "comm/mpi_environment.hpp"
#include "kolo/communicator.hpp"
#include "kolo/error.hpp"

namespace kolo::comm {
namespace {

/// Set when MPI_Finalize begins; it frees all communicators itself.
std::atomic<bool> is_finalizing{false};

int rank_in(MpiHandle communicator) {
  int rank = 0;
  mpi().comm_rank(communicator, &rank);
  return rank;
}

/// A communicator with the ranks of `original`, but without its attributes, whose copy functions
/// belong to the program.
MpiComm duplicate(MpiHandle original) {
  MpiHandle copy;
  mpi().comm_split(original, 0, rank_in(original), &copy);
  MpiComm owner(copy);
  mpi().comm_set_errhandler(copy, mpi().errors_return);
  return owner;
}

int count_channels() { return mpi_environment::highest_tag() / Communicator::kTagCount; }

/// The next message of `peer`, once it is there.
MpiStatus await_message(MpiHandle communicator, int peer, Deadline deadline) {
  constexpr auto kPause = std::chrono::microseconds(20);
  MpiStatus status;
  for (;;) {
    const bool is_last_look = deadline.has_passed();
    int is_here = 0;
    mpi().iprobe(peer, kAnyTag, communicator, &is_here, &status);
    if (is_here != 0) return status;
    if (is_last_look) {
      throw BackendError("Kolo's messages over a communicator cannot be drained: rank " +
                         std::to_string(peer) +
                         " does not send its last one; it may have ended, or know of a loss");
    }
    std::this_thread::sleep_for(kPause);
  }
}

/// Receives all pending messages, because a later communicator may reuse this one's id. Messages of
/// a sender arrive in order, so a final one under the last tag ends the search. Collective. Throws
/// BackendError after the deadline.
void drain(MpiHandle communicator, Deadline deadline) {
  int size = 1;
  mpi().comm_size(communicator, &size);
  const int last_tag = (count_channels() - 1) * Communicator::kTagCount;
  std::vector<MpiHandle> sends(static_cast<std::size_t>(size));
  for (int peer = 0; peer < size; ++peer) {
    mpi().isend(nullptr, 0, mpi().byte, peer, last_tag, communicator,
                &sends[static_cast<std::size_t>(peer)]);
  }
  std::vector<std::byte> ignored;
  for (int peer = 0; peer < size; ++peer) {
    for (int tag = -1; tag != last_tag;) {
      MpiStatus status = await_message(communicator, peer, deadline);
      int bytes = 0;
      mpi().get_count(&status, mpi().byte, &bytes);
      ignored.resize(static_cast<std::size_t>(bytes));
      tag = mpi().tag(status);
      mpi().recv(ignored.data(), bytes, mpi().byte, peer, tag, communicator, &status);
    }
  }
  MpiStatus status;
  for (MpiHandle& send : sends) mpi().wait(&send, &status);
}

}  // namespace

struct MpiDuplicate::Entry {
  explicit Entry(MpiHandle original) : base(duplicate(original)) {}

  MpiComm base;
  std::atomic<int> next_channel = 0;  // the first of `base` that no World has used
  std::atomic<bool> is_in_use = false;
};

class MpiDuplicate::Pool {
 public:
  static std::shared_ptr<Pool> of(MpiHandle original);

  Pool() = default;
  Pool(const Pool&) = delete;  // frees once
  Pool& operator=(const Pool&) = delete;
  ~Pool() {
    const bool frees = !is_finalizing && !mpi_environment::is_broken();
    // Others may know of a loss, and drain nothing.
    const auto deadline = Deadline::after(std::chrono::seconds(10));
    for (const std::shared_ptr<Entry>& entry : entries_) {
      try {
        if (frees && !entry->is_in_use) {
          drain(entry->base.get(), deadline);
          continue;
        }
      } catch (const Error&) {
        // Not drained: leak it.
      }
      entry->base.release();
    }
  }

  /// Waits for other ranks: under no lock but the one of MPI's calls, which the caller's turn to
  /// start makes safe.
  std::shared_ptr<Entry> take(MpiHandle original) {
    const auto calls = mpi_environment::lock_calls();
    const std::size_t place = find_free(original);
    if (place == entries_.size()) entries_.push_back(std::make_shared<Entry>(original));
    Entry& taken = *entries_[place];
    const int own_next = taken.next_channel;
    int next = 0;
    mpi().allreduce(&own_next, &next, 1, mpi().integer, mpi().max, original);
    taken.next_channel = next;
    if (next > count_channels() / 2) {
      drain(taken.base.get(), Deadline::never());
      entries_[place] = std::make_shared<Entry>(original);
    }
    entries_[place]->is_in_use = true;
    return entries_[place];
  }
  /// Any thread.
  static void give_back(Entry& entry) { entry.is_in_use = false; }

 private:
  /// The index of the first entry that is free on all ranks, which may not have ended the same
  /// Worlds yet; the number of entries if none is free.
  std::size_t find_free(MpiHandle original) const {
    std::vector<int> is_free;
    for (const std::shared_ptr<Entry>& entry : entries_)
      is_free.push_back(entry->is_in_use ? 0 : 1);
    is_free.push_back(1);  // a new one
    std::vector<int> is_free_on_all(is_free.size());
    mpi().allreduce(is_free.data(), is_free_on_all.data(), static_cast<int>(is_free.size()),
                    mpi().integer, mpi().min, original);
    return static_cast<std::size_t>(std::ranges::find(is_free_on_all, 1) - is_free_on_all.begin());
  }

  // The same number on all ranks. Changes in `take` alone, which is collective: no two threads call
  // it at once.
  std::vector<std::shared_ptr<Entry>> entries_;
};

namespace {

// Callbacks of MPI's. Handle is its type of handles.
template <class Handle>
int copy_nothing(Handle, int, void*, void*, void*, int* is_copied) {
  *is_copied = 0;
  return 0;
}
template <class Handle>
int forget_pool(Handle, int, void* pool, void*) {
  delete static_cast<std::shared_ptr<MpiDuplicate::Pool>*>(pool);
  return 0;
}
template <class Handle>
int note_finalize(Handle, int, void*, void*) {
  is_finalizing = true;
  return 0;
}

int make_key(MpiCallback on_delete) {
  int key = 0;
  mpi().comm_create_keyval(mpi().callback(copy_nothing<void*>, copy_nothing<int>), on_delete, &key,
                           nullptr);
  return key;
}

/// The key of the attribute in which a communicator keeps its pool.
int pool_key() {
  static const int key = [] {
    // MPI_Finalize begins by freeing MPI_COMM_SELF.
    const int on_finalize = make_key(mpi().callback(note_finalize<void*>, note_finalize<int>));
    mpi().comm_set_attr(mpi().comm_self, on_finalize, nullptr);
    return make_key(mpi().callback(forget_pool<void*>, forget_pool<int>));
  }();
  return key;
}

}  // namespace

std::shared_ptr<MpiDuplicate::Pool> MpiDuplicate::Pool::of(MpiHandle original) {
  static Mutex lock;
  const Lock guard(lock);
  const auto calls = mpi_environment::lock_calls();
  const int key = pool_key();
  void* found = nullptr;
  int is_there = 0;
  mpi().comm_get_attr(original, key, static_cast<void*>(&found), &is_there);
  if (is_there != 0) return *static_cast<std::shared_ptr<Pool>*>(found);
  auto* const pool = new std::shared_ptr<Pool>(std::make_shared<Pool>());
  mpi().comm_set_attr(original, key, pool);
  return *pool;
}

MpiDuplicate::MpiDuplicate(MpiHandle original)
    : pool_(Pool::of(original)),
      entry_(pool_->take(original)),
      first_channel_(entry_->next_channel) {}

MpiDuplicate::~MpiDuplicate() {
  if (is_given_up_) {
    leak_intentionally(std::move(pool_));
    leak_intentionally(std::move(entry_));
  } else {
    Pool::give_back(*entry_);
  }
}

MpiHandle MpiDuplicate::base() const { return entry_->base.get(); }

int MpiDuplicate::own_channel(int channel) {
  const int own = first_channel_ + channel;
  int next = entry_->next_channel;
  while (next <= own && !entry_->next_channel.compare_exchange_weak(next, own + 1)) {
  }
  return own;
}

}  // namespace kolo::comm
