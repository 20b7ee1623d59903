#include "comm/mpi_check.hpp"

#include <array>
#include <string>

#include "kolo/error.hpp"

namespace kolo::comm {

void throw_mpi_error(int code, const char* call) {
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  throw BackendError(std::string(call) + " failed with code " + std::to_string(code) + ": " +
                     std::string(text.data(), static_cast<std::size_t>(length)));
}

}  // namespace kolo::comm
