#include "simt/conflicts.h"

namespace simt {

void Conflicts::start_launch(std::uint64_t n_blocks) {
    // Here and not while fibers run: ThreadSanitizer would take what one frees and another has made for a race.
    if (n_noted_ > kMaxNoted || n_blocks > kMaxNumber - next_) {
        buckets_.clear();
        buckets_.resize(kBuckets);
        last_ = nullptr;
        n_noted_ = 0;
        next_ = 1;
    }
    first_ = next_;
    next_ += static_cast<std::uint32_t>(n_blocks);
}

Conflicts::Chunk &Conflicts::find(std::uintptr_t number) {
    std::unique_ptr<Chunk> *place = &buckets_[number % kBuckets];
    while (*place && (*place)->number != number) place = &(*place)->next;
    if (!*place) {
        *place = std::make_unique<Chunk>();
        (*place)->number = number;
        n_noted_ += sizeof(Chunk);
    }
    last_ = place->get();
    return *last_;
}

bool Conflicts::note_bytes(Chunk &chunk, std::uintptr_t begin, std::uintptr_t end, Access access, Earlier *earlier) {
    const std::size_t at = begin % kChunkBytes;
    Word &word = chunk.words[at / 4];
    if (word.changed == kSplit && word.read >> 4 < first_) {
        word = {};
        return note_word(word, ((1u << (end - begin)) - 1) << at % 4, access);
    }
    if (!chunk.bytes) {
        chunk.bytes = std::make_unique<Byte[]>(kChunkBytes);
        n_noted_ += kChunkBytes * sizeof(Byte);
    }
    Byte *const bytes = &chunk.bytes[at / 4 * 4];
    if (word.changed != kSplit) {
        for (int i = 0; i < 4; ++i)
            bytes[i] = {word.changed >> i & 1 ? word.changed >> 5 << 1 | (word.changed >> 4 & 1) : 0,
                        word.read >> i & 1 ? word.read >> 4 : 0};
        word = {kSplit, self_ << 4};
    }
    for (std::uintptr_t byte = begin; byte < end; ++byte) {
        earlier->byte = byte;
        if (!note_byte(bytes[byte % 4], access, earlier)) return false;
    }
    return true;
}

bool Conflicts::note_byte(Byte &byte, Access access, Earlier *earlier) const {
    const std::uint32_t changed_by = byte.changed >> 1;
    const bool was_changed = changed_by >= first_, was_read = byte.read >= first_;
    const bool atomic = access == Access::kAtomic, was_atomic = byte.changed & 1;
    if (was_changed && changed_by != self_ && !(atomic && was_atomic)) {
        earlier->block = changed_by - first_;
        earlier->access = was_atomic ? Access::kAtomic : Access::kWrite;
        return false;
    }
    if (access == Access::kRead) {
        if (!was_read) byte.read = self_;
        return true;
    }
    if (was_read && byte.read != self_) {
        earlier->block = byte.read - first_;
        earlier->access = Access::kRead;
        return false;
    }
    if (!was_changed || !atomic) byte.changed = self_ << 1 | (atomic ? 1 : 0);
    return true;
}

} // namespace simt
