// A whole file, mapped read-only into memory (POSIX). The file must stay as it is while it is mapped: a page that is
// truncated away faults. Only regular files are accepted, and opening one never waits for a writer at its other end.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace ds41 {

class Mapping {
public:
    Mapping() noexcept = default;

    // Throws DS41_STATUS_IO_ERROR with the path and the system's reason.
    explicit Mapping(const std::string &path);

    Mapping(Mapping &&other) noexcept;
    Mapping &operator=(Mapping &&other) noexcept;
    Mapping(const Mapping &) = delete;
    Mapping &operator=(const Mapping &) = delete;
    ~Mapping();

    // Empty for an empty file. Valid until the mapping is destroyed; moving keeps the address.
    std::span<const std::byte> bytes() const noexcept { return {data_, n_bytes_}; }

private:
    const std::byte *data_ = nullptr;
    size_t n_bytes_ = 0;
};

} // namespace ds41
