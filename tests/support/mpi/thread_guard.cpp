// Preloaded into any MPI program (LD_PRELOAD). It gives MPI the thread level named by
// KOLO_TEST_THREAD_LEVEL, or the requested one. With MPI_THREAD_SERIALIZED, it ends the process if
// a thread calls MPI while another thread is inside. Functions that any thread may call at any time
// are not intercepted.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>

#include <mpi.h>

#pragma GCC visibility push(default)

namespace {

std::atomic<int> level{MPI_THREAD_MULTIPLE};
std::atomic<std::thread::id> inside{};

int level_of_environment(int otherwise) {
  const char* const value = std::getenv("KOLO_TEST_THREAD_LEVEL");
  const std::string_view name = value != nullptr ? value : "";
  if (name == "funneled") return MPI_THREAD_FUNNELED;
  return name == "serialized" ? MPI_THREAD_SERIALIZED : otherwise;
}

[[noreturn]] void end_process(const char* function) {
  std::fprintf(stderr, "thread guard: %s is called while another thread is inside MPI\n", function);
  std::_Exit(86);
}

/// One MPI call. MPI may call back into the program, which may call MPI again.
class Call {
 public:
  explicit Call(const char* function) {
    const std::thread::id self = std::this_thread::get_id();
    if (level != MPI_THREAD_SERIALIZED || inside == self) return;
    std::thread::id nobody{};
    if (!inside.compare_exchange_strong(nobody, self)) {
      end_process(function);
    }
    is_outermost_ = true;
    std::this_thread::yield();  // widens the window for a race
  }
  Call(const Call&) = delete;  // counts one entry
  Call& operator=(const Call&) = delete;
  ~Call() {
    if (is_outermost_) inside = std::thread::id{};
  }

 private:
  bool is_outermost_ = false;
};

}  // namespace

extern "C" {

int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  required = level_of_environment(required);
  const int code = PMPI_Init_thread(argc, argv, required, provided);
  level = *provided = required;  // MPI may provide more
  return code;
}

int MPI_Query_thread(int* provided) {
  *provided = level;
  return MPI_SUCCESS;
}

#define GUARDED(function, parameters, arguments) \
  int function parameters {                      \
    const Call call(#function);                  \
    return P##function arguments;                \
  }

using Comm = MPI_Comm;
using Type = MPI_Datatype;

GUARDED(MPI_Allgather, (const void* a, int b, Type c, void* d, int e, Type f, Comm g),
        (a, b, c, d, e, f, g))
GUARDED(MPI_Allreduce, (const void* a, void* b, int c, Type d, MPI_Op e, Comm f),
        (a, b, c, d, e, f))
GUARDED(MPI_Barrier, (Comm a), (a))
GUARDED(MPI_Bcast, (void* a, int b, Type c, int d, Comm e), (a, b, c, d, e))
GUARDED(MPI_Cancel, (MPI_Request * a), (a))
GUARDED(MPI_Comm_dup, (Comm a, Comm* b), (a, b))
GUARDED(MPI_Comm_free, (Comm * a), (a))
GUARDED(MPI_Comm_rank, (Comm a, int* b), (a, b))
GUARDED(MPI_Comm_size, (Comm a, int* b), (a, b))
GUARDED(MPI_Comm_split, (Comm a, int b, int c, Comm* d), (a, b, c, d))
GUARDED(MPI_Comm_split_type, (Comm a, int b, int c, MPI_Info d, Comm* e), (a, b, c, d, e))
GUARDED(MPI_Comm_get_attr, (Comm a, int b, void* c, int* d), (a, b, c, d))
GUARDED(MPI_Comm_set_attr, (Comm a, int b, void* c), (a, b, c))
GUARDED(MPI_Finalize, (), ())
GUARDED(MPI_Gatherv,
        (const void* a, int b, Type c, void* d, const int* e, const int* f, Type g, int h, Comm i),
        (a, b, c, d, e, f, g, h, i))
GUARDED(MPI_Get_count, (const MPI_Status* a, Type b, int* c), (a, b, c))
GUARDED(MPI_Iallgather,
        (const void* a, int b, Type c, void* d, int e, Type f, Comm g, MPI_Request* h),
        (a, b, c, d, e, f, g, h))
GUARDED(MPI_Iallreduce, (const void* a, void* b, int c, Type d, MPI_Op e, Comm f, MPI_Request* g),
        (a, b, c, d, e, f, g))
GUARDED(MPI_Ibcast, (void* a, int b, Type c, int d, Comm e, MPI_Request* f), (a, b, c, d, e, f))
GUARDED(MPI_Igatherv,
        (const void* a, int b, Type c, void* d, const int* e, const int* f, Type g, int h, Comm i,
         MPI_Request* j),
        (a, b, c, d, e, f, g, h, i, j))
GUARDED(MPI_Ibarrier, (Comm a, MPI_Request* b), (a, b))
GUARDED(MPI_Iprobe, (int a, int b, Comm c, int* d, MPI_Status* e), (a, b, c, d, e))
GUARDED(MPI_Irecv, (void* a, int b, Type c, int d, int e, Comm f, MPI_Request* g),
        (a, b, c, d, e, f, g))
GUARDED(MPI_Isend, (const void* a, int b, Type c, int d, int e, Comm f, MPI_Request* g),
        (a, b, c, d, e, f, g))
GUARDED(MPI_Probe, (int a, int b, Comm c, MPI_Status* d), (a, b, c, d))
GUARDED(MPI_Recv, (void* a, int b, Type c, int d, int e, Comm f, MPI_Status* g),
        (a, b, c, d, e, f, g))
GUARDED(MPI_Send, (const void* a, int b, Type c, int d, int e, Comm f), (a, b, c, d, e, f))
GUARDED(MPI_Test, (MPI_Request * a, int* b, MPI_Status* c), (a, b, c))
GUARDED(MPI_Wait, (MPI_Request * a, MPI_Status* b), (a, b))
GUARDED(MPI_Waitall, (int a, MPI_Request* b, MPI_Status* c), (a, b, c))

}  // extern "C"
