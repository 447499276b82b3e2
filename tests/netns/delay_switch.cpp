// A switch between two network namespaces with a rate and a delay, which this kernel's own queues
// may lack: each namespace gets a TAP device v0, and frames go from one to the other. Runs until it
// is ended; the devices go with it.
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace {

// A frame begins with virtio's header of 10 bytes, and may be a segment that a card would cut into
// packets of 1,448 bytes, each with 24 bytes of its own on the wire.
constexpr std::size_t most_frame_bytes = 70'000;
constexpr std::int64_t header_bytes = 10;
constexpr std::int64_t packet_bytes = 1448;
constexpr std::int64_t gap_bytes = 24;
// Frames of a sender wait here for at most so long, then its own kernel keeps them.
constexpr std::int64_t queue_ns = 4'000'000;

struct Frame {
  std::int64_t at_ns;  ///< when it arrives
  std::vector<char> bytes;
};

struct Port {
  int device = -1;
  std::int64_t sent_until_ns = 0;
  std::deque<Frame> to_other;  ///< in the order of arrival, since every frame has the same delay
};

std::int64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * std::int64_t{1'000'000'000} + t.tv_nsec;
}

void check(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(fmt::format("{}: {}", what, std::strerror(errno)));
}

int open_device(const std::string& name_space) {
  const int there = open(("/run/netns/" + name_space).c_str(), O_RDONLY | O_CLOEXEC);
  check(there >= 0 && setns(there, CLONE_NEWNET) == 0, "entering the namespace");
  close(there);
  const int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  check(device >= 0, "/dev/net/tun");
  ifreq request{};
  request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
  std::strncpy(request.ifr_name, "v0", IFNAMSIZ - 1);
  check(ioctl(device, TUNSETIFF, &request) == 0, "TUNSETIFF");
  check(ioctl(device, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4) == 0, "TUNSETOFFLOAD");
  return device;
}

/// Takes what the sender has, as far as its queue here has room.
void take_frames(Port& port, std::int64_t delay_ns, double bytes_per_ns) {
  static std::array<char, most_frame_bytes> buffer;
  while (port.sent_until_ns < now_ns() + queue_ns) {
    const ssize_t n = read(port.device, buffer.data(), buffer.size());
    if (n <= 0) return;
    const std::int64_t n_packets = 1 + n / packet_bytes;
    const auto wire_bytes = static_cast<double>(n - header_bytes + gap_bytes * n_packets);
    const auto on_wire_ns = static_cast<std::int64_t>(wire_bytes / bytes_per_ns);
    port.sent_until_ns = std::max(port.sent_until_ns, now_ns()) + on_wire_ns;
    port.to_other.push_back(
        {port.sent_until_ns + delay_ns, std::vector<char>(buffer.data(), buffer.data() + n)});
  }
}

/// A device that is down takes nothing: its frames are lost, as on a cable that is out.
void deliver_frames(Port& from, const Port& to) {
  while (!from.to_other.empty() && from.to_other.front().at_ns <= now_ns()) {
    const std::vector<char>& bytes = from.to_other.front().bytes;
    if (write(to.device, bytes.data(), bytes.size()) < 0 && errno != EIO && errno != EAGAIN) {
      check(false, "writing a frame");
    }
    from.to_other.pop_front();
  }
}

void run(char** arguments) {
  const std::int64_t delay_ns = std::atoll(arguments[3]) * 1000;
  const double bytes_per_ns = std::atof(arguments[4]) * 1e6 / 8e9;
  std::array<Port, 2> ports;
  for (std::size_t i = 0; i < 2; ++i) ports[i].device = open_device(arguments[1 + i]);
  std::puts("up");
  std::fflush(stdout);
  while (true) {
    for (Port& port : ports) take_frames(port, delay_ns, bytes_per_ns);
    deliver_frames(ports[0], ports[1]);
    deliver_frames(ports[1], ports[0]);
    std::array<pollfd, 2> waits{};
    std::int64_t wake_ns = now_ns() + 1'000'000'000;
    for (std::size_t i = 0; i < 2; ++i) {
      const Port& port = ports[i];
      const bool is_full = port.sent_until_ns >= now_ns() + queue_ns;
      waits[i] = {port.device, static_cast<short>(is_full ? 0 : POLLIN), 0};
      if (is_full) wake_ns = std::min(wake_ns, port.sent_until_ns - queue_ns / 2);
      if (!port.to_other.empty()) wake_ns = std::min(wake_ns, port.to_other.front().at_ns);
    }
    const std::int64_t left_ns = std::max<std::int64_t>(wake_ns - now_ns(), 0);
    const timespec left{left_ns / 1'000'000'000, left_ns % 1'000'000'000};
    ppoll(waits.data(), waits.size(), &left, nullptr);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fputs("usage: delay_switch NAMESPACE NAMESPACE DELAY_US MBIT_PER_SECOND\n", stderr);
    return 64;
  }
  try {
    run(argv);
  } catch (const std::exception& error) {
    std::fputs(fmt::format("error: {}\n", error.what()).c_str(), stderr);
    return 70;
  }
}
