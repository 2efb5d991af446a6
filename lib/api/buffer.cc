// Device memory for callers.
#include "api/boundary.h"
#include "api/handles.h"

using namespace ds41;

namespace {

void check_range(const ds41_buffer &buffer, uint64_t offset, uint64_t n_bytes) {
    const uint64_t size = buffer.block.n_bytes();
    DS41_CHECK(offset <= size, DS41_STATUS_INVALID_ARGUMENT, "offset is %llu, need a value in [0, %llu]",
               static_cast<unsigned long long>(offset), static_cast<unsigned long long>(size));
    DS41_CHECK(n_bytes <= size - offset, DS41_STATUS_INVALID_ARGUMENT,
               "n_bytes is %llu at offset %llu, need a value in [0, %llu]", static_cast<unsigned long long>(n_bytes),
               static_cast<unsigned long long>(offset), static_cast<unsigned long long>(size - offset));
}

} // namespace

ds41_status ds41_buffer_create(ds41_buffer **buffer, ds41_model *model, uint64_t n_bytes) {
    return guarded(__func__, [&] {
        check_argument(buffer, "buffer");
        check_argument(model, "model");
        DS41_CHECK(n_bytes >= 1, DS41_STATUS_INVALID_ARGUMENT, "n_bytes is 0, need 1 or more");
        Block block(model->impl->memory(), n_bytes);
        *buffer = new ds41_buffer{model->impl, std::move(block)};
    });
}

void ds41_buffer_destroy(ds41_buffer *buffer) {
    delete buffer;
}

void *ds41_buffer_get_data(const ds41_buffer *buffer) {
    return buffer ? buffer->block.data() : nullptr;
}

uint64_t ds41_buffer_get_bytes(const ds41_buffer *buffer) {
    return buffer ? buffer->block.n_bytes() : 0;
}

ds41_status ds41_buffer_upload(ds41_buffer *buffer, uint64_t offset, const void *source, uint64_t n_bytes) {
    return guarded(__func__, [&] {
        check_argument(buffer, "buffer");
        check_argument(source, "source");
        check_range(*buffer, offset, n_bytes);
        buffer->model->memory().upload(buffer->block.as<char>() + offset, source, n_bytes);
    });
}

ds41_status ds41_buffer_download(const ds41_buffer *buffer, uint64_t offset, void *target, uint64_t n_bytes) {
    return guarded(__func__, [&] {
        check_argument(buffer, "buffer");
        check_argument(target, "target");
        check_range(*buffer, offset, n_bytes);
        buffer->model->memory().download(target, buffer->block.as<char>() + offset, n_bytes);
    });
}
