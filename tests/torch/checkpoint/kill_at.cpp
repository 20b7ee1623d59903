#include "torch/checkpoint/kill_at.hpp"

#include <array>
#include <atomic>
#include <climits>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#define KOLO_EXPORT __attribute__((visibility("default")))

namespace kolo::test {
namespace {

std::string watched;
std::atomic<long> calls_left{LONG_MAX};

[[noreturn]] void die() {
  ::kill(::getpid(), SIGKILL);
  for (;;) ::pause();
}

bool is_last_call() { return calls_left.fetch_sub(1) == 0; }

std::string path_of(int fd) {
  if (fd == AT_FDCWD) return ".";
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  std::array<char, PATH_MAX> path{};
  const ssize_t size = ::readlink(link.c_str(), path.data(), path.size());
  return size < 0 ? std::string() : std::string(path.data(), static_cast<std::size_t>(size));
}

bool is_watched(int folder, const char* path) {
  if (watched.empty()) return false;
  const std::string whole = path[0] == '/' ? path : path_of(folder) + "/" + path;
  return whole.starts_with(watched);
}

void before_call(int folder, const char* path) {
  if (is_watched(folder, path) && is_last_call()) die();
}
void before_call(int fd) {
  if (!watched.empty() && path_of(fd).starts_with(watched) && is_last_call()) die();
}

/// The function that the name would stand for without this library.
template <class Function>
Function* next(Function*, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

KOLO_EXPORT void kill_at(const std::string& folder, long moment) {
  calls_left = moment;
  watched = folder;
}

}  // namespace kolo::test

#define KOLO_NEXT(name) kolo::test::next(&::name, #name)

// The C library declares these, some with attributes that a definition need not repeat.
#pragma GCC diagnostic ignored "-Wnonnull-compare"
extern "C" {

KOLO_EXPORT int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  kolo::test::before_call(AT_FDCWD, path);
  return KOLO_NEXT(open)(path, flags, mode);
}

KOLO_EXPORT int openat(int folder, const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  kolo::test::before_call(folder, path);
  return KOLO_NEXT(openat)(folder, path, flags, mode);
}

KOLO_EXPORT int mkdir(const char* path, mode_t mode) {
  kolo::test::before_call(AT_FDCWD, path);
  return KOLO_NEXT(mkdir)(path, mode);
}

KOLO_EXPORT int rename(const char* from, const char* to) {
  kolo::test::before_call(AT_FDCWD, from);
  return KOLO_NEXT(rename)(from, to);
}

KOLO_EXPORT int remove(const char* path) {
  kolo::test::before_call(AT_FDCWD, path);
  return KOLO_NEXT(remove)(path);
}

KOLO_EXPORT int unlink(const char* path) {
  kolo::test::before_call(AT_FDCWD, path);
  return KOLO_NEXT(unlink)(path);
}

KOLO_EXPORT int rmdir(const char* path) {
  kolo::test::before_call(AT_FDCWD, path);
  return KOLO_NEXT(rmdir)(path);
}

KOLO_EXPORT int unlinkat(int folder, const char* path, int flags) {
  kolo::test::before_call(folder, path);
  return KOLO_NEXT(unlinkat)(folder, path, flags);
}

KOLO_EXPORT int fsync(int fd) {
  kolo::test::before_call(fd);
  return KOLO_NEXT(fsync)(fd);
}

KOLO_EXPORT ssize_t write(int fd, const void* data, size_t bytes) {
  using kolo::test::watched;
  const auto next = KOLO_NEXT(write);
  if (watched.empty() || !kolo::test::path_of(fd).starts_with(watched)) {
    return next(fd, data, bytes);
  }
  if (kolo::test::is_last_call()) kolo::test::die();
  if (kolo::test::is_last_call()) {
    [[maybe_unused]] const ssize_t half = next(fd, data, bytes / 2);
    kolo::test::die();
  }
  return next(fd, data, bytes);
}

}  // extern "C"
