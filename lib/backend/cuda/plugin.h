// Plugin libraries: found next to this library at first use, never needed to load it.
#pragma once

#include "backend/cuda/device.h"
#include "backend/memory.h"

#include <string>
#include <thread>

namespace ds41 {

// A plugin by the name of its backend, opened once; kept until the process ends, as contexts and buffers may be.
class DevicePlugin {
public:
    explicit DevicePlugin(const char *name) noexcept;

    // Null where it cannot be used; why_not() then says so in a sentence.
    const DeviceFunctions *functions() const noexcept { return functions_; }
    const char *why_not() const noexcept { return why_not_; }

private:
    const DeviceFunctions *functions_ = nullptr;
    char why_not_[512] = "";
};

const DevicePlugin &cuda_plugin() noexcept; // libds41-cuda
const DevicePlugin &sim_plugin() noexcept;  // libds41-sim: the same backend on the simulated device, for tests

// Throws std::bad_alloc or DEVICE_ERROR with `doing` and the device's sentence for an error that is not 0.
void check_device(const DeviceFunctions &device, int error, const char *doing);

// Between these two the calling thread captures a stream. Allocations and copies by that thread, which a capture in
// another mode than the relaxed one does not survive, are refused, and memory is freed when it captures nothing more.
// The end may come on another thread.
std::thread::id begin_thread_capture();
void end_thread_capture(std::thread::id thread) noexcept;
void release_deferred() noexcept;

class DeviceMemory final : public Memory {
public:
    explicit DeviceMemory(const DevicePlugin &plugin) noexcept : plugin_(plugin) {}

    void *allocate(std::size_t n_bytes) const override;
    void release(void *data) const noexcept override;
    void upload(void *target, const void *source, std::size_t n_bytes) const override;
    void download(void *target, const void *source, std::size_t n_bytes) const override;
    bool is_host() const noexcept override { return false; }
    bool owns(const void *data, std::size_t n_bytes) const noexcept override;
    std::uint64_t allocation_id(const void *data) const noexcept override;

private:
    const DevicePlugin &plugin_;
};

const Memory &cuda_memory() noexcept;
const Memory &sim_memory() noexcept;

} // namespace ds41
