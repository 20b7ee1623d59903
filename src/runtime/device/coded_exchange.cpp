#include "runtime/device/coded_exchange.hpp"

namespace kolo::runtime {
namespace {

/// Bytes of each piece's payloads.
std::vector<std::size_t> bytes_of(const comm::DeviceCodec& codec,
                                  std::span<const ops::Range> pieces) {
  std::vector<std::size_t> bytes;
  for (const ops::Range& piece : pieces) bytes.push_back(codec.run_bytes(piece.length));
  return bytes;
}

float* floats(std::byte* memory) { return reinterpret_cast<float*>(memory); }

}  // namespace

Task CodedExchange::all_reduce(base::CodecFormat format, ReductionItem item, double scale) {
  const DType dtype = item.type->dtype;
  const std::vector<ops::Range> pieces =
      ops::pieces_of(item.type->count(), path_.communicator.size(), format.block());
  const ops::Range own = pieces[rank()];
  const comm::DeviceCodec input{format};
  const comm::DeviceCodec result{format, path_.communicator.size()};
  const std::vector<std::size_t> result_bytes = bytes_of(result, pieces);
  const std::size_t own_bytes = input.run_bytes(own.length);
  const auto [sent, received, sum, gathered] =
      path_.staging.take<4>({sum_of(bytes_of(input, pieces)) - own_bytes, (size() - 1) * own_bytes,
                             own.length * sizeof(float), sum_of(result_bytes)});
  const Staging staging{sent, received, floats(sum)};
  co_await contribute(format, item, pieces, staging);
  combine(format, item, own, staging, nullptr);

  std::vector<comm::CodedRun> decoded;
  std::byte* own_result = nullptr;
  std::byte* next = gathered;
  for (std::size_t piece = 0; piece < pieces.size(); next += result_bytes[piece++]) {
    if (piece == rank()) own_result = next;
    decoded.push_back({.from = next,
                       .to = item.memory->output + pieces[piece].begin * size_of(dtype),
                       .count = pieces[piece].length});
  }
  float* const residual = item.memory->residual;
  const comm::CodedRun encoded{.from = sum,
                               .to = own_result,
                               .count = own.length,
                               .residual = residual == nullptr ? nullptr : residual + own.begin};
  path_.gpu.encode(result, {&encoded, 1}, DType::Float32, path_.stream);
  path_.traffic.add_round(sum_of(result_bytes));
  path_.communicator.all_gather(own_result, gathered, result_bytes, DType::UInt8, path_.stream);
  co_await path_.communicator;
  path_.gpu.decode(result, decoded, dtype, scale, path_.stream);
}

Task CodedExchange::reduce_scatter(base::CodecFormat format, ReductionItem item,
                                   std::span<const std::size_t> counts, double scale) {
  const std::vector<ops::Range> pieces = ops::ranges_of(counts);
  const ops::Range own = pieces[rank()];
  const comm::DeviceCodec input{format};
  const std::size_t own_bytes = input.run_bytes(own.length);
  const auto [sent, received, sum] =
      path_.staging.take<3>({sum_of(bytes_of(input, pieces)) - own_bytes, (size() - 1) * own_bytes,
                             own.length * sizeof(float)});
  const Staging staging{sent, received, floats(sum)};
  co_await contribute(format, item, pieces, staging);
  float* const residual = item.memory->residual;
  combine(format, item, own, staging, residual == nullptr ? nullptr : residual + own.begin);
  const comm::DeviceRun scaled{sum, item.memory->output, own.length};
  path_.gpu.convert({&scaled, 1}, {DType::Float32, item.type->dtype, scale}, path_.stream);
}

/// Step 1. A rank does not send its own piece.
Task CodedExchange::contribute(base::CodecFormat format, ReductionItem item,
                               std::span<const ops::Range> pieces, Staging staging) {
  const comm::DeviceCodec codec{format};
  std::vector<std::size_t> sent = bytes_of(codec, pieces);
  std::vector<std::size_t> received(size(), sent[rank()]);
  sent[rank()] = received[rank()] = 0;
  std::vector<comm::CodedRun> runs;
  std::byte* next = staging.sent;
  for (std::size_t peer = 0; peer < size(); next += sent[peer++]) {
    if (peer == rank()) continue;
    const ops::Range piece = pieces[peer];
    runs.push_back({.from = item.memory->input + piece.begin * size_of(item.type->dtype),
                    .to = next,
                    .count = piece.length,
                    .residual = item.memory->residual == nullptr
                                    ? nullptr
                                    : item.memory->residual + piece.begin});
  }
  path_.gpu.encode(codec, runs, item.type->dtype, path_.stream);
  path_.traffic.add_sent(sum_of(sent));
  path_.communicator.all_to_all(staging.sent, sent, staging.received, received, DType::UInt8,
                                path_.stream);
  co_await path_.communicator;
}

/// Step 2.
void CodedExchange::combine(base::CodecFormat format, ReductionItem item, ops::Range own,
                            Staging staging, float* residual) {
  path_.gpu.add_coded(format,
                      {.payloads = staging.received,
                       .ranks = path_.communicator.size(),
                       .own = path_.communicator.rank(),
                       .elements = item.memory->input + own.begin * size_of(item.type->dtype),
                       .dtype = item.type->dtype,
                       .count = own.length,
                       .residual = residual},
                      staging.sum, path_.stream);
}

}  // namespace kolo::runtime
