#include "comm/mpi_library.hpp"

#include <array>
#include <atomic>
#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <unistd.h>
#include <vector>

#include "base/intentional_leak.hpp"
#include "base/mutex.hpp"
#include "kolo/error.hpp"

namespace kolo::comm {
namespace {

constexpr const char* kOpenMpi = "libmpi.so.40";
constexpr const char* kMpich = "libmpi.so.12";
constexpr const char* kMpichOfDebian = "libmpich.so.12";

// Its functions must be seen by all: by MPI's own plug-ins, and by tools that intercept them.
constexpr int kMode = RTLD_NOW | RTLD_GLOBAL;

std::atomic<const MpiLibrary*> the_library{nullptr};

bool has_mpi() { return find_symbol("MPI_Init_thread") != nullptr; }

/// In the order in which they are tried.
std::array<const char*, 3> known_names() {
  const bool is_hydra = std::getenv("PMI_SIZE") != nullptr && std::getenv("PMIX_RANK") == nullptr;
  if (is_hydra) return {kMpich, kMpichOfDebian, kOpenMpi};
  return {kOpenMpi, kMpich, kMpichOfDebian};
}

/// The folders of libraries beside the program that has started this process. The MPI of this
/// mpirun is the one to take, and the loader finds it only if it is among the system's.
std::vector<std::filesystem::path> folders_of_launcher() {
  std::error_code none;
  const std::filesystem::path launcher =
      std::filesystem::read_symlink("/proc/" + std::to_string(::getppid()) + "/exe", none);
  const std::filesystem::path prefix = launcher.parent_path().parent_path();
  if (prefix.empty()) return {};
  return {prefix / "lib", prefix / "lib64"};
}

bool opens(const std::string& file, std::string& tried) {
  if (::dlopen(file.c_str(), kMode) != nullptr) return true;
  tried += std::string("\n  ") + ::dlerror();
  return false;
}

bool opens_any(std::string& tried) {
  for (const std::filesystem::path& folder : folders_of_launcher()) {
    for (const char* name : known_names()) {
      std::error_code none;
      if (std::filesystem::exists(folder / name, none) && opens(folder / name, tried)) return true;
    }
  }
  for (const char* name : known_names()) {
    if (opens(name, tried)) return true;
  }
  return false;
}

void check_abi() {
  // MPICH 5 has a library with the ABI of the MPI standard beside the one with its own.
  Dl_info file{};
  if (::dladdr(find_symbol("MPI_Init_thread"), &file) == 0 || file.dli_fname == nullptr) return;
  if (std::string_view(file.dli_fname).find("libmpi_abi") == std::string_view::npos) return;
  throw InvalidArgument(std::string("this process has loaded ") + file.dli_fname +
                        ". Kolo knows the ABIs of Open MPI and of MPICH, not that of this library. "
                        "Link the program with libmpi.so, or do not link it with MPI.");
}

}  // namespace

void* find_symbol(const char* name) { return ::dlsym(RTLD_DEFAULT, name); }

void* function_of_mpi(const char* name) {
  if (void* const function = find_symbol(name); function != nullptr) return function;
  throw InvalidArgument(std::string("the MPI library of this process has no ") + name +
                        ". Kolo needs MPI 3.0 or newer.");
}

bool is_open_mpi() {
  static const bool is = find_symbol("ompi_mpi_comm_world") != nullptr;
  return is;
}

void throw_mpi_error(int code, const char* function) {
  std::array<char, 1024> text{};
  int length = 0;
  mpi().error_string.code(code, text.data(), &length);
  throw BackendError(std::string(function) + " failed with code " + std::to_string(code) + ": " +
                     std::string(text.data(), static_cast<std::size_t>(length)));
}

MpiHandle MpiLibrary::handle(const char* in_open_mpi, int in_mpich) {
  if (is_open_mpi()) return {.pointer = find_symbol(in_open_mpi)};
  return {.number = in_mpich};
}

MpiHandle MpiLibrary::comm_f2c(int fortran) const {
  if (!is_open_mpi()) return {.number = fortran};
  const auto convert = reinterpret_cast<void* (*)(int)>(find_symbol("MPI_Comm_f2c"));
  return {.pointer = convert(fortran)};
}

const MpiLibrary* loaded_mpi() {
  if (the_library != nullptr) return the_library;
  static Mutex lock;
  const Lock guard(lock);
  if (the_library != nullptr) return the_library;
  // A plug-in may have loaded it for itself alone.
  for (const char* name : known_names()) {
    if (has_mpi()) break;
    ::dlopen(name, kMode | RTLD_NOLOAD);
  }
  if (!has_mpi()) return nullptr;
  check_abi();
  the_library = new MpiLibrary;  // as long as the process, whose end may still call MPI
  return the_library;
}

const MpiLibrary& load_mpi(const std::string& path) {
  if (const MpiLibrary* const loaded = loaded_mpi(); loaded != nullptr) return *loaded;
  std::string tried;
  if (path == "auto" ? !opens_any(tried) : !opens(path, tried)) {
    throw InvalidArgument(
        "the ranks are to start over MPI, but no MPI library could be loaded:" + tried +
        "\nInstall Open MPI, MPICH or one of its relatives, or set KOLO_MPI_LIBRARY to the file "
        "of its library. Ranks can also start without MPI: see KOLO_RENDEZVOUS.");
  }
  const MpiLibrary* const loaded = loaded_mpi();
  if (loaded == nullptr) {
    throw InvalidArgument("KOLO_MPI_LIBRARY is " + path +
                          ", which is not an MPI library: it has no "
                          "MPI_Init_thread.");
  }
  return *loaded;
}

const MpiLibrary& mpi() { return *the_library; }

std::string mpi_version() {
  const MpiLibrary* const mpi = loaded_mpi();
  if (mpi == nullptr) return "none is loaded";
  std::array<char, 8192> text{};
  int length = 0;
  mpi->get_library_version(text.data(), &length);
  const std::string_view all(text.data());  // some libraries count the final zero in `length`
  return std::string(all.substr(0, all.find('\n')));
}

}  // namespace kolo::comm
