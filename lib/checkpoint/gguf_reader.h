// A position in a GGUF header that nobody has vouched for. Every read is checked against the end of the file first, and
// a refusal says what was being read, where, and how much is left. Numbers are little endian, at any address.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace ds41 {

class GgufReader {
public:
    static constexpr uint64_t kMaxName = 65535; // The format's limit for keys.

    // The bytes are borrowed.
    explicit GgufReader(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}

    std::span<const std::byte> bytes() const noexcept { return bytes_; }
    uint64_t position() const noexcept { return position_; }
    uint64_t n_left() const noexcept { return bytes_.size() - position_; }

    // `what` names the thing in refusals, which have DS41_STATUS_INVALID_FILE.
    uint32_t u32(const char *what) { return static_cast<uint32_t>(number(4, what)); }
    uint64_t u64(const char *what) { return number(8, what); }

    // The next n bytes.
    std::span<const std::byte> take(uint64_t n, const char *what);

    // A length and as many bytes, which are a name: 1 to kMaxName bytes of UTF-8 without NUL.
    std::string_view name(const char *what);

    // A number of things that take at least min_bytes each: refused when what is left cannot hold as many.
    uint64_t count(uint64_t min_bytes, const char *what);

    // Little endian, 1 to 8 bytes.
    static uint64_t decode(std::span<const std::byte> bytes) noexcept;

private:
    uint64_t number(uint64_t n, const char *what) { return decode(take(n, what)); }

    std::span<const std::byte> bytes_;
    uint64_t position_ = 0;
};

} // namespace ds41
