// ds41-inspect: what does this checkpoint hold for the attention layers, does it fit, and what is wrong with it?
#include "contents.h"
#include "options.h"
#include "report.h"
#include "text.h"

#include <ds41/ds41.h>

#include <cstdio>
#include <exception>

int main(int argc, char **argv) {
    using namespace inspect;
    try {
        const Options options = parse_options(argc, argv);
        int status = 0;
        if (options.help) {
            std::fputs(kHelp, stdout);
        } else if (options.version) {
            std::printf("ds41-inspect %d.%d.%d, libds41 %s\n", DS41_VERSION_MAJOR, DS41_VERSION_MINOR,
                        DS41_VERSION_PATCH, ds41_version());
        } else {
            const Contents contents = read_contents(options);
            std::fputs((options.json ? json_report : text_report)(options, contents).c_str(), stdout);
            status = contents.is_good() ? 0 : 1;
        }
        if (std::fflush(stdout) != 0 || std::ferror(stdout)) throw std::runtime_error("the output cannot be written");
        return status;
    } catch (const BadUsage &error) {
        std::fprintf(stderr, "ds41-inspect: %s; see --help\n", printable(error.what()).c_str());
    } catch (const std::exception &error) {
        std::fprintf(stderr, "ds41-inspect: %s\n", printable(error.what()).c_str());
    }
    return 2;
}
