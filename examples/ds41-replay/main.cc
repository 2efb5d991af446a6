// ds41-replay: does this library, on this machine, give the values that the fixture files expect? Also for ports and
// backends that reach the library only through its interface.
#include "options.h"
#include "report.h"

#include <cstdio>
#include <exception>
#include <set>
#include <stdexcept>
#include <utility>

namespace {

using namespace replay;

void run_file(const std::string &path, const Options &options, std::set<std::vector<std::string>> &seen,
              Report &report) {
    std::string name;
    try {
        const std::vector<std::string> paths = parts_of(path);
        if (!seen.insert(paths).second) return; // another part of the same case came before
        const Fixture fixture(paths);
        if (const char *value = fixture.metadata("case")) name = value;
        const Case replayed = read_case(fixture);
        size_t n_compared = 0;
        bool first = true;
        for (size_t mode = 0; mode < replayed.modes.size(); ++mode) {
            if (replayed.expected[mode].empty()) continue;
            const ModeResult result = run_mode(fixture, replayed, mode, options.run);
            for (const Record &record : result.records) n_compared += record.result.n > 0;
            report.add(path, replayed, mode, std::exchange(first, false), result);
        }
        if (n_compared == 0) throw CannotRun("the file holds no expected tensor that could be compared");
    } catch (const std::exception &error) {
        report.add_error(path, name, error.what());
    }
}

} // namespace

int main(int argc, char **argv) {
    try {
        const Options options = parse_options(argc, argv);
        if (options.help) {
            std::fputs(kHelp, stdout);
            return 0;
        }
        if (options.version) {
            std::printf("ds41-replay %d.%d.%d, libds41 %s\n", DS41_VERSION_MAJOR, DS41_VERSION_MINOR,
                        DS41_VERSION_PATCH, ds41_version());
            return 0;
        }
        Report report(options);
        std::set<std::vector<std::string>> seen;
        for (const std::string &path : options.files) run_file(path, options, seen, report);
        report.finish();
        if (std::fflush(stdout) != 0 || std::ferror(stdout)) throw std::runtime_error("the output cannot be written");
        return report.exit_status();
    } catch (const BadUsage &error) {
        std::fprintf(stderr, "ds41-replay: %s; see --help\n", error.what());
    } catch (const std::exception &error) {
        std::fprintf(stderr, "ds41-replay: %s\n", error.what());
    }
    return 2;
}
