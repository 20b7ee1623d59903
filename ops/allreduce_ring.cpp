// All-reduce over a ring: every rank sends to its right neighbour only and receives from its left.
//
// The buffer is cut into n pieces. In the first n-1 steps (reduce-scatter) the partial sum of each
// piece moves around the ring and every rank adds its own part; then rank r holds the complete sum
// of piece r+1. In the next n-1 steps (all-gather) the sums move around once more. At step s rank r
// sends piece r-s and receives piece r-s-1 (mod n), which it sends in the next step.
//
//   n = 3            rank 0        rank 1        rank 2
//   step 0        sends a0 ->   sends b1 ->   sends c2 ->  (to rank 0)
//   step 1        c2+a2 ->      a0+b0 ->      b1+c1 ->
//   now whole     b1+c1+a1      c2+a2+b2      a0+b0+c0
//   steps 2, 3    the whole sums go round
//
// Pieces are sent in segments: a segment is forwarded as soon as it is combined, while the next one
// arrives, so that links and cores work at the same time.
//
// Element i starts at the rank that its piece belongs to, so the order of the sum depends on the
// count; it is the same on all ranks and in every run. 16-bit floats are rounded at every step. The
// prescale is applied before the first step and the postscale after the last sum: for a mean of
// 16-bit floats the caller prescales by 1/n, which keeps every partial sum finite.
//
// Bytes: a rank sends 2 (n-1)/n of the buffer, the minimum, in 2 (n-1) steps of latency. Scratch: 2
// segments. Worlds: any size; best for long buffers on many ranks.
#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "ops/algorithms.hpp"
#include "ops/kernels/kernels.hpp"
#include "ops/kernels/pieces.hpp"
#include "ops/steps/local_steps.hpp"
#include "ops/steps/messages.hpp"

namespace kolo::ops {
namespace {

class Ring {
 public:
  /// A segment of the piece that arrives in one step.
  struct Arrival {
    int step;
    std::size_t segment;
    Range range;
  };

  explicit Ring(const CollectiveCall& call)
      : call_(call),
        communicator_(*call.communicator),
        rank_(communicator_.rank()),
        size_(communicator_.size()),
        last_step_(2 * (size_ - 1) - 1),
        segment_(segment_length(call)),
        source_(call.input),
        sends_(static_cast<std::size_t>(last_step_ + 1)) {
    const std::size_t longest = std::min(segment_, piece_of(call.count, size_, 0).length);
    slot_bytes_ = longest * size_of(call.dtype);
    scratch_ = std::make_unique_for_overwrite<std::byte[]>(2 * slot_bytes_);
    for (int step = 0; step <= last_step_; ++step) {
      const Range piece = piece_at(rank_ - step - 1);
      for (std::size_t i = 0; i < segment_count(piece.length, segment_); ++i) {
        arrivals_.push_back({step, i, segment_of(piece, segment_, i)});
      }
    }
  }

  const std::vector<Arrival>& arrivals() const { return arrivals_; }

  /// Writes the scaled inputs to `output`, from which they are read from then on.
  Task apply_prescale() {
    co_await scale_elements(call_, call_.reduction.prescale, call_.input, call_.output,
                            call_.count);
    source_ = call_.output;
  }

  void send_first_piece() {
    const Range piece = piece_at(rank_);
    for (std::size_t i = 0; i < segment_count(piece.length, segment_); ++i) {
      send(0, bytes_of(call_, source_, segment_of(piece, segment_, i)));
    }
  }

  bool is_summed(const Arrival& arrival) const { return arrival.step < size_ - 1; }

  /// Starts to receive arrival `index`: a partial sum into scratch, a complete one into the output.
  /// The partial sum in that place was sent n-1 steps ago, and must have left.
  Task start_receive(std::size_t index, Transfer& receive) {
    const Arrival& arrival = arrivals_[index];
    std::span<std::byte> target = bytes_of(call_, call_.output, arrival.range);
    if (is_summed(arrival)) {
      target = {scratch_.get() + index % 2 * slot_bytes_, target.size()};
    } else {
      co_await sends_[static_cast<std::size_t>(arrival.step - (size_ - 1))][arrival.segment];
    }
    receive = communicator_.receive(target, (rank_ + size_ - 1) % size_, kTag);
  }

  void add_own(std::size_t index) {
    const Arrival& arrival = arrivals_[index];
    const bool is_whole = arrival.step == size_ - 2;
    const Reduction reduction =
        with_scales(call_.reduction, 1.0, is_whole ? call_.reduction.postscale : 1.0);
    const std::array<const std::byte*, 2> inputs{scratch_.get() + index % 2 * slot_bytes_,
                                                 bytes_of(call_, source_, arrival.range).data()};
    const std::array<std::byte*, 1> outputs{bytes_of(call_, call_.output, arrival.range).data()};
    combine(call_.dtype, reduction, inputs, outputs, arrival.range.length);
  }

  void pass_on(const Arrival& arrival) {
    if (arrival.step == last_step_) return;
    send(arrival.step + 1, bytes_of(call_, std::as_const(call_.output), arrival.range));
  }

  Task finish_sends() {
    for (std::vector<Transfer>& step : sends_) {
      for (Transfer& send : step) co_await send;
    }
  }

 private:
  /// The piece with this number modulo n.
  Range piece_at(int number) const {
    return piece_of(call_.count, size_, ((number % size_) + size_) % size_);
  }
  void send(int step, std::span<const std::byte> data) {
    sends_[static_cast<std::size_t>(step)].push_back(
        communicator_.send(data, (rank_ + 1) % size_, kTag));
  }

  const CollectiveCall& call_;
  Communicator& communicator_;
  int rank_;
  int size_;
  int last_step_;
  std::size_t segment_;
  const std::byte* source_;
  std::size_t slot_bytes_;
  std::unique_ptr<std::byte[]> scratch_;
  std::vector<Arrival> arrivals_;             // in order of arrival
  std::vector<std::vector<Transfer>> sends_;  // by step and segment
};

}  // namespace

Task allreduce_ring(CollectiveCall call) {
  const auto size = static_cast<std::size_t>(call.communicator->size());
  if (size == 1 || call.count < size) {
    co_await allreduce_direct(call);  // no neighbours, or pieces without elements
    co_return;
  }
  Ring ring(call);
  if (call.reduction.prescale != 1.0) co_await ring.apply_prescale();
  ring.send_first_piece();

  const auto& arrivals = ring.arrivals();
  std::array<Transfer, 2> receives;
  co_await ring.start_receive(0, receives[0]);
  for (std::size_t i = 0; i < arrivals.size(); ++i) {
    if (i + 1 < arrivals.size()) co_await ring.start_receive(i + 1, receives[(i + 1) % 2]);
    co_await receives[i % 2];
    if (ring.is_summed(arrivals[i])) ring.add_own(i);
    ring.pass_on(arrivals[i]);
    co_await yield();
  }
  co_await ring.finish_sends();
}

}  // namespace kolo::ops
