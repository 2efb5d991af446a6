// Version, names, the error of a thread, tensors as values.
#include "support.h"

#include <climits>
#include <cstring>
#include <thread>

using namespace api_test;

TEST_CASE("the library is of the header's version") {
    const std::string expected = std::to_string(DS41_VERSION_MAJOR) + "." + std::to_string(DS41_VERSION_MINOR) + "." +
                                 std::to_string(DS41_VERSION_PATCH);
    CHECK(expected == ds41_version());
}

TEST_CASE("every status and dtype has its constant's name") {
#define NAMED(constant) CHECK(std::string(ds41_status_name(constant)) == #constant)
    NAMED(DS41_STATUS_OK);
    NAMED(DS41_STATUS_INVALID_ARGUMENT);
    NAMED(DS41_STATUS_INVALID_STRUCT);
    NAMED(DS41_STATUS_INVALID_DTYPE);
    NAMED(DS41_STATUS_INVALID_SHAPE);
    NAMED(DS41_STATUS_INVALID_LAYER);
    NAMED(DS41_STATUS_INVALID_POSITION);
    NAMED(DS41_STATUS_INVALID_CONFIG);
    NAMED(DS41_STATUS_WRONG_ORDER);
    NAMED(DS41_STATUS_MISSING_WEIGHTS);
    NAMED(DS41_STATUS_UNSUPPORTED);
    NAMED(DS41_STATUS_NO_BACKEND);
    NAMED(DS41_STATUS_OUT_OF_MEMORY);
    NAMED(DS41_STATUS_DEVICE_ERROR);
    NAMED(DS41_STATUS_IO_ERROR);
    NAMED(DS41_STATUS_INVALID_FILE);
    NAMED(DS41_STATUS_MISSING_TENSOR);
    NAMED(DS41_STATUS_INTERNAL);
#undef NAMED
    for (const int number : {1, 9, 17, 99, 127}) {
        CHECK(std::string(ds41_status_name(static_cast<ds41_status>(number))) == "unknown status");
    }
    const char *const names[] = {"NONE", "F32", "BF16", "FP8_E4M3", "Q2_K", "I32", "U8", "I8", "F16", "UE8M0"};
    for (int32_t dtype = DS41_DTYPE_NONE; dtype <= DS41_DTYPE_UE8M0; dtype++) {
        CHECK(std::string(ds41_dtype_name(dtype)) == names[dtype]);
    }
    for (const int32_t dtype : {-1, 10, INT32_MAX, INT32_MIN}) {
        CHECK(std::string(ds41_dtype_name(dtype)) == "unknown dtype");
    }
}

TEST_CASE("an error belongs to its thread and outlives calls that succeed") {
    CHECK(ds41_config_validate(nullptr) == DS41_STATUS_INVALID_ARGUMENT);
    const std::string mine = ds41_last_error();
    CHECK(has_word(mine, "ds41_config_validate"));
    ds41_config config = small_config();
    must(ds41_config_validate(&config));
    CHECK(ds41_last_error() == mine);
    std::string fresh = "?", theirs;
    std::thread other([&] {
        fresh = ds41_last_error();
        ds41_seq_reset(nullptr);
        theirs = ds41_last_error();
    });
    other.join();
    CHECK(fresh.empty());
    CHECK(has_word(theirs, "ds41_seq_reset"));
    CHECK(ds41_last_error() == mine);
    ds41_file *file = nullptr;
    CHECK(ds41_file_load(&file, "/nonexistent/a") == DS41_STATUS_IO_ERROR);
    CHECK(has_word(ds41_last_error(), "ds41_file_load"));
    CHECK(!has_word(ds41_last_error(), "ds41_config_validate"));
}

TEST_CASE("an argument of any length leaves a sentence that ends") {
    const std::string path = "/" + std::string(5000, 'x');
    ds41_file *file = nullptr;
    CHECK(ds41_file_load(&file, path.c_str()) == DS41_STATUS_IO_ERROR);
    CHECK(std::strlen(ds41_last_error()) > 0);
    CHECK(has_word(ds41_last_error(), "ds41_file_load"));
}

TEST_CASE("ds41_tensor_init fills every member") {
    const int64_t shape[6] = {2, 3, 5, 7, 11, 13};
    int place = 0;
    for (int32_t n_dims = 0; n_dims <= 4; n_dims++) {
        CAPTURE(n_dims);
        ds41_tensor tensor;
        std::memset(&tensor, 0xA5, sizeof(tensor));
        ds41_tensor_init(&tensor, &place, DS41_DTYPE_I32, n_dims, shape);
        CHECK(tensor.data == &place);
        CHECK(tensor.scales == nullptr);
        CHECK(tensor.dtype == DS41_DTYPE_I32);
        CHECK(tensor.n_dims == n_dims);
        CHECK(tensor.flags == 0);
        CHECK(tensor.reserved == 0);
        CHECK(tensor.scale_shape[0] == 0);
        CHECK(tensor.scale_shape[1] == 0);
        for (int32_t i = 0; i < DS41_MAX_DIMS; i++) CHECK(tensor.shape[i] == (i < n_dims ? shape[i] : 0));
    }
    // A rank that does not fit is kept, so that the tensor is refused later.
    for (const int32_t n_dims : {5, 6, INT32_MAX, -1, INT32_MIN}) {
        CAPTURE(n_dims);
        struct {
            ds41_tensor tensor;
            uint64_t behind = 0x5A5A;
        } memory;
        ds41_tensor_init(&memory.tensor, &place, DS41_DTYPE_I32, n_dims, shape);
        CHECK(memory.behind == 0x5A5A);
        uint64_t n_bytes = 77;
        check_refused(ds41_tensor_get_bytes(&memory.tensor, &n_bytes), {DS41_STATUS_INVALID_SHAPE},
                      "ds41_tensor_get_bytes", {"tensor", "n_dims|dimensions"});
        CHECK(n_bytes == 77);
    }
    ds41_tensor tensor;
    ds41_tensor_init(&tensor, nullptr, DS41_DTYPE_F32, 0, nullptr);
    CHECK(tensor.data == nullptr);
}

TEST_CASE("ds41_tensor_get_bytes counts by dtype and shape") {
    struct Row {
        int32_t dtype;
        std::vector<int64_t> shape;
        uint64_t n_bytes;
    };
    const std::vector<Row> rows = {
        {DS41_DTYPE_F32, {2, 3}, 24},
        {DS41_DTYPE_I32, {7}, 28},
        {DS41_DTYPE_BF16, {2, 3, 5, 7}, 420},
        {DS41_DTYPE_F16, {3}, 6},
        {DS41_DTYPE_U8, {5, 5}, 25},
        {DS41_DTYPE_I8, {1}, 1},
        {DS41_DTYPE_UE8M0, {3, 4}, 12},
        {DS41_DTYPE_FP8_E4M3, {33, 64}, 2112},
        {DS41_DTYPE_Q2_K, {3, 512}, 3 * 2 * 84},
        {DS41_DTYPE_Q2_K, {256}, 84},
        {DS41_DTYPE_U8, {int64_t(1) << 31, int64_t(1) << 31}, uint64_t(1) << 62},
        {DS41_DTYPE_U8, {INT64_MAX}, uint64_t(INT64_MAX)},
        {DS41_DTYPE_F32, {int64_t(1) << 30, int64_t(1) << 30}, uint64_t(1) << 62},
    };
    for (const Row &row : rows) {
        ds41_tensor tensor;
        ds41_tensor_init(&tensor, nullptr, row.dtype, static_cast<int32_t>(row.shape.size()), row.shape.data());
        uint64_t n_bytes = 0;
        must(ds41_tensor_get_bytes(&tensor, &n_bytes));
        CHECK(n_bytes == row.n_bytes);
    }

    struct Fault {
        int32_t dtype;
        std::vector<int64_t> shape;
        ds41_status status;
        std::vector<std::string> words;
    };
    const std::vector<Fault> faults = {
        {DS41_DTYPE_NONE, {4}, DS41_STATUS_INVALID_DTYPE, {"tensor", "dtype"}},
        {10, {4}, DS41_STATUS_INVALID_DTYPE, {"tensor", "dtype", "10"}},
        {-1, {4}, DS41_STATUS_INVALID_DTYPE, {"tensor", "dtype", "-1"}},
        {DS41_DTYPE_F32, {-1, 4}, DS41_STATUS_INVALID_SHAPE, {"tensor", "-1"}},
        {DS41_DTYPE_F32, {4, INT64_MIN}, DS41_STATUS_INVALID_SHAPE, {"tensor", "-9223372036854775808"}},
        {DS41_DTYPE_Q2_K, {4, 255}, DS41_STATUS_INVALID_SHAPE, {"tensor", "255", "256"}},
        {DS41_DTYPE_Q2_K, {256, 84}, DS41_STATUS_INVALID_SHAPE, {"tensor", "84", "256"}},
        {DS41_DTYPE_F32, {INT64_MAX}, DS41_STATUS_INVALID_SHAPE, {"tensor"}},
        {DS41_DTYPE_U8, {int64_t(1) << 32, int64_t(1) << 31}, DS41_STATUS_INVALID_SHAPE, {"tensor"}},
        {DS41_DTYPE_F32, {int64_t(1) << 31, int64_t(1) << 30}, DS41_STATUS_INVALID_SHAPE, {"tensor"}},
        {DS41_DTYPE_F32,
         {int64_t(1) << 31, int64_t(1) << 31, int64_t(1) << 31, 2},
         DS41_STATUS_INVALID_SHAPE,
         {"tensor"}},
        {DS41_DTYPE_BF16,
         {int64_t(1) << 16, int64_t(1) << 16, int64_t(1) << 16, int64_t(1) << 16},
         DS41_STATUS_INVALID_SHAPE,
         {"tensor"}},
    };
    for (const Fault &fault : faults) {
        ds41_tensor tensor;
        ds41_tensor_init(&tensor, nullptr, fault.dtype, static_cast<int32_t>(fault.shape.size()), fault.shape.data());
        uint64_t n_bytes = 77;
        check_refused(ds41_tensor_get_bytes(&tensor, &n_bytes), {fault.status}, "ds41_tensor_get_bytes", fault.words);
        CHECK(n_bytes == 77);
    }
}
