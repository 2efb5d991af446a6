// Blocks of one launch that touch the same byte of global memory. CUDA promises no order of blocks, so where one of
// them changes the byte, and not all by atomics, the result depends on which comes first. The simulator runs whole
// blocks one after another: in any order, the second of two that touch a byte finds here what the first one did.
#pragma once

#include "simt/engine.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace simt {

class Conflicts {
public:
    struct Earlier {
        std::uint64_t block = 0; // the i-th that ran
        Access access{};
        std::uintptr_t byte = 0;
    };

    Conflicts() : buckets_(kBuckets) {}

    void start_launch(std::uint64_t n_blocks);
    // The i-th block of the launch, in the order in which they run.
    void start_block(std::uint64_t i) { self_ = first_ + static_cast<std::uint32_t>(i); }

    // Notes an access of the block that runs. False: an earlier block is in its way.
    bool note(const void *p, std::size_t n_bytes, Access access, Earlier *earlier) {
        const auto begin = reinterpret_cast<std::uintptr_t>(p), end = begin + n_bytes;
        for (std::uintptr_t at = begin; at < end;) {
            const std::uintptr_t next = std::min(end, at / 4 * 4 + 4);
            const std::uint32_t bytes = ((1u << (next - at)) - 1) << at % 4;
            Chunk &in = last_ && last_->number == at / kChunkBytes ? *last_ : find(at / kChunkBytes);
            if (!note_word(in.words[at % kChunkBytes / 4], bytes, access) && !note_bytes(in, at, next, access, earlier))
                return false;
            at = next;
        }
        return true;
    }

private:
    // Blocks have numbers that count on over launches, so what earlier launches left is out of date and never has to
    // be cleared. Of several blocks the first is enough: if it is the one that runs, there was no other.
    struct Byte {
        std::uint32_t changed = 0; // the first block that did << 1, and whether it did by atomics alone
        std::uint32_t read = 0;    // the first block that did
    };
    // A word holds as much while one block alone has touched it, or several have only read what the first one did.
    struct Word {
        std::uint32_t changed = 0; // the block << 5, whether by atomics << 4, and a bit for each byte
        std::uint32_t read = 0;    // the block << 4, and a bit for each byte
    };
    // In `changed` of a word: its bytes have their own, since the block that stands in `read`.
    static constexpr std::uint32_t kSplit = 0xffffffff;
    static constexpr std::uint32_t kMaxNumber = (1u << 27) - 2; // shifted, it is not kSplit

    static constexpr std::size_t kChunkBytes = 4096, kWords = kChunkBytes / 4;
    static constexpr std::size_t kBuckets = 1 << 14;                // 64 MiB of addresses without a collision
    static constexpr std::size_t kMaxNoted = std::size_t{64} << 20; // of chunks; beyond it a launch begins with none

    struct Chunk {
        std::uintptr_t number = 0;
        std::unique_ptr<Chunk> next;
        std::unique_ptr<Byte[]> bytes; // of words that are split
        Word words[kWords];
    };

    // False: it has to be split.
    bool note_word(Word &word, std::uint32_t bytes, Access access) const {
        const std::uint32_t changed_by = word.changed >> 5, read_by = word.read >> 4;
        if (access == Access::kRead && changed_by < first_ && read_by >= first_ && (word.read & bytes) == bytes)
            return true;
        if ((changed_by >= first_ && changed_by != self_) || (read_by >= first_ && read_by != self_)) return false;
        if (access == Access::kRead) {
            word.read = self_ << 4 | bytes | (read_by == self_ ? word.read & 15 : 0);
            return true;
        }
        const std::uint32_t atomic = access == Access::kAtomic ? 16 : 0;
        if (changed_by == self_ && (word.changed & 16) != atomic) return false;
        word.changed = self_ << 5 | atomic | bytes | (changed_by == self_ ? word.changed & 15 : 0);
        return true;
    }
    bool note_byte(Byte &byte, Access access, Earlier *earlier) const;
    // Bytes [begin, end) of one word.
    bool note_bytes(Chunk &chunk, std::uintptr_t begin, std::uintptr_t end, Access access, Earlier *earlier);
    Chunk &find(std::uintptr_t number);

    std::vector<std::unique_ptr<Chunk>> buckets_;
    Chunk *last_ = nullptr;
    std::size_t n_noted_ = 0;                       // bytes of all chunks
    std::uint32_t first_ = 1, next_ = 1, self_ = 1; // the launch's first block, the next launch's, the one that runs
};

} // namespace simt
