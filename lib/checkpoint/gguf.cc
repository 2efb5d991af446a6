#include "checkpoint/gguf.h"

#include "checkpoint/text.h"
#include "error.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

namespace ds41 {

namespace {

constexpr uint64_t kFixedBytes = 24;                        // Magic, version, two counts.
constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8; // A name of one byte, one size, a type, an offset.
constexpr uint32_t kMaxDims = 4;
constexpr int64_t kDefaultAlignment = 32;
constexpr char kAlignmentKey[] = "general.alignment";

void check_magic_and_version(GgufReader &reader) {
    const size_t n_bytes = reader.bytes().size();
    DS41_CHECK(n_bytes >= kFixedBytes, DS41_STATUS_INVALID_FILE,
               "not a GGUF file: %zu bytes, need %" PRIu64 " or more (magic, version and two counts)", n_bytes,
               kFixedBytes);
    DS41_CHECK(std::memcmp(reader.take(4, "the magic").data(), "GGUF", 4) == 0, DS41_STATUS_INVALID_FILE,
               "not a GGUF file: it does not begin with \"GGUF\"");
    const uint32_t version = reader.u32("the version");
    const uint32_t swapped = __builtin_bswap32(version);
    DS41_CHECK(swapped < 1 || swapped > 0xFFFF, DS41_STATUS_UNSUPPORTED,
               "the file is big endian (version %" PRIu32 " with its bytes swapped), need little endian", swapped);
    DS41_CHECK(version == 2 || version == 3, DS41_STATUS_UNSUPPORTED, "GGUF version %" PRIu32 ", need 2 or 3", version);
}

int64_t read_alignment(const GgufMetadata &metadata) {
    const int64_t alignment = metadata.integer(kAlignmentKey).value_or(kDefaultAlignment);
    DS41_CHECK(alignment > 0 && alignment % 8 == 0, DS41_STATUS_INVALID_FILE,
               "key \"%s\" is %" PRId64 ", need a multiple of 8, at least 8", kAlignmentKey, alignment);
    return alignment;
}

// One entry of the table. Its offset is still that from the start of the data.
GgufTensor read_tensor(GgufReader &reader) {
    GgufTensor tensor;
    tensor.name = reader.name("a tensor's name");
    const std::string name = quoted(tensor.name);
    const uint32_t n_dims = reader.u32("the number of a tensor's dimensions");
    DS41_CHECK(n_dims >= 1 && n_dims <= kMaxDims, DS41_STATUS_INVALID_FILE,
               "tensor %s has %" PRIu32 " dimensions, need 1 to %" PRIu32, name.c_str(), n_dims, kMaxDims);
    tensor.shape.resize(n_dims);
    for (uint32_t i = n_dims; i-- > 0;) {
        const uint64_t size = reader.u64("a tensor's dimension");
        DS41_CHECK(size <= static_cast<uint64_t>(INT64_MAX), DS41_STATUS_INVALID_FILE,
                   "tensor %s has a dimension of %" PRIu64 ", need at most %" PRId64, name.c_str(), size, INT64_MAX);
        tensor.shape[i] = static_cast<int64_t>(size);
    }
    tensor.type_id = reader.u32("a tensor's type");
    tensor.type = find_gguf_type(tensor.type_id);
    tensor.offset = reader.u64("a tensor's offset");
    if (!tensor.type) return tensor;

    DS41_CHECK(tensor.shape.back() % tensor.type->block_values == 0, DS41_STATUS_INVALID_FILE,
               "tensor %s has rows of %" PRId64 " values, need a multiple of %" PRIu32 " (%s)", name.c_str(),
               tensor.shape.back(), tensor.type->block_values, tensor.type->name);
    // Whole blocks times their bytes; a row comes first, so that the division is exact.
    tensor.n_bytes = static_cast<uint64_t>(tensor.shape.back()) / tensor.type->block_values;
    bool overflows = __builtin_mul_overflow(tensor.n_bytes, uint64_t{tensor.type->block_bytes}, &tensor.n_bytes);
    for (uint32_t i = 0; i + 1 < n_dims; ++i)
        overflows |= __builtin_mul_overflow(tensor.n_bytes, static_cast<uint64_t>(tensor.shape[i]), &tensor.n_bytes);
    DS41_CHECK(!overflows, DS41_STATUS_INVALID_FILE,
               "tensor %s: %s of shape %s takes more bytes than 64 bits can count", name.c_str(), tensor.type->name,
               shape_text(tensor.shape).c_str());
    return tensor;
}

// Makes the offset one from the start of the file.
void place_tensor(GgufTensor &tensor, uint64_t data_begin, uint64_t alignment, uint64_t file_bytes) {
    const std::string name = quoted(tensor.name);
    DS41_CHECK(tensor.offset % alignment == 0, DS41_STATUS_INVALID_FILE,
               "tensor %s has the offset %" PRIu64 ", need a multiple of %" PRIu64 " (the file's alignment)",
               name.c_str(), tensor.offset, alignment);
    const uint64_t n_data = file_bytes > data_begin ? file_bytes - data_begin : 0;
    DS41_CHECK(tensor.offset <= n_data && tensor.n_bytes <= n_data - tensor.offset, DS41_STATUS_INVALID_FILE,
               "tensor %s ends beyond the file: offset %" PRIu64 " and %" PRIu64 " bytes (%s, shape %s), but %" PRIu64
               " bytes of data",
               name.c_str(), tensor.offset, tensor.n_bytes, tensor.type ? tensor.type->name : "of an unknown type",
               shape_text(tensor.shape).c_str(), n_data);
    tensor.offset += std::min(data_begin, file_bytes); // A file without tensor bytes may end before its padding.
}

void check_overlaps(std::span<const GgufTensor> tensors) {
    std::vector<const GgufTensor *> by_offset;
    by_offset.reserve(tensors.size());
    for (const GgufTensor &tensor : tensors)
        if (tensor.n_bytes > 0) by_offset.push_back(&tensor);
    std::sort(by_offset.begin(), by_offset.end(),
              [](const GgufTensor *a, const GgufTensor *b) { return a->offset < b->offset; });
    for (size_t i = 1; i < by_offset.size(); ++i) {
        const GgufTensor &a = *by_offset[i - 1], &b = *by_offset[i];
        DS41_CHECK(b.offset - a.offset >= a.n_bytes, DS41_STATUS_INVALID_FILE,
                   "tensors %s and %s overlap: one has bytes %" PRIu64 " to %" PRIu64
                   " of the file, the other begins at %" PRIu64,
                   quoted(a.name).c_str(), quoted(b.name).c_str(), a.offset, a.offset + a.n_bytes, b.offset);
    }
}

} // namespace

GgufFile::GgufFile(const std::string &path) : mapping_(path) {
    try {
        read(mapping_.bytes());
    } catch (const Error &error) {
        throw Error(error.status(), "path %s: %s", shortened_path(path).c_str(), error.what());
    }
}

GgufFile::GgufFile(std::span<const std::byte> bytes) {
    read(bytes);
}

void GgufFile::read(std::span<const std::byte> bytes) {
    bytes_ = bytes;
    GgufReader reader(bytes);
    check_magic_and_version(reader);
    const uint64_t n_tensors = reader.count(kMinTensorBytes, "the number of tensors");
    const uint64_t n_entries = reader.count(GgufMetadata::kMinEntryBytes, "the number of metadata entries");
    metadata_.read(reader, n_entries);
    const uint64_t alignment = static_cast<uint64_t>(read_alignment(metadata_));

    for (uint64_t i = 0; i < n_tensors; ++i) tensors_.push_back(read_tensor(reader));
    // Both terms are below 2^63.
    const uint64_t data_begin = (reader.position() + alignment - 1) / alignment * alignment;
    for (GgufTensor &tensor : tensors_) place_tensor(tensor, data_begin, alignment, bytes.size());

    std::sort(tensors_.begin(), tensors_.end(),
              [](const GgufTensor &a, const GgufTensor &b) { return a.name < b.name; });
    const auto twice = std::adjacent_find(tensors_.begin(), tensors_.end(),
                                          [](const GgufTensor &a, const GgufTensor &b) { return a.name == b.name; });
    DS41_CHECK(twice == tensors_.end(), DS41_STATUS_INVALID_FILE, "tensor %s appears twice",
               quoted(twice->name).c_str());
    check_overlaps(tensors_);
}

const GgufTensor *GgufFile::find(std::string_view name) const noexcept {
    const auto found =
        std::lower_bound(tensors_.begin(), tensors_.end(), name,
                         [](const GgufTensor &tensor, std::string_view wanted) { return tensor.name < wanted; });
    return found == tensors_.end() || found->name != name ? nullptr : &*found;
}

} // namespace ds41
