#include "backend/cuda/plugin/cublas.h"

#include <cublas_v2.h>

#include <cstdio>
#include <type_traits>

#include <dlfcn.h>

namespace ds41 {

namespace {

thread_local char sentence[384] = "";

struct Cublas {
    decltype(&cublasCreate_v2) create = nullptr;
    decltype(&cublasDestroy_v2) destroy = nullptr;
    decltype(&cublasSetStream_v2) set_stream = nullptr;
    decltype(&cublasSetMathMode) set_math_mode = nullptr;
    // The header has overloads of it in C++.
    cublasStatus_t (*gemm)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int, const void *,
                           const void *, cudaDataType, int, long long, const void *, cudaDataType, int, long long,
                           const void *, void *, cudaDataType, int, long long, int, cublasComputeType_t,
                           cublasGemmAlgo_t) = nullptr;
    char why_not[256] = "";

    Cublas() {
        // The major version whose header this was built with; its ABI is what the calls below rely on.
        char name[32];
        std::snprintf(name, sizeof name, "libcublas.so.%d", CUBLAS_VER_MAJOR);
        void *library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
        if (!library) {
            std::snprintf(why_not, sizeof why_not, "%s", ::dlerror());
            return;
        }
        const auto find = [&](auto &function, const char *symbol) {
            function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, symbol));
            if (!function && !*why_not) std::snprintf(why_not, sizeof why_not, "%s has no %s", name, symbol);
        };
        find(create, "cublasCreate_v2");
        find(destroy, "cublasDestroy_v2");
        find(set_stream, "cublasSetStream_v2");
        find(set_math_mode, "cublasSetMathMode");
        find(gemm, "cublasGemmStridedBatchedEx");
    }
};

const Cublas &cublas() {
    static const Cublas library;
    return library;
}

// A handle of this thread: handles are not for two threads at once.
struct Handle {
    cublasHandle_t handle = nullptr;
    ~Handle() {
        if (handle) cublas().destroy(handle);
    }
};

int failed(const char *call, cublasStatus_t status) {
    std::snprintf(sentence, sizeof sentence, "%s failed with cuBLAS status %d", call, static_cast<int>(status));
    return kCublasMissing + static_cast<int>(status);
}

} // namespace

const char *cublas_sentence() {
    return sentence;
}

int cublas_gemm(DeviceStream stream, const DeviceGemm &g) {
    if (*cublas().why_not) {
        std::snprintf(sentence, sizeof sentence, "a prefill of more than 16 tokens needs cuBLAS: %s", cublas().why_not);
        return kCublasMissing;
    }
    static thread_local Handle handle;
    if (!handle.handle) {
        if (const cublasStatus_t status = cublas().create(&handle.handle)) return failed("cublasCreate", status);
        // Without it partial sums may be rounded to bf16, the type of the output, before they are added.
        const auto mode =
            static_cast<cublasMath_t>(CUBLAS_DEFAULT_MATH | CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
        if (const cublasStatus_t status = cublas().set_math_mode(handle.handle, mode))
            return failed("cublasSetMathMode", status);
    }
    if (const cublasStatus_t status = cublas().set_stream(handle.handle, static_cast<cudaStream_t>(stream)))
        return failed("cublasSetStream", status);
    // Column-major: out^T[rows, n] = weights^T^T[rows, k] x^T[k, n].
    const float one = 1.0f, zero = 0.0f;
    const cublasStatus_t status = cublas().gemm(
        handle.handle, CUBLAS_OP_T, CUBLAS_OP_N, g.rows, g.n, g.k, &one, g.weights, CUDA_R_16BF, g.k,
        static_cast<long long>(g.rows) * g.k, g.x, CUDA_R_16BF, static_cast<int>(g.stride_x), g.k, &zero, g.out,
        CUDA_R_16BF, static_cast<int>(g.stride_out), g.rows, g.n_slices, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    return status ? failed("cublasGemmStridedBatchedEx", status) : 0;
}

} // namespace ds41
