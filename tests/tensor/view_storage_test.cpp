#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <fstream>

#include "src/base/error.h"
#include "tensor/storage.h"
#include "tensor/view.h"

using namespace llm;

TEST_CASE("a shape counts its elements and a scalar has one") {
  CHECK(Shape({2, 3, 4}).n_elements() == 24);
  CHECK(Shape().n_elements() == 1);
  CHECK(Shape({5, 0}).n_elements() == 0);
  CHECK(to_string(Shape({2, 3})) == "(2, 3)");
  CHECK(to_string(Shape()) == "()");
  CHECK(Shape({2, 3}) != Shape({3, 2}));
  CHECK(Shape({2}) != Shape({2, 1}));
  CHECK_THROWS_AS(Shape({1, 1, 1, 1, 1}), ContractBroken);
  CHECK_THROWS_AS(Shape({-1}), ContractBroken);
}

TEST_CASE("a view is read as what it holds and as nothing else") {
  const float x[6] = {0, 1, 2, 3, 4, 5};
  const View view(x, {2, 3});
  CHECK(view.as<float>()[4] == 4.0f);
  CHECK(view.n_bytes() == 24);
  CHECK_THROWS_AS(view.as<double>(), ContractBroken);
  CHECK_FALSE(view.empty());
  CHECK(View().empty());
}

TEST_CASE("a part sees its elements of the whole and ends where the whole ends") {
  float x[6] = {0, 1, 2, 3, 4, 5};
  const MutView whole(x, {6});
  const MutView tail = part(whole, 4, {2});
  tail.as<float>()[0] = 9;
  CHECK(x[4] == 9.0f);
  CHECK(part(View(whole), 2, {2, 2}).as<float>()[3] == 5.0f);
  CHECK(part(whole, 6, {0}).n_elements() == 0);
  CHECK_THROWS_AS(part(whole, 5, {2}), ContractBroken);
  CHECK_THROWS_AS(part(whole, -1, {2}), ContractBroken);
}

TEST_CASE("a storage is zero-filled, aligned and refuses views that leave it") {
  const Storage storage(100);
  const MutView view = storage.view(Dtype::f32, {25});
  for (int i = 0; i < 25; ++i) CHECK(view.as<float>()[i] == 0.0f);
  CHECK(reinterpret_cast<std::uintptr_t>(view.data()) % 64 == 0);
  CHECK(storage.n_bytes() == 100);
  CHECK_THROWS_AS(storage.view(Dtype::f32, {26}), ContractBroken);
  CHECK_THROWS_AS(storage.view(Dtype::f32, {1}, 2), ContractBroken);
  CHECK_THROWS_AS(storage.view(Dtype::f32, {1}, 100), ContractBroken);
  CHECK(Storage(0).view(Dtype::f32, {0}).n_elements() == 0);
}

TEST_CASE("an arena hands out aligned parts that do not overlap and takes them back by mark") {
  Arena arena(4 * 64);
  const MutView a = arena.take(Dtype::f32, {17});  // 68 bytes: two lines
  const std::int64_t mark = arena.mark();
  const MutView b = arena.take(Dtype::u8, {1});
  CHECK(static_cast<char*>(b.data()) - static_cast<char*>(a.data()) == 128);
  CHECK(Arena::bytes_for(Dtype::f32, {17}) == 128);
  arena.take(Dtype::f32, {16});
  CHECK_THROWS_AS(arena.take(Dtype::u8, {1}), ContractBroken);
  arena.release_to(mark);
  CHECK(arena.take(Dtype::u8, {1}).data() == b.data());
  CHECK(arena.peak_bytes() == 256);
  CHECK(arena.n_bytes() == 256);
}

namespace {

/// Pages of this process that are in memory.
std::int64_t resident_pages() {
  std::ifstream file("/proc/self/statm");
  std::int64_t total = 0;
  std::int64_t resident = 0;
  file >> total >> resident;
  return resident;
}

}  // namespace

TEST_CASE("discarded bytes read as zero and take no memory, and their neighbours stay") {
  constexpr std::int64_t n = 32 << 20;
  for (const bool is_shared : {false, true}) {
    const Storage storage = is_shared ? Storage::shared(n) : Storage(n);
    auto* const bytes = storage.view(Dtype::u8, {n}).as<std::uint8_t>();
    std::fill_n(bytes, n, std::uint8_t{7});
    const std::int64_t before = resident_pages();
    storage.discard(100, n - 300);
    CHECK(before - resident_pages() > 7000);  // of 8,192
    CHECK(std::count(bytes, bytes + 100, 7) == 100);
    CHECK(std::count(bytes + n - 200, bytes + n, 7) == 200);
    CHECK(bytes[n / 2] == 0);
    bytes[n / 2] = 9;
    CHECK(bytes[n / 2] == 9);
    storage.discard(5, 3);  // less than a page: nothing
    CHECK(bytes[6] == 7);
    CHECK_THROWS_AS(storage.discard(n - 1, 2), ContractBroken);
  }
}
