// DNNL_MAX_CPU_ISA=AVX2 holds oneDNN below what the CPU has; here Highway follows it, so that the
// whole suite runs as on a CPU without AVX-512.
#define CATCH_CONFIG_EXTERNAL_INTERFACES
#include <hwy/targets.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <string>

namespace {

struct Limit : Catch::TestEventListenerBase {
  using TestEventListenerBase::TestEventListenerBase;
  void testRunStarting(const Catch::TestRunInfo&) override {
    const char* most = std::getenv("DNNL_MAX_CPU_ISA");
    if (most == nullptr || most != std::string("AVX2")) return;
    hwy::DisableTargets(HWY_AVX3 | HWY_AVX3_DL);
  }
};

}  // namespace

CATCH_REGISTER_LISTENER(Limit)
