// What every exported function is built from: exceptions become statuses, structs of other versions are read and
// written.
#pragma once

#include "ds41/ds41.h"
#include "error.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <stdexcept>

namespace ds41 {

// Keep "function: message" for ds41_last_error() of this thread.
void set_last_error(const char *function, const char *message) noexcept;

template <typename Body> ds41_status guarded(const char *function, Body &&body) noexcept {
    try {
        body();
        return DS41_STATUS_OK;
    } catch (const Error &error) {
        set_last_error(function, error.what());
        return error.status();
    } catch (const std::bad_alloc &) {
        set_last_error(function, "out of memory");
        return DS41_STATUS_OUT_OF_MEMORY;
    } catch (const std::length_error &) { // a vector asked for more than any allocator has
        set_last_error(function, "out of memory");
        return DS41_STATUS_OUT_OF_MEMORY;
    } catch (const std::exception &error) {
        set_last_error(function, error.what());
    } catch (...) {
        set_last_error(function, "unknown exception");
    }
    return DS41_STATUS_INTERNAL;
}

inline void check_argument(const void *argument, const char *name) {
    DS41_CHECK(argument != nullptr, DS41_STATUS_INVALID_ARGUMENT, "%s is NULL", name);
}

// Smaller than a struct has ever been (none has grown yet), or larger than one will ever be: _init was not called.
constexpr std::size_t kMostUnknownBytes = 4096;

template <typename T> void check_struct_size(const T *value, const char *name) {
    check_argument(value, name);
    DS41_CHECK(value->struct_size >= sizeof(T) && value->struct_size <= sizeof(T) + kMostUnknownBytes,
               DS41_STATUS_INVALID_STRUCT,
               "%s->struct_size is %u, need a value in [%zu, %zu] (set by its _init function)", name,
               value->struct_size, sizeof(T), sizeof(T) + kMostUnknownBytes);
}

// A caller's struct, perhaps of a newer version: what we do not know must be zero.
template <typename T> const T &read_struct(const T *value, const char *name) {
    check_struct_size(value, name);
    const auto *bytes = reinterpret_cast<const unsigned char *>(value);
    for (std::uint32_t i = sizeof(T); i < value->struct_size; ++i)
        DS41_CHECK(bytes[i] == 0, DS41_STATUS_UNSUPPORTED,
                   "%s has a non-zero byte at offset %u, beyond the %zu bytes that version %s knows", name, i,
                   sizeof(T), ds41_version());
    return *value;
}

// Fill a caller's struct, whose size stays what the caller said.
template <typename T> void write_struct(T *target, const char *name, const T &value) {
    check_struct_size(target, name);
    const std::uint32_t struct_size = target->struct_size;
    *target = value;
    target->struct_size = struct_size;
    std::memset(reinterpret_cast<unsigned char *>(target) + sizeof(T), 0, struct_size - sizeof(T));
}

// The body of an _init function: nothing beyond the caller's struct is written. False where it is too small for members
// to be set; its struct_size then has it refused.
template <typename T> bool init_struct(T *value, std::size_t struct_size) noexcept {
    if (!value || struct_size < sizeof value->struct_size) return false;
    std::memset(static_cast<void *>(value), 0, struct_size);
    value->struct_size = static_cast<std::uint32_t>(std::min<std::size_t>(struct_size, UINT32_MAX));
    return struct_size >= sizeof(T);
}

} // namespace ds41
