#include "kolo/error.hpp"

#include "base/text.hpp"

namespace kolo {

std::exception_ptr to_exception(const Failure& failure) {
  switch (failure.kind) {
    case ErrorKind::InvalidArgument: return std::make_exception_ptr(InvalidArgument(failure.text));
    case ErrorKind::Mismatch: return std::make_exception_ptr(MismatchError(failure.text));
    case ErrorKind::Timeout: return std::make_exception_ptr(TimeoutError(failure.text));
    case ErrorKind::PeerLost: return std::make_exception_ptr(PeerLostError(failure.text));
    case ErrorKind::Shutdown: return std::make_exception_ptr(ShutdownError(failure.text));
    case ErrorKind::Backend: return std::make_exception_ptr(BackendError(failure.text));
  }
  return std::make_exception_ptr(Error(failure.text));
}

Failure failure_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const InvalidArgument& caught) {
    return {ErrorKind::InvalidArgument, caught.what()};
  } catch (const MismatchError& caught) {
    return {ErrorKind::Mismatch, caught.what()};
  } catch (const TimeoutError& caught) {
    return {ErrorKind::Timeout, caught.what()};
  } catch (const PeerLostError& caught) {
    return {ErrorKind::PeerLost, caught.what()};
  } catch (const ShutdownError& caught) {
    return {ErrorKind::Shutdown, caught.what()};
  } catch (...) {
    return {ErrorKind::Backend, text_of_current_exception()};
  }
}

std::string_view name_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::InvalidArgument: return "InvalidArgument";
    case ErrorKind::Mismatch: return "MismatchError";
    case ErrorKind::Timeout: return "TimeoutError";
    case ErrorKind::PeerLost: return "PeerLostError";
    case ErrorKind::Shutdown: return "ShutdownError";
    case ErrorKind::Backend: return "BackendError";
  }
  return "Error";
}

}  // namespace kolo
