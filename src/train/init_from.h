#pragma once
#include <string>
#include <vector>

#include "actors/model_state.h"
#include "src/config/load.h"
#include "src/io/hf_config.h"
#include "src/model/model_config.h"

namespace llm {

/// What the config.json in model.init_from's folder says of the section model: for
/// ConfigSources::read_folder. Dropout and the weight of a mixture's balance loss may be set to
/// something else, since weights do not depend on them, and so may a shorter max_seq_len under
/// rotary positions. Throws as read_hf_config does.
std::vector<FolderField> fields_of_folder(const std::string& folder);

/// The values that a run with `model` starts from, read from the folder when they are asked for.
/// Throws FileError or DataError where the folder does not hold this model's weights.
/// `checks_contents`: also holds a stored head against a tied embedding, which reads both.
struct FolderValues {
  InitialValues values;
  std::string summary;  ///< for the start: "weights: FOLDER, 14 tensors, F32, in 1 file"
};
FolderValues values_of_folder(const std::string& folder, const ModelConfig& model,
                              bool checks_contents);

}  // namespace llm
