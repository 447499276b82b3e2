#include "src/io/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "src/base/check.h"
#include "src/base/error.h"
#include "tensor/ops/elementwise.h"

namespace llm {
namespace {

/// The format's own cap; a longer header is an attack or a mistake.
constexpr std::int64_t max_header_bytes = 100'000'000;
constexpr std::size_t max_dims = 16;
constexpr const char* cut_short = ": if the file was cut short, copy or download it again";

struct DtypeName {
  Dtype dtype;
  const char* name;
};
constexpr DtypeName dtype_names[] = {
    {Dtype::f32, "F32"}, {Dtype::bf16, "BF16"}, {Dtype::f16, "F16"}, {Dtype::f64, "F64"},
    {Dtype::i32, "I32"}, {Dtype::i64, "I64"},   {Dtype::u8, "U8"},   {Dtype::u16, "U16"},
    {Dtype::u8, "BOOL"}};  // the last is read, never written

std::optional<Dtype> dtype_called(const std::string& name) {
  for (const DtypeName& known : dtype_names) {
    if (known.name == name) return known.dtype;
  }
  return std::nullopt;
}

/// Names never become paths here, but other tools make files of them.
bool is_plain_name(const std::string& name) {
  const auto is_odd = [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7F || c == '/' || c == '\\';
  };
  return !name.empty() && name != "." && name != ".." &&
         std::none_of(name.begin(), name.end(), is_odd);
}

/// For messages and headers: in quotes, with control characters escaped.
std::string in_quotes(const std::string& name) {
  return nlohmann::json(name).dump();
}

/// A tensor as its JSON object says it, before it is held against the file.
struct RawEntry {
  std::string name;
  std::optional<std::string> dtype;
  std::optional<std::vector<std::int64_t>> shape;
  std::optional<std::vector<std::int64_t>> offsets;
};

/// Takes the header's JSON piece by piece: what cannot be there is refused at once, so that neither
/// deep nesting nor a duplicate key (which a document tree would drop) gets through.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(std::string file) : file_(std::move(file)) {}
  std::vector<RawEntry> entries;
  std::map<std::string, std::string> metadata;

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a boolean"); }
  bool number_integer(std::int64_t) override { return refuse("a negative number"); }
  bool number_float(double, const std::string& text) override {
    return refuse("the number " + text + ", which is not an integer");
  }
  bool number_unsigned(std::uint64_t value) override {
    if (place_ != Place::list) return refuse("a number");
    if (value > static_cast<std::uint64_t>(INT64_MAX)) return refuse("a number above 2^63 - 1");
    if (list_->size() == max_dims) return refuse("a list of more than 16 numbers");
    list_->push_back(static_cast<std::int64_t>(value));
    return true;
  }
  bool string(std::string& value) override {
    if (place_ == Place::metadata) {
      metadata[key_] = value;
    } else if (place_ == Place::entry && key_ == "dtype") {
      entries.back().dtype = value;
    } else {
      return refuse("a string");
    }
    return true;
  }
  bool binary(nlohmann::json::binary_t&) override { return refuse("binary data"); }
  bool start_object(std::size_t) override {
    switch (place_) {
      case Place::outside:
        place_ = Place::top;
        return true;
      case Place::top:
        if (key_ == "__metadata__") {
          place_ = Place::metadata;
        } else {
          entries.push_back({key_, {}, {}, {}});
          place_ = Place::entry;
        }
        keys_.clear();
        return true;
      default:
        return refuse("an object");
    }
  }
  bool end_object() override {
    place_ = place_ == Place::top ? Place::outside : Place::top;
    return true;
  }
  bool start_array(std::size_t) override {
    if (place_ != Place::entry || key_ == "dtype") return refuse("a list");
    auto& list = key_ == "shape" ? entries.back().shape : entries.back().offsets;
    list_ = &list.emplace();
    place_ = Place::list;
    return true;
  }
  bool end_array() override {
    place_ = Place::entry;
    return true;
  }
  bool key(std::string& value) override {
    const bool is_new =
        place_ == Place::top ? names_.insert(value).second : keys_.insert(value).second;
    if (!is_new) {
      throw DataError(
          fmt::format("{}: the header holds the key {} twice", file_, in_quotes(value)));
    }
    if (place_ == Place::entry && value != "dtype" && value != "shape" && value != "data_offsets") {
      throw DataError(fmt::format("{}: tensor {} has the unknown key {}", file_,
                                  in_quotes(entries.back().name), in_quotes(value)));
    }
    key_ = value;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& error) override {
    throw DataError(
        fmt::format("{}: the header is not JSON at byte {}: {}", file_, position, error.what()));
  }

 private:
  enum class Place { outside, top, metadata, entry, list };
  bool refuse(const std::string& what) {
    throw DataError(fmt::format(
        "{}: the header holds {} at {}{}, where none may be", file_, what, in_quotes(key_),
        entries.empty() ? "" : " of tensor " + in_quotes(entries.back().name)));
  }

  std::string file_;
  Place place_ = Place::outside;
  std::string key_;
  std::set<std::string> names_;  // keys of the top object
  std::set<std::string> keys_;   // keys of the object inside it
  std::vector<std::int64_t>* list_ = nullptr;
};

/// The bytes of a shape; refused where they overflow.
std::int64_t bytes_of(const std::string& where, Dtype dtype,
                      const std::vector<std::int64_t>& shape) {
  auto n_bytes = static_cast<std::int64_t>(size_of(dtype));
  for (const std::int64_t extent : shape) {
    if (__builtin_mul_overflow(n_bytes, extent, &n_bytes)) {
      throw DataError(where + ": its shape has more bytes than 2^63");
    }
  }
  return n_bytes;
}

SafetensorsEntry checked(const std::string& file, const RawEntry& raw, std::int64_t data_begin,
                         std::int64_t n_file_bytes) {
  const std::string where = fmt::format("{}: tensor {}", file, in_quotes(raw.name));
  if (!is_plain_name(raw.name)) {
    throw DataError(where + ": the name is empty or holds a control character or a slash");
  }
  if (!raw.dtype || !raw.shape || !raw.offsets) {
    throw DataError(where + ": one of dtype, shape and data_offsets is missing");
  }
  const std::optional<Dtype> dtype = dtype_called(*raw.dtype);
  if (!dtype) {
    throw DataError(
        fmt::format("{}: element type {} is not one of F64 F32 BF16 F16 I64 I32 U16 U8 BOOL; save "
                    "it as one of them",
                    where, in_quotes(*raw.dtype)));
  }
  if (raw.offsets->size() != 2) {
    throw DataError(
        fmt::format("{}: data_offsets has {} numbers instead of 2", where, raw.offsets->size()));
  }
  const std::int64_t begin = (*raw.offsets)[0];
  const std::int64_t end = (*raw.offsets)[1];
  const std::int64_t n_data_bytes = n_file_bytes - data_begin;
  if (begin > end || end > n_data_bytes) {
    throw DataError(fmt::format("{}: bytes [{}, {}) are not inside the {} bytes of data{}", where,
                                begin, end, n_data_bytes, begin > end ? "" : cut_short));
  }
  const std::int64_t n_bytes = bytes_of(where, *dtype, *raw.shape);
  if (end - begin != n_bytes) {
    throw DataError(fmt::format("{}: its shape needs {} bytes, its data_offsets give {}", where,
                                n_bytes, end - begin));
  }
  return {raw.name, *dtype, *raw.shape, {data_begin + begin, data_begin + end}};
}

/// The bytes of the data must be covered once, without a hole.
void check_cover(const std::string& file, const std::vector<SafetensorsEntry>& tensors,
                 std::int64_t data_begin, std::int64_t n_file_bytes) {
  std::int64_t next = data_begin;
  for (const SafetensorsEntry& entry : tensors) {
    if (entry.bytes.begin != next) {
      throw DataError(
          fmt::format("{}: tensor \"{}\" begins at byte {} of the data, but {} comes next: "
                      "a {}",
                      file, entry.name, entry.bytes.begin - data_begin, next - data_begin,
                      entry.bytes.begin > next ? "hole" : "overlap"));
    }
    next = entry.bytes.end;
  }
  if (next != n_file_bytes) {
    throw DataError(fmt::format("{}: {} bytes follow the last tensor, which ends at byte {} of {}",
                                file, n_file_bytes - next, next, n_file_bytes));
  }
}

SafetensorsHeader read_header(const InputFile& file) {
  const std::string name = file.path().string();
  if (file.n_bytes() < 8) {
    throw DataError(fmt::format("{}: {} bytes are too few for a safetensors file{}", name,
                                file.n_bytes(), cut_short));
  }
  unsigned char raw[8];
  file.read(0, 8, raw);
  std::uint64_t n_header = 0;
  for (int i = 7; i >= 0; --i) n_header = n_header << 8 | raw[i];
  const auto n_rest = static_cast<std::uint64_t>(file.n_bytes() - 8);
  if (n_header > std::uint64_t{max_header_bytes}) {
    throw DataError(
        fmt::format("{}: a header of {} bytes is longer than the format's 100,000,000: not a "
                    "safetensors file",
                    name, n_header));
  }
  if (n_header < 2 || n_header > n_rest) {
    throw DataError(fmt::format("{}: a header of {} bytes cannot be in a file of {}{}", name,
                                n_header, file.n_bytes(), cut_short));
  }
  const auto n = static_cast<std::int64_t>(n_header);
  std::string text(n_header, ' ');
  file.read(8, n, text.data());
  return parse_safetensors_header(name, text, 8 + n, file.n_bytes());
}

}  // namespace

const char* safetensors_name(Dtype dtype) {
  for (const DtypeName& known : dtype_names) {
    if (known.dtype == dtype) return known.name;
  }
  return "?";
}

SafetensorsHeader parse_safetensors_header(const std::string& file, const std::string& text,
                                           std::int64_t data_begin, std::int64_t n_file_bytes) {
  if (text.empty() || text[0] != '{') {
    throw DataError(file + ": the header does not begin with '{': not a safetensors file");
  }
  // The parser takes a NUL for the end of its input.
  if (text.find('\0') != std::string::npos) {
    throw DataError(file + ": the header holds a NUL byte");
  }
  HeaderReader reader(file);
  nlohmann::json::sax_parse(text, &reader);
  SafetensorsHeader header;
  header.metadata = std::move(reader.metadata);
  for (const RawEntry& raw : reader.entries) {
    header.tensors.push_back(checked(file, raw, data_begin, n_file_bytes));
  }
  // Empty tensors stand before the one that begins at the same byte.
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::pair(a.bytes.begin, a.bytes.end) < std::pair(b.bytes.begin, b.bytes.end);
            });
  check_cover(file, header.tensors, data_begin, n_file_bytes);
  return header;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : file_(path), header_(read_header(file_)) {
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) index_[header_.tensors[i].name] = i;
}

const SafetensorsEntry& SafetensorsFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  if (found == index_.end()) {
    throw DataError(fmt::format("{}: tensor {} is not among its {} tensors", file_.path().string(),
                                in_quotes(name), tensors().size()));
  }
  return header_.tensors[found->second];
}

void SafetensorsFile::read(const SafetensorsEntry& entry, Range elements, void* out) const {
  CHECK_CONTRACT(
      0 <= elements.begin && elements.begin <= elements.end && elements.end <= entry.n_elements(),
      "a range of elements lies inside its tensor");
  const auto size = static_cast<std::int64_t>(size_of(entry.dtype));
  file_.read(entry.bytes.begin + elements.begin * size, elements.size() * size, out);
}

void SafetensorsFile::read_f32(const SafetensorsEntry& entry, Range elements, float* out) const {
  if (entry.dtype == Dtype::f32) {
    read(entry, elements, out);
    return;
  }
  if (entry.dtype != Dtype::bf16 && entry.dtype != Dtype::f16) {
    throw DataError(fmt::format(
        "{}: tensor {} holds {}, but weights are read from F32, BF16 or F16; save it as one",
        file_.path().string(), in_quotes(entry.name), safetensors_name(entry.dtype)));
  }
  constexpr std::int64_t n_at_a_time = 1 << 18;
  std::vector<std::uint16_t> raw(static_cast<std::size_t>(std::min(elements.size(), n_at_a_time)));
  Queue queue;
  for (std::int64_t begin = elements.begin; begin < elements.end; begin += n_at_a_time) {
    const Range some{begin, std::min(begin + n_at_a_time, elements.end)};
    read(entry, some, raw.data());
    convert(queue, View(raw.data(), entry.dtype, {some.size()}),
            MutView(out + (begin - elements.begin), {some.size()}));
    queue.finish();
  }
}

std::vector<float> SafetensorsFile::read_f32(const std::string& name) const {
  const SafetensorsEntry& entry = find(name);
  std::vector<float> values(static_cast<std::size_t>(entry.n_elements()));
  read_f32(entry, {0, entry.n_elements()}, values.data());
  return values;
}

namespace {

std::size_t n_bytes_of(const SafetensorsOutput& tensor) {
  std::size_t n_bytes = size_of(tensor.dtype);
  for (const std::int64_t extent : tensor.shape) n_bytes *= static_cast<std::size_t>(extent);
  return n_bytes;
}

}  // namespace

std::string safetensors_head(const std::vector<SafetensorsOutput>& tensors) {
  // Written by hand: tensors stand in their order, which a JSON library's map would not keep.
  std::string header = R"({"__metadata__":{"format":"pt"})";
  std::size_t begin = 0;
  for (const SafetensorsOutput& tensor : tensors) {
    CHECK_CONTRACT(is_plain_name(tensor.name), "a tensor's name is plain text");
    const std::size_t end = begin + n_bytes_of(tensor);
    header += fmt::format(R"(,{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                          in_quotes(tensor.name), safetensors_name(tensor.dtype),
                          fmt::join(tensor.shape, ","), begin, end);
    begin = end;
  }
  header += '}';
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string head;
  for (int i = 0; i < 8; ++i) head += static_cast<char>(header.size() >> (8 * i) & 0xFF);
  return head + header;
}

void write_safetensors(const std::filesystem::path& path, std::vector<SafetensorsOutput> tensors) {
  // The format wants this order.
  std::sort(tensors.begin(), tensors.end(),
            [](const SafetensorsOutput& a, const SafetensorsOutput& b) {
              const std::size_t size_a = size_of(a.dtype);
              const std::size_t size_b = size_of(b.dtype);
              return size_a != size_b ? size_a > size_b : a.name < b.name;
            });
  write_file_atomically(path, [&](OutputFile& file) {
    file.append(safetensors_head(tensors));
    std::vector<std::byte> buffer;
    for (const SafetensorsOutput& tensor : tensors) {
      buffer.assign(n_bytes_of(tensor), std::byte{0});
      tensor.fill(buffer);
      file.append(buffer.data(), buffer.size());
    }
  });
}

}  // namespace llm
