#include "runtime/engine/final_message.hpp"

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.hpp"
#include "base/text.hpp"

namespace kolo::runtime {
namespace {

struct Registered {
  Mutex lock;
  std::vector<std::shared_ptr<Engine>> engines KOLO_GUARDED_BY(lock);
  std::terminate_handler previous = nullptr;  // set before the handler that reads it
};

Registered& registered() {
  static auto* const instance = new Registered;  // outlives static destructors, which may terminate
  return *instance;
}

/// Whether only the handler of the C++ library would follow. It prints the exception's text again,
/// with LibTorch's stack trace, which PyTorch's variable asks for.
bool may_end_without(std::terminate_handler previous) {
  const char* const wants_traces = std::getenv("TORCH_SHOW_CPP_STACKTRACES");
  if (wants_traces != nullptr && std::string_view(wants_traces) != "0") return false;
#ifdef __GLIBCXX__
  return previous == __gnu_cxx::__verbose_terminate_handler;
#else
  return previous == nullptr;
#endif
}

[[noreturn]] void send_final_message_and_terminate() {
  const bool has_thrown = std::current_exception() != nullptr;
  const std::string why = has_thrown ? text_of_current_exception() : "called std::terminate";
  const std::string how = has_thrown ? "ended with an uncaught exception: " + why : why;
  Registered& all = registered();
  if (all.lock.try_lock()) {
    const Lock lock(all.lock, std::adopt_lock);
    // None in a forked child, whose end concerns its parent only.
    const auto first = std::ranges::find_if(
        all.engines, [](const auto& engine) { return engine->is_in_creator_process(); });
    if (first != all.engines.end()) {
      // Log first: once the peers know and end, mpirun may end this process at any moment.
      const bool is_news = (*first)->report_end(how, why);
      for (const auto& engine : all.engines) engine->publish_end(how);
      std::this_thread::sleep_for(kTimeToPrint);
      if (may_end_without(all.previous)) {
        if (is_news) std::abort();
        std::_Exit(EXIT_FAILURE);  // another rank's failure: no core, and no trace of Open MPI's
      }
    }
  }
  if (all.previous != nullptr) all.previous();
  std::abort();
}

}  // namespace

void register_for_final_message(std::shared_ptr<Engine> engine) {
  Registered& all = registered();
  const Lock lock(all.lock);
  if (all.previous == nullptr) all.previous = std::set_terminate(send_final_message_and_terminate);
  all.engines.push_back(std::move(engine));
}

void unregister_from_final_message(const std::shared_ptr<Engine>& engine) {
  Registered& all = registered();
  const Lock lock(all.lock);
  std::erase(all.engines, engine);
}

}  // namespace kolo::runtime
