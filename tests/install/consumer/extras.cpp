// Calls a function of the extras, which calls the core.
#include <kolo/extras/stream_shard.hpp>
#include <kolo/runtime.hpp>

int main() {
  const kolo::Runtime runtime;  // one process, which takes the whole stream
  const kolo::StreamShard shard({.block = 2});
  return shard.takes(0) && shard.takes(5) ? 0 : 1;
}
