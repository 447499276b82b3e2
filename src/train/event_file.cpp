#include "src/train/event_file.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cstring>

#include <fmt/format.h>
#include "src/base/crc32.h"
#include "src/base/error.h"

namespace llm {
namespace {

// Fields of TensorFlow's event.proto and summary.proto.
constexpr int event_wall_time = 1;
constexpr int event_step = 2;
constexpr int event_file_version = 3;
constexpr int event_summary = 5;
constexpr int event_session_log = 7;
constexpr int summary_value = 1;
constexpr int value_tag = 1;
constexpr int value_simple = 2;
constexpr int session_status = 1;
constexpr std::uint64_t status_start = 1;

template <typename T>
void put_little_endian(std::string& out, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(value >> (8 * i) & 0xFF);
}

/// Protobuf's wire format, as far as scalars need it.
class Message {
 public:
  void varint(int field, std::uint64_t value) {
    put_varint(static_cast<std::uint64_t>(field) << 3);
    put_varint(value);
  }
  void f64(int field, double value) {
    put_varint(static_cast<std::uint64_t>(field) << 3 | 1);
    put_little_endian(bytes_, std::bit_cast<std::uint64_t>(value));
  }
  void text(int field, std::string_view value) {
    put_varint(static_cast<std::uint64_t>(field) << 3 | 2);
    put_varint(value.size());
    bytes_ += value;
  }
  void f32(int field, float value) {
    put_varint(static_cast<std::uint64_t>(field) << 3 | 5);
    put_little_endian(bytes_, std::bit_cast<std::uint32_t>(value));
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void put_varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }
  std::string bytes_;
};

/// Of the wall, since TensorBoard shows when a step was.
double seconds_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string file_name() {
  std::array<char, 256> host{};
  if (gethostname(host.data(), host.size() - 1) != 0) host = {'h', 'o', 's', 't'};
  return fmt::format("events.out.tfevents.{:010}.{}.{}", static_cast<std::int64_t>(seconds_now()),
                     host.data(), getpid());
}

std::uint32_t masked_crc(std::string_view bytes) {
  const std::uint32_t crc = crc32c(bytes.data(), bytes.size());
  return std::rotr(crc, 15) + 0xA282EAD8u;
}

}  // namespace

std::string tf_record(std::string_view data) {
  std::string record;
  put_little_endian(record, static_cast<std::uint64_t>(data.size()));
  put_little_endian(record, masked_crc(record));
  record += data;
  put_little_endian(record, masked_crc(data));
  return record;
}

EventFile::EventFile(const std::filesystem::path& folder, std::int64_t first_step)
    : path_((folder / file_name()).string()), file_(std::fopen(path_.c_str(), "wbx")) {
  if (file_ == nullptr) {
    throw FileError(fmt::format("cannot write {}: {}", path_, std::strerror(errno)));
  }
  Message version;
  version.f64(event_wall_time, seconds_now());
  version.text(event_file_version, "brain.Event:2");
  write(version.bytes());
  Message status;
  status.varint(session_status, status_start);
  Message begin;
  begin.f64(event_wall_time, seconds_now());
  begin.varint(event_step, static_cast<std::uint64_t>(first_step));
  begin.text(event_session_log, status.bytes());
  write(begin.bytes());
}

EventFile::~EventFile() {
  if (file_ != nullptr) std::fclose(file_);
}

void EventFile::add(std::int64_t step, const std::vector<Scalar>& scalars) {
  Message summary;
  for (const Scalar& scalar : scalars) {
    Message value;
    value.text(value_tag, scalar.tag);
    value.f32(value_simple, static_cast<float>(scalar.value));
    summary.text(summary_value, value.bytes());
  }
  Message event;
  event.f64(event_wall_time, seconds_now());
  event.varint(event_step, static_cast<std::uint64_t>(step));
  event.text(event_summary, summary.bytes());
  write(event.bytes());
}

void EventFile::write(const std::string& event) {
  const std::string record = tf_record(event);
  if (std::fwrite(record.data(), 1, record.size(), file_) != record.size() ||
      std::fflush(file_) != 0) {
    throw FileError(fmt::format("cannot write {}: {}", path_, std::strerror(errno)));
  }
}

}  // namespace llm
