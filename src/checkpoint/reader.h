#pragma once
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "src/checkpoint/boxes.h"
#include "src/checkpoint/manifest.h"
#include "src/io/safetensors.h"
#include "src/model/tensor_slice.h"

namespace llm {

/// The tensors of a checkpoint, full or sharded, by name: read in parts of any shape, whatever the
/// parts that they were written in. No more than headers and a few megabytes is held. What is
/// damaged is for verify_checkpoint to find; here headers are held against the format and tensors
/// against each other.
class CheckpointReader {
 public:
  /// A tensor as the files have it: rows of a vector, or (rows, columns).
  struct Tensor {
    bool is_vector = false;
    std::int64_t n_rows = 0;
    std::int64_t n_columns = 1;
    std::vector<std::int64_t> shape() const;
    bool operator==(const Tensor&) const = default;
  };

  /// Opens folder/manifest.json and the safetensors files that it names; where there is no
  /// manifest, folder/model.safetensors alone, of F32, BF16 or F16. Throws FileError, or DataError
  /// where they are malformed, hold other element types, or where the parts of a tensor do not
  /// cover it (a rank's file is missing).
  explicit CheckpointReader(std::filesystem::path folder);
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;

  const std::filesystem::path& folder() const { return folder_; }
  const Manifest& manifest() const { return manifest_; }
  /// By part_name(): weights under their Hugging Face names.
  const std::map<std::string, Tensor>& tensors() const { return tensors_; }

  /// Throws DataError naming the tensor where this is not the checkpoint of such a model: a tensor
  /// is missing, has another shape, or belongs to no parameter.
  void check_model(const ModelConfig& config) const;
  /// Elements of a parameter's part, whole or a rank's slice, into values f32; padding is 0.
  void read(const ParameterSpec& spec, TensorPart part, Range elements, MutView values) const;
  /// The same as a function that keeps a reference to this reader: for ModelState.
  WholeValues values_of(TensorPart part) const;
  /// Rows of a tensor, (rows.size(), n_columns) into `out`.
  void read_rows(const std::string& name, Range rows, float* out) const;

 private:
  struct Stored {
    const SafetensorsFile* file;
    const SafetensorsEntry* entry;
    Range rows;
    Range columns;
  };
  void add_file(const std::filesystem::path& path);
  void check_cover() const;
  void read_box(const Box& box, const std::string& name, float* values) const;
  static void read_stored(const Stored& from, const Box& box, float* values);

  std::filesystem::path folder_;
  Manifest manifest_;
  std::deque<SafetensorsFile> files_;
  std::map<std::string, std::vector<Stored>> stored_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace llm
