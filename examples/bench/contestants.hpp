#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bench/options.hpp"
#include "comm/world.hpp"
#include "kolo/algorithm.hpp"
#include "kolo/config.hpp"
#include "kolo/runtime.hpp"
#include "kolo/shared_buffer.hpp"
#include "ops/registry.hpp"

namespace bench {

/// One way to sum `count` elements at `buffer` over all ranks, in place.
struct Contestant {
  std::string name;
  std::byte* buffer;
  std::function<void(std::size_t count)> all_reduce;
};

/// Names that stand for Kolo's whole path rather than for a bare algorithm.
inline constexpr const char* kWholePath = "kolo";
inline constexpr const char* kWholePathShared = "kolo_shared";

/// All names that --algorithm may take.
std::vector<std::string> algorithm_names();

/// Everything that can be measured here, and what it needs. Collective, from start to end.
class Contestants {
 public:
  /// Throws InvalidArgument where a wanted algorithm cannot run among these ranks.
  explicit Contestants(const Options& options);
  Contestants(const Contestants&) = delete;  // contestants point into it
  Contestants& operator=(const Contestants&) = delete;

  /// MPI_Allreduce comes first.
  const std::vector<Contestant>& all() const { return all_; }

 private:
  void add_mpi();
  void add_whole_paths();
  void add_algorithms(const kolo::ops::Registry& registry);
  bool fits(const kolo::Algorithm& algorithm) const;
  bool is_wanted(const std::string& name) const;

  const Options& options_;
  kolo::Config config_ = kolo::Config::from_environment();
  std::shared_ptr<kolo::comm::World> world_;
  kolo::Runtime runtime_;
  std::unique_ptr<kolo::Communicator> communicator_;
  std::shared_ptr<kolo::SharedWindow> staging_;  // null where ranks share no memory
  std::shared_ptr<kolo::SharedWindow> buffers_;
  std::vector<std::byte*> peer_buffers_;
  kolo::SharedBuffer shared_;
  std::vector<std::byte> plain_;
  std::vector<Contestant> all_;
};

}  // namespace bench
