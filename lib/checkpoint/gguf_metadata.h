// The metadata of a GGUF file: typed values under keys. Values stay in the file (a tokenizer's lists have 129,280
// strings): reading notes where each one lies and that it lies within the file, and an accessor decodes one on request.
#pragma once

#include "checkpoint/gguf_reader.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ds41 {

class GgufMetadata {
public:
    struct Entry {
        uint64_t key;   // Offset of the key's bytes.
        uint64_t value; // Offset of the value, behind its type.
        uint32_t key_length;
        uint32_t type;
    };

    static constexpr uint64_t kMinEntryBytes = 8 + 1 + 4 + 1; // A length, a key of one byte, a type, a value of one.

    // More would be no list of layers: keeps a hostile count from being stored.
    static constexpr size_t kMaxIntegers = 65536;

    // Reads n_entries keys and skips their values; leaves the reader behind them. Its bytes are borrowed until
    // destruction. Throws DS41_STATUS_INVALID_FILE.
    void read(GgufReader &reader, uint64_t n_entries);

    size_t size() const noexcept { return entries_.size(); }

    // In ascending order of the keys' bytes.
    std::string_view key(size_t index) const noexcept { return key_of(entries_[index]); }

    // NULL when there is no such key.
    const Entry *find(std::string_view key) const noexcept;

    // Any of the format's integer types, if an int64 holds the value.
    std::optional<int64_t> integer(std::string_view key) const;

    // A float or a double; integers too.
    std::optional<double> real(std::string_view key) const;

    // Bytes as in the file: nobody has checked that they are UTF-8.
    std::optional<std::string> string(std::string_view key) const;

    // A list of at most kMaxIntegers integers of any type.
    std::optional<std::vector<int64_t>> integers(std::string_view key) const;

private:
    [[noreturn]] void refuse_type(const Entry &entry, const char *need) const;
    std::string_view key_of(const Entry &entry) const noexcept;

    std::span<const std::byte> bytes_;
    std::vector<Entry> entries_;
};

} // namespace ds41
