// Entry point of the unit tests: doctest's own. Environment: DS41_FIXTURES (folder of the golden files) and
// DS41_TEST_SEED (start of the random inputs).
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
