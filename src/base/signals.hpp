#pragma once

#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace kolo {

/// Hears signals that ask this process for something, each unless the program handles it:
///
///   SIGUSR2          | to say what it does: `answer` is called
///   SIGTERM, SIGUSR1 | to end: `answer` is called, then the process ends by the signal, as without
///                    | Kolo
///   the same         | after let_preempt(): to save and leave; a further one, more than a second
///                    | later, ends it as above
///
/// Handlers only take notes. A thread that sleeps until then does the rest, so that it does not
/// matter what the other threads do, or hang in. A forked child does not have the thread: there the
/// signals do what they do without Kolo. But SIGUSR2 does nothing, and so do the others after
/// let_preempt(), unless the child or its parent sends them.
class Signals {
 public:
  /// @param why "requested by SIGTERM"
  using Answer = std::function<void(std::string_view why)>;

  /// @param answer called in that thread until the destructor has returned; must not throw
  Signals(std::initializer_list<int> signals, Answer answer);
  /// The last one restores what signals do by default. Only in the process that made it.
  ~Signals();
  Signals(const Signals&) = delete;  // the thread refers to it
  Signals& operator=(const Signals&) = delete;

  static void let_preempt();
  static void request_preemption();
  /// Whether such a signal has come, or request_preemption() was called.
  static bool is_preempted();

  /// The functions in which the process's main thread is, the innermost first. Interrupts it by
  /// SIGUSR2. Empty on that thread itself, where a program handles SIGUSR2, and if the thread does
  /// not answer.
  static std::vector<std::string> main_thread_stack();

 private:
  const Answer answer_;
};

}  // namespace kolo
