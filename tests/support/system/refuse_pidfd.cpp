#include "support/system/refuse_pidfd.hpp"

#include <array>
#include <cerrno>
#include <cstddef>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <system_error>

#include <linux/filter.h>
#include <linux/seccomp.h>

namespace kolo::test {

void refuse_pidfd(int error) {
  // Loads the system call's number; fails this one and lets all others through.
  std::array<sock_filter, 4> steps{
      sock_filter{BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
      sock_filter{BPF_JMP | BPF_JEQ | BPF_K, 0, 1, SYS_pidfd_open},
      sock_filter{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | static_cast<unsigned>(error)},
      sock_filter{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
  const sock_fprog program{steps.size(), steps.data()};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    throw std::system_error(errno, std::generic_category(), "seccomp");
  }
}

}  // namespace kolo::test
