#include "programs/program.hpp"

#include <algorithm>
#include <numeric>
#include <sstream>

namespace kolo::programs {
namespace {

template <class Numbers>
std::string list(const Numbers& numbers, const char* begin = "[", const char* end = "]") {
  std::ostringstream text;
  text << begin;
  for (std::size_t i = 0; i < numbers.size(); ++i) text << (i > 0 ? ", " : "") << numbers[i];
  text << end;
  return text.str();
}

std::string ranks_of(const std::vector<int>& ranks) { return list(ranks, "{", "}"); }

void describe_reduction(std::ostream& text, const Operation& operation) {
  text << ", "
       << (operation.custom.empty() ? std::string(name_of(operation.op)) : operation.custom);
  if (operation.prescale != 1.0) text << ", prescale " << operation.prescale;
  if (operation.postscale != 1.0) text << ", postscale " << operation.postscale;
  if (operation.compression != "none") text << ", " << operation.compression;
  if (operation.join_divisor == JoinDivisor::Active) text << ", active divisor";
}

void describe_call(std::ostream& text, const Operation& operation) {
  text << name_of(operation.collective);
  text << (operation.name.empty() ? " (unnamed)" : " '" + operation.name + "'");
  for (std::size_t i = 0; i < operation.tensors.size(); ++i) {
    const Tensor& tensor = operation.tensors[i];
    text << (i > 0 ? " + " : " ") << name_of(tensor.dtype) << list(tensor.shape);
    if (i < operation.rows.size()) text << " rows " << list(operation.rows[i]);
  }
  for (const auto& split : operation.split) text << " split " << list(split);
  if (operation.equal_splits) text << " (none given)";
  switch (operation.collective) {
    case Collective::AllReduce:
    case Collective::ReduceScatter: describe_reduction(text, operation); break;
    case Collective::Broadcast: text << ", root " << operation.root; break;
    default: break;
  }
  if (operation.in_place) text << ", in place";
  if (operation.buffer >= 0) {
    text << ", in buffer " << operation.buffer << " + " << operation.offset_bytes;
  }
  if (operation.timeout) text << ", timeout " << operation.timeout->count() << " ms";
  if (operation.mistake != Mistake::None) {
    text << ", mistake " << static_cast<int>(operation.mistake);
  }
}

std::string describe(const BlockingCall& call) {
  std::ostringstream text;
  switch (call.kind) {
    case BlockingCall::Kind::AddSet: text << "add set " << ranks_of(call.ranks); break;
    case BlockingCall::Kind::RemoveSet: text << "remove set " << call.set; break;
    case BlockingCall::Kind::MakeBuffer:
      text << "make buffer " << call.buffer << " of " << call.size_bytes << " bytes on set "
           << call.set;
      break;
    case BlockingCall::Kind::DropBuffer: text << "drop buffer " << call.buffer; break;
    case BlockingCall::Kind::Join:
      text << "ranks " << ranks_of(call.ranks) << " join set " << call.set
           << (call.on_thread ? " on a thread" : "")
           << (call.is_settled ? "" : " with work pending");
      break;
    case BlockingCall::Kind::EndJoins: text << "wait for the joins on threads"; break;
    case BlockingCall::Kind::Shutdown: text << "shut down"; break;
  }
  if (call.outlier >= 0) {
    text << "; rank " << call.outlier << " says " << ranks_of(call.outlier_ranks) << " / "
         << call.outlier_bytes << " bytes";
  }
  if (call.error) text << "; ends with " << name_of(*call.error);
  return text.str();
}

}  // namespace

std::size_t Tensor::count() const {
  return std::accumulate(
      shape.begin(), shape.end(), std::size_t{1},
      [](std::size_t count, std::int64_t n) { return count * static_cast<std::size_t>(n); });
}

bool is_reduction(const Operation& operation) {
  return operation.collective == Collective::AllReduce ||
         operation.collective == Collective::ReduceScatter;
}

bool takes_rows(const Operation& operation) {
  return operation.collective == Collective::AllGather ||
         operation.collective == Collective::AllToAll;
}

bool is_among(int rank, const std::vector<int>& ranks) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

std::size_t member_of(int rank, const std::vector<int>& ranks) {
  return static_cast<std::size_t>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

std::string describe(const Program& program, const Operation& operation) {
  std::ostringstream text;
  text << "op " << operation.id << ": ";
  describe_call(text, operation);
  text << " on set " << operation.set << " " << ranks_of(program.members(operation));
  if (operation.submitters != program.members(operation)) {
    text << ", submitted by " << ranks_of(operation.submitters);
  }
  if (!operation.joined.empty()) text << ", joined " << ranks_of(operation.joined);
  if (operation.error) text << "; ends with " << name_of(*operation.error);
  if (operation.is_refused) text << " at the call";
  if (operation.outlier >= 0) {
    text << "; rank " << operation.outlier << " submits ";
    describe_call(text, *operation.variant);
  }
  return text.str();
}

std::string describe(const Program& program) {
  std::ostringstream text;
  text << "program " << program.seed << " on " << program.size << " ranks, "
       << program.network.nodes << " nodes, delay " << program.network.longest_delay.count()
       << " us" << (program.network.rendezvous ? ", rendezvous" : "")
       << (program.network.has_shared_memory ? "" : ", no shared memory") << "\n";
  const std::vector<ConfigEntry> defaults = kolo::describe(Config{});
  const std::vector<ConfigEntry> settings = kolo::describe(program.config);
  for (std::size_t i = 0; i < settings.size(); ++i) {
    if (settings[i].value == defaults[i].value) continue;
    text << "  " << settings[i].variable << "=" << settings[i].value << "\n";
  }
  const Config::Tuning& tuning = program.config.tuning;
  text << "  patience " << tuning.patience.count() << " ns, spin " << tuning.spin.count()
       << " ns, segments of " << tuning.segment_bytes << " bytes, staging memory of "
       << tuning.staging_bytes << " bytes, table of " << tuning.table_capacity
       << " requests, tree of width " << tuning.tree_width << "\n";
  for (std::size_t set = 1; set < program.sets.size(); ++set) {
    text << "  set " << set << " " << ranks_of(program.sets[set])
         << (static_cast<int>(set) <= program.static_sets ? "\n" : ", added on the way\n");
  }
  for (std::size_t i = 0; i < program.rounds.size(); ++i) {
    text << "round " << i << "\n";
    for (const int id : program.rounds[i].operations) {
      text << "  " << describe(program, program.operations[static_cast<std::size_t>(id)]) << "\n";
    }
    if (const auto& call = program.rounds[i].blocking_call) text << "  " << describe(*call) << "\n";
  }
  return text.str();
}

}  // namespace kolo::programs
