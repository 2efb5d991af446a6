#include "checkpoint/safetensors.h"

#include "checkpoint/text.h"
#include "error.h"

#include <algorithm>
#include <cinttypes>

namespace ds41 {

namespace {

constexpr size_t kLengthBytes = 8;           // The header's length, little endian.
constexpr uint64_t kMaxHeader = 100'000'000; // The format's own limit.
constexpr std::string_view kWeight = ".weight", kScale = ".scale";

std::string_view read_header_text(std::span<const std::byte> bytes) {
    DS41_CHECK(bytes.size() >= kLengthBytes, DS41_STATUS_INVALID_FILE,
               "not a safetensors file: %zu bytes, need 8 or more (the header's length)", bytes.size());
    uint64_t length = 0;
    for (size_t i = 0; i < kLengthBytes; ++i) length |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
    const size_t n_left = bytes.size() - kLengthBytes;
    DS41_CHECK(length > 0 && length <= kMaxHeader, DS41_STATUS_INVALID_FILE,
               "not a safetensors file: the header's length is %" PRIu64 ", need a value in [1, %" PRIu64 "]", length,
               kMaxHeader);
    DS41_CHECK(length <= n_left, DS41_STATUS_INVALID_FILE,
               "the header of %" PRIu64 " bytes ends beyond the file: %zu bytes follow its length", length, n_left);
    return {reinterpret_cast<const char *>(bytes.data()) + kLengthBytes, static_cast<size_t>(length)};
}

// The format wants the data covered without gap or overlap: bytes that belong to no tensor can hide anything.
void check_coverage(std::span<const SafetensorsEntry> entries, std::span<const std::byte> data) {
    std::vector<const SafetensorsEntry *> by_offset;
    by_offset.reserve(entries.size());
    for (const SafetensorsEntry &entry : entries) by_offset.push_back(&entry);
    std::sort(by_offset.begin(), by_offset.end(), [](const SafetensorsEntry *a, const SafetensorsEntry *b) {
        return a->data != b->data ? a->data < b->data : a->n_bytes < b->n_bytes;
    });

    uint64_t covered = 0;
    const SafetensorsEntry *previous = nullptr;
    for (const SafetensorsEntry *entry : by_offset) {
        const uint64_t begin = static_cast<uint64_t>(entry->data - data.data());
        DS41_CHECK(begin >= covered, DS41_STATUS_INVALID_FILE,
                   "tensors %s and %s overlap: one ends at byte %" PRIu64 " of the data, the other begins at %" PRIu64,
                   quoted(previous->name).c_str(), quoted(entry->name).c_str(), covered, begin);
        DS41_CHECK(begin == covered, DS41_STATUS_INVALID_FILE,
                   "bytes %" PRIu64 " to %" PRIu64 " of the data, before tensor %s, belong to no tensor", covered,
                   begin, quoted(entry->name).c_str());
        covered = begin + entry->n_bytes;
        previous = entry;
    }
    DS41_CHECK(covered == data.size(), DS41_STATUS_INVALID_FILE,
               "bytes %" PRIu64 " to %zu of the data, its end, belong to no tensor", covered, data.size());
}

} // namespace

SafetensorsFile::SafetensorsFile(const std::string &path) : mapping_(path) {
    try {
        read(mapping_.bytes());
    } catch (const Error &error) {
        throw Error(error.status(), "path %s: %s", shortened_path(path).c_str(), error.what());
    }
}

SafetensorsFile::SafetensorsFile(std::span<const std::byte> bytes) {
    read(bytes);
}

void SafetensorsFile::read(std::span<const std::byte> bytes) {
    const std::string_view text = read_header_text(bytes);
    const std::span<const std::byte> data = bytes.subspan(kLengthBytes + text.size());
    header_ = parse_safetensors_header(text, data);

    std::vector<SafetensorsEntry> &entries = header_.entries;
    std::sort(entries.begin(), entries.end(),
              [](const SafetensorsEntry &a, const SafetensorsEntry &b) { return a.name < b.name; });
    const auto twice =
        std::adjacent_find(entries.begin(), entries.end(),
                           [](const SafetensorsEntry &a, const SafetensorsEntry &b) { return a.name == b.name; });
    DS41_CHECK(twice == entries.end(), DS41_STATUS_INVALID_FILE, "tensor %s appears twice",
               quoted(twice->name).c_str());
    check_coverage(entries, data);
}

const char *SafetensorsFile::name(size_t index) const noexcept {
    return index < n_tensors() ? header_.entries[index].name.c_str() : nullptr;
}

const SafetensorsEntry *SafetensorsFile::find(std::string_view name) const noexcept {
    const auto found =
        std::lower_bound(header_.entries.begin(), header_.entries.end(), name,
                         [](const SafetensorsEntry &entry, std::string_view wanted) { return entry.name < wanted; });
    return found == header_.entries.end() || found->name != name ? nullptr : &*found;
}

ds41_tensor SafetensorsFile::tensor(std::string_view name) const {
    const SafetensorsEntry *entry = find(name);
    DS41_CHECK(entry, DS41_STATUS_MISSING_TENSOR, "name is %s, none of the file's %zu tensors", quoted(name).c_str(),
               n_tensors());
    const SafetensorsDtype &dtype = *find_safetensors_dtype(entry->dtype);
    DS41_CHECK(dtype.dtype != DS41_DTYPE_NONE, DS41_STATUS_INVALID_DTYPE,
               "tensor %s is %s, need F32, BF16, F16, I32, U8, I8, F8_E4M3 or F8_E8M0", quoted(name).c_str(),
               dtype.name);
    const size_t n_dims = entry->shape.size();
    DS41_CHECK(n_dims >= 1 && n_dims <= DS41_MAX_DIMS, DS41_STATUS_INVALID_SHAPE,
               "tensor %s has %zu dimensions, need 1 to %d", quoted(name).c_str(), n_dims, DS41_MAX_DIMS);

    ds41_tensor tensor = {};
    tensor.data = const_cast<std::byte *>(entry->data); // The view is read-only by contract, not by type.
    tensor.dtype = dtype.dtype;
    tensor.n_dims = static_cast<int32_t>(n_dims);
    std::copy(entry->shape.begin(), entry->shape.end(), tensor.shape);

    if (dtype.dtype == DS41_DTYPE_FP8_E4M3 && name.ends_with(kWeight)) {
        const std::string_view stem = name.substr(0, name.size() - kWeight.size());
        const SafetensorsEntry *scale = find(std::string(stem).append(kScale));
        if (scale && scale->dtype == "F8_E8M0" && scale->shape.size() == 2) {
            tensor.scales = scale->data;
            std::copy(scale->shape.begin(), scale->shape.end(), tensor.scale_shape);
        }
    }
    return tensor;
}

} // namespace ds41
