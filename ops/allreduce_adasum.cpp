// All-reduce with Adasum (Maleki et al., 2020), by vector halving and distance doubling: the
// buffers of two ranks are combined into a (1 - a·b / 2|a|²) + b (1 - a·b / 2|b|²), then those
// of two pairs, and so on.
//
//   1 scale    every rank copies its input, prescaled, to its output
//   2 fold     if n is not a power of two, some ranks send their vector to their neighbour, which
//              combines the two; p = 2^k ranks, the cores, continue (see Cores in halving.hpp)
//   3 halve    at distance d = 1, 2, … p/2 core c and core c xor d hold the same range of two
//              vectors; each sends one half to the other and combines the half that it keeps. After
//              the last step every core holds 1/p of the result, which it postscales
//   4 gather   the same steps in reverse order, which join the ranges again
//   5 unfold   ranks that sent their vector away in step 2 receive the result
//
//   p = 4          core 0     core 1     core 2     core 3
//   start          a . . .    b . . .    c . . .    d . . .    whole vectors
//   d = 1          ab, 1st    ab, 2nd    cd, 1st    cd, 2nd    halves; dots among {0 1}, {2 3}
//   d = 2          abcd 1/4   abcd 3/4   abcd 2/4   abcd 4/4   quarters; dots among {0 1 2 3}
//
// Dot products are over whole vectors, which are divided between 2d cores: at every step these
// cores sum their partial products in pairs, in float64. A sum of two has the same bits on both
// sides, so all cores compute the same weights. One rank computes each element and sends it to the
// others, so results have the same bits on all ranks. Results of a step are rounded to the tensor's
// type.
//
// Results depend on the number of ranks: it decides about the pairs, and Adasum is not associative.
// The squares of two float64 vectors that are combined may differ by a factor of up to 2^1000.
//
// Bytes: a core sends 2 (p-1)/p of the buffer and k (k+1)/2 times 40 bytes; a core with a folded
// neighbour, and that neighbour, send the buffer once more. Scratch: half a buffer; a whole one
// with a folded neighbour. Worlds: any size.
#include <array>
#include <memory>
#include <span>
#include <vector>

#include "base/intentional_leak.hpp"
#include "ops/algorithms.hpp"
#include "ops/kernels/adasum_kernels.hpp"
#include "ops/kernels/pieces.hpp"
#include "ops/steps/halving.hpp"
#include "ops/steps/local_steps.hpp"

namespace kolo::ops {
namespace {

constexpr int kVectorTag = 0;
constexpr int kDotsTag = 1;

class Adasum {
 public:
  Adasum(const CollectiveCall& call, const Cores& cores)
      : call_(call),
        communicator_(*call.communicator),
        cores_(cores),
        segment_(segment_length(call)) {
    const std::size_t longest = cores.is_paired() ? call.count : call.count - call.count / 2;
    scratch_ = std::make_unique_for_overwrite<std::byte[]>(longest * size_of(call.dtype));
  }

  /// Step 2.
  Task fold() {
    const Range whole{0, call_.count};
    co_await merge({cores_.partner(), {}, whole, true}, 0);
  }

  /// Steps 3 and 4.
  Task halve_and_gather() {
    std::vector<Step> steps;
    Range range{0, call_.count};
    for (int distance = 1; distance < cores_.count(); distance *= 2) {
      const Range first = piece_of(range.length, 2, 0);
      const Range lower{range.begin, first.length};
      const Range upper{range.begin + first.length, range.length - first.length};
      const int peer = cores_.own() ^ distance;
      const bool is_lower = cores_.own() < peer;
      steps.push_back(
          {cores_.rank_of(peer), is_lower ? upper : lower, is_lower ? lower : upper, is_lower});
      range = steps.back().kept;
      co_await merge(steps.back(), distance);
    }
    std::byte* own = output(range).data();
    if (call_.reduction.postscale != 1.0) {
      co_await scale_elements(call_, call_.reduction.postscale, own, own, range.length);
    }
    for (; !steps.empty(); steps.pop_back()) {
      const Step& step = steps.back();
      co_await exchange(call_, step.peer, output(step.kept), output(step.given));
    }
  }

 private:
  /// The range that is sent to `peer`, and the one that is combined with the peer's.
  struct Step {
    int peer;
    Range given;
    Range kept;
    bool is_lower;  // than the peer, so this rank's vector comes first
  };
  /// A segment of the two vectors, in their order.
  struct Pair {
    const std::byte* a;
    const std::byte* b;
    std::byte* out;
    std::size_t length;
  };

  /// Combines two vectors, each of which is spread over `spread` cores: this one and those at
  /// smaller distances.
  Task merge(Step step, int spread) {
    std::vector<Transfer> sends;
    for (std::size_t i = 0; i < segment_count(step.given.length, segment_); ++i) {
      const std::span<const std::byte> data = output(segment_of(step.given, segment_, i));
      sends.push_back(communicator_.send(data, step.peer, kVectorTag));
    }
    DotProducts products;
    std::array<Transfer, 2> receives;  // the one that is awaited, and the next
    const std::size_t segments = segment_count(step.kept.length, segment_);
    const auto receive = [&](std::size_t i) {
      if (i < segments) {
        const std::span<std::byte> place = scratch(segment_of({0, step.kept.length}, segment_, i));
        receives[i % 2] = communicator_.receive(place, step.peer, kVectorTag);
      }
    };
    receive(0);
    for (std::size_t i = 0; i < segments; ++i) {
      receive(i + 1);
      co_await receives[i % 2];
      const Pair pair = pair_of(step, i);
      products = add(products, dot_products(call_.dtype, pair.a, pair.b, pair.length));
      co_await yield();
    }
    for (Transfer& send : sends) co_await send;

    for (int distance = 1; distance < 2 * spread; distance *= 2) {
      co_await add_products(cores_.rank_of(cores_.own() ^ distance), products);
    }
    const PairWeights weights = pair_weights(products);
    for (std::size_t i = 0; i < segments; ++i) {
      const Pair pair = pair_of(step, i);
      add_weighted(call_.dtype, weights, pair.a, pair.b, pair.out, pair.length);
      co_await yield();
    }
  }

  Pair pair_of(const Step& step, std::size_t segment) {
    const Range own = segment_of(step.kept, segment_, segment);
    std::byte* mine = output(own).data();
    const std::byte* theirs = scratch(segment_of({0, step.kept.length}, segment_, segment)).data();
    if (step.is_lower) return {mine, theirs, mine, own.length};
    return {theirs, mine, mine, own.length};
  }

  Task add_products(int peer, DotProducts& products) {
    DotProducts theirs;
    Transfer receive =
        communicator_.receive(std::as_writable_bytes(std::span(&theirs, 1)), peer, kDotsTag);
    Outgoing<DotProducts> ours(products);
    Transfer send = communicator_.send(ours.bytes(), peer, kDotsTag);
    co_await receive;
    co_await send;
    ours.set_left();
    products = add(products, theirs);
  }

  std::span<std::byte> output(Range range) const { return bytes_of(call_, call_.output, range); }
  std::span<std::byte> scratch(Range range) { return bytes_of(call_, scratch_.get(), range); }

  const CollectiveCall& call_;
  Communicator& communicator_;
  const Cores& cores_;
  std::size_t segment_;
  std::unique_ptr<std::byte[]> scratch_;
};

}  // namespace

Task allreduce_adasum(CollectiveCall call) {
  if (call.count == 0) co_return;
  const Cores cores(call.communicator->rank(), call.communicator->size());
  call.reduction.op = ReduceOp::Sum;  // `combine` is used only for scaling
  const double prescale = call.reduction.prescale;
  if (prescale != 1.0) {
    co_await scale_elements(call, prescale, call.input, call.output, call.count);
  } else {
    co_await copy_elements(call, call.input, call.output, call.count);
  }
  const std::span<std::byte> whole = bytes_of(call, call.output, {0, call.count});
  if (cores.is_folded()) {
    co_await exchange(call, cores.partner(), whole, {});
    co_await exchange(call, cores.partner(), {}, whole);
    co_return;
  }
  Adasum adasum(call, cores);
  if (cores.is_paired()) co_await adasum.fold();
  co_await adasum.halve_and_gather();
  if (cores.is_paired()) co_await exchange(call, cores.partner(), whole, {});
}

}  // namespace kolo::ops
