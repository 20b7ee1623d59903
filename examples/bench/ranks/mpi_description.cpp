#include "bench/ranks/mpi_description.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include <mpi.h>

namespace bench {
namespace {

constexpr std::size_t kLongestName = 256;

std::string library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string version(text.data());
  return version.substr(0, version.find_first_of(",\n"));
}

std::string name_of(MPI_T_enum values, int value) {
  std::array<char, kLongestName> name{};
  int length = kLongestName;
  int count = 0;
  if (MPI_T_enum_get_info(values, &count, name.data(), &length) != MPI_SUCCESS) return "unknown";
  for (int item = 0; item < count; ++item) {
    int item_value = 0;
    length = kLongestName;
    MPI_T_enum_get_item(values, item, &item_value, name.data(), &length);
    if (item_value == value) return name.data();
  }
  return "unknown";
}

/// The value of one of MPI's control variables, an enumeration; "unknown" if this MPI has none of
/// that name.
std::string value_of(const char* variable) {
  int index = 0;
  if (MPI_T_cvar_get_index(variable, &index) != MPI_SUCCESS) return "unknown";
  int text_length = 0;
  int verbosity = 0;
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_T_enum values = MPI_T_ENUM_NULL;
  int binding = 0;
  int scope = 0;
  MPI_T_cvar_get_info(index, nullptr, &text_length, &verbosity, &type, &values, nullptr,
                      &text_length, &binding, &scope);
  MPI_T_cvar_handle handle = MPI_T_CVAR_HANDLE_NULL;
  int count = 0;
  if (values == MPI_T_ENUM_NULL || type != MPI_INT ||
      MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) != MPI_SUCCESS) {
    return "unknown";
  }
  std::vector<int> value(static_cast<std::size_t>(std::max(count, 1)));
  const bool is_read = MPI_T_cvar_read(handle, value.data()) == MPI_SUCCESS;
  MPI_T_cvar_handle_free(&handle);
  return is_read ? name_of(values, value.front()) : "unknown";
}

}  // namespace

MpiDescription describe_mpi() {
  MpiDescription description{library_version(), "unknown"};
  int provided = 0;
  if (MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS) return description;
  // Open MPI's transport inside a node: "vader" up to version 4, "sm" since. The variable holds
  // what was detected at startup, not what was requested.
  for (const char* const transport : {"vader", "sm"}) {
    const std::string variable = "btl_" + std::string(transport) + "_single_copy_mechanism";
    if (description.single_copy == "unknown") description.single_copy = value_of(variable.c_str());
  }
  MPI_T_finalize();
  return description;
}

}  // namespace bench
