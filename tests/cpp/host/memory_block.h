// A control block in this process's own memory.
#pragma once

#include <cstdlib>
#include <cstring>

#include "host/control_block.h"

namespace mcast::test {

class MemoryBlock {
 public:
  explicit MemoryBlock(uint32_t ranks) : ranks_(ranks) {
    const size_t bytes = (ControlBlock::bytes(ranks) + 4095) / 4096 * 4096;
    memory_ = static_cast<std::byte*>(std::aligned_alloc(4096, bytes));
    std::memset(memory_, 0, bytes);
  }
  ~MemoryBlock() { std::free(memory_); }
  MemoryBlock(const MemoryBlock&) = delete;
  MemoryBlock& operator=(const MemoryBlock&) = delete;

  ControlBlock block() const { return ControlBlock(memory_, ranks_); }

 private:
  const uint32_t ranks_;
  std::byte* memory_;
};

}  // namespace mcast::test
