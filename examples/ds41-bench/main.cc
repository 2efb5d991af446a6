// ds41-bench: how fast is this library on this machine, beside what the machine could do?
#include "modes.h"
#include "options.h"
#include "report.h"

#include <ds41/ds41.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <system_error>

namespace {

/// Plugins lie beside the library, whose objects this program has in itself.
void find_plugins() {
    std::error_code error;
    const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
    const std::filesystem::path folder = program.parent_path() / DS41_BENCH_LIBDIR;
    if (!error && std::filesystem::is_directory(folder, error)) setenv("DS41_PLUGIN_PATH", folder.c_str(), 0);
}

} // namespace

int main(int argc, char **argv) {
    using namespace bench;
    try {
        find_plugins();
        const Options options = parse_options(argc, argv);
        if (options.help) {
            std::fputs(help_text().c_str(), stdout);
        } else if (options.version) {
            std::printf("ds41-bench %d.%d.%d, libds41 %s\n", DS41_VERSION_MAJOR, DS41_VERSION_MINOR, DS41_VERSION_PATCH,
                        ds41_version());
        } else {
            Report report(options.json);
            find_mode(options.mode)->run(options, report);
            report.finish();
        }
        if (std::fflush(stdout) != 0 || std::ferror(stdout)) throw std::runtime_error("the output cannot be written");
        return 0;
    } catch (const BadUsage &error) {
        std::fprintf(stderr, "ds41-bench: %s; see --help\n", error.what());
        return 2;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "ds41-bench: %s\n", error.what());
        return 1;
    }
}
