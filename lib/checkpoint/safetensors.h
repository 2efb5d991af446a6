// A safetensors file: named tensors in one mapping. Everything the header claims is checked at construction, so that a
// view handed out later lies within the file and has exactly the bytes of its dtype and shape. No tensor data is read.
#pragma once

#include "checkpoint/mapping.h"
#include "checkpoint/safetensors_header.h"
#include "ds41/ds41.h"

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ds41 {

// Immutable. Views and strings that it lends are valid until it is destroyed.
class SafetensorsFile {
public:
    // Throws DS41_STATUS_IO_ERROR or DS41_STATUS_INVALID_FILE; the message begins with the path.
    explicit SafetensorsFile(const std::string &path);

    // A file that is in memory already. `bytes` is borrowed until destruction.
    explicit SafetensorsFile(std::span<const std::byte> bytes);

    SafetensorsFile(const SafetensorsFile &) = delete;
    SafetensorsFile &operator=(const SafetensorsFile &) = delete;

    size_t n_tensors() const noexcept { return header_.entries.size(); }

    // In ascending order of the names' bytes.
    std::span<const SafetensorsEntry> entries() const noexcept { return header_.entries; }

    // NUL-terminated; NULL past the end.
    const char *name(size_t index) const noexcept;

    // NULL when there is no such tensor.
    const SafetensorsEntry *find(std::string_view name) const noexcept;

    // What ds41_file_get_tensor() promises: MISSING_TENSOR, INVALID_DTYPE or INVALID_SHAPE. F8_E4M3 carries its F8_E8M0
    // companion as scales, whose shape is not checked here.
    ds41_tensor tensor(std::string_view name) const;

    // NUL-terminated; NULL when there is no such key.
    const char *metadata(std::string_view key) const { return header_.metadata.find(key); }

private:
    void read(std::span<const std::byte> bytes);

    Mapping mapping_;
    SafetensorsHeader header_;
};

} // namespace ds41
