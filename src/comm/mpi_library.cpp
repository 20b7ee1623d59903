#include "comm/mpi_library.hpp"

#include <array>
#include <atomic>
#include <cstdlib>
#include <dlfcn.h>
#include <filesystem>
#include <link.h>
#include <string_view>
#include <system_error>
#include <unistd.h>
#include <vector>

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

/// Tools that intercept MPI's functions define their names, but not these.
bool has_mpi() { return find_symbol("PMPI_Init_thread") != nullptr; }

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

/// Lets all see the MPI that a plug-in, such as mpi4py, has loaded for itself alone.
void show_loaded() {
  std::vector<std::string> files;
  const auto look = [](dl_phdr_info* object, std::size_t, void* found) {
    const std::string_view file(object->dlpi_name);
    const bool is_mpi = file.substr(file.rfind('/') + 1).starts_with("libmpi");
    if (is_mpi) static_cast<std::vector<std::string>*>(found)->emplace_back(file);
    return 0;
  };
  ::dl_iterate_phdr(look, &files);
  for (const std::string& file : files) ::dlopen(file.c_str(), kMode | RTLD_NOLOAD);
}

/// What the library says of itself: its name is in the first line.
std::string version_text() {
  std::array<char, 8192> text{};
  int length = 0;
  const auto get =
      reinterpret_cast<int (*)(char*, int*)>(function_of_mpi("MPI_Get_library_version"));
  get(text.data(), &length);
  return text.data();  // some libraries count the final zero in `length`
}

std::string mpi_name() {
  const std::string text = version_text();
  return text.substr(0, text.find('\n'));
}

enum class Abi { OpenMpi, Mpich, Unknown };

Abi find_abi() {
  // MPICH 5 has a library with the ABI of the MPI standard beside the one with its own.
  Dl_info file{};
  ::dladdr(find_symbol("PMPI_Init_thread"), &file);
  const std::string_view name = file.dli_fname != nullptr ? file.dli_fname : "";
  const std::string text = version_text();
  const auto says = [&](const char* part) { return text.find(part) != std::string::npos; };
  if (says("MPICH") || says("Intel(R) MPI") || says("MVAPICH")) {
    return name.find("libmpi_abi") == std::string_view::npos ? Abi::Mpich : Abi::Unknown;
  }
  return find_symbol("ompi_mpi_comm_world") != nullptr ? Abi::OpenMpi : Abi::Unknown;
}

/// There must be an MPI.
Abi abi() {
  static const Abi found = find_abi();
  return found;
}

}  // namespace

void* find_symbol(const char* name) { return ::dlsym(RTLD_DEFAULT, name); }

void* function_of_mpi(const char* name) {
  if (void* const function = find_symbol(name); function != nullptr) return function;
  throw InvalidArgument(std::string("the MPI library of this process has no ") + name +
                        ". Kolo needs MPI 3.0 or newer.");
}

bool is_open_mpi() { return abi() == Abi::OpenMpi; }

void require_known_abi() {
  if (!has_mpi() || abi() != Abi::Unknown) return;
  throw InvalidArgument("this process has loaded " + mpi_name() +
                        ". Kolo knows the ABIs of Open MPI and of MPICH, not that of this library. "
                        "Link the program with the libmpi.so of one of them, or with none.");
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
  if (!has_mpi()) show_loaded();
  if (!has_mpi() || abi() == Abi::Unknown) return nullptr;
  the_library = new MpiLibrary;  // as long as the process, whose end may still call MPI
  return the_library;
}

const MpiLibrary& load_mpi(const std::string& path) {
  if (const MpiLibrary* const loaded = loaded_mpi(); loaded != nullptr) return *loaded;
  require_known_abi();
  std::string tried;
  if (path == "auto" ? !opens_any(tried) : !opens(path, tried)) {
    throw InvalidArgument(
        "the ranks are to start over MPI, but no MPI library could be loaded:" + tried +
        "\nInstall Open MPI, MPICH or one of its relatives, or set KOLO_MPI_LIBRARY to the file "
        "of its library. Ranks can also start without MPI: see KOLO_RENDEZVOUS.");
  }
  require_known_abi();
  const MpiLibrary* const loaded = loaded_mpi();
  if (loaded == nullptr) {
    throw InvalidArgument("KOLO_MPI_LIBRARY is " + path +
                          ", which is not an MPI library: it has no PMPI_Init_thread.");
  }
  return *loaded;
}

const MpiLibrary& mpi() { return *the_library; }

std::string mpi_version() { return loaded_mpi() != nullptr ? mpi_name() : "none is loaded"; }

}  // namespace kolo::comm
