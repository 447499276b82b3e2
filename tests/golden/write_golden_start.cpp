#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "src/io/hf_weights.h"
#include "tests/golden/golden.h"
#include "tests/model/whole_model.h"

/// write_golden_start CASE FOLDER: FOLDER/model.safetensors with the weights from which this
/// program starts the golden case, for read_by_python.py.
int main(int argc, char** argv) {
  if (argc != 3) return 64;
  const llm::GoldenCase golden(argv[1]);
  llm::WholeModel model(golden.model);
  model.start(golden.training.seed);
  const std::vector<llm::View> values(model.values.begin(), model.values.end());
  llm::write_hf_weights(argv[2], model.specs, values);
  return 0;
}
