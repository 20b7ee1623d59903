#pragma once

#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

namespace kolo {

/// What went wrong, in the one vocabulary that exceptions and control messages share.
enum class ErrorKind : unsigned char {
  InvalidArgument,
  Mismatch,
  Timeout,
  PeerLost,
  Shutdown,
  Backend,
};

/// Base of everything Kolo throws. The text names the operation, the tensor, the ranks, what was
/// expected and what was found, and what to do about it.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A mistake in a call. Thrown at the call where nothing could be submitted; from the handle, on
/// every rank of the process set, where other ranks wait for the operation. All stays usable.
class InvalidArgument : public Error {
 public:
  using Error::Error;
};

/// Ranks disagree about one operation. Raised on every rank of the process set, which stays usable.
class MismatchError : public Error {
 public:
  using Error::Error;
};

/// An operation's deadline passed on some rank. Raised on every rank, which all stay usable.
class TimeoutError : public Error {
 public:
  using Error::Error;
};

/// A rank died or stopped answering. Final: nothing can be submitted to its process sets any more.
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

/// An error as data: what travels in control messages and waits in queues until it is thrown.
struct Failure {
  ErrorKind kind = ErrorKind::Backend;
  std::string text;

  bool operator==(const Failure&) const = default;
};

/// The exception that `failure` stands for, for a handle to rethrow.
std::exception_ptr to_exception(const Failure& failure);

/// The kind's name, as in "MismatchError".
std::string_view name_of(ErrorKind kind);

}  // namespace kolo
