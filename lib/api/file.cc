// Safetensors files.
#include "api/boundary.h"
#include "api/handles.h"

using namespace ds41;

ds41_status ds41_file_load(ds41_file **file, const char *path) {
    return guarded(__func__, [&] {
        check_argument(file, "file");
        check_argument(path, "path");
        *file = new ds41_file{SafetensorsFile(path)};
    });
}

void ds41_file_destroy(ds41_file *file) {
    delete file;
}

int64_t ds41_file_get_n_tensors(const ds41_file *file) {
    return file ? static_cast<int64_t>(file->impl.n_tensors()) : 0;
}

const char *ds41_file_get_tensor_name(const ds41_file *file, int64_t index) {
    return file && index >= 0 && index < ds41_file_get_n_tensors(file)
               ? file->impl.name(static_cast<std::size_t>(index))
               : nullptr;
}

ds41_status ds41_file_get_tensor(const ds41_file *file, const char *name, ds41_tensor *tensor) {
    return guarded(__func__, [&] {
        check_argument(file, "file");
        check_argument(name, "name");
        check_argument(tensor, "tensor");
        *tensor = file->impl.tensor(name);
    });
}

const char *ds41_file_get_metadata(const ds41_file *file, const char *key) {
    return file && key ? file->impl.metadata(key) : nullptr;
}
