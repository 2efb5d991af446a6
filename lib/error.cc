// Formats the sentence of an error in place.
#include "error.h"

#include <cstdarg>
#include <cstdio>

namespace ds41 {

Error::Error(ds41_status status, const char *format, ...) noexcept : status_(status) {
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(message_, sizeof message_, format, arguments);
    va_end(arguments);
}

} // namespace ds41
