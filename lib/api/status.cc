// Version, status names, and the last error of a thread.
#include "api/boundary.h"

#include <cstdio>

namespace ds41 {

namespace {

// Plain bytes: nothing to construct, nothing to allocate when memory is what ran out.
thread_local char last_error[4096];

} // namespace

void set_last_error(const char *function, const char *message) noexcept {
    std::snprintf(last_error, sizeof last_error, "%s: %s", function, message);
    trim_cut_character(last_error, sizeof last_error);
}

} // namespace ds41

#define DS41_TEXT_OF(x) #x
#define DS41_TEXT(x) DS41_TEXT_OF(x)

const char *ds41_version(void) {
    return DS41_TEXT(DS41_VERSION_MAJOR) "." DS41_TEXT(DS41_VERSION_MINOR) "." DS41_TEXT(DS41_VERSION_PATCH);
}

const char *ds41_status_name(ds41_status status) {
    switch (status) {
#define DS41_CASE(name)                                                                                                \
    case name:                                                                                                         \
        return #name
        DS41_CASE(DS41_STATUS_OK);
        DS41_CASE(DS41_STATUS_INVALID_ARGUMENT);
        DS41_CASE(DS41_STATUS_INVALID_STRUCT);
        DS41_CASE(DS41_STATUS_INVALID_DTYPE);
        DS41_CASE(DS41_STATUS_INVALID_SHAPE);
        DS41_CASE(DS41_STATUS_INVALID_LAYER);
        DS41_CASE(DS41_STATUS_INVALID_POSITION);
        DS41_CASE(DS41_STATUS_INVALID_CONFIG);
        DS41_CASE(DS41_STATUS_WRONG_ORDER);
        DS41_CASE(DS41_STATUS_MISSING_WEIGHTS);
        DS41_CASE(DS41_STATUS_UNSUPPORTED);
        DS41_CASE(DS41_STATUS_NO_BACKEND);
        DS41_CASE(DS41_STATUS_OUT_OF_MEMORY);
        DS41_CASE(DS41_STATUS_DEVICE_ERROR);
        DS41_CASE(DS41_STATUS_IO_ERROR);
        DS41_CASE(DS41_STATUS_INVALID_FILE);
        DS41_CASE(DS41_STATUS_MISSING_TENSOR);
        DS41_CASE(DS41_STATUS_CANCELLED);
        DS41_CASE(DS41_STATUS_INTERNAL);
#undef DS41_CASE
    }
    return "unknown status";
}

const char *ds41_last_error(void) {
    return ds41::last_error;
}
