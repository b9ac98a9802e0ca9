// A control block in this process's own memory.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "shm/control_block.h"

namespace mcast::test {

class MemoryBlock {
 public:
  // Unused pages are never populated, as in a segment.
  explicit MemoryBlock(uint32_t ranks)
      : ranks_(ranks),
        memory_(::mmap(nullptr, ControlBlock::bytes(ranks), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {
    EXPECT_NE(memory_, MAP_FAILED);
  }
  ~MemoryBlock() { ::munmap(memory_, ControlBlock::bytes(ranks_)); }
  MemoryBlock(const MemoryBlock&) = delete;
  MemoryBlock& operator=(const MemoryBlock&) = delete;

  ControlBlock block() const { return ControlBlock(static_cast<std::byte*>(memory_), ranks_); }

 private:
  const uint32_t ranks_;
  void* const memory_;
};

}  // namespace mcast::test
