#include "checkpoint/gguf_metadata.h"

#include "checkpoint/text.h"
#include "error.h"

#include <algorithm>
#include <bit>
#include <cinttypes>

namespace ds41 {

namespace {

// The format's value types.
enum Type : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64, kNTypes };

constexpr const char *kTypeNames[kNTypes] = {"UINT8", "INT8",   "UINT16", "INT16",  "UINT32", "INT32",  "FLOAT32",
                                             "BOOL",  "STRING", "ARRAY",  "UINT64", "INT64",  "FLOAT64"};

// Bytes of one value; of a string and an array, those that it has at least: a length, a type and a length.
constexpr uint64_t kMinBytes[kNTypes] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

constexpr int kMaxDepth = 8; // Lists of lists; writers known to us nest none.

bool is_integer(uint32_t type) {
    return type <= kI32 || type == kU64 || type == kI64;
}

// Moves the reader over one value. What is left to be skipped at each level of nesting stands in `levels`.
void skip_value(GgufReader &reader, uint32_t value_type, std::string_view key) {
    const auto check_type = [key](uint32_t type) {
        DS41_CHECK(type < kNTypes, DS41_STATUS_INVALID_FILE, "key %s has the value type %" PRIu32 ", need 0 to %d",
                   quoted(key).c_str(), type, kNTypes - 1);
    };
    check_type(value_type);

    struct Level {
        uint32_t type;
        uint64_t n;
    } levels[kMaxDepth] = {{value_type, 1}};
    for (int depth = 0; depth >= 0;) {
        Level &level = levels[depth];
        if (level.n == 0) {
            --depth;
        } else if (level.type == kString) {
            --level.n;
            reader.take(reader.u64("the length of a string"), "a string");
        } else if (level.type == kArray) {
            --level.n;
            DS41_CHECK(depth + 1 < kMaxDepth, DS41_STATUS_INVALID_FILE, "key %s nests arrays deeper than %d levels",
                       quoted(key).c_str(), kMaxDepth - 1);
            const uint32_t type = reader.u32("the type of an array");
            check_type(type);
            levels[++depth] = {type, reader.count(kMinBytes[type], "the length of an array")};
        } else {
            const std::span<const std::byte> values = reader.take(level.n * kMinBytes[level.type], "a value");
            const bool is_bool = level.type != kBool || std::all_of(values.begin(), values.end(),
                                                                    [](std::byte b) { return b <= std::byte{1}; });
            DS41_CHECK(is_bool, DS41_STATUS_INVALID_FILE, "key %s holds a boolean that is neither 0 nor 1",
                       quoted(key).c_str());
            level.n = 0;
        }
    }
}

// One number of an integer type.
int64_t decode_integer(std::span<const std::byte> bytes, uint32_t type, std::string_view key) {
    const uint64_t bits = GgufReader::decode(bytes.first(static_cast<size_t>(kMinBytes[type])));
    switch (type) {
    case kI8:
        return static_cast<int8_t>(bits);
    case kI16:
        return static_cast<int16_t>(bits);
    case kI32:
        return static_cast<int32_t>(bits);
    case kI64:
        return static_cast<int64_t>(bits);
    default:
        DS41_CHECK(bits <= static_cast<uint64_t>(INT64_MAX), DS41_STATUS_INVALID_FILE,
                   "key %s has the value %" PRIu64 ", need at most %" PRId64, quoted(key).c_str(), bits, INT64_MAX);
        return static_cast<int64_t>(bits);
    }
}

} // namespace

void GgufMetadata::read(GgufReader &reader, uint64_t n_entries) {
    bytes_ = reader.bytes();
    // No room is made beforehand: an honest file has a few dozen, and a count is only as good as what follows it.
    for (uint64_t i = 0; i < n_entries; ++i) {
        const std::string_view key = reader.name("a metadata key");
        Entry entry = {};
        entry.key = reader.position() - key.size();
        entry.key_length = static_cast<uint32_t>(key.size());
        entry.type = reader.u32("the type of a metadata value");
        entry.value = reader.position();
        skip_value(reader, entry.type, key);
        entries_.push_back(entry);
    }
    std::sort(entries_.begin(), entries_.end(),
              [this](const Entry &a, const Entry &b) { return key_of(a) < key_of(b); });
    const auto twice = std::adjacent_find(entries_.begin(), entries_.end(),
                                          [this](const Entry &a, const Entry &b) { return key_of(a) == key_of(b); });
    DS41_CHECK(twice == entries_.end(), DS41_STATUS_INVALID_FILE, "key %s appears twice",
               quoted(key_of(*twice)).c_str());
}

std::string_view GgufMetadata::key_of(const Entry &entry) const noexcept {
    return {reinterpret_cast<const char *>(bytes_.data()) + entry.key, entry.key_length};
}

const GgufMetadata::Entry *GgufMetadata::find(std::string_view key) const noexcept {
    const auto found =
        std::lower_bound(entries_.begin(), entries_.end(), key,
                         [this](const Entry &entry, std::string_view wanted) { return key_of(entry) < wanted; });
    return found == entries_.end() || key_of(*found) != key ? nullptr : &*found;
}

void GgufMetadata::refuse_type(const Entry &entry, const char *need) const {
    std::string type = kTypeNames[entry.type];
    if (entry.type == kArray)
        type +=
            std::string(" of ") + kTypeNames[GgufReader::decode(bytes_.subspan(static_cast<size_t>(entry.value), 4))];
    throw Error(DS41_STATUS_INVALID_FILE, "key %s is %s, need %s", quoted(key_of(entry)).c_str(), type.c_str(), need);
}

std::optional<int64_t> GgufMetadata::integer(std::string_view key) const {
    const Entry *entry = find(key);
    if (!entry) return std::nullopt;
    if (!is_integer(entry->type)) refuse_type(*entry, "an integer");
    return decode_integer(bytes_.subspan(static_cast<size_t>(entry->value)), entry->type, key);
}

std::optional<double> GgufMetadata::real(std::string_view key) const {
    const Entry *entry = find(key);
    if (!entry) return std::nullopt;
    const std::span<const std::byte> value = bytes_.subspan(static_cast<size_t>(entry->value));
    if (entry->type == kF32) return std::bit_cast<float>(static_cast<uint32_t>(GgufReader::decode(value.first(4))));
    if (entry->type == kF64) return std::bit_cast<double>(GgufReader::decode(value.first(8)));
    if (!is_integer(entry->type)) refuse_type(*entry, "a number");
    return static_cast<double>(decode_integer(value, entry->type, key));
}

std::optional<std::string> GgufMetadata::string(std::string_view key) const {
    const Entry *entry = find(key);
    if (!entry) return std::nullopt;
    if (entry->type != kString) refuse_type(*entry, "a string");
    const std::span<const std::byte> value = bytes_.subspan(static_cast<size_t>(entry->value));
    return std::string(reinterpret_cast<const char *>(value.data()) + 8,
                       static_cast<size_t>(GgufReader::decode(value.first(8))));
}

std::optional<std::vector<int64_t>> GgufMetadata::integers(std::string_view key) const {
    const Entry *entry = find(key);
    if (!entry) return std::nullopt;
    std::span<const std::byte> value = bytes_.subspan(static_cast<size_t>(entry->value));
    if (entry->type != kArray) refuse_type(*entry, "an array of integers");
    const uint32_t type = static_cast<uint32_t>(GgufReader::decode(value.first(4)));
    if (!is_integer(type)) refuse_type(*entry, "an array of integers");
    const uint64_t n = GgufReader::decode(value.subspan(4, 8));
    DS41_CHECK(n <= kMaxIntegers, DS41_STATUS_INVALID_FILE, "key %s has %" PRIu64 " entries, need at most %zu",
               quoted(key).c_str(), n, kMaxIntegers);

    std::vector<int64_t> result;
    result.reserve(static_cast<size_t>(n));
    value = value.subspan(12);
    for (; result.size() < n; value = value.subspan(static_cast<size_t>(kMinBytes[type])))
        result.push_back(decode_integer(value, type, key));
    return result;
}

} // namespace ds41
