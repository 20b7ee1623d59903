#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bench/options.hpp"
#include "bench/rank.hpp"
#include "bench/workload.hpp"
#include "comm/world.hpp"
#include "kolo/algorithm.hpp"
#include "kolo/config.hpp"
#include "kolo/runtime.hpp"
#include "kolo/shared_buffer.hpp"
#include "ops/registry.hpp"

namespace bench {

/// All of Kolo's cases that the options select, and what they need: bare algorithms, and public
/// functions, whose named, asynchronous operations all ranks negotiate. Constructor, destructor and
/// all calls are collective.
class KoloCases {
 public:
  explicit KoloCases(const Options& options);
  KoloCases(const KoloCases&) = delete;  // cases point into it
  KoloCases& operator=(const KoloCases&) = delete;

  /// The cases that can run `workload`; valid until the next call. Throws InvalidArgument if an
  /// algorithm that was selected by name cannot run on these ranks, or if none can.
  std::vector<Case> make(const Workload& workload);

 private:
  void add_bare(const Workload& workload, bool in_place, std::vector<Case>& cases);
  Case make_bare(const kolo::Algorithm& algorithm, const Workload& workload, bool in_place);
  bool fits(const kolo::Algorithm& algorithm) const;
  bool is_wanted(const kolo::Algorithm& algorithm, const Workload& workload) const;
  std::string_view chosen(const Workload& workload, bool has_peer_buffers) const;
  void add_public(const Workload& workload, bool in_place, std::vector<Case>& cases);
  void add_staged(const Workload& workload, bool in_place, const std::string& compression,
                  std::vector<Case>& cases);
  void add_in_window(const Workload& workload, bool in_place, const std::string& compression,
                     std::vector<Case>& cases);
  void add_buckets(const Workload& workload, const std::string& compression,
                   std::vector<Case>& cases);
  bool is_wanted(const std::string& algorithm, const char* placement) const;
  /// At least `bytes` of memory, accessible to all ranks if they can share any. Frees the previous
  /// buffer unless it is large enough.
  const kolo::SharedBuffer& reserve_shared(std::size_t bytes);
  Layout largest_layout(const Workload& workload) const;
  void make_staging();

  const Options& options_;
  kolo::Config config_ = kolo::Config::from_environment();
  std::shared_ptr<kolo::comm::World> world_;
  kolo::Runtime runtime_;
  kolo::ops::Registry registry_;
  std::unique_ptr<kolo::Communicator> communicator_;
  std::shared_ptr<kolo::SharedWindow> staging_;  // null if the ranks share no memory
  std::string why_no_window_;
  bool has_peer_buffers_ = false;  // all ranks can access the workload's memory
  GrowingBuffer memory_;
  std::optional<kolo::SharedBuffer> shared_;
};

}  // namespace bench
