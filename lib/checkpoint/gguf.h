// A GGUF file (versions 2 and 3, little endian): metadata and named tensors in one mapping. Everything that the header
// claims about tensors of known types is checked at construction, so that a range handed out later lies within the file
// and belongs to one tensor only. Only the header is read: no tensor data is touched.
#pragma once

#include "checkpoint/gguf_metadata.h"
#include "checkpoint/gguf_types.h"
#include "checkpoint/mapping.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ds41 {

struct GgufTensor {
    std::string name;               // Valid UTF-8 without NUL, never empty.
    const GgufType *type = nullptr; // NULL for a type_id that we do not know.
    uint32_t type_id = 0;           // As in the file.
    std::vector<int64_t> shape;     // OUTERMOST first, the reverse of ggml's dims: 1 to 4 sizes, 0 is a legal one.
    uint64_t offset = 0;            // From the start of the file; aligned, and not beyond its end.
    uint64_t n_bytes = 0;           // By type and shape, which is what the file has; 0 for an unknown type.
};

// Immutable. Views that it lends are valid until it is destroyed.
class GgufFile {
public:
    // Throws DS41_STATUS_IO_ERROR, DS41_STATUS_INVALID_FILE, or DS41_STATUS_UNSUPPORTED for big endian files and other
    // versions; the message begins with the path.
    explicit GgufFile(const std::string &path);

    // A file that is in memory already. `bytes` is borrowed until destruction.
    explicit GgufFile(std::span<const std::byte> bytes);

    GgufFile(const GgufFile &) = delete;
    GgufFile &operator=(const GgufFile &) = delete;

    // In ascending order of the names' bytes.
    std::span<const GgufTensor> tensors() const noexcept { return tensors_; }

    // NULL when there is no such tensor.
    const GgufTensor *find(std::string_view name) const noexcept;

    // The whole file.
    std::span<const std::byte> bytes() const noexcept { return bytes_; }

    // The bytes of one of this file's tensors; empty for an unknown type.
    std::span<const std::byte> data(const GgufTensor &tensor) const noexcept {
        return bytes_.subspan(static_cast<size_t>(tensor.offset), static_cast<size_t>(tensor.n_bytes));
    }

    // Metadata: nullopt when the key is absent; DS41_STATUS_INVALID_FILE, naming the key, what it has and what is
    // needed, when it has another type or does not fit.
    bool has(std::string_view key) const noexcept { return metadata_.find(key) != nullptr; }
    std::optional<int64_t> integer(std::string_view key) const { return metadata_.integer(key); }
    std::optional<double> real(std::string_view key) const { return metadata_.real(key); }
    std::optional<std::string> string(std::string_view key) const { return metadata_.string(key); }
    std::optional<std::vector<int64_t>> integers(std::string_view key) const { return metadata_.integers(key); }

    const GgufMetadata &metadata() const noexcept { return metadata_; }

private:
    void read(std::span<const std::byte> bytes);

    Mapping mapping_;
    std::span<const std::byte> bytes_;
    GgufMetadata metadata_;
    std::vector<GgufTensor> tensors_;
};

} // namespace ds41
