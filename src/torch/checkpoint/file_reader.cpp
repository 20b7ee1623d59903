#include "torch/checkpoint/file_reader.hpp"

#include <cstddef>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include "torch/checkpoint/file_error.hpp"

namespace kolo::train {

FileReader::FileReader(std::filesystem::path path)
    : path_(std::move(path)),
      // Do not wait for a pipe of this name.
      file_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
  if (!file_.is_open()) {
    if (errno != ENOENT && errno != ENOTDIR) throw_file_error("open", path_);
    throw InvalidArgument("file '" + path_.string() + "' is missing");
  }
  struct stat about{};
  if (::fstat(file_.get(), &about) != 0) throw_file_error("examine", path_);
  if (!S_ISREG(about.st_mode)) throw InvalidArgument("'" + path_.string() + "' is not a file");
  size_ = about.st_size;
}

void FileReader::read(std::int64_t offset, std::int64_t bytes, void* target) const {
  std::byte* place = static_cast<std::byte*>(target);
  while (bytes > 0) {
    const ssize_t got = ::pread(file_.get(), place, static_cast<std::size_t>(bytes), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_file_error("read", path_);
    if (got == 0) {
      throw InvalidArgument("file '" + path_.string() + "' is truncated: it ends before byte " +
                            std::to_string(offset + bytes));
    }
    place += got;
    offset += got;
    bytes -= got;
  }
}

}  // namespace kolo::train
