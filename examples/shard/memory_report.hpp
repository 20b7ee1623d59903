#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "kolo/shard.hpp"

namespace shard {

/// The ranks' measured memory, compared with what the mode allows.
class MemoryReport {
 public:
  /// `ranks` has for each rank, in bytes: parameters, gradients, state, gathered, buckets, other,
  /// largest_bucket, windows_before, peak_of_construction, peak_of_first_step, peak_of_step,
  /// live_growth, pss_growth, pss_growth_with_files, bytes_sent; and elements, the number of
  /// parameters.
  MemoryReport(kolo::Shard shard, std::vector<nlohmann::ordered_json> ranks, int ranks_per_copy);

  void print() const;
  nlohmann::ordered_json to_json() const;
  /// The quantities that exceed their bounds.
  std::vector<std::string> defects() const;

 private:
  double most(const char* key) const;  ///< on any rank
  double sum(const char* key) const;   ///< over ranks
  /// Like most(), in bytes per parameter.
  double share(const char* key) const { return most(key) / elements_; }
  /// Live bytes per parameter, without what is listed separately.
  double total() const;
  double formula() const;
  double slots() const;  ///< buckets that are listed separately
  double with_buffers() const { return total() + slots() + share("gathered"); }
  double pss_ratio() const { return sum("pss_growth") / sum("live_growth"); }
  double sent_ratio() const { return most("bytes_sent") / min_bytes_sent_; }

  kolo::Shard shard_;
  std::vector<nlohmann::ordered_json> ranks_;
  double elements_;
  double min_bytes_sent_;
};

}  // namespace shard
