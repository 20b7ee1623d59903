#pragma once

#include <array>
#include <string>
#include <type_traits>

/// The MPI library of this process. Kolo is built without one, and looks for it when ranks start
/// over MPI, so that one program runs with any, and where there is none.
///
/// MPI's functions are the same everywhere. Its types and constants are those of one of two ABIs:
/// Open MPI's, or that of MPICH, which Intel MPI, MVAPICH and Cray MPICH share. Both have stayed as
/// they are for ten years; mpi_library_test compares them with mpi.h.
namespace kolo::comm {

/// An object of MPI's: a pointer in Open MPI, a number in MPICH. The other one stays zero.
struct MpiHandle {
  void* pointer = nullptr;
  int number = 0;

  bool operator==(const MpiHandle&) const = default;
};

/// MPI_Status, which is 24 bytes long in Open MPI and 20 in MPICH.
struct MpiStatus {
  alignas(8) std::array<int, 8> words{};
};

using MpiCallback = void (*)();

constexpr int kAnyTag = -1;
enum ThreadLevel { kThreadSingle, kThreadFunneled, kThreadSerialized, kThreadMultiple };

/// The address of a function or a variable of the process, null if there is none. Tools that are
/// loaded before MPI and intercept its functions come first.
void* find_symbol(const char* name);
/// Throws InvalidArgument if there is none.
void* function_of_mpi(const char* name);
bool is_open_mpi();
/// Throws BackendError with the function, the code and MPI's own text for it.
[[noreturn]] void throw_mpi_error(int code, const char* function);

template <class Native>
Native to_native(MpiHandle handle) {
  if constexpr (std::is_pointer_v<Native>) {
    return handle.pointer;
  } else {
    return handle.number;
  }
}
template <class Native>
Native* to_native(MpiHandle* handle) {
  if constexpr (std::is_pointer_v<Native>) {
    return &handle->pointer;
  } else {
    return &handle->number;
  }
}
template <class Native, class T>
T to_native(T other) {
  return other;
}

template <class Signature>
class MpiFunction;

/// A function of MPI's that returns an error code.
template <class... Parameters>
class MpiFunction<int(Parameters...)> {
 public:
  explicit MpiFunction(const char* name)
      : name_(name), address_(function_of_mpi(name)), has_pointers_(is_open_mpi()) {}

  /// Throws BackendError if the function fails.
  void operator()(Parameters... arguments) const {
    const int error = code(arguments...);
    if (error != 0) throw_mpi_error(error, name_);
  }
  int code(Parameters... arguments) const {
    return has_pointers_ ? call<void*>(arguments...) : call<int>(arguments...);
  }

 private:
  template <class Native>
  int call(Parameters... arguments) const {
    using Address = int (*)(decltype(to_native<Native>(arguments))...);
    return reinterpret_cast<Address>(address_)(to_native<Native>(arguments)...);
  }

  const char* name_;
  void* address_;
  bool has_pointers_;
};

class MpiLibrary {
 public:
  MpiHandle comm_world = handle("ompi_mpi_comm_world", 0x44000000);
  MpiHandle comm_self = handle("ompi_mpi_comm_self", 0x44000001);
  MpiHandle comm_null = handle("ompi_mpi_comm_null", 0x04000000);
  MpiHandle request_null = handle("ompi_request_null", 0x2c000000);
  MpiHandle info_null = handle("ompi_mpi_info_null", 0x1c000000);
  MpiHandle byte = handle("ompi_mpi_byte", 0x4c00010d);
  MpiHandle integer = handle("ompi_mpi_int", 0x4c000405);
  MpiHandle max = handle("ompi_mpi_op_max", 0x58000001);
  MpiHandle min = handle("ompi_mpi_op_min", 0x58000002);
  MpiHandle errors_return = handle("ompi_mpi_errors_return", 0x54000001);
  int any_source = number(-1, -2);
  int tag_upper_bound = number(0, 0x64400001);
  int comm_type_shared = number(0, 1);
  int error_truncate = number(15, 14);

  MpiFunction<int(int*, char***, int, int*)> init_thread{"MPI_Init_thread"};
  MpiFunction<int(int*)> initialized{"MPI_Initialized"};
  MpiFunction<int(int*)> finalized{"MPI_Finalized"};
  MpiFunction<int()> finalize{"MPI_Finalize"};
  MpiFunction<int(int*)> query_thread{"MPI_Query_thread"};
  MpiFunction<int(char*, int*)> get_library_version{"MPI_Get_library_version"};
  MpiFunction<int(int, char*, int*)> error_string{"MPI_Error_string"};
  MpiFunction<int(int, int*)> error_class{"MPI_Error_class"};
  MpiFunction<int(MpiHandle, int*)> comm_rank{"MPI_Comm_rank"};
  MpiFunction<int(MpiHandle, int*)> comm_size{"MPI_Comm_size"};
  MpiFunction<int(MpiHandle, int*)> comm_test_inter{"MPI_Comm_test_inter"};
  MpiFunction<int(MpiHandle, int, int, MpiHandle*)> comm_split{"MPI_Comm_split"};
  MpiFunction<int(MpiHandle, int, int, MpiHandle, MpiHandle*)> comm_split_type{
      "MPI_Comm_split_type"};
  MpiFunction<int(MpiHandle, MpiHandle)> comm_set_errhandler{"MPI_Comm_set_errhandler"};
  MpiFunction<int(MpiHandle*)> comm_free{"MPI_Comm_free"};
  MpiFunction<int(MpiCallback, MpiCallback, int*, void*)> comm_create_keyval{
      "MPI_Comm_create_keyval"};
  MpiFunction<int(MpiHandle, int, void*, int*)> comm_get_attr{"MPI_Comm_get_attr"};
  MpiFunction<int(MpiHandle, int, void*)> comm_set_attr{"MPI_Comm_set_attr"};
  MpiFunction<int(const void*, int, MpiHandle, void*, int, MpiHandle, MpiHandle)> allgather{
      "MPI_Allgather"};
  MpiFunction<int(const void*, void*, int, MpiHandle, MpiHandle, MpiHandle)> allreduce{
      "MPI_Allreduce"};
  MpiFunction<int(const void*, void*, int, MpiHandle, MpiHandle, MpiHandle, MpiHandle*)> iallreduce{
      "MPI_Iallreduce"};
  MpiFunction<int(MpiHandle, MpiHandle*)> ibarrier{"MPI_Ibarrier"};
  MpiFunction<int(void*, int, MpiHandle, int, MpiHandle)> bcast{"MPI_Bcast"};
  MpiFunction<int(const void*, int, MpiHandle, int, int, MpiHandle, MpiHandle*)> isend{"MPI_Isend"};
  MpiFunction<int(void*, int, MpiHandle, int, int, MpiHandle, MpiHandle*)> irecv{"MPI_Irecv"};
  MpiFunction<int(void*, int, MpiHandle, int, int, MpiHandle, MpiStatus*)> recv{"MPI_Recv"};
  MpiFunction<int(int, int, MpiHandle, int*, MpiStatus*)> iprobe{"MPI_Iprobe"};
  MpiFunction<int(MpiHandle*, int*, MpiStatus*)> test{"MPI_Test"};
  MpiFunction<int(MpiHandle*, MpiStatus*)> wait{"MPI_Wait"};
  MpiFunction<int(MpiHandle*)> cancel{"MPI_Cancel"};
  MpiFunction<int(const MpiStatus*, MpiHandle, int*)> get_count{"MPI_Get_count"};

  /// The communicator with this Fortran handle.
  MpiHandle comm_f2c(int fortran) const;
  static int source(const MpiStatus& status) { return status.words[is_open_mpi() ? 0 : 2]; }
  static int tag(const MpiStatus& status) { return status.words[is_open_mpi() ? 1 : 3]; }
  /// For functions that take a callback whose first parameter is a handle: the instance of a
  /// template for this ABI.
  template <class OfPointers, class OfNumbers>
  static MpiCallback callback(OfPointers* of_pointers, OfNumbers* of_numbers) {
    return is_open_mpi() ? reinterpret_cast<MpiCallback>(of_pointers)
                         : reinterpret_cast<MpiCallback>(of_numbers);
  }

 private:
  static MpiHandle handle(const char* in_open_mpi, int in_mpich);
  static int number(int in_open_mpi, int in_mpich) {
    return is_open_mpi() ? in_open_mpi : in_mpich;
  }
};

/// The library that the process has: that of the program, or what `load_mpi` has loaded. Null if
/// there is none, or one with another ABI. Any thread.
const MpiLibrary* loaded_mpi();

/// Throws InvalidArgument if the process has an MPI with another ABI.
void require_known_abi();

/// Returns it, or loads one: the file `path`, or if that is "auto" the MPI of the mpirun that has
/// started this process, or the first one that the dynamic loader finds. Throws InvalidArgument,
/// with all that was tried, if there is none.
const MpiLibrary& load_mpi(const std::string& path);

/// The library that one of the two has returned.
const MpiLibrary& mpi();

/// Its name and version, on one line; "none is loaded".
std::string mpi_version();

}  // namespace kolo::comm
