#include "src/rt/side_thread.h"

#include <future>
#include <utility>

#include "src/base/error.h"

namespace llm {

SideThread::SideThread(Loop& loop)
    : loop_(loop),
      finished_(std::make_shared<Inbox<bool>>(loop, WaitName("work beside the loop", "disk"))) {}

SideThread::~SideThread() {
  is_dropped_ = true;
  if (thread_.joinable()) thread_.join();
}

Task<> SideThread::run(std::function<void()> work) {
  CHECK_CONTRACT(!thread_.joinable(), "a side thread does one work at a time");
  const std::int64_t key = n_begun_++;
  std::packaged_task<void()> task(std::move(work));
  std::future<void> result = task.get_future();
  // The inbox may end before the call is run, with this object.
  std::weak_ptr<Inbox<bool>> finished = finished_;
  thread_ = std::thread([this, key, finished, task = std::move(task)]() mutable {
    task();
    loop_.post([finished, key] {
      if (const auto inbox = finished.lock()) inbox->put(key, true);
    });
  });
  co_await finished_->take(key);
  thread_.join();
  result.get();
}

void SideThread::tick() {
  if (is_dropped_) throw Error(ExitCode::internal, "the run ended while a file was written");
  loop_.post([] {});
}

}  // namespace llm
