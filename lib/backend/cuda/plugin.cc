// Finding and opening a plugin, and device memory through it.
#include "backend/cuda/plugin.h"

#include "error.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <vector>

#include <dlfcn.h>

namespace ds41 {

namespace {

// Where this library itself lies, with the slash at its end; "" when that cannot be told.
std::string own_folder() {
    Dl_info info{};
    if (!::dladdr(reinterpret_cast<const void *>(&own_folder), &info) || !info.dli_fname) return "";
    const std::string path = info.dli_fname;
    const std::size_t slash = path.rfind('/');
    return slash == std::string::npos ? "" : path.substr(0, slash + 1);
}

} // namespace

DevicePlugin::DevicePlugin(const char *name) noexcept {
    try {
        const std::string file = std::string("libds41-") + name + ".so";
        std::string path = own_folder() + file;
        if (const char *folder = std::getenv("DS41_PLUGIN_PATH"); folder && *folder) path = folder + ("/" + file);
        void *library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            std::snprintf(why_not_, sizeof why_not_, "%s", ::dlerror());
            return;
        }
        const auto plugin = reinterpret_cast<DevicePluginFn>(::dlsym(library, kDevicePluginSymbol));
        const DeviceFunctions *functions = plugin ? plugin(kDeviceVersion) : nullptr;
        if (!functions) {
            std::snprintf(why_not_, sizeof why_not_, "%s is of another version than this library", path.c_str());
            return;
        }
        if (const int error = functions->open()) {
            std::snprintf(why_not_, sizeof why_not_, "%s", functions->describe(error));
            return;
        }
        functions_ = functions;
    } catch (const std::bad_alloc &) {
        std::snprintf(why_not_, sizeof why_not_, "out of memory");
    }
}

const DevicePlugin &cuda_plugin() noexcept {
    static const DevicePlugin plugin("cuda");
    return plugin;
}

const DevicePlugin &sim_plugin() noexcept {
    static const DevicePlugin plugin("sim");
    return plugin;
}

void check_device(const DeviceFunctions &device, int error, const char *doing) {
    if (error == 0) return;
    if (device.is_out_of_memory(error)) throw std::bad_alloc();
    throw Error(DS41_STATUS_DEVICE_ERROR, "%s: %s", doing, device.describe(error));
}

std::shared_ptr<std::atomic<int>> captures_of_this_thread() {
    thread_local const auto captures = std::make_shared<std::atomic<int>>(0);
    return captures;
}

namespace {

struct Deferred {
    const DeviceFunctions *device;
    void *data;
};
std::mutex deferred_mutex;
std::vector<Deferred> deferred;

void check_not_capturing(const char *doing) {
    DS41_CHECK(*captures_of_this_thread() == 0, DS41_STATUS_WRONG_ORDER,
               "%s device memory while this thread captures a graph, need ds41_graph_end() first", doing);
}

} // namespace

void release_deferred() noexcept {
    if (*captures_of_this_thread() > 0) return;
    const std::lock_guard<std::mutex> lock(deferred_mutex);
    for (const Deferred &memory : deferred) memory.device->release(memory.data);
    deferred.clear();
}

void *DeviceMemory::allocate(std::size_t n_bytes) const {
    check_not_capturing("allocating");
    void *data = nullptr;
    check_device(*plugin_.functions(), plugin_.functions()->allocate(&data, n_bytes), "allocating device memory");
    return data;
}

void DeviceMemory::release(void *data) const noexcept {
    if (*captures_of_this_thread() > 0) {
        try {
            const std::lock_guard<std::mutex> lock(deferred_mutex);
            deferred.push_back({plugin_.functions(), data});
        } catch (const std::bad_alloc &) { // lost rather than the capture
        }
        return;
    }
    plugin_.functions()->release(data);
}

void DeviceMemory::upload(void *target, const void *source, std::size_t n_bytes) const {
    check_not_capturing("writing to");
    if (n_bytes)
        check_device(*plugin_.functions(), plugin_.functions()->upload_now(target, source, n_bytes), "uploading");
}

void DeviceMemory::download(void *target, const void *source, std::size_t n_bytes) const {
    check_not_capturing("reading from");
    if (n_bytes)
        check_device(*plugin_.functions(), plugin_.functions()->download_now(target, source, n_bytes), "downloading");
}

bool DeviceMemory::owns(const void *data, std::size_t n_bytes) const noexcept {
    return plugin_.functions()->owns(data, n_bytes) != 0;
}

const void *DeviceMemory::allocation_of(const void *data) const noexcept {
    return plugin_.functions()->allocation_of(data);
}

const Memory &cuda_memory() noexcept {
    static const DeviceMemory memory(cuda_plugin());
    return memory;
}

const Memory &sim_memory() noexcept {
    static const DeviceMemory memory(sim_plugin());
    return memory;
}

} // namespace ds41
