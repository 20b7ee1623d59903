#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "bench/cases/case.hpp"
#include "bench/cases/whole_path.hpp"
#include "bench/options.hpp"
#include "bench/workload/growing_buffer.hpp"
#include "comm/world.hpp"
#include "kolo/algorithm.hpp"
#include "kolo/config.hpp"
#include "kolo/runtime.hpp"
#include "ops/registry.hpp"

namespace bench {

/// Everything of Kolo's that the options ask for, and what it needs: bare algorithms here, the
/// whole path in WholePath. Collective, from start to end.
class KoloCases {
 public:
  explicit KoloCases(const Options& options);
  KoloCases(const KoloCases&) = delete;  // cases point into it
  KoloCases& operator=(const KoloCases&) = delete;

  /// Those that can do `workload`; they are good until the next call. Throws InvalidArgument where
  /// one that was asked for by name cannot run among these ranks, or none can.
  std::vector<Case> make(const Workload& workload);

 private:
  void add_bare(const Workload& workload, bool in_place, std::vector<Case>& cases);
  Case make_bare(const kolo::Algorithm& algorithm, const Workload& workload, bool in_place);
  bool fits(const kolo::Algorithm& algorithm) const;
  bool is_wanted(const kolo::Algorithm& algorithm, const Workload& workload) const;
  std::string_view chosen(const Workload& workload, bool has_peer_buffers) const;
  Layout largest_layout(const Workload& workload) const;
  void make_staging();

  const Options& options_;
  kolo::Config config_ = kolo::Config::from_environment();
  std::shared_ptr<kolo::comm::World> world_;
  kolo::Runtime runtime_;
  kolo::ops::Registry registry_;
  std::unique_ptr<kolo::Communicator> communicator_;
  std::shared_ptr<kolo::SharedWindow> staging_;  // null where ranks share no memory
  std::string why_no_window_;
  bool has_peer_buffers_ = false;  // memory for the workload that all ranks reach
  GrowingBuffer memory_;
  WholePath whole_path_;
};

}  // namespace bench
