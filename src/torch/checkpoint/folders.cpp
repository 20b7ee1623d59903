#include "torch/checkpoint/folders.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>

#include "comm/file_descriptor.hpp"
#include "torch/checkpoint/file_error.hpp"

namespace kolo::train {
namespace {

constexpr mode_t kAll = 0777;  // minus the umask

std::filesystem::path parent_of(const std::filesystem::path& path) {
  const std::filesystem::path parent = path.parent_path();
  return parent.empty() ? "." : parent;
}

}  // namespace

void make_folder(const std::filesystem::path& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return;
  const std::filesystem::path parent = parent_of(path);
  if (parent != path) make_folder(parent);
  if (::mkdir(path.c_str(), kAll) != 0) {
    const int cause = errno;
    // Another program may have created it meanwhile.
    if (!std::filesystem::is_directory(path, error)) throw_file_error("create folder", path, cause);
  }
  sync_folder(parent);
}

void sync_folder(const std::filesystem::path& path) {
  const comm::FileDescriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder.is_open()) throw_file_error("open folder", path);
  // Some network file systems do not support fsync of folders, and do not need it.
  if (::fsync(folder.get()) != 0 && errno != EINVAL) throw_file_error("sync", path);
}

void rename_durably(const std::filesystem::path& from, const std::filesystem::path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) {
    throw_file_error("rename '" + from.string() + "' to", to);
  }
  sync_folder(parent_of(to));
}

void remove_tree(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error) throw_file_error("remove", path, error.value());
}

}  // namespace kolo::train
