#include "comm/ucx_messages.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <dlfcn.h>
#include <optional>
#include <thread>
#include <utility>

#include <ucp/api/ucp.h>

#include "base/creator_process.hpp"
#include "base/deadline.hpp"
#include "base/mutex.hpp"
#include "comm/message_bounds.hpp"
#include "kolo/error.hpp"

namespace kolo::comm {
namespace {

constexpr auto kPause = std::chrono::microseconds(50);
constexpr auto kLongestArrival = std::chrono::milliseconds(100);  // as MpiCommunicator's
constexpr auto kLongestEnd = std::chrono::seconds(10);

// A message's tag for UCX: channel, source, tag, from the highest bits on.
constexpr int kSourceShift = 8;
constexpr int kChannelShift = 32;
constexpr std::uint64_t kAll = ~std::uint64_t{0};
constexpr std::uint64_t kAnySource =
    ~(((std::uint64_t{1} << (kChannelShift - kSourceShift)) - 1) << kSourceShift);
constexpr std::uint32_t kChannelOfEnd = ~std::uint32_t{0};
static_assert(Communicator::kTagCount == 1 << kSourceShift);

constexpr std::uint64_t ucx_tag(std::uint32_t channel, int source, int tag) {
  return std::uint64_t{channel} << kChannelShift |
         static_cast<std::uint64_t>(source) << kSourceShift | static_cast<std::uint64_t>(tag);
}

void* symbol(const char* name) {
  struct Library {
    void* handle = ::dlopen("libucp.so.0", RTLD_NOW | RTLD_LOCAL);
    std::string error = handle == nullptr ? ::dlerror() : "";
  };
  static const Library library;
  if (library.handle == nullptr) {
    throw BackendError(
        "ranks on several hosts that MPI does not connect need UCX, which cannot be loaded: " +
        library.error + ". Install it (Debian: libucx0), or start the program by mpirun");
  }
  if (void* const found = ::dlsym(library.handle, name); found != nullptr) return found;
  throw BackendError(std::string("libucp.so.0 has no ") + name + ": Kolo needs UCX 1.11 or newer");
}

template <class Signature>
class Symbol;

template <class Result, class... Parameters>
class Symbol<Result(Parameters...)> {
 public:
  explicit Symbol(const char* name)
      : address_(reinterpret_cast<Result (*)(Parameters...)>(symbol(name))) {}
  Result operator()(Parameters... arguments) const { return address_(arguments...); }

 private:
  Result (*address_)(Parameters...);
};

/// The functions of UCX that are used here.
struct Ucx {
  Symbol<decltype(ucp_cleanup)> cleanup{"ucp_cleanup"};
  Symbol<decltype(ucp_ep_close_nbx)> ep_close_nbx{"ucp_ep_close_nbx"};
  Symbol<decltype(ucp_ep_create)> ep_create{"ucp_ep_create"};
  Symbol<decltype(ucp_init_version)> init_version{"ucp_init_version"};
  Symbol<decltype(ucp_request_cancel)> request_cancel{"ucp_request_cancel"};
  Symbol<decltype(ucp_request_check_status)> request_check_status{"ucp_request_check_status"};
  Symbol<decltype(ucp_request_free)> request_free{"ucp_request_free"};
  Symbol<decltype(ucp_tag_probe_nb)> tag_probe_nb{"ucp_tag_probe_nb"};
  Symbol<decltype(ucp_tag_recv_nbx)> tag_recv_nbx{"ucp_tag_recv_nbx"};
  Symbol<decltype(ucp_tag_recv_request_test)> tag_recv_request_test{"ucp_tag_recv_request_test"};
  Symbol<decltype(ucp_tag_send_nbx)> tag_send_nbx{"ucp_tag_send_nbx"};
  Symbol<decltype(ucp_worker_create)> worker_create{"ucp_worker_create"};
  Symbol<decltype(ucp_worker_destroy)> worker_destroy{"ucp_worker_destroy"};
  Symbol<decltype(ucp_worker_get_address)> worker_get_address{"ucp_worker_get_address"};
  Symbol<decltype(ucp_worker_progress)> worker_progress{"ucp_worker_progress"};
  Symbol<decltype(ucp_worker_release_address)> worker_release_address{"ucp_worker_release_address"};
  Symbol<decltype(ucs_status_string)> status_string{"ucs_status_string"};
};

const Ucx& ucx() {
  static const Ucx functions;
  return functions;
}

void check(ucs_status_t status, const char* call) {
  if (status == UCS_OK) return;
  throw BackendError(std::string(call) + " failed: " + ucx().status_string(status));
}

}  // namespace

// --- a rank's side ---

class UcxMessages::Worker {
 public:
  explicit Worker(int rank) : rank_(rank) {
    // Kolo and the program handle signals.
    ::setenv("UCX_ERROR_SIGNALS", "", /*overwrite=*/0);
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED;
    params.features = UCP_FEATURE_TAG;
    check(ucx().init_version(UCP_API_MAJOR, UCP_API_MINOR, &params, nullptr, &context_),
          "ucp_init");
    ucp_worker_params_t worker_params{};
    worker_params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker_params.thread_mode = UCS_THREAD_MODE_SERIALIZED;  // under `lock_`
    check(ucx().worker_create(context_, &worker_params, &worker_), "ucp_worker_create");
    ucp_address_t* address = nullptr;
    std::size_t bytes = 0;
    check(ucx().worker_get_address(worker_, &address, &bytes), "ucp_worker_get_address");
    address_.assign(reinterpret_cast<const char*>(address), bytes);
    ucx().worker_release_address(worker_, address);
  }
  Worker(const Worker&) = delete;  // UCX knows the addresses of its connections
  Worker& operator=(const Worker&) = delete;
  ~Worker() {
    if (!creator_.is_current()) return;          // all of it belongs to the parent
    if (!waits_for_others_ || !leave()) return;  // UCX may still use memory of what was given up
    for (const std::unique_ptr<Connection>& connection : connections_) {
      if (connection != nullptr) close(*connection);
    }
    ucx().worker_destroy(worker_);
    ucx().cleanup(context_);
  }

  int rank() const { return rank_; }
  const std::string& address() const { return address_; }
  void set_waits_for_others(bool waits) noexcept { waits_for_others_ = waits; }
  void progress() {
    const Lock lock(lock_);
    ucx().worker_progress(worker_);
  }

  void connect(std::span<const std::string> addresses) {
    for (const std::string& address : addresses) {
      connections_.push_back(address.empty() ? nullptr : std::make_unique<Connection>());
      if (address.empty()) continue;
      ucp_ep_params_t params{};
      params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                          UCP_EP_PARAM_FIELD_ERR_HANDLER;
      params.address = reinterpret_cast<const ucp_address_t*>(address.data());
      params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
      params.err_handler.cb = [](void* connection, ucp_ep_h, ucs_status_t) {
        static_cast<Connection*>(connection)->is_broken = true;
      };
      params.err_handler.arg = connections_.back().get();
      check(ucx().ep_create(worker_, &params, &connections_.back()->endpoint), "ucp_ep_create");
    }
  }

  bool is_broken(int rank) const { return connection_to(rank).is_broken; }

  /// Null: it has been sent.
  ucs_status_ptr_t send(std::span<const std::byte> data, int destination, std::uint64_t tag) {
    const Lock lock(lock_);
    ucp_request_param_t param{};
    return ucx().tag_send_nbx(connection_to(destination).endpoint, data.data(), data.size(), tag,
                              &param);
  }
  ucs_status_ptr_t receive(std::span<std::byte> data, std::uint64_t tag) {
    const Lock lock(lock_);
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
    return ucx().tag_recv_nbx(worker_, data.data(), data.size(), tag, kAll, &param);
  }
  std::optional<ucp_tag_recv_info_t> probe(std::uint64_t tag) {
    const Lock lock(lock_);
    ucp_tag_recv_info_t info;
    if (ucx().tag_probe_nb(worker_, tag, kAnySource, /*remove=*/0, &info) == nullptr) return {};
    return info;
  }
  void cancel(ucs_status_ptr_t request) {
    const Lock lock(lock_);
    ucx().request_cancel(worker_, request);
  }
  /// Once it has ended, frees it and sets it to null. `info`, of a receive, may be null.
  ucs_status_t test(ucs_status_ptr_t& request, ucp_tag_recv_info_t* info = nullptr) {
    const Lock lock(lock_);
    const ucs_status_t status = info != nullptr ? ucx().tag_recv_request_test(request, info)
                                                : ucx().request_check_status(request);
    if (status != UCS_INPROGRESS) ucx().request_free(std::exchange(request, nullptr));
    return status;
  }

 private:
  struct Connection {
    ucp_ep_h endpoint = nullptr;
    std::atomic<bool> is_broken = false;
  };

  Connection& connection_to(int rank) const {
    return *connections_[static_cast<std::size_t>(rank)];
  }

  /// Whoever closes a connection discards what it has not read, and with it what the other has not:
  /// all send a last message first, and wait for those of the others.
  bool leave() {
    const Deadline deadline = Deadline::after(kLongestEnd);
    struct Last {
      ucs_status_ptr_t request;
      int peer;
    };
    std::vector<Last> waiting;
    for (int peer = 0; peer < static_cast<int>(connections_.size()); ++peer) {
      if (connections_[static_cast<std::size_t>(peer)] == nullptr || is_broken(peer)) continue;
      waiting.push_back({receive({}, ucx_tag(kChannelOfEnd, peer, 0)), peer});
      const ucs_status_ptr_t sent = send({}, peer, ucx_tag(kChannelOfEnd, rank_, 0));
      if (UCS_PTR_IS_PTR(sent)) waiting.push_back({sent, peer});
    }
    while (!waiting.empty() && !deadline.has_passed()) {
      progress();
      const auto has_ended = [&](Last& last) {
        if (test(last.request) != UCS_INPROGRESS) return true;
        if (is_broken(last.peer)) cancel(last.request);
        return false;
      };
      if (std::erase_if(waiting, has_ended) == 0) std::this_thread::sleep_for(kPause);
    }
    return waiting.empty();
  }

  void close(const Connection& connection) {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_EP_CLOSE_FLAG_FORCE;
    ucs_status_ptr_t closing = ucx().ep_close_nbx(connection.endpoint, &param);
    if (!UCS_PTR_IS_PTR(closing)) return;
    const Deadline deadline = Deadline::after(kLongestArrival);
    while (test(closing) == UCS_INPROGRESS && !deadline.has_passed()) progress();
  }

  const CreatorProcess creator_;
  const int rank_;
  Mutex lock_;  // of all calls of UCX: some builds of it take none themselves
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  std::string address_;
  std::vector<std::unique_ptr<Connection>> connections_;  // null: to ranks on this host
  std::atomic<bool> waits_for_others_ = false;
};

// --- communicators ---

class UcxMessages::UcxCommunicator final : public Communicator {
 public:
  UcxCommunicator(UcxMessages& messages, std::span<const int> ranks, int channel,
                  std::vector<int> members)
      : worker_(*messages.worker_),
        rings_(messages.rings_),
        ranks_(ranks.begin(), ranks.end()),
        channel_(static_cast<std::uint32_t>(channel)),
        members_(std::move(members)) {
    std::vector<int> neighbours;
    for (const int member : members_) neighbours.push_back(ranks[static_cast<std::size_t>(member)]);
    local_ = rings_.make_communicator(neighbours, channel);
  }

  int rank() const override { return member_of(worker_.rank()); }
  int size() const override { return static_cast<int>(ranks_.size()); }

  Transfer send(std::span<const std::byte> data, int destination, int tag) override {
    check_message(*this, data.size(), destination, tag);
    bytes_sent_ += data.size();
    if (const auto local = local_of(destination)) return local_->send(data, *local, tag);
    const int peer = ranks_[static_cast<std::size_t>(destination)];
    const bool is_broken = worker_.is_broken(peer);
    const ucs_status_ptr_t request =
        is_broken ? nullptr : worker_.send(data, peer, ucx_tag(channel_, worker_.rank(), tag));
    if (request == nullptr && !is_broken) return {};
    return start(request, /*is_receive=*/false, data.size(), destination);
  }

  Transfer receive(std::span<std::byte> data, int source, int tag) override {
    check_message(*this, data.size(), source, tag);
    if (const auto local = local_of(source)) return local_->receive(data, *local, tag);
    const int peer = ranks_[static_cast<std::size_t>(source)];
    return start(worker_.receive(data, ucx_tag(channel_, peer, tag)), /*is_receive=*/true,
                 data.size(), source);
  }

  std::optional<Envelope> probe(int tag) override {
    check_message(*this, 0, rank(), tag);
    if (auto found = local_->probe(tag)) {
      found->source = members_[static_cast<std::size_t>(found->source)];
      return found;
    }
    const auto found = worker_.probe(ucx_tag(channel_, 0, tag));
    if (!found) return std::nullopt;
    const int source = static_cast<int>((found->sender_tag & ~kAnySource) >> kSourceShift);
    return Envelope{member_of(source), found->length};
  }

  UnderWay give_up_receives() override {
    UnderWay under_way = local_->give_up_receives();
    for (std::vector<int>* ranks : {&under_way.from, &under_way.to}) {
      for (int& rank : *ranks) rank = members_[static_cast<std::size_t>(rank)];
    }
    for (Slot& slot : slots_) {
      if (slot.is_receive) cancel(slot);
    }
    rings_.progress();
    for (Slot& slot : slots_) {
      if (has_ended(slot)) continue;
      std::vector<int>& ranks = slot.is_receive ? under_way.from : under_way.to;
      if (std::ranges::find(ranks, slot.peer) == ranks.end()) ranks.push_back(slot.peer);
    }
    return under_way;
  }

  /// Of the transfers over UCX, unless none was unfinished since one has ended, or of those within
  /// the host.
  int awaited() const override {
    if (awaited_ >= 0 || local_->awaited() < 0) return awaited_;
    return members_[static_cast<std::size_t>(local_->awaited())];
  }

 private:
  /// A request in flight. Free slots are reused, so that nothing is allocated in a steady state.
  struct Slot {
    ucs_status_ptr_t request = nullptr;  // null: it has ended
    bool is_receive = false;
    bool is_cancelled = false;
    bool never_ends = false;  // its connection is broken
    std::size_t bytes = 0;
    int peer = 0;
  };

  Transfer start(ucs_status_ptr_t request, bool is_receive, std::size_t bytes, int peer) {
    bool never_ends = request == nullptr;
    if (UCS_PTR_IS_ERR(request)) {
      if (!worker_.is_broken(ranks_[static_cast<std::size_t>(peer)])) {
        check(UCS_PTR_STATUS(request), is_receive ? "ucp_tag_recv_nbx" : "ucp_tag_send_nbx");
      }
      never_ends = true;
      request = nullptr;
    }
    if (free_.empty()) {
      free_.push_back(slots_.size());
      slots_.emplace_back();
    }
    const std::uint64_t token = free_.back();
    free_.pop_back();
    slots_[token] = {.request = request,
                     .is_receive = is_receive,
                     .never_ends = never_ends,
                     .bytes = bytes,
                     .peer = peer};
    return {*this, token};
  }

  bool test(std::uint64_t token) override {
    Slot& slot = slots_[token];
    try {
      rings_.progress();
    } catch (...) {  // no test follows
      abandon(token);
      throw;
    }
    if (slot.request == nullptr && !slot.never_ends) {  // a send that `give_up_receives` saw end
      free_.push_back(token);
      return true;
    }
    ucp_tag_recv_info_t info{};
    ucs_status_t status = UCS_INPROGRESS;
    if (!slot.never_ends) status = worker_.test(slot.request, slot.is_receive ? &info : nullptr);
    const bool is_truncated = status == UCS_ERR_MESSAGE_TRUNCATED;
    // Any other error is that of a connection, and comes before UCX tells that it is broken.
    if (status != UCS_OK && !is_truncated) {
      slot.never_ends = slot.never_ends || status != UCS_INPROGRESS;
      awaited_ = slot.peer;
      return false;
    }
    awaited_ = -1;
    free_.push_back(token);
    if (!is_truncated && (!slot.is_receive || info.length == slot.bytes)) return true;
    throw BackendError("receive from rank " +
                       std::to_string(ranks_[static_cast<std::size_t>(slot.peer)]) + ": expected " +
                       std::to_string(slot.bytes) + " bytes, got " +
                       (is_truncated ? std::string("more") : std::to_string(info.length)));
  }

  void cancel(Slot& receive) {
    if (receive.request == nullptr || std::exchange(receive.is_cancelled, true)) return;
    worker_.cancel(receive.request);
  }

  /// UCX no longer uses the memory.
  bool has_ended(Slot& slot) {
    return slot.request == nullptr || worker_.test(slot.request) != UCS_INPROGRESS;
  }

  void abandon(std::uint64_t token) noexcept override {
    Slot& slot = slots_[token];
    // A send may go on, and then its slot is never reused.
    if (!slot.is_receive && !has_ended(slot)) return;
    cancel(slot);
    const Deadline deadline = Deadline::after(kLongestArrival);
    while (!has_ended(slot)) {
      if (deadline.has_passed()) return;
      worker_.progress();
    }
    free_.push_back(token);
  }

  std::optional<int> local_of(int member) const {
    const auto found = std::ranges::lower_bound(members_, member);
    if (found == members_.end() || *found != member) return std::nullopt;
    return static_cast<int>(found - members_.begin());
  }
  int member_of(int rank) const {
    return static_cast<int>(std::ranges::lower_bound(ranks_, rank) - ranks_.begin());
  }

  Worker& worker_;
  MessageRings& rings_;
  const std::vector<int> ranks_;  // of the world
  const std::uint32_t channel_;
  std::unique_ptr<Communicator> local_;
  const std::vector<int> members_;  // of this one, for each of `local_`
  std::vector<Slot> slots_;
  std::vector<std::uint64_t> free_;
};

UcxMessages::UcxMessages(int rank, MessageRings& rings)
    : rings_(rings), worker_(std::make_unique<Worker>(rank)) {
  rings_.move_also([this] { worker_->progress(); });
}
UcxMessages::~UcxMessages() { rings_.move_also({}); }

const std::string& UcxMessages::address() const { return worker_->address(); }
void UcxMessages::connect(std::span<const std::string> addresses) { worker_->connect(addresses); }
void UcxMessages::start() noexcept { worker_->set_waits_for_others(true); }
void UcxMessages::give_up() noexcept { worker_->set_waits_for_others(false); }

std::unique_ptr<Communicator> UcxMessages::make_communicator(std::span<const int> ranks,
                                                             int channel,
                                                             std::vector<int> members) {
  return std::make_unique<UcxCommunicator>(*this, ranks, channel, std::move(members));
}

}  // namespace kolo::comm
