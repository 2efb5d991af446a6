// A whole file, mapped read-only into memory (POSIX). The file must stay as it is while it is mapped: a page that is
// truncated away faults. Only regular files are accepted, and opening one never waits for a writer at its other end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

namespace ds41 {

// An open file; closes itself.
class Descriptor {
public:
    Descriptor() noexcept = default;
    explicit Descriptor(int fd) noexcept : fd_(fd) {}
    Descriptor(Descriptor &&other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    Descriptor &operator=(Descriptor &&other) noexcept {
        std::swap(fd_, other.fd_);
        return *this;
    }
    ~Descriptor();
    int get() const noexcept { return fd_; }

private:
    int fd_ = -1;
};

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

    // Copy bytes [offset, offset + target.size()) by reading: other than an access to the mapping this survives a file
    // that was truncated meanwhile. Any thread. Throws DS41_STATUS_IO_ERROR, without the path.
    void read(uint64_t offset, std::span<std::byte> target) const;

    // Ask the system to fetch these bytes; does not wait. What is beyond the end is ignored.
    void read_ahead(uint64_t offset, uint64_t n_bytes) const noexcept;

private:
    Descriptor file_;
    const std::byte *data_ = nullptr;
    size_t n_bytes_ = 0;
};

} // namespace ds41
