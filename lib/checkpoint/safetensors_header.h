// The JSON header of a safetensors file: parsed from text that nobody has vouched for into entries that are consistent
// in themselves and lie within the data. How entries stand to each other (overlaps, holes) is SafetensorsFile's
// business.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ds41 {

// A dtype that the format knows; those without a counterpart among ours have DS41_DTYPE_NONE.
struct SafetensorsDtype {
    const char *name;
    uint32_t n_bytes; // Per element.
    int32_t dtype;    // A ds41_dtype.
};

// NULL for a name that the format does not know.
const SafetensorsDtype *find_safetensors_dtype(std::string_view name);

struct SafetensorsEntry {
    std::string name;           // Holds no NUL.
    std::string_view dtype;     // As written in the file, such as "F8_E4M3". Static.
    std::vector<int64_t> shape; // Outermost first; no entries for a scalar, 0 is a legal size.
    const std::byte *data = nullptr;
    uint64_t n_bytes = 0; // By dtype and shape, which is what the file has.
};

// Keys and values of `__metadata__`. Kept as offsets into one text: a hostile header may hold millions of tiny ones.
class SafetensorsMetadata {
public:
    void add(std::string_view key, std::string_view value);

    // To be called once, after the last add(). Returns a key that appears twice, or NULL.
    const char *sort();

    // NUL-terminated, NULL when there is no such key.
    const char *find(std::string_view key) const;

private:
    struct Pair {
        uint32_t key, value; // Offsets fit: the header has at most 100 MB.
    };
    std::string text_;
    std::vector<Pair> pairs_;
};

struct SafetensorsHeader {
    std::vector<SafetensorsEntry> entries; // As in the file.
    SafetensorsMetadata metadata;          // Sorted.
};

// `data` is what follows the header. Throws DS41_STATUS_INVALID_FILE.
SafetensorsHeader parse_safetensors_header(std::string_view json, std::span<const std::byte> data);

} // namespace ds41
