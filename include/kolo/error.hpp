#pragma once

#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

#pragma GCC visibility push(default)
namespace kolo {

/// Kinds of errors, shared by exceptions and control messages.
enum class ErrorKind : unsigned char {
  InvalidArgument,
  Mismatch,
  Timeout,
  PeerLost,
  Shutdown,
  Backend,
};

/// Base of all exceptions that Kolo throws. The text names the operation, the tensor, the ranks,
/// what was expected, what was found, and what to do.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Invalid arguments. Thrown by the call if nothing could be submitted, otherwise from the handle,
/// on every rank of the process set, which stays usable.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// Ranks disagree about an operation. Raised on every rank of the process set, which stays usable.
class MismatchError : public Error {
 public:
  using Error::Error;
};

/// An operation's deadline passed on some rank. Raised on every rank of the process set, which
/// stays usable.
class TimeoutError : public Error {
 public:
  using Error::Error;
};

/// A rank died or stopped responding. Final: its process sets accept no further operations, and
/// other added sets accept none on GPUs.
class PeerLostError : public Error {
 public:
  using Error::Error;
};

/// The runtime was shut down, here or on another rank, before the operation could run. Final.
class ShutdownError : public Error {
 public:
  using Error::Error;
};

/// A call into MPI, CUDA, NCCL or the operating system failed.
class BackendError : public Error {
 public:
  using Error::Error;
};

/// An error as data, for control messages and queues.
struct Failure {
  ErrorKind kind = ErrorKind::Backend;
  std::string text;

  bool operator==(const Failure&) const = default;
};

/// @return the exception of this kind and text
std::exception_ptr to_exception(const Failure& failure);

/// @return the kind and text of an exception; ErrorKind::Backend if it is not one of Kolo's
Failure failure_of(const std::exception_ptr& error);

/// @return the name of the exception, as in "MismatchError"
std::string_view name_of(ErrorKind kind);

}  // namespace kolo
#pragma GCC visibility pop
