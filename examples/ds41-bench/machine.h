// What a figure was measured on.
#pragma once

#include <string>

namespace bench {

std::string cpu_name(); ///< As the kernel tells it; the machine's type where it does not.
int n_usable_cpus();    ///< That this process may run on, 1 at least.

} // namespace bench
