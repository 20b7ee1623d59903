// How long saving a checkpoint takes beside write and fsync of the same bytes, and how much memory:
//   mpirun -n 2 checkpoint_speed <new folder> [<MiB of all ranks> [<rounds>]]
// The two take turns. Prints the times of every round, the median of their ratios, and the growth of
// this process's largest resident memory over the first save.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fcntl.h>
#include <filesystem>
#include <functional>
#include <stdexcept>
#include <string>
#include <sys/resource.h>
#include <unistd.h>
#include <vector>

#include "comm/file_descriptor.hpp"
#include "kolo/collectives.hpp"
#include "kolo/runtime.hpp"
#include "torch/checkpoint/write_checkpoint.hpp"

namespace {

using namespace kolo;

constexpr std::size_t kTensorBytes = std::size_t{16} << 20;  // of a layer of GPT medium

void write_plainly(const std::filesystem::path& path, const std::vector<std::byte>& bytes) {
  const comm::FileDescriptor file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666));
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t written = ::write(file.get(), bytes.data() + done, bytes.size() - done);
    if (written <= 0) throw std::runtime_error("cannot write " + path.string());
    done += static_cast<std::size_t>(written);
  }
  if (::fsync(file.get()) != 0) throw std::runtime_error("cannot sync " + path.string());
}

/// Slices of tensors, each of which lies on one rank.
std::vector<tensors::TensorSlice> slices_of(const std::vector<std::byte>& bytes, int rank) {
  std::vector<tensors::TensorSlice> slices;
  for (std::size_t begin = 0; begin < bytes.size(); begin += kTensorBytes) {
    const auto count =
        static_cast<std::int64_t>(std::min(kTensorBytes, bytes.size() - begin) / sizeof(float));
    slices.push_back({"layers." + std::to_string(rank) + "." + std::to_string(slices.size()),
                      DType::Float32,
                      {count},
                      0,
                      count,
                      bytes.data() + begin});
  }
  return slices;
}

double seconds_of(const std::function<void()>& work) {
  barrier();
  const auto begin = std::chrono::steady_clock::now();
  work();
  barrier();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

long peak_kib() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

void measure(const std::filesystem::path& folder, std::size_t mib, int rounds) {
  const Runtime& runtime = Runtime::current();
  const std::string rank = std::to_string(runtime.rank());
  std::vector<std::byte> bytes((mib << 20) / static_cast<std::size_t>(runtime.size()));
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * i >> 7);
  const std::vector<tensors::TensorSlice> slices = slices_of(bytes, runtime.rank());
  if (runtime.rank() == 0 && !std::filesystem::create_directories(folder)) {
    throw std::runtime_error(folder.string() + " exists");
  }
  std::vector<double> ratios;
  for (int round = 0; round < rounds; ++round) {
    // Files stay until the end: the system frees their blocks when others are brought to the disk.
    const std::filesystem::path plain = folder / ("plain-" + rank + "-" + std::to_string(round));
    const double plain_s = seconds_of([&] { write_plainly(plain, bytes); });
    const long before = peak_kib();
    const double save_s = seconds_of([&] {
      tensors::write_checkpoint(folder, slices, {{"a", 1}}, /*keep_last=*/0, {});
    });
    const long growth = peak_kib() - before;
    if (runtime.rank() == 0) {
      std::printf("plain %.3f s, checkpoint %.3f s: %.3f", plain_s, save_s, save_s / plain_s);
      std::printf(round == 0 ? "; peak memory + %ld KiB\n" : "\n", growth);
    }
    ratios.push_back(save_s / plain_s);
  }
  std::sort(ratios.begin(), ratios.end());
  if (runtime.rank() == 0) {
    std::printf("%d ranks, %zu MiB: median ratio %.3f\n", runtime.size(), mib,
                ratios[ratios.size() / 2]);
    std::filesystem::remove_all(folder);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 4) {
    std::fprintf(stderr, "usage: checkpoint_speed <new folder> [<MiB of all ranks> [<rounds>]]\n");
    return 2;
  }
  try {
    const Runtime runtime;
    measure(argv[1], argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 200,
            argc > 3 ? std::atoi(argv[3]) : 5);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "checkpoint_speed: %s\n", error.what());
    return 1;
  }
}
