// Finding and opening a plugin, and device memory through it.
#include "backend/cuda/plugin.h"

#include "error.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
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

namespace {

struct Deferred {
    const DeviceFunctions *device;
    void *data;
    std::thread::id thread;
};

struct Captures {
    std::atomic<int> n{0}; // of all threads
    std::mutex mutex;
    std::map<std::thread::id, int> by_thread;
    std::vector<Deferred> deferred;
};

// Never destroyed: a caller's static objects free memory when the process ends.
Captures &captures() {
    static Captures *const all = new Captures;
    return *all;
}

bool this_thread_captures() {
    Captures &all = captures();
    if (all.n == 0) return false;
    const std::lock_guard<std::mutex> lock(all.mutex);
    return all.by_thread.count(std::this_thread::get_id()) > 0;
}

void check_not_capturing(const char *doing) {
    DS41_CHECK(!this_thread_captures(), DS41_STATUS_WRONG_ORDER,
               "%s device memory while this thread captures a graph, need ds41_graph_end() first", doing);
}

} // namespace

std::thread::id begin_thread_capture() {
    Captures &all = captures();
    const std::lock_guard<std::mutex> lock(all.mutex);
    ++all.by_thread[std::this_thread::get_id()];
    ++all.n;
    return std::this_thread::get_id();
}

void end_thread_capture(std::thread::id thread) noexcept {
    Captures &all = captures();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = all.by_thread.find(thread);
    if (found == all.by_thread.end()) return;
    if (--found->second == 0) all.by_thread.erase(found);
    --all.n;
}

void release_deferred() noexcept {
    Captures &all = captures();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto is_over = [&](const Deferred &memory) {
        if (all.by_thread.count(memory.thread) > 0) return false;
        memory.device->release(memory.data);
        return true;
    };
    all.deferred.erase(std::remove_if(all.deferred.begin(), all.deferred.end(), is_over), all.deferred.end());
}

void *DeviceMemory::allocate(std::size_t n_bytes) const {
    check_not_capturing("allocating");
    void *data = nullptr;
    check_device(*plugin_.functions(), plugin_.functions()->allocate(&data, n_bytes), "allocating device memory");
    return data;
}

void DeviceMemory::release(void *data) const noexcept {
    if (this_thread_captures()) {
        try {
            Captures &all = captures();
            const std::lock_guard<std::mutex> lock(all.mutex);
            all.deferred.push_back({plugin_.functions(), data, std::this_thread::get_id()});
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

std::uint64_t DeviceMemory::allocation_id(const void *data) const noexcept {
    return plugin_.functions()->allocation_id(data);
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
