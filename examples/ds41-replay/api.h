// Handles of the C API that free themselves, and its errors as exceptions. Nothing here but ds41/ds41.h.
#pragma once

#include <ds41/ds41.h>

#include <memory>
#include <stdexcept>
#include <string>

namespace replay {

/// A file cannot be replayed; the message is a sentence for the user. Other files go on.
struct CannotRun : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Destroy {
    void operator()(ds41_file *file) const { ds41_file_destroy(file); }
    void operator()(ds41_model *model) const { ds41_model_destroy(model); }
    void operator()(ds41_ctx *ctx) const { ds41_ctx_destroy(ctx); }
    void operator()(ds41_seq *seq) const { ds41_seq_destroy(seq); }
    void operator()(ds41_buffer *buffer) const { ds41_buffer_destroy(buffer); }
};

template <class T> using Handle = std::unique_ptr<T, Destroy>;

inline void check(ds41_status status, const std::string &doing) {
    if (status != DS41_STATUS_OK)
        throw CannotRun(doing + ": " + ds41_last_error() + " [" + ds41_status_name(status) + "]");
}

} // namespace replay
