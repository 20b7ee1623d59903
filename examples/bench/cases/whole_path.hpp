#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/cases/case.hpp"
#include "bench/options.hpp"
#include "bench/workload/growing_buffer.hpp"
#include "kolo/runtime.hpp"
#include "kolo/shared_buffer.hpp"

namespace bench {

/// Cases that call Kolo's public functions: named, asynchronous operations that all ranks
/// negotiate.
class WholePath {
 public:
  WholePath(const Options& options, kolo::Runtime& runtime);

  /// Adds the cases that the options select; valid until the next call. Collective.
  void add(const Workload& workload, bool in_place, GrowingBuffer& memory,
           std::vector<Case>& cases);

  /// At least `bytes` of memory, accessible to all ranks if they can share any. Collective. Frees
  /// the previous buffer unless it is large enough.
  const kolo::SharedBuffer& reserve_shared(std::size_t bytes);

 private:
  void add_staged(const Workload& workload, bool in_place, GrowingBuffer& memory,
                  const std::string& compression, std::vector<Case>& cases);
  void add_in_window(const Workload& workload, bool in_place, const std::string& compression,
                     std::vector<Case>& cases);
  void add_buckets(const Workload& workload, GrowingBuffer& memory, const std::string& compression,
                   std::vector<Case>& cases);
  bool is_wanted(const std::string& algorithm, const char* placement) const;

  const Options& options_;
  kolo::Runtime& runtime_;
  std::optional<kolo::SharedBuffer> shared_;
};

}  // namespace bench
