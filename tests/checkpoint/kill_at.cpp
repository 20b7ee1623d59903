#include "checkpoint/kill_at.hpp"

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

std::string path_of(int folder, const char* path) {
  return path[0] == '/' ? path : path_of(folder) + "/" + path;
}

/// Whether the call counts. If so, reports it on stderr.
bool counts(const char* call, const std::string& path) {
  if (watched.empty() || !path.starts_with(watched)) return false;
  ::dprintf(STDERR_FILENO, "call %s %s\n", call, path.c_str());
  return true;
}

void before_call(const char* call, const std::string& path) {
  if (counts(call, path) && is_last_call()) die();
}

/// The function that this library's function of the same name replaces.
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

extern "C" {

KOLO_EXPORT int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  kolo::test::before_call("open", kolo::test::path_of(AT_FDCWD, path));
  return KOLO_NEXT(open)(path, flags, mode);
}

KOLO_EXPORT int openat(int folder, const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  kolo::test::before_call("openat", kolo::test::path_of(folder, path));
  return KOLO_NEXT(openat)(folder, path, flags, mode);
}

KOLO_EXPORT int mkdir(const char* path, mode_t mode) {
  kolo::test::before_call("mkdir", kolo::test::path_of(AT_FDCWD, path));
  return KOLO_NEXT(mkdir)(path, mode);
}

KOLO_EXPORT int rename(const char* from, const char* to) {
  kolo::test::before_call("rename", kolo::test::path_of(AT_FDCWD, from));
  return KOLO_NEXT(rename)(from, to);
}

KOLO_EXPORT int remove(const char* path) {
  kolo::test::before_call("remove", kolo::test::path_of(AT_FDCWD, path));
  return KOLO_NEXT(remove)(path);
}

KOLO_EXPORT int unlink(const char* path) {
  kolo::test::before_call("unlink", kolo::test::path_of(AT_FDCWD, path));
  return KOLO_NEXT(unlink)(path);
}

KOLO_EXPORT int rmdir(const char* path) {
  kolo::test::before_call("rmdir", kolo::test::path_of(AT_FDCWD, path));
  return KOLO_NEXT(rmdir)(path);
}

KOLO_EXPORT int unlinkat(int folder, const char* path, int flags) {
  kolo::test::before_call("unlinkat", kolo::test::path_of(folder, path));
  return KOLO_NEXT(unlinkat)(folder, path, flags);
}

KOLO_EXPORT int fsync(int fd) {
  kolo::test::before_call("fsync", kolo::test::path_of(fd));
  return KOLO_NEXT(fsync)(fd);
}

KOLO_EXPORT ssize_t write(int fd, const void* data, size_t bytes) {
  const auto next = KOLO_NEXT(write);
  if (!kolo::test::counts("write", kolo::test::path_of(fd))) return next(fd, data, bytes);
  if (kolo::test::is_last_call()) kolo::test::die();
  if (kolo::test::is_last_call()) {
    [[maybe_unused]] const ssize_t half = next(fd, data, bytes / 2);
    kolo::test::die();
  }
  return next(fd, data, bytes);
}

}  // extern "C"
