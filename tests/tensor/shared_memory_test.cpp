#include "tensor/shared_memory.h"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <utility>

#include "src/base/error.h"
#include "tensor/storage.h"

using namespace llm;

TEST_CASE("what one mapping writes the other reads, also of another process") {
  const SharedMemory own(10'000);
  const SharedMemory mapped(own.handle());
  CHECK(own.bytes() != mapped.bytes());
  CHECK(mapped.n_bytes() == 10'000);
  CHECK(mapped.bytes()[9'999] == std::byte{0});
  own.bytes()[9'999] = std::byte{7};
  CHECK(mapped.bytes()[9'999] == std::byte{7});

  const SharedHandle handle = own.handle();
  const pid_t child = fork();
  if (child == 0) {
    const SharedMemory of_parent(handle);
    of_parent.bytes()[0] = of_parent.bytes()[9'999];
    _exit(0);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(mapped.bytes()[0] == std::byte{7});
}

TEST_CASE("a mapping outlives its owner, and moving it moves nothing") {
  SharedMemory owner(64);
  owner.bytes()[5] = std::byte{3};
  SharedMemory mapped(owner.handle());
  owner = SharedMemory();
  const std::byte* const bytes = mapped.bytes();
  const SharedMemory moved = std::move(mapped);
  CHECK(moved.bytes() == bytes);
  CHECK(moved.bytes()[5] == std::byte{3});
}

TEST_CASE("a handle that names nothing, something else or something shorter is refused") {
  const SharedMemory own(4096);
  SharedHandle handle = own.handle();
  handle.n_bytes = 100'000;
  CHECK_THROWS_AS(SharedMemory(handle), FileError);
  handle = own.handle();
  handle.file = 9999;
  CHECK_THROWS_AS(SharedMemory(handle), FileError);
  handle.file = STDERR_FILENO;
  CHECK_THROWS_AS(SharedMemory(handle), FileError);
  CHECK_THROWS_AS(SharedMemory(own.handle()).handle(), ContractBroken);
}

TEST_CASE("shared memory that cannot be had is refused before anybody writes to it") {
  CHECK_THROWS_AS(SharedMemory(std::int64_t{1} << 60), OutOfMemory);
}

TEST_CASE("a shared storage is a storage: zero-filled, aligned, counted while it lives") {
  const std::int64_t before = storage_bytes_in_use();
  {
    Storage storage = Storage::shared(100);
    CHECK(storage_bytes_in_use() == before + 100);
    const Storage moved = std::move(storage);
    const MutView view = moved.view(Dtype::f32, {25});
    CHECK(view.as<float>()[24] == 0.0f);
    CHECK(reinterpret_cast<std::uintptr_t>(view.data()) % 64 == 0);
    CHECK_THROWS_AS(moved.view(Dtype::f32, {26}), ContractBroken);
    view.as<float>()[1] = 2.0f;
    const SharedMemory mapped(moved.handle());
    CHECK(reinterpret_cast<const float*>(mapped.bytes())[1] == 2.0f);
  }
  CHECK(storage_bytes_in_use() == before);
  CHECK(Storage::shared(0).n_bytes() == 0);
}
