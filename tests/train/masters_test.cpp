#include "src/train/masters.h"

#include <catch2/catch.hpp>
#include <deque>
#include <vector>

#include "src/comm/loopback/loopback.h"
#include "src/train/rank_plan.h"
#include "tests/parity/world.h"

using namespace llm;

namespace {

constexpr int tag = 3;
constexpr int channel = 1;

struct Rank {
  Rank(Transport& transport, const Settings& settings)
      : control(transport), state(settings.model, state_shape(settings, transport.rank())) {
    state.initialize(settings.seed);
  }
  ControlPlane control;
  ModelState state;
};

std::vector<float> floats(const View& view) {
  const float* const first = view.as<float>();
  return {first, first + view.n_elements()};
}

}  // namespace

TEST_CASE("whole parameters come to rank 0 in any order and again, whoever owns which part") {
  for (const int dp : {1, 3}) {
    Settings settings = parity_settings(parity_gpt2(), dp, {1, 1}, 1, 1);
    settings.model.compute = Dtype::bf16;
    settings.model.n_layers = 4;
    settings.zero_stage = dp > 1 ? 1 : 0;
    set_pipeline(settings, {.n_ranks = 2});
    Settings alone = parity_settings(settings.model, 1, {1}, 1, 1);
    ModelState expected(alone.model, state_shape(alone, 0));
    expected.initialize(settings.seed);

    Loop loop;
    LoopbackNetwork network(loop, settings.grid.n_ranks(), 5);
    std::deque<Rank> ranks;
    std::deque<MasterServer> servers;
    for (int rank = 0; rank < settings.grid.n_ranks(); ++rank) {
      ranks.emplace_back(network.rank(rank), settings);
    }
    for (const MasterPieces& source : master_pieces(settings)) {
      if (source.rank == 0) continue;
      Rank& rank = ranks[static_cast<std::size_t>(source.rank)];
      MasterServer& server = servers.emplace_back(network.rank(source.rank), tag, source);
      rank.control.connect(channel, server.requests());
      loop.spawn_background("server", server.run(pieces_of(rank.state)));
    }
    const std::int64_t before = storage_bytes_in_use();
    MasterFetcher fetcher(ranks[0].control, network.rank(0),
                          {.sources = master_pieces(settings), .tag = tag, .channel = channel},
                          ranks[0].state.config());
    fetcher.set_source(pieces_of(ranks[0].state));
    std::int64_t largest = 0;
    for (const ParameterSpec& spec : expected.specs()) {
      largest = std::max(largest, spec.n_elements());
    }
    CHECK(storage_bytes_in_use() - before == largest * 4);
    const std::size_t n = expected.specs().size();
    for (std::size_t k = 0; k < 2 * n; ++k) {
      const std::size_t canonical = k * 7 % n;
      loop.spawn("fetcher", fetcher.fetch(canonical));
      loop.run();
      REQUIRE(floats(fetcher.parameter()) == floats(expected.parameter(canonical)));
    }
    fetcher.end();
    loop.run();
    loop.drop_actors();
  }
}
